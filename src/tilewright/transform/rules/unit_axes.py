"""Rules that take axes of one point out of convolutions, and what reads their results works without these axes as well.

    relu(convolution(x [N, C, W, 1], w [O, C, K, 1]) + b)  ->  reshape(relu(convolution(reshape(x) [N, C, W], w' [O, C, K]) + b'))

Frameworks that have convolutions over two axes only write those over one axis (audio, text, bytes) so. As an axis of a schedule, one point
is nothing to put vectors or rows of a tile along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright.graph.node import Node, Value
from tilewright.graph.ops import (
    Binary,
    Cast,
    Concat,
    Convolution,
    Gelu,
    HardSwish,
    Interleave,
    Pad,
    Reduce,
    Reshape,
    Select,
    Slice,
    Softplus,
    Transpose,
    Unary,
    WindowReduce,
)
from tilewright.graph.shapes import is_one, is_zero, normalize_axes
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import Shape
from tilewright.transform.match import made_by
from tilewright.transform.rewriting import Answer, Rewriter, Rules

T = TypeVar("T")


def inserted_axes(before: Shape, after: Shape) -> tuple[int, ...] | None:
    """The axes of one point that a reshape from `before` to `after` inserts; None where it does anything else, or nothing."""
    found: list[int] = []
    position = 0
    for axis, dim in enumerate(after):
        if position < len(before) and dim is before[position]:
            position += 1
        elif is_one(dim):
            found.append(axis)
        else:
            return None
    return tuple(found) if found and position == len(before) else None


def _inserted(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """What an inserting reshape reads, and the axes that it inserts."""
    if not made_by(value, Reshape):
        return None
    (source,) = value.node.inputs
    axes = inserted_axes(source.shape, value.shape)
    return None if axes is None else (source, axes)


def _without(r: Rewriter, value: Value, axes: Sequence[int]) -> Value:
    return r.emit(Reshape(tuple(dim for axis, dim in enumerate(value.shape) if axis not in axes)), value)


def _of(parts: Sequence[T], kept: Sequence[int]) -> tuple[T, ...]:
    """What an operator says of each axis, of those that are kept."""
    return tuple(parts[i] for i in kept)


def _one_tap(low: Expr, taps: Expr, dilation: int) -> int | None:
    """The tap that meets the one point of an axis, where the others meet padding."""
    if not (low.is_const and taps.is_const) or low.value < 0 or low.value % dilation:
        return None
    tap = int(low.value) // dilation
    return tap if tap < taps.value else None


def convolution(r: Rewriter, node: Node) -> Answer:
    """Convolutions over axes of which one input gives one result; an axis with more points stays."""
    x, w = node.inputs
    op, shape = node.op, node.types[0].shape
    assert isinstance(op, Convolution)
    taps: dict[int, int] = {}
    for i, (low, dilation) in enumerate(zip(op.low, op.dilations)):
        tap = _one_tap(low, w.shape[2 + i], dilation) if is_one(x.shape[2 + i]) and is_one(shape[2 + i]) else None
        if tap is not None:
            taps[i] = tap
    kept = [i for i in range(len(op.strides)) if i not in taps]
    if not taps or all(is_one(x.shape[2 + i]) for i in kept):
        return None
    axes = [2 + i for i in taps]
    if not all(is_one(w.shape[axis]) for axis in axes):
        starts = (const(0), const(0), *(const(taps.get(i, 0)) for i in range(len(op.strides))))
        w = r.emit(Slice(starts, tuple(const(1) if i in axes else dim for i, dim in enumerate(w.shape)), (1,) * len(starts)), w)
    narrow = replace(op, strides=_of(op.strides, kept), dilations=_of(op.dilations, kept), low=_of(op.low, kept), high=_of(op.high, kept))
    return r.emit(Reshape(shape), r.emit(narrow, _without(r, x, axes), _without(r, w, axes)))


def elementwise(r: Rewriter, node: Node) -> Answer:
    """fn(insert(x), y) -> insert(fn(x, y'))."""
    shape = node.types[0].shape
    found = next((f for v in node.inputs if v.shape == shape and (f := _inserted(v)) is not None), None)
    if found is None:
        return None
    operands: list[Value] = []
    for value in node.inputs:
        lead = len(shape) - value.type.rank
        operands.append(_without(r, value, [axis - lead for axis in found[1]]) if value.type.rank else value)
    result = r.emit(node.op, *operands)
    return r.emit(Reshape(shape), result) if result.shape == found[0].shape else None


def window_reduce(r: Rewriter, node: Node) -> Answer:
    """Windows of one point along an inserted axis, others being padding, which counts for nothing."""
    found, op = _inserted(node.inputs[0]), node.op
    assert isinstance(op, WindowReduce)
    shape = node.types[0].shape
    first = len(shape) - len(op.window)
    if found is None:
        return None
    own = [axis - first for axis in found[1] if axis >= first]
    if any(not is_one(shape[first + i]) or _one_tap(op.low[i], const(op.window[i]), op.dilations[i]) is None for i in own):
        return None
    kept = [i for i in range(len(op.window)) if i not in own]
    if not kept:
        return r.emit(Reshape(shape), found[0])
    narrow = replace(
        op,
        window=_of(op.window, kept),
        strides=_of(op.strides, kept),
        dilations=_of(op.dilations, kept),
        low=_of(op.low, kept),
        high=_of(op.high, kept),
    )
    return r.emit(Reshape(shape), r.emit(narrow, found[0]))


def reduce(r: Rewriter, node: Node) -> Answer:
    """Reductions over axes that were there before."""
    found, op = _inserted(node.inputs[0]), node.op
    assert isinstance(op, Reduce)
    if found is None:
        return None
    source, inserted = found
    kept = [axis for axis in range(node.inputs[0].type.rank) if axis not in inserted]
    axes = tuple(kept.index(axis) for axis in normalize_axes(op.axes, node.inputs[0].type.rank, op.fn) if axis in kept)
    result = r.emit(Reduce(op.fn, axes, op.keepdims), source) if axes else source
    return r.emit(Reshape(node.types[0].shape), result)


def concat(r: Rewriter, node: Node) -> Answer:
    """concat(insert(x), insert(y)) -> insert(concat(x, y))."""
    op = node.op
    assert isinstance(op, Concat)
    found = [_inserted(value) for value in node.inputs]
    first = found[0]
    if first is None:
        return None
    rank = node.types[0].rank
    axis, inserted = op.axis % rank, first[1]
    sources = [f[0] for f in found if f is not None and f[1] == inserted]
    if axis in inserted or len(sources) != len(found):
        return None
    kept = [i for i in range(rank) if i not in inserted]
    return r.emit(Reshape(node.types[0].shape), r.emit(Concat(kept.index(axis)), *sources))


def slice_(r: Rewriter, node: Node) -> Answer:
    """slice(insert(x)) -> insert(slice(x))."""
    found, op = _inserted(node.inputs[0]), node.op
    assert isinstance(op, Slice)
    if found is None or not all(is_zero(op.starts[axis]) and is_one(op.sizes[axis]) for axis in found[1]):
        return None
    kept = [axis for axis in range(len(op.sizes)) if axis not in found[1]]
    narrow = replace(op, starts=_of(op.starts, kept), sizes=_of(op.sizes, kept), steps=_of(op.steps, kept))
    return r.emit(Reshape(node.types[0].shape), r.emit(narrow, found[0]))


def pad(r: Rewriter, node: Node) -> Answer:
    """pad(insert(x)) -> insert(pad(x)) where inserted axes get no padding."""
    found, op = _inserted(node.inputs[0]), node.op
    assert isinstance(op, Pad)
    if found is None or not all(is_zero(op.low[axis]) and is_zero(op.high[axis]) for axis in found[1]):
        return None
    kept = [axis for axis in range(len(op.low)) if axis not in found[1]]
    return r.emit(
        Reshape(node.types[0].shape), r.emit(replace(op, low=_of(op.low, kept), high=_of(op.high, kept)), found[0], *node.inputs[1:])
    )


def interleave(r: Rewriter, node: Node) -> Answer:
    """Phases of transposed convolutions along the other axes."""
    found, op = _inserted(node.inputs[0]), node.op
    assert isinstance(op, Interleave)
    if found is None:
        return None
    inserted = [axis - 2 for axis in found[1]]
    if not all(0 <= i < len(op.strides) and op.strides[i] == 1 and is_zero(op.starts[i]) and is_one(op.sizes[i]) for i in inserted):
        return None
    kept = [i for i in range(len(op.strides)) if i not in inserted]
    if not kept:
        return None
    narrow = replace(op, strides=_of(op.strides, kept), starts=_of(op.starts, kept), sizes=_of(op.sizes, kept))
    return r.emit(Reshape(node.types[0].shape), r.emit(narrow, found[0]))


def transpose(r: Rewriter, node: Node) -> Answer:
    """transpose(insert(x)) -> insert(transpose(x))."""
    found, op = _inserted(node.inputs[0]), node.op
    assert isinstance(op, Transpose)
    if found is None:
        return None
    return r.emit(Reshape(node.types[0].shape), r.emit(Transpose(_remaining(op.perm, found[1])), found[0]))


def squeezed_transpose(r: Rewriter, node: Node) -> Answer:
    """A reshape that drops axes of one point drops them before a transpose."""
    (x,) = node.inputs
    moved = made_by(x, Transpose)
    dropped = inserted_axes(node.types[0].shape, x.shape) if moved is not None else None
    if moved is None or dropped is None:
        return None
    before = [moved.perm[axis] for axis in dropped]
    return r.emit(Transpose(_remaining(moved.perm, before)), _without(r, x.node.inputs[0], before))


def _remaining(perm: Sequence[int], dropped: Sequence[int]) -> tuple[int, ...]:
    """A permutation of the axes that are left when axes of its source are dropped."""
    kept = sorted(axis for axis in perm if axis not in dropped)
    return tuple(kept.index(axis) for axis in perm if axis not in dropped)


ELEMENTWISE = (Unary, Binary, Select, Cast, Gelu, HardSwish, Softplus)
RULES: Rules = {
    **dict.fromkeys(ELEMENTWISE, (elementwise,)),
    Convolution: (convolution,),
    WindowReduce: (window_reduce,),
    Reduce: (reduce,),
    Concat: (concat,),
    Slice: (slice_,),
    Pad: (pad,),
    Interleave: (interleave,),
    Transpose: (transpose,),
    Reshape: (squeezed_transpose,),
}
