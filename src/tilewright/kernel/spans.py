"""Spans of index expressions over loops: the interval that an index runs through while inner loops run, its ends as polynomials over what
stays fixed. The arithmetic under regions and legality checks; sums, simplification and proofs are those of `tilewright.ir`.
"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.ir.affine import ZERO, Linear, Monomial, add_scaled, linear, shift, times, to_expr
from tilewright.ir.division import divide
from tilewright.ir.expr import Expr, const, floordiv
from tilewright.ir.prove import larger, nonnegative, smaller
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier, simplify
from tilewright.ir.traverse import depends_on, variables_in

Extents = dict[Expr, Expr]  # loop variable -> extent, outermost first


class Span(NamedTuple):
    """All values of an expression lie in [low, high]; `exact`: every integer between is reached."""

    low: Linear
    high: Linear
    exact: bool

    @property
    def extent(self) -> Linear:
        return shift(add_scaled(self.high, self.low, -1), 1)


def span(e: Expr, inner: Extents, outer: Extents) -> Span | None:
    """The interval of `e` while the `inner` variables run through their ranges, as polynomials over the other variables; the `outer`
    ranges help to compare ends. None when `e` is not bounded by this analysis (a load, a product of two moving terms)."""
    form = linear(e)
    low = high = Linear(form.constant, {})
    fixed: dict[Monomial, int] = {}
    exact = True
    steps: list[tuple[int, int | None]] = []  # coefficient, count when constant
    moving: set[Expr] = set()
    for atoms, c in form.terms.items():
        used = [v for atom in atoms for v in variables_in(atom) if v in inner]
        if not used:
            if atoms[0].op is Op.LOAD:
                return None
            fixed[atoms] = c
            continue
        part = _product_span(atoms, inner, outer)
        if part is None:
            return None
        exact = exact and part.exact and moving.isdisjoint(used)
        moving.update(used)
        width = part.extent
        steps.append((abs(c), width.constant if width.is_const else None))
        first, last = (part.low, part.high) if c > 0 else (part.high, part.low)
        low, high = add_scaled(low, first, c), add_scaled(high, last, c)
    if fixed:
        rest = Linear(0, fixed)
        low, high = add_scaled(low, rest), add_scaled(high, rest)
    return Span(low, high, exact and _contiguous(steps))


def _contiguous(steps: list[tuple[int, int | None]]) -> bool:
    """Whether sums of c * [0, n) over the steps (c, n) reach every integer between their ends."""
    reach = 0
    for position, (coefficient, count) in enumerate(sorted(steps, key=lambda step: (step[0], step[1] is None))):
        if coefficient > reach + 1:
            return False
        if count is None:
            return position == len(steps) - 1
        reach += coefficient * (count - 1)
    return True


def _product_span(atoms: Monomial, inner: Extents, outer: Extents) -> Span | None:
    """A product of which one factor moves, and the others are not negative."""
    if len(atoms) == 1:
        return _atom_span(atoms[0], inner, outer)
    moving = [atom for atom in atoms if depends_on(atom, inner)]
    others = tuple(atom for atom in atoms if atom not in moving)
    if len(moving) > 1 or not all(_positive(atom, outer) for atom in others):
        return None
    value = _atom_span(moving[0], inner, outer)
    return None if value is None else Span(times(value.low, others), times(value.high, others), False)


def _atom_span(atom: Expr, inner: Extents, outer: Extents) -> Span | None:
    op = atom.op
    if op is Op.VAR:
        extent = inner[atom]
        if extent.is_const:
            return Span(ZERO, Linear(extent.value - 1, {}), True)
        if not depends_on(extent, inner):
            return Span(ZERO, shift(linear(simplify(extent)), -1), True)
        widest = span(extent, inner, outer)
        return None if widest is None else Span(ZERO, shift(widest.high, -1), False)
    if op in (Op.FLOORDIV, Op.FLOORMOD):
        value, divisor = span(atom.args[0], inner, outer), atom.args[1]
        if value is None or depends_on(divisor, inner):
            return None
        return _division(op, value, divisor, outer)
    if op in (Op.MIN, Op.MAX):
        return _limited(op, span(atom.args[0], inner, outer), span(atom.args[1], inner, outer), outer)
    if op is Op.SELECT:
        one, two = span(atom.args[1], inner, outer), span(atom.args[2], inner, outer)
        if one is None or two is None:
            return None
        return Span(smaller(one.low, two.low, outer), larger(one.high, two.high, outer), False)
    return None


def _division(op: Op, value: Span, divisor: Expr, outer: Extents) -> Span | None:
    if not divisor.is_const:
        return _symbolic_division(op, value, linear(divisor))
    by = int(divisor.value)
    if by <= 0:
        return None
    first, last = _divided(value.low, by, outer), _divided(value.high, by, outer)
    if op is Op.FLOORDIV:
        return Span(first, last, value.exact)
    if first == last:
        return Span(add_scaled(value.low, first, -by), add_scaled(value.high, last, -by), value.exact)
    width = add_scaled(value.high, value.low, -1)
    return Span(ZERO, Linear(by - 1, {}), value.exact and nonnegative(shift(width, 1 - by), outer))


def _divided(form: Linear, by: int, outer: Extents) -> Linear:
    if not form.terms:
        return Linear(form.constant // by, {})
    return linear(simplify(floordiv(to_expr(form), const(by)), extents=outer))


def _symbolic_division(op: Op, value: Span, divisor: Linear) -> Span | None:
    """x // d and x % d where x covers [0, a*d): what fusing loops of symbolic extent makes."""
    if value.low != ZERO:
        return None
    if op is Op.FLOORMOD:
        return Span(ZERO, shift(divisor, -1), False)
    count, rest = divide(shift(value.high, 1), divisor)
    return Span(ZERO, shift(count, -1), value.exact) if rest == ZERO else Span(ZERO, value.high, False)


def _limited(op: Op, a: Span | None, b: Span | None, outer: Extents) -> Span | None:
    """Interval of a minimum or maximum; among valid ends those at a constant distance are taken, so that tiles keep constant sizes."""
    if a is None or b is None:
        return None
    if op is Op.MIN:
        low = smaller(a.low, b.low, outer)
        tops = (a.high, b.high)
        for top in tops:
            if add_scaled(top, low, -1).is_const:
                return Span(low, top, False)
        return Span(low, smaller(*tops, outer), False)
    high = larger(a.high, b.high, outer)
    bottoms = (a.low, b.low)
    for bottom in bottoms:
        if add_scaled(high, bottom, -1).is_const:
            return Span(bottom, high, False)
    return Span(larger(*bottoms, outer), high, False)


def _positive(e: Expr, outer: Extents) -> bool:
    return simplifier(extents=outer).facts.is_positive_divisor(e)
