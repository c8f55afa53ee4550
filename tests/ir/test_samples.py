"""Sample points lie inside what is known, and refute only what is false."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.affine import linear
from tilewright.ir.bounds import Interval
from tilewright.ir.dtypes import float32, int64
from tilewright.ir.expr import Expr, cast, ceildiv, const, load, size, var
from tilewright.ir.facts import Facts
from tilewright.ir.samples import sample_points
from tilewright.ir.traverse import evaluate_int
from tilewright.kernel.nodes import Buffer

N, M = size("n", 3, 40, 4), size("m")
ROW, COLUMN = var("i"), var("j")
EXTENTS = {ROW: ceildiv(N, const(8)), COLUMN: M - ROW}


def test_points_are_inside() -> None:
    points = sample_points({N: Interval(None, 30), M: Interval(2, None)}, {v: linear(e) for v, e in EXTENTS.items()})
    assert len({(p[N], p[M], p[ROW], p[COLUMN]) for p in points}) >= 4
    for point in points:
        assert point[N] in range(4, 31, 4)
        assert point[M] >= 2
        assert all(0 <= point[v] < evaluate_int(extent, point) for v, extent in EXTENTS.items())


def test_loops_that_do_not_run_give_no_points() -> None:
    assert sample_points({}, {ROW: linear(const(0))}) == []


def test_what_depends_on_data_has_no_value() -> None:
    (point, *_) = sample_points({}, {})
    for buffer, indices in ((Buffer("x", int64, (const(8),)), (ROW,)), (Buffer("s", int64, ()), ())):
        assert point.value(load(buffer, indices) // 2 + ROW) is None
    assert point.value(cast(int64, load(Buffer("f", float32, ()), ()))) is None
    assert point.value(const(5) // (ROW - ROW)) is None


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(-9, 9), st.integers(1, 6))
def test_true_things_are_still_proved(a: int, b: int, c: int, extent: int) -> None:
    facts = Facts({}, {ROW: const(extent), COLUMN: M})
    least = min(0, a * (extent - 1)) + c
    proved = facts.nonnegative(linear(ROW * a + (M - COLUMN) * b + c))
    assert proved == (b >= 0 and least + b >= 0)


def test_shared_parts_are_evaluated_once() -> None:
    e: Expr = ROW
    for _ in range(40):
        e = (e % 7) * 3 + e // 2 + (e % 7)
    (point, *_) = sample_points({}, {})
    assert point.value(e) == evaluate_int(e, {ROW: point[ROW]})
