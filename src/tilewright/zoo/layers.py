"""Layers that several families share, written as exporters write them, with weights that keep activations of order one.

Scales: a filter's weights sum to zero and are normalised for inputs that come from a ReLU. So neither the size of activations nor their
dependence on the model's input fades with depth, as it does with plain He initialisation (the idea of weight standardisation, Qiao et
al. 2019). Batch statistics and affine parameters are drawn around those of the activations, so that folding them changes every weight.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np

from tilewright.zoo.builder import Dim, GraphBuilder, Value

RELU_VARIANCE = 0.5 - 0.5 / math.pi
"""Variance of max(x, 0) for x from N(0, 1)."""

MASKED = -3.4028234663852886e38
"""The lowest float32, which exporters add to the attention scores of keys that must not be seen."""

NormStyle: TypeAlias = Literal["op", "decomposed"]
"""op: one LayerNormalization node (opset 17 on). decomposed: ReduceMean, Sub, Pow, Sqrt, Div ..., as older exporters write it."""


def conv(
    b: GraphBuilder, x: Value, channels_in: int, channels_out: int, kernel: int = 1, stride: int = 1, groups: int = 1, variance: float = 1.0
) -> Value:
    """Conv without bias, square kernel, "same" padding at stride 1. `variance`: that of the input, so that the output's is near 1."""
    fan_in = channels_in // groups * kernel * kernel
    values = b.random("weight").standard_normal((channels_out, channels_in // groups, kernel, kernel), dtype=np.float32)
    # A depthwise filter has nine weights: made to sum to zero it would be a pure edge detector and lose what is smooth in the image.
    if groups == 1:
        values -= values.mean(axis=(1, 2, 3), keepdims=True)
    values *= np.float32(1.0 / math.sqrt(fan_in * variance))
    pad = kernel // 2
    return b.op(
        "Conv",
        x,
        b.array("weight", values),
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[pad] * 4,
        dilations=[1, 1],
        group=groups,
    )


def batch_norm(b: GraphBuilder, x: Value, channels: int, gain: float = 1.0) -> Value:
    """BatchNormalization at inference with non-trivial statistics; the output's standard deviation is near `gain`."""
    return b.op(
        "BatchNormalization",
        x,
        b.uniform("weight", [channels], 0.8 * gain, 1.2 * gain),
        b.normal("bias", [channels], 0.1),
        b.normal("running_mean", [channels], 0.2),
        b.uniform("running_var", [channels], 0.7, 1.3),
        epsilon=1e-5,
        momentum=0.9,
    )


def gemm(b: GraphBuilder, x: Value, columns_in: int, columns_out: int, std: float | None = None) -> Value:
    """Gemm over a weight stored [out, in], as torch's Linear on a matrix is exported."""
    weight = b.normal("weight", [columns_out, columns_in], columns_in**-0.5 if std is None else std)
    return b.op("Gemm", x, weight, b.normal("bias", [columns_out], 0.05), alpha=1.0, beta=1.0, transB=1)


def linear(b: GraphBuilder, x: Value, columns_in: int, columns_out: int, gain: float = 1.0) -> Value:
    """MatMul by a weight stored [in, out] and Add of a bias, as torch's Linear on a tensor of rank 3 is exported."""
    product = b.op("MatMul", x, b.normal("weight", [columns_in, columns_out], gain * columns_in**-0.5))
    return b.op("Add", b.normal("bias", [columns_out], 0.05), product)


def layer_norm(b: GraphBuilder, x: Value, columns: int, style: NormStyle, epsilon: float) -> Value:
    """Normalisation over the last axis, scale and bias."""
    scale, bias = b.normal("weight", [columns], 0.1, mean=1.0), b.normal("bias", [columns], 0.1)
    if style == "op":
        return b.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)
    axes = b.ints(-1)
    centred = b.op("Sub", x, b.op("ReduceMean", x, axes))
    variance = b.op("ReduceMean", b.op("Pow", centred, b.scalar(2.0)), axes)
    deviation = b.op("Sqrt", b.op("Add", variance, b.scalar(epsilon)))
    return b.op("Add", b.op("Mul", b.op("Div", centred, deviation), scale), bias)


def gelu_erf(b: GraphBuilder, x: Value) -> Value:
    """x / 2 * (1 + erf(x / sqrt 2))."""
    erf = b.op("Erf", b.op("Div", x, b.scalar(math.sqrt(2.0))))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.scalar(1.0))), b.scalar(0.5))


def gelu_tanh(b: GraphBuilder, x: Value) -> Value:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), the form of GPT-2."""
    cubic = b.op("Mul", b.op("Pow", x, b.scalar(3.0)), b.scalar(0.044715))
    inner = b.op("Mul", b.op("Add", x, cubic), b.scalar(math.sqrt(2.0 / math.pi)))
    return b.op("Mul", b.op("Mul", x, b.scalar(0.5)), b.op("Add", b.op("Tanh", inner), b.scalar(1.0)))


def split_heads(b: GraphBuilder, x: Value, batch: Dim, sequence: Dim, heads: int, head_size: int, perm: tuple[int, ...]) -> Value:
    """[batch, sequence, heads * head_size] -> [batch, sequence, heads, head_size], transposed by `perm`."""
    parts = b.reshape(x, [sized(b, x, 0, batch), sized(b, x, 1, sequence), heads, head_size])
    return b.op("Transpose", parts, perm=perm)


def merge_heads(b: GraphBuilder, x: Value, batch: Dim, sequence: Dim, hidden: int) -> Value:
    """[batch, heads, sequence, head_size] -> [batch, sequence, hidden]."""
    moved = b.op("Transpose", x, perm=[0, 2, 1, 3])
    return b.reshape(moved, [sized(b, moved, 0, batch), sized(b, moved, 1, sequence), hidden])


def sized(b: GraphBuilder, value: Value, axis: int, dim: Dim) -> int | Value:
    """The size of one axis for `GraphBuilder.reshape`: the number itself when known, else a scalar read from `value`."""
    return dim if isinstance(dim, int) else b.size(value, axis, dim)
