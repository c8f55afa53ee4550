"""Steps that grow a graph by values that are infinite, NaN or zeros of both signs here and there, and what is computed of them."""

from __future__ import annotations

import numpy as np

from tilewright.fuzzing.elementwise_steps import UNARY_DOMAINS
from tilewright.fuzzing.generator import Known
from tilewright.fuzzing.growth import FLOATS, ONE, ZERO, Array, Growth
from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, Concat, CumulativeScan, Pad, Reduce, Select, Slice, Softmax, Transpose, Unary, WindowReduce
from tilewright.ir import dtypes
from tilewright.ir.expr import const

FUNCTIONS = sorted({fn for names in UNARY_DOMAINS.values() for fn in names} | {"floor", "ceil", "round", "trunc", "sqrt", "rsqrt"})
FAR = 1e9  # a bound that keeps values from operators which only take moderate ones
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0)


def specials(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Multiples of 1/4, of which a few are no numbers, or zeros."""
    values = rng.integers(-8, 9, shape) / 4
    chosen = rng.choice(SPECIAL[: rng.integers(1, len(SPECIAL) + 1)], shape)
    return np.asarray(np.where(rng.random(shape) < rng.choice([0.05, 0.3, 0.9]), chosen, values))


def unusual_values(f: Growth) -> None:
    """Elementwise operators, reductions, windows, scans and movement, one after the other, of values with infinities and NaNs."""
    dtype = f.among(dtypes.float32, dtypes.float32, *FLOATS)
    x = f.parameter(dtype, f.s.shape(f.among(1, 2, 3, 4)), specials, FAR, False)
    for _ in range(f.whole(1, 5)):
        x = _computed(f, x)
    f.s.pool[x] = Known(FAR, False)
    if f.chance(0.3):
        f.put(Unary(f.among("isnan", "isinf")), (x,), 1.0, True)


def _computed(f: Growth, x: Value) -> Value:
    """What one more operator makes of x."""
    dtype, rank, g = x.type.dtype, x.type.rank, f.s.g
    kind = f.among("unary", "unary", "binary", "binary", "number", "extreme", "sum", "window", "scan", "pad", "moved", "select", "softmax")
    axis = f.whole(0, rank - 1) if rank else 0
    whole = rank and all(dim.is_const and dim.value > 0 for dim in x.shape)
    if kind == "unary":
        return g.one(Unary(f.among(*FUNCTIONS)), x)
    if kind == "number":
        return g.one(
            Binary(f.among("mul", "add", "div", "max", "min", "pow", "sub")), x, f.number(f.among(*SPECIAL, 1.0, 2.0, -1.0, 3.0), dtype)
        )
    if kind == "binary" or not whole:
        shape = [dim if f.chance(0.6) else ONE for dim in x.shape]
        other = f.operand(dtype, shape[f.whole(0, rank) :], specials, FAR)
        operands = (x, other) if f.chance(0.6) else (other, x)
        return g.one(Binary(f.among("add", "sub", "mul", "div", "min", "max", "pow", "atan2")), *operands)
    if kind == "select":
        condition = g.one(Binary(f.among("less", "greater_equal", "equal", "not_equal")), x, f.number(f.among(*SPECIAL, 1.0), dtype))
        return g.one(Select(), condition, *f.among((x, f.number(f.among(*SPECIAL), dtype)), (f.number(f.among(*SPECIAL), dtype), x)))
    if kind in ("extreme", "sum"):
        axes = tuple(a for a in range(rank) if f.chance(0.5)) or (axis,)
        return g.one(Reduce(f.among("max", "min") if kind == "extreme" else f.among("sum", "sum", "prod"), axes, f.chance(0.7)), x)
    if kind == "scan":
        return g.one(CumulativeScan(f.among("sum", "max", "min", "prod"), axis, f.chance(0.3), f.chance(0.5)), x)
    if kind == "softmax":
        return g.one(Softmax(axis), x)
    if kind == "window":
        window = tuple(min(f.among(1, 2, 3), int(dim.value)) for dim in x.shape)
        before, after = (tuple(const(f.whole(0, n - 1)) for n in window) for _ in range(2))
        ones = (1,) * rank
        return g.one(WindowReduce(f.among("max", "min", "sum"), window, tuple(f.among(1, 2) for _ in window), ones, before, after), x)
    if kind == "pad":
        low, high = (tuple(const(f.among(0, 0, 1, 2)) for _ in x.shape) for _ in range(2))
        return g.one(Pad(low, high, "constant"), x, f.number(f.among(*SPECIAL), dtype))
    if f.chance(0.5):
        return g.one(Transpose(tuple(int(a) for a in f.rng.permutation(rank))), x)
    if f.chance(0.5):
        return g.one(Concat(axis), x, f.operand(dtype, (*x.shape[:axis], const(2), *x.shape[axis + 1 :]), specials, FAR))
    starts = tuple(const(f.whole(0, int(dim.value) - 1)) for dim in x.shape)
    parts = tuple(const(max(int(dim.value) - int(start.value), 1)) for dim, start in zip(x.shape, starts, strict=True))
    return g.one(Slice(tuple(s if f.chance(0.5) else ZERO for s in starts), parts, (1,) * rank), x)
