"""Rules of operators that move elements: what moves nothing goes, what moves twice moves once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.graph.node import Node, Value
from tilewright.graph.ops import (
    BroadcastTo,
    Concat,
    Constant,
    ConstantData,
    Convolution,
    Gather,
    GatherNd,
    Pad,
    Reduce,
    RefineShape,
    Repeat,
    Reshape,
    Slice,
    Transpose,
)
from tilewright.graph.shapes import canonical, dims_equal, is_one, is_zero, normalize_axes, shapes_equal
from tilewright.ir.expr import Expr, const, less, less_equal
from tilewright.ir.prove import prove
from tilewright.ir.types import static_shape
from tilewright.transform.match import array_of, made_by, number
from tilewright.transform.rewriting import Answer, Rewriter, Rules

# -- reshape, transpose, broadcast


def reshape(r: Rewriter, node: Node) -> Answer:
    """Reshapes to the same shape go, reshapes of reshapes and of constants merge."""
    (x,) = node.inputs
    shape = node.types[0].shape
    if x.shape == shape:
        return x
    if made_by(x, Reshape):
        return r.emit(Reshape(shape), x.node.inputs[0])
    array = array_of(x)
    if array is not None and array.flags.c_contiguous and all(dim.is_const for dim in shape):
        return r.emit(Constant(ConstantData(array.reshape([int(dim.value) for dim in shape]))))
    return None


def repeat_axis(r: Rewriter, node: Node) -> Answer:
    """reshape(broadcast_to(x[.., a, 1, b, ..])) to [.., a * times, b, ..] repeats the index of an axis."""
    (x,) = node.inputs
    shape = node.types[0].shape
    if not made_by(x, BroadcastTo):
        return None
    (source,) = x.node.inputs
    if source.type.rank != x.type.rank:
        return None
    spread = [axis for axis, (a, b) in enumerate(zip(source.shape, x.shape, strict=True)) if not dims_equal(a, b)]
    if len(spread) != 1 or spread[0] == 0 or not x.shape[spread[0]].is_const:
        return None
    (axis,) = spread
    times, before = x.shape[axis], source.shape[axis - 1]
    if not shapes_equal(shape, (*x.shape[: axis - 1], canonical(before * times), *x.shape[axis + 1 :])):
        return None
    narrow = r.emit(Reshape((*source.shape[:axis], *source.shape[axis + 1 :])), source)
    repeated = r.emit(Repeat(axis - 1, int(times.value)), narrow)
    return repeated if repeated.shape == shape else r.emit(Reshape(shape), repeated)


def repeat_transposed(r: Rewriter, node: Node) -> Answer:
    """repeat(transpose(x)) -> transpose(repeat(x)): transposes end in contractions."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Repeat)
    moved = made_by(x, Transpose)
    if moved is None:
        return None
    return r.emit(moved, r.emit(Repeat(moved.perm[op.axis % x.type.rank], op.times), x.node.inputs[0]))


def transpose(r: Rewriter, node: Node) -> Answer:
    """Transposes merge; what moves axes of size 1 only is a reshape."""
    (x,) = node.inputs
    op = node.op
    assert isinstance(op, Transpose)
    if op.perm == tuple(range(len(op.perm))):
        return x
    inner = made_by(x, Transpose)
    if inner is not None:
        return r.emit(Transpose(tuple(inner.perm[axis] for axis in op.perm)), x.node.inputs[0])
    moved = [axis for axis in op.perm if not is_one(x.shape[axis])]
    return r.emit(Reshape(node.types[0].shape), x) if moved == sorted(moved) else None


def broadcast(r: Rewriter, node: Node) -> Answer:
    """Broadcasts that repeat nothing are reshapes; broadcasts of broadcasts merge."""
    (x,) = node.inputs
    shape = node.types[0].shape
    if x.shape == shape:
        return x
    if made_by(x, BroadcastTo):
        return r.emit(BroadcastTo(shape), x.node.inputs[0])
    extra = len(shape) - x.type.rank
    if all(map(is_one, shape[:extra])) and shapes_equal(x.shape, shape[extra:]):
        return r.emit(Reshape(shape), x)
    if made_by(x, Reshape):
        source = x.node.inputs[0]
        lead = x.type.rank - source.type.rank
        if lead >= 0 and x.shape[lead:] == source.shape and all(map(is_one, x.shape[:lead])):
            return r.emit(BroadcastTo(shape), source)
    return None


def refine(r: Rewriter, node: Node) -> Answer:
    """Refinements to the same shape go."""
    return node.inputs[0] if node.inputs[0].shape == node.types[0].shape else None


# -- slice, pad, concat


def slice_all(r: Rewriter, node: Node) -> Answer:
    """A slice of everything goes; slices of slices merge; slices of broadcasts read the source."""
    (x,) = node.inputs
    op = node.op
    assert isinstance(op, Slice)
    if all(is_zero(s) and k == 1 for s, k in zip(op.starts, op.steps)) and x.shape == op.sizes:
        return x
    inner = made_by(x, Slice)
    if inner is not None:
        starts = [canonical(s + t * k) for s, t, k in zip(inner.starts, op.starts, inner.steps)]
        steps = [a * b for a, b in zip(inner.steps, op.steps)]
        return r.emit(Slice(tuple(starts), op.sizes, tuple(steps)), x.node.inputs[0])
    if made_by(x, BroadcastTo):
        return _slice_of_broadcast(r, op, x.node.inputs[0], x.type.rank)
    return None


