"""Rules of elementwise operators: neutral and absorbing elements, inverses, powers, clamps, conversions.

Every rule gives the same elements for every input, but for the sign of a zero (x + 0 is x), one unit in the last place (powers as
products), and -inf ** 0.5, whose root is NaN. Floats are never reassociated here, except by factors that are powers of two, whose
products are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.node import Array, Node, Operator, Value
from tilewright.graph.ops import Binary, BroadcastTo, Cast, Constant, Reduce, Reshape, Select, Unary, constant
from tilewright.graph.ops.scalars import BINARY, UNARY, array_function
from tilewright.ir.dtypes import DType
from tilewright.transform.intervals import interval_of
from tilewright.transform.match import array_of, binary_of, fn_of, made_by, number, unary_of, uniform
from tilewright.transform.rewriting import Answer, Rewriter, Rules

COMMUTATIVE = frozenset({"add", "mul", "min", "max", "and", "or", "xor", "bitwise_and", "bitwise_or", "bitwise_xor", "equal", "not_equal"})
MIRRORED = {"less": "greater", "greater": "less", "less_equal": "greater_equal", "greater_equal": "less_equal"}
INVOLUTIONS = frozenset({"neg", "not", "bitwise_not"})
IDEMPOTENT = frozenset({"abs", "floor", "ceil", "round", "trunc", "sign"})
ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})
MAX_MERGED = 1 << 20  # elements of a constant that merging two others may make


def scalar(r: Rewriter, value: Any, dtype: DType) -> Value:
    return r.emit(constant(value, dtype))


def filled(r: Rewriter, value: Any, node: Node) -> Value:
    """A constant repeated to the node's result."""
    type_ = node.types[0]
    return r.shaped(scalar(r, value, type_.dtype), type_.shape)


# -- operands


def constant_last(r: Rewriter, node: Node) -> Answer:
    """c + x -> x + c; c < x -> x > c."""
    a, b = node.inputs
    fn = fn_of(node)
    other = fn if fn in COMMUTATIVE else MIRRORED.get(fn)
    return r.emit(Binary(other), b, a) if other and made_by(a, Constant) and not made_by(b, Constant) else None


def small_operands(r: Rewriter, node: Node) -> Answer:
    """Operands without the repetition that broadcasting gives them anyway: broadcasts are dropped, repeated numbers become scalars. When
    nothing of the full shape is left, the small result is what is broadcast."""
    smaller = tuple(_smallest(r, value) for value in node.inputs)
    return r.shaped(r.emit(node.op, *smaller), node.types[0].shape) if smaller != node.inputs else None


def _smallest(r: Rewriter, value: Value) -> Value:
    broadcast = made_by(value, BroadcastTo)
    if broadcast is not None:
        return value.node.inputs[0]
    if value.type.rank > 0:
        element = uniform(value)
        if element is not None:
            return r.emit(constant(np.asarray(element)))
    return value


def compute_before_broadcast(r: Rewriter, node: Node) -> Answer:
    """fn(broadcast(x)) -> broadcast(fn(x))."""
    (x,) = node.inputs
    broadcast = made_by(x, BroadcastTo)
    return r.emit(broadcast, r.emit(node.op, *x.node.inputs)) if broadcast else None


# -- neutral and absorbing elements

NEUTRAL: dict[str, Any] = {
    "add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1, "or": False, "and": True, "xor": False,
    "bitwise_or": 0, "bitwise_xor": 0, "bitwise_and": -1, "shl": 0, "shr": 0,
}  # fmt: skip


def neutral(r: Rewriter, node: Node) -> Answer:
    """x + 0, x * 1, x and true ... -> x."""
    a, b = node.inputs
    fn, dtype = fn_of(node), a.type.dtype
    value = number(b)
    if value is None:
        return None
    wanted = dtype.lowest if fn == "max" else dtype.highest if fn == "min" else NEUTRAL.get(fn)
    if fn == "bitwise_and" and dtype.kind == "uint":
        wanted = dtype.highest
    return r.shaped(a, node.types[0].shape) if wanted is not None and value == wanted else None


