"""Reductions over sliding windows: pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.blocks import rounded
from tilewright.graph.ops.elementwise import expect_inputs, expect_kind
from tilewright.graph.ops.padding import pad_array, padded_element, window_views, windowed_dim
from tilewright.graph.ops.reduction import matches
from tilewright.graph.ops.scalars import NUMBER, arithmetic_dtype, widened
from tilewright.graph.shapes import flatten_index, format_shape, unflatten_index
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, all_of, const, less, less_equal, select
from tilewright.ir.types import Shape, TensorType, bind_shape, product
from tilewright.kernel.builder import COMBINERS, KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

_ARRAY: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}


def _windowed_shape(op: WindowReduce | MaxPoolIndices, shape: Shape) -> Shape:
    leading = len(shape) - len(op.window)
    own = zip(shape[leading:], op.low, op.high, op.window, op.strides, op.dilations, strict=True)
    return (
        *shape[:leading],
        *(windowed_dim(dim, low, high, const(taps), stride, dilation) for dim, low, high, taps, stride, dilation in own),
    )


def _check_window(operator: str, op: WindowReduce | MaxPoolIndices, x: TensorType) -> Shape:
    """The result's shape. Raises TypeRuleError."""
    count = len(op.window)
    expect_kind(operator, x.dtype, NUMBER)
    if not all(len(part) == count for part in (op.strides, op.dilations, op.low, op.high)) or count > x.rank:
        raise TypeRuleError(
            f"{operator}: a window over {count} axes of {format_shape(x.shape)} needs as many strides, dilations and amounts of padding"
        )
    if any(n < 1 for n in (*op.window, *op.strides, *op.dilations)):
        raise TypeRuleError(f"{operator}: window, strides and dilations must be positive")
    shape = _windowed_shape(op, x.shape)
    for axis, dim in enumerate(shape):
        if dim.is_const and dim.value < 0:
            raise TypeRuleError(f"{operator}: the window {op.window} does not fit into axis {axis} of {format_shape(x.shape)}")
    return shape


def _full(amounts: Sequence[Expr], rank: int) -> Shape:
    """Padding amounts of the trailing axes as amounts of all axes."""
    return (const(0),) * (rank - len(amounts)) + tuple(amounts)


def _windows(op: WindowReduce | MaxPoolIndices, x: Array, fill: Any) -> Array:
    sizes = bind_shape(_windowed_shape(op, tuple(const(n) for n in x.shape)), {})
    low, high = (bind_shape(_full(amounts, x.ndim), {}) for amounts in (op.low, op.high))
    padded = pad_array(x, low, high, "constant", np.asarray(fill, x.dtype))
    return window_views(padded, op.window, op.strides, op.dilations, sizes[x.ndim - len(op.window) :])


