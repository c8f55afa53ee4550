"""Model families of the measurement bed, built at any size: what `tilewright.zoo` does not have, and single operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tilewright.zoo.builder import Dim, GraphBuilder, Value
from tilewright.zoo.layers import batch_norm, conv, gemm

EFFICIENTNET = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
"""(expansion, kernel, channels, blocks, stride of the first block): table 1 of Tan and Le, 2019."""

DENSENET = (6, 12, 24, 16)
"""Layers of each block of DenseNet-121: table 1 of Huang et al., 2017."""


def _normed(
    b: GraphBuilder, x: Value, channels: int, to: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: str = "silu"
) -> Value:
    with b.scope("conv"):
        x = conv(b, x, channels, to, kernel, stride, groups)
    with b.scope("bn"):
        x = batch_norm(b, x, to)
    return b.op("Mul", x, b.op("Sigmoid", x)) if act == "silu" else b.op("Relu", x) if act == "relu" else x


def efficientnet_b0(batch: Dim = 1, image: Dim = 224, unit: int = 8) -> onnx.ModelProto:
    """EfficientNet-B0; `unit`: what channel counts are multiples of, 8 in the paper."""
    b = GraphBuilder("efficientnet_b0", 0)
    x = b.input("input", [batch, 3, image, image])
    channels = 4 * unit
    with b.scope("stem"):
        x = _normed(b, x, 3, channels, 3, 2)
    for stage, (expansion, kernel, width, count, first) in enumerate(EFFICIENTNET):
        for index in range(count):
            with b.scope(f"stage{stage}", index):
                after = width // 8 * unit
                x = _inverted(b, x, channels, after, kernel, first if index == 0 else 1, expansion)
                channels = after
    with b.scope("head"):
        x = _normed(b, x, channels, 160 * unit)
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    b.output("logits", gemm(b, x, 160 * unit, 1000), [batch, 1000])
    return b.model("EfficientNet-B0 with random weights")


def _inverted(b: GraphBuilder, x: Value, channels: int, after: int, kernel: int, stride: int, expansion: int) -> Value:
    hidden, y = channels * expansion, x
    if expansion != 1:
        with b.scope("expand"):
            y = _normed(b, y, channels, hidden)
    with b.scope("depthwise"):
        y = _normed(b, y, hidden, hidden, kernel, stride, hidden)
    with b.scope("squeeze"):
        s = conv(b, b.op("GlobalAveragePool", y), hidden, max(1, channels // 4))
    with b.scope("excite"):
        s = conv(b, b.op("Mul", s, b.op("Sigmoid", s)), max(1, channels // 4), hidden)
    with b.scope("project"):
        y = _normed(b, b.op("Mul", y, b.op("Sigmoid", s)), hidden, after, act="none")
    return b.op("Add", x, y) if stride == 1 and channels == after else y


def densenet121(batch: Dim = 1, image: Dim = 224, growth: int = 32) -> onnx.ModelProto:
    """DenseNet-121; `growth`: channels that each layer adds."""
    b = GraphBuilder("densenet121", 0)
    x = b.input("input", [batch, 3, image, image])
    channels = 2 * growth
    with b.scope("stem"):
        x = _normed(b, x, 3, channels, 7, 2, act="relu")
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block, layers in enumerate(DENSENET):
        for layer in range(layers):
            with b.scope(f"block{block}", layer, "norm"):
                y = b.op("Relu", batch_norm(b, x, channels))
            with b.scope(f"block{block}", layer):
                y = _normed(b, y, channels, 4 * growth, act="relu")
                with b.scope("grow"):
                    y = conv(b, y, 4 * growth, growth, 3)
                x = b.op("Concat", x, y, axis=1)
                channels += growth
        if block + 1 < len(DENSENET):
            with b.scope(f"transition{block}", "norm"):
                y = b.op("Relu", batch_norm(b, x, channels))
            with b.scope(f"transition{block}"):
                y = conv(b, y, channels, channels // 2)
                x = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])
                channels //= 2
    with b.scope("norm"):
        x = b.op("Relu", batch_norm(b, x, channels))
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    b.output("logits", gemm(b, x, channels, 1000), [batch, 1000])
    return b.model("DenseNet-121 with random weights")


def convolution(batch: int, size: int, channels: int, to: int, kernel: int, stride: int, groups: int = 1) -> onnx.ModelProto:
    """One convolution of square images."""
    b = GraphBuilder("convolution", 0)
    y = conv(b, b.input("x", [batch, channels, size, size]), channels, to, kernel, stride, groups)
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    b.output("y", y, [batch, to, out, out])
    return b.model("a convolution")


def product(left: Sequence[int], right: Sequence[int], constant: bool) -> onnx.ModelProto:
    """A matrix product; `constant`: its right operand is one."""
    b = GraphBuilder("product", 0)
    x = b.input("a", list(left))
    w = b.normal("weight", right, right[-2] ** -0.5) if constant else b.input("b", list(right))
    b.output("y", b.op("MatMul", x, w), [*left[:-1], right[-1]])
    return b.model("a matrix product")
