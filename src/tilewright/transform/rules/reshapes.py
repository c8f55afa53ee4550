"""Rules that move reshapes towards results: elementwise operators work on the source, where they meet what computed it.

gelu(reshape(x) + c) -> reshape(gelu(x + c'))
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.node import Array, Node, Value
from tilewright.graph.ops import Binary, Cast, Gelu, HardSwish, Reshape, Select, Softplus, Unary, constant
from tilewright.graph.shapes import is_one, is_zero, matching_groups
from tilewright.ir.types import Shape, static_shape
from tilewright.transform.match import array_of, made_by
from tilewright.transform.rewriting import Answer, Rewriter, Rules


def through_elementwise(r: Rewriter, node: Node) -> Answer:
    """fn(reshape(x), reshape(y), c) -> reshape(fn(x, y, c')) for reshapes between the same shapes and constants c."""
    shape = node.types[0].shape
    source = next((v.node.inputs[0].shape for v in node.inputs if made_by(v, Reshape) and v.shape == shape), None)
    if source is None or any(map(is_zero, shape)):
        return None
    operands: list[Value] = []
    for value in node.inputs:
        before = _before(r, value, shape, source)
        if before is None:
            return None
        operands.append(before)
    result = r.g.emit(node.op, *operands)[0]
    return r.emit(Reshape(shape), r.normal(result.node)[0]) if result.shape == source else None


def _before(r: Rewriter, value: Value, shape: Shape, source: Shape) -> Value | None:
    """The operand as it combines with tensors of shape `source`."""
    if value.type.rank == 0:
        return value
    if made_by(value, Reshape) and value.shape == shape and value.node.inputs[0].shape == source:
        return value.node.inputs[0]
    array = array_of(value)
    moved = None if array is None else regrouped(array, shape, source)
    return None if moved is None else r.emit(constant(moved))


def regrouped(array: Array, shape: Shape, source: Shape) -> Array | None:
    """An array that broadcasts to `shape`, reshaped so that it broadcasts to `source`, a reshape of `shape`; None when it repeats along
    a part of the axes of one group only."""
    own = (1,) * (len(shape) - array.ndim) + array.shape
    result = [1] * len(source)
    for theirs, mine in matching_groups(source, shape):
        extents = [own[axis] for axis in mine]
        if all(n == 1 for n in extents):
            continue
        dims = static_shape(tuple(source[axis] for axis in theirs))
        if dims is None or any(n == 1 and not is_one(shape[axis]) for n, axis in zip(extents, mine)):
            return None
        for axis, dim in zip(theirs, dims):
            result[axis] = dim
    return np.ascontiguousarray(array).reshape(result) if int(np.prod(result)) == array.size else None


def leading_axes(r: Rewriter, node: Node) -> Answer:
    """Leading axes of size 1, which broadcasting puts there by itself, need no reshape."""
    inputs = list(node.inputs)
    for i, value in enumerate(inputs):
        if made_by(value, Reshape):
            x = value.node.inputs[0]
            extra = value.type.rank - x.type.rank
            if extra > 0 and value.shape[extra:] == x.shape and all(map(is_one, value.shape[:extra])):
                attempt = [*inputs[:i], x, *inputs[i + 1 :]]
                if node.op.infer(tuple(v.type for v in attempt)) == node.types:
                    inputs = attempt
    return r.emit(node.op, *inputs) if tuple(inputs) != node.inputs else None


ELEMENTWISE = (Unary, Binary, Select, Cast, Gelu, HardSwish, Softplus)
RULES: Rules = {
    **dict.fromkeys(ELEMENTWISE, (through_elementwise,)),
    Binary: (through_elementwise, leading_axes),
    Select: (through_elementwise, leading_axes),
}
