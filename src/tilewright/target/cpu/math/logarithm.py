"""log, log2, log1p, asinh, acosh and atanh.

x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), by integer arithmetic on the bits; log(1 + f) = f + f^2 p(f).
"""

from __future__ import annotations

import math

from tilewright.ir.expr import Expr, call, div, equal, less, less_equal, mul, select
from tilewright.target.cpu.math.formats import Format, float_of, fma, horner, magnitude, shift_right, with_sign_of, word_of


def _root_half(fmt: Format) -> int:
    """The bits of sqrt(1/2), rounded down: where the mantissa's range begins."""
    return ((fmt.bias - 1) << fmt.mantissa) + int((math.sqrt(2.0) - 1.0) * 2.0**fmt.mantissa)


def exponent_and_fraction(fmt: Format, x: Expr, subnormal: bool = True) -> tuple[Expr, Expr]:
    """e (a float) and 1 + f of positive finite x; `subnormal`: x may be below the normal range."""
    one, root = fmt.bias << fmt.mantissa, _root_half(fmt)
    offset = fmt.round_magic + fmt.bias
    shift = fmt.number(offset)
    if subnormal:
        small = less(x, fmt.smallest_normal)
        x = select(small, x * 2.0 ** (fmt.mantissa + 1), x)
        shift = select(small, fmt.number(offset + fmt.mantissa + 1), shift)
    # Moved by 1 - sqrt(1/2) in bits, the exponent field is bias + e, and the mantissa field is what 1 + f has above sqrt(1/2).
    word = word_of(fmt, x) + (one - root)
    fraction = float_of(fmt, (word & ((1 << fmt.mantissa) - 1)) + root)
    exponent = float_of(fmt, shift_right(word, fmt.mantissa) + ((fmt.bias + fmt.mantissa) << fmt.mantissa | 1 << (fmt.mantissa - 1)))
    return exponent - shift, fraction


def _special(fmt: Format, x: Expr, result: Expr) -> Expr:
    """`result` for 0 < x < infinity; -infinity at 0, NaN below, x at infinity and for NaN."""
    below = select(equal(x, 0.0), fmt.number(-math.inf), fmt.number(math.nan))
    return select(less_equal(x, 0.0), below, select(less(x, math.inf), result, x))


def _tail(fmt: Format, f: Expr) -> Expr:
    """log(1 + f) - f."""
    return mul(f, f) * horner(f, fmt.table["log"])


def _sum(fmt: Format, e: Expr, f: Expr) -> Expr:
    """e ln 2 + log(1 + f)."""
    low = fma(e, fmt.part("ln2", 1), _tail(fmt, f))
    return fma(e, fmt.part("ln2"), f + low)


def log(fmt: Format, x: Expr) -> Expr:
    e, m = exponent_and_fraction(fmt, x)
    return _special(fmt, x, _sum(fmt, e, m - 1.0))


def log2(fmt: Format, x: Expr) -> Expr:
    e, m = exponent_and_fraction(fmt, x)
    f = m - 1.0
    scale, scale_low = fmt.part("log2e"), fmt.part("log2e", 1)
    low = fma(_tail(fmt, f), scale, f * scale_low)
    return _special(fmt, x, e + fma(f, scale, low))


def log1p(fmt: Format, x: Expr) -> Expr:
    """What x + 1 loses is given back, scaled, to f; for e = 0 this makes f = x."""
    u = x + 1.0
    e, m = exponent_and_fraction(fmt, u, subnormal=False)
    # 2^-e is the number whose exponent field is that of m less that of u; x below unit_high keeps it normal.
    scale = float_of(fmt, word_of(fmt, m) - word_of(fmt, u) + (fmt.bias << fmt.mantissa))
    f = m - 1.0
    f = select(less(x, fmt.unit_high), fma(x - (u - 1.0), scale, f), f)
    return with_sign_of(_special(fmt, u, _sum(fmt, e, f)), x)


def asinh(fmt: Format, x: Expr) -> Expr:
    """log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))), and log |x| + ln 2 where x^2 could overflow."""
    a = magnitude(x)
    big = less(fmt.unit_high, a)
    square = mul(a, a)
    small = a + div(square, call("sqrt", fma(a, a, 1.0)) + 1.0)
    return with_sign_of(_log1p_or_twice(fmt, big, small, a), x)


def acosh(fmt: Format, x: Expr) -> Expr:
    """log1p(t + sqrt(t (t + 2))) with t = x - 1."""
    t = x - 1.0
    small = t + call("sqrt", mul(t, t + 2.0))
    return select(less(x, 1.0), math.nan, _log1p_or_twice(fmt, less(fmt.unit_high, x), small, x))


def _log1p_or_twice(fmt: Format, big: Expr, small: Expr, x: Expr) -> Expr:
    """log(1 + small), or log(2x) where `big`."""
    return log1p(fmt, select(big, x, small)) + select(big, fmt.number(fmt.part("ln2")), fmt.number(0.0))


def atanh(fmt: Format, x: Expr) -> Expr:
    """log1p(2|x| / (1 - |x|)) / 2."""
    a = magnitude(x)
    return with_sign_of(log1p(fmt, div(a + a, 1.0 - a)) * 0.5, x)
