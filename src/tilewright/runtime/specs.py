"""Inputs and outputs of an executable: names, dtypes, shapes as formulas; checking arguments and solving for sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import Any

import numpy as np

from tilewright.runtime.formula import Formula, together
from tilewright.runtime.recycled import no_buffers_kept
from tilewright.support.errors import ArtifactError, InputError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: its `name` in the model, NumPy `dtype` and `shape`, each dim a formula of the sizes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Formula, ...]

    def shape_at(self, sizes: Mapping[str, int]) -> list[int]:
        """The dims at these sizes. Raises InputError when one is negative: an input is smaller than the model can work on."""
        shape = [dim(sizes) for dim in self.shape]
        if min(shape, default=0) < 0:
            given = ", ".join(f"{name} = {sizes[name]}" for dim in self.shape for name in dim.names)
            raise InputError(f"the output '{self.name}' would have shape {shape}", why=f"{self!r} with {given}", hint="pass larger inputs")
        return shape

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype.name}[{', '.join(dim.text for dim in self.shape)}]"


def fixed_shape(spec: TensorSpec) -> tuple[int, ...] | None:
    """The shape, where it depends on no size."""
    return None if any(dim.names for dim in spec.shape) else tuple(dim({}) for dim in spec.shape)


def small_outputs(outputs: Sequence[TensorSpec]) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
    """Shape and dtype of each output, where all of them are fixed and so small that no memory is kept for them."""
    found = []
    for spec in outputs:
        shape = fixed_shape(spec)
        if shape is None or not no_buffers_kept(math.prod(shape) * spec.dtype.itemsize):
            return None
        found.append((shape, spec.dtype))
    return found


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A named size and its range, ends included; `multiple` divides it."""

    name: str
    lo: int | None
    hi: int | None
    multiple: int = 1


