"""ResNet v1 for images (He et al. 2015), as torchvision defines and exports it: stride on the 3x3 convolution of a bottleneck."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from tilewright.zoo.builder import Dim, GraphBuilder, Value, require
from tilewright.zoo.layers import RELU_VARIANCE, batch_norm, conv, gemm

EXPANSION = 4
BRANCH_GAIN = 0.5
"""Gain of a branch's last normalisation: the sum over the blocks of a stage grows slowly."""


@dataclass(frozen=True, slots=True)
class ResNetOptions:
    batch: Dim = field(default=1, metadata={"doc": "images per call, or a name for a size given at run time"})
    image: Dim = field(default=224, metadata={"doc": "height and width of the image, or a name"})
    classes: int = field(default=1000, metadata={"doc": "columns of the output"})
    width: int = field(default=64, metadata={"doc": "channels of the first stage; each later stage doubles them"})
    blocks: tuple[int, ...] = field(default=(2, 2, 2, 2), metadata={"doc": "residual blocks per stage"})
    bottleneck: bool = field(default=False, metadata={"doc": "blocks of 1x1, 3x3, 1x1 convolutions in place of two 3x3"})


def resnet(options: ResNetOptions, seed: int = 0) -> onnx.ModelProto:
    """input [batch, 3, image, image] float32 -> logits [batch, classes] float32."""
    require(len(options.blocks) > 0 and all(count > 0 for count in options.blocks), "resnet: every stage needs at least one block")
    b = GraphBuilder("resnet", seed)
    x = b.input("input", [options.batch, 3, options.image, options.image])
    with b.scope("conv1"):
        x = conv(b, x, 3, options.width, kernel=7, stride=2)
    with b.scope("bn1"):
        x = b.op("Relu", batch_norm(b, x, options.width))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], dilations=[1, 1], ceil_mode=0)
    channels = options.width
    for stage, count in enumerate(options.blocks):
        for index in range(count):
            with b.scope(f"layer{stage + 1}", index):
                stride = 2 if stage > 0 and index == 0 else 1
                x, channels = block(b, x, channels, options.width << stage, stride, options.bottleneck)
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    with b.scope("fc"):
        x = gemm(b, x, channels, options.classes)
    b.output("logits", x, [options.batch, options.classes])
    return b.model("ResNet v1 with random weights")


def block(b: GraphBuilder, x: Value, channels: int, width: int, stride: int, bottleneck: bool) -> tuple[Value, int]:
    """One residual block; returns its value and its channels."""
    result = width * EXPANSION if bottleneck else width
    # (kernel, channels out, stride) of each convolution on the branch.
    steps = ((1, width, 1), (3, width, stride), (1, result, 1)) if bottleneck else ((3, width, stride), (3, result, 1))
    y, before = x, channels
    for number, (kernel, after, step) in enumerate(steps, start=1):
        last = number == len(steps)
        with b.scope(f"conv{number}"):
            y = conv(b, y, before, after, kernel, step, variance=RELU_VARIANCE)
        with b.scope(f"bn{number}"):
            y = batch_norm(b, y, after, gain=BRANCH_GAIN if last else 1.0)
        if not last:
            y = b.op("Relu", y)
        before = after
    if stride != 1 or channels != result:
        with b.scope("downsample", 0):
            x = conv(b, x, channels, result, 1, stride, variance=RELU_VARIANCE)
        with b.scope("downsample", 1):
            x = batch_norm(b, x, result)
    return b.op("Relu", b.op("Add", y, x)), result
