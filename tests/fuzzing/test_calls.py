"""The ways in which the fuzzer calls what it compiles: a fault in the runtime that shows in one of them only is found."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.fuzzing import calls
from tilewright.fuzzing.cases import Case, How, case_of, run_case
from tilewright.graph.text_parser import parse_module
from tilewright.runtime import executable as runtime
from tilewright.runtime import recycled
from tilewright.runtime.executable import Executable

TEXT = """
def main(x: float32[n, 6], w: float32[6, 4]):
    v0 = contract(x, w, spec="mk,kn->mn", dtype=float32)
    v1 = unary(v0, fn="tanh")
    v2 = contract(v1, w, spec="mk,nk->mn", dtype=float32)
    return v2
"""


def example(sizes: tuple[int, ...] = (3, 7), **how: Any) -> Case:
    rng = np.random.default_rng(3)
    weights = rng.integers(-4, 5, (6, 4)).astype(np.float32)
    inputs = tuple((rng.integers(-4, 5, (n, 6)).astype(np.float32) / 4, weights) for n in sizes)
    return Case(parse_module(TEXT).main, inputs, How("cpu", 3, 2, **how), 0)


def found(**how: Any) -> str:
    finding = run_case(example(**how))
    return "" if finding is None else finding.text


EVERY = {"saved": True, "limited": True, "callers": 3}


@pytest.mark.parametrize("passed", calls.PASSED)
def test_all_ways_give_the_same(passed: str) -> None:
    assert found(passed=passed, **EVERY) == ""


def test_cases_draw_all_ways() -> None:
    hows = [case_of(seed).how for seed in range(60)]
    assert {how.passed for how in hows} == set(calls.PASSED)
    for name in ("saved", "limited"):
        assert {getattr(how, name) for how in hows} == {False, True}, name
    assert {how.callers for how in hows} == {1, 3}


def test_an_array_that_is_not_contiguous_must_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_argument", lambda value, spec, shape: value)
    assert found(passed="plain") == ""
    assert "wrong" in found(passed="strided")


def test_other_bits_for_the_same_inputs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right, numbers = Executable.run, itertools.count()

    def drifting(self: Executable, inputs: Any) -> Any:
        last = next(numbers)
        return {name: np.nextafter(y, np.float32(9), dtype=y.dtype) if last == 2 else y for name, y in right(self, inputs).items()}

    monkeypatch.setattr(Executable, "run", drifting)
    assert "other bits" in found()


def test_a_file_that_says_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = calls.load

    def damaged(path: Any, verify: bool) -> Any:
        artifact = right(path, verify)
        return replace(artifact, manifest={**artifact.manifest, "outputs": artifact.manifest["outputs"][::-1] * 2})

    monkeypatch.setattr(calls, "load", damaged)
    assert found() == ""
    assert found(saved=True)


def test_memory_that_is_not_announced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Executable.memory
    monkeypatch.setattr(Executable, "memory", lambda self, **sizes: {**right(self, **sizes), "arena": right(self, **sizes)["arena"] - 1})
    assert found() == ""
    assert "is refused" in found(limited=True)
    monkeypatch.setattr(Executable, "memory", lambda self, **sizes: {**right(self, **sizes), "arena": right(self, **sizes)["arena"] + 1})
    assert "is not refused" in found(limited=True)


def test_a_result_that_does_not_fit_where_an_earlier_one_was_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is larger by a few bytes only."""

    def whole(self: recycled.RecycledOutput, size: int) -> Any:
        fitting = [entry for entry in self._kept if size <= entry[0].nbytes]
        return fitting[0] if fitting else None

    assert found(sizes=(5, 6)) == ""
    monkeypatch.setattr(recycled.RecycledOutput, "_free", whole)
    assert "in memory of earlier results" in found(sizes=(5, 6))


def test_a_runtime_that_serves_one_caller_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Executable.run
    busy = threading.Semaphore(1)

    def alone(self: Executable, inputs: Any) -> Any:
        if not busy.acquire(blocking=False):
            raise RuntimeError("two calls at once")
        try:
            time.sleep(0.02)
            return right(self, inputs)
        finally:
            busy.release()

    monkeypatch.setattr(Executable, "run", alone)
    assert found() == ""
    assert "two calls at once" in found(callers=3)
