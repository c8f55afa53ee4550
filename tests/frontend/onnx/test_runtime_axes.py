"""Axes, steps and lengths that are inputs of the model: one module serves every value, and agrees with onnxruntime."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontend.onnx.models import Array, assert_like_onnxruntime, assert_same, run, run_onnxruntime, single
from tilewright.support.errors import ShapeError

REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp")


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, keepdims: int) -> None:
    x = floats(2, 3, 4)
    for count in (1, 2, 3):
        model = single(op, [x, ints(*range(count))], 18, keepdims=keepdims)
        model.graph.output[0].type.Clear()
        for axes in combinations(range(3), count):
            given = {"x0": x, "x1": ints(*(axis - 3 * (axis % 2) for axis in axes))}
            assert_same(run(model, given), run_onnxruntime(model, given))


def test_an_empty_list_of_axes_means_all_or_none() -> None:
    for noop in (0, 1):
        assert_like_onnxruntime(single("ReduceSum", [floats(2, 3), ints()], 18, noop_with_empty_axes=noop), [floats(2, 3), ints()])


@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze"])
def test_axes_of_size_one(op: str) -> None:
    x = floats(1, 3, 1, 4)
    model = single(op, [x, ints(0, 2)], 13)
    model.graph.output[0].type.Clear()
    for axes in ((0, 2), (-2, 0), (-4, -2)):
        given = {"x0": x, "x1": ints(*axes)}
        assert_same(run(model, given), run_onnxruntime(model, given))


def test_padding() -> None:
    x = floats(2, 3, 4)
    for axes in ((0, 2), (-1, 1)):
        inputs = [x, ints(1, 0, 2, 3), np.array(7, np.float32), ints(*axes)]
        assert_like_onnxruntime(single("Pad", inputs, 18), inputs)


def slices(rank: int, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    axes = rng.permutation(rank)[:2] - rank * rng.integers(0, 2, 2)
    return [rng.integers(-9, 10, 2), rng.integers(-9, 10, 2), axes, rng.choice([-3, -2, -1, 1, 2, 3], 2)]


@pytest.mark.parametrize("fixed", [(), (3,), (4,)], ids=["none", "axes", "steps"])
def test_slices(fixed: tuple[int, ...]) -> None:
    x = floats(5, 6, 7)
    for seed in range(12):
        inputs = [x, *slices(3, seed)]
        constants = {index: inputs[index] for index in fixed}
        model = single("Slice", inputs, 13, constants=constants)
        assert_like_onnxruntime(model, inputs)


def test_transforms_along_any_axis() -> None:
    x = floats(4, 5, 6, 1)
    for axis in (0, 2, -2, -4):
        inputs = [x, None, np.array(axis, np.int64)]
        assert_like_onnxruntime(single("DFT", inputs, 20), inputs, 1e-4, 1e-5)


@pytest.mark.parametrize(("length", "inverse"), [(5, 0), (9, 0), (6, 1)])
def test_transforms_of_any_length(length: int, inverse: int) -> None:
    inputs = [floats(2, 6, 2), np.array(length, np.int64), np.array(1, np.int64)]
    assert_like_onnxruntime(single("DFT", inputs, 20, inverse=inverse), inputs, 1e-4, 1e-5)


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_transforms_of_any_step(onesided: int) -> None:
    inputs = [floats(2, 40, 1), np.array(7, np.int64), floats(16), np.array(16, np.int64)]
    assert_like_onnxruntime(single("STFT", inputs, 17, onesided=onesided), inputs, 1e-4, 1e-4)


@pytest.mark.parametrize("fixed", [(1,), (2,), ()], ids=["image", "block", "none"])
def test_blocks_of_any_size_add_up_to_images(fixed: tuple[int, ...]) -> None:
    inputs = [floats(2, 12, 12), ints(7, 6), ints(2, 3)]
    model = single("Col2Im", inputs, 18, constants={i: inputs[i] for i in fixed}, strides=[2, 1], dilations=[2, 1], pads=[1, 0, 0, 0])
    assert_like_onnxruntime(model, inputs)


@pytest.mark.parametrize(
    ("op", "inputs", "bad"),
    [
        ("ReduceSum", [floats(2, 3), ints(1)], {1: ints(2)}),
        ("Unsqueeze", [floats(2, 3), ints(1)], {1: ints(-4)}),
        ("Slice", [floats(4, 4), ints(0), ints(2), ints(1), ints(1)], {4: ints(0)}),
    ],
    ids=["axis", "new axis", "step"],
)
def test_values_that_mean_nothing_are_refused_while_running(op: str, inputs: list[Array], bad: dict[int, Array]) -> None:
    exe: Any = tilewright.compile(single(op, inputs, 18), cache=False)
    exe(*inputs)
    with pytest.raises(ShapeError, match="it must be at least"):
        exe(*[bad.get(i, x) for i, x in enumerate(inputs)])
