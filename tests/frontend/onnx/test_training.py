"""Optimizers of ai.onnx.preview.training: several tensors at once, the first step, and their arithmetic in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.onnx.models import Array, imported, run
from tilewright.support.errors import ModelError

DOMAIN = "ai.onnx.preview.training"


def model(op: str, tensors: int, states: int, **attributes: float | str) -> onnx.ModelProto:
    names = [f"{group}{i}" for group in ("x", "g", "s", "t")[: 2 + states] for i in range(tensors)]
    results = [f"new_{name}" for name in names if name[0] != "g"]
    node = helper.make_node(op, ["rate", "count", *names], results, domain=DOMAIN, name="node", **attributes)
    number, whole = (helper.make_tensor_value_info(name, kind, []) for name, kind in (("rate", 1), ("count", 7)))
    infos = [number, whole, *(helper.make_tensor_value_info(name, 1, [3]) for name in names)]
    graph = helper.make_graph([node], "step", infos, [onnx.ValueInfoProto(name=name) for name in results])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)], ir_version=8)


def feeds(proto: onnx.ModelProto, count: int) -> dict[str, Array]:
    rng = np.random.default_rng(count)
    values = {info.name: np.abs(rng.standard_normal(3)).astype(np.float32) for info in proto.graph.input}
    return {**values, "rate": np.float32(0.1), "count": np.int64(count)}


@pytest.mark.parametrize("count", [0, 3])
def test_adam(count: int) -> None:
    proto = model("Adam", 2, 2, norm_coefficient=0.01, alpha=0.8, beta=0.9, epsilon=1e-3, norm_coefficient_post=0.1)
    given = feeds(proto, count)
    results = run(proto, given)
    rate = 0.1 if count == 0 else 0.1 * np.sqrt(1 - 0.9**count) / (1 - 0.8**count)
    for i in range(2):
        x, g, mean, square = (given[f"{group}{i}"] for group in "xgst")
        g = g + np.float32(0.01) * x
        mean, square = 0.8 * mean + 0.2 * g, 0.9 * square + 0.1 * g * g
        expected = [0.9 * (x - rate * mean / (np.sqrt(square) + 1e-3)), mean, square]
        for got, want in zip(results[i::2], expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
@pytest.mark.parametrize("count", [0, 2])
def test_momentum(mode: str, count: int) -> None:
    proto = model("Momentum", 1, 1, norm_coefficient=0.01, alpha=0.9, beta=0.5, mode=mode)
    given = feeds(proto, count)
    x, g, velocity = (given[name] for name in ("x0", "g0", "s0"))
    g = g + np.float32(0.01) * x
    velocity = 0.9 * velocity + (0.5 if count else 1.0) * g
    step = g + 0.9 * velocity if mode == "nesterov" else velocity
    for got, want in zip(run(proto, given), [x - 0.1 * step, velocity], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_inputs_that_do_not_make_whole_tensors() -> None:
    proto = model("Adagrad", 1, 1)
    del proto.graph.node[0].input[-1]
    with pytest.raises(ModelError, match="Adagrad has 4 inputs"):
        imported(proto)
