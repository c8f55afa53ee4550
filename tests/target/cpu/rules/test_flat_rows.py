"""Pixels as one axis of rows where a row of the image has a length known only while running."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.compiled_graphs import f32, function
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import Binary, BlockedConvolution, Contract
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.types import TensorType
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.target.cpu.rules.flat_rows import flat_rows
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

N = size("N", 1)
HEIGHT, WIDTH = (size("H", 1) + 15) // 16, (size("W", 1) + 15) // 16


def convolution(height: Expr | int, width: Expr | int, window: int = 1, stride: int = 1) -> tuple[Kernel, str]:
    """A convolution of blocked channels with a bias for each channel and an image of results that is added."""
    border = (const(window // 2),) * 2
    op = BlockedConvolution((stride, stride), (1, 1), border, border, False, 16)
    types = [f32(N, 16, height, width, 16), f32(512, 256, window, window), f32(32, 1, 1, 16)]

    def body(g: GraphBuilder, x: Value, w: Value, bias: Value) -> Sequence[Value]:
        return [g.one(Binary("add"), g.one(op, x, w), bias)]

    return kernel_of(types, body), op.name


def kernel_of(types: list[TensorType], body) -> Kernel:  # type: ignore[no-untyped-def]
    (group,) = {value.node for value in fuse(function("p", types, body)).results}
    return lower_group(group.op.body)


def test_all_pixels_of_a_pointwise_convolution_are_rows() -> None:
    kernel, name = convolution(HEIGHT, WIDTH)
    s = flat_rows(Schedule.of(kernel), name)
    x, _, bias = s.kernel.inputs
    (y,) = s.kernel.outputs
    assert x.shape == (N, const(16), HEIGHT * WIDTH, const(16))
    assert y.shape == (N, const(32), HEIGHT * WIDTH, const(16))
    assert bias.shape == kernel.inputs[2].shape
    assert [it.extent for it in s.nest.blocks[name].stmt.iters][2] is HEIGHT * WIDTH


OTHERS = {
    "a row of known length": convolution(HEIGHT, 14),
    "an image of one row": convolution(1, WIDTH),
    "a window": convolution(HEIGHT, WIDTH, 3),
    "every second pixel": convolution(HEIGHT, WIDTH, 1, 2),
}


@pytest.mark.parametrize(("kernel", "name"), OTHERS.values(), ids=OTHERS)
def test_others_stay_as_they_are(kernel: Kernel, name: str) -> None:
    s = Schedule.of(kernel)
    assert flat_rows(s, name) is s


def test_axes_of_both_operands_are_no_rows() -> None:
    """The matrices of a batch of products."""
    op = Contract("bhmk,bhkn->bhmn", dtypes.float32)
    kernel = kernel_of([f32(N, WIDTH, 5, 7), f32(N, WIDTH, 7, 9)], lambda g, x, y: [g.one(op, x, y)])
    s = Schedule.of(kernel)
    assert flat_rows(s, "contract") is s
