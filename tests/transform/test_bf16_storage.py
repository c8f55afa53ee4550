"""Images in bfloat16 between kernels: which they are, what their users become, and that nothing else is rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.compiled_graphs import f32, function, host
from tests.transform.test_bf16_products import held
from tilewright.compiler import graph_passes
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import Binary, BlockedConvolution, Cast, Concat, Reduce, Unary, WindowReduce, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import tensor
from tilewright.target.cpu.dots import rounds_bf16
from tilewright.transform.bf16_storage import bf16_storage
from tilewright.transform.verify import verify_function

F32, BF16 = dtypes.float32, dtypes.bfloat16
IMAGE = (1, 1, 6, 6, 16)
Use = Callable[[GraphBuilder, Value], Value]


def product(g: GraphBuilder, x: Value, seed: int = 3) -> Value:
    """A convolution of factors in bfloat16, as `bf16_products` leaves them."""
    w = g.one(Cast(BF16), held(g, 16, 16, 1, 1, seed=seed))
    op = BlockedConvolution((1, 1), (1, 1), (const(0),) * 2, (const(0),) * 2, False, 16, F32)
    return g.one(op, g.one(Cast(BF16), x), w)


def depthwise(g: GraphBuilder, x: Value) -> Value:
    pad = (const(1),) * 2
    return g.one(BlockedConvolution((1, 1), (1, 1), pad, pad, True, 16, F32), x, held(g, 16, 1, 3, 3, seed=5))


def pooled(g: GraphBuilder, x: Value) -> Value:
    return g.one(WindowReduce("max", (1, 1, 2, 2, 1), (1, 1, 2, 2, 1), (1,) * 5, (const(0),) * 5, (const(0),) * 5), x)


def relu(g: GraphBuilder, x: Value) -> Value:
    return g.one(Binary("max"), x, g.one(constant(np.float32(0))))


def block(*uses: Use) -> Function:
    """relu(product(x)), and what users make of it."""

    def body(g: GraphBuilder, x: Value) -> list[Value]:
        made = relu(g, product(g, x))
        return [use(g, made) for use in uses]

    return function("main", [f32(*IMAGE)], body)


def residual(g: GraphBuilder, x: Value) -> Value:
    return g.one(Binary("add"), product(g, x, 4), x)


def joined_by_sum(g: GraphBuilder, x: Value) -> Value:
    return g.one(Binary("add"), x, product(g, held(g, *IMAGE, seed=8), 4))


def doubled(g: GraphBuilder, x: Value) -> Value:
    return g.one(Binary("add"), x, x)


def joined(g: GraphBuilder, x: Value) -> Value:
    return g.one(Unary("exp"), g.one(Concat(1), x, relu(g, product(g, x, 6))))


def joined_with_floats(g: GraphBuilder, x: Value) -> Value:
    return g.one(Concat(1), x, held(g, *IMAGE))


def mean(g: GraphBuilder, x: Value) -> Value:
    return g.one(Reduce("sum", (2, 3), True), x)


CASES: dict[str, tuple[tuple[Use, ...], int, bool]] = {
    # name: users, bytes that stay near, whether the result of the block is stored in bfloat16
    "the next product, and the sum past it": ((residual,), 0, True),
    "a product, and somebody else": ((product, doubled), 1 << 30, True),
    "a pool": ((pooled,), 0, True),
    "a far depthwise convolution": ((depthwise,), 0, True),
    "a near depthwise convolution": ((depthwise,), 1 << 30, False),
    "another product's sum": ((joined_by_sum,), 1 << 30, True),
    "elementwise operators, which are in its own kernel": ((doubled,), 0, False),
    "a mean": ((mean,), 0, False),
    "a product and a mean": ((product, mean), 0, False),
    "a concatenation of alike": ((joined,), 0, True),
    "a concatenation with floats": ((joined_with_floats, product), 0, False),
}


@pytest.mark.parametrize("name", CASES)
def test_images_are_stored_where_every_user_allows_it(name: str) -> None:
    uses, near, kept = CASES[name]
    before = block(*uses)
    after = bf16_storage(before, near)
    verify_function(after)
    assert [value.type for value in after.results] == [value.type for value in before.results]
    casts = [node for node in walk_nodes(after.results) if isinstance(node.op, Cast) and node.op.dtype is F32]
    direct = [node for node in walk_nodes(after.results) if isinstance(node.op, BlockedConvolution) and node.op.depthwise]
    assert bool(casts or any(node.inputs[0].type.dtype is BF16 for node in direct)) is kept
    x = np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32)
    for got, want in zip(interpret(after, [x]), interpret(before, [x]), strict=True):
        if kept:
            np.testing.assert_allclose(got, want, rtol=0.05, atol=0.05 * float(np.abs(want).max()))
        else:
            np.testing.assert_array_equal(got, want)


def test_one_rounding_serves_all() -> None:
    """The product reads what the sum reads; no second copy is made."""
    after = bf16_storage(block(residual, product), 0)
    rounded = [node for node in walk_nodes(after.results) if isinstance(node.op, Cast) and node.op.dtype is BF16]
    images = [node for node in rounded if node.types[0].rank == 5]
    assert len(images) == 2  # the parameter, and the result of the block


def test_results_and_models_without_such_products_stay() -> None:
    result = function("main", [f32(*IMAGE)], lambda g, x: [(y := relu(g, product(g, x))), product(g, y, 4)])
    assert bf16_storage(result, 0) is result
    floats = function("main", [f32(*IMAGE)], lambda g, x: [pooled(g, relu(g, depthwise(g, x)))])
    assert bf16_storage(floats, 0) is floats


def test_only_machines_that_round_by_an_instruction_store_so() -> None:
    plain = replace(host(), isa=host().isa - {"avx512bf16"})
    (run,) = [p.apply for p in graph_passes(plain, "bf16") if p.name == "bf16_storage"]
    assert not rounds_bf16(plain)
    before = block(residual)
    assert run(before) is before


def test_what_is_no_image_stays_float32() -> None:
    """Tensors of as many axes beside the images of one model: scores of an attention, values of its own that are bfloat16."""
    halves = tensor(BF16, IMAGE)

    def body(g: GraphBuilder, x: Value, y: Value, z: Value) -> list[Value]:
        scores = g.one(Unary("exp"), y)
        wide = g.one(Cast(F32), z)
        return [residual(g, relu(g, product(g, x))), doubled(g, scores), g.one(Cast(BF16), scores), depthwise(g, wide)]

    before = function("main", [f32(*IMAGE), f32(*IMAGE), halves], body)
    after = bf16_storage(before, 0)
    assert after is not before
    assert after.results[1:] == before.results[1:]
