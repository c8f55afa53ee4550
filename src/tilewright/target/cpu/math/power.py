"""pow: 2^(y log2 |x|), the logarithm to more bits than the result has, with IEEE 754's and C's special cases."""

from __future__ import annotations

import math

from tilewright.ir import dtypes
from tilewright.ir.expr import (
    Expr,
    all_of,
    bitcast,
    call,
    cast,
    equal,
    less,
    logical_and,
    logical_not,
    logical_or,
    mul,
    neg,
    not_equal,
    select,
)  # fmt: skip
from tilewright.target.cpu.math.formats import DOUBLE, Format, at_least, at_most, float_of, horner, magnitude, shift_left, word_of
from tilewright.target.cpu.math.logarithm import exponent_and_fraction


def _single_magnitude(x: Expr, y: Expr) -> Expr:
    """|x|^y for float32 by way of float64, with some 2^-35 of relative error: results that float32 can hold come out exact."""
    a = cast(dtypes.float64, magnitude(x))
    e, m = exponent_and_fraction(DOUBLE, a, subnormal=False)
    f = m - 1.0
    log2 = call("fma", f, horner(f, DOUBLE.table["pow_log2"]), e)
    product = cast(dtypes.float64, y) * _log_limits(a, log2)
    product = at_least(at_most(product, 200.0), -200.0)
    magic = DOUBLE.round_magic + DOUBLE.bias
    rounded = product + magic
    r = product - (rounded - magic)
    power = float_of(DOUBLE, shift_left(word_of(DOUBLE, rounded), DOUBLE.mantissa))
    return cast(dtypes.float32, call("fma", power, mul(r, horner(r, DOUBLE.table["pow_exp2"])), power))


def _log_limits(a: Expr, result: Expr) -> Expr:
    """`result` for 0 < a < infinity, -infinity for 0, a itself for infinity and NaN."""
    return select(equal(a, 0.0), -math.inf, select(less(a, math.inf), result, a))


def power(fmt: Format, x: Expr, y: Expr) -> Expr:
    whole = equal(call("trunc", y), y)
    half = y * 0.5
    odd = logical_and(whole, not_equal(call("trunc", half), half))
    a = magnitude(x)
    size = _single_magnitude(x, y)
    # 1 to any power, and anything to the power 0, NaN included. The logarithm of 1 is 0, which times infinity is not.
    size = select(logical_or(equal(x, 1.0), equal(y, 0.0)), 1.0, select(logical_and(equal(a, 1.0), equal(y, y)), 1.0, size))
    impossible = all_of(less(x, 0.0), not_equal(a, math.inf), logical_not(whole), not_equal(magnitude(y), math.inf))
    negative = logical_and(odd, _sign_bit(fmt, x))
    return select(impossible, math.nan, select(negative, neg(size), size))


def _sign_bit(fmt: Format, x: Expr) -> Expr:
    """Whether the sign bit is set: true for -0."""
    signed = dtypes.int32 if fmt.word is dtypes.uint32 else dtypes.int64
    return less(bitcast(signed, x), 0)