def absorbing(r: Rewriter, node: Node) -> Answer:
    """x and false -> false; x or true -> true; for integers x * 0 -> 0. Floats keep their NaN."""
    a, b = node.inputs
    fn, value = fn_of(node), number(b)
    if value is None or a.type.dtype.is_float:
        return None
    zero = fn in ("mul", "and", "bitwise_and") and value == 0
    return filled(r, value, node) if zero or (fn == "or" and value == 1) else None


def same_operands(r: Rewriter, node: Node) -> Answer:
    """min(x, x), x and x -> x; for integers x - x -> 0."""
    a, b = node.inputs
    if a is not b:
        return None
    fn = fn_of(node)
    if fn in ("min", "max", "and", "or", "bitwise_and", "bitwise_or"):
        return a
    return filled(r, 0, node) if fn in ("sub", "xor", "bitwise_xor") and not a.type.dtype.is_float else None


# -- signs and constants


def subtraction(r: Rewriter, node: Node) -> Answer:
    """x - c -> x + -c; x - -y -> x + y; 0 - x -> -x."""
    if fn_of(node) != "sub":
        return None
    a, b = node.inputs
    array = array_of(b)
    if array is not None and array.size <= MAX_MERGED:
        return r.emit(Binary("add"), a, negative(r, array))
    negated = unary_of(b, "neg")
    if negated is not None:
        return r.emit(Binary("add"), a, negated)
    return r.shaped(r.emit(Unary("neg"), b), node.types[0].shape) if number(a) == 0 else None


def negative(r: Rewriter, array: Array) -> Value:
    """The constant with its signs changed."""
    return r.emit(constant(array_function(UNARY["neg"], (array,))))


def signs(r: Rewriter, node: Node) -> Answer:
    """x + -y -> x - y; -x * c -> x * -c; -x * -y -> x * y; x * -1 -> -x."""
    a, b = node.inputs
    minus_a, minus_b = unary_of(a, "neg"), unary_of(b, "neg")
    match fn_of(node):
        case "add" if minus_b is not None:
            return r.emit(Binary("sub"), a, minus_b)
        case "add" if minus_a is not None:
            return r.emit(Binary("sub"), b, minus_a)
        case "mul" if minus_a is not None and minus_b is not None:
            return r.emit(Binary("mul"), minus_a, minus_b)
        case "mul" if minus_a is not None and (array := array_of(b)) is not None and array.size <= MAX_MERGED:
            return r.emit(Binary("mul"), minus_a, negative(r, array))
        case "mul" if number(b) == -1 and a.type.dtype.is_signed:
            return r.shaped(r.emit(Unary("neg"), a), node.types[0].shape)
    return None


def is_power_of_two(array: Any) -> bool:
    """Whether every element is a power of two (or minus one) far from the ends of the range, so that products with it are exact."""
    wide = np.asarray(array).astype(np.float64)
    mantissa, exponent = np.frexp(wide)
    return bool(np.all(np.abs(mantissa) == 0.5) and np.all(np.abs(exponent) <= 14))


def exact_division(r: Rewriter, node: Node) -> Answer:
    """x / 2**n -> x * 2**-n for floats."""
    a, b = node.inputs
    array = array_of(b)
    if fn_of(node) != "div" or array is None or not a.type.dtype.is_float or array.size > MAX_MERGED:
        return None
    if a.type.dtype.bits < 16 or not is_power_of_two(array):
        return None
    return r.emit(Binary("mul"), a, r.emit(constant((1.0 / array.astype(np.float64)).astype(array.dtype))))


def merged_constants(r: Rewriter, node: Node) -> Answer:
    """(x * c) * d -> x * (c * d), also for +, min, max, and, or: where it is exact."""
    fn, dtype = fn_of(node), node.inputs[0].type.dtype
    inner, d = binary_of(node.inputs[0], fn), array_of(node.inputs[1])
    if inner is None or d is None or fn not in _ASSOCIATIVE:
        return None
    x, c = inner[0], array_of(inner[1])
    if c is None or max(c.size, d.size) > MAX_MERGED:
        return None
    exact = not dtype.is_float or fn in ("min", "max")
    if not exact and not (fn == "mul" and dtype.bits >= 32 and (is_power_of_two(c) or is_power_of_two(d))):
        return None
    both = array_function(BINARY[fn], (c, d))
    return r.emit(Binary(fn), x, r.emit(constant(both))) if both.size <= max(c.size, d.size) else None


