"""What is found out before a call about sizes, shapes and room, against the plain evaluation of the formulas."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.formula import Formula, size_name, together
from tilewright.runtime.specs import Room, SizeSolver, SizeSpec, TensorSpec, small_outputs, solve_sizes
from tilewright.support.errors import InputError

F32 = np.dtype(np.float32)
SIZES = (SizeSpec("n", 1, 6), SizeSpec("k", None, None, 2))


def spec(name: str, *dims: str) -> TensorSpec:
    return TensorSpec(name, F32, tuple(Formula(dim) for dim in dims))


INPUTS = (spec("a", "n", "k"), spec("b", "k", "3", "n + k"))


def answer(solve: object, arrays: list[np.ndarray]) -> object:
    try:
        return solve(arrays)  # type: ignore[operator]
    except InputError as error:
        return str(error)


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(0, 8)] * 2), st.tuples(st.integers(0, 8), st.integers(2, 3), st.integers(0, 12)), st.booleans())
def test_the_solver_answers_what_solving_anew_does(a: tuple[int, ...], b: tuple[int, ...], fitting: bool) -> None:
    if fitting:
        b = (a[1], 3, a[0] + a[1])
    arrays = [np.empty(a, F32), np.empty(b, F32)]
    solver = SizeSolver(INPUTS, SIZES)
    assert answer(solver, arrays) == answer(lambda given: solve_sizes(given, INPUTS, SIZES), arrays)


def test_formulas_together_give_what_each_gives() -> None:
    texts = ["n * k", "min(n, k)", "(n - 1) // 2", "7", "select(n < k, n, 0 - k)"]
    formulas = [Formula(text) for text in texts]
    both = together([formulas[:2], None, formulas[2:]], ("k", "n"))
    for n, k in product(range(4), range(4)):
        values = [formula({"n": n, "k": k}) for formula in formulas]
        assert both(k, n) == (tuple(values[:2]), None, tuple(values[2:]))


@pytest.mark.parametrize(
    ("dim", "name"),
    [
        ("batch", "batch"),
        ("batch size", "batch_size"),
        ("2x", "n2x"),
        ("lambda", "lambda_"),
        ("None", "None_"),
        ("max", "max_"),
        ("n²", "n2"),
        ("ﬁ", "fi"),
    ],
)
def test_any_dim_has_a_name_in_formulas(dim: str, name: str) -> None:
    assert size_name(dim) == name
    assert Formula(f"{name} * 2")({name: 3}) == 6


def test_room_refuses_negative_dims_and_leaves_late_outputs_out() -> None:
    room = Room([spec("y", "n - 2", "k"), None], Formula("4 * n"), ("n", "k"))
    assert room({"n": 3, "k": 5}) == ([(1, 5), None], 12)
    with pytest.raises(InputError, match=r"the output 'y' would have shape \[-1, 5\]"):
        room({"n": 1, "k": 5})


def test_small_outputs_are_small_and_fixed() -> None:
    assert small_outputs([spec("y", "2", "3"), spec("z")]) == [((2, 3), F32), ((), F32)]
    assert small_outputs([spec("y", "2", "3"), spec("z", "n")]) is None
    assert small_outputs([spec("y", "1000", "1000")]) is None
