"""One small model for each family of kernels, with odd sizes, so that tiles are ragged: what tests compile for other targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper, parser

Array = np.ndarray


@dataclass(frozen=True)
class Family:
    """text: an ONNX graph in the parser's syntax, opset 18. weights: inputs of it that become constants. inputs: what it is run on."""

    text: str
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array]
    opset: int = 18

    def model(self) -> onnx.ModelProto:
        domains = f'"" : {self.opset}, "com.microsoft" : 1'
        model = parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]>\n{self.text}")
        kept = [info for info in model.graph.input if info.name not in self.weights]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.weights.items())
        return model


rng = np.random.default_rng(7)


def floats(*shape: int, scale: float = 1.0) -> Array:
    return (rng.normal(size=shape) * scale).astype(np.float32)


def family(text: str, inputs: Mapping[str, Array], weights: Mapping[str, Array] | None = None, opset: int = 18) -> Callable[[], Family]:
    return lambda: Family(text, inputs, weights or {}, opset)


def whole(low: int, high: int, *shape: int, dtype: type = np.int64) -> Array:
    return rng.integers(low, high, shape).astype(dtype)


FAMILIES: Mapping[str, Callable[[], Family]] = {
    "product": family(
        "g (float[m,37] x, float[37,53] w, float[53] b) => (float[m,53] y) { a = MatMul(x, w)  c = Add(a, b)  y = Relu(c) }",
        {"x": floats(19, 37)},
        {"w": floats(37, 53), "b": floats(53)},
    ),
    "product_of_inputs": family(
        "g (float[3,17,29] x, float[3,29,21] y) => (float[3,17,21] z) { z = MatMul(x, y) }",
        {"x": floats(3, 17, 29), "y": floats(3, 29, 21)},
    ),
    "row_times_matrix": family(
        "g (float[1,130] x, float[130,75] w) => (float[1,75] y) { y = MatMul(x, w) }", {"x": floats(1, 130)}, {"w": floats(130, 75)}
    ),
    "convolution": family(
        """g (float[1,20,13,15] x, float[24,20,3,3] w, float[24] b) => (float[1,24,7,8] y) {
        a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w, b)  y = Relu(a) }""",
        {"x": floats(1, 20, 13, 15)},
        {"w": floats(24, 20, 3, 3, scale=0.1), "b": floats(24)},
    ),
    "two_convolutions": family(
        """g (float[1,16,14,14] x, float[32,16,3,3] w, float[16,32,1,1] v) => (float[1,16,14,14] y) {
        a = Conv <pads = [1,1,1,1]> (x, w)  b = Relu(a)  c = Conv(b, v)  y = Add(c, x) }""",
        {"x": floats(1, 16, 14, 14)},
        {"w": floats(32, 16, 3, 3, scale=0.1), "v": floats(16, 32, 1, 1, scale=0.1)},
    ),
    "depthwise": family(
        """g (float[1,19,11,9] x, float[19,1,3,3] w) => (float[1,19,11,9] y) {
        y = Conv <pads = [1,1,1,1], group = 19> (x, w) }""",
        {"x": floats(1, 19, 11, 9)},
        {"w": floats(19, 1, 3, 3)},
    ),
    "grouped": family(
        "g (float[2,12,9,9] x, float[18,4,3,3] w) => (float[2,18,7,7] y) { y = Conv <group = 3> (x, w) }",
        {"x": floats(2, 12, 9, 9)},
        {"w": floats(18, 4, 3, 3, scale=0.2)},
    ),
    "transposed_convolution": family(
        """g (float[1,10,6,7] x, float[10,8,4,4] w) => (float[1,8,12,14] y) {
        y = ConvTranspose <strides = [2,2], pads = [1,1,1,1]> (x, w) }""",
        {"x": floats(1, 10, 6, 7)},
        {"w": floats(10, 8, 4, 4, scale=0.2)},
    ),
    "pooling": family(
        """g (float[1,17,12,13] x) => (float[1,17,6,6] y, float[1,17,1,1] z) {
        y = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,0,0]> (x)  z = GlobalAveragePool(x) }""",
        {"x": floats(1, 17, 12, 13)},
    ),
    "rows": family(
        """g (float[n,77] x, float[77] s, float[77] b) => (float[n,77] y, float[n,77] z) {
        y = Softmax <axis = -1> (x)  z = LayerNormalization <axis = -1> (x, s, b) }""",
        {"x": floats(5, 77)},
        {"s": floats(77), "b": floats(77)},
    ),
    "columns": family(
        """g (float[23,45] x) => (float[45] y, float[23,1] z, int64[45] i) {
        axis = Constant <value_ints = [0]> ()  last = Constant <value_ints = [1]> ()
        y = ReduceSum <keepdims = 0> (x, axis)  z = ReduceMax(x, last)  i = ArgMax <axis = 0, keepdims = 0> (x) }""",
        {"x": floats(23, 45)},
    ),
    "functions": family(
        """g (float[7,33] x) => (float[7,33] y, float[7,33] z) {
        a = Exp(x)  b = Tanh(a)  c = Erf(b)  d = Sigmoid(c)  p = Abs(x)  q = Log(p)  r = Sqrt(p)  y = Mul(d, r)  z = Sin(q) }""",
        {"x": floats(7, 33)},
    ),
    "rounding": family(
        """g (float[7,33] x, double[5] e) => (float[7,33] y, double[5] z) {
        a = Floor(x)  b = Ceil(x)  c = Round(x)  d = Mul(a, b)  y = Add(c, d)  f = Floor(e)  g = Ceil(e)  h = Round(e)
        i = Add(f, g)  z = Mul(i, h) }""",
        {"x": floats(7, 33, scale=9.0), "e": rng.normal(size=5) * 9},
    ),
    "transpose": family("g (float[5,19,23] x) => (float[23,5,19] y) { y = Transpose <perm = [2,0,1]> (x) }", {"x": floats(5, 19, 23)}),
    "gather": family(
        "g (float[41,18] t, int64[6] i) => (float[6,18] y) { y = Gather(t, i) }", {"i": whole(0, 41, 6)}, {"t": floats(41, 18)}
    ),
    "sort": family(
        """g (float[4,29] x) => (float[4,5] v, int64[4,5] i) { k = Constant <value_ints = [5]> ()  v, i = TopK(x, k) }""",
        {"x": floats(4, 29)},
    ),
    "resize": family(
        """g (float[1,3,7,9] x) => (float[1,3,14,18] y) {
        roi = Constant <value_floats = [0.0]> ()  s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
        y = Resize <mode = "linear"> (x, , s) }""",
        {"x": floats(1, 3, 7, 9)},
    ),
    "recurrent": family(
        """g (float[5,2,12] x, float[1,36,12] w, float[1,36,9] r) => (float[5,1,2,9] y, float[1,2,9] h) {
        y, h = LSTM <hidden_size = 9> (x, w, r) }""",
        {"x": floats(5, 2, 12)},
        {"w": floats(1, 36, 12, scale=0.3), "r": floats(1, 36, 9, scale=0.3)},
    ),
    "attention": family(
        """g (float[1,2,s,16] q, float[1,2,s,16] k, float[1,2,s,16] v) => (float[1,2,s,16] y) {
        t = Transpose <perm = [0,1,3,2]> (k)  a = MatMul(q, t)  f = Constant <value_float = 0.25> ()  b = Mul(a, f)
        p = Softmax <axis = -1> (b)  y = MatMul(p, v) }""",
        {"q": floats(1, 2, 11, 16), "k": floats(1, 2, 11, 16), "v": floats(1, 2, 11, 16)},
    ),
    "integers": family(
        """g (uint8[9,40] x, int8[40,21] w, uint8 zx, int8 zw) => (int32[9,21] y) { y = MatMulInteger(x, w, zx, zw) }""",
        {"x": whole(0, 255, 9, 40, dtype=np.uint8)},
        {"w": whole(-127, 127, 40, 21, dtype=np.int8), "zx": np.array(117, np.uint8), "zw": np.array(0, np.int8)},
    ),
    "quantised_convolution": family(
        """g (uint8[1,8,9,9] x, int8[12,8,3,3] w, uint8 z) => (int32[1,12,9,9] y) {
        y = ConvInteger <pads = [1,1,1,1]> (x, w, z) }""",
        {"x": whole(0, 255, 1, 8, 9, 9, dtype=np.uint8)},
        {"w": whole(-127, 127, 12, 8, 3, 3, dtype=np.int8), "z": np.array(128, np.uint8)},
    ),
    "narrow_floats": family(
        """g (float16[6,35] x) => (float16[6,35] y, float[6,35] z) { a = Mul(x, x)  y = Tanh(a)  z = Cast <to = 1> (a) }""",
        {"x": floats(6, 35).astype(np.float16)},
    ),
}
