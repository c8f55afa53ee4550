"""Inputs and outputs of programs: what kind of value each is, and arguments brought to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.formula import Formula
from tilewright.runtime.host.calling import STRINGS, Array, strings
from tilewright.runtime.specs import SizeSpec, TensorSpec, as_array, expect_range, numpy_dtype
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
        element = inner[len("seq(") : -1]
        return [taken(item, ValueSpec(f"{spec.name}[{i}]", element, None)) for i, item in enumerate(value)]
    if inner.startswith("map("):
        if not isinstance(value, Mapping):
            raise InputError(f"input '{spec.name}' is a {type(value).__name__}, the model needs a dict: {spec!r}")
        return _map(value, spec, inner)
    return taken(value, ValueSpec(spec.name, inner, None))


def _map(value: Mapping[Any, Any], spec: ValueSpec, kind: str) -> dict[Any, Any]:
    """A map of the kind `map(string, ...)` or `map(int64, ...)`. Numbers come as NumPy's of the map's dtype."""
    key, _, inner = kind[len("map(") : -1].partition(", ")
    wanted = str if key == "string" else (int, np.integer)
    found: dict[Any, Any] = {}
    for name, item in value.items():
        if not isinstance(name, wanted) or isinstance(name, bool):
            raise InputError(f"input '{spec.name}' has the key {name!r}, the model needs keys of {key}: {spec!r}")
        if not inner.startswith("tensor("):
            found[name] = taken(item, ValueSpec(f"{spec.name}[{name!r}]", inner, None))
            continue
        element = taken(item, ValueSpec(f"{spec.name}[{name!r}]", inner, ()))
        found[name] = element[()]
    return found


def expect_dims(values: Sequence[Any], specs: Sequence[ValueSpec], ranges: Sequence[SizeSpec]) -> None:
    """Raises InputError where a dim of an argument is not the fixed one, two dims of one name differ, or one is out of its range.
    values: as `taken` gives them."""
    sizes: dict[str, tuple[int, str]] = {}
    for value, spec in zip(values, specs, strict=True):
        for axis, dim in enumerate(spec.shape or ()):
            extent, place = int(value.shape[axis]), f"dim {axis} of input '{spec.name}'"
            if dim.isdecimal() and extent != int(dim):
                raise InputError(f"input '{spec.name}' has shape {list(value.shape)}: dim {axis} must be {dim}", where=repr(spec))
            known, source = sizes.setdefault(dim, (extent, place))
            if not dim.isdecimal() and known != extent:
                raise InputError(f"{place} is {extent}, but {source} says that {dim} is {known}", where=repr(spec))
    for size in ranges:
        if size.name in sizes:
            expect_range(size, *sizes[size.name])


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
    dims = np.ndim(_regular(value, spec)) if spec.shape is None else len(spec.shape)
    return as_array(value, TensorSpec(spec.name, numpy_dtype(dtype), (Formula("0"),) * dims))


def _regular(value: Any, spec: ValueSpec) -> Any:
    """The value, lists as arrays. Raises InputError for lists that are none."""
    if not isinstance(value, (list, tuple)):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"input '{spec.name}' is a list whose rows differ in length: {spec!r}") from None


def _strings(value: Any, spec: ValueSpec) -> Array:
    array = np.asarray(_regular(value, spec))
    flat: Sequence[Any] = array.reshape(-1).tolist()
    if array.size and array.dtype.kind not in "OUT":
        raise InputError(f"input '{spec.name}' has dtype {array.dtype.name}, the model needs strings: {spec!r}")
    wrong = [item for item in flat if not isinstance(item, str)]
    if wrong:
        raise InputError(f"input '{spec.name}' holds {wrong[0]!r}, the model needs strings: {spec!r}")
    if spec.shape is not None and array.ndim != len(spec.shape):
        raise InputError(f"input '{spec.name}' has shape {list(array.shape)}, the model needs {len(spec.shape)} dims: {spec!r}")
    return strings(flat, array.shape) if array.dtype != STRINGS else array