def _slice_of_broadcast(r: Rewriter, op: Slice, source: Value, rank: int) -> Answer:
    if any(is_zero(size) for size in op.sizes):
        return None
    extra = rank - source.type.rank
    parts = [
        (const(0), const(1), 1) if is_one(dim) else part
        for dim, part in zip(source.shape, zip(op.starts[extra:], op.sizes[extra:], op.steps[extra:]))
    ]
    starts, sizes, steps = zip(*parts) if parts else ((), (), ())
    return r.shaped(r.emit(Slice(tuple(starts), tuple(sizes), tuple(steps)), source), op.sizes)


def slice_of_concat(r: Rewriter, node: Node) -> Answer:
    """A slice of a concatenation reads only the inputs that it reaches."""
    (x,) = node.inputs
    op, concat = node.op, made_by(x, Concat)
    assert isinstance(op, Slice)
    if concat is None:
        return None
    axis = concat.axis % x.type.rank
    start, size, step = op.starts[axis], op.sizes[axis], op.steps[axis]
    if is_zero(size):
        return None
    last = canonical(start + (size - 1) * step)
    low, high = (start, last) if step > 0 else (last, start)
    inputs = x.node.inputs
    ends = _ends(inputs, axis)
    first, stop = 0, len(inputs)
    while first < stop - 1 and prove(less_equal(ends[first], low)):
        first += 1
    while stop - 1 > first and prove(less(high, ends[stop - 2])):
        stop -= 1
    if first == 0 and stop == len(inputs):
        return None
    before = ends[first - 1] if first else const(0)
    starts = (*op.starts[:axis], canonical(start - before), *op.starts[axis + 1 :])
    return r.emit(Slice(starts, op.sizes, op.steps), r.emit(Concat(axis), *inputs[first:stop]))


def _ends(values: Sequence[Value], axis: int) -> list[Expr]:
    ends: list[Expr] = []
    for value in values:
        ends.append(canonical(ends[-1] + value.shape[axis]) if ends else value.shape[axis])
    return ends


def pad(r: Rewriter, node: Node) -> Answer:
    """Padding by nothing goes; constant paddings with one value merge."""
    x, value = node.inputs
    op = node.op
    assert isinstance(op, Pad)
    if all(map(is_zero, (*op.low, *op.high))):
        return x
    inner = made_by(x, Pad)
    if inner is None or not op.mode == inner.mode == "constant" or x.node.inputs[1] is not value:
        return None
    amounts = (*op.low, *op.high, *inner.low, *inner.high)
    if not all(a.is_const and a.value >= 0 for a in amounts):
        return None  # what a crop takes away cannot come back
    low = tuple(canonical(a + b) for a, b in zip(op.low, inner.low))
    high = tuple(canonical(a + b) for a, b in zip(op.high, inner.high))
    return r.emit(Pad(low, high, "constant"), x.node.inputs[0], value)


def padded_convolution(r: Rewriter, node: Node) -> Answer:
    """convolution(pad(x, 0)) pads by itself, also with a transpose in between."""
    x, w = node.inputs
    op, moved = node.op, made_by(x, Transpose)
    assert isinstance(op, Convolution)
    if moved is not None:
        return _padded_by_transpose(r, node, moved)
    padding = made_by(x, Pad)
    if padding is None or padding.mode != "constant" or number(x.node.inputs[1]) != 0 or r.is_shared(x):
        return None
    if not all(map(is_zero, (*padding.low[:2], *padding.high[:2]))):
        return None
    if not all(a.is_const and a.value >= 0 for a in (*padding.low, *padding.high, *op.low, *op.high)):
        return None
    low = tuple(canonical(a + b) for a, b in zip(op.low, padding.low[2:]))
    high = tuple(canonical(a + b) for a, b in zip(op.high, padding.high[2:]))
    return r.emit(Convolution(op.strides, op.dilations, low, high, op.groups, op.dtype), x.node.inputs[0], w)


def _padded_by_transpose(r: Rewriter, node: Node, moved: Transpose) -> Answer:
    """convolution(transpose(pad(x))) -> convolution(pad(transpose(x))), which the rule above takes."""
    x, w = node.inputs
    inner = x.node.inputs[0]
    padding = made_by(inner, Pad)
    if padding is None or padding.mode != "constant" or number(inner.node.inputs[1]) != 0 or r.is_shared(inner) or r.is_shared(x):
        return None
    low, high = (tuple(amounts[axis] for axis in moved.perm) for amounts in (padding.low, padding.high))
    if not all(map(is_zero, (*low[:2], *high[:2]))):
        return None
    source, value = inner.node.inputs
    return r.emit(node.op, r.g.one(Pad(low, high, "constant"), r.emit(moved, source), value), w)


