"""What layouts cost decides: alone between plain values most convolutions stay plain, in a chain they are blocked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.compiled_graphs import f32, function
from tests.target.cpu.rules.test_borders import plain
from tests.target.cpu.rules.test_lanes import Window, kernel_of
from tilewright.graph.node import Function, GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import BlockedConvolution, Convolution, constant
from tilewright.ir import dtypes
from tilewright.ir.types import as_shape
from tilewright.kernel.schedule.space import Space
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.layout_cost import CpuLayoutCost
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.block_channels import block_channels

MACHINE = named_machine("x86-64-v4")
POINT, STRIDED, CUBE = (1, 1, 0), (1, 2, 0), (3, 1, 1)  # taps along an axis, stride, padding


def chain(channels: int, width: int, layers: Sequence[tuple[int, tuple[int, int, int]]]) -> Function:
    """Convolutions one after the other: (output channels, (taps, stride, padding))."""

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        for outputs, (taps, stride, pad) in layers:
            weights = g.one(constant(np.ones((outputs, int(x.shape[1].value), taps, taps), np.float32)))
            x = g.one(Convolution((stride,) * 2, (1, 1), as_shape((pad,) * 2), as_shape((pad,) * 2), 1, dtypes.float32), x, weights)
        return (x,)

    return function("main", [f32(1, channels, width, width)], body)


def blocked(f: Function) -> int:
    made = block_channels(f, MACHINE.lanes(32), CpuLayoutCost(MACHINE))
    return sum(isinstance(node.op, BlockedConvolution) for node in walk_nodes(made.results))


@pytest.mark.parametrize(
    ("channels", "width", "outputs", "kind"),
    [(64, 56, 128, STRIDED), (256, 14, 512, STRIDED), (64, 56, 64, POINT), (3, 224, 64, (7, 2, 3))],
)
def test_alone_between_plain_values_they_stay_plain(channels: int, width: int, outputs: int, kind: tuple[int, int, int]) -> None:
    assert blocked(chain(channels, width, [(outputs, kind)])) == 0


def test_where_winograd_applies_blocks_pay_by_themselves() -> None:
    assert blocked(chain(64, 56, [(64, CUBE)])) == 1


def test_in_a_chain_they_are_blocked() -> None:
    assert blocked(chain(3, 64, [(64, (7, 2, 3)), (64, POINT), (64, CUBE), (128, STRIDED), (128, CUBE)])) == 5


@pytest.mark.parametrize("stride", [1, 2])
def test_plain_images_are_read_point_by_point_by_channels_of_the_result(stride: int) -> None:
    """Channels are pages apart in an image, and points of a strided one are gathered; the weights are packed panels."""
    kernel = kernel_of(plain(Window((1, 1), (stride, stride), (1, 1), (0, 0), (0, 0)), 64, 64, (56, 56)))
    space = Space()
    schedule_kernel(kernel, frozenset({1}), MACHINE, space=space)
    (axes,) = [decision.options[decision.taken] for decision in space.decisions if decision.name.endswith(".axes")]
    assert axes[0] == "x1"
