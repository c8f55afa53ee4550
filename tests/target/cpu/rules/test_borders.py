"""Dense convolutions skip padding: compiled for every width of vectors they compute what the operators define, without a padded copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.compiled_graphs import f32, module
from tests.target.cpu.rules.test_lanes import LEVELS, SHAPES, WINDOWS, Window, agrees, kernel_of
from tilewright.graph.node import GraphBuilder, Module, Value
from tilewright.graph.ops import Binary, BlockedConvolution, Convolution, constant
from tilewright.graph.ops.padding import pad_block
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int, free_vars, walk
from tilewright.ir.types import as_shape
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.lower import lower
from tilewright.kernel.nodes import For, own_exprs, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.targets import named_machine
from tilewright.plan.steps import Launch
from tilewright.target.cpu.codegen import generate
from tilewright.target.cpu.llvm import compile_to_assembly, llvm_target
from tilewright.target.cpu.rules.borders import padding_of
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.target.cpu.rules.structure import as_product, block_of


def blocked(
    window: Window, lanes: int, batch: Expr | int, space: Sequence[Expr | int], channels: int = 2, outputs: int = 3, missing: int = 0
) -> Module:
    """So many blocks of channels, of the last of which some are missing, and an epilogue."""
    weights = np.random.default_rng(2).normal(size=(outputs * lanes, channels * lanes - missing, *window.taps)).astype(np.float32) / 8
    low, high = as_shape(window.low), as_shape(window.high)

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = g.one(BlockedConvolution(window.strides, window.dilations, low, high, False, lanes), x, g.one(constant(weights)))
        return (g.one(Binary("max"), y, g.one(constant(np.float32(0)))),)

    return module([f32(batch, channels, *space, lanes)], body)


def plain(window: Window, channels: int, outputs: int, space: Sequence[Expr | int]) -> Module:
    """In the layout that models have."""
    weights = np.random.default_rng(2).normal(size=(outputs, channels, *window.taps)).astype(np.float32) / 8
    op = Convolution(window.strides, window.dilations, as_shape(window.low), as_shape(window.high), 1, dtypes.float32)
    return module([f32(1, channels, *space)], lambda g, x: (g.one(op, x, g.one(constant(weights))),))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WINDOWS)
def test_blocked_convolutions(name: str, level: str) -> None:
    window, lanes = WINDOWS[name], LEVELS[level]
    space = SHAPES[len(window.taps)]
    agrees(blocked(window, lanes, 2, space), level, (2, 2, *space, lanes))


@pytest.mark.parametrize("missing", [2, 14])
@pytest.mark.parametrize("name", ["3x3 by 2", "5x5 by 2"])
def test_channels_that_the_last_block_lacks_are_no_steps(name: str, missing: int) -> None:
    m = blocked(WINDOWS[name], 16, 1, (14, 14), missing=missing)
    agrees(m, "x86-64-v4", (1, 2, 14, 14, 16))
    lowered = lower(schedule_kernel(kernel_of(m), frozenset({1}), named_machine("x86-64-v4")).kernel)
    serial = [stmt.extent for stmt in walk_stmts(lowered.body) if isinstance(stmt, For) and stmt.kind == "serial"]
    in_last_block = [evaluate_int(extent, dict.fromkeys(free_vars(extent), 1)) for extent in serial]
    assert 16 - missing in in_last_block


@pytest.mark.parametrize("name", WINDOWS)
def test_plain_convolutions(name: str) -> None:
    space = SHAPES[len(WINDOWS[name].taps)]
    agrees(plain(WINDOWS[name], 5, 50, space), "x86-64-v3", (1, 5, *space))


@pytest.mark.parametrize("width", [7, 14, 15, 29, 57])
@pytest.mark.parametrize("name", ["3x3 by 2", "5x5 by 2"])
def test_images_of_any_width_have_no_copy_and_no_condition_inside(name: str, width: int) -> None:
    m = blocked(WINDOWS[name], 16, 1, (width, width))
    result = agrees(m, "x86-64-v4", (1, 2, width, width, 16))
    (launch,) = [step for step in result.plan.steps if isinstance(step, Launch)]
    assert all(buffer.scope == "local" for buffer in launch.kernel.scratch)
    lowered = lower(schedule_kernel(kernel_of(m), frozenset({1}), named_machine("x86-64-v4")).kernel)
    assert not any(e.op is Op.SELECT for stmt in walk_stmts(lowered.body) for e in walk(*own_exprs(stmt)))


@pytest.mark.parametrize("space", [(size("h"), 11), (11, size("w")), (size("h"), size("w"))])
def test_symbolic_sizes(space: Sequence[Expr | int]) -> None:
    shapes = [(1, 2, *(dim if isinstance(dim, int) else n for dim in space), 8) for n in (*range(1, 20), 33)]
    agrees(blocked(WINDOWS["3x3 by 2"], 8, 1, space), "x86-64-v3", *shapes)


@pytest.mark.parametrize(("level", "copies"), [("x86-64-v2", True), ("x86-64-v3", True), ("x86-64-v4", False)])
def test_first_convolutions_of_images_of_unknown_size(level: str, copies: bool) -> None:
    """From a plain image to blocked channels: a copy is a small part of the arithmetic only where vectors are short."""
    op = BlockedConvolution((2, 2), (1, 1), as_shape((1, 1)), as_shape((1, 1)), False, LEVELS[level])
    weights = np.random.default_rng(2).normal(size=(32, 3, 3, 3)).astype(np.float32) / 8
    m = module([f32(1, 3, size("h", 1), size("w", 1))], lambda g, x: (g.one(op, x, g.one(constant(weights))),))
    shapes = [(1, 3, h, w) for h in (1, 2, 9) for w in (*range(1, 36), 64, 97)]
    result = agrees(m, level, *shapes)
    (launch,) = [step for step in result.plan.steps if isinstance(step, Launch)]
    assert any(buffer.scope == "global" for buffer in launch.kernel.scratch) == copies


def test_small_images_of_unknown_size_are_copied() -> None:
    """Tiles that skip padding have versions for each number of rows, so that they must be small: reading the copy costs less."""
    op = BlockedConvolution((2, 2), (1, 1), as_shape((1, 1)), as_shape((1, 1)), False, 16)
    side = (size("image", 1) + 7) // 8
    space = Space()
    kernel = kernel_of(module([f32(1, 8, side, side, 16), f32(256, 128, 3, 3)], lambda g, x, w: (g.one(op, x, w),)))
    schedule = schedule_kernel(kernel, frozenset({1}), named_machine("emeraldrapids"), space=space)
    (decision,) = [d for d in space.decisions if d.name.endswith("skip_padding")]
    assert not decision.options[decision.taken]
    assert any(buffer.scope == "global" for buffer in schedule.kernel.scratch)


@pytest.mark.parametrize(("taps", "width"), [(3, 60), (5, 150)])
def test_taps_that_share_inputs_leave_them_registers(taps: int, width: int) -> None:
    """With 24 accumulators LLVM spilled some of them in the loop, and the kernel took 1.5 times as long."""
    window = Window((taps,), (1,), (1,), (taps // 2,), (taps // 2,))
    kernel = kernel_of(plain(window, 64, 768, (width,)))
    space = Space()
    schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"), space=space)
    (decision,) = [d for d in space.decisions if d.name.endswith(".tile")]
    rows, vectors = decision.options[decision.taken]
    assert rows * vectors <= 21


@pytest.mark.parametrize(("taps", "stride"), [(4, 2), (8, 4), (10, 5), (16, 8)])
def test_taps_that_are_the_whole_reduction_are_unrolled_once(taps: int, stride: int) -> None:
    """One channel: the loop over taps at the border is the one whose steps an iteration takes several of."""
    m = plain(Window((taps,), (stride,), (1,), (taps // 2,), (taps // 2,)), 1, 32, (801,))
    agrees(m, "x86-64-v4", (1, 1, 801))
    space = Space()
    schedule_kernel(kernel_of(m), frozenset({1}), named_machine("x86-64-v4"), space=space)
    assert not space.given_up


def test_the_space_says_what_a_copy_costs() -> None:
    kernel = kernel_of(blocked(WINDOWS["3x3 by 2"], 16, 1, (28, 28)))
    space = Space()
    schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"), space=space)
    (decision,) = [d for d in space.decisions if d.name.endswith("skip_padding")]
    skipped, copied = (decision.costs[decision.options.index(option)] for option in (True, False))
    assert decision.options[decision.taken] is True
    assert skipped < copied
    again = schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"), space=Space({decision.name: False}))
    assert any(buffer.scope == "global" for buffer in again.kernel.scratch)


@pytest.mark.parametrize(("value", "found"), [(0.0, True), (1.0, False)])
def test_a_copy_with_other_values_at_the_border_is_no_padding(value: float, found: bool) -> None:
    """What is read there counts."""
    k = KernelBuilder("rows")
    x, w = k.input("x", dtypes.float32, (16, 8)), k.input("w", dtypes.float32, (8, 3, 4))
    padded = pad_block(k, x, (const(1), const(0)), (const(1), const(0)), const(value, dtypes.float32))
    y = k.reduce("y", (16, 4), (8, 3), lambda i, o, c, t: padded[i + t, c] * w[c, t, o], "sum")
    s = Schedule.of(k.finish([y]))
    product = as_product(block_of(s, "y"))
    assert product is not None
    assert (padding_of(s, "y", product) is not None) is found


@pytest.mark.parametrize("width", [15, 28, 29])
def test_strided_rows_of_plain_images_are_shuffled_not_gathered(width: int) -> None:
    """Padding on both sides is one constant mask."""
    weights = np.random.default_rng(2).normal(size=(4, 1, 3, 3)).astype(np.float32)
    op = Convolution((2, 2), (1, 1), as_shape((1, 1)), as_shape((1, 1)), 4, dtypes.float32)
    m = module([f32(1, 4, width, width)], lambda g, x: (g.one(op, x, g.one(constant(weights))),))
    agrees(m, "x86-64-v4", (1, 4, width, width))
    machine = named_machine("x86-64-v4")
    lowered = lower(schedule_kernel(kernel_of(m), frozenset({1}), machine).kernel)
    assert "gather" not in compile_to_assembly(generate(lowered, machine), llvm_target(machine))
