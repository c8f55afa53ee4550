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


IMAGES = build("resnet18", image=32, blocks=(1, 1), width=32)
PICTURE = example_inputs(IMAGES, {}, 0)


@cache
def image_model(**settings: object) -> tw.Executable:
    return tw.compile(IMAGES, cache=False, progress="none", target="cpu:x86-64-v3,cores=2", **settings)


def image_kernels(**settings: object) -> set[str]:
    return {entry["symbol"] for entry in image_model(**settings).manifest["kernels"]}


@pytest.mark.parametrize("part", ["fusion", "layouts", "winograd", "packing", "prefetch"])
def test_each_part_can_be_left_out(part: str) -> None:
    without = {part: False}
    assert image_kernels(**without) != image_kernels()
    for name, array in image_model().run(PICTURE).items():
        np.testing.assert_allclose(image_model(**without).run(PICTURE)[name], array, rtol=1e-3, atol=1e-4)


def test_without_fusion_operators_have_kernels_of_their_own() -> None:
    assert len(image_kernels(fusion=False)) > len(image_kernels())


def test_without_layouts_there_are_no_blocks_to_transform() -> None:
    assert any("winograd" in symbol for symbol in image_kernels())
    assert not any("winograd" in symbol or "blocked" in symbol for symbol in image_kernels(layouts=False))


def test_without_packing_constants_are_stored_once_and_as_they_are() -> None:
    assert image_model(packing=False).manifest["memory"]["weights"] <= image_model().manifest["memory"]["weights"]
