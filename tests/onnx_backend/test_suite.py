"""The ONNX backend suite: a fixed sample compiled and run, and what the full runs found."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx_backend.cases import load_cases, settled
from tests.onnx_backend.records import SUMMARY, read_failing
from tests.onnx_backend.run import main
from tests.onnx_backend.suite import FAULTS, Result, run_suite
from tilewright.ir import dtypes
from tilewright.ir.scalar_ops import integer_of

# The others are run by `python -m tests.onnx_backend.run`. Offsets differ, so that the variants meet different cases.
SAMPLES = {"static": (0, 16, {}), "symbolic": (7, 32, {}), "unoptimised": (3, 48, {"opt_level": 0})}


def unexpected(results: list[Result], variant: str) -> list[str]:
    """Results that differ from the stored list. Another version of onnx has other cases and other expected results: there, only what
    is wrong counts."""
    listed = read_failing(variant)
    found = []
    for result in results:
        passes = result.outcome in ("pass", "same")
        differs = passes == (result.case in listed.cases) if listed.onnx == onnx.__version__ else result.outcome in FAULTS
        if differs:
            found.append(f"{result.case}: {result.outcome} {result.reason}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_exactly_the_cases_that_are_not_listed_pass(sample: str) -> None:
    start, step, settings = SAMPLES[sample]
    variant = "symbolic" if sample == "symbolic" else "static"
    results = run_suite(list(load_cases())[start::step], [variant], settings=settings)
    assert len(results) > 30
    assert unexpected(results, variant) == []


@pytest.mark.parametrize("target", [dtypes.int4, dtypes.uint4, dtypes.int2, dtypes.uint2], ids=str)
@pytest.mark.parametrize("outside", [0, -1])
def test_casts_past_the_range_are_expected_as_documented(target: dtypes.DType, outside: int) -> None:
    """Whatever ml_dtypes makes of such numbers; the others are those of onnx, right or wrong."""
    x = np.array([-9.5, -2.0, 1.5, 9.0, 300.0, np.nan], np.float16)
    inside = (np.trunc(x) >= target.lowest) & (np.trunc(x) <= target.highest)
    given = np.where(inside, 1, outside).astype(np.int8).astype(target.numpy)
    got = settled(x, given).astype(np.int8)
    assert (got[inside] == 1).all()
    assert got[~inside].tolist() == [integer_of(float(number), target) for number in x[~inside]]


def summary() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SUMMARY.read_text(encoding="utf-8"))
    return found


LEAST = {"node": 0.9, "simple": 0.6, "pytorch-converted": 1.0, "pytorch-operator": 1.0, "real": 1.0}  # simple: a third is about strings


@pytest.mark.parametrize("kind", LEAST)
def test_enough_cases_pass_and_none_is_wrong(kind: str) -> None:
    counts = summary()["kinds"][kind]
    assert counts["pass"] >= LEAST[kind] * counts["cases"]
    assert not set(FAULTS) & counts.keys()


def test_the_summary_is_that_of_the_list() -> None:
    listed = read_failing("static")
    stored = summary()
    assert stored["onnx"] == listed.onnx
    for kind, counts in stored["kinds"].items():
        failing = sum(case.startswith(f"{kind}/") for case in listed.cases)
        assert counts["pass"] + failing == counts["cases"]


def test_every_listed_case_says_why() -> None:
    for variant in ("static", "symbolic"):
        for case, (outcome, reason) in read_failing(variant).cases.items():
            assert outcome != "pass"
            assert len(reason) > 10, case


def test_a_case_in_which_the_process_dies_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_SUITE_DIES_IN", "pytorch-operator/operator_exp")
    results = run_suite([f"pytorch-operator/operator_{name}" for name in ("basic", "exp", "pow")])
    assert [result.outcome for result in results] == ["pass", "crash", "pass"]
    assert "signal" in results[1].reason


def test_the_command_reports_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "pytorch-operator", "--only", "operator_e*"]) == 0
    assert "pytorch-operator, static: 100.0% of 1 pass (1 pass)" in capsys.readouterr().out
