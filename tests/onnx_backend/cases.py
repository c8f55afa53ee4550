"""The cases of the ONNX backend suite, as models with inputs and expected outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from tilewright.ir import dtypes
from tilewright.ir.scalar_ops import integer_of

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
DataSet = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A case ready to run: `data_sets` are pairs of inputs and expected outputs; None stands for a value that has no array form."""

    model: onnx.ModelProto
    data_sets: list[DataSet]


def case_key(case: TestCase) -> str:
    return f"{case.kind}/{case.name.removeprefix('test_')}"


def load_cases(kinds: Iterable[str] = KINDS) -> dict[str, TestCase]:
    """All cases by key, in a fixed order. Models are not read yet, except those of node cases, which onnx makes here."""
    found = [case for kind in kinds for case in load_model_tests(kind=kind)]
    return {case_key(case): case for case in sorted(found, key=case_key)}


def open_case(case: TestCase) -> Opened:
    """Read a case's model and data."""
    if case.model is not None:
        data_sets = [([as_value(v) for v in given], [as_value(v) for v in wanted]) for given, wanted in case.data_sets or ()]
        if all(node.op_type in ("Cast", "CastLike") for node in case.model.graph.node):
            data_sets = [(given, [settled(given[0], array) for array in wanted]) for given, wanted in data_sets]
        return Opened(case.model, data_sets)
    if case.model_dir is None:
        return open_light(case)
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    data_sets = [
        (read_values(path, "input", model.graph.input), read_values(path, "output", model.graph.output))
        for path in sorted(folder.glob("test_data_set*"))
    ]
    return Opened(model, data_sets)


def open_light(case: TestCase) -> Opened:
    """A model that onnx ships without its weights, with the outputs for inputs that count up from 0 to 1."""
    import onnx.backend.test

    path = Path(onnx.backend.test.__file__).parent / "data" / "light" / Path(case.url or "").name
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(info) for info in model.graph.input if info.name not in constants]
    outputs = [read_value(path.with_name(f"{path.stem}_output_{i}.pb"), info) for i, info in enumerate(model.graph.output)]
    return Opened(model, [(inputs, outputs)])


def as_value(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def settled(x: Any, wanted: Any) -> Any:
    """What a cast of x is to give. ONNX leaves open what floats past the range of an integer become, and with integers of 2 and 4 bits
    onnx expects what ml_dtypes makes of them, each version something else: there it is what `integer_of` says (docs/numerics.md)."""
    target = dtypes.from_numpy(wanted.dtype)
    if not (target.is_integer and target.bits < 8 and dtypes.from_numpy(x.dtype).is_float):
        return wanted
    numbers = np.trunc(x.astype(np.float64))
    inside = (numbers >= target.lowest) & (numbers <= target.highest)
    ours = np.array([integer_of(float(number), target) for number in numbers.flat], np.int8).reshape(x.shape)
    return np.where(inside, wanted.astype(np.int8), ours).astype(wanted.dtype)


def read_values(folder: Path, role: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    count = len(list(folder.glob(f"{role}_*.pb")))
    return [read_value(folder / f"{role}_{i}.pb", infos[i]) for i in range(count)]


def read_value(path: Path, info: onnx.ValueInfoProto) -> Any:
    kinds = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto, "tensor_type": onnx.TensorProto}
    proto = kinds[info.type.WhichOneof("value")]()
    proto.ParseFromString(path.read_bytes())
    match proto:
        case onnx.SequenceProto():
            return onnx.numpy_helper.to_list(proto)
        case onnx.OptionalProto():
            return onnx.numpy_helper.to_optional(proto)
        case _:
            return onnx.numpy_helper.to_array(proto)


def with_symbolic_dims(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model of one operator with a symbolic dim of its own for each dim of each input; None if that changes nothing, and for larger
    models. What stays: dims of 1, which may broadcast, dims of 0, and integer tensors of rank 1, whose length is often the rank of
    something."""
    if len(model.graph.node) != 1:
        return None
    changed, count = onnx.ModelProto(), 0
    changed.CopyFrom(model)
    for at, info in enumerate(changed.graph.input):
        tensor = info.type.tensor_type
        counts = tensor.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) and len(tensor.shape.dim) <= 1
        for axis, dim in enumerate(tensor.shape.dim):
            if not counts and dim.dim_value > 1:
                dim.dim_param = f"in{at}_{axis}"
                count += 1
    for value in (*changed.graph.output, *changed.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return changed if count else None


def first_dtype(model: onnx.ModelProto) -> str:
    """The element type of the first tensor among inputs and outputs, as NumPy names it; empty if there is none."""
    for info in (*model.graph.input, *model.graph.output):
        code = info.type.tensor_type.elem_type
        if code:
            return "string" if code == onnx.TensorProto.STRING else np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)).name
    return ""
