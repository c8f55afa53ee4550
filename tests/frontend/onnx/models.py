"""Small ONNX models for the tests of the front end, and their comparison with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from tilewright.frontend.onnx.importer import Imported, import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import walk_nodes

Array = np.ndarray[Any, np.dtype[Any]]
IR_VERSION = 8


def parse(text: str) -> onnx.ModelProto:
    """A model from ONNX's text form; only the graph, or with functions after a full header."""
    header = "" if text.lstrip().startswith("<") else '<ir_version: 8, opset_import: ["" : 18]>\n'
    return onnx.parser.parse_model(header + text)


def single(
    op: str,
    inputs: Sequence[Array | None],
    opset: int,
    outputs: int = 1,
    constants: Mapping[int, Array] | None = None,
    dims: Mapping[int, Sequence[str | int]] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node. Inputs that are None are left out; `constants` are further inputs by position, as initializers; `dims`
    declares the dims of an input other than those of its array."""
    constants = constants or {}
    count = max([len(inputs), *(index + 1 for index in constants)])
    names = []
    for index in range(count):
        given = index in constants or (index < len(inputs) and inputs[index] is not None)
        names.append(f"x{index}" if given else "")
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, name="node", **attributes)
    infos = []
    for index, array in enumerate(inputs):
        if array is not None and index not in constants:
            shape = (dims or {}).get(index, array.shape)
            infos.append(helper.make_tensor_value_info(f"x{index}", helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    initializers = [onnx.numpy_helper.from_array(array, f"x{index}") for index, array in constants.items()]
    graph = helper.make_graph([node], "single", infos, [onnx.ValueInfoProto(name=name) for name in results], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    inferred = onnx.shape_inference.infer_shapes(model)
    for info in inferred.graph.output:
        if not info.type.HasField("tensor_type"):
            raise AssertionError(f"ONNX cannot infer the type of {info.name}")
    return inferred


def imported(model: onnx.ModelProto) -> Imported:
    return import_model(load_model(model))


def operators(model: Imported) -> list[str]:
    """Names of the operators that the results reach, without parameters and constants."""
    nodes = walk_nodes(model.module.main.results)
    return [node.op.name for node in nodes if node.op.name not in ("parameter", "constant")]


def run(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    module = imported(model).module
    return interpret(module, [inputs[name] for name in module.input_names])


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    found: list[Array] = session.run(None, dict(inputs))
    return found


def assert_same(got: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol)


def assert_like_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Array | None], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """The interpreter of the imported graph and onnxruntime agree on the model, whose inputs are named x0, x1, ..."""
    names = {info.name for info in model.graph.input}
    feeds = {f"x{index}": array for index, array in enumerate(inputs) if array is not None and f"x{index}" in names}
    assert_same(run(model, feeds), run_onnxruntime(model, feeds), rtol, atol)
