"""Fusion: which operators share a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.compiled_graphs import f32, function
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Origin, Value, walk_nodes
from tilewright.graph.ops import (
    Binary,
    Cast,
    Contract,
    Convolution,
    Fused,
    Gather,
    Reduce,
    Reshape,
    Softmax,
    TopK,
    Transpose,
    Unary,
    WindowReduce,
    constant,
)
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import TensorType, as_shape
from tilewright.transform.fuse import fuse, isolate

F32 = dtypes.float32


def groups(f: Function) -> list[str]:
    return [node.op.body.name for node in walk_nodes(f.results) if isinstance(node.op, Fused)]


def fused(types: Sequence[TensorType], body: Callable[..., Sequence[Value]]) -> list[str]:
    before = function("p", types, body)
    after = fuse(before)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, [int(d.value) for d in t.shape]).astype(t.dtype.numpy) for t in types]
    for want, got in zip(interpret(before, arrays), interpret(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    return groups(after)


def relu(g: GraphBuilder, x: Value) -> Value:
    return g.one(Binary("max"), x, g.one(constant(np.float32(0))))


def conv(g: GraphBuilder, x: Value, w: Value) -> Value:
    one = (const(1), const(1))
    return g.one(Convolution((1, 1), (1, 1), one, one, 1, F32), x, w)


IMAGE, WEIGHTS, BIAS = f32(1, 2, 6, 6), f32(2, 2, 3, 3), f32(2, 1, 1)


def test_elementwise_users_become_the_epilogue_of_a_convolution() -> None:
    def body(g: GraphBuilder, x: Value, w: Value, b: Value, r: Value) -> Sequence[Value]:
        return (relu(g, g.one(Binary("add"), g.one(Binary("add"), conv(g, x, w), b), r)),)

    assert fused([IMAGE, WEIGHTS, BIAS, IMAGE], body) == ["convolution_add_add_max"]


def test_pooling_leaves_a_convolution_its_epilogue() -> None:
    def body(g: GraphBuilder, x: Value, w: Value, b: Value) -> Sequence[Value]:
        y = relu(g, g.one(Binary("add"), conv(g, x, w), b))
        none = as_shape((0, 0))
        return (g.one(WindowReduce("max", (2, 2), (2, 2), (1, 1), none, none), y),)

    assert fused([IMAGE, WEIGHTS, BIAS], body) == ["convolution_add_max", "max"]


def test_a_value_that_others_read_too_is_stored() -> None:
    def body(g: GraphBuilder, x: Value, w: Value) -> Sequence[Value]:
        y = conv(g, x, w)
        return relu(g, y), conv(g, y, w)

    assert sorted(fused([IMAGE, WEIGHTS], body)) == ["convolution", "convolution", "max"]


def test_users_of_one_group_share_a_producer() -> None:
    def body(g: GraphBuilder, x: Value, w: Value) -> Sequence[Value]:
        y = conv(g, x, w)
        return (g.one(Binary("mul"), y, g.one(Unary("sigmoid"), y)),)

    assert fused([IMAGE, WEIGHTS], body) == ["convolution_sigmoid_mul"]


def test_transposes_join_the_operands_of_a_product_and_arithmetic_does_not() -> None:
    def body(g: GraphBuilder, a: Value, b: Value) -> Sequence[Value]:
        return (g.one(Contract("mk,kn->mn", F32), g.one(Unary("exp"), a), g.one(Transpose((1, 0)), b)),)

    assert fused([f32(3, 4), f32(5, 4)], body) == ["exp", "transpose_contract"]


@pytest.mark.parametrize(("groups", "kernels"), [(1, ["transpose_convolution"]), (2, ["transpose", "convolution"])])
def test_a_convolution_in_groups_reads_no_transposed_rows(groups: int, kernels: list[str]) -> None:
    """Its lanes are points of the image, which lie in order behind a copy only; the channels of a dense one are its lanes."""

    def body(g: GraphBuilder, x: Value, w: Value) -> Sequence[Value]:
        none = as_shape((0,))
        return (g.one(Convolution((1,), (1,), none, none, groups, F32), g.one(Transpose((0, 2, 1)), x), w),)

    assert fused([f32(1, 9, 4), f32(4, 4 // groups, 3)], body) == kernels


def test_arithmetic_joins_the_input_of_a_reduction() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(Reduce("sum", (1,), False), g.one(Binary("mul"), x, x)),)

    assert fused([f32(3, 4)], body) == ["mul_sum"]


def test_an_expensive_producer_is_not_computed_again_for_each_reader() -> None:
    def body(g: GraphBuilder, x: Value, y: Value) -> Sequence[Value]:
        return (g.one(Binary("add"), g.one(Unary("exp"), x), y),)

    assert fused([f32(4), f32(3, 4)], body) == ["exp", "add"]
    assert fused([f32(3, 4), f32(3, 4)], body) == ["exp_add"]


def test_reshapes_and_selection_stay_between_groups() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        flat = g.one(Reshape(as_shape((12,))), g.one(Unary("exp"), x))
        values, _ = g.emit(TopK(const(3), 0, True), flat)
        return (g.one(Unary("neg"), values),)

    assert fused([f32(3, 4)], body) == ["exp", "top_k", "neg"]


def test_two_cores_never_share_a_kernel() -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(Softmax(1), g.one(Softmax(1), x)),)

    assert fused([f32(3, 4)], body) == ["softmax", "softmax"]


def test_isolation_gives_each_operator_a_kernel() -> None:
    def body(g: GraphBuilder, x: Value, w: Value) -> Sequence[Value]:
        return (relu(g, conv(g, x, w)),)

    assert groups(isolate(function("p", [IMAGE, WEIGHTS], body))) == ["convolution", "max"]


def test_equal_groups_are_one_operator_with_origins_of_their_own() -> None:
    g = GraphBuilder()
    p = function("p", [f32(3, 4), f32(2, 4)], lambda g, x, y: (x, y)).params
    results = []
    for name, value in zip(("first", "second"), (p[0], p[0]), strict=True):
        g.origin = Origin(name, "Gather")
        index = g.one(constant(np.int64([0 if name == "first" else 1, 2])))
        g.origin = Origin(name, "Exp")
        results.append(g.one(Unary("exp"), g.one(Gather(0), value, index, origin=Origin(name, "Gather"))))
    after = fuse(Function("main", p, tuple(results)))
    first, second = (value.node for value in after.results)
    assert first.op is second.op
    assert [str(part) for part in first.origin.parts] == ["Gather node 'first'", "Exp node 'first'"]
    assert [str(part) for part in second.origin.parts] == ["Gather node 'second'", "Exp node 'second'"]


def test_a_second_product_that_ends_in_bytes_is_stored_in_bytes() -> None:
    """Its 32-bit sums would be four times the memory."""

    def branch(g: GraphBuilder, x: Value, w: Value) -> Value:
        sums = g.one(Convolution((1, 1), (1, 1), as_shape((0, 0)), as_shape((0, 0)), 1, F32), x, w)
        return g.one(Cast(dtypes.uint8), g.one(Unary("abs"), sums))

    def body(g: GraphBuilder, x: Value, w: Value, v: Value) -> Sequence[Value]:
        return (g.one(Binary("max"), branch(g, x, w), branch(g, x, v)),)

    assert sorted(fused([IMAGE, f32(2, 2, 1, 1), f32(2, 2, 1, 1)], body)) == ["convolution_abs_cast", "convolution_abs_cast_max"]
