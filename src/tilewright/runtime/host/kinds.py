"""Inputs and outputs of programs: what kind of value each is, and arguments brought to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.formula import Formula
from tilewright.runtime.host.calling import STRINGS, Array, strings
from tilewright.runtime.specs import TensorSpec, as_array, numpy_dtype
from tilewright.support.errors import InputError


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """One input or output of a program: `kind` as ONNX writes types, such as `tensor(string)` or `seq(tensor(float32))`. `shape`: texts of
    the dims of a tensor; None where the rank is open, or the value is no tensor."""

    name: str
    kind: str
    shape: tuple[str, ...] | None

    @property
    def tensor(self) -> str | None:
        """The dtype's name, where the value is a tensor."""
        return self.kind[len("tensor(") : -1] if self.kind.startswith("tensor(") else None

    def __repr__(self) -> str:
        shown = self.tensor or self.kind
        return f"{self.name}: {shown}" + ("" if self.shape is None else f"[{', '.join(self.shape)}]")


def value_spec(entry: Mapping[str, Any]) -> ValueSpec:
    """The spec that a manifest holds."""
    shape = entry["shape"]
    return ValueSpec(str(entry["name"]), str(entry["kind"]), None if shape is None else tuple(str(dim) for dim in shape))


def taken(value: Any, spec: ValueSpec) -> Any:
    """An argument as programs hold it. Raises InputError for a value of another kind, dtype or rank."""
    if spec.tensor is not None:
        return _tensor(value, spec, spec.tensor)
    inner = spec.kind
    while inner.startswith("optional("):
        if value is None:
            return None
        inner = inner[len("optional(") : -1]
    if inner.startswith("seq("):
        if not isinstance(value, (list, tuple)):
            raise InputError(f"input '{spec.name}' is a {type(value).__name__}, the model needs a list: {spec!r}")
        element = ValueSpec(f"{spec.name}[]", inner[len("seq(") : -1], None)
        return [taken(item, element) for item in value]
    if inner.startswith("map("):
        if not isinstance(value, Mapping):
            raise InputError(f"input '{spec.name}' is a {type(value).__name__}, the model needs a dict: {spec!r}")
        return dict(value)
    return taken(value, ValueSpec(spec.name, inner, None))


def leaves(name: str, value: Any) -> list[tuple[str, Array]]:
    """The arrays that a value consists of, named: elements of sequences by position, of maps by key, an absent optional by nothing."""
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in leaves(f"{name}[{i}]", item)]
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value) for leaf in leaves(f"{name}[{key!r}]", value[key])]
    return [] if value is None else [(name, np.asarray(value))]


def _tensor(value: Any, spec: ValueSpec, dtype: str) -> Array:
    if dtype == "string":
        return _strings(value, spec)
    if spec.shape is None:
        array = np.asarray(value)
        shape = tuple(Formula(str(dim)) for dim in array.shape)
        return as_array(array, TensorSpec(spec.name, numpy_dtype(dtype), shape))
    return as_array(value, TensorSpec(spec.name, numpy_dtype(dtype), tuple(Formula("0") for _ in spec.shape)))


def _strings(value: Any, spec: ValueSpec) -> Array:
    array = np.asarray(value)
    flat: Sequence[Any] = array.reshape(-1).tolist()
    if array.size and array.dtype.kind not in "OUT":
        raise InputError(f"input '{spec.name}' has dtype {array.dtype.name}, the model needs strings: {spec!r}")
    wrong = next((item for item in flat if not isinstance(item, str)), None)
    if wrong is not None:
        raise InputError(f"input '{spec.name}' holds {wrong!r}, the model needs strings: {spec!r}")
    if spec.shape is not None and array.ndim != len(spec.shape):
        raise InputError(f"input '{spec.name}' has shape {list(array.shape)}, the model needs {len(spec.shape)} dims: {spec!r}")
    return strings(flat, array.shape) if array.dtype != STRINGS else array
