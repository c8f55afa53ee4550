"""Bytes between two products: what they hold, that it is exact, and that nothing is stored where no second product is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled_graphs import function, host
from tilewright.compiler import optimise
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Value, users_of, walk_nodes
from tilewright.graph.ops import Binary, Cast, Convolution, Fused, Unary, constant
from tilewright.graph.ops.compose import scalar
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import TensorType, as_shape
from tilewright.support.settings import Settings
from tilewright.transform.fuse import fuse
from tilewright.transform.narrow_storage import narrow_storage, second_products
from tilewright.transform.verify import verify_function

F32 = dtypes.float32
IMAGE = (1, 16, 5, 5)


def product(g: GraphBuilder, x: Value, seed: int) -> Value:
    """A convolution of bytes as a float."""
    one = (const(1), const(1))
    weights = np.random.default_rng(seed).integers(-128, 128, (16, 16, 3, 3), np.int8)
    sums = g.one(Convolution((1, 1), (1, 1), one, one, 1, dtypes.int32), x, g.one(constant(weights)))
    return g.one(Binary("mul"), g.one(Cast(F32), sums), scalar(g, 0.01, F32))


def quantized(g: GraphBuilder, x: Value, low: float, high: float) -> Value:
    """Quantized and dequantized at once: clamped, whole, and scaled again, as simplification leaves it."""
    clamped = g.one(Binary("min"), g.one(Binary("max"), x, scalar(g, low, F32)), scalar(g, high, F32))
    whole = g.one(Cast(dtypes.int32), g.one(Unary("round"), clamped))
    return g.one(Binary("mul"), g.one(Cast(F32), whole), scalar(g, 0.25, F32))


def branches(low: float, high: float, second: bool = True) -> Function:
    def body(g: GraphBuilder, x: Value) -> list[Value]:
        a = quantized(g, product(g, x, 1), low, high)
        return [g.one(Binary("add"), a, quantized(g, product(g, x, 2), -9, 9) if second else g.one(Cast(F32), x))]

    return function("main", [TensorType(dtypes.uint8, as_shape(IMAGE))], body)


def between_kernels(f: Function) -> list[str]:
    """The dtypes of what fused kernels hand to each other."""
    fused = fuse(f)
    return [node.types[0].dtype.name for node, users in users_of(fused.results).items() if isinstance(node.op, Fused) and users]


CASES = {  # the clamp: what is stored
    (0.0, 255.0): ["uint8"],
    (-128.0, 127.0): ["int8"],
    (-121.0, 134.0): ["uint8"],
    (-500.0, -245.0): ["uint8"],
    (-121.0, 135.0): ["int32"],
    (0.0, 1e6): ["int32"],
}


@pytest.mark.parametrize(("low", "high"), CASES)
def test_what_meets_another_product_is_stored_in_bytes_that_hold_it(low: float, high: float) -> None:
    before = branches(low, high)
    after = narrow_storage(before)
    verify_function(after)
    assert between_kernels(before) == ["int32"]
    assert between_kernels(after) == CASES[low, high]
    x = np.random.default_rng(0).integers(0, 256, IMAGE, np.uint8)
    np.testing.assert_array_equal(interpret(after, [x])[0], interpret(before, [x])[0])


def test_what_meets_no_product_stays() -> None:
    before = branches(0.0, 255.0, second=False)
    assert narrow_storage(before) is before


def test_what_others_need_as_well_stays() -> None:
    def body(g: GraphBuilder, x: Value) -> list[Value]:
        a, b = (quantized(g, product(g, x, seed), 0, 255) for seed in (1, 2))
        return [g.one(Binary("add"), a, b), g.one(Unary("exp"), a)]

    before = function("main", [TensorType(dtypes.uint8, as_shape(IMAGE))], body)
    assert narrow_storage(before) is before


def test_of_three_products_the_last_has_the_sum() -> None:
    def body(g: GraphBuilder, x: Value) -> list[Value]:
        a, b, c = (quantized(g, product(g, x, seed), 0, 255) for seed in (1, 2, 3))
        return [g.one(Binary("add"), g.one(Binary("add"), a, b), c)]

    before = function("main", [TensorType(dtypes.uint8, as_shape(IMAGE))], body)
    sums = [node for node in walk_nodes(before.results) if isinstance(node.op, Binary) and node.op.fn == "add"]
    assert second_products(users_of(before.results)) == {sums[0].inputs[0], sums[1].inputs[0]}
    assert between_kernels(narrow_storage(before)) == ["uint8", "int32"]


def test_models_keep_the_bytes_to_their_kernels() -> None:
    """No later pass takes them out again."""
    main = optimise(Module({"main": branches(-121.0, 134.0)}), host(), Settings()).main
    kernels = [node for node, users in users_of(main.results).items() if isinstance(node.op, Fused) and users]
    assert "uint8" in [node.types[0].dtype.name for node in kernels]
