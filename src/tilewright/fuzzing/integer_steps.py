"""Steps that grow a graph by integers over their full range: requantisation past both ends, clamps before casts, products of quantized
operands, and chains of casts."""

from __future__ import annotations

import math

import numpy as np

from tilewright.fuzzing.elementwise_steps import integral
from tilewright.fuzzing.generator import Known
from tilewright.fuzzing.growth import INTEGERS, Array, Growth, elements, full_range
from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, Cast, Contract, Dequantize, Quantize, Unary
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import const

F32 = dtypes.float32
SUB_BYTE = (dtypes.int4, dtypes.uint4, dtypes.int2, dtypes.uint2)
QUANTIZED = (dtypes.int8, dtypes.uint8, dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, *SUB_BYTE)
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def ends(f: Growth, dtype: DType) -> int:
    """An integer at one of the ends of the dtype's range, next to one, or about the middle."""
    low, high = int(dtype.lowest), int(dtype.highest)
    middle = (low + high + 1) // 2
    return f.among(low, high, low + 1, high - 1, 0, middle, middle - 1, min(middle + 1, high))


def requantised(f: Growth) -> None:
    """Integers scaled to floats, or floats, quantized so that values pass both ends; zero points at the ends as well. Scales are powers of
    two, so that results are exact."""

    def fits(value: Value, known: Known) -> bool:
        floats = value.type.dtype is F32 and known.bound <= 1e3
        return known.exact and value.type.rank >= 1 and (floats or value.type.dtype in INTEGERS[:5])

    x = f.pick(fits)
    if x is None:
        return
    reach, axis = f.known(x).bound, f.whole(0, x.type.rank - 1)
    if not x.type.dtype.is_float:
        reach = min(reach, float(x.type.dtype.highest)) if x.type.dtype.bits <= 16 else float(1 << f.whole(8, 24))
        x = f.s.g.one(Cast(F32), x)
    dtype = f.among(*QUANTIZED)
    span = 2.0**dtype.bits
    step = 2.0 ** (round(math.log2(max(reach, 1.0) / span)) + f.whole(-3, 1))
    if f.chance(0.5):  # the step is divided between a factor, as what follows products has it, and the scale
        part = 2.0 ** f.whole(-4, 4)
        x, step = f.s.g.one(Binary("mul"), x, f.number(part, F32)), step * part
    if f.chance(0.3):
        x = f.s.g.one(Binary("add"), x, f.operand(F32, x.shape[axis:][:1] if axis == x.type.rank - 1 else ()))
    if f.chance(0.2):
        x = f.s.g.one(Binary("max"), x, f.number(0, F32))
    each = x.shape[axis : axis + 1] if f.chance(0.3) else ()
    scale = f.operand(F32, each, lambda rng, shape: np.asarray(step * rng.choice([0.5, 1.0, 2.0], shape)))
    point = ends(f, dtype)
    zero = f.operand(dtype, each, full_range(dtype) if each else lambda rng, shape: np.full(shape, point))
    zeros = [zero] if f.chance(0.8) else []
    q = f.put(Quantize(axis, 0, dtype), (x, scale, *zeros), span, True)
    if f.chance(0.4):
        f.put(Dequantize(axis, 0, F32), (q, scale, *zeros), span * step * 4, True)


