"""Every dtype through memory and registers, conversions between them, and the operators, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.target.cpu.kernel_runner import run
from tilewright.ir import dtypes, expr
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, call, cast, const, load, var
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.nodes import Buffer, For, Kernel, Store

STORED = [d for d in dtypes.ALL if d.kind not in ("complex", "string")]
NARROW = [d for d in STORED if d.is_float and d.bits < 32]
WHOLE = [d for d in STORED if d.is_integer and d.bits >= 8]
LANES = 37  # two pieces of 16 and rests of 4 and 1


def elementwise(value: Callable[..., Expr], inputs: list[DType], count: int = LANES) -> Kernel:
    """out[i] = value(in0[i], in1[i], ...), vectorized."""
    i = var("i")
    buffers = tuple(Buffer(f"in{n}", d, (const(count),)) for n, d in enumerate(inputs))
    result = value(*(load(b, (i,)) for b in buffers))
    out = Buffer("out", result.dtype, (const(count),))
    return Kernel("elementwise", buffers, (out,), For(i, const(count), Store(out, (i,), result), "vectorized"))


def serial(kernel: Kernel) -> Kernel:
    loop = kernel.body
    assert isinstance(loop, For)
    return Kernel(kernel.name, kernel.inputs, kernel.outputs, For(loop.var, loop.extent, loop.body, "serial"))


def both(kernel: Kernel, *arrays: Any) -> list[Any]:
    """The result in lanes and one by one."""
    return [run(kernel, arrays)[0], run(serial(kernel), arrays)[0]]


def same_bits(got: Any, expected: Any) -> None:
    nan = np.isnan(expected.astype(np.float64)) if expected.dtype.kind not in "iub" else np.zeros(expected.shape, bool)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(
        got.view(np.uint8).reshape(-1, got.itemsize)[~nan], expected.view(np.uint8).reshape(-1, got.itemsize)[~nan]
    )
    assert not nan.any() or np.isnan(got.astype(np.float64))[nan].all()


def samples(dtype: DType, count: int = 256) -> Any:
    rng = np.random.default_rng(3)
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_integer:
        info = [int(dtype.lowest), int(dtype.highest), 0, 1]
        return np.array([*info, *rng.integers(max(info[0], -100), min(info[1], 100) + 1, count - 4)]).astype(dtype.numpy)
    if dtype.bits <= 8:
        return np.arange(256, dtype=np.uint8)[: 16 if dtype.bits < 8 else 256].repeat(16 if dtype.bits < 8 else 1)[:count].view(dtype.numpy)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-8, 6e-8, 65504.0, -3e38]
    return np.array([*special, *(rng.standard_normal(count - 10) * 10)]).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_copies_keep_bits(dtype: DType) -> None:
    x = samples(dtype)
    for got in both(elementwise(lambda a: a, [dtype], len(x)), x):
        same_bits(got, x)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_floats_widen(dtype: DType) -> None:
    x = np.arange(1 << min(16, max(dtype.bits, 8)), dtype=np.uint8 if dtype.bits <= 8 else np.uint16)
    x = (x[: 1 << dtype.bits]).view(dtype.numpy)
    for got in (
        both(elementwise(lambda a: cast(dtypes.float32, a), [dtype], len(x)), x)
        if len(x) <= 256
        else [run(_tiled(dtype, dtypes.float32, len(x)), [x])[0]]
    ):
        same_bits(got, x.astype(np.float32))


def _tiled(source: DType, target: DType, count: int) -> Kernel:
    o, i = var("o"), var("i")
    a, out = Buffer("a", source, (const(count),)), Buffer("out", target, (const(count),))
    body = For(i, const(64), Store(out, (o * 64 + i,), cast(target, load(a, (o * 64 + i,)))), "vectorized")
    return Kernel("convert", (a,), (out,), For(o, const(count // 64), body))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_float32_narrows(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 16384, dtype=np.uint64).astype(np.uint32)
    near = samples(dtype).astype(np.float32)  # values of the format, and halfway between neighbours
    near = near[np.isfinite(near)]
    middle = np.concatenate([near, (near[:-1] + near[1:]) / 2, near * np.float32(1 + 2**-20), [0.0, -0.0, np.inf, -np.inf, np.nan]])
    x = np.concatenate([bits.view(np.float32), middle.astype(np.float32)])
    # NaN has no place in float4e2m1; below the least normal float32, ml_dtypes rounds to float8e8m0 by another rule than above.
    x = x[~np.isnan(x)] if dtype is dtypes.float4e2m1 else x
    x = x[np.abs(x) >= np.float32(2.0**-126)] if dtype is dtypes.float8e8m0 else x
    x = np.concatenate([x, np.ones(-len(x) % 64, np.float32)])
    (got,) = run(_tiled(dtypes.float32, dtype, len(x)), [x])
    same_bits(got, x.astype(dtype.numpy))


@pytest.mark.parametrize("target", STORED, ids=str)
@pytest.mark.parametrize(
    "source", [dtypes.bool_, *WHOLE, dtypes.int2, dtypes.int4, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64], ids=str
)
def test_casts(source: DType, target: DType) -> None:
    x = samples(source)
    if source.is_float and not target.is_float and target.kind != "bool":
        wide = x.astype(np.float64)
        x = x[np.isfinite(wide) & (wide > (target.lowest if target.bits > 32 else -1000) - 1) & (wide < 1000)]
        x = x[x.astype(np.float64) >= 0] if target.kind == "uint" else x
    if target.name in ("float8e8m0", "float4e2m1"):
        x = x[np.abs(x.astype(np.float64)) < 1e30]
    kernel = elementwise(lambda a: cast(target, a), [source], len(x))
    expected = x.astype(np.float32 if target in NARROW else np.int16 if source.bits < 8 else x.dtype).astype(target.numpy)
    if target.is_integer and source.is_float and target.bits < 32:
        expected = x.astype(np.int32).astype(target.numpy)
    for got in both(kernel, x):
        same_bits(got, expected)


def test_floats_past_the_range_of_an_integer_saturate() -> None:
    x = np.array([1e20, -1e20, np.nan, np.inf, 3e9], np.float32)
    for got in both(elementwise(lambda a: cast(dtypes.int32, a), [dtypes.float32], 5), x):
        np.testing.assert_array_equal(got, [2**31 - 1, -(2**31), 0, 2**31 - 1, 2**31 - 1])


@pytest.mark.parametrize("source", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("target", [dtypes.int8, dtypes.uint16, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64], ids=str)
def test_saturation_is_exact_at_the_limits(target: DType, source: DType) -> None:
    limits = [sign * 2.0**power for power in (31, 32, 63, 64) for sign in (1, -1)]
    x = np.array(
        [np.nextafter(v, toward) for v in limits for toward in (v, 0, 2 * v)] + [-0.5, 0.5, np.inf, -np.inf, np.nan, -1.5], np.float64
    )
    if source is dtypes.float32:
        x = np.array(
            [np.nextafter(np.float32(v), np.float32(t)) for v in limits for t in (v, 0, 2 * v)] + [-0.5, 0.5, np.inf, -np.inf, np.nan]
        )
    x = x.astype(source.numpy)
    through = dtypes.int32 if target.bits < 32 or target is dtypes.int32 else dtypes.uint64 if target is dtypes.uint64 else dtypes.int64
    lowest, highest = int(through.lowest), int(through.highest)

    def saturated(v: float) -> int:
        whole = 0 if np.isnan(v) else lowest if v == -np.inf else highest if v == np.inf else max(lowest, min(highest, int(v)))
        return expr.wrap_integer(whole, target)

    for got in both(elementwise(lambda a: cast(target, a), [source], len(x)), x):
        assert got.tolist() == [saturated(float(v)) for v in x]


INTEGER_OPS = [Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD, Op.MIN, Op.MAX, Op.AND, Op.OR, Op.XOR,
               Op.EQ, Op.NE, Op.LT, Op.LE, Op.SHL, Op.SHR]  # fmt: skip


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_integer_operators(dtype: DType) -> None:
    a = samples(dtype, LANES)
    b = np.roll(samples(dtype, LANES), 5)
    for op in INTEGER_OPS:
        y = b
        if op in (Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD):
            y = np.where(b == 0, np.ones_like(b), b)
        if op in (Op.SHL, Op.SHR):
            y = (np.arange(LANES) % dtype.bits).astype(dtype.numpy)
        kernel = elementwise(lambda p, q, op=op: expr.binary(op, p, q), [dtype, dtype])
        (expected,) = interpret(kernel, [a, y])
        for got in both(kernel, a, y):
            np.testing.assert_array_equal(got, expected, err_msg=op)


@pytest.mark.parametrize("op", [Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.int64], ids=str)
def test_division_by_zero_and_of_the_least_number_does_not_trap(op: Op, dtype: DType) -> None:
    a = np.full(LANES, dtype.lowest, dtype.numpy)
    b = np.array([(0, -1, 1)[i % 3] for i in range(LANES)]).astype(dtype.numpy)
    for got in both(elementwise(lambda p, q: expr.binary(op, p, q), [dtype, dtype]), a, b):
        assert got.shape == (LANES,)


FLOAT_OPS = [Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MIN, Op.MAX, Op.EQ, Op.NE, Op.LT, Op.LE]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64], ids=str)
def test_float_operators(dtype: DType) -> None:
    a = samples(dtype, LANES)
    b = np.roll(a, 3)
    for op in FLOAT_OPS:
        kernel = elementwise(lambda p, q, op=op: expr.binary(op, p, q), [dtype, dtype])
        (expected,) = interpret(kernel, [a, b])
        for got in both(kernel, a, b):
            np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64), err_msg=op)
    for name in ("abs", "sqrt", "floor", "ceil", "round", "trunc", "isnan", "isinf"):
        kernel = elementwise(lambda p, name=name: call(name, p), [dtype])
        (expected,) = interpret(kernel, [a])
        for got in both(kernel, a):
            np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64), err_msg=name)


@pytest.mark.parametrize("how", [expr.maximum, expr.minimum])
def test_extremes_with_a_constant_propagate_nan(how: Callable[[Expr, Expr], Expr]) -> None:
    x = np.array([np.nan, -1.0, 1.0, np.inf, -np.inf] * 4, np.float32)
    kernel = elementwise(lambda a: how(a, const(0.0, dtypes.float32)), [dtypes.float32], 20)
    expected = np.maximum(x, 0) if how is expr.maximum else np.minimum(x, 0)
    for got in both(kernel, x):
        np.testing.assert_array_equal(got, expected)


def test_bits_are_read_as_another_dtype() -> None:
    x = samples(dtypes.float32, LANES)
    for got in both(elementwise(lambda a: expr.bitcast(dtypes.int32, a), [dtypes.float32]), x):
        np.testing.assert_array_equal(got, x.view(np.int32))
    h = samples(dtypes.bfloat16, LANES)
    for got in both(elementwise(lambda a: expr.bitcast(dtypes.uint16, a) + 0, [dtypes.bfloat16]), h):
        np.testing.assert_array_equal(got[h == h], h.view(np.uint16)[h == h])


def test_clamped_floats_become_bytes() -> None:
    x = (np.random.default_rng(0).standard_normal(LANES) * 200).astype(np.float32)
    kernel = elementwise(
        lambda a: cast(
            dtypes.int8, expr.minimum(expr.maximum(call("round", a), const(-128.0, dtypes.float32)), const(127.0, dtypes.float32))
        ),
        [dtypes.float32],
    )
    for got in both(kernel, x):
        np.testing.assert_array_equal(got, np.clip(np.round(x), -128, 127).astype(np.int8))


@pytest.mark.parametrize("target", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.int32], ids=repr)
@pytest.mark.parametrize("low", [0.0, -100.0, -200.0, -3e9])
@pytest.mark.parametrize("high", [100.0, 200.0, 70000.0, 3e9])
@pytest.mark.parametrize("rounded", [True, False])
def test_clamps_to_more_than_an_integer_holds_saturate_as_without_them(target: DType, low: float, high: float, rounded: bool) -> None:
    values = np.array([-4e9, -3e9, -40000.0, -300.0, -150.5, -129.0, -1.5, 0.5, 99.5, 128.0, 255.5, 300.0, 40000.0, 2**31, 3e9, np.inf])
    x = np.resize(values, LANES).astype(np.float32)

    def clamped(a: Expr) -> Expr:
        bounded = expr.minimum(expr.maximum(a, const(low, dtypes.float32)), const(high, dtypes.float32))
        return cast(target, call("round", bounded) if rounded else bounded)

    bounded = np.clip(x, np.float32(low), np.float32(high))
    whole = np.clip((np.rint if rounded else np.trunc)(bounded.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int64)
    for got in both(elementwise(clamped, [dtypes.float32]), x):
        np.testing.assert_array_equal(got, whole.astype(target.numpy))


def test_clamped_floats_are_rounded_half_to_even_as_they_are_converted() -> None:
    x = np.concatenate([np.arange(-130, 130, 0.5), [np.inf, -np.inf, 1e20, -1e20]]).astype(np.float32)[-LANES:]

    def rounded(a: Expr) -> Expr:
        bounded = expr.minimum(expr.maximum(a, const(-120.0, dtypes.float32)), const(130.0, dtypes.float32))
        return cast(dtypes.uint8, cast(dtypes.int32, call("round", bounded)) + 120)

    for got in both(elementwise(rounded, [dtypes.float32]), x):
        np.testing.assert_array_equal(got, (np.rint(np.clip(x, -120, 130)) + 120).astype(np.uint8))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16], ids=str)
def test_remainders_are_exact(dtype: DType) -> None:
    a, b = samples(dtype, LANES), np.roll(samples(dtype, LANES), 7)
    a[:6] = np.array([1e4, -1e4, 6e-8, 5.5, 0.3, 65504], dtype.numpy)
    b[:6] = np.array([3e-7, 0.7, 1.2e-7, -2, 0.1, 0.37], dtype.numpy)
    with np.errstate(all="ignore"):
        expected = np.fmod(a, b)
    for got in both(elementwise(lambda p, q: expr.binary(Op.TRUNCMOD, p, q), [dtype, dtype]), a, b):
        np.testing.assert_array_equal(got, expected)
