"""Under `precision=bf16`, what is expected of each operator that multiplies by weights: rounded factors are explained by it wherever the
compiler may round them, a fault is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.compiled_graphs import host
from tests.frontend.onnx.models import imported
from tests.transform.test_bf16_products import Always
from tilewright.accuracy.rounding_noise import Expected, disagreement, expectations
from tilewright.compiler import graph_passes
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, Module
from tilewright.graph.text import format_module
from tilewright.support.settings import Settings
from tilewright.transform.bf16_products import bf16_products
from tilewright.transform.functions import on_all_functions

Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[..., Array]


def whole(*shape: int, seed: int = 0) -> Array:
    """Factors that bfloat16 holds exactly."""
    return (np.random.default_rng(seed).integers(-4, 5, shape) / 4).astype(np.float32)


def fine(*shape: int, seed: int = 0) -> Array:
    """Factors that it rounds."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


@dataclass(frozen=True)
class Product:
    """Nodes from `x` to `y`. shape: of x; weights: shapes of the constants that are drawn; others: constants as they are; gate: how far
    along which axis of the first weights an element has to go to be another gate's, or another channel's."""

    nodes: tuple[tuple[Any, ...], ...]
    shape: tuple[int, ...]
    weights: dict[str, tuple[int, ...]]
    others: dict[str, Array] = field(default_factory=dict)
    gate: tuple[int, int] = (1, -1)

    def module(self, draw: Draw, swapped: bool = False) -> Module:
        """The model imported; swapped: with weights in a wrong order."""
        drawn = {name: draw(*shape, seed=i + 1) for i, (name, shape) in enumerate(self.weights.items())}
        first = next(iter(drawn))
        drawn[first] = np.roll(drawn[first], *self.gate) if swapped else drawn[first]
        nodes = [
            helper.make_node(op, inputs.split(","), outputs.split(","), domain=domain, **attributes)
            for domain, op, inputs, outputs, attributes in self.nodes
        ]
        constants = [numpy_helper.from_array(array, name) for name, array in {**drawn, **self.others}.items()]
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(nodes, "product", [x], [onnx.ValueInfoProto(name="y")], constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return imported(helper.make_model(graph, opset_imports=opsets, ir_version=10)).module


def node(op: str, inputs: str, outputs: str = "y", domain: str = "", **attributes: Any) -> tuple[Any, ...]:
    return (domain, op, inputs, outputs, attributes)


def looped() -> onnx.GraphProto:
    """h -> h w, three times."""
    h = helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2, 8])
    boolean = helper.make_tensor_value_info("more", onnx.TensorProto.BOOL, [])
    count = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
    nodes = [helper.make_node("MatMul", ["h", "w"], ["p"]), helper.make_node("Sigmoid", ["p"], ["after"])]
    nodes.append(helper.make_node("Identity", ["more"], ["goes_on"]))
    results = [onnx.ValueInfoProto(name="goes_on"), onnx.ValueInfoProto(name="after")]
    return helper.make_graph(nodes, "body", [count, boolean, h], results)


def chosen(name: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("MatMul", ["s", name], ["c"])], name, [], [onnx.ValueInfoProto(name="c")])


def recurrent(op: str, gates: int, direction: str, swap: int = 0, **attributes: Any) -> Product:
    count = 2 if direction == "bidirectional" else 1
    weights = {"r": (count, gates * 8, 8), "w": (count, gates * 8, 6), "b": (count, 2 * gates * 8)}
    given = node(op, "x,w,r,b", "y", hidden_size=8, direction=direction, **attributes)
    return Product((given,), (4, 2, 6), weights, gate=(swap or 8, 1))


