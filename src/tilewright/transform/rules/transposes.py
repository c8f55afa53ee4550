"""Rules that move transposes towards results: elementwise operators, reductions and movement work on the source instead.

On the way transposes meet their inverses and vanish, or end in contractions, which take operands in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.node import Node, Value
from tilewright.graph.ops import (
    Binary,
    Cast,
    Concat,
    Gelu,
    HardSwish,
    LogSoftmax,
    Pad,
    Reduce,
    Reshape,
    Select,
    Slice,
    Softmax,
    Softplus,
    Transpose,
    Unary,
    constant,
)
from tilewright.graph.shapes import is_one
from tilewright.ir.expr import const
from tilewright.transform.match import array_of, made_by
from tilewright.transform.rewriting import Answer, Rewriter, Rules

Perm = tuple[int, ...]


def inverse(perm: Sequence[int]) -> Perm:
    return tuple(perm.index(axis) for axis in range(len(perm)))


def _source(value: Value) -> tuple[Perm, Value] | None:
    op = made_by(value, Transpose)
    return (op.perm, value.node.inputs[0]) if op is not None else None


def through_elementwise(r: Rewriter, node: Node) -> Answer:
    """fn(transpose(x), transpose(y), c) -> transpose(fn(x, y, c')), where c is a constant or has its axes in order either way."""
    found = next((s for s in map(_source, node.inputs) if s is not None), None)
    if found is None or len(found[0]) != node.types[0].rank:
        return None
    perm = found[0]
    sources = [_before(r, value, perm) for value in node.inputs]
    given = [value for value in sources if value is not None]
    return r.emit(Transpose(perm), r.emit(node.op, *given)) if len(given) == len(sources) else None


def _before(r: Rewriter, value: Value, perm: Perm) -> Value | None:
    """The value with its axes as they are before the transpose `perm`, when that costs nothing."""
    own = _source(value)
    if own is not None and own[0] == perm:
        return own[1]
    if value.type.rank == 0:
        return value
    shape = (*[const(1)] * (len(perm) - value.type.rank), *value.shape)
    back = inverse(perm)
    array = array_of(value)
    if array is not None:
        full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
        return r.emit(constant(np.ascontiguousarray(full.transpose(back))))
    order = [axis for axis in back if not is_one(shape[axis])]
    return r.emit(Reshape(tuple(shape[axis] for axis in back)), value) if order == sorted(order) else None


def through_softmax(r: Rewriter, node: Node) -> Answer:
    """softmax(transpose(x)) along the axis where the transpose has it from."""
    found, op = _source(node.inputs[0]), node.op
    if found is None:
        return None
    assert isinstance(op, (Softmax, LogSoftmax))
    perm, x = found
    return r.emit(Transpose(perm), r.emit(type(op)(perm[op.axis % len(perm)]), x))


def through_reduce(r: Rewriter, node: Node) -> Answer:
    found, op = _source(node.inputs[0]), node.op
    if found is None:
        return None
    assert isinstance(op, Reduce)
    perm, x = found
    axes = {axis % len(perm) for axis in op.axes}
    reduced = r.emit(Reduce(op.fn, tuple(sorted(perm[axis] for axis in axes)), op.keepdims), x)
    if op.keepdims:
        return r.emit(Transpose(perm), reduced)
    kept = [perm[axis] for axis in range(len(perm)) if axis not in axes]
    return r.emit(Transpose(tuple(sorted(kept).index(axis) for axis in kept)), reduced)


def through_concat(r: Rewriter, node: Node) -> Answer:
    """concat(transpose(x), transpose(y)) -> transpose(concat(x, y))."""
    op = node.op
    assert isinstance(op, Concat)
    found = [_source(value) for value in node.inputs]
    first = found[0]
    if first is None:
        return None
    perm = first[0]
    sources = [s[1] for s in found if s is not None and s[0] == perm]
    return r.emit(Transpose(perm), r.emit(Concat(perm[op.axis % len(perm)]), *sources)) if len(sources) == len(found) else None


def through_slice(r: Rewriter, node: Node) -> Answer:
    found, op = _source(node.inputs[0]), node.op
    if found is None:
        return None
    assert isinstance(op, Slice)
    perm, x = found
    back = inverse(perm)
    taken = Slice(tuple(op.starts[i] for i in back), tuple(op.sizes[i] for i in back), tuple(op.steps[i] for i in back))
    return r.emit(Transpose(perm), r.emit(taken, x))


def through_pad(r: Rewriter, node: Node) -> Answer:
    found, op = _source(node.inputs[0]), node.op
    if found is None:
        return None
    assert isinstance(op, Pad)
    perm, x = found
    back = inverse(perm)
    padding = Pad(tuple(op.low[i] for i in back), tuple(op.high[i] for i in back), op.mode)
    return r.emit(Transpose(perm), r.emit(padding, x, node.inputs[1]))


ELEMENTWISE = (Unary, Binary, Select, Cast, Gelu, HardSwish, Softplus)
RULES: Rules = {
    **dict.fromkeys(ELEMENTWISE, (through_elementwise,)),
    Softmax: (through_softmax,),
    LogSoftmax: (through_softmax,),
    Reduce: (through_reduce,),
    Concat: (through_concat,),
    Slice: (through_slice,),
    Pad: (through_pad,),
}
