"""Transposed tiles, compiled and run on every vector width: dtypes, ragged and empty extents, symbolic ones, arithmetic on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled_graphs import function
from tests.target.cpu.kernel_runner import build, run
from tilewright.graph.node import Function, GraphBuilder, Value
from tilewright.graph.ops import Binary, Cast, Pad, Reshape, Transpose, Unary, constant
from tilewright.graph.ops.blocked import Block, Unblock
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.types import as_shape, bind_shape, tensor
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower import lower
from tilewright.kernel.nodes import Kernel, with_fields
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.codegen import generate
from tilewright.target.cpu.math.expand import expand_math_in
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.lower_groups import lower_group

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
Body = Callable[..., Sequence[Value]]
N, M = size("N"), size("M")


def kernel_of(dtype: DType, shape: Sequence[Expr | int], body: Body) -> tuple[Function, Kernel]:
    made = function("t", [tensor(dtype, shape)], body)
    return made, lower_group(made)


def compiled(kernel: Kernel, machine: Machine) -> Kernel:
    lowered = lower(schedule_kernel(kernel, frozenset(), machine).kernel)
    result: Kernel = with_fields(lowered, body=expand_math_in(lowered.body))
    return result


def values(dtype: DType, shape: Sequence[int]) -> np.ndarray:
    rng = np.random.default_rng(7)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 100, shape).astype(dtype.numpy)


def check(dtype: DType, shape: Sequence[Expr | int], body: Body, level: str, *sizes: Mapping[Expr, int]) -> None:
    _, kernel = kernel_of(dtype, shape, body)
    machine = named_machine(level)
    lowered = compiled(kernel, machine)
    code = build(lowered, machine)
    for bound in sizes or ({},):
        x = values(dtype, bind_shape(as_shape(shape), bound))
        for pool in (False, True):
            for got, want in zip(run(lowered, [x], bound, pool=pool, code=code), interpret(kernel, [x], bound), strict=True):
                np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-6)


def transposed(*perm: int) -> Body:
    return lambda g, x: (g.one(Transpose(perm), x),)


DTYPES = (
    dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16, dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.int32, dtypes.int64,
    dtypes.bool_,
)  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(64, 64), (33, 47), (3, 130), (130, 5)])
def test_matrices(dtype: DType, shape: tuple[int, int], level: str) -> None:
    check(dtype, shape, transposed(1, 0), level)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=6, deadline=None)
@given(
    shape=st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 50]), min_size=2, max_size=3),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_any_extents_and_any_order(shape: list[int], dtype: DType, level: str, data: st.DataObject) -> None:
    check(dtype, shape, transposed(*data.draw(st.permutations(range(len(shape))))), level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("perm", [(1, 0), (0, 1)])
def test_symbolic_matrices(perm: tuple[int, int], level: str) -> None:
    check(dtypes.float32, (N, M), transposed(*perm), level, {N: 1, M: 1}, {N: 40, M: 19}, {N: 16, M: 16}, {N: 5, M: 100}, {N: 0, M: 3})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.uint8, dtypes.float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("channels", [2, 3, 4, 7])
@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2)])
def test_few_channels(perm: tuple[int, ...], channels: int, dtype: DType, level: str) -> None:
    shape = (2, channels, 9, 11) if perm[-1] == 1 else (2, 9, 11, channels)
    check(dtype, shape, transposed(*perm), level)
    unknown = (N, channels, M, 11) if perm[-1] == 1 else (N, M, 11, channels)
    check(dtype, unknown, transposed(*perm), level, {N: 1, M: 1}, {N: 2, M: 6})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [16, 21, 50])
def test_blocked_channels(channels: int, level: str) -> None:
    for lanes in (4, 8, 16):
        check(dtypes.float32, (2, channels, 7, 7), lambda g, x, lanes=lanes: (g.one(Block(lanes), x),), level)
        blocks = -(-channels // lanes)
        back = Unblock(const(channels))
        check(dtypes.float32, (2, blocks, 7, 7, lanes), lambda g, x, back=back: (g.one(back, x),), level)
        check(dtypes.float32, (N, channels, M, 7), lambda g, x, lanes=lanes: (g.one(Block(lanes), x),), level, {N: 2, M: 3}, {N: 1, M: 1})
        check(dtypes.float32, (N, blocks, M, 7, lanes), lambda g, x, back=back: (g.one(back, x),), level, {N: 2, M: 3}, {N: 1, M: 1})


@pytest.mark.parametrize("level", LEVELS)
def test_arithmetic_on_the_way(level: str) -> None:
    def image(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = g.one(Cast(dtypes.float32), g.one(Transpose((0, 3, 1, 2)), x))
        return (g.one(Binary("mul"), y, g.one(constant(np.float32(0.5)))),)

    def activated(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = g.one(Binary("sub"), g.one(Transpose((1, 0)), x), g.one(constant(np.float32(50))))
        return (g.one(Unary("exp"), g.one(Binary("mul"), y, g.one(constant(np.float32(0.01))))),)

    def narrowed(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(Cast(dtypes.uint8), g.one(Transpose((1, 0)), x)),)

    for channels in (3, 8):
        check(dtypes.uint8, (1, 10, 13, channels), image, level)
    check(dtypes.float32, (37, 50), activated, level)
    check(dtypes.float32, (37, 50), narrowed, level)


@pytest.mark.parametrize("level", LEVELS)
def test_padded_and_taken_apart(level: str) -> None:
    def padded(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = g.one(Pad(as_shape((1, 2)), as_shape((3, 1)), "constant"), x, g.one(constant(np.float32(5))))
        return (g.one(Transpose((1, 0)), y),)

    def shuffled(g: GraphBuilder, x: Value) -> Sequence[Value]:
        parts = g.one(Reshape(as_shape((2, 2, 2, 5, 6, 7))), x)
        return (g.one(Reshape(as_shape((2, 5, 12, 14))), g.one(Transpose((0, 3, 4, 1, 5, 2)), parts)),)

    check(dtypes.float32, (37, 50), padded, level)
    check(dtypes.float32, (2, 20, 6, 7), shuffled, level)


@pytest.mark.parametrize("level", LEVELS)
def test_tiles_are_shuffled_rather_than_gathered(level: str) -> None:
    """No element of a whole tile is loaded by itself."""
    machine = named_machine(level)
    _, kernel = kernel_of(dtypes.float32, (64, 64), transposed(1, 0))
    text = generate(compiled(kernel, machine), machine)
    assert "shufflevector" in text
    assert "gather" not in text
    assert "insertelement" not in text


def test_tiles_are_decisions_of_the_space() -> None:
    machine = named_machine("x86-64-v3")
    _, kernel = kernel_of(dtypes.float32, (300, 700), transposed(1, 0))
    space = Space()
    schedule_kernel(kernel, frozenset(), machine, space=space)
    names = {decision.name.split(".")[1]: decision for decision in space.decisions}
    assert {"transposed_tile", "transposed_block"} <= set(names)
    assert names["transposed_tile"].options[names["transposed_tile"].taken][0] == machine.lanes(32)
    x = values(dtypes.float32, (300, 700))
    for tile in names["transposed_tile"].options:
        other = schedule_kernel(kernel, frozenset(), machine, space=Space({names["transposed_tile"].name: tile}))
        (got,) = run(lower(other.kernel), [x], code=build(lower(other.kernel), machine))
        np.testing.assert_array_equal(got, x.T)
