"""Transposed convolutions become dense ones: one with the output channels of every phase, whose results are then interleaved.

Output positions that are equal modulo the stride read the same taps. For stride s the positions s*a + r of a phase r take the taps
r, r + s, r + 2s ... from the inputs a, a - 1, a - 2 ...: a convolution of stride 1. All phases read the same inputs, so that they are one
convolution with s times the output channels, to which every schedule, layout and algorithm of convolutions applies.

    transposed(x, w [C, O, K], stride s)  ->  interleave(convolution(x, w' [s * O, C, ceil(K / s)]), s)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function
from tilewright.graph.ops import Constant, Convolution, ConvolutionTranspose, Interleave, Pad, Reshape, Slice, Transpose, constant
from tilewright.graph.shapes import canonical
from tilewright.ir.expr import Expr, const

WASTE = 2.0  # times the arithmetic that taps of zeros may cost, where the strides do not divide the kernel


def phase_convolutions(function: Function) -> Function:
    """The function with transposed convolutions of floats, constant weights and one group as convolutions."""
    return rewrite_function(function, _visit)


def _visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    op = node.op
    if not isinstance(op, ConvolutionTranspose) or op.groups != 1 or not op.dtype.is_float:
        return None
    x, w = inputs
    if not isinstance(w.op, Constant) or not w.type.is_static:
        return None
    kernel = [int(dim.value) for dim in w.shape[2:]]
    reach = [(taps - 1) * dilation + 1 if stride > 1 else taps for taps, dilation, stride in zip(kernel, op.dilations, op.strides)]
    taps = [-(-length // stride) for length, stride in zip(reach, op.strides)]
    if math.prod(count * stride for count, stride in zip(taps, op.strides)) > WASTE * math.prod(kernel):
        return None
    steps = tuple(1 if stride > 1 else dilation for stride, dilation in zip(op.strides, op.dilations))
    shape = node.types[0].shape[2:]
    first = [canonical(low // stride) for low, stride in zip(op.low, op.strides)]
    counts = [canonical((size + low - 1) // stride - f + 1) for size, low, stride, f in zip(shape, op.low, op.strides, first)]
    low = tuple(canonical((count - 1) * step - f) for count, step, f in zip(taps, steps, first))
    high = tuple(canonical(f + count - dim) for f, count, dim in zip(first, counts, x.shape[2:]))
    y = g.one(Convolution((1,) * len(taps), steps, low, high, 1, op.dtype), x, _phased(g, op, w, taps))
    starts = tuple(canonical(before - f * stride) for before, f, stride in zip(op.low, first, op.strides))
    if math.prod(op.strides) == 1:
        return [y]
    return [g.one(Interleave(op.strides, starts, shape), y)]


def _phased(g: GraphBuilder, op: ConvolutionTranspose, w: Value, taps: Sequence[int]) -> Value:
    """w [C, O, *K] as [phases * O, C, *taps], taps backwards, with zeros where a phase has fewer."""
    rank = len(taps)
    zero = const(0)
    for axis, (stride, dilation) in enumerate(zip(op.strides, op.dilations)):
        if stride > 1 and dilation > 1:
            w = _spread(g, w, 2 + axis, dilation)
    missing = [const(count * stride) - dim for count, stride, dim in zip(taps, op.strides, w.shape[2:])]
    if any(canonical(amount) is not zero for amount in missing):
        amounts = (zero, zero, *(canonical(amount) for amount in missing))
        w = g.one(Pad((zero,) * (2 + rank), amounts, "constant"), w, g.one(constant(0, w.type.dtype)))
    pairs = [const(n) for pair in zip(taps, op.strides) for n in pair]
    w = g.one(Reshape((*w.shape[:2], *pairs)), w)
    flipped = range(2, 2 + 2 * rank, 2)
    starts = tuple(canonical(dim - 1) if axis in flipped else zero for axis, dim in enumerate(w.shape))
    w = g.one(Slice(starts, w.shape, tuple(-1 if axis in flipped else 1 for axis in range(w.type.rank))), w)
    w = g.one(Transpose((*range(3, 3 + 2 * rank, 2), 1, 0, *flipped)), w)
    outputs = canonical(w.shape[rank] * math.prod(op.strides))
    return g.one(Reshape((outputs, *w.shape[rank + 1 :])), w)


def _spread(g: GraphBuilder, w: Value, axis: int, dilation: int) -> Value:
    """w with dilation - 1 zeros between its elements along an axis."""
    zero: Expr = const(0)
    shape = (*w.shape[: axis + 1], const(1), *w.shape[axis + 1 :])
    high = tuple(const(dilation - 1) if i == axis + 1 else zero for i in range(len(shape)))
    wide = g.one(Pad((zero,) * len(shape), high, "constant"), g.one(Reshape(shape), w), g.one(constant(0, w.type.dtype)))
    flat = g.one(Reshape((*w.shape[:axis], canonical(w.shape[axis] * dilation), *w.shape[axis + 1 :])), wide)
    sizes = tuple(canonical((n - 1) * dilation + 1) if i == axis else n for i, n in enumerate(w.shape))
    return g.one(Slice((zero,) * len(sizes), sizes, (1,) * len(sizes)), flat)
