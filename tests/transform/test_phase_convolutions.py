"""Transposed convolutions as convolutions of their phases: results stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled_graphs import f32, function
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import ConvolutionTranspose, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.types import as_shape, tensor
from tilewright.transform.block_channels import block_channels
from tilewright.transform.fold_constants import fold_constants
from tilewright.transform.phase_convolutions import phase_convolutions

RNG = np.random.default_rng(1)


def transposed(
    x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], low, high, extra, groups: int = 1
) -> Function:
    def body(g: GraphBuilder, value: Value) -> list[Value]:
        weights = g.one(constant(RNG.uniform(-1, 1, w).astype(np.float32)))
        op = ConvolutionTranspose(strides, dilations, as_shape(low), as_shape(high), tuple(extra), groups, dtypes.float32)
        return [g.one(op, value, weights)]

    return function("p", [f32(*x)], body)


def names(f: Function) -> list[str]:
    return [node.op.name for node in walk_nodes(f.results)]


def same(before: Function, after: Function, shape: tuple[int, ...]) -> None:
    assert [value.type for value in after.results] == [value.type for value in before.results]
    x = RNG.uniform(-1, 1, shape).astype(np.float32)
    np.testing.assert_allclose(interpret(after, [x])[0], interpret(before, [x])[0], rtol=2e-5, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_results_stay(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))

    def each(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(rank)]

    strides, dilations, taps, dims = each(1, 4), each(1, 2), each(1, 5), each(2, 5)
    reach = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    low, high = ([data.draw(st.integers(-1, r - 1)) for r in reach] for _ in range(2))
    extra = [data.draw(st.integers(0, s - 1)) for s in strides]
    sizes = zip(dims, strides, reach, low, high, extra, strict=True)
    if any((n - 1) * s + r + e - a - b < 1 for n, s, r, a, b, e in sizes):
        return
    shape = (2, 3, *dims)
    before = transposed(shape, (3, 2, *taps), tuple(strides), tuple(dilations), low, high, extra)
    after = fold_constants(phase_convolutions(before))
    same(before, after, shape)
    waste = np.prod([-(-(r if s > 1 else k) // s) * s / k for r, s, k in zip(reach, strides, taps, strict=True)])
    assert ("convolution_transpose" in names(after)) == bool(waste > 2)


def test_groups_are_left_alone() -> None:
    before = transposed((1, 4, 3), (4, 1, 2), (2,), (1,), (0,), (0,), (0,), 2)
    assert phase_convolutions(before) is not None
    assert names(phase_convolutions(before)) == names(before)


@pytest.mark.parametrize("outputs", [8, 6])
def test_whole_blocks_of_channels_stay_blocked(outputs: int) -> None:
    before = transposed((1, 8, 5, 4), (8, outputs, 4, 4), (2, 2), (1, 1), (1, 1), (1, 1), (0, 0))
    after = fold_constants(block_channels(fold_constants(phase_convolutions(before)), 4))
    same(before, after, (1, 8, 5, 4))
    order = names(after)
    assert (order.index("interleave") < order.index("unblock")) == (outputs == 8)


def test_symbolic_sizes() -> None:
    n = size("n", 1)

    def body(g: GraphBuilder, value: Value) -> list[Value]:
        weights = g.one(constant(RNG.uniform(-1, 1, (4, 4, 16)).astype(np.float32)))
        return [g.one(ConvolutionTranspose((8,), (1,), as_shape((4,)), as_shape((4,)), (0,), 1, dtypes.float32), value, weights)]

    before = function("p", [tensor(dtypes.float32, (1, 4, n))], body)
    same(before, fold_constants(phase_convolutions(before)), (1, 4, 7))
