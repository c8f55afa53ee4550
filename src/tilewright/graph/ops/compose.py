"""Short forms for writing operators in terms of others."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops.elementwise import Binary, Cast, Select, Unary
from tilewright.graph.ops.movement import Reshape
from tilewright.graph.ops.reduction import Reduce
from tilewright.graph.ops.scalars import arithmetic_dtype
from tilewright.graph.ops.source import SizeValue, constant
from tilewright.graph.shapes import element_count
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr


def scalar(g: GraphBuilder, value: float | int | bool, dtype: DType) -> Value:
    """A constant of shape ()."""
    return g.one(constant(value, dtype))


def unary(g: GraphBuilder, fn: str, x: Value) -> Value:
    return g.one(Unary(fn), x)


def binary(g: GraphBuilder, fn: str, a: Value, b: Value | float) -> Value:
    """fn(a, b); a number becomes a scalar of a's dtype."""
    return g.one(Binary(fn), a, b if isinstance(b, Value) else scalar(g, b, a.type.dtype))


def select(g: GraphBuilder, condition: Value, a: Value, b: Value) -> Value:
    return g.one(Select(), condition, a, b)


def cast(g: GraphBuilder, x: Value, dtype: DType) -> Value:
    """x in another dtype; x itself when it has it."""
    return x if x.type.dtype is dtype else g.one(Cast(dtype), x)


def widen(g: GraphBuilder, x: Value) -> Value:
    """x in the dtype in which its arithmetic is done: float32 for narrower floats."""
    return cast(g, x, arithmetic_dtype(x.type.dtype))


def reshape(g: GraphBuilder, x: Value, shape: Sequence[Expr]) -> Value:
    return x if tuple(shape) == x.shape else g.one(Reshape(tuple(shape)), x)


def reduce(g: GraphBuilder, fn: str, x: Value, axes: Sequence[int]) -> Value:
    """The reduction with the reduced axes kept as 1."""
    return g.one(Reduce(fn, tuple(axes), True), x)


def mean(g: GraphBuilder, x: Value, axes: Sequence[int]) -> Value:
    """The mean of floats over axes, which are kept as 1."""
    count = element_count([x.shape[axis] for axis in axes])
    dtype = x.type.dtype
    divisor = scalar(g, int(count.value), dtype) if count.is_const else cast(g, g.one(SizeValue(count)), dtype)
    return binary(g, "div", reduce(g, "sum", x, axes), divisor)
