"""A multilayer perceptron: Gemm and Relu in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from tilewright.zoo.builder import Dim, GraphBuilder, require
from tilewright.zoo.layers import gemm


@dataclass(frozen=True, slots=True)
class MlpOptions:
    batch: Dim = field(default=1, metadata={"doc": "rows per call, or a name for a size given at run time"})
    sizes: tuple[int, ...] = field(default=(784, 512, 512, 10), metadata={"doc": "columns of the input, of each layer, of the output"})


def mlp(options: MlpOptions, seed: int = 0) -> onnx.ModelProto:
    """input [batch, sizes[0]] float32 -> output [batch, sizes[-1]] float32."""
    require(len(options.sizes) >= 2, "mlp: sizes needs at least an input and an output", hint="for example sizes=(784, 512, 10)")
    b = GraphBuilder("mlp", seed)
    x = b.input("input", [options.batch, options.sizes[0]])
    layers = len(options.sizes) - 1
    for index, (before, after) in enumerate(zip(options.sizes, options.sizes[1:])):
        with b.scope(f"fc{index + 1}"):
            # Twice the variance after a ReLU, which halves it.
            x = gemm(b, x, before, after, std=(before if index == 0 else before / 2) ** -0.5)
            if index < layers - 1:
                x = b.op("Relu", x)
    b.output("output", x, [options.batch, options.sizes[-1]])
    return b.model("Multilayer perceptron with random weights")
