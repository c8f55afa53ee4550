"""The zoo's models by name: `build` makes one, `example_inputs` draws inputs for it, `write` puts it into a file.

    model = build("bert", layers=2, hidden=64, heads=4, batch="batch", sequence="sequence")
    feeds = example_inputs(model, {"batch": 1, "sequence": 16}, seed=0)
    write("resnet18", "resnet18.onnx", batch=8)

Weights are random but seeded, so a model is fully described by its name, options and seed, which its metadata records.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tilewright.runtime.examples import EXAMPLE_KEY, Example, draw
from tilewright.support.atomic import write_bytes_atomic
from tilewright.support.errors import InputError, SettingsError
from tilewright.zoo.bert import BertOptions, bert
from tilewright.zoo.builder import Dim, require
from tilewright.zoo.gpt2 import Gpt2Options, gpt2
from tilewright.zoo.layers import NormStyle
from tilewright.zoo.lstm import LstmOptions, lstm_lm
from tilewright.zoo.mlp import MlpOptions, mlp
from tilewright.zoo.mobilenet import MobileNetOptions, mobilenet_v2
from tilewright.zoo.resnet import ResNetOptions, resnet

EXTERNAL_ABOVE = 1_500_000_000
"""Bytes of weights past which they go into a file of their own: a protobuf message ends at 2 GiB."""

EXTERNAL_LEAST = 1024
"""Bytes below which a tensor stays in the model even then: shape inference reads the small ones."""

Options = ResNetOptions | MobileNetOptions | BertOptions | Gpt2Options | MlpOptions | LstmOptions


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a model, for help texts: its name, default and meaning."""

    name: str
    default: int | float | str | tuple[int, ...] | bool
    meaning: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the zoo: what it is, the function that builds it from options and a seed, and its default sizes."""

    summary: str
    builder: Callable[[Any, int], onnx.ModelProto]
    defaults: Options

    def options(self) -> tuple[Option, ...]:
        """The options that `build` takes for this model."""
        fields = dataclasses.fields(self.defaults)
        return tuple(Option(field.name, getattr(self.defaults, field.name), field.metadata["doc"]) for field in fields)


CATALOG: Mapping[str, Entry] = MappingProxyType(
    {
        "resnet18": Entry("ResNet-18, image classification", resnet, ResNetOptions()),
        "resnet50": Entry("ResNet-50, image classification", resnet, ResNetOptions(blocks=(3, 4, 6, 3), bottleneck=True)),
        "mobilenet_v2": Entry("MobileNet v2, image classification with depthwise convolutions", mobilenet_v2, MobileNetOptions()),
        "bert": Entry("BERT-base encoder, symbolic batch and sequence", bert, BertOptions()),
        "gpt2": Entry("GPT-2 small reading a prompt of symbolic length, with the KV cache as output", gpt2, Gpt2Options()),
        "gpt2_decode": Entry(
            "GPT-2 small continuing by one token from a KV cache of symbolic length", gpt2, Gpt2Options(sequence=1, past="past")
        ),
        "mlp": Entry("Multilayer perceptron", mlp, MlpOptions()),
        "lstm_lm": Entry("LSTM language model that carries its state", lstm_lm, LstmOptions()),
    }
)


def build(name: str, seed: int = 0, **options: object) -> onnx.ModelProto:
    """The model `name` of the catalogue with its default options replaced by `options`.

    The result passes `onnx.checker`, and is equal for equal arguments. Raises `SettingsError` for a model or an option that does not exist
    and for values of the wrong type.
    """
    entry = entry_of(name)
    require(seed >= 0, f"{name}: seed={seed} is negative")
    known = {field.name for field in dataclasses.fields(entry.defaults)}
    kinds = typing.get_type_hints(type(entry.defaults))
    for option, value in options.items():
        if option not in known:
            raise SettingsError(f"{name} has no option '{option}'", where="model zoo", hint=f"its options are: {', '.join(sorted(known))}")
        check_option(name, option, value, kinds[option])
    chosen = dataclasses.replace(entry.defaults, **typing.cast(dict[str, Any], options))
    model = entry.builder(chosen, seed)
    record = {"zoo.model": name, "zoo.seed": str(seed), "zoo.options": json.dumps(dataclasses.asdict(chosen))}
    helper.set_model_props(model, {prop.key: prop.value for prop in model.metadata_props} | record)
    return model


def entry_of(name: str) -> Entry:
    """The catalogue's entry, or `SettingsError` with the names that exist."""
    if name not in CATALOG:
        raise SettingsError(f"the zoo has no model '{name}'", where="model zoo", hint=f"its models are: {', '.join(CATALOG)}")
    return CATALOG[name]


