"""Winograd convolutions: their forms agree with each other and with plain convolutions, and rounding stays within the stated bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.graph.operator_checks import check
from tilewright.graph.ops import Block, Convolution, Unblock, WinogradConvolution, WinogradWeights
from tilewright.graph.ops.winograd_transforms import POINTS, as_array, transforms
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import as_shape

LANES = 4
LENGTHS = [(m, r) for r in (1, 2, 3, 4, 5) for m in range(1, max(POINTS) - r + 3) if not (r == 1 and m > 1)]


@pytest.mark.parametrize(("m", "r"), LENGTHS)
def test_transforms_compute_the_filter_exactly(m: int, r: int) -> None:
    found = transforms(m, r)
    for tap in range(r):
        for at in range(m + r - 1):
            weights = [row[tap] for row in found.weights]
            inputs = [row[at] for row in found.inputs]
            results = [sum(a * u * v for a, u, v in zip(row, weights, inputs, strict=True)) for row in found.outputs]
            assert results == [int(place + tap == at) for place in range(m)]


def test_coefficients_of_inputs_and_outputs_are_exact_in_float32() -> None:
    for m, r in LENGTHS:
        for matrix in (transforms(m, r).inputs, transforms(m, r).outputs):
            np.testing.assert_array_equal(as_array(matrix).astype(np.float32), as_array(matrix))


def plain_and_winograd(
    shape: tuple[int, ...],
    outputs: int,
    tile: tuple[int, ...],
    window: tuple[int, ...],
    low: tuple[int, ...],
    high: tuple[int, ...],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    w = rng.uniform(-1, 1, (outputs, shape[1], *window)).astype(np.float32)
    one = (1,) * len(tile)
    (want,) = Convolution(one, one, as_shape(low), as_shape(high), 1, dtypes.float32).reference((x, w))
    (u,) = check(WinogradWeights(tile), w)
    (blocked,) = check(
        WinogradConvolution(tile, window, as_shape(low), as_shape(high), LANES), Block(LANES).reference((x,))[0], u, tolerance=1e-4
    )
    np.testing.assert_allclose(Unblock(const(outputs)).reference((blocked,))[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", [(2, 2), (4, 4), (3, 2), (4, 1)])
@pytest.mark.parametrize("pads", [(0, 0), (1, 1), (2, 0)])
def test_images(tile: tuple[int, int], pads: tuple[int, int]) -> None:
    low, high = pads
    plain_and_winograd((2, 8, 7, 5), 4, tile, (3, 3), (low, low), (high, high), 0)


@pytest.mark.parametrize("channels", [1, 6, 7])
def test_channels_that_do_not_fill_blocks(channels: int) -> None:
    plain_and_winograd((2, channels, 7, 5), 4, (2, 2), (3, 3), (1, 1), (1, 1), channels)


def test_one_and_three_axes() -> None:
    plain_and_winograd((2, 4, 11), 8, (4,), (3,), (1,), (1,), 1)
    plain_and_winograd((1, 4, 4, 3, 5), 4, (2, 2, 2), (3, 3, 3), (1, 1, 1), (1, 1, 1), 2)


def test_an_axis_of_one_tap() -> None:
    plain_and_winograd((1, 4, 6, 7), 4, (1, 4), (1, 3), (0, 1), (0, 1), 3)


@hypothesis_settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_size_padding_and_tile(data: st.DataObject) -> None:
    draw = data.draw
    window = tuple(draw(st.sampled_from((1, 2, 3, 5))) for _ in range(2))
    tile = tuple(1 if r == 1 else draw(st.integers(1, 7 - r)) for r in window)
    low = tuple(draw(st.integers(0, r - 1)) for r in window)
    high = tuple(draw(st.integers(0, r - 1)) for r in window)
    space = tuple(draw(st.integers(max(1, r - a - b), 9)) for r, a, b in zip(window, low, high, strict=True))
    plain_and_winograd((draw(st.integers(1, 2)), 4, *space), 4, tile, window, low, high, draw(st.integers(0, 9)))