_ASSOCIATIVE = frozenset({"add", "mul", "min", "max", "and", "or", "xor", "bitwise_and", "bitwise_or", "bitwise_xor"})


def clamp(r: Rewriter, node: Node) -> Answer:
    """max(min(x, hi), lo) -> min(max(x, lo), hi) where lo <= hi."""
    inner, lo = binary_of(node.inputs[0], "min"), number(node.inputs[1])
    if fn_of(node) != "max" or inner is None or lo is None:
        return None
    hi = number(inner[1])
    if hi is None or not lo <= hi:
        return None
    return r.emit(Binary("min"), r.emit(Binary("max"), inner[0], node.inputs[1]), inner[1])


def power(r: Rewriter, node: Node) -> Answer:
    """x ** n for the exponents that have an operator of their own; roots where x is never negative: of -inf and -0 they are others."""
    if fn_of(node) != "pow":
        return None
    a, exponent = node.inputs[0], number(node.inputs[1])
    if exponent == 0:
        return filled(r, 1, node)
    square = r.emit(Binary("mul"), a, a) if exponent in (2, 3) else None
    if square is not None:
        return r.shaped(square if exponent == 2 else r.emit(Binary("mul"), square, a), node.types[0].shape)
    fn = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent) if exponent is not None else None
    if fn in ("sqrt", "rsqrt") and not never_negative(a):
        return None
    return r.shaped(r.emit(Unary(fn), a), node.types[0].shape) if fn and a.type.dtype.is_float else None


def never_negative(value: Value, depth: int = 12) -> bool:
    """Whether no element is below 0, by the operators that compute it: squares, their sums and means, exponentials and the like."""
    known = array_of(value)
    if known is not None:
        return bool(np.issubdtype(known.dtype, np.number) and (known >= 0).all())
    op, inputs = value.op, value.node.inputs
    if depth == 0:
        return False
    match op:
        case Unary(fn):
            return fn in ("abs", "exp", "sigmoid")
        case Binary("mul") if inputs[0] is inputs[1]:
            return True
        case Binary("max"):
            return any(never_negative(operand, depth - 1) for operand in inputs)
        case Binary("add" | "mul" | "div" | "min"):
            return all(never_negative(operand, depth - 1) for operand in inputs)
        case Reduce("sum" | "mean" | "max" | "min") | BroadcastTo() | Reshape():
            return never_negative(inputs[0], depth - 1)
    return False


def reciprocals(r: Rewriter, node: Node) -> Answer:
    """1 / sqrt(x) -> rsqrt(x); 1 / x -> reciprocal(x)."""
    a, b = node.inputs
    if fn_of(node) != "div" or not a.type.dtype.is_float or number(a) != 1:
        return None
    root = unary_of(b, "sqrt")
    return r.shaped(r.emit(Unary("reciprocal"), b) if root is None else r.emit(Unary("rsqrt"), root), node.types[0].shape)


# -- unary


def repeated(r: Rewriter, node: Node) -> Answer:
    """neg(neg(x)) -> x; abs(abs(x)) -> abs(x); abs(neg(x)) -> abs(x); reciprocal(sqrt(x)) -> rsqrt(x)."""
    (x,) = node.inputs
    fn = fn_of(node)
    inner = made_by(x, Unary)
    if inner is None:
        return None
    if fn in INVOLUTIONS and inner.fn == fn:
        return x.node.inputs[0]
    if (fn in IDEMPOTENT and inner.fn == fn) or (fn in ROUNDING and inner.fn in ROUNDING):
        return x
    if fn == "abs" and inner.fn == "neg":
        return r.emit(Unary("abs"), *x.node.inputs)
    return r.emit(Unary("rsqrt"), *x.node.inputs) if fn == "reciprocal" and inner.fn == "sqrt" else None


