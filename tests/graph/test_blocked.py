"""Channel-blocked operators: their forms agree with each other and with plain convolutions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.operator_checks import check
from tilewright.graph.ops import Block, BlockedConvolution, Convolution, Unblock
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import as_shape

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("channels", [4, 8, 6, 1])
def test_blocks_are_undone(channels: int) -> None:
    x = draw(2, channels, 3, 5)
    (blocked,) = check(Block(4), x)
    assert blocked.shape == (2, -(-channels // 4), 3, 5, 4)
    (plain,) = check(Unblock(const(channels)), blocked)
    np.testing.assert_array_equal(plain, x)


@pytest.mark.parametrize(("stride", "dilation", "pad"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 1, 0)])
@pytest.mark.parametrize("kind", ["dense", "plain input", "depthwise"])
def test_convolutions_are_those_of_plain_layouts(kind: str, stride: int, dilation: int, pad: int) -> None:
    depthwise, plain = kind == "depthwise", kind == "plain input"
    inputs = 3 if plain else 8
    x, w = draw(1, inputs, 6, 7), draw(8, 1 if depthwise else inputs, 3, 3)
    window = ((stride, stride), (dilation, dilation), as_shape((pad, pad)), as_shape((pad, pad)))
    given = x if plain else Block(4).reference((x,))[0]
    (blocked,) = check(BlockedConvolution(*window, depthwise, 4), given, w)
    want = Convolution(*window, 8 if depthwise else 1, dtypes.float32).reference((x, w))[0]
    np.testing.assert_allclose(Unblock(const(8)).reference((blocked,))[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 5, 7])
def test_lanes_past_the_channels_of_the_weights_are_not_read(channels: int) -> None:
    x, w = draw(2, channels, 6, 7), draw(8, channels, 3, 3)
    window = ((1, 1), (1, 1), as_shape((1, 1)), as_shape((1, 1)))
    given = Block(4).reference((x,))[0]
    given[:, -1, ..., (channels - 1) % 4 + 1 :] = np.nan
    (blocked,) = check(BlockedConvolution(*window, False, 4), given, w)
    want = Convolution(*window, 1, dtypes.float32).reference((x, w))[0]
    np.testing.assert_allclose(Unblock(const(8)).reference((blocked,))[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["dense", "few channels", "depthwise in int32", "depthwise in float32"])
def test_bytes_are_summed_exactly(kind: str) -> None:
    depthwise, few = kind.startswith("depthwise"), kind == "few channels"
    dtype = dtypes.float32 if kind.endswith("float32") else dtypes.int32
    inputs = 3 if few else 8
    x = RNG.choice(np.array([0, 255, 254, 1], np.uint8), (2, inputs, 6, 7))
    w = RNG.choice(np.array([-128, 127, -1], np.int8), (8, 1 if depthwise else inputs, 3, 3))
    window = ((1, 1), (1, 1), as_shape((1, 1)), as_shape((1, 1)))
    weights = np.pad(w, ((0, 0), (0, 1), (0, 0), (0, 0))) if few else w
    (blocked,) = check(BlockedConvolution(*window, depthwise, 8, dtype), Block(4 if few else 8).reference((x,))[0], weights)
    want = Convolution(*window, 8 if depthwise else 1, dtypes.int32).reference((x, w))[0]
    np.testing.assert_array_equal(Unblock(const(8)).reference((blocked,))[0].astype(np.int32), want)
