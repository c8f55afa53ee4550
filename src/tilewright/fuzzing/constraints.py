"""Satisfying constraints on bounded integers: intervals are narrowed until nothing changes, values come from bins, dead ends are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.bounds import Interval, bounds, intersect
from tilewright.ir.expr import Expr, size
from tilewright.ir.traverse import evaluate_int, free_vars

# Values are drawn bin by bin: one, few, powers of two and their neighbours, odd numbers. What is in no bin comes last.
BINS = ((1,), (2, 3, 4), (8, 16, 32, 64), (7, 9, 15, 17, 31, 33, 63, 65), (5, 11, 13, 19, 21, 25, 27))
FUEL = 400  # values that one search tries

Domains = dict[Expr, Interval]
Values = dict[Expr, int]


@dataclass(frozen=True, slots=True)
class Constraint:
    """An integer expression lies in an interval; `a == b` is a - b in [0, 0]."""

    e: Expr
    within: Interval
    unknowns: tuple[Expr, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "unknowns", free_vars(self.e))

    def holds(self, values: Values) -> bool:
        return evaluate_int(self.e, values) in self.within


def equal(a: Expr, b: Expr) -> Constraint:
    return Constraint(a - b, Interval(0, 0))


@dataclass(slots=True)
class Solver:
    """Unknowns with their ranges, and what must hold of them. `witness` satisfies all constraints so far."""

    rng: np.random.Generator
    domains: Domains = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)
    witness: Values = field(default_factory=dict)

    def unknown(self, low: int, high: int, value: Expr | None = None) -> Expr:
        """A new unknown from low to high, which is to have this value."""
        v = size(f"u{len(self.domains)}", low, high)
        first = low if value is None else min(max(evaluate_int(value, self.witness), low), high)
        self.domains[v], self.witness[v] = Interval(low, high), first
        return v

    def add(self, constraints: Sequence[Constraint]) -> bool:
        """Take these constraints too, unless no values are found that satisfy them and all others."""
        together = [*self.constraints, *constraints]
        wrong = {v for constraint in constraints if not constraint.holds(self.witness) for v in constraint.unknowns}
        if wrong or not all(constraint.holds(self.witness) for constraint in constraints):
            # Often it is enough to change what is wrong.
            others = {v: Interval(n, n) for v, n in self.witness.items() if v not in wrong}
            found = self._search({**self.domains, **others}, together, self.witness) or self._search(self.domains, together, self.witness)
            if found is None:
                return False
            self.witness = found
        self.constraints += constraints
        return True

    def solve(self) -> Values:
        """Values of all unknowns, random ones out of the bins."""
        return self._search(self.domains, self.constraints) or self.witness

    def _search(self, domains: Domains, constraints: Sequence[Constraint], near: Values | None = None) -> Values | None:
        narrowed = propagate(domains, constraints)
        return None if narrowed is None else self._assign(narrowed, constraints, near or {}, [FUEL])

    def _assign(self, domains: Domains, constraints: Sequence[Constraint], near: Values, fuel: list[int]) -> Values | None:
        """Values within the domains, found by trying those of one unknown after the other: first that of `near`, then those of bins."""
        open_ = [v for v, domain in domains.items() if not domain.is_point]
        if not open_:
            values = {v: _ends(domain)[0] for v, domain in domains.items()}
            return values if all(constraint.holds(values) for constraint in constraints) else None
        v = open_[int(self.rng.integers(len(open_)))]
        first = [near[v]] if near.get(v) in domains[v] else []
        for value in (*first, *binned(self.rng, *_ends(domains[v]))):
            fuel[0] -= 1
            if fuel[0] < 0:
                return None
            narrowed = propagate({**domains, v: Interval(value, value)}, constraints, (v,))
            found = None if narrowed is None else self._assign(narrowed, constraints, near, fuel)
            if found is not None:
                return found
        return None


def binned(rng: np.random.Generator, low: int, high: int) -> list[int]:
    """All integers from low to high in a random order, whole bins first."""
    order = [[n for n in BINS[int(i)] if low <= n <= high] for i in rng.permutation(len(BINS))]
    first = [n for part in order for n in rng.permutation(part).tolist()]
    met = set(first)
    rest = [n for n in range(low, high + 1) if n not in met]
    return [*first[:3], *(int(n) for n in rng.permutation([*first[3:], *rest]))]


def _ends(domain: Interval) -> tuple[int, int]:
    assert domain.lo is not None
    assert domain.hi is not None
    return domain.lo, domain.hi


def propagate(domains: Domains, constraints: Sequence[Constraint], changed: Sequence[Expr] | None = None) -> Domains | None:
    """The domains without values that interval arithmetic shows to satisfy some constraint nowhere; None where none are left. `changed`:
    unknowns whose constraints are looked at first, all if not given."""
    domains = dict(domains)
    pending = set(domains) if changed is None else set(changed)
    while pending:
        look, pending = pending, set[Expr]()
        for constraint in constraints:
            if not look.isdisjoint(constraint.unknowns) and not always((constraint,), domains):
                for v in constraint.unknowns:
                    narrow = _shaved(constraint, v, domains)
                    if narrow is None:
                        return None
                    if narrow != domains[v]:
                        domains[v] = narrow
                        pending.add(v)
    return domains


def _shaved(constraint: Constraint, v: Expr, domains: Domains) -> Interval | None:
    """The domain of v between its least and its greatest value that may satisfy the constraint, both found by bisection."""

    env = {u: domains[u] for u in constraint.unknowns}

    def possible(low: int, high: int) -> bool:
        env[v] = Interval(low, high)
        found = intersect(bounds(constraint.e, env), constraint.within)
        return found.lo is None or found.hi is None or found.lo <= found.hi

    low, high = _ends(domains[v])
    if not possible(low, high):
        return None
    first, least = (low, low) if possible(low, low) else (low + 1, high)
    while first < least:  # some value up to `least` is possible as far as intervals tell
        middle = (first + least) // 2
        first, least = (first, middle) if possible(low, middle) else (middle + 1, least)
    most, last = (high, high) if possible(high, high) else (least, high - 1)
    while most < last:
        middle = (most + last + 1) // 2
        most, last = (middle, last) if possible(middle, high) else (most, middle - 1)
    return Interval(least, most) if least <= most else None


def always(constraints: Sequence[Constraint], domains: Domains) -> bool:
    """Whether the constraints certainly hold for all values of these domains."""
    ranges = [(bounds(c.e, domains), c.within) for c in constraints]
    return all(intersect(found, within) == found for found, within in ranges)
