"""What is rounding, and what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.accuracy.judge import ORDINARY, PATIENCE, SURE, Judge, judge_of_module, within_tolerance
from tilewright.accuracy.rounding_noise import Memory, NoisyInterpreter, Spread
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Parameter
from tilewright.graph.ops import Binary, Cast, Constant, ConstantData, Unary
from tilewright.ir import dtypes
from tilewright.ir.types import tensor


def module(*functions: str, count: int = 1000, integers: bool = False) -> Module:
    """x / 3, then unary functions in a row, and at the end as int64 if it shall be."""
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (count,))))
    value = g.one(Binary("div"), x, g.one(Constant(ConstantData(np.full((1,), 3, np.float32)))))
    for fn in functions:
        value = g.one(Unary(fn), value)
    if integers:
        value = g.one(Cast(dtypes.int64), value)
    return Module({"main": Function("main", (x,), (value,))}, "main", ("x",), ("y",))


def judge(of: Module, x: np.ndarray) -> Judge:
    return judge_of_module(of, [x], interpret(of, [x]))


@pytest.mark.parametrize("integers", [False, True])
def test_elements_near_a_tie_may_fall_either_way_and_no_others(integers: bool) -> None:
    x = np.arange(1000, dtype=np.float32) * 100
    x[7] = 3 * np.float32(2.5)  # x / 3 is a tie
    of = module("round", integers=integers)
    (right,) = interpret(of, [x])
    up = right.copy()
    up[7] = 3
    (verdict,) = judge(of, x)([up], tolerance=None)
    assert verdict.ok
    assert verdict.rounding is (integers or verdict.error.relative > 1e-5)
    for place in (8, 999):
        wrong = right.copy()
        wrong[place] += 100
        (verdict,) = judge(of, x)([wrong])
        assert not verdict.ok
        assert f"first at [{place}]" in verdict.wrong
    (verdict,) = judge(of, x)([right[:-1]])
    assert not verdict.ok


def test_what_moves_in_proportion_is_bounded_by_rounding_alone() -> None:
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    of = module("neg")
    (right,) = interpret(of, [x])
    wrong = right.copy()
    wrong[3] *= 1.01
    assert not judge(of, x)([wrong])[0].ok
    assert judge(of, x)([right * (1 + 1e-6)])[0].ok


def test_another_account_is_judged_by_the_same_errors() -> None:
    x = np.asarray([1, 7.5, 7.5, 7.5], np.float32)  # a third of 1 is not exact, and so errors are added to all
    of = module("round", count=4, integers=True)
    up, down = np.asarray([0, 3, 3, 3]), np.asarray([0, 2, 2, 2])
    assert judge(of, x)([up], [down])[0].rounding
    assert not judge(of, x * 100)([up], [down])[0].ok


def test_functions_of_other_runtimes_may_be_off_in_units_of_one() -> None:
    x = np.linspace(-60, -45, 100, dtype=np.float32)  # sigmoid of a third of that: from 2e-9 to 3e-7
    of = module("sigmoid", count=100)
    (right,) = interpret(of, [x])
    ours = judge(of, x)
    theirs = Judge(ours.base, ours.again, of, absolute=True)
    assert not ours([np.zeros_like(right)])[0].ok
    assert theirs([np.zeros_like(right)])[0].rounding
    assert not theirs([right + np.float32(1e-4)])[0].ok


def test_a_tolerance_counts_alone() -> None:
    x = np.full(4, 3 * np.float32(2.5), np.float32)
    of = module("round", count=4, integers=True)
    assert not judge(of, x)([np.full(4, 3)], [np.full(4, 2)], tolerance=0.1)[0].ok
    (verdict,) = within_tolerance([np.full(4, 3)], [np.full(4, 2)], 0.6)
    assert verdict.ok


def test_nothing_runs_again_for_what_is_within_tolerance() -> None:
    def again(noisy: NoisyInterpreter) -> list[np.ndarray]:
        raise AssertionError

    y = np.linspace(1, 2, 100, dtype=np.float32)
    assert Judge([y], again)([y * np.float32(1 + 1e-6)])[0].ok
    with pytest.raises(AssertionError):
        Judge([y], again)([y * np.float32(1.1)])


def test_no_more_runs_are_made_than_it_takes() -> None:
    runs: list[float] = []

    def again(noisy: NoisyInterpreter) -> list[np.ndarray]:
        runs.append(noisy.scale)
        return [y * (1 + noisy.scale * noisy.rng.uniform(-1e-4, 1e-4, y.shape).astype(np.float32))]

    y = np.linspace(1, 2, 100, dtype=np.float32)
    of = Judge([y], again)
    assert of([y * np.float32(1 + 1e-4)])[0].rounding
    assert len(runs) == 1
    assert of([y * np.float32(1 + 1e-4)])[0].rounding
    assert len(runs) == 1
    assert not of([y * np.float32(10)])[0].ok
    assert len(runs) == SURE
    assert not of([y * np.float32(1.05)])[0].ok
    assert runs == [1.0] * ORDINARY
    of._memory.jumps = True  # then larger errors may find what it is
    assert not of([y * np.float32(10)])[0].ok
    assert runs == [1.0] * ORDINARY + [8.0] * (PATIENCE - 1)


def test_a_factor_on_everything_shows_in_the_mean() -> None:
    """Each element is within what is allowed of it."""

    def again(noisy: NoisyInterpreter) -> list[np.ndarray]:
        return [y * (1 + noisy.rng.uniform(-1e-4, 1e-4, y.shape).astype(np.float32))]

    y = np.linspace(1, 2, 1000, dtype=np.float32)
    assert Judge([y], again)([y * np.float32(1 + 3e-4)])[0].rounding
    wrong = y * np.float32(1 + 1e-3)
    ours = Judge([y], again)
    (verdict,) = ours([wrong])
    assert "on average" in verdict.wrong
    assert ours._runs == ORDINARY
    ours._memory.jumps = True  # a jump of one element says nothing of the others
    assert ours([wrong])[0].rounding


def test_what_jumps_is_known_after_a_run() -> None:
    x = np.linspace(1, 2, 100, dtype=np.float32)
    for functions, jumps in (["exp", "tanh"], False), (["exp", "floor"], True):
        ours = judge(module(*functions, count=100), x)
        assert not ours([x + 1000])[0].ok
        assert ours._memory.jumps is jumps


def test_overflow_is_a_jump_that_needs_no_operator() -> None:
    """exp(x / 3) is just below the greatest number, by more than errors of ordinary size make."""
    x = np.full(10, 3 * (np.log(np.finfo(np.float32).max) - 4e-5)).astype(np.float32)
    ours = judge(module("exp", count=10), x)
    assert np.isfinite(ours.base[0]).all()
    assert ours([np.full(10, np.inf, np.float32)])[0].rounding
    assert not ours._memory.jumps
    assert not judge(module("exp", count=10), x - 1)([np.full(10, np.inf, np.float32)])[0].ok


def test_operators_that_round_are_run_once_by_later_noisy_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    original = Unary.reference
    monkeypatch.setattr(Unary, "reference", lambda self, inputs: (ran.append(self.fn), original(self, inputs))[1])
    x = np.linspace(1, 2, 100, dtype=np.float32)
    memory, of = Memory(), module("exp", "tanh", count=100)
    results = []
    for _ in range(2):
        ran.clear()
        results.append(NoisyInterpreter(np.random.default_rng(0), of, memory=memory).run(of.main, [x], {})[0])
    assert ran == ["exp", "tanh"]
    np.testing.assert_array_equal(*results)


def test_a_number_that_is_none_in_another_run_is_not_compared() -> None:
    spread = Spread(np.asarray([1.0, np.nan, np.nan, np.inf], np.float32))
    spread.add(np.asarray([1.0, np.nan, 2.0, np.inf], np.float32))
    expected = spread.expected()
    assert expected is not None
    assert expected.compared.tolist() == [True, True, False, True]
    spread.add(np.asarray([np.nan, np.nan, 2.0, np.inf], np.float32))
    again = spread.expected()
    assert again is not None
    assert again.compared.tolist() == [False, True, False, True]
