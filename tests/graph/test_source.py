"""Constants, ranges, sizes and random numbers."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.graph.operator_checks import check, function_of
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Parameter
from tilewright.graph.ops import Binary, BindSize, Constant, ConstantData, Iota, RandomNormal, RandomUniform, SizeValue, constant
from tilewright.graph.ops.random import array_bits
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import as_shape, tensor
from tilewright.support.errors import InputError, TypeRuleError


def test_equal_constants_are_one_node():
    a, b = constant(np.arange(6.0)), constant(np.arange(6.0).copy())
    assert a is b
    assert a is not constant(np.arange(6.0).reshape(2, 3))
    assert a is not constant(np.arange(6))
    assert constant(0.0, dtypes.float32) is not constant(-0.0, dtypes.float32)
    assert constant(np.nan, dtypes.float32) is constant(np.nan, dtypes.float32)


def test_constants_compare_while_the_interpreter_ends(monkeypatch):
    x, y = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
    y[7] = 1
    a, b = ConstantData(x), ConstantData(y)
    monkeypatch.setattr(sys, "meta_path", None)
    monkeypatch.setattr(sys, "modules", {})
    assert a != b
    assert a == ConstantData(x)


def test_constants_that_differ_between_samples_are_told_apart():
    x = np.zeros(1000, np.float32)
    y = x.copy()
    y[1] = 1
    a, b = ConstantData(x), ConstantData(y)
    assert hash(a) == hash(b)
    assert a != b
    assert a.digest != b.digest
    assert a.digest == ConstantData(x.copy()).digest


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.float32), np.array(5, np.int64), np.array(["a", "b"], object)])
def test_constants_of_any_size(array):
    node = constant(array)
    assert node.data == ConstantData(array.copy())
    assert len(node.data.digest) == 64
    (result,) = interpret(function_of(node, []), [])
    np.testing.assert_array_equal(result, array)


def test_constants_are_read_only_and_keep_memory_maps(tmp_path):
    path = tmp_path / "weights.bin"
    np.arange(100, dtype=np.float32).tofile(path)
    mapped = np.memmap(path, np.float32, "r")
    data = ConstantData(mapped)
    assert np.shares_memory(data.array, mapped)
    with pytest.raises(ValueError, match="read-only"):
        data.array[0] = 1
    own = np.ones(3)
    ConstantData(own)
    own[0] = 2  # the caller's array stays writable


@pytest.mark.parametrize("dtype", ["int64", "float32", "float16", "uint8"])
def test_iota(dtype):
    (y,) = check(Iota(const(7), dtypes.BY_NAME[dtype]))
    assert y.tolist() == list(range(7))


def test_sizes_become_values_and_values_sizes():
    n, m = size("n", 0), size("m", 0, 10)
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (n,))))
    bound = g.one(BindSize(m), g.one(Binary("add"), g.one(SizeValue(n * 2)), g.one(constant(1, dtypes.int64))))
    y = g.one(Iota(m, dtypes.int64))
    assert y.node.binders == (bound,)
    (result,) = interpret(Function("f", (x,), (y,)), [np.zeros(3, np.float32)])
    assert result.tolist() == list(range(7))
    with pytest.raises(InputError, match="the size m is 13"):
        interpret(Function("f", (x,), (y,)), [np.zeros(6, np.float32)])


def test_threefry_matches_published_vectors():
    """Random123's known answers for threefry2x32, 20 rounds: key 0 and counter 0."""
    low, high = array_bits(1, 0)
    assert (int(low[0]), int(high[0])) == (0x6B200159, 0x99BA4EFE)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_random_numbers_agree_bit_by_bit(dtype):
    kind = dtypes.BY_NAME[dtype]
    (y,) = check(RandomUniform(as_shape((5, 7)), kind, -2.0, 3.0, 0x123456789AB), tolerance=0)
    assert len(np.unique(y)) > 25
    check(RandomNormal(as_shape((5, 7)), kind, 1.0, 2.0, 99))


def test_random_numbers_have_the_right_distribution():
    (u,) = RandomUniform(as_shape((40000,)), dtypes.float32, -1.0, 3.0, 7).reference(())
    assert u.min() >= -1
    assert u.max() <= 3
    assert abs(u.mean() - 1) < 0.03
    assert abs(u.var() - 16 / 12) < 0.03
    (z,) = RandomNormal(as_shape((40000,)), dtypes.float32, 2.0, 3.0, 7).reference(())
    assert abs(z.mean() - 2) < 0.06
    assert abs(z.std() - 3) < 0.06
    (other,) = RandomUniform(as_shape((40000,)), dtypes.float32, -1.0, 3.0, 8).reference(())
    assert abs(np.corrcoef(u, other)[0, 1]) < 0.02


def test_random_shapes_may_be_symbolic():
    n = size("n", 0)
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (n,))))
    y = g.one(RandomUniform(as_shape((n, 2)), dtypes.float32, 0.0, 1.0, 1))
    (drawn, _) = interpret(Function("f", (x,), (y, x)), [np.zeros(3, np.float32)])
    (same,) = RandomUniform(as_shape((3, 2)), dtypes.float32, 0.0, 1.0, 1).reference(())
    np.testing.assert_array_equal(drawn, same)


def test_source_rules():
    with pytest.raises(TypeRuleError, match="draws floats"):
        function_of(RandomUniform(as_shape((2,)), dtypes.int32, 0.0, 1.0, 1), [])
    with pytest.raises(TypeRuleError, match="int64 scalar"):
        function_of(BindSize(size("n")), [tensor(dtypes.int32, ())])
    with pytest.raises(TypeRuleError, match="not a named size"):
        function_of(BindSize(const(3)), [tensor(dtypes.int64, ())])
    with pytest.raises(TypeRuleError, match="takes 0 inputs"):
        function_of(Constant(ConstantData(np.ones(1))), [tensor(dtypes.int64, ())])
