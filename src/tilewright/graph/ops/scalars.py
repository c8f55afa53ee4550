"""The scalar functions of the elementwise operators: for each name the dtypes it takes, its expression and its NumPy form.

Floats narrower than 32 bits are computed in float32 and rounded once; sub-byte integers are computed in 8 bits and wrapped.
Integer division by zero gives 0, and shifts by at least the width shift every bit out, as in NumPy, so that no input traps. Integer powers
wrap for exponents below the width in bits; past it whatever overflows is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import (
    Expr,
    binary,
    call,
    cast,
    const,
    equal,
    floordiv,
    floormod,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    neg,
    not_equal,
    select,
    trunc_div,
    trunc_mod,
)
from tilewright.ir.scalar_ops import Op as ScalarOp

Array = np.ndarray[Any, np.dtype[Any]]
FLOAT = frozenset({"float"})
INTEGER = frozenset({"int", "uint"})
NUMBER = FLOAT | INTEGER
BOOL = frozenset({"bool"})
ANY = NUMBER | BOOL


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """`kinds` of dtype it takes, its `expression` and `array` form on the arithmetic dtype, and whether it gives a bool (`predicate`)."""

    kinds: frozenset[str]
    expression: Callable[..., Expr]
    array: Callable[..., Any]
    predicate: bool = False


def arithmetic_dtype(dtype: DType) -> DType:
    """The dtype in which scalars of `dtype` are computed."""
    if dtype.is_float:
        return dtypes.float32 if dtype.bits < 32 else dtype
    if dtype.is_integer and dtype.bits < 8:
        return dtypes.int8 if dtype.is_signed else dtypes.uint8
    return dtype


def widened(x: Expr) -> Expr:
    """The scalar in its arithmetic dtype."""
    return cast(arithmetic_dtype(x.dtype), x)


def sorts_before(a: Expr, b: Expr) -> Expr:
    """a < b in the total order of sorting, for arithmetic dtypes: NaNs are equal and greater than all numbers, as in NumPy."""
    if not a.dtype.is_float:
        return less(a, b)
    return logical_and(equal(a, a), logical_not(less_equal(b, a)))


def _apply(rule: ScalarFunction, args: tuple[Expr, ...]) -> Expr:
    result = rule.expression(*(widened(a) for a in args))
    return result if rule.predicate else cast(args[0].dtype, result)


def scalar_unary(fn: str, x: Expr) -> Expr:
    """`fn(x)` for `fn` of UNARY, in x's dtype (bool for predicates)."""
    return _apply(UNARY[fn], (x,))


def scalar_binary(fn: str, a: Expr, b: Expr) -> Expr:
    """`fn(a, b)` for `fn` of BINARY on scalars of one dtype."""
    return _apply(BINARY[fn], (a, b))


def array_function(rule: ScalarFunction, args: tuple[Array, ...]) -> Array:
    """The NumPy form of a scalar function on arrays of one dtype, with its rounding and wrapping."""
    dtype = args[0].dtype
    wide = arithmetic_dtype(dtypes.from_numpy(dtype)).numpy
    with np.errstate(all="ignore"):
        result = np.asarray(rule.array(*(np.asarray(a).astype(wide, copy=False) for a in args)))
        return result.astype(np.bool_ if rule.predicate else wide, copy=False).astype(np.bool_ if rule.predicate else dtype, copy=False)


def _intrinsic(name: str) -> Callable[..., Expr]:
    return lambda *args: call(name, *args)


