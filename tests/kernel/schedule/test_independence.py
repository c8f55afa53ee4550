"""What legality says of indices is true of every iteration: by trying all of them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.expr import Expr, const, var
from tilewright.ir.traverse import evaluate_int
from tilewright.kernel.schedule.legality import determines

NAMES = ("i", "j", "k")


@st.composite
def index(draw: st.DrawFn) -> Expr:
    """A sum of variables with weights, perhaps a digit of it, as split and fuse make them."""
    total: Expr = const(draw(st.integers(0, 3)))
    for name in NAMES:
        total = total + var(name) * draw(st.integers(0, 6))
    kind = draw(st.sampled_from(("sum", "sum", "quotient", "remainder", "digit")))
    a, b = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    match kind:
        case "quotient":
            return total // a
        case "remainder":
            return total % a
        case "digit":
            return total // a % b
    return total


@given(st.lists(index(), min_size=1, max_size=2), st.tuples(*[st.integers(1, 6)] * 3))
def test_indices_that_tell_an_iteration_differ_between_iterations(indices: list[Expr], extents: tuple[int, int, int]) -> None:
    moving = {var(name): const(extent) for name, extent in zip(NAMES, extents, strict=True)}
    for wanted, name in enumerate(NAMES):
        if not determines(indices, var(name), moving):
            continue
        seen: dict[tuple[int, ...], int] = {}
        for point in itertools.product(*map(range, extents)):
            at = {var(n): value for n, value in zip(NAMES, point, strict=True)}
            values = tuple(evaluate_int(e, at) for e in indices)
            assert seen.setdefault(values, point[wanted]) == point[wanted], f"{indices} at {point}"


@given(st.integers(1, 6), st.integers(1, 8), st.integers(2, 6))
def test_two_digits_are_told_apart_where_they_do_not_overlap(weight: int, inner: int, outer: int) -> None:
    i, j = var("i"), var("j")
    moving = {i: const(outer), j: const(inner)}
    assert determines([i * weight + j], i, moving) == (inner <= weight)
