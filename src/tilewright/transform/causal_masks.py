"""Causal masks: constants that hide the keys after each query, and what is computed from positions alone.

    softmax(x + c)                 ->  softmax(select(k <= q + d, x, -inf))     c: 0 up to the diagonal, very low after it
    softmax(select(c, x, low))     ->  softmax(select(k <= q + d, x, -inf))     c: true up to the diagonal

What decides is the constant's values. A low number that is finite counts as -inf where nothing but a product, scaled or capped, is masked:
scores would have to differ by as much as LOW says for it to matter (docs/numerics.md). Groups of attention then compute such masks where
they need them (`formula`), so that a schedule sees which keys no query of a tile reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.node import Array, Function, GraphBuilder, Node, Value, rewrite_function
from tilewright.graph.ops import (
    Binary,
    BroadcastTo,
    Cast,
    Constant,
    ConstantData,
    Contract,
    Iota,
    Reshape,
    Select,
    SizeValue,
    Softmax,
    Unary,
)
from tilewright.graph.ops.compose import binary, reshape, scalar, select
from tilewright.ir import dtypes
from tilewright.ir.expr import const

LOW = -1e6  # what is added to a score that shall not count, or replaces it
MOST = 16  # nodes of a formula


@dataclass(frozen=True, slots=True)
class Triangle:
    """Elements [..., q, k] are `seen` for k <= q + diagonal, else `hidden`; every row has one that is seen."""

    diagonal: int
    seen: float
    hidden: float


def triangle(array: Array) -> Triangle | None:
    """The array as a triangle, or None."""
    if array.ndim < 2 or array.size != array.shape[-2] * array.shape[-1] or min(array.shape[-2:]) < 2 or array.dtype.kind not in "bf":
        return None
    matrix = array.reshape(array.shape[-2:])
    seen, hidden = matrix[-1, 0], matrix[0, -1]
    if seen == hidden or seen != seen or hidden != hidden:
        return None
    diagonal = int((matrix[0] == seen).sum()) - 1
    keep = np.arange(matrix.shape[1]) <= np.arange(matrix.shape[0])[:, None] + diagonal
    same = diagonal >= 0 and bool((np.where(keep, seen, hidden) == matrix).all())
    return Triangle(diagonal, float(seen), float(hidden)) if same else None


def causal_masks(function: Function) -> Function:
    """The function with the causal masks of its softmaxes as -inf under a condition."""
    return rewrite_function(function, _visit)


def _visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    if not isinstance(node.op, Softmax) or node.op.axis % node.types[0].rank != node.types[0].rank - 1:
        return None
    masked = _masked(g, inputs[0])
    return None if masked is None else g.emit(node.op, masked)


def _masked(g: GraphBuilder, x: Value) -> Value | None:
    if isinstance(x.op, Binary) and x.op.fn == "add":
        for scores, mask in (x.node.inputs, x.node.inputs[::-1]):
            found = _triangle_of(mask)
            if found is not None and mask.type.rank <= scores.type.rank and _hides(found.hidden, scores) and np.isfinite(found.seen):
                kept = scores if found.seen == 0 else binary(g, "add", scores, found.seen)
                return _selected(g, mask, found.diagonal, kept) if scores.shape == x.shape else None
    if isinstance(x.op, Select):
        condition, a, b = x.node.inputs
        found = _triangle_of(condition)
        scores, low = (a, b) if found is not None and found.seen else (b, a)
        number = _number(low)
        if found is not None and number is not None and number != -float("inf") and _hides(number, scores) and scores.shape == x.shape:
            return _selected(g, condition, found.diagonal, scores)
    return None


def _selected(g: GraphBuilder, mask: Value, diagonal: int, scores: Value) -> Value:
    rows, keys = (int(dim.value) for dim in mask.shape[-2:])
    keep = np.arange(keys) <= np.arange(rows)[:, None] + diagonal
    condition = g.one(Constant(ConstantData(np.ascontiguousarray(keep))))
    return select(g, condition, scores, scalar(g, -float("inf"), scores.type.dtype))


def _triangle_of(value: Value) -> Triangle | None:
    return triangle(value.op.data.array) if isinstance(value.op, Constant) else None


def _number(value: Value) -> float | None:
    return float(value.op.data.array.reshape(-1)[0]) if isinstance(value.op, Constant) and value.op.data.array.size == 1 else None


def _hides(number: float, scores: Value) -> bool:
    return number == -float("inf") or (number <= LOW and _is_product(scores))


def _is_product(x: Value) -> bool:
    """A product of matrices, scaled by numbers or capped: no other mask is in it."""
    while not isinstance(x.op, Contract):
        capped = isinstance(x.op, Unary) and x.op.fn == "tanh"
        scaled = isinstance(x.op, Binary) and x.op.fn in ("mul", "div") and _number(x.node.inputs[1]) is not None
        if not (capped or scaled):
            return False
        x = x.node.inputs[0]
    return True


def formula(g: GraphBuilder, value: Value) -> Value | None:
    """The value computed on `g` from positions alone, if it is such a computation, or a constant triangle; else None."""
    found = _triangle_of(value)
    if found is None:
        return _copied(g, value) if _is_formula(value) else None
    rows, keys = value.shape[-2:]
    place = binary(g, "add", reshape(g, g.one(Iota(rows, dtypes.int64)), (rows, const(1))), found.diagonal)
    condition = binary(g, "less_equal", g.one(Iota(keys, dtypes.int64)), place)
    if value.type.dtype is not dtypes.bool_:
        condition = select(g, condition, *(scalar(g, number, value.type.dtype) for number in (found.seen, found.hidden)))
    elif not found.seen:
        condition = g.one(Unary("not"), condition)
    return reshape(g, condition, value.shape)


def _is_formula(value: Value) -> bool:
    nodes, stack, positions = set(), [value.node], False
    while stack:
        node = stack.pop()
        if node in nodes:
            continue
        nodes.add(node)
        counts = isinstance(node.op, Iota) or _first(node) is not None
        positions = positions or counts
        leaf = counts or isinstance(node.op, SizeValue) or (isinstance(node.op, Constant) and node.op.data.array.size == 1)
        if len(nodes) > MOST or not (leaf or isinstance(node.op, (Binary, BroadcastTo, Cast, Reshape, Select, Unary))):
            return False
        stack.extend(x.node for x in node.inputs)
    return positions


def _first(node: Node) -> int | None:
    """The first of the integers that a constant counts up along one axis; None for another node."""
    array = node.op.data.array if isinstance(node.op, Constant) else None
    if array is None or array.dtype != np.int64 or array.size < 2 or max(array.shape) != array.size:
        return None
    return int(array.flat[0]) if bool((np.diff(array.reshape(-1)) == 1).all()) else None


def _copied(g: GraphBuilder, value: Value) -> Value:
    first = _first(value.node)
    if first is not None:
        axis = max(range(value.type.rank), key=lambda axis: value.shape[axis].value)
        return reshape(g, binary(g, "add", g.one(Iota(value.shape[axis], dtypes.int64)), first), value.shape)
    return g.one(value.op, *(_copied(g, x) for x in value.node.inputs))
