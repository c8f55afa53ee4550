"""Channel-blocked layouts: results stay, and a network is blocked from its first convolution to its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.compiled_graphs import f32, function
from tilewright.compiler import optimise
from tilewright.frontend.onnx import import_model, load_model
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import (
    Binary,
    Cast,
    Concat,
    Convolution,
    Fused,
    Pad,
    Reduce,
    Select,
    Softmax,
    Unary,
    WindowReduce,
    constant,
)
from tilewright.graph.ops.scalars import BINARY, UNARY, ScalarFunction, array_function
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.types import TensorType, as_shape, tensor
from tilewright.machine.targets import named_machine
from tilewright.support.settings import Settings
from tilewright.target.cpu.layout_cost import CpuLayoutCost
from tilewright.transform.block_channels import best_lanes, block_channels
from tilewright.transform.fold_constants import fold_constants
from tilewright.zoo import build

RNG = np.random.default_rng(3)
N = size("N")


def names(f: Function) -> list[str]:
    return [node.op.name for node in walk_nodes(f.results)]


def check(types: Sequence[TensorType], body: Callable[..., Sequence[Value]], lanes: int = 4) -> Function:
    before = function("p", types, body)
    after = fold_constants(block_channels(before, lanes))
    arrays = [RNG.uniform(-1, 1, [2 if d is N else int(d.value) for d in t.shape]).astype(t.dtype.numpy) for t in types]
    for want, got in zip(interpret(before, arrays), interpret(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert [value.type for value in after.results] == [value.type for value in before.results]
    return after


def conv(g: GraphBuilder, x: Value, outputs: int, groups: int = 1, stride: int = 1) -> Value:
    w = g.one(constant(RNG.uniform(-1, 1, (outputs, int(x.shape[1].value) // groups, 3, 3)).astype(np.float32)))
    one = as_shape((1, 1))
    return g.one(Convolution((stride, stride), (1, 1), one, one, groups, dtypes.float32), x, w)


def per_channel(g: GraphBuilder, channels: int, rank: int = 3) -> Value:
    shape = (channels, 1, 1) if rank == 3 else (1, channels, 1, 1)
    return g.one(constant(RNG.uniform(0.5, 1, shape).astype(np.float32)))


@pytest.mark.parametrize("channels", [(4, 8), (7, 7), (6, 6), (5, 7), (8, 7), (7, 8), (3, 6, 7), (4, 4, 3)])
@pytest.mark.parametrize("read", ["convolution", "depthwise", "plain"])
def test_joined_channels_lie_without_gaps(read: str, channels: tuple[int, ...]) -> None:
    """Also where blocks that are not full would be as many as it takes."""

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        joined = g.one(Concat(1), *(conv(g, x, n) for n in channels))
        return (joined if read == "plain" else conv(g, joined, *((sum(channels),) * 2 if read == "depthwise" else (8,))),)

    check([f32(2, 3, 5, 6)], body)


@pytest.mark.parametrize("channels", [8, 6, 7])
@pytest.mark.parametrize("inputs", [3, 8, 6])
def test_a_chain_of_convolutions_stays_blocked(inputs: int, channels: int) -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = g.one(Binary("add"), conv(g, x, channels), per_channel(g, channels))
        y = g.one(Binary("max"), y, g.one(constant(np.float32(0))))
        z = conv(g, conv(g, y, channels, groups=channels), channels, stride=2)
        return (g.one(Binary("mul"), z, per_channel(g, channels, 4)),)

    found = names(check([f32(N, inputs, 7, 6)], body))
    assert found.count("blocked_convolution") == 3
    assert found.count("block") == (0 if inputs == 3 else 1)
    assert found.count("unblock") == 1


def test_residuals_gates_pools_and_concatenation_are_blocked() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, x, 8)
        none = as_shape((0, 0))
        pooled = g.one(WindowReduce("max", (2, 2), (2, 2), (1, 1), none, none), g.one(Binary("add"), y, conv(g, y, 8)))
        gate = g.one(Unary("sigmoid"), g.one(Reduce("sum", (2, 3), True), pooled))
        joined = g.one(Concat(1), g.one(Binary("mul"), pooled, gate), pooled)
        return (g.one(Reduce("sum", (2, 3), False), conv(g, joined, 12)),)

    found = names(check([f32(1, 3, 8, 8)], body))
    assert "block" not in found
    assert "unblock" not in found


def test_other_operators_see_the_plain_layout() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, x, 6)
        return g.one(Softmax(1), y), y

    found = names(check([f32(1, 3, 4, 5)], body))
    assert found.count("unblock") == 1


def is_finite_at_zero(rule: ScalarFunction, operands: int) -> bool:
    return "float" not in rule.kinds or bool(np.isfinite(array_function(rule, (np.zeros(1, np.float32),) * operands)).all())


@pytest.mark.parametrize(
    "fn", [fn for operands, table in ((1, UNARY), (2, BINARY)) for fn, rule in table.items() if not is_finite_at_zero(rule, operands)]
)
def test_what_would_not_stay_finite_in_unused_lanes_is_not_blocked(fn: str) -> None:
    """The unused lane of 7 channels in blocks of 4 holds a zero; a weight of zero times what is infinite would be NaN."""

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y, several = conv(g, x, 7), per_channel(g, 7)
        z = g.one(Binary("add"), g.one(Binary("add"), g.one(Unary("abs"), y), several), several)  # from 1 on
        return (conv(g, g.one(Unary(fn), z) if fn in UNARY else g.one(Binary(fn), y, z), 4),)

    check([f32(1, 3, 4, 5)], body)


def test_selection_by_a_blocked_condition() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, x, 8)
        return (g.one(Select(), g.one(Binary("less"), y, g.one(constant(np.float32(0)))), g.one(Unary("neg"), y), y),)

    check([f32(1, 3, 4, 5)], body)


def test_functions_without_convolutions_are_left_alone() -> None:
    f = function("p", [f32(2, 3)], lambda g, x: (g.one(Unary("exp"), x),))
    assert block_channels(f, 8) is f


def test_symbolic_space() -> None:
    height = size("H", 4)

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (conv(g, conv(g, x, 8), 8),)

    before = function("p", [f32(1, 3, height, 6)], body)
    after = fold_constants(block_channels(before, 4))
    for extent in (4, 9):
        x = RNG.uniform(-1, 1, (1, 3, extent, 6)).astype(np.float32)
        np.testing.assert_allclose(interpret(after, [x])[0], interpret(before, [x])[0], rtol=2e-5, atol=2e-5)


def test_convolutions_of_bytes_are_blocked_with_what_converts_between_them() -> None:
    def bytes_conv(g: GraphBuilder, x: Value, outputs: int, groups: int = 1) -> Value:
        w = g.one(constant(RNG.integers(-128, 128, (outputs, int(x.shape[1].value) // groups, 3, 3)).astype(np.int8)))
        one = as_shape((1, 1))
        padded = g.one(Pad((*as_shape((0, 0)), *one), (*as_shape((0, 0)), *one), "constant"), x, g.one(constant(7, dtypes.uint8)))
        return g.one(Convolution((1, 1), (1, 1), as_shape((0, 0)), as_shape((0, 0)), groups, dtypes.int32), padded, w)

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = x
        for outputs, groups in ((8, 1), (8, 8), (6, 1)):
            scaled = g.one(Binary("mul"), g.one(Cast(dtypes.float32), bytes_conv(g, y, outputs, groups)), per_channel(g, outputs))
            y = g.one(
                Cast(dtypes.uint8), g.one(Binary("bitwise_and"), g.one(Cast(dtypes.int32), scaled), g.one(constant(127, dtypes.int32)))
            )
        return (y,)

    before = function("p", [tensor(dtypes.uint8, (2, 3, 5, 6))], body)
    after = fold_constants(block_channels(before, 4))
    x = RNG.integers(0, 256, (2, 3, 5, 6)).astype(np.uint8)
    np.testing.assert_array_equal(interpret(after, [x])[0], interpret(before, [x])[0])
    found = names(after)
    assert found.count("blocked_convolution") == 3
    assert found.count("block") == found.count("unblock") == 1


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2"])
def test_networks_are_blocked_throughout(model: str) -> None:
    module = optimise(import_model(load_model(build(model, image=32))).module, named_machine("x86-64-v3"), Settings())
    groups = [node.op.body for node in walk_nodes(module.main.results) if isinstance(node.op, Fused)]
    found = [name for body in groups for name in names(body)]
    assert "blocked_convolution" in found
    assert not {"convolution", "block", "unblock"} & set(found)


def test_channels_that_would_leave_most_lanes_empty_stay_plain() -> None:
    assert "convolution" in names(check([f32(1, 8, 4, 5)], lambda g, x: (conv(g, x, 5),), lanes=16))


@pytest.mark.parametrize(("channels", "results"), [(8, 0), (0, 8), (0, 0)])
def test_convolutions_without_channels(channels: int, results: int) -> None:
    f = check([f32(1, channels, 4, 5)], lambda g, x: (conv(g, x, results),))
    assert ("convolution" in names(f)) == (results == 0)  # stays plain
    assert best_lanes(f, (8, 16), lambda lanes: CpuLayoutCost(named_machine("x86-64-v4"))) == 8


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_narrow_floats_are_blocked_and_convolve_in_float32(dtype: dtypes.DType) -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        for _ in range(2):
            w = g.one(constant(RNG.uniform(-0.25, 0.25, (8, 8, 3)).astype(dtype.numpy)))
            x = g.one(Convolution((1,), (1,), as_shape((1,)), as_shape((1,)), 1, dtype), x, w)
            x = g.one(Binary("max"), x, g.one(constant(0, dtype)))
        return (x,)

    before = function("p", [TensorType(dtype, as_shape((2, 8, 7)))], body)
    after = fold_constants(block_channels(before, 4))
    x = RNG.uniform(-1, 1, (2, 8, 7)).astype(dtype.numpy)
    want, got = (interpret(f, [x])[0].astype(np.float32) for f in (before, after))
    np.testing.assert_allclose(got, want, atol=1e-2 if dtype is dtypes.float16 else 0.1)
    assert names(after).count("blocked_convolution") == 2
    assert names(after).count("block") == names(after).count("unblock") == 1
