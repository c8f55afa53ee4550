"""Runs a kernel element by element in Python: the meaning of a loop program, and the checker of schedules.

    (y,) = interpret(kernel, [x])

Works at every stage, from `KernelBuilder.finish` to fully lowered statements, and computes each scalar with the exact wrapping and
rounding of its dtype. Compiled once per kernel to Python source (`python_source.py`), so that property tests stay quick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.kernel.empty_reductions import initialise_empty
from tilewright.kernel.nodes import Buffer, Kernel
from tilewright.kernel.python_source import to_python
from tilewright.kernel.python_values import Site, zero_of
from tilewright.support.errors import VerifyError

Array = np.ndarray[Any, np.dtype[Any]]


def interpret(kernel: Kernel, inputs: Sequence[Array], sizes: Mapping[Expr, int] | None = None, check: bool = True) -> list[Array]:
    """The outputs of `kernel` for `inputs`, arrays of the declared dtypes and shapes; they are not changed.

    Sizes that `sizes` does not give are derived from the shapes of the inputs. With `check`, raises VerifyError for an access out
    of bounds, a read of an element that nobody wrote, a race between iterations of a parallel or vectorized loop, a block iter
    outside its domain, and an output that is not written in full; without, such elements are zero and Python's own errors show.
    A block's `init` runs at the point where all its reduction iters are 0; where there is none, in place of the loop that turns no times
    (`empty_reductions.py`).
    """
    bound = bind_sizes(kernel, inputs, sizes or {})
    kernel = initialise_empty(kernel, bound)
    flats = [_to_list(buffer, array) for buffer, array in zip(kernel.inputs, inputs, strict=True)]
    shapes = [_dims(kernel, buffer, bound) for buffer in kernel.outputs]
    for buffer, shape in zip(kernel.outputs, shapes, strict=True):
        flats.append([None if check else zero_of(buffer.dtype)] * math.prod(shape))
    compiled = _compile(kernel, check)
    scope = {**compiled.constants, "tick": [1], **_failures(kernel, compiled.sites)}
    scope.update({name: {} for name in compiled.tables})
    with np.errstate(all="ignore"):
        exec(compiled.code, scope)  # noqa: S102 (source made by `to_python`; names in it are sanitised)
        scope["run"](flats, [bound[size] for size in kernel.sizes])
    outputs = []
    for buffer, shape, flat in zip(kernel.outputs, shapes, flats[len(kernel.inputs) :], strict=True):
        if check and None in flat:
            index = tuple(int(i) for i in np.unravel_index(flat.index(None), shape))
            raise VerifyError(
                f"output {buffer.name} is not written in full", where=f"kernel '{kernel.name}'", why=f"nothing stores {_at(buffer, index)}"
            )
        outputs.append(_to_array(flat, buffer.dtype, shape))
    return outputs


def shaped(kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[Expr, int]) -> list[Array]:
    """Arrays for the kernel's inputs, in the shapes that it declares: a schedule may have made one axis of two (`flatten`)."""
    return [a.reshape(_dims(kernel, b, sizes)) for b, a in zip(kernel.inputs, arrays, strict=True)]


def bind_sizes(kernel: Kernel, inputs: Sequence[Array], given: Mapping[Expr, int]) -> dict[Expr, int]:
    """The value of each of the kernel's sizes, from `given` and the inputs' shapes. Raises VerifyError when shapes contradict the declared
    ones, a size is out of its declared range, or nothing determines it."""
    where = f"kernel '{kernel.name}'"
    if len(inputs) != len(kernel.inputs):
        raise VerifyError(f"{len(inputs)} inputs were given, the kernel takes {len(kernel.inputs)}", where=where)
    equations: list[tuple[Buffer, int, Expr, int]] = []
    for buffer, array in zip(kernel.inputs, inputs, strict=True):
        if array.ndim != len(buffer.shape):
            raise VerifyError(f"input {buffer!r} was given an array of shape {array.shape}", where=where)
        if array.dtype != buffer.dtype.numpy:
            raise VerifyError(f"input {buffer!r} was given an array of dtype {array.dtype}", where=where)
        equations += [(buffer, axis, dim, array.shape[axis]) for axis, dim in enumerate(buffer.shape)]
    bound = dict(given)
    progress = True
    while progress:
        progress = False
        for _, _, dim, value in equations:
            unknown = [v for v in free_vars(dim) if v not in bound]
            solution = _solve(dim, unknown[0], value, bound) if len(unknown) == 1 else None
            if solution is not None:
                bound[unknown[0]] = solution
                progress = True
    for size in kernel.sizes:
        if size not in bound:
            raise VerifyError(f"the size {size.name} does not follow from the inputs' shapes", where=where, hint="pass it in `sizes`")
        _check_range(size, bound[size], where)
    for buffer, axis, dim, value in equations:
        if all(v in bound for v in free_vars(dim)) and evaluate_int(dim, bound) != value:
            raise VerifyError(
                f"axis {axis} of input {buffer!r} has size {value}", where=where, why=f"{dim!r} is {evaluate_int(dim, bound)}"
            )
    return bound


