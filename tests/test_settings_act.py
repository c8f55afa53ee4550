"""Settings change what they say they change."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import tilewright as tw
from tilewright.zoo import build, example_inputs

MODEL = build("bert", layers=1, hidden=32, heads=2, intermediate=64, vocab=50, batch=1, sequence=5)
FEEDS = example_inputs(MODEL, {}, 0)


@cache
def compiled(**settings: object) -> tw.Executable:
    return tw.compile(MODEL, cache=False, progress="none", **settings)


def kernels(**settings: object) -> list[str]:
    return [entry["symbol"] for entry in compiled(**settings).manifest["kernels"]]


def test_lower_levels_launch_more_kernels() -> None:
    counts = [len(kernels(opt_level=level)) for level in (0, 1, 2)]
    assert counts[0] > counts[1] > counts[2]


def test_level_three_schedules_the_groups_of_level_two() -> None:
    plain, scheduled = kernels(opt_level=2), kernels(opt_level=3)
    assert len(plain) == len(scheduled)
    assert set(plain) != set(scheduled)


def test_strict_precision_has_no_multiply_adds_and_other_code() -> None:
    assert set(kernels()) != set(kernels(precision="strict"))


@pytest.mark.parametrize("settings", [{"opt_level": 0}, {"opt_level": 1}, {"opt_level": 2}, {"precision": "strict"}, {"verify": True}])
def test_results_agree(settings: dict[str, object]) -> None:
    want = compiled().run(FEEDS)
    got = compiled(**settings).run(FEEDS)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)


def test_a_memory_limit_is_held() -> None:
    with pytest.raises(tw.TilewrightError, match="the limit is 1,000"):
        tw.compile(MODEL, cache=False, progress="none", max_memory=1000)


def test_threads_are_taken() -> None:
    assert compiled(threads=1).threads == 1