def _precise(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function evaluated in float64, for references that are right to the last bit of float32."""
    return lambda *args: fn(*(a.astype(np.float64) for a in args))


def _float(name: str, array: Callable[..., Any]) -> ScalarFunction:
    return ScalarFunction(FLOAT, _intrinsic(name), _precise(array))


def _abs(x: Expr) -> Expr:
    if x.dtype.is_float:
        return call("abs", x)
    return maximum(x, neg(x)) if x.dtype.is_signed else x


def _sign(x: Expr) -> Expr:
    zero, one = const(0, x.dtype), const(1, x.dtype)
    below = select(x < zero, const(-1, x.dtype), x) if x.dtype.is_signed else x
    return select(x > zero, one, below)


def _sigmoid_array(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _erf_array(x: Any) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64) if x.size else x


def _divisor(b: Expr) -> Expr:
    """A divisor that cannot trap: 1 in place of 0 and -1, whose results are selected apart."""
    bad = equal(b, const(0, b.dtype))
    if b.dtype.is_signed:
        bad = logical_or(bad, equal(b, const(-1, b.dtype)))
    return select(bad, const(1, b.dtype), b)


def _safe_quotient(divide: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    def expression(a: Expr, b: Expr) -> Expr:
        result = divide(a, _divisor(b))
        if b.dtype.is_signed:
            result = select(equal(b, const(-1, b.dtype)), neg(a), result)
        return select(equal(b, const(0, b.dtype)), const(0, b.dtype), result)

    return expression


def _safe_remainder(remainder: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    # The divisors 0 and -1 become 1, whose remainder is the 0 that they give as well.
    return lambda a, b: remainder(a, _divisor(b))


def _div(a: Expr, b: Expr) -> Expr:
    return a / b if a.dtype.is_float else _safe_quotient(trunc_div)(a, b)


def _div_array(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    towards_zero = ((a < 0) != (b < 0)) & (a - quotient * b != 0)
    return np.where(b == 0, 0, quotient + towards_zero).astype(a.dtype)


def _floormod(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        return _safe_remainder(floormod)(a, b)
    zero = const(0, a.dtype)
    rest = trunc_mod(a, b)
    other_side = logical_and(not_equal(rest, zero), logical_xor(rest < zero, b < zero))
    return select(other_side, rest + b, rest)


def _floordiv(a: Expr, b: Expr) -> Expr:
    """Integers: floor of the exact quotient. Floats: as NumPy, from the remainder, since a rounded quotient may pass an integer."""
    if not a.dtype.is_float:
        return _safe_quotient(floordiv)(a, b)
    one = const(1.0, a.dtype)
    quotient = (a - _floormod(a, b)) / b
    down = call("floor", quotient)
    exact = select(const(0.5, a.dtype) < quotient - down, down + one, down)
    return select(equal(b, const(0.0, a.dtype)), a / b, exact)


def _fmod(a: Expr, b: Expr) -> Expr:
    return trunc_mod(a, b) if a.dtype.is_float else _safe_remainder(trunc_mod)(a, b)


def _in_width(b: Expr) -> Expr:
    inside = b < const(b.dtype.bits, b.dtype)
    return logical_and(const(0, b.dtype) <= b, inside) if b.dtype.is_signed else inside


def _low_bits(b: Expr) -> Expr:
    return logical_and(b, const(b.dtype.bits - 1, b.dtype))


def _shl(a: Expr, b: Expr) -> Expr:
    return select(_in_width(b), binary(ScalarOp.SHL, a, _low_bits(b)), const(0, a.dtype))


def _shr(a: Expr, b: Expr) -> Expr:
    emptied = select(a < const(0, a.dtype), const(-1, a.dtype), const(0, a.dtype)) if a.dtype.is_signed else const(0, a.dtype)
    return select(_in_width(b), binary(ScalarOp.SHR, a, _low_bits(b)), emptied)


def _pow_array(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":  # by elements: NumPy takes a root for a single exponent of 0.5, whose -0.0 and -inf are not those of C
        shape = np.broadcast_shapes(a.shape, b.shape)
        return _precise(np.power)(*(np.broadcast_to(x, shape).reshape(-1) for x in (a, b))).reshape(shape)
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    result = np.power(a, np.where(inside, b, 0).astype(a.dtype))
    sign = np.where(b % 2 == 0, 1, -1) if a.dtype.kind == "i" else 0
    unit = np.where(a == 1, 1, np.where(a.view(f"i{a.dtype.itemsize}") == -1, sign, 0))
    return np.where(inside, result, unit).astype(a.dtype)


def _pow(a: Expr, b: Expr) -> Expr:
    """Integers: square and multiply over the bits of the exponent, modulo 2**bits. A negative exponent truncates 1/a**-b to an integer; so
    do exponents of at least the width in bits, with which all but -1, 0 and 1 overflow (taking each bit would cost ten times more)."""
    if a.dtype.is_float:
        return call("pow", a, b)
    zero, one = const(0, a.dtype), const(1, a.dtype)
    result, square = one, a
    for bit in range((a.dtype.bits - 1).bit_length()):
        odd = not_equal(logical_and(b, const(1 << bit, b.dtype)), zero)
        result = result * select(odd, square, one)
        square = square * square
    unit = select(equal(a, one), one, zero)
    if a.dtype.is_signed:
        minus = const(-1, a.dtype)
        sign = select(equal(logical_and(b, one), zero), one, minus)
        unit = select(equal(a, minus), sign, unit)
    return select(_in_width(b), result, unit)


UNARY: dict[str, ScalarFunction] = {
    "neg": ScalarFunction(NUMBER, neg, np.negative),
    "abs": ScalarFunction(NUMBER, _abs, np.abs),
    "sign": ScalarFunction(NUMBER, _sign, np.sign),
    "not": ScalarFunction(BOOL, logical_not, np.logical_not),
    "bitwise_not": ScalarFunction(INTEGER, logical_not, np.invert),
    "exp": _float("exp", np.exp),
    "exp2": _float("exp2", np.exp2),
    "expm1": _float("expm1", np.expm1),
    "log": _float("log", np.log),
    "log1p": _float("log1p", np.log1p),
    "log2": _float("log2", np.log2),
    "sqrt": _float("sqrt", np.sqrt),
    "rsqrt": _float("rsqrt", lambda x: 1.0 / np.sqrt(x)),
    "reciprocal": ScalarFunction(FLOAT, lambda x: const(1.0, x.dtype) / x, lambda x: x.dtype.type(1.0) / x),
    "sin": _float("sin", np.sin),
    "cos": _float("cos", np.cos),
    "tan": _float("tan", np.tan),
    "asin": _float("asin", np.arcsin),
    "acos": _float("acos", np.arccos),
    "atan": _float("atan", np.arctan),
    "sinh": _float("sinh", np.sinh),
    "cosh": _float("cosh", np.cosh),
    "tanh": _float("tanh", np.tanh),
    "asinh": _float("asinh", np.arcsinh),
    "acosh": _float("acosh", np.arccosh),
    "atanh": _float("atanh", np.arctanh),
    "erf": _float("erf", _erf_array),
    "sigmoid": _float("sigmoid", _sigmoid_array),
    "floor": _float("floor", np.floor),
    "ceil": _float("ceil", np.ceil),
    "round": _float("round", np.rint),
    "trunc": _float("trunc", np.trunc),
    "isnan": ScalarFunction(FLOAT, _intrinsic("isnan"), np.isnan, predicate=True),
    "isinf": ScalarFunction(FLOAT, _intrinsic("isinf"), np.isinf, predicate=True),
}

BINARY: dict[str, ScalarFunction] = {
    "add": ScalarFunction(NUMBER, lambda a, b: a + b, np.add),
    "sub": ScalarFunction(NUMBER, lambda a, b: a - b, np.subtract),
    "mul": ScalarFunction(NUMBER, lambda a, b: a * b, np.multiply),
    "div": ScalarFunction(NUMBER, _div, _div_array),
    "floordiv": ScalarFunction(NUMBER, _floordiv, np.floor_divide),
    "floormod": ScalarFunction(NUMBER, _floormod, np.remainder),
    "fmod": ScalarFunction(NUMBER, _fmod, np.fmod),
    "pow": ScalarFunction(NUMBER, _pow, _pow_array),
    "min": ScalarFunction(NUMBER, minimum, np.minimum),
    "max": ScalarFunction(NUMBER, maximum, np.maximum),
    "and": ScalarFunction(BOOL, logical_and, np.logical_and),
    "or": ScalarFunction(BOOL, logical_or, np.logical_or),
    "xor": ScalarFunction(BOOL, logical_xor, np.logical_xor),
    "bitwise_and": ScalarFunction(INTEGER, logical_and, np.bitwise_and),
    "bitwise_or": ScalarFunction(INTEGER, logical_or, np.bitwise_or),
    "bitwise_xor": ScalarFunction(INTEGER, logical_xor, np.bitwise_xor),
    "shl": ScalarFunction(INTEGER, _shl, np.left_shift),
    "shr": ScalarFunction(INTEGER, _shr, np.right_shift),
    "equal": ScalarFunction(ANY, equal, np.equal, predicate=True),
    "not_equal": ScalarFunction(ANY, not_equal, np.not_equal, predicate=True),
    "less": ScalarFunction(NUMBER, less, np.less, predicate=True),
    "less_equal": ScalarFunction(NUMBER, less_equal, np.less_equal, predicate=True),
    "greater": ScalarFunction(NUMBER, lambda a, b: less(b, a), np.greater, predicate=True),
    "greater_equal": ScalarFunction(NUMBER, lambda a, b: less_equal(b, a), np.greater_equal, predicate=True),
    "atan2": ScalarFunction(FLOAT, _intrinsic("atan2"), _precise(np.arctan2)),
}