def check_option(model: str, option: str, value: object, kind: object) -> None:
    """Raises `SettingsError` unless `value` is of the option's type and, where it is a size, positive (a cache may have size 0)."""
    lowest = 0 if option == "past" else 1
    if kind is bool:
        right, expected = isinstance(value, bool), "True or False"
    elif kind == NormStyle:
        right, expected = value in typing.get_args(NormStyle), " or ".join(map(repr, typing.get_args(NormStyle)))
    elif kind is float:
        right, expected = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    elif kind == Dim:
        right, expected = is_size(value, lowest) or (isinstance(value, str) and value.isidentifier()), "a positive integer or a name"
    elif kind is int:
        right, expected = is_size(value, lowest), "a positive integer"
    else:
        right, expected = isinstance(value, tuple) and all(is_size(item, 1) for item in value), "a tuple of positive integers"
    if not right:
        raise SettingsError(f"{model}: {option}={value!r} is not {expected}", where="model zoo")


def is_size(value: object, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest


def parse_options(name: str, texts: Sequence[str]) -> dict[str, object]:
    """Options as a command line has them ("layers=2", "batch=N", "sizes=784,512,10") as arguments of `build`."""
    kinds = typing.get_type_hints(type(entry_of(name).defaults))
    parsed: dict[str, object] = {}
    for text in texts:
        option, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"'{text}' is not an option of the form name=value", where="model zoo")
        parsed[option] = parse_value(value, kinds.get(option))
    return parsed


def parse_value(text: str, kind: object) -> object:
    """The value that `text` spells for an option of this type; text that spells none stays text, which `build` then refuses."""
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    try:
        if kind is float:
            return float(text)
        if kind == tuple[int, ...]:
            return tuple(int(part) for part in text.split(","))
        return int(text)
    except ValueError:
        return text


def example_inputs(model: onnx.ModelProto, dims: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Random inputs for any model, drawn from `seed`, with `dims` as the sizes of its symbolic axes.

    Models of the zoo say what is meaningful (token ids below the vocabulary's size, masks that start with ones); elsewhere floating-point
    inputs are N(0, 1), integers 0 or 1, and booleans either. Raises `InputError` for a symbolic axis that `dims` does not name.
    """
    sizes = dims or {}
    hints = {prop.key: prop.value for prop in model.metadata_props}
    weights = {tensor.name for tensor in model.graph.initializer}
    generator = np.random.default_rng(seed)
    inputs: dict[str, NDArray[Any]] = {}
    for info in model.graph.input:
        if info.name in weights:
            continue
        tensor = info.type.tensor_type
        shape = tuple(input_size(info.name, axis, dim, sizes) for axis, dim in enumerate(tensor.shape.dim))
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        hint = hints.get(EXAMPLE_KEY + info.name)
        floating = tensor.elem_type in FLOATING
        example = Example(**json.loads(hint)) if hint else Example("normal" if floating else "integers")
        inputs[info.name] = draw(generator, shape, example).astype(dtype)
    return inputs


FLOATING = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})


def input_size(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, sizes: Mapping[str, int]) -> int:
    """The size of one axis of an input."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    if dim.dim_param in sizes:
        return sizes[dim.dim_param]
    symbol = f"'{dim.dim_param}'" if dim.dim_param else "without a name"
    raise InputError(f"axis {axis} of input '{name}' has a symbolic size {symbol}", where="example_inputs", hint="give it a value in dims")


def write(name: str, path: str | os.PathLike[str], seed: int = 0, **options: object) -> Path:
    """Builds a model and saves it to `path`; see `build` and `save`."""
    return save(build(name, seed, **options), path)


def save(model: onnx.ModelProto, path: str | os.PathLike[str], external_above: int = EXTERNAL_ABOVE) -> Path:
    """Saves the model so that `path` never holds half a file.

    With more than `external_above` bytes of large weights they go to `path` + ".data" next to it, which is put in place first; `model` then
    refers to that file instead of holding them.
    """
    target = Path(path)
    sizes = [len(tensor.raw_data) for tensor in model.graph.initializer]
    if sum(size for size in sizes if size >= EXTERNAL_LEAST) <= external_above:
        write_bytes_atomic(target, model.SerializeToString(), durable=False)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        part, data = Path(folder, target.name), Path(folder, target.name + ".data")
        onnx.save_model(model, part, save_as_external_data=True, location=data.name, size_threshold=EXTERNAL_LEAST)
        os.replace(data, target.with_name(data.name))
        os.replace(part, target)
    return target
