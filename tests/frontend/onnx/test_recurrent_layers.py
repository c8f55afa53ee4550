"""LSTM, GRU and RNN nodes against onnxruntime: inputs left out, layouts, lengths, activations with parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.onnx.models import assert_like_onnxruntime, imported, run, run_onnxruntime, single
from tilewright.graph.node import walk_nodes
from tilewright.graph.ops import Lstm
from tilewright.support.errors import ModelError, TypeRuleError

T, B, F, H = 4, 2, 3, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
F32 = np.float32


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(F32)


def weights(op: str, directions: int = 1) -> list[Any]:
    g = GATES[op]
    return [floats(directions, g * H, F, seed=1), floats(directions, g * H, H, seed=2), floats(directions, 2 * g * H, seed=3)]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_all_inputs(op: str, direction: str) -> None:
    d = 2 if direction == "bidirectional" else 1
    inputs = [floats(T, B, F), *weights(op, d), np.array([2, 4], np.int32), floats(d, B, H, seed=4)]
    outputs = 3 if op == "LSTM" else 2
    model = single(op, inputs, 14, outputs, hidden_size=H, direction=direction)
    assert_like_onnxruntime(model, inputs)


@pytest.mark.parametrize("op", GATES)
def test_inputs_left_out(op: str) -> None:
    w, r, _ = weights(op)
    inputs = [floats(T, B, F), w, r, None, None, floats(1, B, H, seed=4)]
    assert_like_onnxruntime(single(op, inputs, 14, 1, hidden_size=H), inputs)


def test_batch_first() -> None:
    """onnxruntime does not run this layout, so the same layer with time first is the oracle."""
    w, r, b = weights("LSTM")
    x, h, c = floats(B, T, F), floats(B, 1, H, seed=4), floats(B, 1, H, seed=5)

    def feeds(*arrays: Any) -> dict[str, Any]:
        return {f"x{i}": a for i, a in enumerate(arrays) if a is not None}

    ours = [x, w, r, b, None, h, c]
    theirs = [x.swapaxes(0, 1), w, r, b, None, h.swapaxes(0, 1), c.swapaxes(0, 1)]
    got = run(single("LSTM", ours, 14, 3, hidden_size=H, layout=1), feeds(*ours))
    want = run_onnxruntime(single("LSTM", theirs, 14, 3, hidden_size=H), feeds(*theirs))
    np.testing.assert_allclose(got[0], want[0].transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    for ours_state, theirs_state in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(ours_state, theirs_state.swapaxes(0, 1), rtol=1e-5, atol=1e-6)


def test_parameters_go_to_the_activations_that_have_them() -> None:
    inputs = [floats(T, B, F), *weights("LSTM", 2)]
    names = ["HardSigmoid", "Tanh", "LeakyRelu", "Sigmoid", "Elu", "Tanh"]
    options = {"activations": names, "activation_alpha": [0.3, 0.05, 0.7], "activation_beta": [0.4]}
    assert_like_onnxruntime(single("LSTM", inputs, 14, 3, hidden_size=H, direction="bidirectional", **options), inputs)


def test_full_lengths_cost_nothing() -> None:
    model = single("LSTM", [floats(T, B, F), *weights("LSTM")], 14, 1, constants={4: np.full(B, T, np.int32)}, hidden_size=H)
    (layer,) = [n.op for n in walk_nodes(imported(model).module.main.results) if isinstance(n.op, Lstm)]
    assert "lengths" not in layer.given


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("lengths", [(T, 2), (2, T), (1, 3), (T, T), (0, T)])
def test_known_lengths_are_kept_unless_all_are_full(op: str, lengths: tuple[int, int]) -> None:
    inputs, known = [floats(T, B, F), *weights(op)], np.array(lengths, np.int32)
    computed = run(single(op, inputs, 14, 2, constants={4: known}, hidden_size=H), {f"x{i}": a for i, a in enumerate(inputs)})
    given = run(single(op, [*inputs, known], 14, 2, hidden_size=H), {f"x{i}": a for i, a in enumerate([*inputs, known])})
    for a, b in zip(computed, given, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_state_of_one_batch_fixes_the_batch() -> None:
    inputs = [floats(T, 1, F), *weights("GRU"), None, floats(1, 1, H, seed=4)]
    model = single("GRU", inputs, 14, 2, dims={0: ("T", "N", F)}, hidden_size=H)
    assert_like_onnxruntime(model, inputs)


def test_errors_name_the_node() -> None:
    with pytest.raises(TypeRuleError, match="no recurrent activation 'Swish'"):
        imported(single("RNN", [floats(T, B, F), *weights("RNN")], 14, 1, hidden_size=H, activations=["Swish"]))
    with pytest.raises(ModelError, match="input 1 is"):
        imported(single("RNN", [floats(T, B, F), floats(2, 3), floats(1, H, H)], 14, 1, hidden_size=H))
