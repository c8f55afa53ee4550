"""asin, acos, atan and atan2."""

from __future__ import annotations

import math

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, bitcast, call, const, div, equal, less, maximum, minimum, mul, select
from tilewright.target.cpu.math.formats import Format, fma, horner, magnitude, with_sign_of


def _asin_reduced(fmt: Format, x: Expr) -> tuple[Expr, Expr]:
    """Whether |x| > 1/2, and asin(t) for t = |x|, or where that holds t = sqrt((1 - |x|) / 2): pi/2 - asin(|x|) = 2 asin(t).
    NaN for |x| > 1."""
    a = magnitude(x)
    outer = less(0.5, a)
    square = select(outer, fma(a, -0.5, 0.5), mul(a, a))
    t = select(outer, call("sqrt", square), a)
    return outer, fma(mul(t, square), horner(square, fmt.table["asin"]), t)


def asin(fmt: Format, x: Expr) -> Expr:
    outer, angle = _asin_reduced(fmt, x)
    right = fmt.part("half_pi")
    return with_sign_of(select(outer, fma(angle, -2.0, right) + fmt.part("half_pi", 1), angle), x)


def acos(fmt: Format, x: Expr) -> Expr:
    """Near 1, 2 asin(t), which keeps the relative error small; else pi/2 - asin(x) or pi - 2 asin(t)."""
    outer, angle = _asin_reduced(fmt, x)
    negative = less(x, 0.0)
    signed = with_sign_of(angle, x)
    inner = fmt.part("half_pi") - (signed - fmt.part("half_pi", 1))
    twice = angle + angle
    return select(outer, select(negative, fmt.part("pi") - (twice - fmt.part("pi", 1)), twice), inner)


def _atan_unit(fmt: Format, q: Expr) -> Expr:
    """atan(q) on [0, 1]."""
    square = mul(q, q)
    return fma(mul(q, square), horner(square, fmt.table["atan"]), q)


def atan(fmt: Format, x: Expr) -> Expr:
    a = magnitude(x)
    steep = less(1.0, a)
    angle = _atan_unit(fmt, select(steep, div(const(1.0, fmt.dtype), a), a))
    return with_sign_of(select(steep, fmt.part("half_pi") - (angle - fmt.part("half_pi", 1)), angle), x)


def atan2(fmt: Format, y: Expr, x: Expr) -> Expr:
    """The angle of (x, y), as C has it for zeros and infinities."""
    a, b = magnitude(y), magnitude(x)
    low, high = minimum(a, b), maximum(a, b)
    # 0/0 and infinity/infinity: along an axis, and on a diagonal.
    q = select(equal(high, 0.0), 0.0, select(equal(low, math.inf), 1.0, div(low, high)))
    angle = _atan_unit(fmt, q)
    angle = select(less(b, a), fmt.part("half_pi") - (angle - fmt.part("half_pi", 1)), angle)
    signed = dtypes.int32 if fmt.dtype is dtypes.float32 else dtypes.int64
    behind = less(bitcast(signed, x), 0)
    return with_sign_of(select(behind, fmt.part("pi") - (angle - fmt.part("pi", 1)), angle), y)
