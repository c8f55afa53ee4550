"""Leading axes of products as one: results and types stay, what follows stays with its product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as choices

import numpy as np
import pytest

from tests.compiled_graphs import check as check_compiled
from tests.compiled_graphs import f32, function, module
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import Binary, Contract, Convolution, LayerNorm, Slice, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import TensorType
from tilewright.transform.fuse import fuse
from tilewright.transform.merge_rows import merge_rows

B, T = size("B"), size("T")
RNG = np.random.default_rng(5)
F32 = dtypes.float32


def weights(g: GraphBuilder, *shape: int) -> Value:
    return g.one(constant(RNG.uniform(-1, 1, shape).astype(np.float32)))


def product(g: GraphBuilder, x: Value, outputs: int = 6) -> Value:
    return g.one(Contract("btk,kn->btn", F32), x, weights(g, int(x.shape[2].value), outputs))


def check(types: Sequence[TensorType], body: Callable[..., Sequence[Value]]) -> list[str]:
    """The operators after the pass, with "[rows]" where a product has one axis of rows."""
    before = function("p", types, body)
    after = merge_rows(before, 16)
    assert [v.type for v in after.results] == [v.type for v in before.results]
    arrays = [RNG.uniform(-1, 1, [{B: 2, T: 3}.get(d) or int(d.value) for d in t.shape]).astype(np.float32) for t in types]
    for want, got in zip(interpret(before, arrays), interpret(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return names(after)


def names(f: Function) -> list[str]:
    return [
        node.op.name + ("[rows]" if isinstance(node.op, Contract) and node.types[0].rank == 2 else "") for node in walk_nodes(f.results)
    ]


def test_what_follows_a_product_is_merged_too() -> None:
    def body(g: GraphBuilder, x: Value, y: Value) -> Sequence[Value]:
        z = g.one(Binary("add"), product(g, x), weights(g, 6))
        z = g.one(Binary("add"), g.one(Unary("tanh"), z), weights(g, 1, 1, 6))
        return (product(g, g.one(Binary("add"), z, y)),)

    found = check([f32(B, T, 5), f32(B, T, 6)], body)
    assert found.count("contract[rows]") == 2
    groups = walk_nodes(fuse(merge_rows(function("p", [f32(B, T, 5), f32(B, T, 6)], body), 16)).results)
    assert sum(node.op.name == "fused" for node in groups) == 2


def test_others_read_the_axes_as_they_were() -> None:
    def body(g: GraphBuilder, x: Value, mask: Value) -> Sequence[Value]:
        y = product(g, x)
        masked = g.one(Binary("mul"), y, mask)  # one number for each sequence
        return (g.one(LayerNorm(1, 1e-5), y, weights(g, 3, 6), weights(g, 3, 6)), masked)

    assert check([f32(B, 3, 5), f32(B, 1, 1)], body).count("contract[rows]") == 1


@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        ("btk,bkn->btn", (B, T, 5), (B, 5, 4)),
        ("btk,kn->tbn", (B, T, 5), (5, 4)),
        ("bk,kn->bn", (B, 5), (5, 4)),
        ("btk,kn->btn", (1, T, 5), (5, 4)),
    ],
)
def test_other_products_stay(spec: str, left: tuple, right: tuple) -> None:
    before = function("p", [f32(*left), f32(*right)], lambda g, x, w: [g.one(Contract(spec, F32), x, w)])
    assert merge_rows(before, 16) is before


def test_rows_of_the_second_operand() -> None:
    spec = "nk,btk->btn"
    assert check([f32(4, 5), f32(B, T, 5)], lambda g, w, x: [g.one(Contract(spec, F32), w, x)]).count("contract[rows]") == 1


def test_a_product_reads_through_movement_rather_than_through_a_reshape() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        zero = const(0)
        return (product(g, g.one(Slice((zero, zero, const(2)), (B, T, const(5)), (1, 1, 1)), x)),)

    assert "contract" in check([f32(B, T, 9)], body)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (3, 1), (2, 13)])
def test_compiled(shape: tuple[int, int]) -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(Unary("tanh"), g.one(Binary("add"), product(g, x, 70), weights(g, 70))),)

    m = module([f32(B, T, 40)], body)
    compiled = check_compiled(m, [RNG.uniform(-1, 1, (*shape, 40)).astype(np.float32)], rtol=1e-4)
    assert len(compiled.plan.steps) == 1, "the result is written where it belongs"


def test_rows_in_another_order_are_turned_first() -> None:
    def body(g: GraphBuilder, x: Value, columns: int = 64) -> Sequence[Value]:
        return (g.one(Binary("add"), g.one(Contract("tbk,kn->btn", F32), x, weights(g, 5, columns)), weights(g, columns)),)

    assert check([f32(T, B, 5)], body).count("contract[rows]") == 1
    assert "transpose" in check([f32(T, B, 5)], body)
    assert "transpose" not in check([f32(2, 3, 5)], body), "rows of known number lie along the longer axis"
    assert "transpose" not in check([f32(T, B, 5)], lambda g, x: body(g, x, 8)), "a copy for a few columns"


@pytest.mark.parametrize("spec", ["tbk,kn->btn", "kn,tbk->btn", "ktb,kn->btn", "tbk,nk->btn"])
def test_turned_rows_compiled(spec: str) -> None:
    left, right = spec.partition("->")[0].split(",")
    rows = next(side for side in (left, right) if "t" in side)
    lengths = {"t": T, "b": B, "k": 12, "n": 70}

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        other = weights(g, *[lengths[c] for c in (right if rows == left else left)])
        return (g.one(Contract(spec, F32), *((x, other) if rows == left else (other, x))),)

    cases = [
        [RNG.uniform(-1, 1, [{"t": t, "b": b, "k": 12}[c] for c in rows]).astype(np.float32)] for t, b in ((0, 2), (1, 1), (5, 1), (3, 7))
    ]
    check_compiled(module([f32(*[lengths[c] for c in rows])], body), *cases, rtol=1e-4)


@pytest.mark.parametrize(("stride", "outputs", "merged"), [(1, 6, True), (2, 128, True), (2, 16, False)])
def test_pointwise_convolutions_are_products_of_pixels(stride: int, outputs: int, merged: bool) -> None:
    """With what follows; with strides only where enough channels read the thinned image."""

    def body(g: GraphBuilder, x: Value, y: Value) -> Sequence[Value]:
        op = Convolution((stride, stride), (1, 1), (const(0),) * 2, (const(0),) * 2, 1, F32)
        z = g.one(Binary("add"), g.one(op, x, weights(g, outputs, 5, 1, 1)), weights(g, outputs, 1, 1))
        return (g.one(Unary("tanh"), g.one(Binary("add"), z, y)),)

    size_ = -(-7 // stride)
    types = [f32(B, 5, 7, 7), f32(B, outputs, size_, size_)]
    found = check(types, body)
    assert found.count("contract") == merged
    assert found.count("convolution") == (not merged)
    assert found.count("slice") == (merged and stride > 1)
    if merged:
        last = [node for node in walk_nodes(merge_rows(function("p", types, body), 16).results) if isinstance(node.op, Unary)]
        assert [node.types[0].rank for node in last] == [3]


@pytest.mark.parametrize(("low", "groups", "taps", "space"), [(1, 1, 1, 7), (0, 2, 1, 7), (0, 1, 3, 7), (0, 1, 1, 3)])
def test_other_convolutions_stay(low: int, groups: int, taps: int, space: int) -> None:
    """Padding, groups, windows, images smaller than a vector."""

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        op = Convolution((1, 1), (1, 1), (const(low),) * 2, (const(low),) * 2, groups, F32)
        return (g.one(op, x, weights(g, 6, 4 // groups, taps, taps)),)

    assert "convolution" in check([f32(B, 4, space, space)], body)


@pytest.mark.parametrize("padding", list(choices((0, 1, -1), repeat=2)))
def test_pointwise_convolutions_that_pad_or_cut_any_side_stay(padding: tuple[int, int]) -> None:
    """Before or after the image, along one axis or both; with strides that leave the image as large as without it, too."""
    for first, second, stride in choices((padding, padding[::-1], (0, 0)), (padding, (0, 0)), (1, 2)):
        op = Convolution((stride, stride), (1, 1), *(tuple(map(const, side)) for side in zip(first, second, strict=True)), 1, F32)
        found = check([f32(B, 4, 9, 7)], lambda g, x, op=op: (g.one(op, x, weights(g, 128, 4, 1, 1)),))
        assert ("contract" in found) == (not any((*first, *second))), (first, second, stride)
