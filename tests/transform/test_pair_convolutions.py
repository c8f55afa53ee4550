"""Pairs of convolutions become one group where a target says so, and results stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.compiled_graphs import f32, function, host, module
from tilewright.compiler import compile_module, optimise
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Node, Value, walk_nodes
from tilewright.graph.ops import Binary, BlockedConvolution, Convolution, Fused, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, size
from tilewright.ir.types import as_shape
from tilewright.machine.targets import named_machine
from tilewright.runtime.executable import Executable
from tilewright.support.settings import Settings
from tilewright.target.cpu.rules.pairs_cost import CpuPairCost, strips
from tilewright.transform.block_channels import block_channels
from tilewright.transform.fold_constants import fold_constants
from tilewright.transform.fuse import fuse
from tilewright.transform.pair_convolutions import Chain, Stage, pair_convolutions

RNG = np.random.default_rng(19)
N = size("N")


@dataclass(frozen=True)
class Always:
    """A target that prefers pairs; `depthwise_first`: those of this kind alone. threes: it prefers these."""

    depthwise_first: bool | None = None
    threes: bool = False

    def apart(self, chain: Chain) -> float:
        return 10.0

    def together(self, chain: Chain) -> float:
        if len(chain.stages) == 3 or self.threes:
            return 1.0 if len(chain.stages) == 3 and self.threes else 20.0
        return 1.0 if self.depthwise_first in (None, chain.stages[0].depthwise) else 20.0


def conv(g: GraphBuilder, x: Value, outputs: int, taps: int = 1, stride: int = 1, depthwise: bool = False, clip: bool = True) -> Value:
    """A convolution with bias and activation."""
    channels = int(x.shape[1].value)
    scale = 1 / np.sqrt(taps * taps * (1 if depthwise else channels))
    w = g.one(constant(RNG.uniform(-scale, scale, (outputs, 1 if depthwise else channels, taps, taps)).astype(np.float32)))
    pad = as_shape((taps // 2,) * 2)
    y = g.one(Convolution((stride, stride), (1, 1), pad, pad, channels if depthwise else 1, dtypes.float32), x, w)
    y = g.one(Binary("add"), y, g.one(constant(RNG.uniform(-1, 1, (1, outputs, 1, 1)).astype(np.float32))))
    return g.one(Binary("max"), y, g.one(constant(np.float32(0)))) if clip else g.one(Unary("sigmoid"), y)


def inverted(
    shape: Sequence[Expr | int], *, wide: int = 8, taps: int = 3, stride: int = 1, clip: bool = True, residual: bool = False
) -> Function:
    """Pointwise, depthwise, pointwise."""

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, conv(g, x, wide, clip=clip), wide, taps, stride, depthwise=True)
        z = conv(g, y, int(x.shape[1].value))
        return (g.one(Binary("add"), z, x) if residual else z,)

    return function("p", [f32(*shape)], body)


def groups(f: Function, lanes: int = 4) -> Function:
    return fuse(fold_constants(block_channels(f, lanes)))


def cores(f: Function) -> list[int]:
    """How many convolutions are in each group, groups without one left out."""
    found = [sum(isinstance(n.op, BlockedConvolution) for n in walk_nodes(node.op.body.results)) for node in fused(f)]
    return [count for count in found if count]


def fused(f: Function) -> list[Node]:
    return [node for node in walk_nodes(f.results) if isinstance(node.op, Fused)]


@pytest.mark.parametrize(
    ("cost", "want"), [(Always(False), [2, 1]), (Always(True), [1, 2]), (Always(), [2, 1]), (Always(threes=True), [3])]
)
def test_of_chains_that_share_a_convolution_one_is_taken(cost: Always, want: list[int]) -> None:
    before = groups(inverted((N, 4, 7, 6), residual=True))
    after = pair_convolutions(before, cost)
    assert cores(before) == [1, 1, 1]
    assert cores(after) == want
    assert [value.type for value in after.results] == [value.type for value in before.results]
    x = RNG.uniform(-1, 1, (2, 4, 7, 6)).astype(np.float32)
    np.testing.assert_allclose(interpret(after, [x])[0], interpret(before, [x])[0], rtol=1e-6)


def test_what_is_read_twice_or_is_a_result_stays_a_group() -> None:
    def both(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, x, 8)
        return (y, conv(g, y, 8, 3, depthwise=True))

    def twice(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, x, 8)
        return (g.one(Binary("add"), conv(g, y, 8, 3, depthwise=True), y),)

    for body in (both, twice):
        before = groups(function("p", [f32(1, 4, 6, 6)], body))
        assert cores(pair_convolutions(before, Always())) == [1, 1]


def test_two_dense_or_two_depthwise_ones_are_no_pair() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, conv(g, x, 8), 8)
        return (conv(g, conv(g, g.one(Binary("add"), y, y), 8, 3, depthwise=True), 8, 3, depthwise=True),)

    before = groups(function("p", [f32(1, 4, 6, 6)], body))
    assert max(cores(pair_convolutions(before, Always(True)))) == 1


def test_operands_of_equal_types_are_kept_apart() -> None:
    """Parameters of two bodies may be one value, since equal parameters are."""

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (conv(g, conv(g, x, 4), 4, 1, depthwise=True),)

    before = groups(function("p", [f32(1, 4, 6, 6)], body))
    after = pair_convolutions(before, Always())
    assert cores(after) == [2]
    x = RNG.uniform(-1, 1, (1, 4, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(interpret(after, [x])[0], interpret(before, [x])[0], rtol=1e-6)


def test_the_target_pairs_what_leaves_its_cache_and_nothing_else() -> None:
    cost = CpuPairCost(named_machine("x86-64-v4"))
    dense = Stage(1, 6, (112, 112), 16, (1, 1), (1, 1), False, 3)
    large = Chain((dense, Stage(1, 6, (56, 56), 1, (3, 3), (2, 2), True, 3)), 16)
    small = Chain((Stage(1, 6, (14, 14), 16, (1, 1), (1, 1), False, 3), Stage(1, 6, (14, 14), 1, (3, 3), (1, 1), True, 3)), 16)
    assert cost.together(large) < cost.apart(large)
    assert cost.together(small) > cost.apart(small)
    assert strips(7) == [1, 2, 3, 4, 7]


def test_a_setting_turns_it_off() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = conv(g, conv(g, conv(g, x, 16, 3), 96), 96, 3, 2, depthwise=True)
        return (conv(g, conv(g, y, 32), 32, 3),)

    before = Module({"main": function("p", [f32(1, 16, 112, 112)], body)}, "main", ("x",), ("y",))
    machine = named_machine("x86-64-v4")
    on, off = (optimise(before, machine, Settings(pair_convolutions=wanted)) for wanted in (True, False))
    assert max(cores(on.main)) > 1
    assert max(cores(off.main)) == 1


@hypothesis_settings(max_examples=16, deadline=None)
@given(
    taps=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]),
    height=st.integers(5, 30),
    width=st.integers(5, 33),
    channels=st.sampled_from([16, 24, 40]),
    wide=st.sampled_from([32, 72]),
    symbolic=st.booleans(),
    clip=st.booleans(),
    cost=st.sampled_from([Always(False), Always(True), Always(threes=True), Always(threes=True)]),
)
def test_compiled_chains_agree(
    taps: int, stride: int, height: int, width: int, channels: int, wide: int, symbolic: bool, clip: bool, cost: Always
) -> None:
    shape = (N if symbolic else 2, channels, height, width)
    before = inverted(shape, wide=wide, taps=taps, stride=stride, clip=clip, residual=stride == 1)
    grouped = pair_convolutions(groups(before, host().lanes(32)), cost)
    assert max(cores(grouped)) == (3 if cost.threes else 2)
    paired = Module({"main": grouped}, "main", ("x0",), ("y0",))
    compiled = compile_module(paired, host(), Settings().changed(cache=False))
    x = RNG.uniform(-1, 1, (2, channels, height, width)).astype(np.float32)
    (want,) = interpret(before, [x])
    for threads in (1, 2):
        got = Executable(compiled.artifact, threads).run({"x0": x})["y0"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_batch_may_be_symbolic_where_the_target_decides() -> None:
    graph = module([f32(N, 16, 64, 64)], lambda g, x: (conv(g, conv(g, x, 240), 240, 3, 2, depthwise=True),))
    compiled = compile_module(graph, host(), Settings().changed(cache=False))
    x = RNG.uniform(-1, 1, (3, 16, 64, 64)).astype(np.float32)
    got = Executable(compiled.artifact, 2).run({"x0": x})["y0"]
    np.testing.assert_allclose(got, interpret(graph, [x])[0], rtol=1e-4, atol=1e-5)
