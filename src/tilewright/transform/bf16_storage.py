"""Images between kernels in bfloat16 (`precision="bf16"`): half the memory traffic, and one rounding for all who read them.

After `bf16_products` an image that a product multiplies in bfloat16 may have other users, the sum past a block, say, which then need it in
float32 as well; and what depthwise convolutions and pooling read is twice as large as what products read. Here such an image is rounded
once, where it is made, and everybody reads that; arithmetic stays in float32. This is what autocasting in other frameworks does to whole
convolutional networks.

    y = relu(..); convolution(bf16(y), w), z + y  ->  s = bf16(relu(..)); convolution(s, w), z + float32(s)

Only images with blocked channels, and only those which every user reads elementwise, in windows, or in a convolution. Residual sums of
transformers are small beside the weights of the products, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function, users_of
from tilewright.graph.ops import Binary, BlockedConvolution, Cast, Concat, Select, Unary, WindowReduce
from tilewright.ir import dtypes
from tilewright.ir.typical import typical_dim
from tilewright.transform.narrow_storage import second_products

ELEMENTWISE = (Binary, Unary, Select)


def bf16_storage(function: Function, near: int) -> Function:
    """The function with images between its kernels in bfloat16 where each use of them allows that. `near`: bytes of float32 that stay in a
    cache from one kernel to the next: depthwise convolutions read each number many times, and would widen it as often."""
    users = users_of(function.results)
    if not any(_multiplies_bf16(node) for node in users):
        return function
    kept = _kept(function, users, near)
    stored: dict[Value, Value] = {}  # what is in memory of a value that was widened

    def widened(g: GraphBuilder, narrow: Value) -> Value:
        value = g.one(Cast(dtypes.float32), narrow)
        stored[value] = narrow
        return value

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        op, narrow = node.op, [stored.get(value, value) for value in inputs]
        changed = tuple(narrow) != inputs
        if changed and isinstance(op, Cast) and op.dtype is dtypes.bfloat16:
            return narrow
        if changed and isinstance(op, Concat):
            return (widened(g, g.one(op, *narrow)),)
        if changed and isinstance(op, BlockedConvolution):
            return g.emit(op, *narrow)
        if not changed and kept.isdisjoint(node.values):
            return None
        # a conversion for each user, so that each kernel has its own
        values = g.emit(op, *(widened(g, stored[value]) if value in stored else value for value in inputs))
        rounding = Cast(dtypes.bfloat16, may_flush=True)
        return [widened(g, g.one(rounding, new)) if value in kept else new for value, new in zip(node.values, values, strict=True)]

    return rewrite_function(function, visit) if kept else function


def _multiplies_bf16(node: Node) -> bool:
    return isinstance(node.op, BlockedConvolution) and all(value.type.dtype is dtypes.bfloat16 for value in node.inputs)


def _kept(function: Function, users: Mapping[Node, list[Node]], near: int) -> set[Value]:
    """The values that are stored in bfloat16."""
    found = {
        value
        for value in _images(users).difference(function.results)
        if value.type.dtype is dtypes.float32 and all(_allows(value, user, near) for user in users[value.node])
    }
    joins = [{*node.inputs, *node.values} for node in users if isinstance(node.op, Concat)]
    while True:  # a concatenation has one dtype, so what it joins is stored alike
        mixed = {value for values in joins if not values <= found for value in values} & found
        if not mixed:
            break
        found -= mixed
    handed_on = second_products(users)
    return {
        value
        for value in found
        if not isinstance(value.op, Concat) and (value in handed_on or any(_reads_memory(value, user, near) for user in users[value.node]))
    }


def _images(nodes: Iterable[Node]) -> set[Value]:
    """Results of blocked convolutions, and what is made of them elementwise, in windows and by joining. nodes: dependencies first."""
    found: set[Value] = set()
    for node in nodes:
        carries = isinstance(node.op, (*ELEMENTWISE, WindowReduce, Concat)) and not found.isdisjoint(node.inputs)
        if carries or isinstance(node.op, BlockedConvolution):
            found.update(node.values)
    return found


def _allows(value: Value, user: Node, near: int) -> bool:
    """The user can take the value in bfloat16."""
    return value not in user.binders and (isinstance(user.op, ELEMENTWISE) or _reads_memory(value, user, near))


def _reads_memory(value: Value, user: Node, near: int) -> bool:
    """The user is in another kernel than what makes the value, and is as fast or faster on bfloat16."""
    op = user.op
    match op:
        case Cast():
            return op.dtype is dtypes.bfloat16
        case BlockedConvolution():
            far = prod(max(typical_dim(dim), 1) for dim in value.shape) * value.type.dtype.bytes > near
            return op.depthwise and far and user.inputs[0] is value and user.inputs[1] is not value
        case WindowReduce() | Concat():
            return True
        case _:
            return False
