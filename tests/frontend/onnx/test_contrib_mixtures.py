"""onnxruntime's mixtures of experts, linear attention and what comes with them, compiled: against onnxruntime, or a formula in NumPy where
it has no kernel on a CPU or computes with rounded activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.models import assert_same, imported, run, run_onnxruntime
from tests.frontend.onnx.stored import Array, Case
from tilewright.support.errors import ModelError, UnsupportedOperatorError

F32, U8 = np.float32, np.uint8
TOKENS, EXPERTS, HIDDEN, INNER = 7, 4, 32, 64


def floats(*shape: int, seed: int = 0, scale: float = 0.5) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F32)


def check(case: Case, rtol: float = 1e-4) -> None:
    model, feeds = case.model()
    if case.reference is None:
        want = run_onnxruntime(model, feeds)
    else:
        want = [np.asarray(result).astype(F32) for result in case.reference(*case.inputs)]
    assert_same(run(model, feeds), want, rtol, case.atol)
    assert_same(list(tw.compile(model, cache=False, progress="none").run(feeds).values()), want, rtol, case.atol)


# ---- mixtures


def experts(fused: int = 1, third: bool = False) -> list[Array | None]:
    sizes = [(EXPERTS, fused * INNER, HIDDEN), (EXPERTS, fused * INNER), (EXPERTS, HIDDEN, INNER), (EXPERTS, HIDDEN)]
    sizes += [(EXPERTS, INNER, HIDDEN), (EXPERTS, INNER)] if third else []
    return [floats(*size, seed=3 + i, scale=0.2) for i, size in enumerate(sizes)]


def routed(x: Array, router: Array, layers: Sequence[Array | None], attributes: Mapping[str, Any]) -> list[Array]:
    """What MoE gives, one token after the other."""
    w1, b1, w2, b2, w3, b3 = [*layers, None, None][:6]
    assert w1 is not None
    assert b1 is not None
    assert w2 is not None
    assert b2 is not None
    likely = np.exp(router) / np.exp(router).sum(1, keepdims=True)
    result = np.zeros_like(x)
    for t, row in enumerate(x):
        chosen = np.argsort(-router[t])[: attributes["k"]]
        share = likely[t, chosen] / (likely[t, chosen].sum() if attributes.get("normalize_routing_weights") else 1)
        for e, weight in zip(chosen, share, strict=True):
            first = w1[e] @ row + b1[e]
            if w3 is not None and b3 is not None:
                gate, line = first, w3[e] @ row + b3[e]
            elif attributes["activation_type"] in ("swiglu", "geglu"):
                gate, line = (first[::2], first[1::2]) if attributes["swiglu_fusion"] == 1 else np.split(first, 2)
            else:
                gate, line = first, np.ones_like(first)
            limit = attributes.get("swiglu_limit", np.inf)
            match attributes["activation_type"]:
                case "swiglu":
                    gate, line = np.minimum(gate, limit), np.clip(line, -limit, limit) + attributes.get("activation_beta", 0.0)
                    hidden = gate / (1 + np.exp(-attributes.get("activation_alpha", 1.0) * gate)) * line
                case "silu":
                    hidden = gate / (1 + np.exp(-gate)) * line
                case _:  # geglu
                    hidden = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * line
            result[t] += weight * (w2[e] @ hidden + b2[e])
    return [result]


X, ROUTER = floats(TOKENS, HIDDEN), floats(TOKENS, EXPERTS, seed=1, scale=1.5)
BIG = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.4}


def formula(attributes: Mapping[str, Any], fused: int = 1, third: bool = False) -> Case:
    layers = experts(fused, third)
    return Case("MoE", [X, ROUTER, *layers], attributes=attributes, reference=lambda x, r, *rest: routed(x, r, rest, attributes))


MIXTURES = {
    **{
        f"{activation} {'normalised' if normal else 'as rated'}": Case(
            "MoE", [X, ROUTER, *experts()], attributes={"k": 2, "activation_type": activation, "normalize_routing_weights": normal}
        )
        for activation in ("relu", "gelu", "silu", "identity")
        for normal in (0, 1)
    },
    "weights in the model": Case("MoE", [X, ROUTER, *experts()], attributes={"k": 1}, constants=[2, 3, 4, 5]),
    "batches": Case("MoE", [X.reshape(1, TOKENS, HIDDEN), ROUTER, *experts()], attributes={"k": 3}),
    "without biases": Case("MoE", [X, ROUTER, experts()[0], None, experts()[2]], attributes={"k": 2}),
    "all experts": Case("MoE", [X, ROUTER, *experts()], attributes={"k": EXPERTS}),
    "pairs in turn": Case(
        "MoE", [X, ROUTER, *experts(2)],
        attributes={"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1, **BIG},
    ),
    "pairs in halves": formula({"k": 2, "activation_type": "swiglu", "swiglu_fusion": 2, **BIG}, 2),
    "three layers": formula({"k": 2, "activation_type": "swiglu", "normalize_routing_weights": 1}, third=True),
    "three layers, silu": formula({"k": 2, "activation_type": "silu"}, third=True),
    "geglu": formula({"k": 1, "activation_type": "geglu", "swiglu_fusion": 2}, 2),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXTURES)
def test_a_mixture_of_experts(case: str) -> None:
    check(MIXTURES[case])


def codes(bits: int, rows: int, columns: int, block: int, seed: int) -> tuple[Array, Array, Array]:
    """Packed weights, scales, packed zero points."""
    rng, per = np.random.default_rng(seed), 8 // bits
    blocks = columns // block if block else 0
    scales = rng.uniform(0.01, 0.05, (EXPERTS, rows, blocks) if block else (EXPERTS, rows)) * 16 / 2**bits
    zeros = (EXPERTS, rows, -(-blocks // per)) if block else (EXPERTS, rows // per)
    return rng.integers(0, 256, (EXPERTS, rows, columns // per)).astype(U8), scales.astype(F32), rng.integers(0, 256, zeros).astype(U8)


def quantized(bits: int, block: int, zeros: bool, mixing: Array | None = None, normalised: int = 1, fused: int = 1) -> Case:
    (w1, s1, z1), (w2, s2, z2) = codes(bits, fused * INNER, HIDDEN, block, 1), codes(bits, HIDDEN, INNER, block, 2)
    inputs: list[Array | None] = [X, ROUTER, w1, s1, floats(EXPERTS, fused * INNER), w2, s2, floats(EXPERTS, HIDDEN, seed=1)]
    inputs += [None] * 3 + ([z1, z2] if zeros else [None] * 2)
    inputs += [None, mixing] if mixing is not None else []
    attributes: dict[str, Any] = {"k": 2, "expert_weight_bits": bits, "normalize_routing_weights": normalised}
    attributes |= {"block_size": block} if block else {}
    attributes |= {"activation_type": "swiglu", "swiglu_fusion": 1} if fused == 2 else {"activation_type": "silu"}
    constants = [i for i in (2, 3, 4, 5, 6, 7, 11, 12) if inputs[i] is not None]
    # onnxruntime rounds activations to 8 bits where blocks of weights have them
    return Case("QMoE", inputs, attributes=attributes, constants=constants, atol=0.02 if bits == 8 and block else 1e-4)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_mixture_of_quantized_experts(bits: int, block: int, zeros: bool) -> None:
    check(quantized(bits, block, zeros), rtol=0.02 if bits == 8 and block else 1e-4)


@pytest.mark.parametrize("normalised", [0, 1])
def test_experts_are_mixed_by_weights_of_their_own(normalised: int) -> None:
    mixing = np.random.default_rng(9).uniform(0.1, 1, (TOKENS, EXPERTS)).astype(F32)
    check(quantized(4, 0, True, mixing, normalised))
    check(quantized(4, 32, False, mixing, normalised, fused=2))


def test_a_mixture_of_any_number_of_tokens() -> None:
    """One artifact for none, one and many tokens; no expert but the chosen ones takes part: the others' weights may be anything."""
    layers = experts()
    for layer in layers:
        assert layer is not None
        layer[3] = np.nan
    router = np.where(np.arange(EXPERTS) == 3, -50, floats(40, EXPERTS, scale=2)).astype(F32)
    case = Case("MoE", [floats(40, HIDDEN), router, *layers], attributes={"k": 2, "normalize_routing_weights": 1}, constants=[2, 3, 4, 5])
    model, feeds = case.model()
    for given in model.graph.input:
        given.type.tensor_type.shape.dim[0].dim_param = "tokens"
    compiled = tw.compile(model, cache=False, progress="none")
    for count in (1, 2, 40, 0):
        part = {name: array[:count] for name, array in feeds.items()}
        (found,) = compiled.run(part).values()
        assert found.shape == (count, HIDDEN)
        assert np.isfinite(found).all()
        if count:
            np.testing.assert_allclose(found, run_onnxruntime(model, part)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "attributes", "error", "text"),
    [
        ("MoE", {"use_sparse_mixer": 1}, UnsupportedOperatorError, "use_sparse_mixer"),
        ("MoE", {"activation_type": "elu"}, UnsupportedOperatorError, "'elu'"),
        ("MoE", {"activation_type": "swiglu"}, ModelError, "swiglu_fusion=0"),
        ("QMoE", {"quant_type": "fp4"}, UnsupportedOperatorError, "'fp4'"),
        ("QMoE", {"expert_weight_bits": 3}, UnsupportedOperatorError, "3 bits"),
    ],
)
def test_mixtures_that_are_refused(op: str, attributes: dict[str, Any], error: type[Exception], text: str) -> None:
    inputs = quantized(4, 0, False).inputs if op == "QMoE" else [X, ROUTER, *experts()]
    with pytest.raises(error, match=text):
        imported(Case(op, inputs, attributes=attributes).model()[0])