def negated(r: Rewriter, node: Node) -> Answer:
    """-(x * c) -> x * -c; -(x - y) -> y - x; not (a < b) -> a >= b for integers."""
    (x,) = node.inputs
    fn = fn_of(node)
    if fn == "neg":
        product, difference = binary_of(x, "mul"), binary_of(x, "sub")
        if difference is not None and not r.is_shared(x):
            return r.emit(Binary("sub"), difference[1], difference[0])
        if product is not None and (array := array_of(product[1])) is not None and array.size <= MAX_MERGED and not r.is_shared(x):
            return r.emit(Binary("mul"), product[0], negative(r, array))
    op = made_by(x, Binary)
    if fn == "not" and op is not None and op.fn in _OPPOSITE and not r.is_shared(x):
        if op.fn in ("equal", "not_equal") or not x.node.inputs[0].type.dtype.is_float:
            return r.emit(Binary(_OPPOSITE[op.fn]), *x.node.inputs)
    return None


_OPPOSITE = {
    "equal": "not_equal", "not_equal": "equal", "less": "greater_equal", "greater_equal": "less", "greater": "less_equal",
    "less_equal": "greater",
}  # fmt: skip


# -- select and cast


def known_choice(r: Rewriter, node: Node) -> Answer:
    """select(true, a, b) -> a; select(c, a, a) -> a; select(not c, a, b) -> select(c, b, a)."""
    condition, a, b = node.inputs
    known = number(condition)
    if known is not None or a is b:
        return r.shaped(a if known or a is b else b, node.types[0].shape)
    opposite = unary_of(condition, "not")
    return r.emit(Select(), opposite, b, a) if opposite is not None else None


def keeps_values(source: DType, target: DType) -> bool:
    """Whether every value of `source` is one of `target`."""
    if source is target:
        return True
    if source.kind == "bool":
        return target.kind in ("int", "uint", "float") and target.name != "float8e8m0"  # which has no zero
    if source.is_integer and target.is_integer:
        return target.bits >= source.bits if source.kind == target.kind else target.is_signed and target.bits > source.bits
    if source.is_integer and target.is_float:
        return source.bits - (source.kind == "int") <= _MANTISSA.get(target.name, 0)
    return source.is_float and target.is_float and target.name in _WIDER.get(source.name, ())


_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_WIDER = {
    "float32": ("float64",),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float8e4m3fn": ("float16", "bfloat16", "float32", "float64"),
    "float8e5m2": ("float16", "bfloat16", "float32", "float64"),
    "float8e4m3fnuz": ("float16", "bfloat16", "float32", "float64"),
    "float8e5m2fnuz": ("bfloat16", "float32", "float64"),
    "float4e2m1": ("float16", "bfloat16", "float32", "float64"),
}


def cast_chain(r: Rewriter, node: Node) -> Answer:
    """A cast to the same dtype goes; cast(cast(x)) -> cast(x) when the inner one keeps every value, or all that there are."""
    (x,) = node.inputs
    op: Operator = node.op
    assert isinstance(op, Cast)
    if op.dtype is x.type.dtype:
        return x
    inner = made_by(x, Cast)
    if inner is None or "string" in (op.dtype.kind, x.node.inputs[0].type.dtype.kind):
        return None
    source = x.node.inputs[0]
    kept = keeps_values(source.type.dtype, inner.dtype) or (not r.is_shared(x) and _fits(source, inner.dtype))
    return r.emit(Cast(op.dtype, op.saturate), source) if kept else None


def _fits(x: Value, dtype: DType) -> bool:
    """Whether the integers that there are, such as a quantization before its last cast, are values of an integer dtype."""
    if not (x.type.dtype.is_integer and dtype.is_integer):
        return False
    found = interval_of(x)
    return found is not None and dtype.lowest <= found.low and found.high <= dtype.highest


RULES: Rules = {
    Unary: (compute_before_broadcast, repeated, negated),
    Cast: (cast_chain, compute_before_broadcast),
    Select: (known_choice, small_operands),
    Binary: (
        constant_last, small_operands, neutral, absorbing, same_operands, subtraction, signs, exact_division, power, reciprocals,
        merged_constants, clamp,
    ),
}  # fmt: skip
