"""The schedule of Winograd convolutions: results stay at every point of its space, and the structure that makes it fast is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.compiled_graphs import f32, function
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import Binary, WinogradConvolution, constant
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.ir.types import as_shape, bind_shape
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import For, Kernel, blocks, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.kernel.verify import verify
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.target.cpu.rules.inline import inline_producers
from tilewright.target.cpu.rules.winograd import find_blocks
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

N, H, W = size("N"), size("H", 1), size("W", 1)
WEIGHTS = frozenset({1})


def kernel_of(
    tile: tuple[int, ...], shape: tuple[Expr | int, ...], outputs: int, *, pad: int = 1, residual: bool = True, missing: int = 0
) -> Kernel:
    """A convolution by Winograd with bias, residual and ReLU in one kernel. shape: [N, C / lanes, *S, lanes]; of the last block so many
    channels are missing."""
    axes, lanes = len(tile), int(shape[-1])  # type: ignore[arg-type]
    points = tuple(m + 2 for m in tile)
    space = tuple(dim + (2 * pad - 2) for dim in shape[2:-1])
    result = (shape[0], outputs // lanes, *space, lanes)

    def body(g: GraphBuilder, x: Value, u: Value, b: Value, *more: Value) -> Sequence[Value]:
        pads = as_shape((pad,) * axes)
        y = g.one(Binary("add"), g.one(WinogradConvolution(tile, (3,) * axes, pads, pads, lanes), x, u), b)
        for other in more:
            y = g.one(Binary("add"), y, other)
        return (g.one(Binary("max"), y, g.one(constant(np.float32(0)))),)

    channels = int(shape[1]) * lanes - missing  # type: ignore[arg-type]
    types = [f32(*shape), f32(*points, channels, outputs), f32(outputs // lanes, *(1,) * axes, lanes)]
    fused = fuse(function("p", [*types, f32(*result)] if residual else types, body))
    (group,) = {value.node for value in fused.results}
    return lower_group(group.op.body)


def check(kernel: Kernel, schedule: Schedule, images: int = 2, height: int = 0, width: int = 0) -> None:
    rng = np.random.default_rng(5)
    sizes = {N: images, H: height, W: width}
    inputs = [rng.uniform(-1, 1, bind_shape(b.shape, sizes)).astype(b.dtype.numpy) for b in kernel.inputs]
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    packed = [layouts[b.name].pack(x) if b.name in layouts else x for b, x in zip(kernel.inputs, inputs, strict=True)]
    for want, got in zip(interpret(kernel, inputs, sizes), interpret(schedule.kernel, packed, sizes), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("level", "lanes"), [("x86-64-v3", 8), ("x86-64-v4", 16)])
@pytest.mark.parametrize("tile", [(2, 2), (4, 2)])
def test_schedules_keep_results(tile: tuple[int, int], level: str, lanes: int) -> None:
    kernel = kernel_of(tile, (1, 1, 5, 6, lanes), 2 * lanes)
    space = Space()
    schedule = schedule_kernel(kernel, WEIGHTS, named_machine(level), space=space)
    assert [decision.name for decision in space.decisions] == [
        "winograd_product.tile",
        "winograd_product.group",
        "winograd_product.prefetch",
    ]
    assert [layout.buffer for layout in schedule.layouts] == ["x1"]
    verify(schedule.kernel)
    check(kernel, schedule)


def test_one_axis_and_images_of_unknown_number() -> None:
    for kernel in (kernel_of((4,), (N, 1, 11, 4), 8), kernel_of((2, 2), (N, 1, 4, 5, 4), 4, pad=0, residual=False)):
        schedule = schedule_kernel(kernel, WEIGHTS, named_machine("x86-64-v2"))
        assert schedule.layouts
        check(kernel, schedule)


@pytest.mark.parametrize("parts_first", [False, True])
def test_weights_of_a_part_serve_all_images_before_the_next_part(parts_first: bool) -> None:
    """Where the images are not known and the weights are more than what the parts read of inputs."""
    kernel = kernel_of((2, 2), (N, 2, 4, 5, 4), 16)
    name = "winograd_product.parts_first"
    decided = {"winograd_product.tile": (6, 1), "winograd_product.group": (6, False), name: parts_first}
    schedule = schedule_kernel(kernel, WEIGHTS, named_machine("x86-64-v2"), space=Space(decided))
    check(kernel, schedule)
    assert schedule.layouts
    (product,) = (block for block in blocks(schedule.kernel.body) if block.name == "winograd_product")
    part = product.bindings[2]  # of the task's number, where its groups of tiles are the inner ones
    assert any(e.op is Op.FLOORDIV for e in walk(part)) == parts_first


@pytest.mark.parametrize("tile", [(2, 2), (4, 4)])
def test_large_weights_are_read_once_for_few_images(tile: tuple[int, int]) -> None:
    """One group of tiles holds all of a few images, or parts of the weights are outside of the groups."""
    kernel, space = kernel_of(tile, (N, 32, 7, 7, 16), 512), Space()
    schedule_kernel(kernel, WEIGHTS, named_machine("x86-64-v4"), space=space)
    group, _ = space.point()["winograd_product.group"]
    assert group >= 4 * (8 // tile[0]) ** 2 or space.point()["winograd_product.parts_first"]


@pytest.mark.parametrize("group", [(6, True), (18, True), (24, False)])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 14), (9, 9)])
def test_groups_end_where_the_tiles_do(group: tuple[int, bool], height: int, width: int) -> None:
    kernel = kernel_of((2, 2), (N, 2, H, W, 4), 16)
    decided = {"winograd_product.tile": (6, 2), "winograd_product.group": group}
    schedule = schedule_kernel(kernel, WEIGHTS, named_machine("x86-64-v2"), space=Space(decided))
    verify(schedule.kernel)
    for images in (0, 1, 3):
        check(kernel, schedule, images, height, width)
    lowered = lower(schedule.kernel)
    extents = [loop.extent for loop in walk_stmts(lowered.body) if isinstance(loop, For) and loop.kind == "serial"]
    of_register_tiles = [e for e in extents if e.op is Op.MIN and e.args[1] is const(group[0] // 6)]
    assert bool(of_register_tiles) == (group[0] > 6)


@hypothesis_settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_point_of_the_space_keeps_results(data: st.DataObject) -> None:
    shape = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(2, 7)), data.draw(st.integers(2, 7)), 4)
    kernel = kernel_of((2, 2), shape, 4 * data.draw(st.integers(1, 4)), missing=data.draw(st.integers(0, 3)))
    machine = named_machine("x86-64-v2")
    default = Space()
    schedule_kernel(kernel, WEIGHTS, machine, space=default)
    tile = data.draw(st.sampled_from(default.decisions[0].options))
    partial = Space({"winograd_product.tile": tile})
    schedule_kernel(kernel, WEIGHTS, machine, space=partial)
    point = {"winograd_product.tile": tile, "winograd_product.group": data.draw(st.sampled_from(partial.decisions[1].options))}
    point["winograd_product.prefetch"] = data.draw(st.booleans())
    schedule = schedule_kernel(kernel, WEIGHTS, machine, space=Space(point))
    assert schedule.layouts, point
    check(kernel, schedule)


def test_the_blocks_are_found_by_what_they_compute() -> None:
    kernel = kernel_of((4, 2), (1, 2, 8, 8, 4), 8)
    found = find_blocks(inline_producers(Schedule.of(kernel)))
    assert found is not None
    assert found.tile == (4, 2)
    assert found.weights.attr is kernel.inputs[1]


def test_transforms_are_straight_code_and_scratch_belongs_to_tasks() -> None:
    kernel = kernel_of((2, 2), (1, 4, 28, 28, 16), 64)
    schedule = schedule_kernel(kernel, WEIGHTS, named_machine("x86-64-v4"), space=Space({"winograd_product.group": (28, True)} | TILE))
    lowered = lower(schedule.kernel)
    assert isinstance(lowered.body, For)
    assert lowered.body.kind == "parallel"
    sizes = {buffer.name: [int(dim.value) for dim in buffer.shape] for buffer in lowered.scratch}
    assert sizes["winograd_input_1"] == [7, 4, 4, 4, 28, 16]  # of each task, which uses it again for all of its groups
    assert sizes["winograd_product"][-2:] == [28, 16]
    points = [loop for loop in walk_stmts(lowered.body) if isinstance(loop, For) and loop.kind == "unrolled" and loop.extent.value == 4]
    assert points


TILE = {"winograd_product.tile": (7, 2)}
