"""Compiled groups: which of them share code."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled_graphs import Array, compile_graph, f32, module
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import Contract, constant
from tilewright.ir import dtypes
from tilewright.runtime.executable import Executable

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("order", ["ccv", "cvc", "vcc", "vvc"])
def test_products_by_weights_and_by_values_have_code_of_their_own(order: str) -> None:
    """Weights (c) are packed when the model is compiled, values (v) cannot be; products of one kind share their code."""
    x, y, weights = floats(20, 40), floats(40, 48), [floats(40, 48) for _ in order]

    def body(g: GraphBuilder, a: Value, b: Value) -> list[Value]:
        sides = [g.one(constant(w)) if kind == "c" else b for kind, w in zip(order, weights, strict=True)]
        return [g.one(Contract("mk,kn->mn", dtypes.float32), a, side) for side in sides]

    compiled = compile_graph(module([f32(20, 40), f32(40, 48)], body))
    results = Executable(compiled.artifact, 1)(x, y)
    expected = {"c": iter(w for w, kind in zip(weights, order, strict=True) if kind == "c"), "v": iter([y] * len(order))}
    for kind, result in zip(order, results, strict=True):
        np.testing.assert_allclose(result, x @ next(expected[kind]), rtol=1e-4, atol=1e-4)
    assert len({kernel["symbol"] for kernel in compiled.artifact.manifest["kernels"]}) == 2
