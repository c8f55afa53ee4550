"""Rules for slices that an index known only while running picks: what can be done before, to the constant that they are picked of, is.

A slice along the outermost axis is a piece of memory that nobody has to move (`graph/in_place.py`).
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.in_place import picking
from tilewright.graph.node import Node
from tilewright.graph.ops import Cast, Constant, ConstantData, Gather, GatherNd, Reshape
from tilewright.graph.shapes import is_one
from tilewright.ir.types import static_shape
from tilewright.transform.match import array_of
from tilewright.transform.rewriting import Answer, Rewriter, Rules

LARGE = 1 << 28  # bytes: constants do not grow past this


def one_coordinate(r: Rewriter, node: Node) -> Answer:
    """A gather at positions of one coordinate is one along the first axis."""
    x, indices = node.inputs
    op = node.op
    assert isinstance(op, GatherNd)
    if op.batch_dims or not is_one(indices.shape[-1]) or x.type.rank == 0:
        return None
    return r.emit(Gather(0), x, r.emit(Reshape(indices.shape[:-1]), indices))


def inner_axis(r: Rewriter, node: Node) -> Answer:
    """One slice along an inner axis of a constant is one along the first axis of the constant with that axis before the others."""
    x, index = node.inputs
    op, array = node.op, array_of(x)
    assert isinstance(op, Gather)
    if array is None or r.is_shared(x) or isinstance(index.op, Constant) or not all(map(is_one, index.shape)):
        return None
    axis = op.axis % array.ndim
    if array.size == 0 or max(array.shape[:axis], default=1) == 1:
        return None
    turned = r.emit(Constant(ConstantData(np.ascontiguousarray(np.moveaxis(array, axis, 0)))))
    return r.emit(Reshape(node.types[0].shape), r.emit(Gather(0), turned, index))


def converted(r: Rewriter, node: Node) -> Answer:
    """A matrix that is picked of a constant, and converted to another kind of float, is one of the converted constant. Rows are left alone:
    of a table of them most are never read."""
    (x,) = node.inputs
    op, picked = node.op, picking(x)
    assert isinstance(op, Cast)
    if picked is None or not isinstance(picked.op, Gather) or not (op.dtype.is_float and x.type.dtype.is_float):
        return None
    array, shape = array_of(picked.inputs[0]), static_shape(x.shape)
    if (
        array is None
        or r.is_shared(picked.inputs[0])
        or shape is None
        or sum(n > 1 for n in shape) < 2
        or array.size * op.dtype.bytes > max(LARGE, array.nbytes)
    ):
        return None
    (floats,) = op.reference((array.reshape(-1, *shape),))
    whole = r.emit(Constant(ConstantData(floats)))
    return r.emit(Gather(0), whole, r.emit(Reshape(()), picked.inputs[1]))


RULES: Rules = {
    GatherNd: (one_coordinate,),
    Gather: (inner_axis,),
    Cast: (converted,),
}
