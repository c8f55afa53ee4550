"""Engines in processes of their own take turns, and those whose turn it is not are stopped."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.taking_turns import Engine, in_turns

ROOT = Path(__file__).resolve().parents[2]


def engine(run: str) -> list[str]:
    """A command that serves calls of `run`, a statement."""
    return [
        sys.executable,
        "-c",
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r})\nfrom benchmarks.taking_turns import serve\ndef run(): {run}\nserve(run)",
    ]


def test_each_round_has_a_median_of_each_engine() -> None:
    short, long = in_turns([engine("time.sleep(0.001)"), engine("time.sleep(0.004)")], 2, 0.01, 60)
    assert len(short) == len(long) == 2
    assert min(short) >= 0.001
    assert min(long) >= 0.004


def test_an_engine_that_fails_ends_the_measurement() -> None:
    with pytest.raises(RuntimeError, match="exit code 3"):
        in_turns([engine("time.sleep(0)"), [sys.executable, "-c", "raise SystemExit(3)"]], 1, 0.01, 60)


def test_only_the_engine_whose_turn_it_is_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """States of the processes while each has its turn, as the system tells them: T is stopped."""
    engines: dict[int, Engine] = {}
    states: list[str] = []
    turn = Engine.turn

    def state(other: Engine) -> str:
        return Path(f"/proc/{other.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def watched(self: Engine, seconds: float, timeout: float) -> float:
        engines[self.process.pid] = self
        found = turn(self, seconds, timeout)
        time.sleep(0.05)
        states.extend(map(state, engines.values()))
        return found

    monkeypatch.setattr(Engine, "turn", watched)
    in_turns([engine("time.sleep(0.001)")] * 2, 2, 0.01, 60)
    assert set(states) == {"T"}