@dataclass(frozen=True, slots=True, eq=False)
class WindowReduce(Operator):
    """`fn` (sum, max or min) over windows of the trailing len(window) axes. Padding counts as the identity of `fn`."""

    name: ClassVar[str] = "window_reduce"
    fn: str
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        operator = f"window_{self.fn}"
        expect_inputs(operator, inputs, 1)
        if self.fn not in _ARRAY:
            raise TypeRuleError(f"there is no window reduction {self.fn!r}", why=f"the reductions are {', '.join(_ARRAY)}")
        return (TensorType(inputs[0].dtype, _check_window(operator, self, inputs[0])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        dtype = dtypes.from_numpy(inputs[0].dtype)
        wide = np.dtype(np.float64) if dtype.is_float else arithmetic_dtype(dtype).numpy
        fill = {"sum": 0, "max": dtype.lowest, "min": dtype.highest}[self.fn]
        windows = _windows(self, inputs[0].astype(wide), fill)
        axes = tuple(range(windows.ndim - len(self.window), windows.ndim))
        options: dict[str, Any] = {"dtype": wide} if self.fn == "sum" else {}
        with np.errstate(all="ignore"):
            return (np.asarray(_ARRAY[self.fn](windows, axis=axes, **options)).astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return (rounded(k, "pooled", window_block(k, self.fn, self, x), x.dtype),)


def window_block(k: KernelBuilder, fn: str, op: WindowReduce | MaxPoolIndices, x: Tensor) -> Tensor:
    """The reduction over the taps that are inside of `x`, in the arithmetic dtype; extremes of integers need none."""
    taken = _as_stored if fn != "sum" and x.dtype.is_integer else widened
    outside = taken(COMBINERS[fn].identity(x.dtype))
    shape = _windowed_shape(op, x.shape)
    leading = x.rank - len(op.window)
    low, high = _full(op.low, x.rank), _full(op.high, x.rank)

    def value(*i: Expr) -> Expr:
        at = [
            i[axis] * stride + i[x.rank + axis - leading] * dilation
            for axis, stride, dilation in zip(range(leading, x.rank), op.strides, op.dilations)
        ]
        return padded_element(x, (*i[:leading], *at), low, high, outside, taken)

    return k.reduce(f"window_{fn}", shape, [const(n) for n in op.window], value, fn)


def _as_stored(element: Expr) -> Expr:
    return element


@dataclass(frozen=True, slots=True, eq=False)
class MaxPoolIndices(Operator):
    """Greatest element of each window and where the first such stands: row-major position in the whole tensor, or, if `column_major`,
    with the windowed axes counted in column-major order. Padding is never chosen; a window of padding alone has the greatest int64."""

    name: ClassVar[str] = "max_pool_indices"
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    column_major: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("max_pool_indices", inputs, 1)
        shape = _check_window("max_pool_indices", self, inputs[0])
        return TensorType(inputs[0].dtype, shape), TensorType(dtypes.int64, shape)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        dtype = dtypes.from_numpy(x.dtype)
        count = len(self.window)
        leading, spatial = x.shape[: x.ndim - count], x.shape[x.ndim - count :]
        positions = np.arange(x.size, dtype=np.int64).reshape(x.shape)
        if self.column_major:
            block = np.arange(int(np.prod(spatial)), dtype=np.int64).reshape(spatial[::-1]).T
            offsets = (np.arange(int(np.prod(leading)), dtype=np.int64) * block.size).reshape(*leading, *(1,) * count)
            positions = offsets + block
        values = _windows(self, x.astype(arithmetic_dtype(dtype).numpy), dtype.lowest)
        places = _windows(self, positions, dtypes.int64.highest)
        shape = values.shape[: x.ndim]
        flat, at = values.reshape(*shape, -1), places.reshape(*shape, -1)
        best = flat.max(axis=-1, keepdims=True)
        chosen = ((flat == best) | (flat != flat)) & (at != dtypes.int64.highest)
        first = np.argmax(chosen, axis=-1)[..., None]
        found = np.where(np.any(chosen, axis=-1), np.take_along_axis(at, first, -1)[..., 0], dtypes.int64.highest)
        return best[..., 0].astype(x.dtype), found.astype(np.int64)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        leading = x.rank - len(self.window)
        spatial = x.shape[leading:]
        best = window_block(k, "max", self, x)
        none = const(dtypes.int64.highest)

        def place(*i: Expr) -> Expr:
            out, taps = i[: x.rank], i[x.rank :]
            own = zip(out[leading:], taps, self.strides, self.dilations, self.low, strict=True)
            at = [index * stride + tap * dilation - low for index, tap, stride, dilation, low in own]
            inside = all_of(*(c for p, dim in zip(at, spatial, strict=True) for c in (less_equal(const(0), p), less(p, dim))))
            where = (*out[:leading], *at)
            # The element is only read inside; the outer select keeps padding out even where it equals the maximum.
            chosen = select(inside, matches(widened(x[where]), widened(best[out])), const(False, dtypes.bool_))
            return select(chosen, flatten_index(x.shape, where), none)

        places = k.reduce("place", best.shape, [const(n) for n in self.window], place, "min")
        if self.column_major:
            places = self._column_major(k, places, spatial, none)
        return rounded(k, "pooled", best, x.dtype), places

    def _column_major(self, k: KernelBuilder, places: Tensor, spatial: Shape, none: Expr) -> Tensor:
        count = product(spatial)

        def value(*i: Expr) -> Expr:
            row_major = places[i]
            within = unflatten_index(spatial, row_major % count)
            turned = flatten_index(spatial[::-1], within[::-1]) + row_major // count * count
            return select(less(row_major, none), turned, none)

        return k.compute("column_major", places.shape, value)
