"""Reductions over axes and windows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.onnx_oracle import onnx_results
from tests.graph.operator_checks import assert_close, check, draw, function_of
from tilewright.graph.ops import ArgReduce, MaxPoolIndices, Reduce, WindowReduce
from tilewright.graph.ops.reduction import REDUCTIONS
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.types import as_shape, tensor
from tilewright.support.errors import TypeRuleError

NUMBERS = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "int4")


@pytest.mark.parametrize("axes", [(), (1,), (0, -1), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("fn", REDUCTIONS)
def test_reductions_are_numpys(fn, axes, keepdims):
    dtype = "bool" if fn in ("any", "all") else "float32"
    x = draw(np.random.default_rng(0), (2, 3, 4), dtype, -2, 2)
    (y,) = check(Reduce(fn, axes, keepdims), x)
    assert_close(y, np.asarray(getattr(np, fn)(x, axis=axes, keepdims=keepdims)), "numpy")


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("fn", ["sum", "prod", "max", "min"])
def test_reductions_of_every_dtype(fn, dtype):
    x = draw(np.random.default_rng(1), (3, 5), dtype, -2, 2)
    (y,) = check(Reduce(fn, (1,), False), x)
    assert y.dtype == x.dtype


def test_integer_sums_wrap():
    (y,) = check(Reduce("sum", (0,), False), np.array([100, 100, 100], np.int8))
    assert int(y) == 44


def test_reducing_nothing_gives_the_identity():
    (total,) = check(Reduce("sum", (1,), False), np.zeros((2, 0), np.float32))
    assert total.tolist() == [0, 0]
    (least,) = check(Reduce("min", (1,), False), np.zeros((2, 0), np.int8))
    assert least.tolist() == [127, 127]
    (greatest,) = check(Reduce("max", (1,), True), np.zeros((2, 0), np.float32))
    assert greatest.tolist() == [[-np.inf], [-np.inf]]


def test_nan_wins():
    x = np.array([[1, np.nan, 3], [1, 2, 3]], np.float32)
    (y,) = check(Reduce("max", (1,), False), x)
    assert np.isnan(y[0])
    assert y[1] == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int64"])
@pytest.mark.parametrize("fn", ["max", "min"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("keepdims", [True, False])
def test_positions_of_extremes(fn, dtype, last, keepdims):
    x = draw(np.random.default_rng(2), (3, 9, 2), dtype, 0, 2)
    if dtype != "float16":
        x = np.round(x).astype(x.dtype)  # many ties
    (y,) = check(ArgReduce(fn, 1, keepdims, last), x)
    operator = {"max": "ArgMax", "min": "ArgMin"}[fn]
    if dtype in ("float32", "int8", "uint8"):
        (expected,) = onnx_results(operator, [x], axis=1, keepdims=int(keepdims), select_last_index=int(last))
        np.testing.assert_array_equal(y, expected)


def test_position_of_nan():
    x = np.array([[1, np.nan, np.nan], [5, 7, 7]], np.float32)
    (first,) = check(ArgReduce("max", -1, False, False), x)
    (last,) = check(ArgReduce("max", -1, False, True), x)
    assert first.tolist() == np.argmax(x, -1).tolist() == [1, 1]
    assert last.tolist() == [2, 2]


def test_reduction_of_symbolic_shapes():
    n, m = size("n", 1), size("m", 1)
    types = [tensor(dtypes.float32, (n, m))]
    (y,) = check(Reduce("sum", (0,), True), np.ones((3, 2), np.float32), types=types)
    assert y.tolist() == [[3, 3]]
    (i,) = check(ArgReduce("min", 1, False, False), np.ones((3, 2), np.float32), types=types)
    assert i.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        (Reduce("sum", (2,), False), "float32", "axis 2 does not exist"),
        (Reduce("sum", (0, -2), False), "float32", "named twice"),
        (Reduce("sum", (0,), False), "bool", "not defined for bool"),
        (Reduce("any", (0,), False), "float32", "not defined for float32"),
        (Reduce("median", (0,), False), "float32", "median"),
        (ArgReduce("max", 1, False, False), "float32", "axis 1 is empty"),
        (WindowReduce("max", (3,), (1,), (1,), as_shape((0,)), as_shape((0,))), "float32", "does not fit into axis 1"),
        (WindowReduce("max", (3,), (0,), (1,), as_shape((0,)), as_shape((0,))), "float32", "must be positive"),
        (WindowReduce("prod", (3,), (1,), (1,), as_shape((0,)), as_shape((0,))), "float32", "prod"),
    ],
)
def test_reduction_rules(op, dtype, text):
    with pytest.raises(TypeRuleError) as caught:
        function_of(op, [tensor(dtypes.BY_NAME[dtype], (3, 0))])
    assert text in str(caught.value)


# shape, window, strides, dilations, low, high
WINDOWS = [
    ((1, 2, 6, 5), (2, 2), (2, 2), (1, 1), (0, 0), (0, 0)),
    ((2, 1, 6, 5), (3, 2), (1, 2), (1, 1), (1, 0), (1, 1)),
    ((1, 2, 7), (3,), (2,), (2,), (1,), (1,)),
    ((1, 1, 3, 4, 3), (2, 2, 2), (1, 2, 1), (1, 1, 1), (1, 0, 0), (0, 0, 1)),
]


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("fn", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_windows_agree(case, fn, dtype):
    shape, window, strides, dilations, low, high = case
    x = draw(np.random.default_rng(3), shape, dtype)
    (y,) = check(WindowReduce(fn, window, strides, dilations, as_shape(low), as_shape(high)), x)
    if fn == "max" and dtype == "float32":
        (expected,) = onnx_results("MaxPool", [x], kernel_shape=window, strides=strides, dilations=dilations, pads=(*low, *high))
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_pool_indices_are_onnxs(case, column_major, dtype):
    shape, window, strides, dilations, low, high = case
    x = np.round(draw(np.random.default_rng(4), shape, dtype, 0, 3)).astype(dtype)
    values, places = check(MaxPoolIndices(window, strides, dilations, as_shape(low), as_shape(high), column_major), x)
    options = {
        "kernel_shape": window,
        "strides": strides,
        "dilations": dilations,
        "pads": (*low, *high),
        "storage_order": int(column_major),
    }
    expected, indices = onnx_results("MaxPool", [x], outputs=2, **options)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(places, indices)


def test_pool_of_the_least_value_does_not_choose_padding():
    x = np.full((1, 1, 3), -np.inf, np.float32)
    values, places = check(MaxPoolIndices((2,), (1,), (1,), as_shape((1,)), as_shape((0,)), False), x)
    assert values.tolist() == [[[-np.inf] * 3]]
    assert places.tolist() == [[[0, 0, 1]]]


def test_windows_over_symbolic_space():
    n = size("n", 3)
    op = WindowReduce("max", (3,), (2,), (1,), as_shape((1,)), as_shape((1,)))
    (y,) = check(op, np.arange(7, dtype=np.float32)[None], types=[tensor(dtypes.float32, (1, n))])
    assert y.tolist() == [[1, 3, 5, 6]]
