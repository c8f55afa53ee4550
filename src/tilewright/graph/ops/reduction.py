"""Reductions over whole axes: sums, products, extremes and their positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.blocks import AxisReader, reduce_axes, rounded
from tilewright.graph.ops.elementwise import expect_inputs, expect_kind
from tilewright.graph.ops.scalars import BOOL, NUMBER, arithmetic_dtype
from tilewright.graph.shapes import is_zero, normalize_axes, normalize_axis
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, call, const, equal, logical_or, select
from tilewright.ir.types import Shape, TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

REDUCTIONS: dict[str, frozenset[str]] = {"sum": NUMBER, "prod": NUMBER, "max": NUMBER, "min": NUMBER, "any": BOOL, "all": BOOL}
_ARRAY: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
}  # fmt: skip


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(const(1) if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def reduce_array(fn: str, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The reduction in x's dtype: integers wrap; floats accumulate in float64 and are rounded once; nothing reduces to the identity."""
    dtype = dtypes.from_numpy(x.dtype)
    wide = np.dtype(np.float64) if dtype.is_float else arithmetic_dtype(dtype).numpy
    options: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    if fn in ("sum", "prod"):
        options["dtype"] = wide
    elif fn in ("max", "min"):
        options["initial"] = wide.type(dtype.lowest if fn == "max" else dtype.highest)
    with np.errstate(all="ignore"):
        return np.asarray(_ARRAY[fn](x.astype(wide, copy=False), **options)).astype(x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(Operator):
    """The elements along `axes` combined by `fn` (a key of REDUCTIONS). Integers wrap; NaN wins in max and min."""

    name: ClassVar[str] = "reduce"
    fn: str
    axes: tuple[int, ...]
    keepdims: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        operator = f"reduce_{self.fn}"
        expect_inputs(operator, inputs, 1)
        if self.fn not in REDUCTIONS:
            raise TypeRuleError(f"there is no reduction {self.fn!r}", why=f"the reductions are {', '.join(REDUCTIONS)}")
        (x,) = inputs
        expect_kind(operator, x.dtype, REDUCTIONS[self.fn])
        axes = normalize_axes(self.axes, x.rank, operator)
        return (TensorType(x.dtype, reduced_shape(x.shape, axes, self.keepdims)),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        return (reduce_array(self.fn, x, normalize_axes(self.axes, x.ndim, "reduce"), self.keepdims),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        reader = AxisReader(x, normalize_axes(self.axes, x.rank, "reduce"), self.keepdims)
        return (rounded(k, "reduced", reduce_axes(k, self.fn, reader, self.fn), x.dtype),)


@dataclass(frozen=True, slots=True, eq=False)
class ArgReduce(Operator):
    """Position (int64) of the greatest or least element along `axis`; of equal ones the first, or the last if `last`. NaN counts as the
    extreme, as in NumPy. An axis found to be empty while running has no such position: what is given is none of any axis."""

    name: ClassVar[str] = "arg_reduce"
    fn: str
    axis: int
    keepdims: bool
    last: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        operator = f"arg_{self.fn}"
        expect_inputs(operator, inputs, 1)
        if self.fn not in ("max", "min"):
            raise TypeRuleError(f"there is no arg reduction {self.fn!r}", why="it is max or min")
        (x,) = inputs
        expect_kind(operator, x.dtype, NUMBER)
        axis = normalize_axis(self.axis, x.rank, operator)
        if is_zero(x.shape[axis]):
            raise TypeRuleError(f"{operator}: axis {axis} is empty, so it has no {self.fn}")
        return (TensorType(dtypes.int64, reduced_shape(x.shape, (axis,), self.keepdims)),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x = inputs[0].astype(arithmetic_dtype(dtypes.from_numpy(inputs[0].dtype)).numpy, copy=False)
        find = np.argmax if self.fn == "max" else np.argmin
        axis = self.axis % x.ndim
        if x.shape[axis] == 0:
            found = np.full(np.delete(x.shape, axis), self._nowhere())
        elif self.last:
            found = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
        else:
            found = find(x, axis)
        found = np.asarray(found, np.int64)
        return (np.expand_dims(found, axis) if self.keepdims else found,)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        reader = AxisReader(x, (self.axis % x.rank,), self.keepdims)
        best = reduce_axes(k, self.fn, reader, self.fn)
        none = const(-1 if self.last else dtypes.int64.highest)

        def position(*i: Expr) -> Expr:
            kept, (along,) = reader.split(i)
            element = reader.read(kept, (along,))
            return select(matches(element, best[kept]), along, none)

        return (k.reduce("position", reader.kept, reader.extents, position, "max" if self.last else "min"),)

    def _nowhere(self) -> int:
        """What no position is compared with."""
        return int(dtypes.int64.lowest if self.last else dtypes.int64.highest)


def matches(element: Expr, extreme: Expr) -> Expr:
    """Whether an element is the extreme of its group. A group with a NaN has the extreme NaN, which only its NaNs match."""
    same = equal(element, extreme)
    return logical_or(same, call("isnan", element)) if element.dtype.is_float else same
