"""Importers of pooling operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.convolution import padding, spatial
from tilewright.frontend.onnx.operators.reduction import mean_over
from tilewright.graph.node import Value
from tilewright.graph.ops import MaxPoolIndices, Pad, RefineShape, ScatterElements, WindowReduce
from tilewright.graph.shapes import canonical
from tilewright.ir import expr as ex
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import as_shape, product, static_shape
from tilewright.support.errors import ModelError


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a pooling node: `high` includes `extra`, the part that only ceil_mode adds."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    extra: tuple[Expr, ...]


def window_of(ctx: NodeContext, x: Value) -> Window:
    count = x.type.rank - 2
    if count < 1:
        raise ModelError(f"{ctx.op_type} of a tensor of rank {x.type.rank}", where=ctx.where, why="it takes at least three axes")
    size = tuple(ctx.require("kernel_shape"))
    if len(size) != count:
        raise ModelError(f"{ctx.op_type}: 'kernel_shape' has {len(size)} numbers for {count} spatial axes", where=ctx.where)
    strides, dilations = spatial(ctx, "strides", count), spatial(ctx, "dilations", count)
    low, high = padding(ctx, x.shape[2:], as_shape(size), strides, dilations)
    extra = [const(0)] * count
    if ctx.attribute("ceil_mode", 0):
        geometry = zip(x.shape[2:], low, high, size, strides, dilations, strict=True)
        extra = [_ceil_padding(dim, a, b, (k - 1) * d + 1, s) for dim, a, b, k, s, d in geometry]
    return Window(size, strides, dilations, low, tuple(canonical(a + b) for a, b in zip(high, extra, strict=True)), tuple(extra))


def _ceil_padding(dim: Expr, low: Expr, high: Expr, span: int, stride: int) -> Expr:
    """Padding that lets the last window begin, when it begins inside of the input or the padding before it."""
    padded = dim + low + high
    count = ex.ceildiv(padded - span, stride) + 1
    starts_past = ex.less_equal(dim + low, (count - 1) * stride)
    count = canonical(ex.select(canonical(starts_past), count - 1, count))
    return canonical(ex.maximum((count - 1) * stride + span - padded, 0))


def _reduce_windows(ctx: NodeContext, fn: str, x: Value, window: Window) -> Value:
    return ctx.one(WindowReduce(fn, window.size, window.strides, window.dilations, window.low, window.high), x)


def max_pool(ctx: NodeContext) -> Value | tuple[Value, ...]:
    x = ctx.input(0)
    window = window_of(ctx, x)
    if not ctx.wants(1):
        return _reduce_windows(ctx, "max", x, window)
    column_major = bool(ctx.attribute("storage_order", 0))
    return ctx.emit(MaxPoolIndices(window.size, window.strides, window.dilations, window.low, window.high, column_major), x)


def average_pool(ctx: NodeContext) -> Value:
    """The sum over each window divided by the number of its taps inside of the input, or of input and padding (count_include_pad);
    what only ceil_mode adds never counts."""
    x = ctx.input(0)
    window = window_of(ctx, x)
    total = _reduce_windows(ctx, "sum", x, window)
    included = bool(ctx.attribute("count_include_pad", 0))
    return ctx.binary("div", total, ctx.cast(_taps(ctx, x, window, included), x.type.dtype))


def _taps(ctx: NodeContext, x: Value, window: Window, included: bool) -> Value:
    """How many taps of each window count: [1, 1, *sizes], or a scalar when all windows have the same number."""
    full = ctx.scalar_like(float(np.prod(window.size)), x)
    ends = zip(window.low, window.high, window.extra, strict=True)
    if all((included and extra is const(0)) or (low is const(0) and high is const(0)) for low, high, extra in ends):
        return full
    count: Value | None = None
    for axis, dim in enumerate(x.shape[2:]):
        counts = _axis_taps(ctx, x, window, axis, dim, included)
        shape = [1] * x.type.rank
        placed = ctx.reshape(counts, [*shape[: 2 + axis], counts.shape[0], *shape[3 + axis :]])
        count = placed if count is None else ctx.binary("mul", count, placed)
    assert count is not None
    return count


def _axis_taps(ctx: NodeContext, x: Value, window: Window, axis: int, dim: Expr, included: bool) -> Value:
    """The number of counting taps of each window along one axis."""
    low, high, extra = window.low[axis], window.high[axis], window.extra[axis]
    if included:
        dim, low, high = canonical(dim + low + high - extra), const(0), extra
    one_axis = Window(
        (window.size[axis],), (window.strides[axis],), (window.dilations[axis],), (low,), (high,), (extra,)
    )  # fmt: skip
    static = static_shape((dim, low, high))
    if static is None:
        return _reduce_windows(ctx, "sum", ctx.broadcast(ctx.scalar_like(1, x), (dim,)), one_axis)
    length, before, after = static
    span = (one_axis.size[0] - 1) * one_axis.dilations[0]
    starts = np.arange(0, before + length + after - span, one_axis.strides[0]) - before
    taps = starts[:, None] + np.arange(one_axis.size[0]) * one_axis.dilations[0]
    return ctx.constant(((taps >= 0) & (taps < length)).sum(axis=1), x.type.dtype)


def lp_pool(ctx: NodeContext) -> Value:
    x, p = ctx.input(0), ctx.attribute("p", 2)
    return _root(ctx, _reduce_windows(ctx, "sum", _powered(ctx, x, p), window_of(ctx, x)), p)


def _powered(ctx: NodeContext, x: Value, p: float) -> Value:
    if p == 2:
        return ctx.binary("mul", x, x)
    size = ctx.unary("abs", x)
    return size if p == 1 else ctx.binary("pow", size, p)


def _root(ctx: NodeContext, x: Value, p: float) -> Value:
    return x if p == 1 else ctx.unary("sqrt", x) if p == 2 else ctx.binary("pow", x, 1.0 / p)


def global_average_pool(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return mean_over(ctx, x, range(2, x.type.rank))


def global_max_pool(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return ctx.reduce("max", x, range(2, x.type.rank))


def global_lp_pool(ctx: NodeContext) -> Value:
    x, p = ctx.input(0), ctx.attribute("p", 2)
    return _root(ctx, ctx.reduce("sum", _powered(ctx, x, p), range(2, x.type.rank)), p)


def max_unpool(ctx: NodeContext) -> Value:
    """Values put back where MaxPool found them, zeros elsewhere. Indices count in the tensor that MaxPool read; when the output is
    larger than that, they are moved. It must not be smaller, and have the same images and channels."""
    x, indices = ctx.input(0), ctx.input(1)
    count = x.type.rank - 2
    size, strides = ctx.require("kernel_shape"), spatial(ctx, "strides", count)
    pads = ctx.attribute("pads") or [0] * (2 * count)
    natural = [
        canonical((dim - 1) * s - pads[axis] - pads[axis + count] + k)
        for axis, (dim, s, k) in enumerate(zip(x.shape[2:], strides, size, strict=True))
    ]
    shape = (*x.shape[:2], *natural)
    wanted = ctx.as_sizes(ctx.input(2), count=len(shape)) if ctx.has(2) else shape
    empty = ctx.broadcast(ctx.scalar_like(0, x), (canonical(product(shape)),))
    flat = [ctx.reshape(value, (canonical(product(x.shape)),)) for value in (indices, x)]
    image = ctx.reshape(ctx.one(ScatterElements(0, "none"), empty, *flat), shape)
    if tuple(wanted) == shape:
        return image
    if len(wanted) != x.type.rank:
        raise ModelError(f"MaxUnpool of {x.type!r} to the shape {list(wanted)}", where=ctx.where)
    if any(a.is_const and b.is_const and a is not b for a, b in zip(wanted[:2], x.shape, strict=False)):
        raise ModelError(f"MaxUnpool of {x.type!r} to the shape {list(wanted)}", where=ctx.where)
    image = ctx.one(RefineShape((*wanted[:2], *natural)), image)
    low = [const(0)] * x.type.rank
    high = [const(0), const(0), *(canonical(a - b) for a, b in zip(wanted[2:], natural, strict=True))]
    result = ctx.one(Pad(tuple(low), tuple(high), "constant"), image, ctx.scalar_like(0, x))
    for axis, least in enumerate(natural, 2):
        result = ctx.at_least(result, axis, least)
    return ctx.refine(result, (*x.shape[:2], *wanted[2:]))


IMPORTERS: Table = {
    ("", "MaxPool"): max_pool,
    ("", "AveragePool"): average_pool,
    ("", "LpPool"): lp_pool,
    ("", "GlobalAveragePool"): global_average_pool,
    ("", "GlobalMaxPool"): global_max_pool,
    ("", "GlobalLpPool"): global_lp_pool,
    ("", "MaxUnpool"): max_unpool,
}
