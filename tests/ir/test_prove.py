"""Comparisons of sums inside loops, against evaluation at every point."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.affine import linear, to_expr
from tilewright.ir.expr import Expr, ceildiv, const, size, var
from tilewright.ir.prove import at_most, larger, nonnegative, prove_equal, smaller
from tilewright.ir.traverse import evaluate_int

ROW, COLUMN = var("i"), var("j")
N = size("n", 1)
EXTENTS = {ROW: const(3), COLUMN: N}


def sums() -> st.SearchStrategy[Expr]:
    terms = st.sampled_from([ROW, COLUMN, N, ceildiv(N, const(4)) * 4, (ROW * 5 + COLUMN) // 3, COLUMN % 4])
    return st.lists(st.tuples(terms, st.integers(-3, 3)), min_size=1, max_size=3).map(
        lambda parts: sum((t * c for t, c in parts), const(0))
    )


def points(n: int) -> list[dict[Expr, int]]:
    return [{ROW: i, COLUMN: j, N: n} for i, j in product(range(3), range(n))]


@given(a=sums(), b=sums(), n=st.integers(1, 9))
def test_what_is_proved_holds(a: Expr, b: Expr, n: int) -> None:
    low, high = to_expr(smaller(linear(a), linear(b), EXTENTS)), to_expr(larger(linear(a), linear(b), EXTENTS))
    below, positive = at_most(a, b, EXTENTS), nonnegative(linear(a), EXTENTS)
    for point in points(n):
        x, y = evaluate_int(a, point), evaluate_int(b, point)
        assert not below or x <= y
        assert not positive or x >= 0
        assert (evaluate_int(low, point), evaluate_int(high, point)) == (min(x, y), max(x, y))


def test_rounding_up_cancels() -> None:
    whole = ceildiv(N, const(8)) * 8
    assert at_most(N, whole)
    assert at_most(whole, N + 7)
    assert not at_most(whole, N)
    multiple = size("m", 0, None, 8)
    assert prove_equal(ceildiv(multiple, const(8)) * 8, multiple)
    assert at_most(ceildiv(multiple, const(8)) * 8, multiple)
