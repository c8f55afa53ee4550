"""pow: 2^(y log2 |x|), the logarithm to more bits than the result has, with IEEE 754's and C's special cases."""

from __future__ import annotations

import math

from tilewright.ir import dtypes
from tilewright.ir.expr import (  # fmt: skip
    Expr,
    all_of,
    bitcast,
    call,
    cast,
    div,
    equal,
    less,
    logical_and,
    logical_not,
    logical_or,
    mul,
    neg,
    not_equal,
    select,
)
from tilewright.target.cpu.math.exponential import half_powers
from tilewright.target.cpu.math.formats import (
    DOUBLE,
    Format,
    at_least,
    at_most,
    float_of,
    fma,
    horner,
    magnitude,
    shift_left,
    two_product,
    two_sum,
    word_of,
)
from tilewright.target.cpu.math.logarithm import exponent_and_fraction


def _single_magnitude(a: Expr, y: Expr) -> Expr:
    """a^y for float32 by way of float64, with some 2^-35 of relative error: results that float32 can hold come out exact."""
    a = cast(dtypes.float64, a)
    e, m = exponent_and_fraction(DOUBLE, a, subnormal=False)
    f = m - 1.0
    log2 = fma(f, horner(f, DOUBLE.table["pow_log2"]), e)
    product = cast(dtypes.float64, y) * _log_limits(a, log2)
    product = at_least(at_most(product, 200.0), -200.0)
    magic = DOUBLE.round_magic + DOUBLE.bias
    rounded = product + magic
    r = product - (rounded - magic)
    power = float_of(DOUBLE, shift_left(word_of(DOUBLE, rounded), DOUBLE.mantissa))
    return cast(dtypes.float32, fma(power, mul(r, horner(r, DOUBLE.table["pow_exp2"])), power))


def _double_log2(a: Expr) -> tuple[Expr, Expr]:
    """log2(a) for positive finite a to about 2^-65, as the sum of two floats: e + 2 atanh(s) / ln 2 with s = f / (2 + f)."""
    fmt = DOUBLE
    e, m = exponent_and_fraction(fmt, a)
    f = m - 1.0
    v, v_low = two_sum(fmt.number(1.0), m)
    inverse = div(fmt.number(1.0), v)
    s = f * inverse
    s_low = (fma(neg(s), v, f) - s * v_low) * inverse
    z, z_low = two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    # t = z/3 + z^2 p(z), the part of atanh(s)/s above 1.
    inner, inner_low = two_sum(fmt.number(fmt.part("third")), z * horner(z, fmt.table["pow_atanh"]))
    inner_low = inner_low + fmt.part("third", 1)
    t, t_low = two_product(z, inner)
    t_low = t_low + fma(z, inner_low, z_low * inner)
    # atanh(s) = s + s t
    rise, rise_low = two_product(s, t)
    rise_low = rise_low + fma(s, t_low, s_low * t)
    total, total_low = two_sum(s, rise)
    total_low = total_low + (rise_low + s_low)
    high, low = two_product(total, fmt.number(fmt.part("two_log2e")))
    low = low + fma(total, fmt.part("two_log2e", 1), total_low * fmt.part("two_log2e"))
    result, result_low = two_sum(e, high)
    return result, result_low + low


def _double_magnitude(a: Expr, y: Expr) -> Expr:
    """a^y in float64."""
    fmt = DOUBLE
    log2, log2_low = _double_log2(a)
    log2 = _log_limits(a, log2)
    product, product_low = two_product(y, log2)
    product_low = fma(y, log2_low, product_low)
    limit = fmt.bias + fmt.mantissa + 5.0
    # Far out, and for infinities, the low part means nothing or is NaN.
    low = select(less(magnitude(product), limit), product_low, 0.0)
    product = at_least(at_most(product, limit), -limit)
    magic = fmt.round_magic + 2 * fmt.bias
    rounded = product + magic
    r = (product - (rounded - magic)) + low
    first, second = half_powers(fmt, rounded)
    return fma(first, mul(r, horner(r, fmt.table["exp2"])), first) * second


def _log_limits(a: Expr, result: Expr) -> Expr:
    """`result` for 0 < a < infinity, -infinity for 0, a itself for infinity and NaN."""
    return select(equal(a, 0.0), -math.inf, select(less(a, math.inf), result, a))


def power(fmt: Format, x: Expr, y: Expr) -> Expr:
    whole = equal(call("trunc", y), y)
    half = y * 0.5
    odd = logical_and(whole, not_equal(call("trunc", half), half))
    a = magnitude(x)
    size = (_single_magnitude if fmt.dtype is dtypes.float32 else _double_magnitude)(a, y)
    # 1 to any power, and anything to the power 0, NaN included. The logarithm of 1 is 0, which times infinity is not.
    size = select(logical_or(equal(x, 1.0), equal(y, 0.0)), 1.0, select(logical_and(equal(a, 1.0), equal(y, y)), 1.0, size))
    impossible = all_of(less(x, 0.0), not_equal(a, math.inf), logical_not(whole), not_equal(magnitude(y), math.inf))
    negative = logical_and(odd, _sign_bit(fmt, x))
    return select(impossible, math.nan, select(negative, neg(size), size))


def _sign_bit(fmt: Format, x: Expr) -> Expr:
    """Whether the sign bit is set: true for -0."""
    signed = dtypes.int32 if fmt.word is dtypes.uint32 else dtypes.int64
    return less(bitcast(signed, x), 0)
