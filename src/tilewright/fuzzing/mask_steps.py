"""Steps that grow a graph by attention with masks: causal ones, shifted, of windows, sums of several, over some tiles of keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.fuzzing.generator import Known
from tilewright.fuzzing.growth import MOST_ELEMENTS, Array, Growth, elements_of, never_empty
from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, Constant, Contract, Iota, Reshape, Select, Softmax, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const

F32 = dtypes.float32
LENGTHS = (1, 3, 8, 16, 17, 31, 33, 48, 63, 64, 65, 96, 100, 128, 129, 160, 193, 200, 257)
SPECS = (("", "mk,nk->mn", "mn,nd->md"), ("b", "bmk,bnk->bmn", "bmn,bnd->bmd"), ("ab", "abmk,abnk->abmn", "abmn,abnd->abmd"))
ANY, BOUNDED = (-np.inf, -np.inf, -1e4, -1e6, -1e9, float(np.finfo(np.float32).min)), (-1e4, -1e6, -2e6, -4e6)


@dataclass(frozen=True, slots=True)
class Band:
    """Key k is seen by query q where q + low < k <= q + high; None: no bound."""

    low: int | None
    high: int | None

    def of(self, queries: int, keys: int) -> Array:
        apart = np.arange(keys) - np.arange(queries)[:, None]
        seen = np.ones(apart.shape, np.bool_) if self.high is None else apart <= self.high
        return np.asarray(seen if self.low is None else seen & (apart > self.low))

    def from_positions(self, f: Growth, queries: Expr, keys: Expr) -> Value:
        g, integers = f.s.g, f.among(dtypes.int64, dtypes.int32)
        place = g.one(Reshape((queries, const(1))), g.one(Iota(queries, integers)))
        apart = g.one(Binary("sub"), g.one(Iota(keys, integers)), place)
        bounds = [("less_equal", self.high), ("greater", self.low)]
        parts = [g.one(Binary(fn), apart, f.number(bound, integers)) for fn, bound in bounds if bound is not None]
        return parts[0] if len(parts) == 1 else g.one(Binary("and"), *parts)


def length(f: Growth) -> Expr:
    return f.s.dim() if f.chance(0.3) else const(f.among(*LENGTHS))


def masked_attention(f: Growth) -> None:
    """softmax(q k' * scale, masked) v, as exporters write it. Every query sees the first key where what hides is infinite, or so low that
    rounding errors of what is hidden would decide."""
    dtype = f.among(F32, F32, F32, dtypes.float16, dtypes.bfloat16)
    letters, first, second = f.among(*SPECS)
    batch = [const(f.whole(1, 2)) for _ in letters]
    queries, keys, depth, width = length(f), length(f), const(f.among(1, 4, 8, 16, 20)), const(f.among(1, 4, 8, 17))
    if elements_of((*batch, queries, keys)) > 4 * MOST_ELEMENTS:
        return
    q, k = f.picked(dtype, (*batch, queries, depth)), f.picked(dtype, (*batch, keys, depth))
    v = f.picked(dtype, (*batch, keys, width))
    if not all(never_empty(x) and f.known(x).bound <= 8 for x in (q, k, v)):
        return
    scores = f.s.g.one(Contract(first, dtype), q, k)
    scores = f.s.g.one(Binary("mul"), scores, f.number(2.0**-4 if depth.value > 4 else 0.25, dtype))
    if f.chance(0.2):
        scores = f.s.g.one(Unary("tanh"), scores)
    first_is_seen = dtype is not F32 or f.chance(0.6)
    for _ in range(f.among(1, 1, 2) if first_is_seen else f.among(1, 2, 2)):
        scores = _masked(f, scores, queries, keys, first_is_seen)
    shares = f.s.g.one(Softmax(-1), scores)
    f.put(Contract(second, dtype), (shares, v), f.known(v).bound, False)


def _masked(f: Growth, scores: Value, queries: Expr, keys: Expr, first_is_seen: bool) -> Value:
    """Scores with one more mask, or the sum of two, in one of the forms that models have."""
    dtype, g = scores.type.dtype, f.s.g
    low = f.among(*((-np.inf, -1e4) if dtype is dtypes.float16 else ANY if first_is_seen else BOUNDED))
    seen = _seen(f, queries, keys, first_is_seen)
    form = f.among("add", "add", "add two", "select", "select not")
    if form == "select":
        return g.one(Select(), seen, scores, f.number(low, dtype))
    if form == "select not":
        return g.one(Select(), g.one(Unary("not"), seen), f.number(low, dtype), scores)
    mask = mask_numbers(f, seen, dtype, low)
    if form == "add two":
        other = mask_numbers(f, _seen(f, queries, keys, first_is_seen), dtype, f.among(low, -1e4))
        mask = g.one(Binary("add"), mask, other)
    return g.one(Binary("add"), *((scores, mask) if f.chance(0.7) else (mask, scores)))


def mask_numbers(f: Growth, seen: Value, dtype: DType, low: float) -> Value:
    """0 where something is seen, else a low number; a constant where it is known."""
    if isinstance(seen.op, Constant):
        array = np.where(seen.op.data.array, 0.0, low)
        return f.s.g.one(constant(array.astype(dtype.numpy), dtype))
    return f.s.g.one(Select(), seen, f.number(0, dtype), f.number(low, dtype))


def _seen(f: Growth, queries: Expr, keys: Expr, first_is_seen: bool) -> Value:
    """What queries see: a band, known or computed from positions, or an input; [queries, keys] or of one axis only."""
    if f.chance(0.25):
        shape = f.among((queries, keys), (const(1), keys), (keys,))
        return f.operand(dtypes.bool_, shape, seen if first_is_seen else sometimes)
    far = int(keys.value) if keys.is_const else 12
    shift = f.among(0, 0, 0, 1, 2, -1, far - 1, f.whole(-3, far))
    band = Band(None, abs(shift)) if first_is_seen else Band(f.among(None, shift - f.whole(1, 20)), shift)
    known = f.s.static((queries, keys))
    if known is not None and f.chance(0.6):
        return f.s.constant(band.of(*known), dtypes.bool_)
    made = band.from_positions(f, queries, keys)
    f.s.pool[made] = Known(1.0, True)
    return made


def seen(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A mask that keeps about half, and whatever comes first."""
    kept = rng.random(shape) < 0.5
    return np.asarray(kept | (np.arange(shape[-1]) == 0) if shape else True)


def sometimes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A mask that hides what comes first, or about half."""
    if rng.random() < 0.5:
        return np.asarray(rng.random(shape) < 0.5)
    return np.broadcast_to(np.arange(shape[-1]) >= rng.integers(0, shape[-1] + 1), shape)
