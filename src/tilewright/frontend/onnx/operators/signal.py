"""Importers of signal processing: Fourier transforms as products with their matrices, mel filters as constants."""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.matmul import contract
from tilewright.graph.node import Array, Value
from tilewright.graph.ops import Concat, Convolution, Pad
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir.dtypes import DType, float32
from tilewright.ir.expr import Expr, const
from tilewright.support.errors import ModelError, UnsupportedOperatorError


def dft(ctx: NodeContext) -> Value:
    """Over one axis of [..., 1] (real) or [..., 2] (complex); the signal is cut or padded with zeros to the length of the transform."""
    x = ctx.input(0)
    rank = x.type.rank
    if ctx.version < 20:
        axis = ctx.axis(ctx.attribute("axis", 1), rank)
    else:
        axis = ctx.axis(int(ctx.require_constant(2, "axis").reshape(-1)[0]) if ctx.has(2) else -2, rank)
    inverse, onesided = bool(ctx.attribute("inverse", 0)), bool(ctx.attribute("onesided", 0))
    length = _transform_length(ctx, x.shape[axis], inverse and onesided)
    taken = length // 2 + 1 if inverse and onesided else length
    x = _fitted(ctx, x, axis, taken)
    parts = [_part(ctx, x, index) for index in range(2 if x.shape[-1] is const(2) else 1)]
    given = length // 2 + 1 if onesided and not inverse else length
    angle = 2 * np.pi * np.outer(np.arange(taken), np.arange(given)) / length
    if inverse:
        weight = np.ones((taken, 1)) / length
        if onesided:
            weight[1 : (length + 1) // 2] *= 2
        cosine, sine = np.cos(angle) * weight, -np.sin(angle) * weight
    else:
        cosine, sine = np.cos(angle), np.sin(angle)

    def times(part: Value, matrix: Array) -> Value:
        letters = ascii_lowercase[: rank - 1]
        result = letters[:axis] + "Z" + letters[axis + 1 :]
        return contract(ctx, part, letters, ctx.constant(matrix, x.type.dtype), letters[axis] + "Z", result)

    if len(parts) == 1:
        pair = [times(parts[0], cosine), ctx.unary("neg", times(parts[0], sine))]
    else:
        pair = [
            ctx.binary("add", times(parts[0], cosine), times(parts[1], sine)),
            ctx.binary("sub", times(parts[1], cosine), times(parts[0], sine)),
        ]
    stacked = [ctx.reshape(value, (*value.shape, 1)) for value in pair[: 1 if inverse and onesided else 2]]
    return stacked[0] if len(stacked) == 1 else ctx.one(Concat(rank - 1), *stacked)


def _transform_length(ctx: NodeContext, dim: Expr, from_half: bool) -> int:
    if ctx.has(1):
        return int(ctx.require_constant(1, "length").reshape(-1)[0])
    if not dim.is_const:
        raise UnsupportedOperatorError(f"{ctx.op_type} over an axis of the open size {dim!r} is not supported", where=ctx.where)
    return 2 * (int(dim.value) - 1) if from_half else int(dim.value)


def _fitted(ctx: NodeContext, x: Value, axis: int, length: int) -> Value:
    """The axis cut or padded with zeros to `length`."""
    if dims_equal(x.shape[axis], const(length)):
        return x
    none = [const(0)] * x.type.rank
    high = [canonical(length - dim) if i == axis else const(0) for i, dim in enumerate(x.shape)]
    return ctx.one(Pad(tuple(none), tuple(high), "constant"), x, ctx.scalar_like(0, x))


def _part(ctx: NodeContext, x: Value, index: int) -> Value:
    """The real (0) or imaginary (1) part, without the axis of the parts."""
    return ctx.reshape(ctx.slice_axis(x, x.type.rank - 1, index, 1), x.shape[:-1])


def stft(ctx: NodeContext) -> Value:
    """A convolution along the signal, whose filters are the windowed rows of the transform."""
    x = ctx.input(0)
    step = int(ctx.require_constant(1, "frame step").reshape(-1)[0])
    window = ctx.optional(2)
    if ctx.has(3):
        length = int(ctx.require_constant(3, "frame length").reshape(-1)[0])
    elif window is not None and window.shape[0].is_const:
        length = int(window.shape[0].value)
    else:
        length = _static_length(ctx, x)
    bins = length // 2 + 1 if ctx.attribute("onesided", 1) else length
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(length)) / length
    cosine, sine = np.cos(angle), np.sin(angle)
    if x.type.rank == 2:
        x = ctx.reshape(x, (*x.shape, 1))
    if x.shape[2] is const(2):
        filters = np.stack([np.concatenate([cosine, -sine]), np.concatenate([sine, cosine])], axis=1)
    else:
        filters = np.concatenate([cosine, -sine])[:, None]
    weights = ctx.constant(filters, x.type.dtype)
    if window is not None:
        weights = ctx.binary("mul", weights, window)
    zero = (const(0),)
    frames = ctx.one(Convolution((step,), (1,), zero, zero, 1, x.type.dtype), ctx.transpose(x, (0, 2, 1)), weights)
    batch, _, count = frames.shape
    return ctx.transpose(ctx.reshape(frames, (batch, 2, bins, count)), (0, 3, 2, 1))


def _static_length(ctx: NodeContext, x: Value) -> int:
    if not x.shape[1].is_const:
        raise UnsupportedOperatorError("STFT without a window over a signal of open length is not supported", where=ctx.where)
    return int(x.shape[1].value)


def mel_weight_matrix(ctx: NodeContext) -> Value:
    """Triangular filters [bins of the transform, mel bands], whose corners are equally spaced on the mel scale and rounded to bins."""
    names = ("number of bands", "transform length", "sample rate", "lower edge", "upper edge")
    bands, length, rate, lower, upper = (ctx.require_constant(i, name).reshape(-1)[0].item() for i, name in enumerate(names))
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


IMPORTERS: Table = {
    ("", "DFT"): dft,
    ("", "STFT"): stft,
    ("", "MelWeightMatrix"): mel_weight_matrix,
}
