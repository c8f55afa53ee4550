"""Quantization: references against onnxruntime and by hand, decompositions against references."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.graph.ops.kernels import types_of
from tests.graph.ops.onnx_oracle import onnx_result, onnx_results
from tilewright.graph.interpreter import decomposed, interpret
from tilewright.graph.node import Operator
from tilewright.graph.ops.quantization import Dequantize, DynamicQuantize, Quantize
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.types import tensor
from tilewright.support.errors import TypeRuleError

INTEGERS = [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16]


def check(op: Operator, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The reference's results, after comparing the decomposition with them."""
    expected = op.reference(inputs)
    types = types_of(inputs)
    for want, got, type_ in zip(expected, interpret(decomposed(op, types), list(inputs)), op.infer(types), strict=True):
        assert want.dtype == got.dtype == type_.dtype.numpy
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    return expected


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_quantize_and_back(dtype: dtypes.DType, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-300, 300, (2, 3, 3)).astype(np.float32)
    shape = () if axis is None else (3,)
    scale = rng.uniform(0.5, 2, shape).astype(np.float32)
    zero = rng.integers(0, 100, shape).astype(dtype.numpy)
    (q,) = check(Quantize(axis or 0, 0, dtype), x, scale, zero)
    np.testing.assert_array_equal(q, onnx_result("QuantizeLinear", [x, scale, zero], dtype.numpy, axis=axis or 0, opset=21))
    (back,) = check(Dequantize(axis or 0, 0, dtypes.float32), q, scale, zero)
    np.testing.assert_array_equal(back, onnx_result("DequantizeLinear", [q, scale, zero], np.float32, axis=axis or 0, opset=21))


def test_rounds_half_to_even_and_saturates() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9], np.float32)
    (q,) = check(Quantize(0, 0, dtypes.int8), x, np.float32(1))
    assert q.tolist() == [0, 2, 2, 0, -2, 127, -128]


@pytest.mark.parametrize("n", [6, 5])
def test_blocks(n: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-5, 5, (n, 2)).astype(np.float32)
    scale, zero = rng.uniform(0.1, 1, (3, 2)).astype(np.float32), rng.integers(-3, 3, (3, 2)).astype(np.int8)
    (q,) = check(Quantize(0, 2, dtypes.int8), x, scale, zero)
    rows = np.repeat(scale, 2, axis=0)[:n], np.repeat(zero, 2, axis=0)[:n]
    np.testing.assert_array_equal(q, np.clip(np.rint(x / rows[0]) + rows[1], -128, 127))
    check(Dequantize(0, 2, dtypes.float32), q, scale, zero)


@pytest.mark.parametrize("dtype", [dtypes.int2, dtypes.uint2, dtypes.int4, dtypes.uint4])
def test_less_than_eight_bits(dtype: dtypes.DType) -> None:
    x = np.linspace(-20, 20, 9, dtype=np.float32)
    (q,) = check(Quantize(0, 0, dtype), x, np.float32(2), np.asarray(1, dtype.numpy))
    np.testing.assert_array_equal(q.astype(np.int32), np.clip(np.rint(x / 2) + 1, dtype.lowest, dtype.highest))
    check(Dequantize(0, 0, dtypes.float16), q, np.float16(0.5), np.asarray(1, dtype.numpy))


@pytest.mark.parametrize("dtype", [dtypes.float8e4m3fn, dtypes.float8e5m2, dtypes.float4e2m1])
def test_small_floats(dtype: dtypes.DType) -> None:
    x = np.array([0, 0.3, 1, -700, 1e6, -1e6], np.float32)
    (q,) = check(Quantize(0, 0, dtype), x, np.float32(2))
    highest = float(ml_dtypes.finfo(dtype.numpy).max)
    assert q.astype(np.float32).max() == highest
    check(Dequantize(0, 0, dtypes.float32), q, np.float32(2))


def test_accumulators_dequantize_without_loss() -> None:
    q = np.array([2**24 + 1, -(2**30)], np.int32)
    (y,) = check(Dequantize(0, 0, dtypes.float32), q, np.float32(1), np.asarray(1, np.int32))
    assert y.tolist() == [2**24, -(2.0**30)]


@pytest.mark.parametrize("low_high", [(-3, 5), (2, 5), (-5, -2), (0, 0)])
def test_dynamic_quantize(low_high: tuple[int, int]) -> None:
    x = np.random.default_rng(2).uniform(*low_high, (4, 5)).astype(np.float32)
    ours = check(DynamicQuantize(), x)
    for got, want in zip(ours, onnx_results("DynamicQuantizeLinear", [x], [np.uint8, np.float32, np.uint8]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_types() -> None:
    n = size("n")
    q = Quantize(1, 0, dtypes.uint8).infer((tensor(dtypes.float32, (n, 4)), tensor(dtypes.float32, (4,)), tensor(dtypes.uint8, (4,))))
    assert q == (tensor(dtypes.uint8, (n, 4)),)
    with pytest.raises(TypeRuleError, match="the scale is"):
        Quantize(1, 0, dtypes.uint8).infer((tensor(dtypes.float32, (n, 4)), tensor(dtypes.float32, (3,))))
    with pytest.raises(TypeRuleError, match="the zero point is int8"):
        Dequantize(0, 0, dtypes.float32).infer((tensor(dtypes.uint8, (n,)), tensor(dtypes.float32, ()), tensor(dtypes.int8, ())))