def clamped_cast(f: Growth) -> None:
    """Floats clamped to bounds inside of the range of an integer, at its ends or past them, and converted or quantized to it."""
    source, dtype = (
        f.among(F32, F32, dtypes.float64, dtypes.float16, dtypes.bfloat16),
        f.among(*INTEGERS, *SUB_BYTE, dtypes.int32, dtypes.uint8),
    )
    most = 6e4 if source is dtypes.float16 else 1e20

    def bound() -> float:
        end = float(f.among(dtype.lowest, dtype.highest, dtype.lowest, dtype.highest, 0, -1, 7))
        number = end * f.among(1.0, 1.0, 2.0, 0.5, 1.5, 2.0**33) + f.among(0.0, 0.0, 1.0, -1.0, 45.0)
        return min(max(number, -most), most)

    def past(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        reach = np.minimum(2.0 ** rng.choice([3, dtype.bits - 1, dtype.bits, dtype.bits + 2, 33, 66], shape), most)
        return np.asarray(rng.uniform(-1, 1, shape) * reach)

    x = f.parameter(source, f.s.shape(f.among(1, 2, 3)), past, 1e20)
    low, high = sorted((bound(), bound()))
    for fn, number in f.among((("max", low), ("min", high)), (("min", high), ("max", low)), (("max", low),), (("min", high),)):
        x = f.s.g.one(Binary(fn), x, f.number(number, source))
    if f.chance(0.3):
        x = f.s.g.one(Unary(f.among("round", "floor", "ceil")), x)
    if source is F32 and dtype in QUANTIZED and f.chance(0.3):
        zeros = [f.s.constant(np.asarray(ends(f, dtype)), dtype)] if f.chance(0.5) else []
        f.put(Quantize(0, 0, dtype), (x, f.number(1, F32), *zeros), 2.0**dtype.bits, True)
    else:
        f.put(Cast(dtype), (x,), 1e30, True)


def dequantized_product(f: Growth) -> None:
    """x w' with weights of few bits, and often x of bytes as well. Codes cover a part of their range or all, and zero points lie at the
    ends of what that leaves in a byte, or next to them. Some weights are larger than a cache."""
    m, large = f.s.dim(), f.chance(0.4)
    k, n = (f.among(100, 128, 160), f.among(128, 130, 160)) if large else (f.among(1, 3, 8, 16, 33, 64, 128), f.among(1, 5, 8, 17, 64))
    dtype = f.among(dtypes.int8, dtypes.uint8, dtypes.int8, dtypes.uint8, dtypes.int4, dtypes.uint4)
    x = f.picked(F32, (m, const(k)))
    if not f.known(x).exact or f.known(x).bound > 64:
        return
    bound = f.known(x).bound
    if f.chance(0.5):
        own, step = f.among(dtypes.int8, dtypes.uint8), f.number(f.among(0.25, 0.5), F32)
        zero = [f.s.constant(np.asarray(ends(f, own)), own)] if f.chance(0.7) else []
        x, bound = f.s.g.one(Dequantize(0, 0, F32), f.s.g.one(Quantize(0, 0, own), x, step, *zero), step, *zero), 128.0
    low, high = int(dtype.lowest), int(dtype.highest)
    if f.chance(0.4):
        low, high = sorted((f.whole(low, high), f.whole(low, high)))
    weights = f.s.constant(f.rng.integers(low, high + 1, (n, k) if f.chance(0.5) else (k, n)), dtype)
    axis = weights.shape.index(const(n))
    each = (n,) if f.chance(0.6) else ()
    scale = f.s.constant(np.asarray(f.rng.choice([0.25, 0.5, 1.0], each)), F32)
    edge = f.among(low, high, low + 127, low + 128, low + 129, high - 126, high - 127, high - 128, ends(f, dtype))
    points = np.clip(edge + f.rng.integers(0, f.among(1, 1, 2, 3), each), int(dtype.lowest), int(dtype.highest))
    zeros = [f.s.constant(np.asarray(points), dtype)] if f.chance(0.8) else []
    w = f.s.g.one(Dequantize(axis, 0, F32), weights, scale, *zeros)
    bound *= 2.0**dtype.bits * k
    y = f.put(Contract("mk,nk->mn" if axis == 0 else "mk,kn->mn", F32), (x, w), bound, bound < 1 << 20)
    if f.chance(0.3):
        f.put(Quantize(0, 0, dtypes.int8), (y, f.number(4.0, F32)), 128.0, f.known(y).exact)


def cast_chain(f: Growth) -> None:
    """Casts one after the other over all integer dtypes, and floats that hold every value; what comes out is compared, not cast back."""
    x = f.pick(lambda value, known: integral(value, known) and elements(value) < 4000)
    if x is None or f.chance(0.3):
        dtype = f.among(*INTEGERS)
        x = f.parameter(dtype, f.s.shape(f.among(1, 2)), full_range(dtype), 1e30)
    first = x
    for _ in range(f.whole(2, 4)):
        source, target = x.type.dtype, f.among(*INTEGERS, *SUB_BYTE)
        if source.bits <= 8 and f.chance(0.2):
            wide = [t for t in INTEGERS if t.lowest <= source.lowest and source.highest <= t.highest]
            x, target = f.s.g.one(Cast(f.among(F32, dtypes.float16, dtypes.float64)), x), f.among(*wide)
        x = f.put(Cast(target), (x,), 1e30, True)
    dtype = x.type.dtype
    if f.chance(0.6):
        other = f.s.g.one(Cast(dtype), first) if f.chance(0.3) else f.operand(dtype, f.among((), x.shape[-1:]), full_range(dtype))
        f.put(Binary(f.among(*COMPARISONS)), (x, other), 1.0, True)
