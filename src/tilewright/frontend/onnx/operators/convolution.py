"""Importers of convolutions: Conv, ConvTranspose, Col2Im."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.sizes import same_padding
from tilewright.graph.node import Value
from tilewright.graph.ops import Concat, Contract, Convolution, ConvolutionTranspose, Gather, Iota, ScatterElements
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import Shape, as_shape, product, static_shape
from tilewright.support.errors import ModelError

Padding = tuple[tuple[Expr, ...], tuple[Expr, ...]]


def spatial(ctx: NodeContext, name: str, count: int) -> tuple[int, ...]:
    """A per-axis attribute, 1 for each axis when left out."""
    given = ctx.attribute(name) or [1] * count
    if len(given) != count:
        raise ModelError(f"{ctx.op_type}: '{name}' has {len(given)} numbers for {count} spatial axes", where=ctx.where)
    return tuple(given)


def padding(ctx: NodeContext, dims: Shape, window: Shape, strides: tuple[int, ...], dilations: tuple[int, ...]) -> Padding:
    """The padding before and after each spatial axis, from `pads` or `auto_pad`."""
    mode = ctx.attribute("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = [same_padding(d, w, s, k, mode == "SAME_UPPER") for d, w, s, k in zip(dims, window, strides, dilations, strict=True)]
        return tuple(low for low, _ in pairs), tuple(high for _, high in pairs)
    pads = ctx.attribute("pads") if mode == "NOTSET" else None
    count = len(dims)
    pads = pads or [0] * (2 * count)
    if len(pads) != 2 * count:
        raise ModelError(f"{ctx.op_type}: 'pads' has {len(pads)} numbers for {count} spatial axes", where=ctx.where)
    return as_shape(pads[:count]), as_shape(pads[count:])


def convolve(ctx: NodeContext, x: Value, w: Value, dtype: DType) -> Value:
    """x [N, C, *S] with w [O, C/groups, *K] by the node's attributes."""
    count = x.type.rank - 2
    if count < 1 or w.type.rank != x.type.rank:
        raise ModelError(f"{ctx.op_type} of {x.type!r} with weights {w.type!r}", where=ctx.where, why="both have the same rank, at least 3")
    strides, dilations = spatial(ctx, "strides", count), spatial(ctx, "dilations", count)
    low, high = padding(ctx, x.shape[2:], w.shape[2:], strides, dilations)
    groups = ctx.attribute("group", 1)
    x = ctx.refine_axis(x, 1, canonical(w.shape[1] * groups))
    return ctx.one(Convolution(strides, dilations, low, high, groups, dtype), x, w)


def with_bias(ctx: NodeContext, value: Value, bias: Value | None) -> Value:
    """A bias [C] added along axis 1."""
    if bias is None:
        return value
    return ctx.binary("add", value, ctx.reshape(bias, (*bias.shape, *[1] * (value.type.rank - 2))))


def conv(ctx: NodeContext) -> Value:
    x, w = ctx.input(0), ctx.input(1)
    return with_bias(ctx, convolve(ctx, x, w, x.type.dtype), ctx.optional(2))


def conv_transpose(ctx: NodeContext) -> Value:
    """`output_shape` and `auto_pad` decide the padding so that the result has the wanted size."""
    x, w = ctx.input(0), ctx.input(1)
    count = x.type.rank - 2
    if count < 1 or w.type.rank != x.type.rank:
        raise ModelError(f"ConvTranspose of {x.type!r} with weights {w.type!r}", where=ctx.where, why="both have the same rank, at least 3")
    x = ctx.refine_axis(x, 1, w.shape[0])
    strides, dilations = spatial(ctx, "strides", count), spatial(ctx, "dilations", count)
    extra = list(ctx.attribute("output_padding") or [0] * count)
    mode = ctx.attribute("auto_pad", "NOTSET")
    asked = ctx.attribute("output_shape")
    if asked:
        wanted: tuple[Expr, ...] | None = as_shape(asked[-count:])
    else:
        same = mode in ("SAME_UPPER", "SAME_LOWER")
        wanted = tuple(dim * stride for dim, stride in zip(x.shape[2:], strides, strict=True)) if same else None
    if wanted is None:
        low, high = padding(ctx, x.shape[2:], w.shape[2:], strides, dilations)
    else:
        before, after = [], []
        for axis, size in enumerate(wanted):
            span = (w.shape[2 + axis] - 1) * dilations[axis] + 1
            total = canonical((x.shape[2 + axis] - 1) * strides[axis] + extra[axis] + span - size)
            if total.is_const and total.value < 0:
                extra[axis] -= int(total.value)
                total = const(0)
            half = total // 2
            first, last = (half, total - half) if mode == "SAME_UPPER" else (total - half, half)
            before.append(canonical(first))
            after.append(canonical(last))
        low, high = tuple(before), tuple(after)
    op = ConvolutionTranspose(strides, dilations, low, high, tuple(extra), ctx.attribute("group", 1), x.type.dtype)
    return with_bias(ctx, ctx.one(op, x, w), ctx.optional(2))


