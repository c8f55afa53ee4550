"""Depthwise convolutions and pooling: compiled for every width of vectors they compute what the operators define, without a padded copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.compiled_graphs import f32, module
from tilewright.compiler import Compiled, compile_module
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import GraphBuilder, Module, Value, walk_nodes
from tilewright.graph.ops import Binary, BlockedConvolution, Convolution, Fused, Reduce, Unary, WindowReduce, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, size
from tilewright.ir.types import TensorType, as_shape, tensor
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import For, Kernel, walk_stmts, with_fields
from tilewright.kernel.schedule.space import Space
from tilewright.machine.targets import named_machine
from tilewright.plan.steps import Launch
from tilewright.runtime.executable import Executable
from tilewright.support.settings import Settings
from tilewright.target.cpu.codegen import generate
from tilewright.target.cpu.groups import make_code
from tilewright.target.cpu.math import expand_math_in
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

LEVELS = {"x86-64-v2": 4, "x86-64-v3": 8, "x86-64-v4": 16}
Array = np.ndarray


@dataclass(frozen=True)
class Window:
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


WINDOWS: dict[str, Window] = {
    "3x3": Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "3x3 by 2": Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "padded at the end": Window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
    "5x5": Window((5, 5), (1, 1), (1, 1), (2, 2), (2, 2)),
    "5x5 by 2": Window((5, 5), (2, 2), (1, 1), (2, 2), (2, 2)),
    "dilated": Window((3, 3), (1, 1), (2, 2), (2, 2), (2, 2)),
    "without padding": Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0)),
    "uneven": Window((3, 2), (2, 1), (1, 2), (2, 0), (0, 3)),
    "windows of padding alone": Window((2, 2), (1, 2), (1, 1), (3, 2), (0, 4)),
    "cropped": Window((2, 3), (1, 1), (1, 1), (-1, 1), (1, -2)),
    "a row": Window((1, 9), (1, 1), (1, 1), (0, 4), (0, 4)),
    "wider than the image": Window((3, 13), (1, 1), (1, 1), (1, 6), (1, 6)),
    "one axis": Window((3,), (2,), (1,), (1,), (1,)),
    "three axes": Window((2, 3, 3), (1, 1, 2), (1, 1, 1), (1, 1, 1), (0, 1, 1)),
}
SHAPES = {1: (11,), 2: (7, 11), 3: (4, 5, 9)}


def blocked_depthwise(window: Window, lanes: int, batch: Expr | int, space: Sequence[Expr | int]) -> Module:
    """Two blocks of channels, and an epilogue."""
    weights = np.random.default_rng(2).normal(size=(2 * lanes, 1, *window.taps)).astype(np.float32)
    low, high = as_shape(window.low), as_shape(window.high)

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = g.one(BlockedConvolution(window.strides, window.dilations, low, high, True, lanes), x, g.one(constant(weights)))
        return (g.one(Binary("max"), y, g.one(constant(np.float32(0)))),)

    return module([f32(batch, 2, *space, lanes)], body)


def plain_depthwise(window: Window, channels: int, batch: Expr | int, space: Sequence[Expr | int], multiplier: int = 1) -> Module:
    """In the layout that models have."""
    weights = np.random.default_rng(2).normal(size=(channels * multiplier, 1, *window.taps)).astype(np.float32)
    op = Convolution(window.strides, window.dilations, as_shape(window.low), as_shape(window.high), channels, dtypes.float32)

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(Binary("max"), g.one(op, x, g.one(constant(weights))), g.one(constant(np.float32(0)))),)

    return module([f32(batch, channels, *space)], body)


def grouped(window: Window, channels: int, groups: int, outputs: int, space: Sequence[int]) -> Module:
    weights = np.random.default_rng(2).normal(size=(outputs, channels // groups, *window.taps)).astype(np.float32)
    op = Convolution(window.strides, window.dilations, as_shape(window.low), as_shape(window.high), groups, dtypes.float32)

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(Binary("max"), g.one(op, x, g.one(constant(weights))), g.one(constant(np.float32(0)))),)

    return module([f32(1, channels, *space)], body)


def kernel_of(m: Module) -> Kernel:
    (group,) = [node for node in walk_nodes(fuse(m.functions["main"]).results) if isinstance(node.op, Fused)]
    return lower_group(group.op.body)


def pooling(fn: str, window: Window, type_: TensorType, trailing: int) -> Module:
    """Windows over the axes before the last `trailing` ones."""
    ones, zeros = (1,) * trailing, (0,) * trailing
    low, high = as_shape((*window.low, *zeros)), as_shape((*window.high, *zeros))
    op = WindowReduce(fn, (*window.taps, *ones), (*window.strides, *ones), (*window.dilations, *ones), low, high)
    return module([type_], lambda g, x: (g.one(op, x),))


def compiled(m: Module, level: str) -> Compiled:
    return compile_module(m, named_machine(level), Settings().changed(cache=False, verify=True))


def agrees(m: Module, level: str, *shapes: Sequence[int], dtype: type = np.float32) -> Compiled:
    """Compile for a level, which this machine can run, and compare with the reference."""
    result = compiled(m, level)
    executable = Executable(result.artifact, 2)
    rng = np.random.default_rng(3)
    for shape in shapes:
        x = rng.normal(size=shape).astype(dtype) if dtype is np.float32 else rng.integers(-128, 127, shape).astype(dtype)
        (got,) = executable.run({"x0": x}).values()
        (want,) = interpret(m, [x])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return result


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WINDOWS)
def test_blocked_depthwise(name: str, level: str) -> None:
    window, lanes = WINDOWS[name], LEVELS[level]
    space = SHAPES[len(window.taps)]
    agrees(blocked_depthwise(window, lanes, 2, space), level, (2, 2, *space, lanes))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WINDOWS)
def test_plain_depthwise(name: str, level: str) -> None:
    window = WINDOWS[name]
    space = SHAPES[len(window.taps)]
    agrees(plain_depthwise(window, 3, 2, space), level, (2, 3, *space))
    wide = (*space[:-1], 37)
    agrees(plain_depthwise(window, 2, 1, wide, multiplier=2), level, (1, 2, *wide))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("channels", "groups", "outputs"), [(8, 2, 8), (12, 3, 6), (6, 2, 14), (64, 2, 64)])
@pytest.mark.parametrize("name", ["3x3", "3x3 by 2", "pointwise", "one axis"])
def test_groups_of_channels(name: str, channels: int, groups: int, outputs: int, level: str) -> None:
    window = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0)) if name == "pointwise" else WINDOWS[name]
    space = {1: (19,), 2: (6, 19)}[len(window.taps)]
    agrees(grouped(window, channels, groups, outputs, space), level, (1, channels, *space))


def test_channels_of_a_group_share_their_inputs() -> None:
    kernel = kernel_of(grouped(WINDOWS["3x3"], 32, 4, 32, (14, 14)))
    space = Space()
    schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"), space=space)
    taken = space.point()
    assert taken["channels side by side"] > 1
    assert taken["channels side by side"] * taken["points side by side"] >= 4


@pytest.mark.parametrize("name", ["3x3", "5x5 by 2", "dilated"])
def test_symbolic_sizes(name: str) -> None:
    n, h, w = size("N"), size("H", 3), size("W", 3)
    m = blocked_depthwise(WINDOWS[name], 8, n, (h, w))
    agrees(m, "x86-64-v3", (1, 2, 9, 10, 8), (3, 2, 3, 3, 8), (1, 2, 4, 33, 8), (1, 2, 20, 17, 8))
    agrees(plain_depthwise(WINDOWS[name], 2, n, (h, w)), "x86-64-v4", (1, 2, 9, 10), (3, 2, 3, 3), (1, 2, 4, 33), (1, 2, 20, 17))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fn", ["max", "sum"])
@pytest.mark.parametrize("name", ["3x3 by 2", "uneven", "windows of padding alone", "cropped", "one axis", "three axes"])
def test_pooling(name: str, fn: str, level: str) -> None:
    window, lanes = WINDOWS[name], LEVELS[level]
    space = SHAPES[len(window.taps)]
    agrees(pooling(fn, window, f32(2, 2, *space, lanes), 1), level, (2, 2, *space, lanes))
    agrees(pooling(fn, window, f32(2, 3, *space), 0), level, (2, 3, *space))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_extremes_of_integers_need_no_wider_accumulator(dtype: str) -> None:
    kind = getattr(dtypes, dtype)
    m = pooling("max", WINDOWS["windows of padding alone"], tensor(kind, (1, 2, 7, 40)), 0)
    agrees(m, "x86-64-v4", (1, 2, 7, 40), dtype=kind.numpy.type)


@pytest.mark.parametrize("width", [14, 28, 56, 57])
def test_strided_windows_gather_nothing_at_borders(width: int) -> None:
    function = fuse(plain_depthwise(WINDOWS["3x3 by 2"], 4, 1, (16, width)).functions["main"])
    (group,) = [node for node in walk_nodes(function.results) if isinstance(node.op, Fused)]
    code = make_code(group.op.body, frozenset({1}), named_machine("x86-64-v4"), Settings())
    assert "shufflevector" in code.ir
    assert "call <16 x float> @llvm.masked.gather" not in code.ir


def test_windows_as_long_as_the_image_are_summed_along_memory() -> None:
    for fn in ("sum", "max"):
        m = pooling(fn, Window((5, 64), (1, 1), (1, 1), (0, 0), (0, 0)), f32(2, 3, 5, 64), 0)
        code = agrees(m, "x86-64-v4", (2, 3, 5, 64))
        (launch,) = [step for step in code.plan.steps if isinstance(step, Launch)]
        assert any(isinstance(s, For) and s.kind == "vectorized" and s.extent.value == 16 for s in walk_stmts(launch.kernel.body))


@pytest.mark.parametrize("name", ["3x3", "5x5 by 2"])
def test_nothing_is_copied_and_results_stay_in_registers(name: str) -> None:
    result = compiled(blocked_depthwise(WINDOWS[name], 16, 1, (28, 28)), "x86-64-v4")
    (launch,) = [step for step in result.plan.steps if isinstance(step, Launch)]
    assert all(buffer.scope == "local" for buffer in launch.kernel.scratch)
    widths = {loop.extent.value for loop in walk_stmts(launch.kernel.body) if isinstance(loop, For) and loop.kind == "vectorized"}
    assert widths == {16}


def sum_of_columns(*shape: Expr | int) -> Module:
    op = Reduce("sum", (len(shape) - 2,), False)
    return module([f32(*shape)], lambda g, x: (g.one(Unary("neg"), g.one(op, x)),))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(50, 128), (9, 1001), (3, 20, 77), (2, 1, 33), (2, 300, 5)])
def test_sums_over_rows(shape: tuple[int, ...], level: str) -> None:
    agrees(sum_of_columns(*shape), level, shape)
    agrees(sum_of_columns(*shape[:-1], size("columns")), level, shape)


def test_sums_over_long_rows_read_several_vectors_of_each() -> None:
    space = Space()
    schedule_kernel(kernel_of(sum_of_columns(1024, 1024)), frozenset(), named_machine("x86-64-v4"), space=space)
    assert space.point()["columns side by side"] >= 8


def text_of(m: Module) -> str:
    """The LLVM text of a kernel for the widest vectors."""
    machine = named_machine("x86-64-v4")
    lowered = lower(schedule_kernel(kernel_of(m), frozenset({1}), machine).kernel)
    return generate(with_fields(lowered, body=expand_math_in(lowered.body)), machine)


def test_code_for_images_of_unknown_size_stays_small() -> None:
    """Tiles have versions for fewer rows, each of which is split at both borders of the image along both axes."""
    height, width = size("h", 1), size("w", 1)
    m = plain_depthwise(WINDOWS["3x3"], 32, size("n", 1), ((height + 7) // 8, (width + 1) // 2))
    assert len(text_of(m)) < 600_000


HALVED = {
    "3x3 along the rows": Window((3, 3), (2, 1), (1, 1), (1, 1), (1, 1)),
    "3x3 along both": WINDOWS["3x3 by 2"],
    "5x5 along the rows": Window((5, 5), (2, 1), (1, 1), (2, 2), (2, 2)),
}


@pytest.mark.parametrize("name", HALVED)
def test_code_of_halved_images_of_unknown_size_stays_small(name: str) -> None:
    """Text-line classifiers halve rows alone; the sides are those of an input that was halved before."""
    height, width = size("h", 0), size("w", 0)
    m = plain_depthwise(HALVED[name], 24, size("n", 0), ((height + 3) // 4, (width + 1) // 2))
    assert len(text_of(m)) < 600_000


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", HALVED)
def test_halved_images_of_every_size(name: str, level: str) -> None:
    """From images smaller than the window to some with several tiles of rows, and every number of rows that the last may have."""
    m = plain_depthwise(HALVED[name], 3, size("n", 1), (size("h", 1), size("w", 1)))
    heights = (1, 2, 3, 4, 5, 7, 9, 11, 13, 14, 15, 16, 17, 18, 31, 32, 33, 36, 50)
    widths = (1, 2, 3, 15, 16, 17, 31, 32, 33, 35, 47, 65, 70)
    shapes = [(1, 3, h, widths[i % len(widths)]) for i, h in enumerate(heights)] + [(2, 3, heights[i], w) for i, w in enumerate(widths)]
    agrees(m, level, *shapes)
