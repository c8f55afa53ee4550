"""Winograd's minimal filtering F(m, r): m neighbouring results of a filter with r taps from m + r - 1 products.

    y = A^T [(G w) * (B^T x)]      x: m + r - 1 inputs, w: r taps, * element by element

The matrices come from the Toom-Cook construction over interpolation points (Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", 2016; Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution", 2020). The points decide the
rounding error: what was measured for them is in docs/decisions/011-winograd.md. In several dimensions each axis is transformed in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from itertools import combinations
from math import prod

import numpy as np

from tilewright.graph.node import Array
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, equal, select

Matrix = tuple[tuple[Fraction, ...], ...]

# Finite points for each number of them; infinity comes on top. Symmetric pairs let rows share sums; products of the values are exact.
POINTS: dict[int, tuple[Fraction, ...]] = {
    0: (),
    1: (Fraction(0),),
    2: (Fraction(0), Fraction(1)),
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1), Fraction(2)),
    5: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}
LONGEST = max(POINTS) + 1  # inputs of a transform


@dataclass(frozen=True, slots=True)
class Transforms:
    """The matrices of F(m, r): `inputs` B^T [n, n], `weights` G [n, r], `outputs` A^T [m, n], with n = m + r - 1."""

    inputs: Matrix
    weights: Matrix
    outputs: Matrix

    @property
    def amplification(self) -> float:
        """How many times the rounding errors of a direct sum the worst error can be, along one axis: the product of the infinity norms."""
        return float(prod(max(sum(map(abs, row)) for row in matrix) for matrix in (self.inputs, self.weights, self.outputs)))


@cache
def transforms(m: int, r: int) -> Transforms:
    """The matrices of F(m, r). Raises KeyError where no points are known for so long a transform."""
    points = POINTS[m + r - 2]
    zero, one = Fraction(0), Fraction(1)

    def powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
        return tuple(point**exponent for exponent in range(count))

    def without(skipped: Fraction | None) -> tuple[Fraction, ...]:
        return _polynomial([point for point in points if point != skipped])

    def scale(point: Fraction) -> Fraction:
        return reduce(lambda product, other: product * (point - other), (other for other in points if other != point), one)

    inputs = (*((*without(point), zero) for point in points), without(None))
    weights = (*(tuple(c / scale(point) for c in powers(point, r)) for point in points), (*(zero,) * (r - 1), one))
    outputs = tuple((*(point**row for point in points), one if row == m - 1 else zero) for row in range(m))
    return Transforms(inputs, weights, outputs)


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of (x - root), the constant first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        for power, coefficient in enumerate(found):
            shifted[power] -= root * coefficient
        found = shifted
    return tuple(found)


def as_array(matrix: Matrix) -> Array:
    """The matrix in float64."""
    return np.array([[float(c) for c in row] for row in matrix])


def apply_along(array: Array, axis: int, matrix: Matrix) -> Array:
    """`array` (float64) with one axis multiplied by the matrix."""
    return np.moveaxis(np.tensordot(as_array(matrix), array, (1, axis)), 0, axis)


def products(matrix: Matrix, values: Sequence[Expr]) -> list[Expr]:
    """matrix @ values, equal parts being one node. Two rows that differ only in signs share their sums, even + odd and even - odd; so do
    two columns."""
    rows: list[Expr | None] = [None] * len(matrix)
    for i, k in combinations(range(len(matrix)), 2):
        if rows[i] is not None or rows[k] is not None or not _mirrored(matrix[i], matrix[k]):
            continue
        odd = [a != b for a, b in zip(matrix[i], matrix[k], strict=True)]
        even_sum = _sum([(c, v) for c, v, o in zip(matrix[i], values, odd, strict=True) if not o])
        lead = next(c for c, o in zip(reversed(matrix[i]), reversed(odd), strict=True) if o)  # quotients stay exact
        odd_sum = _sum([(c / lead, v) for c, v, o in zip(matrix[i], values, odd, strict=True) if o])
        rows[i], rows[k] = _plus(even_sum, lead, odd_sum), _plus(even_sum, -lead, odd_sum)
    left = [i for i, row in enumerate(rows) if row is None]
    for i, row in zip(left, _by_columns([matrix[i] for i in left], values), strict=True):
        rows[i] = row
    return [row for row in rows if row is not None]


def _mirrored(a: Sequence[Fraction], b: Sequence[Fraction]) -> bool:
    kinds = {(x == y, x == -y) for x, y in zip(a, b, strict=True)} - {(True, True)}
    return kinds == {(True, False), (False, True)}


def _by_columns(rows: Sequence[Sequence[Fraction]], values: Sequence[Expr]) -> list[Expr]:
    """The rows' sums; two columns that differ only in signs meet as the sum and the difference of their values."""
    if len(rows) < 2:
        return [_sum(list(zip(row, values, strict=True))) for row in rows]
    columns = list(zip(*rows, strict=True))
    terms: list[list[tuple[Fraction, Expr]]] = [[] for _ in rows]
    taken: set[int] = set()
    for j, column in enumerate(columns):
        if j in taken:
            continue
        mate = next((k for k in range(j + 1, len(columns)) if k not in taken and _mirrored(column, columns[k])), None)
        if mate is None:
            for row, c in enumerate(column):
                terms[row].append((c, values[j]))
            continue
        taken.add(mate)
        total, difference = values[j] + values[mate], values[j] - values[mate]
        for row, c in enumerate(column):
            terms[row].append((c, total if c == columns[mate][row] else difference))
    return [_sum(row) for row in terms]


def _sum(terms: Sequence[tuple[Fraction, Expr]]) -> Expr:
    """The sum of coefficient * value; those with coefficient 1 first, so that each other term is one multiply-add."""
    wanted = sorted((t for t in terms if t[0] != 0), key=lambda t: (t[0] != 1, t[0] != -1))
    if not wanted:
        return const(0, dtypes.float32)
    (c, first), rest = wanted[0], wanted[1:]
    total = first if c == 1 else first * const(float(c), dtypes.float32)
    for c, value in rest:
        total = _plus(total, c, value)
    return total


def _plus(total: Expr, c: Fraction, value: Expr) -> Expr:
    if c == 1:
        return total + value
    return total - value if c == -1 else total + value * const(float(c), dtypes.float32)


def chosen(position: Expr, values: Sequence[Expr]) -> Expr:
    """values[position], 0 <= position < len(values)."""
    result = values[-1]
    for i in reversed(range(len(values) - 1)):
        result = select(equal(position, const(i)), values[i], result)
    return result
