"""exp (also of what is not positive), exp2, expm1, sigmoid, tanh, sinh, cosh and erf.

All write x = n ln 2 + r with |r| <= ln(2)/2 (Cody and Waite, "Software Manual for the Elementary Functions", 1980), n by the rounding
constant of `formats`, and take exp(r) - 1 = r + r^2 p(r). Powers of two are made by shifting n into the exponent; where the result may
leave the normal range it is multiplied by two powers, so that overflow and subnormals come out as rounded multiplication gives them.
"""

from __future__ import annotations

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, call, const, div, less, mul, select, sub
from tilewright.target.cpu.math.formats import (
    Format,
    at_least,
    at_most,
    float_of,
    fma,
    horner,
    magnitude,
    scaled,
    shift_left,
    shift_right,
    with_sign_of,
    word_of,
)  # fmt: skip


def half_powers(fmt: Format, rounded: Expr) -> tuple[Expr, Expr]:
    """2^floor(n/2) and 2^ceil(n/2) from n + 2 * bias + round_magic: the halves of the word are biased exponents already, and what the
    constant leaves above them is shifted out."""
    word = word_of(fmt, rounded)
    lower = shift_right(word, 1)
    upper = word - lower
    return float_of(fmt, shift_left(lower, fmt.mantissa)), float_of(fmt, shift_left(upper, fmt.mantissa))


def _power(fmt: Format, rounded: Expr) -> Expr:
    """2^n from n + bias + round_magic, for normal 2^n (0 and infinity one past them)."""
    return float_of(fmt, shift_left(word_of(fmt, rounded), fmt.mantissa))


def reduce(fmt: Format, x: Expr, bias: int) -> tuple[Expr, Expr]:
    """n + bias + round_magic, and r = x - n ln 2."""
    magic = fmt.round_magic + bias
    rounded = fma(x, fmt.part("log2e"), magic)
    n = sub(rounded, magic)
    r = fma(n, -fmt.part("ln2"), x)
    return rounded, fma(n, -fmt.part("ln2", 1), r)


def _expm1_reduced(fmt: Format, r: Expr) -> Expr:
    """exp(r) - 1 on the reduced range."""
    return fma(mul(r, r), horner(r, fmt.table["exp"]), r)


def exp(fmt: Format, x: Expr) -> Expr:
    """Subnormal results are right; 0 and infinity past them."""
    x = at_least(at_most(x, fmt.exp_high), fmt.exp_low)
    rounded, r = reduce(fmt, x, 2 * fmt.bias)
    first, second = half_powers(fmt, rounded)
    return fma(first, _expm1_reduced(fmt, r), first) * second


def exp_nonpositive(fmt: Format, x: Expr) -> Expr:
    """exp(x) for x <= 0, as softmax takes it of differences to a maximum: 2^n is one normal number, and results that are nearly subnormal
    are 0, since processors take over a hundred cycles for each of these. What comes of arguments below that is never looked at."""
    rounded, r = reduce(fmt, x, fmt.bias)
    power = _power(fmt, rounded)
    result = fma(power, _expm1_reduced(fmt, r), power)
    return select(less(x, 1.0 - (fmt.bias - 1) * fmt.part("ln2")), fmt.number(0.0), result)


def exp2(fmt: Format, x: Expr) -> Expr:
    x = at_least(at_most(x, fmt.bias + 2.0), -(fmt.bias + fmt.mantissa + 2.0))
    magic = fmt.round_magic + 2 * fmt.bias
    rounded = x + magic
    r = x - (rounded - magic)
    first, second = half_powers(fmt, rounded)
    return fma(first, mul(r, horner(r, fmt.table["exp2"])), first) * second


def expm1(fmt: Format, x: Expr) -> Expr:
    """Works on half the result, so that it overflows where the result does."""
    clamped = at_least(at_most(x, fmt.exp_high), -(fmt.mantissa + 3.0))
    rounded, r = reduce(fmt, clamped, fmt.bias - 1)
    half = _power(fmt, rounded)
    result = fma(half, _expm1_reduced(fmt, r), half - 0.5)
    return with_sign_of(result + result, x)


