"""Interleaving: its forms agree, and it is depth to space."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.onnx_oracle import onnx_results
from tests.graph.operator_checks import check, function_of
from tilewright.graph.ops import Interleave
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.types import as_shape, tensor
from tilewright.support.errors import TypeRuleError

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def test_it_is_depth_to_space() -> None:
    x = draw(2, 12, 3, 4)
    (y,) = check(Interleave((2, 2), as_shape((0, 0)), as_shape((6, 8))), x)
    np.testing.assert_array_equal(y, onnx_results("DepthToSpace", [x], blocksize=2)[0])


@pytest.mark.parametrize(("stride", "start", "count"), [(3, 0, 12), (3, 2, 7), (1, 1, 2)])
def test_positions_are_cut_after_they_are_in_place(stride: int, start: int, count: int) -> None:
    x = draw(1, 2 * stride, 4, 5)  # the last axis is none of the grid: lanes of a block
    (y,) = check(Interleave((stride,), as_shape((start,)), as_shape((count,))), x)
    for p in range(count):
        phase = (p + start) % stride
        np.testing.assert_array_equal(y[:, :, p], x[:, 2 * phase : 2 * phase + 2, (p + start) // stride])


def test_symbolic_sizes() -> None:
    n = size("n", 1)
    op = Interleave((2,), as_shape((1,)), (n * 2 - 1,))
    (y,) = check(op, draw(1, 4, 3), types=[tensor(dtypes.float32, (1, 4, n))])
    assert y.shape == (1, 2, 5)


@pytest.mark.parametrize(
    ("strides", "start", "count", "text"),
    [
        ((2,), (0,), (9,), "does not reach 9 positions"),
        ((3,), (0,), (3,), "do not hold 3 phases"),
        ((2, 2), (0,), (3,), "2 strides, 1 starts"),
    ],
)
def test_what_does_not_fit_is_refused(strides, start, count, text) -> None:
    with pytest.raises(TypeRuleError) as caught:
        function_of(Interleave(strides, as_shape(start), as_shape(count)), [tensor(dtypes.float32, (1, 4, 4))])
    assert text in str(caught.value)
