"""Importers of signal processing: Fourier transforms as products with their matrices, mel filters as constants."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.matmul import contract
from tilewright.frontend.onnx.runtime_axes import around_axis
from tilewright.graph.node import Value
from tilewright.graph.ops import Concat, Convolution, Gather, Iota, Pad
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType, float32
from tilewright.ir.expr import Expr, const, maximum
from tilewright.support.errors import ModelError, UnsupportedOperatorError


def dft(ctx: NodeContext) -> Value:
    """Over one axis of [..., 1] (real) or [..., 2] (complex); the signal is cut or padded with zeros to the length of the transform."""
    x = ctx.input(0)
    if x.shape[-1] not in (const(1), const(2)):
        raise UnsupportedOperatorError(f"DFT of {x.type!r} is not supported", where=ctx.where, why="its last axis must have size 1 or 2")
    axis = _transformed_axis(ctx, x.type.rank)
    inverse, onesided = bool(ctx.attribute("inverse", 0)), bool(ctx.attribute("onesided", 0))
    around = [around_axis(ctx, _part(ctx, x, index), axis) for index in range(int(x.shape[-1].value))]
    length = _transform_length(ctx, around[0].view.shape[1], inverse and onesided)
    half = canonical(length // 2 + 1)
    taken, given = (half, length) if inverse and onesided else (length, half if onesided else length)
    parts = [_fitted(ctx, part.view, taken) for part in around]
    cosine, sine = _transform_matrices(ctx, length, taken, given, x.type.dtype)
    if inverse:
        weight = _inverse_weights(ctx, length, taken, onesided, x.type.dtype)
        cosine, sine = ctx.binary("mul", cosine, weight), ctx.unary("neg", ctx.binary("mul", sine, weight))

    def times(part: Value, matrix: Value) -> Value:
        return contract(ctx, part, "abc", matrix, "bd", "adc")

    if len(parts) == 1:
        pair = [times(parts[0], cosine), ctx.unary("neg", times(parts[0], sine))]
    else:
        pair = [
            ctx.binary("add", times(parts[0], cosine), times(parts[1], sine)),
            ctx.binary("sub", times(parts[1], cosine), times(parts[0], sine)),
        ]
    whole = [around[0].restored(ctx, value) for value in pair[: 1 if inverse and onesided else 2]]
    stacked = [ctx.reshape(value, (*value.shape, 1)) for value in whole]
    return stacked[0] if len(stacked) == 1 else ctx.one(Concat(x.type.rank - 1), *stacked)


def _transformed_axis(ctx: NodeContext, rank: int) -> Expr:
    """The axis, counted from the front: an attribute before opset 20, then a scalar. It is not the last, which holds the parts."""
    known = ctx.attribute("axis", 1) if ctx.version < 20 else -2 if not ctx.has(2) else None
    if known is None and (given := ctx.constant_of(2)) is not None:
        known = int(given.reshape(-1)[0])
    if known is None:
        axis = ctx.cast(ctx.number(ctx.input(2)), dtypes.int64)
        counted = ctx.select(ctx.binary("less", axis, 0), ctx.binary("add", axis, rank), axis)
        return ctx.as_size(counted, f"{ctx.node.output[0]}_axis", hi=rank - 2)
    if ctx.axis(known, rank) == rank - 1:
        raise ModelError(f"DFT along axis {known}, which holds the real and the imaginary parts", where=ctx.where)
    return const(ctx.axis(known, rank))


def _transform_length(ctx: NodeContext, dim: Expr, from_half: bool) -> Expr:
    if ctx.has(1):
        return ctx.as_size(ctx.input(1), f"{ctx.node.output[0]}_length", lo=1)
    return canonical(2 * (dim - 1)) if from_half else dim


def _transform_matrices(ctx: NodeContext, length: Expr, taken: Expr, given: Expr, dtype: DType) -> tuple[Value, Value]:
    """Cosines and sines of 2 pi t g / length, [taken, given]."""
    if length.is_const and taken.is_const and given.is_const:
        angle = 2 * np.pi * np.outer(np.arange(int(taken.value)), np.arange(int(given.value))) / int(length.value)
        return ctx.constant(np.cos(angle), dtype), ctx.constant(np.sin(angle), dtype)
    rows = ctx.reshape(ctx.one(Iota(taken, dtypes.int64)), (taken, 1))
    turns = ctx.binary("floormod", ctx.binary("mul", rows, ctx.one(Iota(given, dtypes.int64))), ctx.size_scalar(length))
    share = ctx.binary("div", ctx.cast(turns, dtypes.float64), ctx.size_number(length, dtypes.float64))
    angles = ctx.binary("mul", share, 2 * np.pi)  # float64: in float32, the sine of what should be pi is not 0
    return ctx.cast(ctx.unary("cos", angles), dtype), ctx.cast(ctx.unary("sin", angles), dtype)


def _inverse_weights(ctx: NodeContext, length: Expr, taken: Expr, from_half: bool, dtype: DType) -> Value:
    """[taken, 1]: 1 / length, twice that for frequencies of a half spectrum whose conjugates are left out."""
    once = ctx.binary("div", ctx.scalar_like(1, ctx.constant(0, dtype)), ctx.size_number(length, dtype))
    if not from_half:
        return ctx.reshape(once, (1, 1))
    at = ctx.reshape(ctx.one(Iota(taken, dtypes.int64)), (taken, 1))
    pairs = ctx.size_scalar(canonical((length + 1) // 2))
    twice = ctx.binary("and", ctx.binary("greater", at, 0), ctx.binary("less", at, pairs))
    return ctx.select(twice, ctx.binary("mul", once, 2.0), once)


def _fitted(ctx: NodeContext, x: Value, length: Expr) -> Value:
    """Axis 1 of [outer, n, inner] cut or padded with zeros to `length`."""
    if dims_equal(x.shape[1], length):
        return x
    none = (const(0),) * 3
    return ctx.one(Pad(none, (const(0), canonical(length - x.shape[1]), const(0)), "constant"), x, ctx.scalar_like(0, x))


def _part(ctx: NodeContext, x: Value, index: int) -> Value:
    """The real (0) or imaginary (1) part, without the axis of the parts."""
    return ctx.reshape(ctx.slice_axis(x, x.type.rank - 1, index, 1), x.shape[:-1])


def stft(ctx: NodeContext) -> Value:
    """[batch, signal, parts] to [batch, frames, bins, 2]. With a fixed step and length a convolution along the signal, whose filters are
    the windowed rows of the transform; otherwise frames are gathered and transformed."""
    x = ctx.input(0)
    if x.type.rank == 2:
        x = ctx.reshape(x, (*x.shape, 1))
    window = ctx.optional(2)
    step = ctx.as_size(ctx.input(1), f"{ctx.node.output[0]}_step", lo=1)
    if ctx.has(3):
        length = ctx.as_size(ctx.input(3), f"{ctx.node.output[0]}_length", lo=1)
    else:
        length = x.shape[1] if window is None else window.shape[0]
    bins = canonical(length // 2 + 1) if ctx.attribute("onesided", 1) else length
    cosine, sine = _transform_matrices(ctx, length, length, bins, x.type.dtype)
    if window is not None:
        column = ctx.reshape(ctx.refine(window, (length,)), (length, 1))
        cosine, sine = ctx.binary("mul", cosine, column), ctx.binary("mul", sine, column)
    if step.is_const and length.is_const:
        return _stft_by_convolution(ctx, x, int(step.value), cosine, sine)
    frames = _frames(ctx, x, step, length)
    if x.shape[2] is const(2):
        real, imaginary = (ctx.reshape(ctx.slice_axis(frames, 3, i, 1), frames.shape[:3]) for i in range(2))
        pair = [
            ctx.binary("add", _transformed(ctx, real, cosine), _transformed(ctx, imaginary, sine)),
            ctx.binary("sub", _transformed(ctx, imaginary, cosine), _transformed(ctx, real, sine)),
        ]
    else:
        real = ctx.reshape(frames, frames.shape[:3])
        pair = [_transformed(ctx, real, cosine), ctx.unary("neg", _transformed(ctx, real, sine))]
    return ctx.one(Concat(3), *[ctx.reshape(part, (*part.shape, 1)) for part in pair])


def _transformed(ctx: NodeContext, frames: Value, matrix: Value) -> Value:
    return contract(ctx, frames, "bft", matrix, "tg", "bfg")


def _frames(ctx: NodeContext, x: Value, step: Expr, length: Expr) -> Value:
    """[batch, frames, length, parts]: windows of the signal that start `step` apart."""
    count = canonical(maximum((x.shape[1] - length) // step + 1, 0))
    starts = ctx.binary("mul", ctx.one(Iota(count, dtypes.int64)), ctx.size_scalar(step))
    places = ctx.binary("add", ctx.reshape(starts, (count, 1)), ctx.one(Iota(length, dtypes.int64)))
    return ctx.one(Gather(1), x, places)


def _stft_by_convolution(ctx: NodeContext, x: Value, step: int, cosine: Value, sine: Value) -> Value:
    """Filters [2 * bins, parts, length]: for each part of the signal what it adds to the real and to the imaginary parts."""
    rows = [ctx.transpose(matrix, (1, 0)) for matrix in (cosine, sine)]
    minus = ctx.unary("neg", rows[1])
    real = ctx.one(Concat(0), rows[0], minus)
    parts = [real, ctx.one(Concat(0), rows[1], rows[0])] if x.shape[2] is const(2) else [real]
    filters = [ctx.reshape(part, (part.shape[0], 1, part.shape[1])) for part in parts]
    weights = filters[0] if len(filters) == 1 else ctx.one(Concat(1), *filters)
    zero = (const(0),)
    found = ctx.one(Convolution((step,), (1,), zero, zero, 1, x.type.dtype), ctx.transpose(x, (0, 2, 1)), weights)
    batch, _, count = found.shape
    return ctx.transpose(ctx.reshape(found, (batch, 2, cosine.shape[1], count)), (0, 3, 2, 1))


def mel_weight_matrix(ctx: NodeContext) -> Value:
    """Triangular filters [bins of the transform, mel bands], whose corners are equally spaced on the mel scale and rounded to bins."""
    known = [ctx.constant_of(i) for i in range(5)]
    if any(number is None for number in known):
        return _mel_weights_at_run_time(ctx)
    bands, length, rate, lower, upper = (number.reshape(-1)[0].item() for number in known if number is not None)
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (lower, upper))
    mel = low + np.arange(bands + 2) * (high - low) / (bands + 2)
    corners = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate).astype(np.int64)
    bins = length // 2 + 1
    if corners.min() < 0 or corners.max() > bins:
        raise ModelError("MelWeightMatrix has edges outside of the spectrum", where=ctx.where)
    weights = np.zeros((bins, bands))
    at = np.arange(bins)
    for band in range(bands):
        left, center, right = corners[band : band + 3]
        rising, falling = (at >= left) & (at <= center), (at >= center) & (at < right)
        weights[rising, band] = (at[rising] - left) / (center - left) if center > left else 1.0
        if right > center:
            weights[falling, band] = (right - at[falling]) / (right - center)
    dtype: DType = ctx.dtype_attribute("output_datatype", float32)
    return ctx.constant(weights, dtype)


def _mel_weights_at_run_time(ctx: NodeContext) -> Value:
    """The same filters from numbers that are known only while running: bands, length, rate, lower and upper edge. In float64, as the
    corners are rounded down."""
    bands = ctx.as_size(ctx.input(0), f"{ctx.node.output[0]}_bands", lo=1)
    length = ctx.as_size(ctx.input(1), f"{ctx.node.output[0]}_length", lo=1)
    rate, lower, upper = (ctx.cast(ctx.number(ctx.input(i)), dtypes.float64) for i in (2, 3, 4))

    def mel(edge: Value) -> Value:
        return ctx.binary("mul", ctx.unary("log", ctx.binary("add", ctx.binary("div", edge, 700.0), 1.0)), 2595 / np.log(10))

    low = mel(lower)
    step = ctx.binary("div", ctx.binary("sub", mel(upper), low), ctx.size_number(canonical(bands + 2), dtypes.float64))
    places = ctx.binary("add", ctx.binary("mul", ctx.one(Iota(canonical(bands + 2), dtypes.float64)), step), low)
    hertz = ctx.binary("mul", ctx.binary("sub", ctx.unary("exp", ctx.binary("mul", places, np.log(10) / 2595)), 1.0), 700.0)
    scaled = ctx.binary("mul", hertz, ctx.size_number(canonical(length + 1), dtypes.float64))
    corners = ctx.unary("floor", ctx.binary("div", scaled, rate))
    left, center, right = (ctx.slice_axis(corners, 0, i, bands) for i in range(3))
    bins = canonical(length // 2 + 1)
    at = ctx.reshape(ctx.one(Iota(bins, dtypes.float64)), (bins, 1))

    def part(above: Value, whole: Value) -> Value:
        return ctx.binary("div", above, ctx.binary("max", whole, 1.0))

    up = ctx.binary("sub", center, left)
    rising = ctx.select(ctx.binary("greater", up, 0.0), part(ctx.binary("sub", at, left), up), ctx.constant(1.0))
    falling = part(ctx.binary("sub", right, at), ctx.binary("sub", right, center))
    in_rise = ctx.binary("and", ctx.binary("greater_equal", at, left), ctx.binary("less_equal", at, center))
    in_fall = ctx.binary("and", ctx.binary("greater_equal", at, center), ctx.binary("less", at, right))
    weights = ctx.select(in_fall, falling, ctx.select(in_rise, rising, ctx.constant(0.0)))
    return ctx.cast(weights, ctx.dtype_attribute("output_datatype", float32))


def window(ctx: NodeContext) -> Value:
    """HannWindow and its kin by ONNX's definition, which makes nothing of a negative size."""
    size = ctx.as_size(ctx.input(0), f"{ctx.node.output[0]}_size")
    if size.is_const and size.value < 0:
        raise ModelError(f"{ctx.op_type} of {size!r} samples", where=ctx.where)
    (found,) = ctx.definition()
    if found is None:
        raise ModelError(f"{ctx.op_type} without a result", where=ctx.where)
    return ctx.refine(found, (size,))


IMPORTERS: Table = {
    ("", "BlackmanWindow"): window,
    ("", "HammingWindow"): window,
    ("", "HannWindow"): window,
    ("", "DFT"): dft,
    ("", "STFT"): stft,
    ("", "MelWeightMatrix"): mel_weight_matrix,
}
