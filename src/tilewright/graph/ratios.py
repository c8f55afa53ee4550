"""Quotients of sizes: what float tensors hold when a model computes sizes in floats (`floor(cast(height) * 0.5)`).

Only quotients that float32 arithmetic gets exactly right up to 2**24 are followed: denominators are small powers of two, or come from
dividing by an integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, isfinite

from tilewright.ir import expr as ex
from tilewright.ir.bounds import bounds
from tilewright.ir.expr import Expr, const
from tilewright.ir.simplify import simplify

LARGEST_DENOMINATOR = 1024


class NoRatio(ValueError):
    """The number is no quotient that is followed."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """numerator / denominator, int64 expressions; the denominator is positive."""

    numerator: Expr
    denominator: Expr

    @property
    def is_const(self) -> bool:
        return self.numerator.is_const and self.denominator.is_const

    @property
    def value(self) -> float:
        """The number of a constant."""
        return float(self.numerator.value) / float(self.denominator.value)


def ratio(numerator: Expr, denominator: Expr) -> Ratio:
    """The simplified quotient. Raises NoRatio when the denominator is not known to be above 0."""
    over, under = simplify(numerator), simplify(denominator)
    if under.is_const:
        if under.value == 0:
            raise NoRatio("division by zero")
        if under.value < 0:
            over, under = simplify(-over), const(-under.value)
        if over.is_const:
            shared = gcd(int(over.value), int(under.value))
            return Ratio(const(over.value // shared), const(under.value // shared))
        return Ratio(over, under)
    lo = bounds(under, {}).lo
    if lo is None or lo <= 0:
        raise NoRatio("the denominator may be 0 or negative")
    return Ratio(const(1), const(1)) if over is under else Ratio(over, under)


def from_float(number: float) -> Ratio:
    """The exact quotient that a float is. Raises NoRatio for infinities, NaN and denominators above LARGEST_DENOMINATOR."""
    if not isfinite(number):
        raise NoRatio("not finite")
    exact = Fraction(number)
    if exact.denominator > LARGEST_DENOMINATOR:
        raise NoRatio("the number is not a simple quotient")
    return Ratio(const(exact.numerator), const(exact.denominator))


def from_size(size: Expr) -> Ratio:
    return Ratio(size, const(1))


def floor(x: Ratio) -> Ratio:
    return from_size(simplify(ex.floordiv(x.numerator, x.denominator)))


def ceil(x: Ratio) -> Ratio:
    return from_size(simplify(ex.ceildiv(x.numerator, x.denominator)))


def truncated(x: Ratio) -> Expr:
    """The integer that a cast gives."""
    lo = bounds(x.numerator, {}).lo
    divide = ex.floordiv if lo is not None and lo >= 0 else ex.trunc_div
    return simplify(divide(x.numerator, x.denominator))


def _sum(sign: int) -> Callable[[Ratio, Ratio], Ratio]:
    def combine(a: Ratio, b: Ratio) -> Ratio:
        if a.denominator is b.denominator:
            return ratio(a.numerator + b.numerator * sign, a.denominator)
        return ratio(a.numerator * b.denominator + b.numerator * a.denominator * sign, a.denominator * b.denominator)

    return combine


def _extreme(choose: Callable[[Expr, Expr], Expr]) -> Callable[[Ratio, Ratio], Ratio]:
    def combine(a: Ratio, b: Ratio) -> Ratio:
        return ratio(choose(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)

    return combine


BINARY: dict[str, Callable[[Ratio, Ratio], Ratio]] = {
    "add": _sum(1),
    "sub": _sum(-1),
    "mul": lambda a, b: ratio(a.numerator * b.numerator, a.denominator * b.denominator),
    "div": lambda a, b: ratio(a.numerator * b.denominator, a.denominator * b.numerator),
    "min": _extreme(ex.minimum),
    "max": _extreme(ex.maximum),
}
UNARY: dict[str, Callable[[Ratio], Ratio]] = {
    "floor": floor,
    "ceil": ceil,
    "neg": lambda x: ratio(-x.numerator, x.denominator),
}