# ---- linear attention


BATCH, STEPS, WIDTH, DEPTH = 2, 5, 8, 6


def linear(rule: str, queries: int, heads: int, wide: bool, past: bool) -> Case:
    key = floats(BATCH, STEPS, heads, WIDTH, seed=1)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    decay = -np.abs(floats(BATCH, STEPS, heads * WIDTH if wide else heads, seed=4)) if "gated" in rule else None
    beta = np.abs(floats(BATCH, STEPS, 1 if wide else heads, seed=5)) if "delta" in rule else None
    inputs = [
        floats(BATCH, STEPS, queries * WIDTH), key.reshape(BATCH, STEPS, -1), floats(BATCH, STEPS, heads * DEPTH, seed=2),
        floats(BATCH, heads, WIDTH, DEPTH, seed=3) if past else None, decay, beta,
    ]  # fmt: skip
    while inputs[-1] is None:
        inputs.pop()
    return Case("LinearAttention", inputs, (F32, F32), {"q_num_heads": queries, "kv_num_heads": heads, "update_rule": rule})


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(("queries", "heads", "wide"), [(4, 4, False), (4, 2, True), (2, 4, False)])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule: str, queries: int, heads: int, wide: bool, past: bool) -> None:
    check(linear(rule, queries, heads, wide, past))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("whole", [False, True], ids=["short", "whole"])
