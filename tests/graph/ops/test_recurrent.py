"""Recurrent layers: references against onnxruntime, decompositions against references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.graph.ops.kernels import types_of
from tests.graph.ops.onnx_oracle import onnx_results
from tilewright.graph.interpreter import decomposed, interpret
from tilewright.graph.node import Operator, walk_nodes
from tilewright.graph.ops.control import Loop
from tilewright.graph.ops.recurrent import Gru, Lstm, QuantizedLstm, Rnn, activation
from tilewright.support.errors import TypeRuleError

T, B, F, H = 4, 3, 5, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_COMMON = ("bias", "lengths", "initial_h")
ORDER = {"LSTM": (*_COMMON, "initial_c", "peephole"), "GRU": _COMMON, "RNN": _COMMON}


def operands(kind: str, directions: int, given: tuple[str, ...], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    g = GATES[kind]
    shapes = {
        "x": (T, B, F), "w": (directions, g * H, F), "r": (directions, g * H, H), "bias": (directions, 2 * g * H),
        "initial_h": (directions, B, H), "initial_c": (directions, B, H), "peephole": (directions, 3 * H),
    }  # fmt: skip
    made = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items() if name in ("x", "w", "r", *given)}
    if "lengths" in given:
        made["lengths"] = np.array([2, 4, 1], np.int32)
    return made


def check(kind: str, direction: str, given: tuple[str, ...], names: tuple[str, ...] | None = None, **attributes: object) -> None:
    directions = 2 if direction == "bidirectional" else 1
    chosen = names or DEFAULTS[kind] * directions
    arrays = operands(kind, directions, given)
    op = make(kind, direction, chosen, given, attributes)
    inputs = tuple(arrays[name] for name in ("x", "w", "r", *given))
    expected = op.reference(inputs)
    for want, type_ in zip(expected, op.infer(types_of(inputs)), strict=True):
        assert want.shape == tuple(int(d.value) for d in type_.shape)
    ort = onnx_results(
        kind,
        [arrays.get(name) for name in ("x", "w", "r", *ORDER[kind])],
        [np.float32] * len(expected),
        hidden_size=H,
        direction=direction,
        activations=chosen,
        **attributes,
    )
    for want, got in zip(ort, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for want, got in zip(expected, interpret(decomposed(op, types_of(inputs)), inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def make(kind: str, direction: str, names: tuple[str, ...], given: tuple[str, ...], attributes: dict[str, object]) -> Operator:
    chosen = tuple(activation(name) for name in names)
    clip = attributes.get("clip")
    if kind == "LSTM":
        return Lstm(H, direction, chosen, clip, bool(attributes.get("input_forget", 0)), given)
    if kind == "GRU":
        return Gru(H, direction, chosen, clip, bool(attributes.get("linear_before_reset", 0)), given)
    return Rnn(H, direction, chosen, clip, given)


@pytest.mark.parametrize(("kind", "direction"), list(itertools.product(GATES, ["forward", "reverse", "bidirectional"])))
@pytest.mark.parametrize("everything", [False, True])
def test_layers(kind: str, direction: str, everything: bool) -> None:
    check(kind, direction, ORDER[kind] if everything else ())


@pytest.mark.parametrize("given", [("bias",), ("lengths",), ("initial_h",), ("bias", "initial_h")])
@pytest.mark.parametrize("linear", [0, 1])
def test_gru_reset(given: tuple[str, ...], linear: int) -> None:
    check("GRU", "bidirectional", given, linear_before_reset=linear)


def test_lstm_clip_and_coupled_gates() -> None:
    check("LSTM", "forward", ("bias", "initial_c"), clip=0.3)
    check("LSTM", "forward", ("bias", "peephole"), input_forget=1)


@pytest.mark.parametrize("name", ["Relu", "HardSigmoid", "Elu", "Softsign", "Softplus", "LeakyRelu", "ThresholdedRelu"])
def test_activations(name: str) -> None:
    # onnxruntime's own default for the threshold differs from the operator's, so it is spelled out
    check("RNN", "forward", ("bias",), (name,), **({"activation_alpha": [1.0]} if name == "ThresholdedRelu" else {}))


def test_half_computes_in_single() -> None:
    arrays = tuple(a.astype(np.float16) for a in operands("LSTM", 1, ()).values())
    op = make("LSTM", "forward", DEFAULTS["LSTM"], (), {})
    (y, *_), (want, *_) = interpret(decomposed(op, types_of(arrays)), arrays), op.reference(arrays)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, want, atol=1e-3)


def test_body_is_lean() -> None:
    """What a time step costs: one product, and elementwise operators that fuse."""
    op = make("LSTM", "forward", DEFAULTS["LSTM"], ("bias",), {})
    types = types_of(tuple(operands("LSTM", 1, ("bias",)).values()))
    function = decomposed(op, types)
    (loop,) = [node.op for node in walk_nodes(function.results) if isinstance(node.op, Loop)]
    inner = [node.op.name for node in walk_nodes(loop.body.results)]
    assert inner.count("contract") == 1
    assert len([name for name in inner if name != "parameter"]) <= 18


def test_errors() -> None:
    with pytest.raises(TypeRuleError, match="no recurrent activation 'Swish'"):
        activation("Swish")
    types = types_of(tuple(operands("LSTM", 1, ()).values()))
    with pytest.raises(TypeRuleError, match="6 activations, not 3"):
        make("LSTM", "bidirectional", DEFAULTS["LSTM"], (), {}).infer(types)
    with pytest.raises(TypeRuleError, match="w is"):
        make("GRU", "forward", DEFAULTS["GRU"], (), {}).infer(types)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_quantized_products(direction: str) -> None:
    """Against onnxruntime's operator, which quantizes in the same places."""
    d = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(3)
    arrays = operands("LSTM", d, ("bias", "initial_h", "initial_c"))
    w, r = (rng.integers(-127, 128, arrays[name].shape).astype(np.int8) for name in ("w", "r"))
    w_scale, r_scale = rng.uniform(0.004, 0.01, (2, d)).astype(np.float32)
    given = ("bias", "initial_h", "initial_c", "w_scale", "r_scale")
    op = QuantizedLstm(H, direction, tuple(activation(name) for name in DEFAULTS["LSTM"] * d), None, False, given)
    inputs = [arrays["x"][:, :1], w, r, arrays["bias"], arrays["initial_h"][:, :1], arrays["initial_c"][:, :1]]
    inputs += [w_scale.reshape(d, 1), r_scale.reshape(d, 1)]
    ours = interpret(decomposed(op, types_of(inputs)), inputs)
    zero = np.zeros(d, np.int8)
    ort = onnx_results(
        "DynamicQuantizeLSTM",
        [inputs[0], w.transpose(0, 2, 1).copy(), r.transpose(0, 2, 1).copy(), inputs[3], None, inputs[4], inputs[5], None]
        + [w_scale, zero, r_scale, zero],
        [np.float32] * 3,
        domain="com.microsoft",
        constants=(1, 2, 9, 11),
        hidden_size=H,
        direction=direction,
    )
    for want, got in zip(ort, ours, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