def size_sources(text: str, inputs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> str:
    """Where the sizes that a message names come from: "s is 12 (dim 1 of input 'x')"."""
    named = set(re.findall(r"[A-Za-z_]\w*", text))
    found = []
    for name in sizes:
        dims = [(axis, spec) for spec in inputs for axis, dim in enumerate(spec.shape) if dim.text == name]
        if name in named and dims:
            found.append(f"{name} is {sizes[name]} (dim {dims[0][0]} of input '{dims[0][1].name}')")
    return ", ".join(found)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name in a manifest; those of ml_dtypes are imported when met."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        kind = getattr(ml_dtypes, name, None)
        if kind is None:
            raise ArtifactError(f"the artifact uses the unknown dtype '{name}'") from None
        found: np.dtype[Any] = np.dtype(kind)
        return found


def tensor_spec(entry: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(str(entry["name"]), numpy_dtype(str(entry["dtype"])), tuple(Formula(str(dim)) for dim in entry["shape"]))


def as_array(value: Any, spec: TensorSpec) -> Array:
    """The argument as a C-contiguous array of the spec's dtype and rank. NumPy arrays, anything with DLPack, and plain numbers or lists
    (converted if that loses nothing) are taken; arrays of another dtype are refused rather than converted silently."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"input '{spec.name}' has masked elements, which mean nothing to a model", hint="fill them: x.filled(0)")
    if isinstance(value, np.ndarray):
        array: Array = value
    elif isinstance(value, (bool, int, float, list, tuple, np.generic)):
        try:
            plain = np.asarray(value)
        except ValueError:
            raise InputError(f"input '{spec.name}' is a list whose rows differ in length", where=repr(spec)) from None
        if plain.dtype.kind not in "biufc":  # NumPy found no number type for them
            what = "strings" if plain.dtype.kind in "SU" else "values that are no numbers, or too large"
            raise InputError(f"input '{spec.name}' holds {what}; the model needs {spec.dtype.name}")
        array = plain.astype(spec.dtype) if not isinstance(value, np.generic) else plain
        if not np.array_equal(np.asarray(array, plain.dtype), plain, equal_nan=plain.dtype.kind == "f") and spec.dtype.kind not in "fV":
            raise InputError(f"input '{spec.name}': {value!r} does not fit into {spec.dtype.name}")
    elif hasattr(value, "__dlpack__"):
        try:
            array = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            what = f"input '{spec.name}' cannot be read through DLPack: {error}"
            raise InputError(what, hint="move it to the CPU, or pass a NumPy array") from None
    else:
        raise InputError(f"input '{spec.name}' is a {type(value).__name__}", hint="pass a NumPy array or an object with DLPack")
    if array.dtype != spec.dtype and array.dtype.newbyteorder("=") == spec.dtype:
        array = array.astype(spec.dtype)
    if array.dtype != spec.dtype:
        raise InputError(
            f"input '{spec.name}' has dtype {array.dtype.name}, the model needs {spec.dtype.name}",
            hint=f"convert it: x.astype('{spec.dtype.name}')",
        )
    if array.ndim != len(spec.shape):
        raise InputError(f"input '{spec.name}' has shape {list(array.shape)}, the model needs {len(spec.shape)} dims: {spec!r}")
    return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"]).reshape(array.shape)


class SizeSolver:
    """What `solve_sizes` answers for one model, by what can be found out before a call: which dim gives which size."""

    __slots__ = ("_bounds", "_dims", "_inputs", "_shapes", "_sizes", "names")

    def __init__(self, inputs: Sequence[TensorSpec], sizes: Sequence[SizeSpec]) -> None:
        self._inputs, self._sizes = inputs, sizes
        first: dict[str, tuple[int, int]] = {}
        for i, spec in enumerate(inputs):
            for axis, dim in enumerate(spec.shape):
                if dim.names == (dim.text,):
                    first.setdefault(dim.text, (i, axis))
        self.names, self._dims = tuple(first), tuple(first.values())
        known = {size.name: size for size in sizes}
        bounds = [(i, size.lo or 0, size.hi, size.multiple) for i, name in enumerate(self.names) if (size := known.get(name)) is not None]
        self._bounds = [
            (i, lo, maxsize if hi is None else hi, multiple) for i, lo, hi, multiple in bounds if lo > 0 or hi is not None or multiple > 1
        ]
        self._shapes = together([spec.shape for spec in inputs], self.names)

    def __call__(self, arrays: Sequence[Array]) -> dict[str, int]:
        """The named sizes that the shapes of the arguments, of the right ranks, imply. Raises as `solve_sizes`."""
        values = [arrays[i].shape[axis] for i, axis in self._dims]
        for i, lo, hi, multiple in self._bounds:
            if not lo <= values[i] <= hi or values[i] % multiple:
                return solve_sizes(arrays, self._inputs, self._sizes)
        if self._shapes(*values) != tuple([array.shape for array in arrays]):
            return solve_sizes(arrays, self._inputs, self._sizes)
        return {name: values[i] for i, name in enumerate(self.names)}


class Room:
    """What one call takes: the shapes of its outputs and the bytes of its arena, by the sizes of its inputs."""

    __slots__ = ("_at", "_names", "_signed")

    def __init__(self, outputs: Sequence[TensorSpec | None], arena: Formula, names: Sequence[str]) -> None:
        """outputs: None in place of those whose shapes the inputs do not decide; names: the inputs' sizes."""
        self._names = names
        groups = [None if spec is None else spec.shape for spec in outputs]
        self._at = together([*groups, (arena,)], names)
        self._signed = [(i, spec) for i, spec in enumerate(outputs) if spec is not None and any("-" in dim.text for dim in spec.shape)]

    def __call__(self, sizes: Mapping[str, int]) -> tuple[Sequence[tuple[int, ...] | None], int]:
        """Shapes, None for outputs that were None, and bytes. Raises InputError as `TensorSpec.shape_at`."""
        *shapes, (arena,) = self._at(*[sizes[name] for name in self._names])
        for i, spec in self._signed:
            if min(shapes[i]) < 0:
                spec.shape_at(sizes)
        return shapes, arena


def expect_range(size: SizeSpec, value: int, source: str) -> None:
    """Raises InputError where a size, which is that of `source`, is out of its range."""
    low, high = size.lo if size.lo is not None else value, size.hi if size.hi is not None else value
    if not low <= value <= high or value % size.multiple:
        wanted = f"from {size.lo or 0}" + (f" to {size.hi}" if size.hi is not None else " up")
        wanted += f", a multiple of {size.multiple}" if size.multiple > 1 else ""
        raise InputError(f"{size.name} is {value} ({source}), the model was compiled for {wanted}")


def solve_sizes(arrays: Sequence[Array], inputs: Sequence[TensorSpec], sizes: Sequence[SizeSpec]) -> dict[str, int]:
    """The named sizes that the shapes of the arguments imply. Raises InputError when a dim is wrong, two disagree or one is out of
    range."""
    values: dict[str, int] = {}
    source: dict[str, str] = {}
    for array, spec in zip(arrays, inputs, strict=True):
        for axis, (extent, dim) in enumerate(zip(array.shape, spec.shape, strict=True)):
            if dim.names != (dim.text,):
                continue
            where = f"dim {axis} of input '{spec.name}'"
            if values.setdefault(dim.text, extent) != extent:
                other = f"{source[dim.text]} says that {dim.text} is {values[dim.text]}"
                raise InputError(f"{where} is {extent}, but {other}", where=repr(spec))
            source.setdefault(dim.text, where)
    for size in sizes:
        value = values.get(size.name)
        if value is None:
            continue
        expect_range(size, value, source[size.name])
    for array, spec in zip(arrays, inputs, strict=True):
        for axis, (extent, dim) in enumerate(zip(array.shape, spec.shape, strict=True)):
            wanted_extent = dim(values)
            if extent != wanted_extent:
                raise InputError(f"input '{spec.name}' has shape {list(array.shape)}: dim {axis} must be {wanted_extent}", where=repr(spec))
    return values