def _solve(dim: Expr, unknown: Expr, value: int, bound: Mapping[Expr, int]) -> int | None:
    """The value of `unknown` at which `dim`, monotonic in it, equals `value`; the least one, or None."""
    if dim.op is Op.VAR:
        return value
    low, high = 0, 1
    while evaluate_int(dim, {**bound, unknown: high}) < value:
        high *= 2
        if high > 1 << 48:
            return None
    while low < high:
        middle = (low + high) // 2
        if evaluate_int(dim, {**bound, unknown: middle}) < value:
            low = middle + 1
        else:
            high = middle
    return low if evaluate_int(dim, {**bound, unknown: low}) == value else None


def _check_range(size: Expr, value: int, where: str) -> None:
    info = size.attr
    if (info.lo is not None and value < info.lo) or (info.hi is not None and value > info.hi) or value % info.multiple:
        low, high = ("" if limit is None else str(limit) for limit in (info.lo, info.hi))
        multiple = f" in multiples of {info.multiple}" if info.multiple != 1 else ""
        raise VerifyError(f"the size {size.name} is {value}", where=where, why=f"its declared range is [{low}, {high}]{multiple}")


@dataclass(frozen=True, slots=True)
class _Compiled:
    code: CodeType
    constants: dict[str, Any]
    sites: tuple[Site, ...]
    tables: tuple[str, ...]


@lru_cache(maxsize=512)
def _compile(kernel: Kernel, check: bool) -> _Compiled:
    python = to_python(kernel, check)
    return _Compiled(compile(python.source, f"<kernel {kernel.name}>", "exec"), python.constants, python.sites, python.tables)


def _dims(kernel: Kernel, buffer: Buffer, bound: Mapping[Expr, int]) -> tuple[int, ...]:
    missing = [v.name for v in free_vars(*buffer.shape) if v not in bound]
    if missing:
        what = f"the shape of {buffer!r} mentions {', '.join(missing)}"
        raise VerifyError(what, where=f"kernel '{kernel.name}'", why="it is not a size of the kernel")
    return tuple(evaluate_int(dim, bound) for dim in buffer.shape)


def _to_list(buffer: Buffer, array: Array) -> list[Any]:
    dtype = buffer.dtype
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.numpy.kind == "V" or dtype.numpy.isbuiltin != 1:  # ml_dtypes: go through a NumPy type that holds every value
        flat = flat.astype(np.float64 if dtype.is_float else np.int64)
    values: list[Any] = flat.tolist()
    return values


def _to_array(flat: list[Any], dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.kind == "string":
        result = np.empty(len(flat), object)
        result[:] = flat
        return result.reshape(shape)
    if dtype.numpy.isbuiltin != 1:
        return np.array(flat, np.float64 if dtype.is_float else np.int64).astype(dtype.numpy).reshape(shape)
    return np.array(flat, dtype.numpy).reshape(shape)


def _at(buffer: Buffer, indices: tuple[int, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(str, indices))}]"


def _failures(kernel: Kernel, sites: tuple[Site, ...]) -> dict[str, Any]:
    """The functions by which generated code makes its errors."""

    def error(number: int, what: str, values: tuple[int, ...], why: str | None = None, hint: str | None = None) -> VerifyError:
        site = sites[number]
        place = f"block '{site.block}' of kernel '{kernel.name}'" if site.block else f"kernel '{kernel.name}'"
        at = ", ".join(f"{name}={value}" for name, value in zip(site.variables, values, strict=True))
        return VerifyError(what, where=f"{place}, at {at}" if at else place, why=why, hint=hint)

    def buffer_of(number: int) -> Buffer:
        buffer = sites[number].buffer
        if buffer is None:
            raise VerifyError(f"site {number} of kernel '{kernel.name}' has no buffer")
        return buffer

    def out_of_bounds(number: int, indices: tuple[int, ...], dims: tuple[int, ...], values: tuple[int, ...]) -> VerifyError:
        buffer = buffer_of(number)
        axis = next(a for a, (i, d) in enumerate(zip(indices, dims, strict=True)) if not 0 <= i < d)
        what = f"{sites[number].access} of {_at(buffer, indices)} is out of bounds"
        return error(number, what, values, f"axis {axis} of {buffer!r} has size {dims[axis]}")

    def unwritten(number: int, indices: tuple[int, ...], values: tuple[int, ...]) -> VerifyError:
        return error(number, f"load of {_at(buffer_of(number), indices)} before anything stored it", values)

    def race(number: int, indices: tuple[int, ...], base: int, seen: int, values: tuple[int, ...]) -> VerifyError:
        other = f"iteration {seen - base}" if seen < 1 << 62 else "several iterations"
        what = f"race: {sites[number].access} of {_at(buffer_of(number), indices)} in one iteration of a parallel loop"
        return error(number, what, values, f"{other} of the same loop also touched it")

    def bad_binding(number: int, name: str, value: int, extent: int, values: tuple[int, ...]) -> VerifyError:
        what = f"block iter {name} is {value}, outside its domain [0, {extent})"
        return error(number, what, values, None, "guard the block by a predicate")

    def no_value(number: int, what: str, values: tuple[int, ...]) -> VerifyError:
        return error(number, f"{what} has no value", values)

    return {
        "out_of_bounds": out_of_bounds,
        "unwritten": unwritten,
        "race": race,
        "bad_binding": bad_binding,
        "no_value": no_value,
    }
