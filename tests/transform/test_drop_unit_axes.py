"""Convolutions over axes of one point become convolutions over the others, and what follows goes along."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled_graphs import f32, function
from tests.transform.rewrite_cases import before_and_after
from tests.transform.test_simplify import one
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import Convolution, WindowReduce, constant
from tilewright.graph.text_parser import parse_function
from tilewright.ir import dtypes
from tilewright.ir.types import as_shape
from tilewright.transform.drop_unit_axes import drop_unit_axes

RNG = np.random.default_rng(1)
CONVOLUTION = "strides=(1, 1), dilations=(1, 1), low=(0, 0), high=(0, 0), groups=1, dtype=float32"
INPUT = "x: float32[N, 4, 9, 1], w: float32[2, 4, 3, 1]"
CASES = {
    "an activation and pooling": one(
        f"""a = convolution(x, w, {CONVOLUTION})
        b = unary(a, fn="tanh")
        y = window_reduce(b, fn="max", window=(2, 1), strides=(2, 1), dilations=(1, 1), low=(0, 0), high=(0, 0))""",
        INPUT,
    ),
    "another operand": one(
        f"""a = convolution(x, w, {CONVOLUTION})
        g = reduce(a, fn="sum", axes=(2, 3), keepdims=True)
        y = binary(a, g, fn="mul")""",
        INPUT,
    ),
    "transposes around": one(
        f"""a = transpose(x, perm=(0, 3, 1, 2))
        b = convolution(a, w, {CONVOLUTION})
        y = transpose(b, perm=(0, 2, 3, 1))""",
        "x: float32[N, 9, 1, 4], w: float32[2, 4, 3, 1]",
    ),
    "all but one tap meet padding": one(
        "y = convolution(x, w, strides=(1, 1), dilations=(1, 1), low=(0, 1), high=(0, 1), groups=1, dtype=float32)",
        "x: float32[N, 4, 9, 1], w: float32[2, 4, 3, 3]",
    ),
    "an image of one point stays": one(f"y = convolution(x, w, {CONVOLUTION})", "x: float32[N, 4, 1, 1], w: float32[2, 4, 1, 1]"),
    "an axis that a kernel covers stays": one(f"y = convolution(x, w, {CONVOLUTION})", "x: float32[N, 4, 9, 5], w: float32[2, 4, 3, 5]"),
}


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("drop_unit_axes", before_and_after(CASES, drop_unit_axes))


def names(f: Function) -> list[str]:
    return [node.op.name for node in walk_nodes(f.results)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_results_stay(data: st.DataObject) -> None:
    """Any strides, dilations, padding and groups; a window, an activation and a sum follow."""
    rank = data.draw(st.integers(2, 3))
    unit = data.draw(st.integers(0, rank - 1))

    def each(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(rank)]

    groups, strides, dilations, taps = data.draw(st.sampled_from([1, 2, 4])), each(1, 3), each(1, 2), each(1, 3)
    dims = [1 if i == unit else n for i, n in enumerate(each(5, 8))]
    low, high = each(0, 2), each(0, 2)
    if any(n + a + b < (k - 1) * d + 1 for n, a, b, k, d in zip(dims, low, high, taps, dilations, strict=True)):
        return
    w = RNG.uniform(-1, 1, (4, 4 // groups, *taps)).astype(np.float32)

    def body(g: GraphBuilder, x: Value) -> list[Value]:
        op = Convolution(tuple(strides), tuple(dilations), as_shape(low), as_shape(high), groups, dtypes.float32)
        y = g.one(op, x, g.one(constant(w)))
        ones, zeros = (1,) * rank, as_shape((0,) * rank)
        return [y, g.one(WindowReduce("max", ones, ones, ones, zeros, zeros), y)]

    before = function("p", [f32(2, 4, *dims)], body)
    after = drop_unit_axes(before)
    assert [value.type for value in after.results] == [value.type for value in before.results]
    x = RNG.uniform(-1, 1, (2, 4, *dims)).astype(np.float32)
    for found, expected in zip(interpret(after, [x]), interpret(before, [x]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    kept = next(node for node in walk_nodes(after.results) if node.op.name == "convolution")
    at = 2 + unit
    reached = before.results[0].shape[at].value == 1 and low[unit] % dilations[unit] == 0 and low[unit] // dilations[unit] < taps[unit]
    assert kept.types[0].rank == 2 + rank - reached


def test_transposes_of_two_layers_meet() -> None:
    """Between two convolutions of a channels-last network of one axis no transpose is left."""
    text = f"""
def main(x: float32[2, 9, 1, 3], w: float32[4, 3, 3, 1], u: float32[4, 4, 3, 1]):
    a = transpose(x, perm=(0, 3, 1, 2))
    b = convolution(a, w, {CONVOLUTION})
    c = transpose(b, perm=(0, 2, 3, 1))
    d = unary(c, fn="tanh")
    e = transpose(d, perm=(0, 3, 1, 2))
    f = convolution(e, u, {CONVOLUTION})
    return f
"""
    before = parse_function(text)
    after = drop_unit_axes(before)
    assert names(after).count("transpose") == 1
    inputs = [RNG.standard_normal([d.value for d in p.shape]).astype(np.float32) for p in before.params]
    np.testing.assert_allclose(interpret(after, inputs)[0], interpret(before, inputs)[0], rtol=1e-5, atol=1e-5)
