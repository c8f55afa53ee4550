"""What is known where an expression stands, and the proofs of inequalities that follow from it.

Known are the intervals of nodes (`env`), the extents of loop variables, which may be symbolic (`0 <= i < N // 8`), the ranges
declared by sizes, and what the operators themselves imply (`8 * (N // 8) <= N`, `min(a, b) <= a`). To prove that a polynomial is not
negative, atoms are replaced one at a time by the bound that makes it smallest, until interval arithmetic decides: Fourier-Motzkin
elimination with symbolic coefficients, directed by the signs instead of by pairs. Sound, not complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.ir import dtypes
from tilewright.ir.affine import Linear, add_scaled, known_divisor, linear, multiply, order_key, scale, shift, split
from tilewright.ir.bounds import Interval, bounds, intersect, linear_bounds
from tilewright.ir.expr import Expr
from tilewright.ir.samples import Point, sample_points
from tilewright.ir.scalar_ops import Op

# Replacements that one proof may try.
_FUEL = 48
_ONE, _MINUS_ONE = Linear(1, {}), Linear(-1, {})
_EXPLAINED = frozenset({Op.FLOORDIV, Op.FLOORMOD, Op.MIN, Op.MAX, Op.SELECT})


class Facts:
    """Intervals and extents, with memoised bounds. `extents` maps a variable to the extent E of `0 <= variable < E`, outer loops first."""

    __slots__ = ("_points", "env", "extents", "ranges")

    def __init__(self, env: Mapping[Expr, Interval], extents: Mapping[Expr, Expr]) -> None:
        self.env: dict[Expr, Interval] = dict(env)
        self.extents: dict[Expr, Linear] = {v: linear(extent) for v, extent in extents.items()}
        self.ranges: dict[Expr, Interval] = {}
        self._points: list[Point] | None = None
        for v, extent in extents.items():
            hi = bounds(extent, self.env).hi
            self._narrow(v, Interval(0, None if hi is None else hi - 1))
            if extent.op is Op.VAR:
                self._narrow(extent, Interval(1, None))  # where v has a value, its loop runs

    def _narrow(self, v: Expr, interval: Interval) -> None:
        self.env[v] = intersect(self.env[v], interval) if v in self.env else interval

    def bounds(self, e: Expr) -> Interval:
        return bounds(e, self.env, self.ranges)

    def interval(self, form: Linear) -> Interval:
        return linear_bounds(form, self.env, self.ranges)

    def nonnegative(self, form: Linear) -> bool:
        """Whether the polynomial is certainly >= 0."""
        lo = self.interval(form).lo
        if lo is not None and lo >= 0:
            return True
        return self._is_searchable(form) and not self._is_refuted(form) and self._search(form, [_FUEL])

    def _is_refuted(self, form: Linear) -> bool:
        """Whether the polynomial is negative at one of a few points."""
        if self._points is None:
            self._points = sample_points(self.env, self.extents)
        for point in self._points:
            value = point.total(form)
            if value is not None and value < 0:
                return True
        return False

    def less_equal(self, a: Expr, b: Expr, gap: int = 0) -> bool:
        """Whether a + gap <= b certainly holds, for integers of one dtype."""
        if a.dtype is dtypes.int64:
            return self.nonnegative(shift(add_scaled(linear(b), linear(a), -1), -gap))
        hi, lo = self.bounds(a).hi, self.bounds(b).lo
        return hi is not None and lo is not None and hi + gap <= lo

    def holds(self, condition: Expr) -> bool:
        """Whether the condition is certainly true."""
        op, args = condition.op, condition.args
        if op is Op.CONST:
            return bool(condition.attr)
        if op is Op.AND:
            return self.holds(args[0]) and self.holds(args[1])
        if op is Op.OR:
            return self.holds(args[0]) or self.holds(args[1])
        if args and args[0].dtype.is_integer:
            a, b = args[0], args[-1]
            if op is Op.LE or op is Op.LT:
                return self.less_equal(a, b, 1 if op is Op.LT else 0)
            if op is Op.EQ:
                return self.less_equal(a, b) and self.less_equal(b, a)
            if op is Op.NE:
                return self.less_equal(a, b, 1) or self.less_equal(b, a, 1)
        return self.bounds(condition).lo == 1

    def quotient(self, form: Linear, divisor: Expr) -> int | None:
        """The integer k with form // divisor == k, if it is certain that there is one."""
        if divisor.op is Op.CONST:
            c = int(divisor.attr)
            lo, hi = self.interval(form)
            if c <= 0 or lo is None:
                return None
            k = lo // c
            if hi is not None and (k == hi // c or not self.extents):
                return k if k == hi // c else None
            return k if self.nonnegative(shift(scale(form, -1), (k + 1) * c - 1)) else None
        d = linear(divisor)
        for k in (0, -1):
            above = add_scaled(form, d, -k)
            if self.nonnegative(above) and self.nonnegative(shift(add_scaled(d, above, -1), -1)):
                return k
        return None

    def divides(self, divisor: int, form: Linear) -> bool:
        """Whether every value of the polynomial is a multiple of `divisor`."""
        return form.constant % divisor == 0 and known_divisor(form) % divisor == 0

    def _is_searchable(self, form: Linear) -> bool:
        """Whether more than intervals is known of an atom: the search is worth its time."""
        if self.extents:
            return True
        return any(len(monomial) > 1 or monomial[0].op in _EXPLAINED for monomial in form.terms)

    def _search(self, form: Linear, fuel: list[int]) -> bool:
        for atom in self._eliminable(form):
            for alternative in self._replacements(form, atom):
                fuel[0] -= 1
                if fuel[0] < 0:
                    return False
                if all(self._decide(smaller, fuel) for smaller in alternative):
                    return True
        return any(self._decide(smaller, fuel) for smaller in self._without_extents(form, fuel))

    def _decide(self, form: Linear, fuel: list[int]) -> bool:
        lo, hi = self.interval(form)
        if lo is not None and lo >= 0:
            return True
        return (hi is None or hi >= 0) and not self._is_refuted(form) and self._search(form, fuel)

    def _without_extents(self, form: Linear, fuel: list[int]) -> Iterator[Linear]:
        """The polynomial less what is known to be >= 0 because a loop runs: extent - 1, where that cancels a term."""
        for extent in self.extents.values():
            if len(extent.terms) == 1 and extent.constant == 0 and len(next(iter(extent.terms))) == 1:
                continue  # a size: its interval says so already
            if any((form.terms.get(atoms, 0) > 0) == (n > 0) and atoms in form.terms for atoms, n in extent.terms.items()):
                fuel[0] -= 1
                if fuel[0] < 0:
                    return
                yield shift(add_scaled(form, extent, -1), 1)

    def _eliminable(self, form: Linear) -> list[Expr]:
        """Atoms about which more is known than an interval: operators from the outside in, then variables of inner loops first."""
        atoms = {atom: None for monomial in form.terms for atom in monomial if atom.op is Op.VAR or atom.op in _EXPLAINED}
        operators = [a for a in atoms if a.op in _EXPLAINED]
        operators.sort(key=lambda a: (-len(order_key(a)), order_key(a)))
        symbolic = {atom for monomial in form.terms if len(monomial) > 1 for atom in monomial}
        variables = [a for a in atoms if a.op is Op.VAR and ((a in self.extents and self.extents[a].terms) or a in symbolic)]
        inner_first = {v: n for n, v in enumerate(self.extents)}
        variables.sort(key=lambda a: (-inner_first.get(a, -1), order_key(a)))
        return operators + variables

    def _replacements(self, form: Linear, atom: Expr) -> Iterator[tuple[Linear, ...]]:
        """Alternatives for proving `form` >= 0; of each, all polynomials must be >= 0."""
        factor, rest = split(form, atom)
        if factor is None:
            return
        lo, hi = self.interval(factor)
        if lo is not None and lo >= 0:
            yield from self._from_below(factor, rest, atom)
        elif hi is not None and hi <= 0:
            yield from self._from_above(factor, rest, atom)

    def _from_below(self, factor: Linear, rest: Linear, atom: Expr) -> Iterator[tuple[Linear, ...]]:
        """factor >= 0: the atom is replaced by something not above it."""
        args = atom.args
        if atom.op is Op.FLOORDIV and self.is_positive_divisor(args[1]):
            c, low = linear(args[1]), linear(args[0])
            if factor != _ONE:  # x // c + r >= 0 is x + c * r >= 0, but k * c * (x // c) >= k * (x - c + 1)
                low = shift(add_scaled(low, c, -1), 1)
            yield _combine(_times(rest, c), factor, low)
        elif atom.op is Op.MAX:
            yield from (_combine(rest, factor, linear(a)) for a in args)
        elif atom.op in (Op.MIN, Op.SELECT):
            yield _combine(rest, factor, linear(args[-2])) + _combine(rest, factor, linear(args[-1]))
        bound = self.bounds(atom).lo
        if bound is not None:
            yield _combine(rest, factor, Linear(bound, {}))

    def _from_above(self, factor: Linear, rest: Linear, atom: Expr) -> Iterator[tuple[Linear, ...]]:
        """factor <= 0: the atom is replaced by something not below it."""
        args = atom.args
        if atom.op is Op.VAR and atom in self.extents:
            yield _combine(rest, factor, shift(self.extents[atom], -1))
        elif atom.op is Op.FLOORDIV and self.is_positive_divisor(args[1]):
            c, high = linear(args[1]), linear(args[0])
            if factor == _MINUS_ONE:  # r - x // c >= 0 is c * r + c - 1 - x >= 0, but k * c * (x // c) <= k * x
                high = shift(add_scaled(high, c, -1), 1)
            yield _combine(_times(rest, c), factor, high)
        elif atom.op is Op.FLOORMOD and self.is_positive_divisor(args[1]):
            yield _combine(rest, factor, shift(linear(args[1]), -1))
            low = self.bounds(args[0]).lo
            if low is not None and low >= 0:
                yield _combine(rest, factor, linear(args[0]))
        elif atom.op is Op.MIN:
            yield from (_combine(rest, factor, linear(a)) for a in args)
        elif atom.op in (Op.MAX, Op.SELECT):
            yield _combine(rest, factor, linear(args[-2])) + _combine(rest, factor, linear(args[-1]))
        bound = self.bounds(atom).hi
        if bound is not None:
            yield _combine(rest, factor, Linear(bound, {}))

    def is_positive_divisor(self, e: Expr) -> bool:
        """Whether something that divides is positive: it is not negative, and where the division has a value, it is not 0."""
        lo = self.bounds(e).lo
        return lo is not None and lo >= 0


def _times(a: Linear | None, b: Linear) -> Linear | None:
    return None if a is None else scale(a, b.constant) if not b.terms else multiply(a, b)


def _combine(rest: Linear | None, factor: Linear, value: Linear) -> tuple[Linear, ...]:
    """(rest + factor * value,); when the product is too large to expand, a polynomial that is not >= 0."""
    product = _times(factor, value)
    if rest is None or product is None:
        return (Linear(-1, {}),)
    return (add_scaled(rest, product),)
