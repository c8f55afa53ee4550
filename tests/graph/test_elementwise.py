"""Elementwise operators: kernels against references, references against NumPy, dtype rules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.graph.operator_checks import check, draw, function_of
from tilewright.compiler import compile_module
from tilewright.graph.node import Function, GraphBuilder, Module, Parameter
from tilewright.graph.ops import Binary, Bitcast, Cast, Select, Unary, constant
from tilewright.graph.ops.scalars import BINARY, UNARY
from tilewright.ir import dtypes
from tilewright.ir.expr import cast, const, size
from tilewright.ir.scalar_ops import integer_of
from tilewright.ir.types import tensor
from tilewright.machine.detect import detect_host
from tilewright.runtime.executable import Executable
from tilewright.support.errors import TypeRuleError
from tilewright.support.settings import current_settings

DOMAINS = {
    "log": (0.1, 9), "log2": (0.1, 9), "log1p": (-0.9, 9), "sqrt": (0, 9), "rsqrt": (0.1, 9), "reciprocal": (0.5, 4),
    "asin": (-1, 1), "acos": (-1, 1), "acosh": (1, 9), "atanh": (-0.9, 0.9), "tan": (-1.2, 1.2),
}  # fmt: skip
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int32", "int64", "uint64", "int2", "uint2", "int4", "uint4")


def cases(table):
    for fn, rule in table.items():
        names = []
        if "float" in rule.kinds:
            names += FLOATS
        if "int" in rule.kinds:
            names += INTEGERS
        if "bool" in rule.kinds:
            names.append("bool")
        for name in names:
            yield pytest.param(fn, name, id=f"{fn}-{name}")


@pytest.mark.parametrize(("fn", "dtype"), list(cases(UNARY)))
def test_unary_forms_agree(fn, dtype):
    low, high = DOMAINS.get(fn, (-4, 4))
    x = draw(np.random.default_rng(1), (3, 7), dtype, low, high)
    (y,) = check(Unary(fn), x)
    assert y.shape == x.shape


@pytest.mark.parametrize(("fn", "dtype"), list(cases(BINARY)))
def test_binary_forms_agree(fn, dtype):
    rng = np.random.default_rng(2)
    integral = dtypes.BY_NAME[dtype].is_integer
    a = draw(rng, (4, 1, 5), dtype, *((-200, 200) if integral else (0.1, 4) if fn == "pow" else (-4, 4)))
    b = draw(rng, (3, 1), dtype, *((-9, 9) if integral else (-4, 4)))
    (y,) = check(Binary(fn), a, b)
    assert y.shape == (4, 3, 5)


@pytest.mark.parametrize("fn", ["div", "floordiv", "floormod", "fmod"])
def test_integer_division_never_traps(fn):
    least = np.iinfo(np.int32).min
    a = np.array([7, -7, least, least, 0], np.int32)
    b = np.array([0, 0, -1, 0, 0], np.int32)
    check(Binary(fn), a, b)


@pytest.mark.parametrize(("a", "b", "expected"), [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3), (-6, 3, -2)])
def test_div_truncates(a, b, expected):
    (y,) = check(Binary("div"), np.array(a, np.int64), np.array(b, np.int64))
    assert int(y) == expected


def test_integers_wrap():
    (y,) = check(Binary("add"), np.array([127, -128], np.int8), np.array([1, -1], np.int8))
    assert y.tolist() == [-128, 127]
    (y,) = check(Unary("neg"), np.array([3], np.uint8))
    assert y.tolist() == [253]


def test_nan_wins_in_min_and_max():
    a, b = np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 3], np.float32)
    for fn in ("min", "max"):
        (y,) = check(Binary(fn), a, b)
        assert np.isnan(y).tolist() == [True, True, False]


@pytest.mark.parametrize("exponents", [np.float32(0.5), np.full(2, 0.5, np.float32)], ids=["one", "many"])
def test_powers_of_negative_zero_and_infinity_follow_c(exponents):
    (y,) = check(Binary("pow"), np.array([-0.0, -np.inf], np.float32), np.asarray(exponents))
    assert list(y) == [0.0, np.inf]
    assert not np.signbit(y[0])


def test_negative_integer_powers_truncate():
    (y,) = check(Binary("pow"), np.array([2, 1, -1, -1, 0], np.int32), np.array([-1, -3, -2, -3, -1], np.int32))
    assert y.tolist() == [0, 1, 1, -1, 0]


def test_shifts_past_the_width_empty_the_value():
    (y,) = check(Binary("shl"), np.array([1, 1, 1], np.uint8), np.array([7, 8, 200], np.uint8))
    assert y.tolist() == [128, 0, 0]
    (y,) = check(Binary("shr"), np.array([-8, -8], np.int8), np.array([2, 100], np.int8))
    assert y.tolist() == [-2, -1]


def test_erf_matches_the_standard_library():
    x = np.linspace(-3, 3, 13)
    (y,) = check(Unary("erf"), x)
    np.testing.assert_allclose(y, [math.erf(v) for v in x], rtol=1e-15)


def test_half_types_are_computed_in_float32_and_rounded_once():
    a = np.array([2049.0, 0.1], np.float16)
    (y,) = check(Binary("div"), a, np.array([3.0, 3.0], np.float16))
    np.testing.assert_array_equal(y, (a.astype(np.float32) / np.float32(3)).astype(np.float16))


def test_select_broadcasts():
    rng = np.random.default_rng(3)
    (y,) = check(Select(), draw(rng, (4, 1), "bool"), draw(rng, (3,)), draw(rng, (2, 1, 1)))
    assert y.shape == (2, 4, 3)


CASTS = [
    ("float32", "int32"), ("float32", "int8"), ("float32", "bool"), ("float16", "float32"), ("float64", "float16"), ("int64", "int8"),
    ("int32", "float32"), ("bool", "float32"), ("bool", "int64"), ("float32", "bfloat16"), ("bfloat16", "bool"), ("uint8", "int4"),
    ("float32", "int4"), ("int4", "float16"), ("float32", "float8e4m3fn"), ("float8e5m2", "float32"), ("float16", "float8e5m2fnuz"),
    ("int32", "float8e4m3fn"), ("float32", "float4e2m1"), ("float8e8m0", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_casts_agree(source, target):
    x = draw(np.random.default_rng(4), (20,), source, 0.3 if source == "float8e8m0" else -7, 7)
    (y,) = check(Cast(dtypes.BY_NAME[target]), x, tolerance=0)
    assert y.dtype == dtypes.BY_NAME[target].numpy


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("fn", ["min", "max"])
def test_a_constant_that_is_nan_is_the_extreme(fn, dtype):
    kind = dtypes.BY_NAME[dtype]
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(kind, (5,))))
    nan = g.one(constant(np.asarray(np.nan), kind))
    results = (g.one(Binary(fn), x, nan), g.one(Binary(fn), nan, x), g.one(Binary(fn), g.one(Unary("neg"), x), nan))
    module = Module({"main": Function("main", (x,), results)}, "main", ("x",), ("a", "b", "c"))
    compiled = compile_module(module, detect_host(), current_settings())
    for got in Executable(compiled.artifact)(np.array([1, -1, np.inf, -np.inf, np.nan]).astype(kind.numpy)):
        assert np.isnan(got.astype(np.float32)).all()


@pytest.mark.parametrize("source", ["float32", "float64", "float16"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4", "uint2"])
def test_floats_past_the_range_of_an_integer_become_the_same_everywhere(source, target):
    """In the reference, in kernels, in constants that are folded, and by the rule of `integer_of`."""
    numbers = [-0.5, -1.5, 300, -300, 70000, 3e9, -3e9, 2.0**31, 2.0**32, 5e9, 1e19, -1e19, 2.0**63, 2.0**64, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        x, dtype = np.array(numbers).astype(source), dtypes.BY_NAME[target]
    (y,) = check(Cast(dtype), x)
    assert y.astype(object).tolist() == [integer_of(float(v), dtype) for v in x]
    assert [cast(dtype, const(float(v), dtypes.BY_NAME[source])).attr for v in x] == y.astype(object).tolist()
    if dtype.bits >= 32:
        low, high = (int(end) for end in (np.iinfo(target).min, np.iinfo(target).max))
        clamped = [0 if v != v else min(max(float(v), low), high) for v in x]
        assert target == "uint32" or [int(v) for v in y] == [int(v) for v in clamped]


@pytest.mark.parametrize("target", ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"])
@pytest.mark.parametrize("saturate", [True, False])
def test_casts_to_8_bit_floats_saturate_when_asked(target, saturate):
    dtype = dtypes.BY_NAME[target]
    (y,) = check(Cast(dtype, saturate), np.array([1e6, -1e6, np.inf, np.nan, 1.0], np.float32))
    values = y.astype(np.float32)
    if saturate:
        assert np.isfinite(values[:3]).all()
        assert values[0] == values[2] == -values[1]
    else:
        assert not np.isfinite(values[:3]).any()
    assert np.isnan(values[3])
    assert values[4] == 1


def test_strings_convert_at_compile_time():
    words = np.array(["1.5", "-2", "inf"], object)
    (y,) = Cast(dtypes.float32).reference((words,))
    assert y.tolist() == [1.5, -2.0, math.inf]
    (text,) = Cast(dtypes.string).reference((np.array([1.5, -2], np.float32),))
    assert text.tolist() == ["1.5", "-2.0"]


@pytest.mark.parametrize(("source", "target"), [("float32", "int32"), ("float32", "uint32"), ("int8", "uint8"), ("uint4", "int4")])
def test_bitcast_keeps_the_bits(source, target):
    x = draw(np.random.default_rng(5), (9,), source, -7, 7)
    (y,) = check(Bitcast(dtypes.BY_NAME[target]), x)
    (back,) = check(Bitcast(dtypes.BY_NAME[source]), y)
    np.testing.assert_array_equal(back, x)


def test_symbolic_dims_broadcast_with_one_and_with_themselves():
    n = size("n", 1)
    x, y = np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)
    (z,) = check(Binary("add"), x, y, types=(tensor(dtypes.float32, (n, 4)), tensor(dtypes.float32, (1, 4))))
    assert z.shape == (3, 4)


@pytest.mark.parametrize(
    ("op", "types", "text"),
    [
        (Binary("add"), [("float32", (2, 3)), ("float32", (4, 3))], "do not broadcast"),
        (Binary("add"), [("float32", (2,)), ("int64", (2,))], "float32, int64"),
        (Binary("add"), [("bool", (2,)), ("bool", (2,))], "not defined for bool"),
        (Binary("frobnicate"), [("bool", (2,)), ("bool", (2,))], "frobnicate"),
        (Unary("exp"), [("int32", (2,))], "not defined for int32"),
        (Unary("exp"), [("float32", (2,)), ("float32", (2,))], "takes 1 inputs, not 2"),
        (Select(), [("float32", (2,))] * 3, "must be bool"),
        (Bitcast(dtypes.int8), [("float32", (2,))], "widths differ"),
    ],
)
def test_type_rules_explain(op, types, text):
    with pytest.raises(TypeRuleError, match=text):
        function_of(op, [tensor(dtypes.BY_NAME[name], shape) for name, shape in types])


def test_two_sizes_do_not_broadcast():
    a, b = (tensor(dtypes.float32, (size(name, 1),)) for name in ("n", "m"))
    with pytest.raises(TypeRuleError, match="n and m, which are not known to be equal"):
        function_of(Binary("add"), [a, b])