def sigmoid(fmt: Format, x: Expr) -> Expr:
    """1 / (1 + exp(-x)), and 0 from where that is nearly subnormal, whatever the reciprocal is there. exp(-x) is 2^n times a polynomial
    whose last step adds 1: that costs half a unit of the exponential, and is one operation where exact sums are three."""
    ln2 = fmt.part("ln2")
    small = at_most(x, fmt.bias * ln2)
    magic = fmt.round_magic + fmt.bias
    rounded = fma(small, -fmt.part("log2e"), magic)
    n = rounded - magic
    # Minus the reduced argument, so that no operation is spent on the sign of x.
    r = fma(n, fmt.part("ln2", 1), fma(n, ln2, small))
    power = horner(r, (1.0, -1.0, *scaled(fmt.table["exp"], 1.0, -1.0)))
    result = call("reciprocal_normal", fma(_power(fmt, rounded), power, 1.0))
    return select(less(x, -(fmt.bias - 1) * ln2), fmt.number(0.0), result)


def tanh(fmt: Format, x: Expr) -> Expr:
    """With h = (exp(2|x|) - 1) / 2: h - h h/(h + 1) for h <= 1, and 1 - 1/(h + 1) above. Subtracting from what is exact or nearly so,
    instead of h / (h + 1), keeps the errors of sum and division out of the result."""
    h = _expm1_rough(fmt, at_most(magnitude(x), 10.0 if fmt.dtype is dtypes.float32 else 20.0), 2.0)
    top = at_most(h, 1.0)
    return with_sign_of(fma(-top, div(top, h + 1.0), top), x)


def _expm1_rough(fmt: Format, x: Expr, factor: float) -> Expr:
    """(exp(factor * x) - 1) / factor for factor 1 or 2, where a small error of the exponential far from 1 does no harm, so that one
    constant for ln 2 is enough."""
    magic = fmt.round_magic + fmt.bias
    rounded = fma(x, factor * fmt.part("log2e"), magic)
    r = fma(rounded - magic, -fmt.part("ln2") / factor, x)
    tail = fma(mul(r, r), horner(r, scaled(fmt.table["exp"], factor, factor)), r)
    power = _power(fmt, rounded)
    return fma(power, tail, power - 1.0 if factor == 1.0 else fma(power, 1.0 / factor, -1.0 / factor))


def erf(fmt: Format, x: Expr) -> Expr:
    """-(exp(y) - 1) with y = log(1 - erf(|x|)) = |x| q(|x|), a smooth function: one formula for all x."""
    slope = _erf_slope_single if fmt.dtype is dtypes.float32 else _erf_slope_double
    a = at_most(magnitude(x), 3.93 if fmt.dtype is dtypes.float32 else 5.95)
    y = fma(a, fmt.part("erf_slope"), a * slope(fmt, a))
    return with_sign_of(_expm1_rough(fmt, y, 1.0), x)


def _erf_slope_single(fmt: Format, a: Expr) -> Expr:
    """log(1 - erf(a)) / a without the leading part of its value at 0."""
    return horner(a, fmt.table["erf"][1:])


def _erf_slope_double(fmt: Format, a: Expr) -> Expr:
    step = div(a + a, a + 4.0)
    return fma(step, horner(step - 1.0, fmt.table["erf_mapped"]), fmt.part("erf_slope", 1))


def _quarter_exp(fmt: Format, x: Expr) -> tuple[Expr, Expr]:
    """2^(n-2), and exp(r) - 1, for |x|: a quarter, so that sinh and cosh overflow only where their results do."""
    x = at_most(magnitude(x), fmt.exp_high + 0.5)
    rounded, r = reduce(fmt, x, fmt.bias - 2)
    return _power(fmt, rounded), _expm1_reduced(fmt, r)


def sinh(fmt: Format, x: Expr) -> Expr:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1."""
    power, tail = _quarter_exp(fmt, x)
    quarter = fma(power, tail, power - 0.25)
    half = quarter + div(quarter, fma(quarter, 4.0, 1.0))
    return with_sign_of(half + half, x)


def cosh(fmt: Format, x: Expr) -> Expr:
    """(e + 1/e) / 2 with e = exp(|x|)."""
    power, tail = _quarter_exp(fmt, x)
    quarter = fma(power, tail, power)
    return fma(quarter, 2.0, div(const(0.125, fmt.dtype), quarter))
