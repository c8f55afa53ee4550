"""Results of data-dependent size: kernels against references, references against NumPy and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled_graphs import check, module
from tests.graph.ops.kernels import check_operator
from tests.graph.ops.onnx_oracle import onnx_result
from tilewright.graph.ops.detection import NonMaxSuppression
from tilewright.graph.ops.selection import NonZeroIndices, Unique
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import tensor

FEW = settings(max_examples=30, deadline=None)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 2), ()])
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_nonzero(shape: tuple[int, ...], dtype: str) -> None:
    x = np.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(dtype)
    (y,) = check_operator(NonZeroIndices(const(int((x != 0).sum()))), [x])
    np.testing.assert_array_equal(y, np.argwhere(x).T)


def test_nonzero_with_a_wrong_count_stays_inside() -> None:
    (y,) = check_operator(NonZeroIndices(const(3)), [np.array([0, 1, 0, 1])])
    assert y.tolist() == [[1, 3, 0]]
    (y,) = check_operator(NonZeroIndices(const(1)), [np.array([0, 1, 0, 1])])
    assert y.tolist() == [[1]]


@FEW
@given(st.integers(1, 8), st.integers(1, 3), st.booleans(), st.sampled_from(["float32", "int64", "bool", "uint8"]), st.integers(0, 99))
def test_unique(n: int, m: int, ordered: bool, dtype: str, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 3 if m == 1 else 2, (n, m)).astype(dtype)
    first, inverse, counts, count = check_operator(Unique(ordered), [x])
    want, at, back, numbers = np.unique(x, axis=0, return_index=True, return_inverse=True, return_counts=True)
    order = np.arange(len(want)) if ordered else np.argsort(at)
    assert int(count) == len(want)
    np.testing.assert_array_equal(first[:count], at[order])
    np.testing.assert_array_equal(counts[:count], numbers[order])
    np.testing.assert_array_equal(x[first[inverse]], x)
    if ordered:
        np.testing.assert_array_equal(inverse, back.reshape(-1))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ordered", [False, True])
def test_compiled_unique_with_nans(ordered: bool, dtype: str) -> None:
    x = np.array([3, np.nan, 1, -np.nan, np.inf, 3, np.nan, -np.inf], dtype)[:, None]
    first, inverse, counts, count = check_operator(Unique(ordered), [x])
    order = [7, 2, 0, 4, 1] if ordered else [0, 1, 2, 4, 7]
    assert (int(count), first[:5].tolist(), inverse[[1, 3, 6]].tolist()) == (5, order, [order.index(1)] * 3)
    assert counts[:5].tolist() == [{0: 2, 1: 3}.get(i, 1) for i in order]
    check(module([tensor(dtypes.BY_NAME[dtype], (8, 1))], lambda g, v: g.emit(Unique(ordered), v)), [x])


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("least", [-np.inf, 0.2, np.nan])
@pytest.mark.parametrize("iou", [0.3, np.nan])
def test_compiled_suppression_with_nans(center: bool, least: float, iou: float) -> None:
    """Scores, corners and limits that are NaN: no box is kept with such a score, none suppressed with such a corner."""
    rng = np.random.default_rng(5)
    boxes = rng.uniform(0, 1, (1, 24, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (1, 3, 24)).astype(np.float32)
    scores[0, 0, ::3] = scores[0, 1] = np.nan
    boxes[0, 1::5, 2] = boxes[0, 3::7, 0] = np.nan
    arrays = [boxes, scores, np.array(30), np.array(iou, np.float32), np.array(least, np.float32)]
    op = NonMaxSuppression(const(24), center)
    check(module([tensor(dtypes.from_numpy(a.dtype), a.shape) for a in arrays], lambda g, *v: g.emit(op, *v)), arrays)
    rows, count = check_operator(op, arrays)
    kept = rows[:count]
    assert not np.isnan(scores[0, kept[:, 1], kept[:, 2]]).any()
    undefined = np.isnan(boxes[0]).any(axis=1)
    for c in (0, 2):
        candidates = {i for i in np.flatnonzero(undefined) if scores[0, c, i] > least}
        assert candidates <= {int(row[2]) for row in kept if row[1] == c}


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_non_max_suppression(center: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0, 1, (2, 12, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 2, 12)).astype(np.float32)
    per_class, iou, least = np.array(3), np.array(0.3, np.float32), np.array(0.2, np.float32)
    rows, count = check_operator(NonMaxSuppression(const(5), center), [boxes, scores, per_class, iou, least])
    operands = [boxes, scores, per_class.reshape(1), iou.reshape(1), least.reshape(1)]
    expected = onnx_result("NonMaxSuppression", operands, output_type=np.int64, center_point_box=int(center))
    np.testing.assert_array_equal(rows[:count], expected)


def test_suppression_visits_equal_scores_in_order() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
    scores = np.ones((1, 1, 3), np.float32)
    rows, count = check_operator(
        NonMaxSuppression(const(3)), [boxes, scores, np.array(3), np.array(0.5, np.float32), np.array(0.0, np.float32)]
    )
    assert rows[:count].tolist() == [[0, 0, 0], [0, 0, 2]]
