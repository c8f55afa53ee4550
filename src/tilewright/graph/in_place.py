"""Data movement that costs nothing when memory is planned: pieces that lie together in memory anyway.

In row-major order a concatenation whose outer axes have extent 1 is its operands one after the other, and a slice that cuts only the
outermost axis longer than 1 is a part of its operand; so is the one slice along that axis that an index known only while running picks.
"""

from __future__ import annotations

import math

from tilewright.graph.node import Node, Value
from tilewright.graph.ops import Concat, Constant, Gather, RefineShape, Reshape, Slice
from tilewright.graph.shapes import dims_equal, is_one, is_zero
from tilewright.ir.bounds import bounds
from tilewright.ir.types import static_shape


def is_joined_in_place(node: Node) -> bool:
    """A concatenation whose operands are consecutive parts of the result."""
    return isinstance(node.op, Concat) and all(is_one(dim) for dim in node.types[0].shape[: node.op.axis])


def cut_axis(node: Node) -> int | None:
    """The axis that a slice cuts when its result is one piece of its operand; None for other nodes."""
    if not isinstance(node.op, Slice):
        return None
    shape = node.inputs[0].shape
    axis = next((i for i, dim in enumerate(shape) if not is_one(dim)), None)
    if axis is None or node.op.steps[axis] != 1:
        return None
    whole = all(
        is_zero(start) and step == 1 and dims_equal(size, dim)
        for i, (start, size, step, dim) in enumerate(zip(node.op.starts, node.op.sizes, node.op.steps, shape, strict=True))
        if i != axis
    )
    return axis if whole else None


def is_in_place(node: Node) -> bool:
    return is_joined_in_place(node) or cut_axis(node) is not None


def picked_axis(node: Node) -> int | None:
    """The axis along which a Gather picks one slice that is one piece of its operand. None for other nodes, and where the axis may be
    empty."""
    if not isinstance(node.op, Gather):
        return None
    x, indices = node.inputs
    axis = node.op.axis % x.type.rank
    least = bounds(x.shape[axis], {}).lo
    one = all(map(is_one, (*indices.shape, *x.shape[:axis])))
    return axis if one and least is not None and least >= 1 else None


def stacked(value: Value) -> Value | None:
    """The constant of which a value, perhaps reshaped, is one slice along the outermost axis longer than 1, picked while running; None for
    other values. Its elements are in the order of [slices, *value.shape]."""
    node = picking(value)
    return None if node is None else node.inputs[0]


def picking(value: Value) -> Node | None:
    """The Gather or Slice that picks a value, perhaps reshaped, of a constant as `stacked` says. How many slices a Slice takes may be known
    only while running: the RefineShape after it says, and checks, that it is one."""
    shape = static_shape(value.shape)
    while isinstance(value.op, (Reshape, RefineShape)):
        value = value.node.inputs[0]
    node = value.node
    if shape is None or not is_piece_of_constant(node):
        return None
    source = node.inputs[0]
    axis = picked_axis(node) if isinstance(node.op, Gather) else cut_axis(node)
    assert axis is not None
    one = static_shape(source.shape[axis + 1 :])
    return node if one is not None and math.prod(one) == math.prod(shape) > 0 else None


def is_piece_of_constant(node: Node) -> bool:
    """A Gather or Slice whose result is a piece of a constant."""
    return bool(node.inputs) and isinstance(node.inputs[0].op, Constant) and (picked_axis(node) is not None or cut_axis(node) is not None)


def constant_operands(node: Node) -> frozenset[int]:
    """The numbers of the operands that are constants of the model, or slices of them that are picked while running: known, up to which one,
    when the model is compiled."""
    return frozenset(i for i, value in enumerate(node.inputs) if isinstance(value.op, Constant) or stacked(value) is not None)
