"""Gather and scatter: kernels against references, references against NumPy and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.operator_checks import check
from tests.graph.ops.kernels import check_operator, types_of
from tests.graph.ops.onnx_oracle import onnx_result
from tilewright.graph.node import Operator
from tilewright.graph.ops.indexing import Gather, GatherElements, GatherNd, ScatterElements, ScatterNd
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.types import tensor
from tilewright.support.errors import TypeRuleError

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
FEW = settings(max_examples=25, deadline=None)


@FEW
@given(SHAPES, SHAPES, st.data())
def test_gather(shape: tuple[int, ...], index_shape: tuple[int, ...], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = rng.standard_normal(shape).astype(np.float32)
    dim = shape[axis]
    indices = rng.integers(-dim, dim, index_shape)
    (y,) = check_operator(Gather(axis), [x, indices])
    np.testing.assert_array_equal(y, np.take(x, indices, axis=axis))


def test_gather_reads_nothing_outside() -> None:
    (y,) = check_operator(Gather(0), [np.arange(3, dtype=np.float32), np.array([5, -9, 1], np.int32)])
    np.testing.assert_array_equal(y, [2, 0, 1])


def test_gather_with_symbolic_dims() -> None:
    n, m = size("n", 1), size("m")
    types = (tensor(dtypes.float32, (n, 3)), tensor(dtypes.int64, (m,)))
    check_operator(Gather(0), [np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, -1, 3])], types)


@FEW
@given(SHAPES, st.data())
def test_gather_elements(shape: tuple[int, ...], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = rng.standard_normal(shape).astype(np.float32)
    index_shape = tuple(data.draw(st.integers(1, 4)) if a == axis else data.draw(st.integers(1, d)) for a, d in enumerate(shape))
    indices = rng.integers(-shape[axis], shape[axis], index_shape)
    (y,) = check_operator(GatherElements(axis), [x, indices])
    np.testing.assert_array_equal(y, onnx_result("GatherElements", [x, indices], axis=axis))


@pytest.mark.parametrize(
    ("shape", "batch", "index_shape"),
    [((2, 3, 4), 0, (3, 2)), ((2, 3, 4), 1, (2, 2, 1)), ((2, 3, 4), 0, (3, 3)), ((2, 3, 4), 2, (2, 3, 1))],
)
def test_gather_nd(shape: tuple[int, ...], batch: int, index_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(np.float32)
    dims = shape[batch : batch + index_shape[-1]]
    indices = np.stack([rng.integers(-d, d, index_shape[:-1]) for d in dims], axis=-1)
    (y,) = check_operator(GatherNd(batch), [x, indices])
    np.testing.assert_array_equal(y, onnx_result("GatherND", [x, indices], batch_dims=batch))


@FEW
@given(SHAPES, st.sampled_from(["none", "add", "mul", "min", "max"]), st.data())
def test_scatter_elements(shape: tuple[int, ...], reduction: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = rng.standard_normal(shape).astype(np.float32)
    index_shape = tuple(data.draw(st.integers(1, 4)) if a == axis else data.draw(st.integers(1, d)) for a, d in enumerate(shape))
    indices = rng.integers(-shape[axis], shape[axis], index_shape)
    updates = rng.standard_normal(index_shape).astype(np.float32)
    (y,) = check_operator(ScatterElements(axis, reduction), [x, indices, updates])
    np.testing.assert_allclose(y, onnx_result("ScatterElements", [x, indices, updates], axis=axis, reduction=reduction), rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize(
    ("shape", "index_shape"), [((4,), (3, 1)), ((3, 4), (2, 1)), ((2, 3, 4), (5, 2)), ((2, 3, 4), (2, 1)), ((2, 3), (2, 2, 2))]
)
def test_scatter_nd(shape: tuple[int, ...], index_shape: tuple[int, ...], reduction: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(np.float32)
    indices = np.stack([rng.integers(-d, d, index_shape[:-1]) for d in shape[: index_shape[-1]]], axis=-1)
    updates = rng.standard_normal(index_shape[:-1] + shape[index_shape[-1] :]).astype(np.float32)
    (y,) = check_operator(ScatterNd(reduction), [x, indices, updates])
    expected = onnx_result("ScatterND", [x, indices, updates], reduction=reduction)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_scatter_writes_nothing_outside() -> None:
    (y,) = check_operator(ScatterNd(), [np.zeros(3, np.float32), np.array([[7], [-4], [1]]), np.ones(3, np.float32)])
    np.testing.assert_array_equal(y, [0, 1, 0])


def test_rejects_what_does_not_fit() -> None:
    x, indices = types_of([np.zeros((2, 3), np.float32), np.zeros((2, 2))])
    with pytest.raises(TypeRuleError, match="int32 or int64"):
        Gather(0).infer((x, indices))
    with pytest.raises(TypeRuleError, match="shape of the indices"):
        ScatterElements(0).infer(types_of([np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64), np.zeros((2, 2), np.float32)]))
    with pytest.raises(TypeRuleError, match="do not index"):
        GatherNd(0).infer(types_of([np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64)]))


@pytest.mark.parametrize(
    ("op", "indices"),
    [(Gather(0), np.array([0, -1, 5])), (GatherElements(0), np.array([[1, 0, 2]])), (GatherNd(0), np.array([[0], [3]]))],
)
def test_gathering_from_an_axis_without_elements_reads_nothing(op: Operator, indices: np.ndarray) -> None:
    n = size("n")
    types = (tensor(dtypes.float32, (n, 3)), tensor(dtypes.int64, indices.shape))
    (result,) = check(op, np.zeros((0, 3), np.float32), indices, types=types)
    assert not result.any()
