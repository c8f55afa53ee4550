"""Linear forms of index expressions, and intervals whose ends are linear forms: the arithmetic under regions and legality checks.

A form is `constant + sum(coefficient * atom)`; atoms are variables and whatever is not linear (a floor division by a constant, a product
of sizes, a minimum). Two equal forms mean equal values; the differences of forms decide most questions that schedules ask, without
rewriting expressions.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from tilewright.ir.expr import Expr, Op, add, const, floordiv, floormod, make, maximum, minimum, mul

Extents = dict[Expr, Expr]  # loop variable -> extent, outermost first


class Linear(NamedTuple):
    """constant + sum of coefficient * atom; no zero coefficients."""

    terms: dict[Expr, int]
    constant: int

    @property
    def is_const(self) -> bool:
        return not self.terms


class Span(NamedTuple):
    """All values of an expression lie in [low, high]; `exact`: every integer between is reached."""

    low: Linear
    high: Linear
    exact: bool

    @property
    def extent(self) -> Linear:
        return shifted(combine(self.high, self.low, -1), 1)


ZERO = Linear({}, 0)


def number(value: int) -> Linear:
    return Linear({}, value)


def shifted(form: Linear, by: int) -> Linear:
    return Linear(form.terms, form.constant + by)


def combine(a: Linear, b: Linear, factor: int = 1) -> Linear:
    """a + factor * b"""
    terms = dict(a.terms)
    for atom, coefficient in b.terms.items():
        total = terms.get(atom, 0) + factor * coefficient
        if total:
            terms[atom] = total
        else:
            terms.pop(atom, None)
    return Linear(terms, a.constant + factor * b.constant)


def scaled(form: Linear, factor: int) -> Linear:
    return Linear({atom: c * factor for atom, c in form.terms.items()}, form.constant * factor) if factor else ZERO


def linear(e: Expr) -> Linear:
    """The linear form of an integer expression."""
    op = e.op
    if op is Op.CONST:
        return Linear({}, int(e.attr))
    if op is Op.ADD:
        return combine(linear(e.args[0]), linear(e.args[1]))
    if op is Op.SUB:
        return combine(linear(e.args[0]), linear(e.args[1]), -1)
    if op is Op.MUL:
        a, b = linear(e.args[0]), linear(e.args[1])
        if not b.terms:
            return scaled(a, b.constant)
        return Linear({e: 1}, 0) if a.terms else scaled(b, a.constant)
    if op is Op.FLOORDIV and e.args[1].is_const and e.args[1].value > 0:
        return divided(linear(e.args[0]), e.args[1].value, {})
    return Linear({e: 1}, 0)


def to_expr(form: Linear) -> Expr:
    """The form as an expression: positive terms in order, then negative ones, then the constant."""
    result: Expr | None = None
    for atom, c in sorted(form.terms.items(), key=lambda item: item[1] < 0):
        if result is None:
            result = atom if c == 1 else mul(atom, c)
        elif c < 0:
            result = result - (atom if c == -1 else mul(atom, -c))
        else:
            result = add(result, atom if c == 1 else mul(atom, c))
    if result is None:
        return const(form.constant)
    return add(result, form.constant) if form.constant >= 0 else result - (-form.constant)


def tidy(e: Expr) -> Expr:
    """`e` rebuilt from its linear form, so that equal sums are one node."""
    return to_expr(linear(e))


def multiple_of(atom: Expr) -> int:
    """A number known to divide the atom."""
    if atom.op is Op.VAR:
        return int(atom.attr.multiple)
    if atom.op is Op.MUL:
        product = 1
        for factor in atom.args:
            form = linear(factor)
            product *= gcd(form.constant, *(c * multiple_of(a) for a, c in form.terms.items())) if form.terms else abs(form.constant)
        return product or 1
    return 1


def divided(form: Linear, by: int, extents: Extents) -> Linear:
    """floor(form / by) for by > 0."""
    if by == 1:
        return form
    whole: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    for atom, c in form.terms.items():
        if c % by == 0:
            whole[atom] = whole.get(atom, 0) + c // by
        elif c * multiple_of(atom) % by == 0:
            common = gcd(abs(c), by)
            part = make(Op.FLOORDIV, atom.dtype, (atom, const(by // common)))
            whole[part] = whole.get(part, 0) + c // common
        else:
            rest[atom] = c
    quotient, remainder = divmod(form.constant, by)
    if not rest:
        return Linear(whole, quotient)
    left = Linear(rest, remainder)
    low, high = lower_bound(left, extents), upper_bound(left, extents)
    if low is not None and high is not None and low // by == high // by:
        return Linear(whole, quotient + low // by)
    atom = floordiv(to_expr(left), const(by))
    if atom.op is Op.FLOORDIV:
        whole[atom] = whole.get(atom, 0) + 1
        return Linear(whole, quotient)
    return combine(Linear(whole, quotient), linear(atom))


def _expanded(form: Linear) -> Linear:
    """k*c*(x // c) written as k*x - k*(x % c): lets rounding up and what was rounded cancel."""
    for atom, coefficient in form.terms.items():
        if atom.op is Op.FLOORDIV and atom.args[1].is_const and coefficient % atom.args[1].value == 0:
            by = atom.args[1].value
            factor = coefficient // by
            numerator = linear(atom.args[0])
            rest = Linear({a: c for a, c in form.terms.items() if a is not atom}, form.constant)
            rest = combine(rest, numerator, factor)
            left = {a: c for a, c in numerator.terms.items() if c * multiple_of(a) % by}
            remainder = linear(floormod(to_expr(Linear(left, numerator.constant)), const(by)))
            return _expanded(combine(rest, remainder, -factor))
    return form


def lower_bound(form: Linear, extents: Extents) -> int | None:
    """A number not above any value of the form while each loop variable is in its range; None when none is found."""
    form = _expanded(form)
    for variable in reversed(extents):
        coefficient = form.terms.get(variable)
        if coefficient is None:
            continue
        rest = Linear({a: c for a, c in form.terms.items() if a is not variable}, form.constant)
        if coefficient < 0:
            rest = _expanded(combine(rest, shifted(linear(extents[variable]), -1), coefficient))
        form = rest
    total = form.constant
    for atom, coefficient in form.terms.items():
        low, high = atom_bounds(atom, extents)
        end = low if coefficient > 0 else high
        if end is None:
            return None
        total += coefficient * end
    return total


def upper_bound(form: Linear, extents: Extents) -> int | None:
    """A number not below any value of the form, or None."""
    low = lower_bound(scaled(form, -1), extents)
    return None if low is None else -low


def atom_bounds(atom: Expr, extents: Extents) -> tuple[int | None, int | None]:
    """Constant bounds of a term."""
    op = atom.op
    if op is Op.VAR:
        extent = extents.get(atom)
        if extent is not None:
            high = upper_bound(linear(extent), extents)
            return 0, None if high is None else high - 1
        return atom.attr.lo, atom.attr.hi
    if op in (Op.FLOORMOD, Op.FLOORDIV):
        low, high = _bounds(atom.args[0], extents)
        by = atom.args[1].value if atom.args[1].is_const else None
        if op is Op.FLOORDIV:
            if by is not None and by > 0:
                return None if low is None else low // by, None if high is None else high // by
            return (0, high) if low is not None and low >= 0 and _positive(atom.args[1], extents) else (None, None)
        if by is not None and by > 0:
            if low is not None and high is not None and low // by == high // by:
                return low % by, high % by
            return 0, by - 1
        top = _bounds(atom.args[1], extents)[1]
        return (0, None if top is None else top - 1) if _positive(atom.args[1], extents) else (None, None)
    if op in (Op.MIN, Op.MAX):
        (a, b), (c, d) = _bounds(atom.args[0], extents), _bounds(atom.args[1], extents)
        lows, highs = [x for x in (a, c) if x is not None], [x for x in (b, d) if x is not None]
        if op is Op.MIN:
            return min(lows) if len(lows) == 2 else None, min(highs, default=None)
        return max(lows, default=None), max(highs) if len(highs) == 2 else None
    if op is Op.MUL:
        (a, b), (c, d) = _bounds(atom.args[0], extents), _bounds(atom.args[1], extents)
        if a is not None and c is not None and a >= 0 and c >= 0:
            return a * c, None if b is None or d is None else b * d
    return None, None


def _bounds(e: Expr, extents: Extents) -> tuple[int | None, int | None]:
    form = linear(e)
    return lower_bound(form, extents), upper_bound(form, extents)


def _positive(e: Expr, extents: Extents) -> bool:
    # A loop that divides by its own extent does not run when the extent is 0, so a size that may be 0 counts as positive here.
    low = lower_bound(linear(e), extents)
    return low is not None and low >= 0


def never_negative(form: Linear, extents: Extents) -> bool:
    low = lower_bound(form, extents)
    return low is not None and low >= 0


def at_most(a: Expr, b: Expr, extents: Extents) -> bool:
    """Whether a <= b is proved."""
    return never_negative(combine(linear(b), linear(a), -1), extents)


def same(a: Expr, b: Expr) -> bool:
    """Whether a and b are proved equal."""
    if a is b:
        return True
    difference = _expanded(combine(linear(a), linear(b), -1))
    return difference.is_const and difference.constant == 0


def collect(e: Expr, variables: Extents, into: set[Expr]) -> set[Expr]:
    """Add to `into` those of `variables` that `e` contains."""
    if e.op is Op.VAR:
        if e in variables:
            into.add(e)
    else:
        for arg in e.args:
            collect(arg, variables, into)
    return into


def mentions(e: Expr, variables: Extents) -> bool:
    """Whether `e` contains one of the variables."""
    if e.op is Op.VAR:
        return e in variables
    return any(mentions(arg, variables) for arg in e.args)


def span(e: Expr, inner: Extents, outer: Extents) -> Span | None:
    """The interval of `e` while the `inner` variables run through their ranges, as forms over the other variables; the `outer` ranges
    help to compare ends. None when `e` is not bounded by this analysis (a load, a product of two moving terms)."""
    form = linear(e)
    low: Linear = number(form.constant)
    high = low
    exact = True
    steps: list[tuple[int, int | None]] = []  # coefficient, count when constant
    moving: set[Expr] = set()
    for atom, c in form.terms.items():
        if atom in inner:
            last = shifted(linear(inner[atom]), -1)
            if mentions(inner[atom], inner):
                widest = span(inner[atom], inner, outer)
                if widest is None:
                    return None
                last, exact = shifted(widest.high, -1), False
            part = Span(ZERO, last, True)
            used = {atom}
        else:
            used = collect(atom, inner, set())
            if not used:
                if atom.op is Op.LOAD:
                    return None
                term = Linear({atom: c}, 0)
                low, high = combine(low, term), combine(high, term)
                continue
            found = _atom_span(atom, inner, outer)
            if found is None:
                return None
            part = found
        exact = exact and part.exact and not (used & moving)
        moving |= used
        width = part.extent
        steps.append((abs(c), width.constant if width.is_const else None))
        first, last_ = (part.low, part.high) if c > 0 else (part.high, part.low)
        low, high = combine(low, first, c), combine(high, last_, c)
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


def _atom_span(atom: Expr, inner: Extents, outer: Extents) -> Span | None:
    op = atom.op
    if op in (Op.FLOORDIV, Op.FLOORMOD):
        value, divisor = span(atom.args[0], inner, outer), atom.args[1]
        if value is None or mentions(divisor, inner):
            return None
        if not divisor.is_const:
            return _symbolic_division(atom, value, divisor, outer)
        by = divisor.value
        if by <= 0:
            return None
        first, last = divided(value.low, by, outer), divided(value.high, by, outer)
        if op is Op.FLOORDIV:
            return Span(first, last, value.exact)
        if first == last:
            return Span(combine(value.low, first, -by), combine(value.high, last, -by), value.exact)
        width = combine(value.high, value.low, -1)
        return Span(ZERO, number(by - 1), value.exact and never_negative(shifted(width, 1 - by), outer))
    if op in (Op.MIN, Op.MAX):
        return _limited(op, span(atom.args[0], inner, outer), span(atom.args[1], inner, outer), outer)
    if op is Op.MUL:
        for moving, fixed in (atom.args, atom.args[::-1]):
            if not mentions(fixed, inner) and _positive(fixed, outer):
                value = span(moving, inner, outer)
                if value is None:
                    return None
                return Span(linear(mul(to_expr(value.low), fixed)), linear(mul(to_expr(value.high), fixed)), False)
    if op is Op.SELECT:
        one, two = span(atom.args[1], inner, outer), span(atom.args[2], inner, outer)
        if one is None or two is None:
            return None
        return Span(smaller(one.low, two.low, outer), larger(one.high, two.high, outer), False)
    return None


def _symbolic_division(atom: Expr, value: Span, divisor: Expr, outer: Extents) -> Span | None:
    """x // d and x % d where x covers [0, a*d): what fusing loops of symbolic extent makes."""
    if value.low != ZERO:
        return None
    if atom.op is Op.FLOORMOD:
        return Span(ZERO, shifted(linear(divisor), -1), False)
    if value.high.constant == -1 and len(value.high.terms) == 1:
        ((product, count),) = value.high.terms.items()
        if product.op is Op.MUL and count == 1 and divisor in product.args:
            other = product.args[1] if product.args[0] is divisor else product.args[0]
            return Span(ZERO, shifted(linear(other), -1), value.exact)
        if product is divisor:
            return Span(ZERO, number(count - 1), value.exact)
    return Span(ZERO, value.high, False)


def _limited(op: Op, a: Span | None, b: Span | None, outer: Extents) -> Span | None:
    """Interval of a minimum or maximum; among valid ends those at a constant distance are taken, so that tiles keep constant sizes."""
    if a is None or b is None:
        return None
    if op is Op.MIN:
        low = smaller(a.low, b.low, outer)
        tops = (a.high, b.high)
        for top in tops:
            if combine(top, low, -1).is_const:
                return Span(low, top, False)
        return Span(low, smaller(*tops, outer), False)
    high = larger(a.high, b.high, outer)
    bottoms = (a.low, b.low)
    for bottom in bottoms:
        if combine(high, bottom, -1).is_const:
            return Span(bottom, high, False)
    return Span(larger(*bottoms, outer), high, False)


def smaller(a: Linear, b: Linear, extents: Extents) -> Linear:
    """The lesser of two forms; a `min` atom when it is not known which."""
    if never_negative(combine(b, a, -1), extents):
        return a
    return b if never_negative(combine(a, b, -1), extents) else linear(minimum(to_expr(a), to_expr(b)))


def larger(a: Linear, b: Linear, extents: Extents) -> Linear:
    """The greater of two forms; a `max` atom when it is not known which."""
    if never_negative(combine(a, b, -1), extents):
        return a
    return b if never_negative(combine(b, a, -1), extents) else linear(maximum(to_expr(a), to_expr(b)))