def col2im(ctx: NodeContext) -> Value:
    """Columns [N, C*prod(block), L] added up into images [N, C, *image]. With a fixed block a transposed convolution, whose weights place
    each row of a block; otherwise every element is added at the position computed for it."""
    x = ctx.input(0)
    image, block = ctx.as_sizes(ctx.input(1)), ctx.as_sizes(ctx.input(2), lo=1)
    count = len(block)
    strides, dilations = spatial(ctx, "strides", count), spatial(ctx, "dilations", count)
    low, high = padding(ctx, image, block, strides, dilations)
    dims = tuple(
        canonical((size + a + b - (k - 1) * d - 1) // s + 1)
        for size, a, b, k, d, s in zip(image, low, high, block, dilations, strides, strict=True)
    )
    missing = [
        canonical(size - ((n - 1) * s - a - b + (k - 1) * d + 1))
        for size, n, a, b, k, d, s in zip(image, dims, low, high, block, dilations, strides, strict=True)
    ]
    fixed = static_shape(block)
    if fixed is None or not x.shape[1].is_const or not all(m.is_const for m in missing):
        taps, places = product(block), product(dims)
        at = _places(ctx, image, _axes_of(ctx, block), _axes_of(ctx, dims), strides, dilations, low)
        images = canonical(x.shape[0] * (x.shape[1] // taps))
        columns = ctx.reshape(x, (images, canonical(taps * places)))
        empty = ctx.broadcast(ctx.scalar_like(0, x), (images, canonical(product(image))))
        filled = ctx.one(ScatterElements(1, "add"), empty, ctx.broadcast(at, columns.shape), columns)
        return ctx.reshape(filled, (x.shape[0], canonical(x.shape[1] // taps), *image))
    taps_count = int(np.prod(fixed))
    channels = int(x.shape[1].value) // taps_count
    weights = np.tile(np.eye(taps_count).reshape(taps_count, 1, *fixed), (channels, *[1] * (count + 1)))
    op = ConvolutionTranspose(strides, dilations, low, high, tuple(int(m.value) for m in missing), channels, x.type.dtype)
    return ctx.one(op, ctx.reshape(x, (x.shape[0], x.shape[1], *dims)), ctx.constant(weights, x.type.dtype))


def _axes_of(ctx: NodeContext, dims: Shape) -> list[Value]:
    """For the flat positions of a tensor of these dims, their index on each axis."""
    flat = ctx.one(Iota(canonical(product(dims)), dtypes.int64))
    found = []
    for axis, dim in enumerate(dims):
        after = ctx.size_scalar(canonical(product(dims[axis + 1 :])))
        found.append(ctx.binary("floormod", ctx.binary("floordiv", flat, after), ctx.size_scalar(dim)))
    return found


def _places(
    ctx: NodeContext,
    image: Shape,
    taps: list[Value],
    starts: list[Value],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    low: Shape,
) -> Value:
    """The flat position in the image of each tap of each block, [taps * starts]; one past the end for those in the padding."""
    flat, inside = ctx.constant(np.int64(0)), ctx.constant(np.bool_(True))
    for axis, size in enumerate(image):
        tap = ctx.binary("mul", ctx.reshape(taps[axis], (*taps[axis].shape, 1)), dilations[axis])
        start = ctx.binary("sub", ctx.binary("mul", starts[axis], strides[axis]), ctx.size_scalar(low[axis]))
        at, end = ctx.binary("add", tap, start), ctx.size_scalar(size)
        inside = ctx.binary("and", inside, ctx.binary("and", ctx.binary("greater_equal", at, 0), ctx.binary("less", at, end)))
        flat = ctx.binary("add", ctx.binary("mul", flat, end), at)
    kept = ctx.select(inside, flat, ctx.size_scalar(canonical(product(image))))
    return ctx.reshape(kept, (canonical(product(kept.shape)),))


def causal_conv_with_state(ctx: NodeContext) -> tuple[Value, Value]:
    """x [B, C, L], weights [C, 1, k], bias [C], the last k - 1 elements before x [B, C, k - 1] (zeros): each element with those before it,
    and the last k - 1 of all. Weights of unknown size are multiplied with windows that are gathered."""
    x, w = ctx.input(0), ctx.input(1)
    if x.type.rank != 3 or w.type.rank != 3:
        raise ModelError(f"{ctx.op_type} of {x.type!r} with weights {w.type!r}", where=ctx.where, why="both have three axes")
    x = ctx.refine_axis(x, 1, w.shape[0])
    batch, channels, length = x.shape
    kept = canonical(w.shape[2] - 1)
    past = ctx.optional(3)
    if past is None:
        past = ctx.broadcast(ctx.scalar_like(0, x), (batch, channels, kept))
    whole = ctx.one(Concat(2), ctx.refine(past, (batch, channels, kept)), x)
    work = dtypes.float32 if x.type.dtype.bits < 32 else x.type.dtype
    if channels.is_const and w.shape[2].is_const:
        none = (const(0),)
        result = ctx.one(Convolution((1,), (1,), none, none, int(channels.value), work), ctx.cast(whole, work), ctx.cast(w, work))
    else:
        starts = ctx.reshape(ctx.one(Iota(length, dtypes.int64)), (length, 1))
        windows = ctx.one(Gather(2), whole, ctx.binary("add", starts, ctx.one(Iota(w.shape[2], dtypes.int64))))
        taps = ctx.reshape(w, (channels, w.shape[2]))
        result = ctx.one(Contract("bclk,ck->bcl", work), windows, taps)
    if ctx.has(2):
        result = ctx.binary("add", result, ctx.cast(ctx.reshape(ctx.input(2), (channels, 1)), work))
    activation = str(ctx.attribute("activation", "none")).lower()
    if activation in ("silu", "swish"):
        result = ctx.binary("mul", result, ctx.unary("sigmoid", result))
    elif activation != "none":
        raise ModelError(f"{ctx.op_type} has the activation '{activation}'", where=ctx.where, why="it is none, silu or swish")
    return ctx.cast(result, x.type.dtype), ctx.slice_axis(whole, 2, length, kept)


IMPORTERS: Table = {
    ("", "CausalConvWithState"): causal_conv_with_state,
    ("", "Conv"): conv,
    ("", "ConvTranspose"): conv_transpose,
    ("", "Col2Im"): col2im,
}