def concat(r: Rewriter, node: Node) -> Answer:
    """Concatenations of one go, nested ones merge, empty inputs go, neighbouring slices of one tensor become one slice."""
    op = node.op
    assert isinstance(op, Concat)
    axis = op.axis % node.types[0].rank
    inputs: list[Value] = []
    for value in node.inputs:
        inner = made_by(value, Concat)
        if inner is not None and inner.axis % value.type.rank == axis and not r.is_shared(value) and node.inputs.count(value) == 1:
            inputs.extend(value.node.inputs)
        elif not is_zero(value.shape[axis]):
            inputs.append(value)
    if not inputs:
        return node.inputs[0]
    joined = [inputs[0]]
    for value in inputs[1:]:
        both = _joined_slices(r, joined[-1], value, axis)
        joined[-1:] = [joined[-1], value] if both is None else [both]
    if len(joined) == 1:
        return joined[0]
    return r.emit(Concat(axis), *joined) if (tuple(joined), axis) != (node.inputs, op.axis) else None


def _joined_slices(r: Rewriter, a: Value, b: Value, axis: int) -> Value | None:
    """The slice that two slices of one tensor make when the second begins where the first ends."""
    first, second = made_by(a, Slice), made_by(b, Slice)
    if first is None or second is None or a.node.inputs != b.node.inputs or first.steps != second.steps:
        return None
    for i, (p, q, m, n) in enumerate(zip(first.starts, second.starts, first.sizes, second.sizes, strict=True)):
        follows = dims_equal(canonical(p + m * first.steps[i]), q) if i == axis else dims_equal(p, q) and dims_equal(m, n)
        if not follows:
            return None
    sizes = (*first.sizes[:axis], canonical(first.sizes[axis] + second.sizes[axis]), *first.sizes[axis + 1 :])
    return r.emit(Slice(first.starts, sizes, first.steps), *a.node.inputs)


# -- gather, reduce


def gather_known(r: Rewriter, node: Node) -> Answer:
    """A gather at known positions in arithmetic progression is a slice."""
    x, indices = node.inputs
    op = node.op
    assert isinstance(op, Gather)
    array = array_of(indices)
    axis = op.axis % x.type.rank
    dim = x.shape[axis]
    if array is None or array.ndim > 1 or array.size == 0 or array.size > 4096:
        return None
    at = np.atleast_1d(array).astype(np.int64)
    if dim.is_const:
        at = np.clip(np.where(at < 0, at + int(dim.value), at), 0, int(dim.value) - 1)
    elif not (at.min() >= 0 and prove(less(int(at.max()), dim))):
        return None
    steps = np.diff(at)
    if steps.size and (steps[0] == 0 or (steps != steps[0]).any()):
        return None
    step = int(steps[0]) if steps.size else 1
    rank = x.type.rank
    starts = (*[const(0)] * axis, const(int(at[0])), *[const(0)] * (rank - axis - 1))
    sizes = (*x.shape[:axis], const(at.size), *x.shape[axis + 1 :])
    taken = r.emit(Slice(starts, sizes, (*[1] * axis, step, *[1] * (rank - axis - 1))), x)
    return r.emit(Reshape(node.types[0].shape), taken)


def gather_in_order(r: Rewriter, node: Node) -> Answer:
    """A gather of all slices in row-major order is a reshape."""
    x, indices = node.inputs
    op, array, shape = node.op, array_of(indices), static_shape(x.shape)
    assert isinstance(op, GatherNd)
    if op.batch_dims or array is None or shape is None or array.size == 0 or array.shape[-1] == 0:
        return None
    dims = shape[: array.shape[-1]]
    at = array.astype(np.int64)
    at = np.where(at < 0, at + np.array(dims), at)
    if (at < 0).any() or (at >= np.array(dims)).any():
        return None
    flat = np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), dims).reshape(-1)
    in_order = flat.size == math.prod(dims) and bool((flat == np.arange(flat.size)).all())
    return r.emit(Reshape(node.types[0].shape), x) if in_order else None


def reduce_nothing(r: Rewriter, node: Node) -> Answer:
    """Axes of size 1 need no reduction. Axes are counted from the front, in order."""
    (x,) = node.inputs
    op = node.op
    assert isinstance(op, Reduce)
    axes = normalize_axes(op.axes, x.type.rank, op.fn)
    real = tuple(axis for axis in axes if not is_one(x.shape[axis]))
    if not real:
        return r.emit(Reshape(node.types[0].shape), x)
    kept = real if op.keepdims else axes
    return r.emit(Reduce(op.fn, kept, op.keepdims), x) if kept != op.axes else None


RULES: Rules = {
    Repeat: (repeat_transposed,),
    Reshape: (reshape, repeat_axis),
    Transpose: (transpose,),
    BroadcastTo: (broadcast,),
    RefineShape: (refine,),
    Slice: (slice_all, slice_of_concat),
    Pad: (pad,),
    Convolution: (padded_convolution,),
    Concat: (concat,),
    Gather: (gather_known,),
    GatherNd: (gather_in_order,),
    Reduce: (reduce_nothing,),
}
