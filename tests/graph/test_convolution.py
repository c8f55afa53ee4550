"""Convolutions and their transposes: all forms against each other and against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.onnx_oracle import onnx_results
from tests.graph.operator_checks import assert_close, check, draw, function_of, kernel_of
from tilewright.graph.ops import Convolution, ConvolutionTranspose
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.ir.types import as_shape, tensor
from tilewright.kernel.nodes import blocks, own_exprs, walk_stmts
from tilewright.support.errors import TypeRuleError

# input, weights, strides, dilations, low, high, groups
CASES = [
    ((1, 3, 6, 5), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    ((2, 3, 7, 6), (2, 3, 3, 2), (2, 3), (1, 2), (0, 1), (2, 0), 1),
    ((1, 4, 5, 5), (4, 1, 3, 3), (1, 2), (1, 1), (1, 1), (1, 1), 4),
    ((1, 4, 5, 5), (8, 1, 2, 2), (1, 1), (1, 1), (0, 0), (0, 0), 4),
    ((1, 6, 4, 4), (4, 3, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0), 2),
    ((2, 2, 9), (3, 2, 4), (2,), (2,), (3,), (1,), 1),
    ((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), (1, 2, 1), (1, 1, 2), (0, 1, 1), (1, 1, 0), 1),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_convolution_forms_agree(case, dtype):
    shape, weights, strides, dilations, low, high, groups = case
    rng = np.random.default_rng(0)
    x, w = draw(rng, shape, dtype, -1, 1), draw(rng, weights, dtype, -1, 1)
    op = Convolution(strides, dilations, as_shape(low), as_shape(high), groups, dtypes.BY_NAME[dtype])
    (y,) = check(op, x, w)
    if dtype == "float32":
        (expected,) = onnx_results("Conv", [x, w], strides=strides, dilations=dilations, pads=(*low, *high), group=groups)
        assert_close(y, expected, "onnxruntime")


def test_bytes_convolve_into_int32():
    rng = np.random.default_rng(1)
    x, w = draw(rng, (1, 3, 5, 5), "uint8", 0, 255), draw(rng, (2, 3, 3, 3), "int8", -128, 127)
    (y,) = check(Convolution((1, 1), (1, 1), as_shape((1, 1)), as_shape((1, 1)), 1, dtypes.int32), x, w)
    (wide,) = check(
        Convolution((1, 1), (1, 1), as_shape((1, 1)), as_shape((1, 1)), 1, dtypes.int64), x.astype(np.int64), w.astype(np.int64)
    )
    np.testing.assert_array_equal(y, wide)


def test_negative_padding_crops():
    rng = np.random.default_rng(2)
    x, w = draw(rng, (1, 2, 8)), draw(rng, (2, 2, 3))
    (y,) = check(Convolution((1,), (1,), as_shape((-1,)), as_shape((-2,)), 1, dtypes.float32), x, w)
    (cropped,) = check(Convolution((1,), (1,), as_shape((0,)), as_shape((0,)), 1, dtypes.float32), x[:, :, 1:-2].copy(), w)
    np.testing.assert_allclose(y, cropped, rtol=1e-6)


def test_symbolic_batch_and_space():
    n, h = size("n", 1), size("h", 4)
    rng = np.random.default_rng(3)
    types = [tensor(dtypes.float32, (n, 3, h, 5)), tensor(dtypes.float32, (2, 3, 3, 3))]
    op = Convolution((2, 1), (1, 1), as_shape((1, 0)), as_shape((1, 0)), 1, dtypes.float32)
    (y,) = check(op, draw(rng, (2, 3, 6, 5)), draw(rng, (2, 3, 3, 3)), types=types)
    assert y.shape == (2, 2, 3, 3)


def test_depthwise_indices_hold_no_division():
    op = Convolution((1, 1), (1, 1), as_shape((0, 0)), as_shape((0, 0)), 8, dtypes.float32)
    kernel = kernel_of(op, [tensor(dtypes.float32, (1, 8, 5, 5)), tensor(dtypes.float32, (8, 1, 3, 3))])
    exprs = [e for stmt in walk_stmts(kernel.body) for e in own_exprs(stmt)]
    assert not any(e.op in (Op.FLOORDIV, Op.FLOORMOD) for e in walk(*exprs))


def test_padding_is_a_block_of_its_own():
    types = [tensor(dtypes.float32, (1, 2, 5)), tensor(dtypes.float32, (2, 2, 3))]
    padded = kernel_of(Convolution((1,), (1,), as_shape((1,)), as_shape((1,)), 1, dtypes.float32), types)
    plain = kernel_of(Convolution((1,), (1,), as_shape((0,)), as_shape((0,)), 1, dtypes.float32), types)
    assert [block.name for block in blocks(padded.body)] == ["pad", "convolution"]
    assert [block.name for block in blocks(plain.body)] == ["convolution"]


# input, weights, strides, dilations, low, high, output padding, groups
TRANSPOSED = [
    ((1, 3, 4, 3), (3, 2, 3, 3), (1, 1), (1, 1), (1, 0), (0, 1), (0, 0), 1),
    ((2, 3, 4, 3), (3, 2, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), (1, 0), 1),
    ((1, 2, 3, 3), (2, 3, 2, 2), (2, 2), (1, 1), (0, 0), (0, 0), (0, 0), 1),
    ((1, 2, 3, 3), (2, 1, 3, 2), (3, 1), (2, 2), (1, 0), (2, 1), (2, 0), 1),
    ((1, 4, 3, 3), (4, 2, 3, 3), (2, 1), (1, 1), (1, 1), (1, 1), (0, 0), 2),
    ((1, 4, 3, 3), (4, 1, 4, 4), (2, 2), (1, 1), (1, 1), (1, 1), (0, 0), 4),
    ((1, 2, 5), (2, 3, 2), (3,), (1,), (0,), (0,), (1,), 1),
    ((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), (2, 1, 2), (1, 1, 1), (0, 0, 1), (0, 1, 1), (0, 0, 1), 1),
]


@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_transposed_forms_agree(case, dtype):
    shape, weights, strides, dilations, low, high, extra, groups = case
    rng = np.random.default_rng(4)
    x, w = draw(rng, shape, dtype, -1, 1), draw(rng, weights, dtype, -1, 1)
    op = ConvolutionTranspose(strides, dilations, as_shape(low), as_shape(high), extra, groups, dtypes.BY_NAME[dtype])
    (y,) = check(op, x, w)
    if dtype == "float32":
        options = {"strides": strides, "dilations": dilations, "pads": (*low, *high), "output_padding": extra, "group": groups}
        (expected,) = onnx_results("ConvTranspose", [x, w], **options)
        assert_close(y, expected, "onnxruntime")


def test_transposed_with_negative_and_symbolic_sizes():
    n = size("n", 1)
    rng = np.random.default_rng(5)
    types = [tensor(dtypes.float32, (1, 2, n)), tensor(dtypes.float32, (2, 1, 3))]
    op = ConvolutionTranspose((2,), (1,), as_shape((-1,)), as_shape((-2,)), (0,), 1, dtypes.float32)
    (y,) = check(op, draw(rng, (1, 2, 4)), draw(rng, (2, 1, 3)), types=types)
    assert y.shape == (1, 1, 12)
    assert not y[..., 0].any()


@pytest.mark.parametrize(
    ("x", "w", "groups", "text"),
    [
        ((1, 4, 5, 5), (2, 3, 3, 3), 1, "has 4 channels, the weights take 3"),
        ((1, 4, 5, 5), (3, 2, 3, 3), 2, "do not divide into 2 groups"),
        ((1, 4, 2, 5), (3, 4, 4, 3), 1, "does not fit into the padded input on axis 2"),
        ((1, 4, 5), (3, 4, 4, 3), 1, "do not fit"),
        ((1, 4), (3, 4), 1, "one to three spatial axes"),
        ((1, 4, 5), (3, 4, 3), 1, "1 spatial axes need as many strides"),
    ],
)
def test_convolution_rules(x, w, groups, text):
    op = Convolution((1, 1), (1, 1), as_shape((0, 0)), as_shape((0, 0)), groups, dtypes.float32)
    with pytest.raises(TypeRuleError) as caught:
        function_of(op, [tensor(dtypes.float32, x), tensor(dtypes.float32, w)])
    assert text in str(caught.value)