ONE, MORE = np.array(3), np.array(True)
CODES = np.random.default_rng(5).integers(0, 256, (8, 1, 8)).astype(np.uint8)
PRODUCTS: dict[str, Product] = {
    "matmul": Product((node("MatMul", "x,w"),), (3, 8), {"w": (8, 6)}),
    "gemm": Product((node("Gemm", "x,w,b", alpha=0.7, beta=0.3),), (3, 8), {"w": (8, 6), "b": (6,)}),
    "einsum": Product((node("Einsum", "x,w", equation="abc,cd->adb"),), (2, 3, 8), {"w": (8, 6)}),
    "convolution": Product((node("Conv", "x,w,b", pads=[1] * 4),), (1, 4, 6, 6), {"w": (8, 4, 3, 3), "b": (8,)}, gate=(1, 0)),
    "convolution of 1x1": Product((node("Conv", "x,w"),), (1, 8, 4, 4), {"w": (8, 8, 1, 1)}, gate=(1, 0)),
    "transposed convolution": Product((node("ConvTranspose", "x,w", strides=[2, 2]),), (1, 4, 4, 4), {"w": (4, 8, 2, 2)}, gate=(1, 1)),
    "batch norm in weights": Product(
        (node("Conv", "x,w", "c"), node("BatchNormalization", "c,scale,b,mean,var")),
        (1, 4, 6, 6),
        {"w": (8, 4, 3, 3), "b": (8,), "mean": (8,)},
        {"scale": np.linspace(0.3, 1.7, 8, dtype=np.float32), "var": np.linspace(0.7, 2.1, 8, dtype=np.float32)},
        (1, 0),
    ),
    "scaled after": Product((node("MatMul", "x,w", "p"), node("Mul", "p,s")), (3, 8), {"w": (8, 6)}, {"s": np.float32(np.full(6, 0.3))}),
    "scaled before": Product((node("Mul", "x,s", "p"), node("MatMul", "p,w")), (3, 8), {"w": (8, 6)}, {"s": np.float32(np.full(8, 0.3))}),
    "two in turn": Product((node("MatMul", "x,w", "p"), node("MatMul", "p,v")), (3, 8), {"w": (8, 8), "v": (8, 6)}),
    "weights of weights": Product((node("MatMul", "w,v", "p"), node("MatMul", "x,p")), (3, 8), {"w": (8, 8), "v": (8, 6)}),
    "narrow weights": Product(
        (node("MatMulNBits", "x,codes,s", domain="com.microsoft", K=16, N=8, bits=4, block_size=16),),
        (3, 16),
        {"s": (8,)},
        {"codes": CODES},
    ),
    "integer weights": Product(
        (node("DequantizeLinear", "codes,s", "w", axis=0), node("MatMul", "x,w")),
        (3, 8),
        {"s": (8,)},
        {"codes": CODES[:, 0].astype(np.int8)},
    ),
    "attention": Product(
        (node("MatMul", "x,w", "q"), node("Attention", "q,k,v", scale=0.3)),
        (1, 2, 4, 8),
        {"w": (8, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 8)},
    ),
    "lstm": recurrent("LSTM", 4, "reverse", clip=0.75),
    "lstm of peepholes": Product(
        (node("LSTM", "x,w,r,b,,,,p", "y", hidden_size=8, input_forget=1),),
        (4, 2, 6),
        {"r": (1, 32, 8), "w": (1, 32, 6), "b": (1, 64), "p": (1, 24)},
        gate=(8, 1),
    ),
    "lstm both ways": recurrent("LSTM", 4, "bidirectional"),
    "gru": recurrent("GRU", 3, "forward"),
    "gru that resets late": recurrent("GRU", 3, "bidirectional", linear_before_reset=1),
    "rnn": recurrent("RNN", 1, "reverse", swap=1),
    "loop": Product((node("Loop", "n,more,x", body=looped()),), (2, 8), {"w": (8, 8)}, {"n": ONE, "more": MORE}),
    "branch": Product(
        (
            node("ReduceSum", "x", "all", keepdims=0),
            node("Sigmoid", "x", "s"),
            node("Cast", "all", "yes", to=int(onnx.TensorProto.BOOL)),
            node("If", "yes", then_branch=chosen("w"), else_branch=chosen("v")),
        ),
        (3, 8),
        {"w": (8, 6), "v": (8, 6)},
    ),
    "mixture of experts": Product(
        (
            node("MatMul", "x,r", "rated"),
            node("MoE", "x,rated,w,b,v,c", domain="com.microsoft", k=2, activation_type="silu", normalize_routing_weights=1),
        ),
        (5, 8),
        {"w": (3, 16, 8), "v": (3, 8, 16), "r": (8, 3), "b": (3, 16), "c": (3, 8)},
    ),
}


def with_narrow_factors(module: Module) -> Module:
    """What compilation makes of a module for a machine on which all products are fastest with both factors in bfloat16."""
    settings = Settings().changed(precision="bf16")
    for each in graph_passes(host(), "bf16"):
        if each.name == "bf16_products":
            return on_all_functions(module, lambda function: bf16_products(function, Always("operands")))
        if each.runs(settings):
            module = on_all_functions(module, each.apply)
    raise AssertionError("there is no such pass")


def expected(function: Function, x: Array, coarse: bool) -> Expected:
    (found,) = expectations(function, [x], 0, coarse)
    assert found is not None
    return found


@pytest.mark.parametrize("draw", [whole, fine])
@pytest.mark.parametrize("name", PRODUCTS)
def test_rounded_factors_are_explained_and_swapped_weights_are_not(name: str, draw: Draw) -> None:
    product = PRODUCTS[name]
    x = draw(*product.shape)
    module = product.module(draw)
    narrow = with_narrow_factors(module)
    allowed = expected(module.main, x, True)
    assert allowed.compared.mean() > 0.9
    assert disagreement(interpret(narrow, [x])[0], allowed) is None
    assert disagreement(interpret(with_narrow_factors(product.module(draw, swapped=True)), [x])[0], allowed) is not None


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "loop"])
def test_states_are_factors_that_are_rounded(name: str) -> None:
    """All operands are exact: what is rounded is computed inside."""
    product = PRODUCTS[name]
    x, module = whole(*product.shape), product.module(whole)
    narrow = interpret(with_narrow_factors(module), [x])[0]
    assert "bfloat16" in format_module(with_narrow_factors(module))
    assert disagreement(narrow, expected(module.main, x, False)) is not None
    assert disagreement(narrow, expected(module.main, x, True)) is None
