"""sin, cos and tan.

x = n pi/2 + r with |r| <= pi/4, pi/2 as the sum of three floats (Cody and Waite, 1980). With fused multiply-add the first step is exact and
each further one rounds once relative to its result, so that r is right as long as n is (see docs/numerics.md for how far). Past that r is
clamped: the result is within [-1, 1] but means nothing.
"""

from __future__ import annotations

from tilewright.ir.expr import Expr, div, equal, logical_xor, mul, neg, select, sub
from tilewright.target.cpu.math.formats import Format, at_least, at_most, float_of, fma, horner, shift_left, word_of


def _reduce(fmt: Format, x: Expr) -> tuple[Expr, Expr]:
    """The word whose low bits are n, and r."""
    rounded = fma(x, fmt.part("two_over_pi"), fmt.round_magic)
    n = sub(rounded, fmt.round_magic)
    r = x
    for part in range(3):
        r = fma(n, -fmt.part("half_pi_parts", part), r)
    return word_of(fmt, rounded), at_least(at_most(r, 1.0), -1.0)


def _sin_and_cos(fmt: Format, r: Expr) -> tuple[Expr, Expr]:
    z = mul(r, r)
    # As a product, not r + r^3 p: this keeps -0.
    sine = mul(r, fma(z, horner(z, fmt.table["sin"]), 1.0))
    cosine = fma(mul(z, z), horner(z, fmt.table["cos"]), fma(z, -0.5, 1.0))
    return sine, cosine


def _quadrant(fmt: Format, x: Expr, turn: int) -> Expr:
    """sin(x + turn * pi/2)."""
    word, r = _reduce(fmt, x)
    sine, cosine = _sin_and_cos(fmt, r)
    quarter = word + turn
    chosen = select(equal(quarter & 1, 0), sine, cosine)
    sign = shift_left(quarter & 2, fmt.word.bits - 2)
    return float_of(fmt, logical_xor(word_of(fmt, chosen), sign))


def sin(fmt: Format, x: Expr) -> Expr:
    return _quadrant(fmt, x, 0)


def cos(fmt: Format, x: Expr) -> Expr:
    return _quadrant(fmt, x, 1)


def tan(fmt: Format, x: Expr) -> Expr:
    word, r = _reduce(fmt, x)
    sine, cosine = _sin_and_cos(fmt, r)
    even = equal(word & 1, 0)
    return div(select(even, sine, neg(cosine)), select(even, cosine, sine))
