"""MobileNet v2 (Sandler et al. 2018): inverted residual blocks of pointwise and depthwise convolutions with ReLU6."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from tilewright.zoo.builder import Dim, GraphBuilder, Value, require
from tilewright.zoo.layers import RELU_VARIANCE, batch_norm, conv, gemm

STAGES: tuple[tuple[int, int, int, int], ...] = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""(expansion, channels, blocks, stride of the first block), table 2 of the paper."""


@dataclass(frozen=True, slots=True)
class MobileNetOptions:
    batch: Dim = field(default=1, metadata={"doc": "images per call, or a name for a size given at run time"})
    image: Dim = field(default=224, metadata={"doc": "height and width of the image, or a name"})
    classes: int = field(default=1000, metadata={"doc": "columns of the output"})
    width: float = field(default=1.0, metadata={"doc": "multiplier of all channel counts"})


def mobilenet_v2(options: MobileNetOptions, seed: int = 0) -> onnx.ModelProto:
    """input [batch, 3, image, image] float32 -> logits [batch, classes] float32."""
    require(options.width > 0, f"mobilenet_v2: width={options.width} is not a positive multiplier")
    b = GraphBuilder("mobilenet_v2", seed)
    x = b.input("input", [options.batch, 3, options.image, options.image])
    channels = scaled(32, options.width)
    with b.scope("features", 0):
        x = conv_norm(b, x, 3, channels, kernel=3, stride=2, relu6=True, variance=1.0)
    position = 1
    for expansion, base, blocks, first_stride in STAGES:
        for index in range(blocks):
            with b.scope("features", position):
                after = scaled(base, options.width)
                x = inverted_residual(b, x, channels, after, first_stride if index == 0 else 1, expansion)
            channels, position = after, position + 1
    last = scaled(1280, max(1.0, options.width))
    with b.scope("features", position):
        x = conv_norm(b, x, channels, last, relu6=True, variance=1.0)
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    with b.scope("classifier"):
        x = gemm(b, x, last, options.classes)
    b.output("logits", x, [options.batch, options.classes])
    return b.model("MobileNet v2 with random weights")


def inverted_residual(b: GraphBuilder, x: Value, channels: int, after: int, stride: int, expansion: int) -> Value:
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1 without an activation; add the input where shapes allow."""
    hidden = channels * expansion
    y, variance = x, RELU_VARIANCE
    if expansion != 1:
        with b.scope("expand"):
            y = conv_norm(b, y, channels, hidden, relu6=True, variance=1.0)
    with b.scope("depthwise"):
        y = conv_norm(b, y, hidden, hidden, kernel=3, stride=stride, groups=hidden, relu6=True, variance=variance)
    residual = stride == 1 and channels == after
    with b.scope("project"):
        y = conv_norm(b, y, hidden, after, variance=variance, gain=0.5 if residual else 1.0)
    return b.op("Add", x, y) if residual else y


def conv_norm(
    b: GraphBuilder,
    x: Value,
    channels_in: int,
    channels_out: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    relu6: bool = False,
    variance: float = 1.0,
    gain: float = 1.0,
) -> Value:
    """Conv, BatchNormalization and, where asked, ReLU6 as the Clip that exporters write for it."""
    with b.scope("conv"):
        y = conv(b, x, channels_in, channels_out, kernel, stride, groups, variance)
    with b.scope("bn"):
        y = batch_norm(b, y, channels_out, gain)
    return b.op("Clip", y, b.scalar(0.0), b.scalar(6.0)) if relu6 else y


def scaled(channels: int, width: float) -> int:
    """Channels after the multiplier, rounded to a multiple of 8 and never more than 10% below it, as the paper's code does."""
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded
