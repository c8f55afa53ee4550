"""Constant folding and folding of factors into weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.transform.rewrite_cases import before_and_after, weights
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Parameter, Value, walk_nodes
from tilewright.graph.ops import BatchNorm, Binary, Contract, Convolution, ConvolutionTranspose, RandomUniform, Unary, constant
from tilewright.graph.text_parser import parse_function
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import tensor
from tilewright.transform.fold_batch_norm import fold_batch_norm
from tilewright.transform.fold_constants import fold_constants

F32 = dtypes.float32
Golden = Callable[[str, str], None]


def operators(function: Function) -> list[str]:
    return [getattr(n.op, "fn", n.op.name) for n in walk_nodes(function.results) if n.op.name not in ("parameter", "constant")]


def check_same(before: Function, after: Function, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for a, b in zip(interpret(before, [x]), interpret(after, [x]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_constants_fold(golden: Golden) -> None:
    cases = {
        "arithmetic": 'def main():\n    a = constant([1.0, 2.0], float32[2])\n    b = unary(a, fn="neg")\n    return b\n',
        "with an input": """
def main(x: float32[2]):
    a = constant([1.0, 2.0], float32[2])
    b = unary(a, fn="sqrt")
    c = binary(x, b, fn="mul")
    return c
""",
        "a small constant is not blown up": """
def main(x: float32[512, 512]):
    a = constant(1.0, float32[()])
    b = broadcast_to(a, shape=(512, 512))
    c = binary(x, b, fn="mul")
    return b, c
""",
        "sizes stay": "def main(x: float32[N]):\n    a = size_value(size=N)\n    b = cast(a, dtype=int32)\n    return b\n",
    }
    golden("fold_constants", before_and_after(cases, fold_constants))


def test_random_numbers_are_not_folded() -> None:
    g = GraphBuilder()
    drawn = g.one(RandomUniform((const(3),), F32, 0.0, 1.0, 7))
    function = Function("main", (), (g.one(Unary("neg"), drawn),))
    assert fold_constants(function) is function


def test_an_operator_that_fails_is_left_for_run_time() -> None:
    text = "def main():\n    a = constant([1, 2], int64[2])\n    b = refine_shape(a, shape=(N,))\n    return b\n"
    function = parse_function(text)
    assert fold_constants(function) is function


BN = [np.array(v, np.float32) for v in ([0.5, 2.0, -1.0, 1.0], [1.0, 0.0, 0.5, 3.0], [0.25, -1.0, 0.0, 2.0], [1.0, 0.3, 2.0, 0.01])]


def conv_function(
    kind: str, after: Callable[[GraphBuilder, Value], Value], bias: bool = False, groups: int = 1, extra_result: bool = False
) -> Function:
    """x through weights with four output channels, and what follows them."""
    g = GraphBuilder()
    zero = const(0)
    x = g.one(Parameter("x", tensor(F32, (2, 4, 5, 5) if kind != "contract" else (2, 3))))
    if kind == "convolution":
        op = Convolution((1, 1), (1, 1), (zero, zero), (zero, zero), groups, F32)
        y = g.one(op, x, g.one(constant(weights(4, 4 // groups, 3, 3))))
    elif kind == "convolution_transpose":
        transposed = ConvolutionTranspose((2, 2), (1, 1), (zero, zero), (zero, zero), (0, 0), groups, F32)
        y = g.one(transposed, x, g.one(constant(weights(4, 4 // groups, 3, 3))))
    else:
        y = g.one(Contract("nk,km->nm", F32), x, g.one(constant(weights(3, 4))))
    shape = (4,) if kind == "contract" else (4, 1, 1)
    first = y
    if bias:
        y = g.one(Binary("add"), y, g.one(constant(weights(*shape, seed=2))))
    return Function("main", (x,), (after(g, y), first) if extra_result else (after(g, y),))


def batch_norm(g: GraphBuilder, y: Value) -> Value:
    return g.one(BatchNorm(1e-5), y, *(g.one(constant(p)) for p in BN))


SHAPES = {"convolution": (2, 4, 5, 5), "convolution_transpose": (2, 4, 5, 5), "contract": (2, 3)}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", SHAPES)
def test_batch_norm_goes_into_the_weights(kind: str, groups: int, bias: bool) -> None:
    function = conv_function(kind, batch_norm, bias, groups)
    folded = fold_batch_norm(function)
    assert operators(folded) == [kind, "add"]
    check_same(function, folded, SHAPES[kind])


def test_weights_that_others_read_are_left_alone() -> None:
    function = conv_function("convolution", batch_norm, extra_result=True)
    folded = fold_batch_norm(function)
    assert operators(folded) == ["convolution", "mul", "add"]
    check_same(function, folded, SHAPES["convolution"])


def test_factors_and_offsets_one_after_the_other() -> None:
    def after(g: GraphBuilder, y: Value) -> Value:
        for fn, seed in (("mul", 3), ("add", 4), ("mul", 5), ("add", 6)):
            y = g.one(Binary(fn), y, g.one(constant(weights(4, 1, 1, seed=seed) + 0.125)))
        return batch_norm(g, y)

    function = conv_function("convolution", after, bias=True)
    folded = fold_batch_norm(function)
    assert operators(folded) == ["convolution", "add"]
    check_same(function, folded, SHAPES["convolution"])


def test_a_factor_for_each_position_stays() -> None:
    function = conv_function("convolution", lambda g, y: g.one(Binary("mul"), y, g.one(constant(weights(1, 3, 3)))))
    assert fold_batch_norm(function) is function


def test_a_factor_for_each_row_stays() -> None:
    function = conv_function("contract", lambda g, y: g.one(Binary("mul"), y, g.one(constant(weights(2, 1)))))
    assert fold_batch_norm(function) is function


def test_weights_do_not_overflow() -> None:
    function = conv_function("contract", lambda g, y: g.one(Binary("mul"), y, g.one(constant(np.full(4, 3e38, np.float32)))))
    assert fold_batch_norm(function) is function


def test_batch_norm_of_anything_else_is_scale_and_shift() -> None:
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(F32, (2, 4, 5, 5))))
    function = Function("main", (x,), (batch_norm(g, g.one(Unary("tanh"), x)),))
    folded = fold_batch_norm(function)
    assert operators(folded) == ["tanh", "mul", "add"]
    check_same(function, folded, (2, 4, 5, 5))
