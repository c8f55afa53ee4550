"""Convolutions of few channels, whose windows lie side by side in memory.

An image with its channels last has the pixels that a row of a window covers next to each other, so that one axis of the reduction goes over
pixels and channels. That is a convolution of one channel over a longer row:

    x [N, C, .., W], w [O, C, .., K], stride s  ->  x' [N, 1, .., W*g], w' [O, 1, .., K*g], stride s*g

of `g >= C` channels, those past C zeros in both. Nothing outside of a window is read for it but these zeros.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import Block, Convolution, Pad, Reshape, Transpose, constant
from tilewright.graph.shapes import canonical, dims_equal, is_zero
from tilewright.ir.expr import const


def row_windows(g: GraphBuilder, op: Convolution, x: Value, w: Value, channels: int) -> tuple[Convolution, Value, Value] | None:
    """The convolution of one channel, its image with padding in it and its weights; None where pixels of a window do not lie side by side,
    or where the result would not be known to have the same shape."""
    if op.groups != 1 or op.dilations[-1] != 1 or not w.type.is_static:
        return None
    rank = w.type.rank - 2
    missing = channels - int(w.shape[1].value)
    zeros = (const(0),) * (rank - 1)
    pixels = g.one(Block(channels), x)
    if not all(map(is_zero, (*op.low, *op.high))):
        low, high = ((const(0), const(0), *amounts, const(0)) for amounts in (op.low, op.high))
        pixels = g.one(Pad(low, high, "constant"), pixels, g.one(constant(0, x.type.dtype)))
    row = canonical(pixels.shape[-2] * channels)
    image = g.one(Reshape((*pixels.shape[:-2], row)), pixels)
    filled = w
    if missing:
        high = (const(0), const(missing), *(const(0),) * rank)
        filled = g.one(Pad((const(0),) * (rank + 2), high, "constant"), w, g.one(constant(0, w.type.dtype)))
    last = g.one(Transpose((0, *range(2, rank + 2), 1)), filled)
    weights = g.one(Reshape((w.shape[0], const(1), *w.shape[2:-1], const(int(w.shape[-1].value) * channels))), last)
    strides = (*op.strides[:-1], op.strides[-1] * channels)
    made = replace(op, strides=strides, low=(*zeros, const(0)), high=(*zeros, const(0)))
    (before,), (after,) = op.infer((x.type, w.type)), made.infer((image.type, weights.type))
    same = all(dims_equal(a, b) for a, b in zip(before.shape, after.shape, strict=True))
    return (made, image, weights) if same else None
