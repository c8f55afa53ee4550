"""Gathering, ordering and selecting nodes: what stays a size, operator versions, and results like onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.onnx.models import assert_like_onnxruntime, imported, operators, parse, run, single

F32, I64 = np.float32, np.int64


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def test_counting_ones_stays_a_size() -> None:
    model = parse("""
        g (float[N] x) => (int64[1, N] y) {
            shape = Shape(x)
            ones = ConstantOfShape<value = int64[1] {1}>(shape)
            y = NonZero(ones)
        }
    """)
    assert "bind_size" not in operators(imported(model))
    np.testing.assert_array_equal(run(model, {"x": floats(3)})[0], [[0, 1, 2]])


def test_nonzero_of_data() -> None:
    x = (floats(3, 4) > 0).astype(F32)
    assert_like_onnxruntime(single("NonZero", [x], 13), [x])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    inputs = [np.array([[1, -1], [5, 0]]), np.array([4]), np.array([-1, 2], F32)]
    assert_like_onnxruntime(single("OneHot", inputs, 11, axis=axis), inputs)
    assert_like_onnxruntime(single("OneHot", inputs[:1], 11, constants={1: inputs[1], 2: inputs[2]}, axis=axis), inputs[:1])


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest: int) -> None:
    x = floats(3, 6)
    assert_like_onnxruntime(single("TopK", [x], 11, 2, constants={1: np.array([3])}, axis=1, largest=largest), [x])
    assert_like_onnxruntime(single("TopK", [x, np.array([2])], 11, 2, axis=0, largest=largest), [x, np.array([2])])


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [1, 2, 7, 90])
def test_top_k_with_nans(k: int, largest: int) -> None:
    x = floats(4, 90)
    x[0, 1::9] = x[1, 85] = x[2] = np.nan
    assert_like_onnxruntime(single("TopK", [x], 11, 2, constants={1: np.array([k])}, axis=1, largest=largest), [x])


def test_top_k_by_attribute() -> None:
    x = floats(3, 6)
    assert_like_onnxruntime(single("TopK", [x], 9, 2, k=2, axis=-1), [x])


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique(axis: int | None, ordered: int) -> None:
    x = np.random.default_rng(1).integers(0, 2, (4, 3)).astype(F32)
    more = {} if axis is None else {"axis": axis}
    assert_like_onnxruntime(single("Unique", [x], 11, 4, sorted=ordered, **more), [x])


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis: int | None) -> None:
    inputs = [floats(3, 4), np.array([True, False, True])]
    more = {} if axis is None else {"axis": axis}
    assert_like_onnxruntime(single("Compress", inputs, 11, **more), inputs)


@pytest.mark.parametrize("given", [2, 3, 5])
def test_non_max_suppression(given: int) -> None:
    rng = np.random.default_rng(2)
    inputs = [rng.uniform(0, 1, (1, 8, 4)).astype(F32), rng.uniform(0, 1, (1, 2, 8)).astype(F32)]
    inputs += [np.array([3]), np.array([0.4], F32), np.array([0.3], F32)][: given - 2]
    assert_like_onnxruntime(single("NonMaxSuppression", inputs, 11), inputs)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("known", [False, True])
def test_cumulative_sum(exclusive: int, known: bool) -> None:
    x, axis = floats(3, 4), np.array(-1)
    model = single("CumSum", [x] if known else [x, axis], 14, constants={1: axis} if known else None, exclusive=exclusive, reverse=1)
    assert operators(imported(model)).count("cumulative_scan") == (1 if known else 2)
    assert_like_onnxruntime(model, [x, axis])


def test_reverse_sequence() -> None:
    inputs = [floats(4, 3, 2), np.array([1, 4, 2])]
    assert_like_onnxruntime(single("ReverseSequence", inputs, 10), inputs)


def test_gathers_and_scatters() -> None:
    x, at = floats(3, 4), np.array([[0, -1], [2, 1]])
    for op, attributes in (("Gather", {"axis": 1}), ("GatherElements", {"axis": 0}), ("GatherND", {})):
        assert_like_onnxruntime(single(op, [x, at], 13, **attributes), [x, at])
    updates = floats(2, 2, seed=1)
    for reduction in ("none", "add", "mul", "max", "min"):
        inputs = [x, at, updates]
        assert_like_onnxruntime(single("ScatterElements", inputs, 18, axis=1, reduction=reduction), inputs)
        inputs = [x, at, updates[:, 0]]
        assert_like_onnxruntime(single("ScatterND", inputs, 18, reduction=reduction), inputs)
