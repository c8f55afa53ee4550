"""Steps that grow a graph by integers over their full range: requantisation past both ends, and chains of casts."""

from __future__ import annotations

import math

import numpy as np

from tilewright.fuzzing.elementwise_steps import integral
from tilewright.fuzzing.generator import Known
from tilewright.fuzzing.growth import INTEGERS, Growth, elements, full_range
from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, Cast, Dequantize, Quantize
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType

F32 = dtypes.float32
SUB_BYTE = (dtypes.int4, dtypes.uint4, dtypes.int2, dtypes.uint2)
QUANTIZED = (dtypes.int8, dtypes.uint8, dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, *SUB_BYTE)
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def ends(f: Growth, dtype: DType) -> int:
    """An integer at one of the ends of the dtype's range, next to one, or in the middle."""
    low, high = int(dtype.lowest), int(dtype.highest)
    return f.among(low, high, low + 1, high - 1, 0, (low + high + 1) // 2)


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
