"""Numbers that one product hands to the epilogue of another are stored as bytes, where bytes hold them.

A kernel has one product. Where two of them meet, in a residual sum of which both sides are convolutions, the results of one are stored
between two kernels. Simplification took the bytes out of what is quantized and dequantized at once (`cast_chain`), which is right within a
kernel; here they come back, exactly:

    float32(x) * scale + other product, -120 <= x <= 135  ->  float32(int32(uint8(x + 120)) - 120) * scale + other product
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function, users_of
from tilewright.graph.ops import Binary, Cast, Unary
from tilewright.graph.ops.compose import scalar
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.transform.fuse import PRODUCTS, ends_a_product
from tilewright.transform.intervals import Interval, interval_of
from tilewright.transform.match import array_of

STEPS = 8  # operators between the sum and the number that bytes hold


class Bytes(NamedTuple):
    """How an integer is held: less an offset, in a dtype."""

    dtype: DType
    offset: int


def narrow_storage(function: Function) -> Function:
    """The function with bytes between two products where that is exact."""
    users = users_of(function.results)
    kept: dict[Value, Bytes] = {}
    for value in second_products(users):
        found = _whole_byte(value)
        if found is not None:
            kept[found[0]] = found[1]

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if kept.keys().isdisjoint(node.values):
            return None
        values = zip(node.values, g.emit(node.op, *inputs), strict=True)
        return [_stored(g, value, kept[old]) if old in kept else value for old, value in values]

    return rewrite_function(function, visit) if kept else function


def second_products(users: Mapping[Node, list[Node]]) -> set[Value]:
    """Of the operands that meet in one operator, those that end a product, as another that comes later does, in whose kernel the operator
    will be. users: dependencies first."""
    place = {node: i for i, node in enumerate(users)}
    found: set[Value] = set()
    for node in users:
        ends = {value for value in node.inputs if isinstance(node.op, Binary) and _ends(value, node, users)}
        if len(ends) > 1:
            found |= ends - {max(ends, key=lambda value: place[value.node])}
    return found


def _ends(value: Value, user: Node, users: Mapping[Node, list[Node]]) -> bool:
    alone = users[value.node] == [user] and value.shape == user.types[0].shape
    return alone and (isinstance(value.op, PRODUCTS) or ends_a_product(value.node, users))


def _whole_byte(value: Value) -> tuple[Value, Bytes] | None:
    """The integers that a value is made of, where bytes hold them."""
    for _ in range(STEPS):
        if value.type.dtype is dtypes.int32:
            held = _held(interval_of(value))
            if held is not None:
                return value, held
        changing = [x for x in value.node.inputs if array_of(x) is None]
        if not isinstance(value.op, (Binary, Unary, Cast)) or len(changing) != 1:
            return None
        (value,) = changing
    return None


def _held(x: Interval | None) -> Bytes | None:
    if x is None or x.high - x.low > dtypes.uint8.highest:
        return None
    for dtype in (dtypes.uint8, dtypes.int8):
        if dtype.lowest <= x.low and x.high <= dtype.highest:
            return Bytes(dtype, 0)
    return Bytes(dtypes.uint8, int(x.low))


def _stored(g: GraphBuilder, value: Value, held: Bytes) -> Value:
    """The value by way of bytes."""
    if not held.offset:
        return g.one(Cast(dtypes.int32), g.one(Cast(held.dtype), value))
    offset = scalar(g, held.offset, dtypes.int32)
    narrow = g.one(Cast(held.dtype), g.one(Binary("sub"), value, offset))
    return g.one(Binary("add"), g.one(Cast(dtypes.int32), narrow), offset)
