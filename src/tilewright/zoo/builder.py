"""Building ONNX graphs by hand: values are their names, weights are seeded by name, sizes may be symbolic.

A weight's random stream depends on the seed and on the weight's full name only, never on the order of construction: two graphs built with
one seed that name a weight alike (GPT-2's prefill and decode graphs) share its values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tilewright.runtime.examples import EXAMPLE_KEY, Example
from tilewright.support.errors import SettingsError

Dim: TypeAlias = int | str
"""A size known when the graph is built, or the name of one that is known when the model runs."""

Value: TypeAlias = str
"""A tensor of the graph, by its name."""

Attribute: TypeAlias = int | float | str | Sequence[int]

OPSET = 18


@dataclass(slots=True)
class GraphBuilder:
    """Collects nodes, initializers, inputs and outputs of one graph, then hands out the `onnx.ModelProto`.

    Methods that create a node return the name of its output. Names carry the scopes open at that time, as exporters write them:
    `layer1.0.conv1.weight`, `/layer1/0/conv1/Conv`.
    """

    name: str
    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, TensorProto] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    _scopes: list[str] = field(default_factory=list)
    _uses: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def scope(self, *names: object) -> Iterator[None]:
        """Prefixes the names of everything made inside."""
        self._scopes.extend(str(name) for name in names)
        yield
        del self._scopes[len(self._scopes) - len(names) :]

    def input(self, name: str, shape: Sequence[Dim], dtype: int = TensorProto.FLOAT, example: Example | None = None) -> Value:
        """A graph input; `dtype` is an `onnx.TensorProto` data type, `example` says what to draw when somebody wants to try the model."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        if example is not None:
            self.metadata[EXAMPLE_KEY + name] = example.to_json()
        return name

    def output(self, name: str, value: Value, shape: Sequence[Dim], dtype: int = TensorProto.FLOAT) -> None:
        """Makes `value`, which a node computes, a graph output called `name`; the value has that name from then on."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, old in enumerate(names):
                    if old == value:
                        names[index] = name
        self.outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def array(self, name: str, values: NDArray[Any]) -> Value:
        """An initializer with these values, under the open scopes; a second call with one name returns the first's value."""
        full = ".".join((*self._scopes, name))
        if full not in self.initializers:
            self.initializers[full] = numpy_helper.from_array(np.ascontiguousarray(values), full)
        return full

    def random(self, name: str) -> np.random.Generator:
        """The stream of the weight `name` under the open scopes."""
        full = ".".join((*self._scopes, name))
        digest = hashlib.blake2b(full.encode(), digest_size=8).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest, "little")])

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> Value:
        """A float32 weight drawn from N(mean, std squared)."""
        values = self.random(name).standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
        return self.array(name, values)

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> Value:
        """A float32 weight drawn uniformly from [low, high)."""
        return self.array(name, self.random(name).uniform(low, high, tuple(shape)).astype(np.float32))

    def ints(self, *values: int) -> Value:
        """A constant int64 vector; equal vectors are one initializer."""
        return self._shared("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def int_scalar(self, value: int) -> Value:
        """A constant int64 scalar."""
        return self._shared(f"int_{value}", np.array(value, np.int64))

    def scalar(self, value: float) -> Value:
        """A constant float32 scalar."""
        return self._shared(f"float_{value!r}", np.array(value, np.float32))

    def op(self, kind: str, *inputs: Value, **attributes: Attribute) -> Value:
        """One node with one output. An empty name among `inputs` leaves out an optional input."""
        (result,) = self.op_many(kind, inputs, 1, **attributes)
        return result

    def op_many(self, kind: str, inputs: Sequence[Value], outputs: int, **attributes: Attribute) -> tuple[Value, ...]:
        """One node with several outputs, in their order."""
        base = "/" + "/".join((*self._scopes, kind)).replace(".", "/")
        count = self._uses.get(base, 0)
        self._uses[base] = count + 1
        node_name = f"{base}_{count}" if count else base
        names = tuple(f"{node_name}_output_{index}" for index in range(outputs))
        node = helper.make_node(kind, list(inputs), list(names), name=node_name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return names

    def size(self, value: Value, axis: int, dim: Dim) -> Value:
        """The size of one axis as an int64 scalar: a constant when `dim` is known, else read from `value` by Shape and Gather."""
        if isinstance(dim, int):
            return self.int_scalar(dim)
        return self.op("Gather", self.op("Shape", value), self.int_scalar(axis), axis=0)

    def reshape(self, value: Value, sizes: Sequence[int | Value]) -> Value:
        """Reshape to sizes that are numbers (-1 for the rest) or int64 scalars of the graph, put together by Unsqueeze and Concat."""
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) == len(sizes):
            return self.op("Reshape", value, self.ints(*numbers))
        parts = [self.ints(size) if isinstance(size, int) else self.op("Unsqueeze", size, self.ints(0)) for size in sizes]
        return self.op("Reshape", value, self.op("Concat", *parts, axis=0))

    def model(self, summary: str, metadata: Mapping[str, str] | None = None) -> onnx.ModelProto:
        """The finished model, with the initializers that a node reads. They move into it: the builder is empty of weights afterwards."""
        opsets = [helper.make_opsetid("", OPSET)]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, doc_string=summary)
        version = helper.find_min_ir_version_for(opsets)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="tilewright.zoo")
        helper.set_model_props(model, {**self.metadata, **(metadata or {})})
        read = {name for node in self.nodes for name in node.input}
        # `make_graph` and `make_model` each copy what they are given; moving one weight at a time keeps the peak near one copy.
        for name in list(self.initializers):
            tensor = self.initializers.pop(name)
            if name in read:
                model.graph.initializer.append(tensor)
        return model

    def _shared(self, name: str, values: NDArray[Any]) -> Value:
        full = f"constant.{name}"
        if full not in self.initializers:
            self.initializers[full] = numpy_helper.from_array(values, full)
        return full


def require(condition: bool, what: str, hint: str | None = None) -> None:
    """Raises `SettingsError` for a combination of options that makes no model."""
    if not condition:
        raise SettingsError(what, where="model zoo", hint=hint)


def sum_dims(first: Dim, second: Dim) -> Dim:
    """The dim of two axes laid end to end; symbolic where either is."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return f"{first} + {second}"
