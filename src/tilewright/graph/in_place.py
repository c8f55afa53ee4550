"""Data movement that costs nothing when memory is planned: pieces that lie together in memory anyway.

In row-major order a concatenation whose outer axes have extent 1 is its operands one after the other, and a slice that cuts only the
outermost axis longer than 1 is a part of its operand.
"""

from __future__ import annotations

from tilewright.graph.node import Node
from tilewright.graph.ops import Concat, Slice
from tilewright.graph.shapes import dims_equal, is_one, is_zero


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
