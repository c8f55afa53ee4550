"""Softmax, normalisations, activations and attention: definition, decomposition and reference agree, and onnxruntime with them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.onnx_oracle import onnx_results
from tests.graph.operator_checks import assert_close, check, draw, function_of
from tilewright.graph.interpreter import interpret
from tilewright.graph.ops import (
    Attention,
    BatchNorm,
    Gelu,
    GroupNorm,
    HardSwish,
    InstanceNorm,
    LayerNorm,
    LogSoftmax,
    Lrn,
    RmsNorm,
    Softmax,
    Softplus,
)
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor
from tilewright.support.errors import TypeRuleError

FLOATS = ("float32", "float64", "float16", "bfloat16")
EPSILON = 1e-5


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("op", "name"), [(Softmax, "Softmax"), (LogSoftmax, "LogSoftmax")])
def test_softmax(rng, op, name, axis, dtype):
    x = draw(rng, (2, 3, 4), dtype, -9, 9)
    (y,) = check(op(axis), x)
    if dtype == "float32":
        assert_close(y, onnx_results(name, [x], axis=axis)[0], "onnxruntime")


def test_softmax_of_large_and_infinite_scores():
    x = np.array([[1000, 999, -np.inf], [-np.inf, 0, -1000]], np.float32)
    (y,) = check(Softmax(1), x)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-6)
    assert y[0, 2] == 0
    (z,) = check(LogSoftmax(1), x)
    np.testing.assert_allclose(z[0, :2], [-0.31326169, -1.31326169], rtol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [1, -1])
def test_layer_norm(rng, axis, dtype):
    x = draw(rng, (2, 3, 4), dtype)
    scale, bias = draw(rng, (3, 4)[axis:] if axis == -1 else (3, 4), dtype), draw(rng, (4,), dtype)
    (y,) = check(LayerNorm(axis, EPSILON), x, scale, bias)
    if dtype == "float32" and axis == -1:
        assert_close(y, onnx_results("LayerNormalization", [x, scale, bias], axis=axis, epsilon=EPSILON)[0], "onnxruntime")


def test_layer_norm_far_from_zero_keeps_precision(rng):
    x = (draw(rng, (2, 64)) + 1000).astype(np.float32)
    one, zero = np.ones(64, np.float32), np.zeros(64, np.float32)
    (y,) = check(LayerNorm(-1, EPSILON), x, one, zero, tolerance=2e-3)
    np.testing.assert_allclose(y.std(1), 1, rtol=1e-3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(rng, dtype):
    check(RmsNorm(-1, EPSILON), draw(rng, (2, 3, 8), dtype), draw(rng, (8,), dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 4, 3, 2)])
def test_channel_norms(rng, shape, dtype):
    x, scale, bias = draw(rng, shape, dtype), draw(rng, (4,), dtype), draw(rng, (4,), dtype)
    (instance,) = check(InstanceNorm(EPSILON), x, scale, bias)
    (groups,) = check(GroupNorm(4, EPSILON), x, scale, bias)
    check(GroupNorm(2, EPSILON), x, scale, bias)
    check(GroupNorm(1, EPSILON), x, scale, bias)
    assert_close(groups, instance, "groups of one channel")
    mean, variance = draw(rng, (4,), dtype), draw(rng, (4,), dtype, 0.5, 2)
    (batch,) = check(BatchNorm(EPSILON), x, scale, bias, mean, variance)
    if dtype == "float32":
        assert_close(instance, onnx_results("InstanceNormalization", [x, scale, bias], epsilon=EPSILON)[0], "onnxruntime")
        assert_close(batch, onnx_results("BatchNormalization", [x, scale, bias, mean, variance], epsilon=EPSILON)[0], "onnxruntime")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_lrn(rng, width, dtype):
    x = draw(rng, (2, 5, 2, 3), dtype)
    (y,) = check(Lrn(width, 0.3, 0.75, 1.5), x)
    if dtype == "float32" and width % 2:  # onnxruntime takes odd sizes only
        assert_close(y, onnx_results("LRN", [x], size=width, alpha=0.3, beta=0.75, bias=1.5)[0], "onnxruntime")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [Gelu(False), Gelu(True), HardSwish(), Softplus()])
def test_activations(rng, op, dtype):
    check(op, draw(rng, (3, 9), dtype, -6, 6))


def test_activations_are_onnxs(rng):
    x = draw(rng, (3, 9), "float32", -6, 6)
    for op, name, options in [
        (Gelu(False), "Gelu", {"approximate": "none"}),
        (Gelu(True), "Gelu", {"approximate": "tanh"}),
        (HardSwish(), "HardSwish", {}),
        (Softplus(), "Softplus", {}),
    ]:
        assert_close(check(op, x)[0], onnx_results(name, [x], opset=20, **options)[0], name)


def test_softplus_does_not_overflow():
    (y,) = check(Softplus(), np.array([500, -500, 0], np.float32))
    np.testing.assert_allclose(y, [500, 0, np.log(2)], rtol=1e-6)


def attention(q, k, v, scale, mask=None, causal=False):
    """The textbook formula in float64."""
    scores = q.astype(np.float64) @ np.swapaxes(k.astype(np.float64), -1, -2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "float", "bool"])
def test_attention(rng, dtype, causal, mask):
    q, k, v = draw(rng, (2, 3, 4, 5), dtype), draw(rng, (2, 3, 6, 5), dtype), draw(rng, (2, 3, 6, 7), dtype)
    masks = []
    if mask == "float":
        masks = [draw(rng, (4, 6), dtype)]
    elif mask == "bool":
        masks = [np.array([True] + [False, True] * 2 + [True])]
    inputs = [q, k, v, *masks]
    function = function_of(Attention(0.3, causal), [tensor(dtypes.from_numpy(a.dtype), a.shape) for a in inputs])
    (y,) = interpret(function, inputs)
    expected = attention(q, k, v, 0.3, *[m if m.dtype == np.bool_ else m.astype(np.float64) for m in masks], causal=causal)
    assert_close(y, expected.astype(y.dtype), "attention", 1e-2 if dtype == "float16" else None)


def test_attention_of_shared_heads_with_a_cap_and_a_past(rng):
    q, k, v = draw(rng, (2, 6, 3, 4)), draw(rng, (2, 2, 8, 4)), draw(rng, (2, 2, 8, 5))
    (y,) = interpret(function_of(Attention(0.3, True, 2.0, const(5)), [tensor(dtypes.float32, a.shape) for a in (q, k, v)]), [q, k, v])
    k, v = (np.repeat(x, 3, 1).astype(np.float64) for x in (k, v))
    scores = 2.0 * np.tanh(q.astype(np.float64) @ k.swapaxes(2, 3) * 0.3 / 2.0)
    scores[..., np.arange(8) > np.arange(3)[:, None] + 5] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(y, weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_symbolic_shapes(rng):
    n, s = size("n", 1), size("s", 1)
    x = draw(rng, (2, 3, 4))
    types = [tensor(dtypes.float32, (n, s, 4))]
    parameter = tensor(dtypes.float32, (4,))
    check(Softmax(1), x, types=types)
    check(LayerNorm(-1, EPSILON), x, x[0, 0], x[0, 1], types=[*types, parameter, parameter])
    channels = tensor(dtypes.float32, (2,))
    spatial = [tensor(dtypes.float32, (n, 2, s)), channels, channels]
    check(InstanceNorm(EPSILON), draw(rng, (3, 2, 5)), np.ones(2, np.float32), np.ones(2, np.float32), types=spatial)
    check(GroupNorm(1, EPSILON), draw(rng, (3, 2, 5)), np.ones(2, np.float32), np.ones(2, np.float32), types=spatial)
    function = function_of(Attention(1.0, True), types * 3)
    (y,) = interpret(function, [x, x, x])
    np.testing.assert_allclose(y, attention(x, x, x, 1.0, causal=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "shapes", "text"),
    [
        (Softmax(3), [(2, 3)], "axis 3 does not exist"),
        (LayerNorm(-1, EPSILON), [(2, 3), (4,), (3,)], "do not broadcast"),
        (LayerNorm(-1, EPSILON), [(2, 3), (5, 2, 3), (3,)], "does not broadcast to [2, 3]"),
        (InstanceNorm(EPSILON), [(2, 3), (3,), (3,)], "no spatial axis"),
        (InstanceNorm(EPSILON), [(2, 3, 4), (4,), (3,)], "the input has 3 channels"),
        (GroupNorm(2, EPSILON), [(2, 3, 4), (3,), (3,)], "do not divide into 2 groups"),
        (Attention(1.0, False), [(2, 3), (4, 5), (4, 5)], "would fit"),
        (Attention(1.0, False), [(2, 3), (4, 3), (4, 5), (3, 4)], "attention mask"),
        (Attention(1.0, False), [(2, 3), (4, 3)], "takes 3 to 4 inputs"),
        (Attention(1.0, False), [(4, 2, 3), (3, 2, 3), (3, 2, 3)], "would fit"),
    ],
)
def test_normalization_rules(op, shapes, text):
    with pytest.raises(TypeRuleError) as caught:
        function_of(op, [tensor(dtypes.float32, shape) for shape in shapes])
    assert text in str(caught.value)
