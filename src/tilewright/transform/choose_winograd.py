"""Dense convolutions by Winograd's algorithm, where the target says that it is faster.

Takes blocked float32 convolutions of constant weights, without stride and dilation; the weights are transformed here, once. Images of
unknown size count as `IMAGE` along such an axis. Rounding errors grow with the tile: tiles past `MOST_AMPLIFICATION` are not considered
(docs/numerics.md states the bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Protocol

from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function
from tilewright.graph.ops import BlockedConvolution, Constant, ConstantData, WinogradConvolution, WinogradWeights
from tilewright.graph.ops.winograd_transforms import LONGEST, transforms
from tilewright.ir import dtypes
from tilewright.ir.typical import IMAGE, typical_dim

MOST_AMPLIFICATION = 4096.0  # of rounding errors in the worst case, over those of a direct sum
WORTH = 0.9  # of the direct convolution's cost that Winograd's may be
GROWTH = 0.02  # of the cost, for each time that transformed weights are larger: they take memory, and caches from what comes next


@dataclass(frozen=True, slots=True)
class DenseConvolution:
    """A convolution without stride and dilation: the shape of the result's space, taps along each axis, channels filled up to blocks."""

    images: int
    space: tuple[int, ...]
    window: tuple[int, ...]
    channels: int
    outputs: int


class ConvolutionCost(Protocol):
    """The target's opinion, in any unit of time."""

    def direct(self, convolution: DenseConvolution) -> float: ...

    def winograd(self, convolution: DenseConvolution, tile: tuple[int, ...]) -> float: ...


def choose_winograd(function: Function, cost: ConvolutionCost) -> Function:
    """The function with convolutions replaced where `cost` says so."""

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        found = dense_convolution(node)
        tile = None if found is None else best_tile(found, cost)
        if found is None or tile is None:
            return None
        op, weights = node.op, inputs[1].op
        if not isinstance(op, BlockedConvolution) or not isinstance(weights, Constant):
            return None
        (transformed,) = WinogradWeights(tile).reference((weights.data.array,))
        constant = g.one(Constant(ConstantData(transformed)))
        return (g.one(WinogradConvolution(tile, found.window, op.low, op.high, op.lanes), inputs[0], constant),)

    return rewrite_function(function, visit)


def dense_convolution(node: Node) -> DenseConvolution | None:
    """The convolution that the node is, where Winograd's algorithm applies to it."""
    op = node.op
    if not isinstance(op, BlockedConvolution) or op.depthwise or not isinstance(node.inputs[1].op, Constant):
        return None
    x, w = (value.type for value in node.inputs)
    if (
        x.rank != w.rank + 1
        or any(n != 1 for n in (*op.strides, *op.dilations))
        or x.dtype is not dtypes.float32
        or w.dtype is not dtypes.float32
    ):
        return None
    space = node.types[0].shape[2:-1]
    sizes = tuple(typical_dim(dim, IMAGE) for dim in space)
    if not w.is_static or any(size < 1 for size in sizes):
        return None
    images = int(x.shape[0].value) if x.shape[0].is_const else 1
    outputs, channels, *window = (int(dim.value) for dim in w.shape)
    return DenseConvolution(images, sizes, tuple(window), channels, outputs)


def best_tile(convolution: DenseConvolution, cost: ConvolutionCost) -> tuple[int, ...] | None:
    """The cheapest tile; None where the direct convolution is as good."""
    if not convolution.images:
        return None
    costs = {tile: cost.winograd(convolution, tile) * (1 + GROWTH * growth(tile, convolution.window)) for tile in candidates(convolution)}
    found = min(costs, key=lambda tile: costs[tile], default=None)
    return None if found is None or costs[found] > WORTH * cost.direct(convolution) else found


def candidates(convolution: DenseConvolution) -> list[tuple[int, ...]]:
    """Tiles whose transforms are known, whose error is bounded, and that are not all one result."""
    axes = [range(1, 2) if r == 1 else range(1, min(LONGEST - r + 1, size) + 1) for size, r in zip(convolution.space, convolution.window)]
    tiles = [tile for tile in product(*axes) if prod(tile) > 1]
    return [tile for tile in tiles if amplification(tile, convolution.window) <= MOST_AMPLIFICATION]


def growth(tile: Sequence[int], window: Sequence[int]) -> float:
    """How many times larger transformed weights are."""
    return prod(m + r - 1 for m, r in zip(tile, window, strict=True)) / prod(window)


def amplification(tile: Sequence[int], window: Sequence[int]) -> float:
    """How many times the rounding errors of a direct sum the worst error can be."""
    return prod(transforms(m, r).amplification for m, r in zip(tile, window, strict=True))
