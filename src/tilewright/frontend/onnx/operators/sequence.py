"""Importers of sequences and optionals. A sequence whose length is known while importing is a list of values; nothing of it is left in
the graph."""

from __future__ import annotations

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.movement import join
from tilewright.graph.node import Value
from tilewright.ir.expr import const
from tilewright.support.errors import ModelError, UnsupportedOperatorError

# Operators that take sequences; for all others a sequence is an error.
ACCEPTING = frozenset({
    "ConcatFromSequence", "Identity", "Optional", "OptionalGetElement", "OptionalHasElement",
    "SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength",
})  # fmt: skip


def construct(ctx: NodeContext) -> Value:
    return ctx.sequence([ctx.input(index) for index in range(len(ctx.inputs))])


def empty(ctx: NodeContext) -> Value:
    return ctx.sequence([])


def _position(ctx: NodeContext, index: int, length: int, beyond: bool = False) -> int:
    """A position in a sequence, counted from the front; with `beyond` one past the end as well."""
    position = int(ctx.require_constant(index, "position").reshape(-1)[0])
    position += length if position < 0 else 0
    if not 0 <= position < length + beyond:
        raise ModelError(f"{ctx.op_type}: position {position} in a sequence of {length}", where=ctx.where)
    return position


def at(ctx: NodeContext) -> Value:
    items = ctx.items(0)
    return items[_position(ctx, 1, len(items))]


def insert(ctx: NodeContext) -> Value:
    items = ctx.items(0)
    where = _position(ctx, 2, len(items), beyond=True) if ctx.has(2) else len(items)
    return ctx.sequence([*items[:where], ctx.input(1), *items[where:]])


def erase(ctx: NodeContext) -> Value:
    items = ctx.items(0)
    where = _position(ctx, 1, len(items)) if ctx.has(1) else len(items) - 1
    return ctx.sequence([*items[:where], *items[where + 1 :]])


def length(ctx: NodeContext) -> Value:
    return ctx.size_scalar(const(len(ctx.items(0))))


def split(ctx: NodeContext) -> Value:
    """In parts of one size (the last may be smaller), of given sizes, or of one element each."""
    x = ctx.input(0)
    axis = ctx.axis(ctx.attribute("axis", 0), x.type.rank)
    given = ctx.optional(1)
    if given is not None and given.type.rank == 1:
        sizes = list(ctx.as_sizes(given))
    else:
        if not x.shape[axis].is_const:
            raise UnsupportedOperatorError("SplitToSequence of an axis of open size is not supported", where=ctx.where)
        count = int(x.shape[axis].value)
        each = 1 if given is None else int(ctx.require_constant(1, "size of the parts").reshape(-1)[0])
        sizes = [const(min(each, count - start)) for start in range(0, count, each)]
    parts, start = [], const(0)
    for size in sizes:
        parts.append(ctx.slice_axis(x, axis, start, size))
        start = start + size
    if given is None and not ctx.attribute("keepdims", 1):
        parts = [ctx.reshape(part, [dim for i, dim in enumerate(part.shape) if i != axis]) for part in parts]
    return ctx.sequence(parts)


def concat(ctx: NodeContext) -> Value:
    items = list(ctx.items(0))
    if not items:
        raise ModelError("ConcatFromSequence of an empty sequence", where=ctx.where)
    rank = items[0].type.rank
    if not ctx.attribute("new_axis", 0):
        return join(ctx, items, ctx.axis(ctx.require("axis"), rank))
    axis = ctx.axis(ctx.require("axis"), rank + 1)
    return join(ctx, [ctx.reshape(item, (*item.shape[:axis], 1, *item.shape[axis:])) for item in items], axis)


def optional(ctx: NodeContext) -> Value:
    if not ctx.has(0):
        raise UnsupportedOperatorError("Optional without a value is not supported", where=ctx.where)
    return ctx.input(0)


def has_element(ctx: NodeContext) -> Value:
    return ctx.constant(ctx.has(0))


def get_element(ctx: NodeContext) -> Value:
    return ctx.input(0)


IMPORTERS: Table = {
    ("", "SequenceConstruct"): construct,
    ("", "SequenceEmpty"): empty,
    ("", "SequenceAt"): at,
    ("", "SequenceInsert"): insert,
    ("", "SequenceErase"): erase,
    ("", "SequenceLength"): length,
    ("", "SplitToSequence"): split,
    ("", "ConcatFromSequence"): concat,
    ("", "Optional"): optional,
    ("", "OptionalHasElement"): has_element,
    ("", "OptionalGetElement"): get_element,
}
