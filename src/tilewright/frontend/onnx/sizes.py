"""Arithmetic on sizes that front ends need: exact quotients, bounds of slices, padding that keeps a size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd

from tilewright.graph.shapes import canonical
from tilewright.ir import expr as ex
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op

UNLIMITED = 10**9  # no axis is as long; exporters write INT_MAX of 32 or 64 bits, or 10**9, for "to the end"


def quotient(numerators: Sequence[Expr], denominators: Sequence[Expr]) -> tuple[Expr, bool]:
    """The product of `numerators` divided by that of `denominators`, and whether the division is known to leave no remainder. Common
    factors are cancelled before dividing, so that quotients of symbolic shapes stay simple."""
    above, top = _factors(numerators)
    below, bottom = _factors(denominators)
    if bottom == 0:
        return const(0), top == 0
    common = above & below
    above, below = above - common, below - common
    shared = gcd(top, bottom) or 1
    top, bottom = top // shared, bottom // shared
    number = _times(above, top)
    if not below and bottom == 1:
        return canonical(number), True
    return canonical(number // _times(below, bottom)), not below and _divides(bottom, above)


def _factors(dims: Sequence[Expr]) -> tuple[Counter[Expr], int]:
    factors: Counter[Expr] = Counter()
    coefficient = 1
    stack = [canonical(dim) for dim in dims]
    while stack:
        factor = stack.pop()
        if factor.is_const:
            coefficient *= int(factor.value)
        elif factor.op is Op.MUL:
            stack.extend(factor.args)
        else:
            factors[factor] += 1
    return factors, coefficient


def _times(factors: Counter[Expr], coefficient: int) -> Expr:
    result = const(coefficient)
    for factor in factors.elements():
        result = result * factor
    return result


def _divides(number: int, factors: Counter[Expr]) -> bool:
    """Whether a product of expressions is a multiple of `number` by what is declared of its sizes."""
    known = 1
    for factor in factors.elements():
        if factor.op is Op.VAR:
            known *= factor.attr.multiple
    return known % number == 0


def ceil_quotient(value: Expr, divisor: int) -> Expr:
    return canonical(ex.ceildiv(value, divisor))


def from_end(position: Expr, dim: Expr) -> Expr:
    """A position that counts from the end when negative, counted from the front."""
    if position.is_const:
        return position + dim if position.value < 0 else position
    return canonical(ex.select(position < 0, position + dim, position))


def _clamped(position: Expr, lo: Expr, hi: Expr) -> Expr:
    return canonical(ex.minimum(ex.maximum(position, lo), hi))


def slice_bounds(start: Expr, end: Expr | None, step: int, dim: Expr) -> tuple[Expr, Expr]:
    """The first position and the number of elements of `start:end:step` on an axis of size `dim`, by NumPy's clamping rules."""
    if step > 0:
        lo, hi = const(0), dim
        first = _limit(start, dim, lo, hi)
        last = dim if end is None else _limit(end, dim, lo, hi)
        return first, _count(last - first, step)
    lo, hi = const(-1), dim - 1
    first = _limit(start, dim, lo, hi)
    last = const(-1) if end is None else _limit(end, dim, lo, hi)
    return first, _count(first - last, -step)


def open_slice_bounds(start: Expr, end: Expr, step: Expr, step_size: Expr, dim: Expr) -> tuple[Expr, Expr]:
    """`slice_bounds` for a step that is known at run time only; `step_size` is its absolute value, at least 1."""
    up = ex.less(0, step)
    lo, hi = ex.select(up, 0, -1), ex.select(up, dim, dim - 1)
    first = _clamped(from_end(start, dim), lo, hi)
    last = _clamped(from_end(end, dim), lo, hi)
    span = ex.select(up, last - first, first - last)
    return first, canonical(ex.maximum(ex.ceildiv(span, step_size), 0))


def _count(span: Expr, step: int) -> Expr:
    return canonical(ex.maximum(ex.ceildiv(span, step), 0))


def _limit(position: Expr, dim: Expr, lo: Expr, hi: Expr) -> Expr:
    if position.is_const and position.value >= UNLIMITED:
        return canonical(hi)
    if position.is_const and position.value <= -UNLIMITED:
        return lo
    return _clamped(from_end(position, dim), lo, hi)


def same_padding(dim: Expr, window: Expr, stride: int, dilation: int, upper: bool) -> tuple[Expr, Expr]:
    """Padding with which a window gives ceil(dim / stride) results; `upper` puts the odd element after."""
    span = (window - 1) * dilation + 1
    total = ex.maximum((ex.ceildiv(dim, stride) - 1) * stride + span - dim, 0)
    half = total // 2
    low, high = (half, total - half) if upper else (total - half, half)
    return canonical(low), canonical(high)
