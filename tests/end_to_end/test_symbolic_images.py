"""Convolutions of images whose number, height and width are known only while running: results are right for every size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.compiled_graphs import check, f32, module
from tilewright.graph.node import GraphBuilder, Module, Value
from tilewright.graph.ops import Binary, Convolution, Reduce, WindowReduce, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import as_shape

N, H, W = size("N"), size("H", 1), size("W", 1)
SIZES = [(1, 1, 1), (1, 7, 7), (2, 33, 17), (0, 33, 33), (1, 5, 60), (3, 64, 65), (1, 225, 97)]


def layer(g: GraphBuilder, x: Value, outputs: int, taps: int = 3, stride: int = 1, dilation: int = 1, depthwise: bool = False) -> Value:
    """A convolution that keeps the image's size, up to its stride, with a bias and ReLU."""
    channels = int(x.shape[1].value)
    rng = np.random.default_rng(outputs + taps)
    groups = channels if depthwise else 1
    scale = (2 / (taps * taps * channels / groups)) ** 0.5
    w = g.one(constant(rng.uniform(-scale, scale, (outputs, channels // groups, taps, taps)).astype(np.float32)))
    pad = as_shape((taps // 2 * dilation,) * 2)
    y = g.one(Convolution((stride, stride), (dilation, dilation), pad, pad, groups, dtypes.float32), x, w)
    y = g.one(Binary("add"), y, g.one(constant(rng.uniform(-1, 1, (outputs, 1, 1)).astype(np.float32))))
    return g.one(Binary("max"), y, g.one(constant(np.float32(0))))


def pooled(g: GraphBuilder, x: Value) -> Value:
    border = (const(0), const(0), const(1), const(1))
    return g.one(WindowReduce("max", (1, 1, 3, 3), (1, 1, 2, 2), (1,) * 4, border, border), x)


def residual(g: GraphBuilder, x: Value) -> Sequence[Value]:
    """A stem, pooling, two blocks of which the second halves the image, in few pixels."""
    y = pooled(g, layer(g, x, 32, 7, 2))
    y = g.one(Binary("add"), layer(g, layer(g, y, 32), 32), y)
    z = layer(g, layer(g, y, 64, 3, 2), 64)
    z = g.one(Binary("add"), z, layer(g, y, 64, 1, 2))
    return (g.one(Reduce("max", (2, 3), False), layer(g, layer(g, z, 128, 3, 2), 128)),)


def inverted(g: GraphBuilder, x: Value) -> Sequence[Value]:
    """Pointwise, depthwise, pointwise, at two resolutions."""
    y = layer(g, layer(g, layer(g, x, 32, 3, 2), 32, depthwise=True), 16, 1)
    for stride in (2, 1):
        y = layer(g, layer(g, layer(g, y, 96, 1), 96, 3, stride, depthwise=True), 32, 1)
    return (layer(g, layer(g, y, 192, 1), 192, 5, 2, depthwise=True),)


def dilated(g: GraphBuilder, x: Value) -> Sequence[Value]:
    y = layer(g, layer(g, x, 32, 3, 2), 40, 3, 2)
    return (layer(g, layer(g, y, 48, 3, 1, 2), 24, 5, 1, 3), layer(g, y, 16, 5))


NETWORKS: dict[str, Callable[[GraphBuilder, Value], Sequence[Value]]] = {"residual": residual, "inverted": inverted, "dilated": dilated}


def network(name: str) -> Module:
    return module([f32(N, 3, H, W)], NETWORKS[name])


@pytest.mark.parametrize("name", list(NETWORKS))
def test_images_of_any_size(name: str) -> None:
    rng = np.random.default_rng(3)
    cases = [[rng.uniform(-1, 1, (n, 3, h, w)).astype(np.float32)] for n, h, w in SIZES]
    check(network(name), *cases, rtol=1e-4)
