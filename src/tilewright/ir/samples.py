"""A few points inside known ranges, to give up early: what is negative at one of them cannot be proved to be >= 0.

Searching for a proof that does not exist is what costs a prover its time; evaluating at a point costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.affine import Linear
from tilewright.ir.bounds import Interval
from tilewright.ir.expr import Expr
from tilewright.ir.traverse import evaluate_int

# Of each point: which size (multiples above the least one), and where between its first and last value each loop variable is, in halves.
_POINTS = ((0, 0), (0, 2), (5, 0), (5, 2), (18, 1))


class Point(dict[Expr, int]):
    """Values of variables. Sizes get one when they are first asked for; `steps` tells which."""

    __slots__ = ("_env", "_known", "_steps", "_without")

    def __init__(self, env: Mapping[Expr, Interval], steps: int) -> None:
        super().__init__()
        self._env, self._steps = env, steps
        self._known: dict[Expr, int] = {}
        self._without: set[Expr] = set()  # what has no value

    def __missing__(self, variable: Expr) -> int:
        info, given = variable.attr, self._env.get(variable, Interval(None, None))
        low = max([1, *(x for x in (info.lo, given.lo) if x is not None)])
        high = min([x for x in (info.hi, given.hi) if x is not None], default=None)
        value: int = -(-low // info.multiple) * info.multiple + (self._steps + len(variable.name) % 3) * info.multiple
        if high is not None and value > high:
            value = high // info.multiple * info.multiple
        self[variable] = value
        return value

    def value(self, e: Expr) -> int | None:
        """The value of an integer expression; None where it has none or depends on data."""
        if e in self._without:
            return None
        try:
            return evaluate_int(e, self, self._known)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._without.add(e)
            return None

    def total(self, form: Linear) -> int | None:
        """The value of a polynomial."""
        result = form.constant
        for atoms, coefficient in form.terms.items():
            for atom in atoms:
                value = self.value(atom)
                if value is None:
                    return None
                coefficient *= value
            result += coefficient
        return result


def sample_points(env: Mapping[Expr, Interval], extents: Mapping[Expr, Linear]) -> list[Point]:
    """Points where every interval of `env` holds and every loop runs; `extents` are those of loops, outer ones first."""
    found = []
    for steps, halves in _POINTS:
        point = Point(env, steps)
        for variable, extent in extents.items():
            count = point.total(extent)
            if count is None or count <= 0:
                break
            point[variable] = (count - 1) * halves // 2
        else:
            if all(_holds(point.value(node), interval) for node, interval in env.items()):
                found.append(point)
    return found


def _holds(value: int | None, interval: Interval) -> bool:
    return value is not None and value in interval