def test_a_causal_convolution_with_state(last: int, dilation: int, whole: bool) -> None:
    x, before = floats(2, 7, 6) if last else floats(2, 6, 7), 3 * dilation
    more = [floats(6, seed=2), floats(2, before, 6, seed=3) if last else floats(2, 6, before, seed=3)] if whole else []
    attributes = {"channels_last": last, "dilation": dilation, "activation": "silu" if whole else "none"}
    check(Case("CausalConvWithState", [x, floats(6, 1, 4, seed=1), *more], (F32, F32), attributes))


def test_a_causal_convolution_of_several_channel_axes() -> None:
    inputs = [floats(2, 7, 3, 2), floats(6, 1, 4, seed=1), floats(6, seed=2), floats(2, 3, 3, 2, seed=3)]
    check(Case("CausalConvWithState", inputs, (F32, F32), {"channels_last": 1}))


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_gated_rms_norm(activation: str) -> None:
    check(Case("GatedRMSNorm", [floats(2, 3, 12), floats(4, seed=1), floats(2, 3, 12, seed=2)], attributes={"activation": activation}))


def test_gated_add() -> None:
    check(Case("GatedAdd", [floats(2, 3, 12), floats(2, 3, 12, seed=1), floats(2, 3, 1, seed=2)]))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("layout", "sections"), [(0, [2, 2, 2]), (0, [0, 2, 4]), (1, [2, 2, 2]), (1, [4, 1, 1])])
def test_rotary_positions_in_time_height_and_width(layout: int, sections: list[int], interleaved: int) -> None:
    positions = np.random.default_rng(0).integers(0, 20, (3, 2, 5))
    tables = [floats(20, 6, seed=1), floats(20, 6, seed=2)]
    attributes = {"mrope_section": sections, "mrope_layout": layout, "interleaved": interleaved}
    check(Case("MRotaryEmbedding", [floats(2, 3, 5, 12), positions, *tables], attributes=attributes))
    flat = attributes | {"num_heads": 3, "rotary_embedding_dim": 12}
    check(Case("MRotaryEmbedding", [floats(2, 5, 48), positions, *tables], attributes=flat))


PLACES = [floats(2, 3, 5, 12), np.zeros((3, 2, 5), np.int64), floats(20, 6), floats(20, 6)]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "text"),
    [
        ("LinearAttention", linear("linear", 2, 2, False, False).inputs, {"update_rule": "cubic"}, "'cubic'"),
        ("LinearAttention", linear("linear", 2, 2, False, False).inputs, {"q_num_heads": 3, "kv_num_heads": 2}, "3 heads"),
        ("CausalConvWithState", [floats(2, 6, 7), floats(6, 1, 4)], {"activation": "relu"}, "'relu'"),
        ("GatedRMSNorm", [floats(2, 12), floats(4), floats(2, 12)], {"activation": "tanh"}, "'tanh'"),
        ("MRotaryEmbedding", PLACES, {"mrope_section": [1, 2, 2]}, "sections"),
    ],
)
def test_what_makes_no_sense_is_refused(op: str, inputs: Sequence[Array], attributes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        imported(Case(op, inputs, attributes={"q_num_heads": 2, "kv_num_heads": 2} | attributes).model()[0])
