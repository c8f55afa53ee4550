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

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function, walk_nodes
from tilewright.graph.ops import Binary, BlockedConvolution, Cast, Concat, Select, Unary, WindowReduce
from tilewright.ir import dtypes
from tilewright.ir.typical import typical_dim


def bf16_storage(function: Function, near: int) -> Function:
    """The function with images between its kernels in bfloat16 where each use of them allows that. `near`: bytes of float32 that stay in a
    cache from one kernel to the next: depthwise convolutions read each number many times, and would widen it as often."""
    users = _users(function)
    if not any(_multiplies_bf16(node) for node in users):
        return function
    kept = _kept(function, users, near)

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        stored = [_stored(value) for value in inputs]
        op = node.op
        if isinstance(op, Cast) and op.dtype is dtypes.bfloat16 and stored[0] is not None:
            return (stored[0],)
        whole = [value for value in stored if value is not None]
        if isinstance(op, Concat) and whole and len(whole) == len(stored):
            return (_widened(g, g.one(op, *whole)),)
        if isinstance(op, BlockedConvolution) and stored[0] is not None:
            return g.emit(op, stored[0], *inputs[1:])
        # a conversion for each user, so that each kernel has its own
        operands = [value if narrow is None else _widened(g, narrow) for value, narrow in zip(inputs, stored, strict=True)]
        values = g.emit(op, *operands) if operands != list(inputs) or any(v in kept for v in node.values) else None
        if values is None or not any(v in kept for v in node.values):
            return values
        return [_rounded(g, new) if value in kept else new for value, new in zip(node.values, values, strict=True)]

    return rewrite_function(function, visit) if kept else function


def _users(function: Function) -> dict[Node, list[Node]]:
    """Every node, with those that read its values, once each."""
    users: dict[Node, list[Node]] = {}
    for node in walk_nodes(function.results):
        users.setdefault(node, [])
        for producer in dict.fromkeys(value.node for value in node.dependencies):
            users[producer].append(node)
    return users


def _multiplies_bf16(node: Node) -> bool:
    return isinstance(node.op, BlockedConvolution) and all(value.type.dtype is dtypes.bfloat16 for value in node.inputs)


def _kept(function: Function, users: Mapping[Node, Sequence[Node]], near: int) -> set[Value]:
    """The values that are stored in bfloat16."""
    results = set(function.results)
    found = {
        value
        for node, readers in users.items()
        for value in node.values
        if value not in results and _is_image(value) and _is_computed(node) and readers and _allowed(value, readers, near)
    }
    while True:  # a concatenation has one dtype, so what it joins is stored alike
        joined = {v for node in users if isinstance(node.op, Concat) for v in (*node.inputs, *node.values) if not _joins(node, found)}
        if not joined & found:
            break
        found -= joined
    return {
        value for value in found if not isinstance(value.op, Concat) and any(_reads_memory(value, user, near) for user in users[value.node])
    }


def _joins(node: Node, found: set[Value]) -> bool:
    return all(value in found for value in (*node.inputs, *node.values))


def _is_image(value: Value) -> bool:
    return value.type.dtype is dtypes.float32 and value.type.rank >= 4


def _is_computed(node: Node) -> bool:
    """By a kernel that ends in what is stored, or, for a concatenation, by several."""
    return isinstance(node.op, (Binary, Unary, Select, BlockedConvolution, WindowReduce, Concat))


def _allowed(value: Value, readers: Sequence[Node], near: int) -> bool:
    elementwise = (Binary, Unary, Select)
    return all((isinstance(user.op, elementwise) or _reads_memory(value, user, near)) and value not in user.binders for user in readers)


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


def _stored(value: Value) -> Value | None:
    """What is stored of a value that this pass widened."""
    source = value.node.inputs[0] if isinstance(value.op, Cast) and value.type.dtype is dtypes.float32 else None
    return source if source is not None and source.type.dtype is dtypes.bfloat16 and source.type.rank >= 4 else None


def _rounded(g: GraphBuilder, value: Value) -> Value:
    """What is left of a value when it is stored."""
    return _widened(g, g.one(Cast(dtypes.bfloat16, may_flush=True), value))


def _widened(g: GraphBuilder, value: Value) -> Value:
    return g.one(Cast(dtypes.float32), value)
