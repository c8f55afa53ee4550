"""Between which numbers the elements of a value lie, by interval arithmetic over elementwise operators (Moore, Interval Analysis, 1966)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, BroadcastTo, Cast, Reshape, Unary
from tilewright.ir import dtypes
from tilewright.transform.match import array_of

DEPTH = 16  # operators that are followed
SLACK = 2.0**-20  # of a result in float32, which is rounded
TINY = 2.0**-126  # a result below may become 0
FINITE = 1e38  # beyond, results in float32 may be infinite
WHOLE = ("round", "floor", "ceil", "trunc")


class Interval(NamedTuple):
    """Both ends belong to it. No element is NaN."""

    low: float
    high: float


def interval_of(value: Value) -> Interval | None:
    """The interval of a value of float32 or of integers of at most 32 bits, which float64 holds; None where nothing is known, or an element
    may be NaN or infinite."""
    return _interval(value, DEPTH, {})


def _interval(value: Value, depth: int, known: dict[Value, Interval | None]) -> Interval | None:
    """known: what was found already, since operands are shared."""
    if value not in known:
        known[value] = _bounded(value, _computed(value, depth, known) if depth else None)
    return known[value]


def _bounded(value: Value, found: Interval | None) -> Interval | None:
    """What the dtype makes of an interval of exact numbers."""
    dtype = value.type.dtype
    if not ((dtype.is_integer and dtype.bits <= 32) or dtype is dtypes.float32):
        return None
    if dtype.is_integer:
        whole = Interval(float(dtype.lowest), float(dtype.highest))
        return found if found is not None and whole.low <= found.low and found.high <= whole.high else whole  # others wrap
    return found if found is not None and found.low >= -FINITE and found.high <= FINITE else None


def _computed(value: Value, depth: int, known: dict[Value, Interval | None]) -> Interval | None:
    """As if numbers were exact, but for the rounding of floats."""
    array, op = array_of(value), value.op
    if array is not None:
        if array.size == 0 or not bool(np.isfinite(array).all()):
            return None
        return Interval(float(array.min()), float(array.max()))
    if isinstance(op, (BroadcastTo, Reshape)):
        return _interval(value.node.inputs[0], depth - 1, known)
    if not isinstance(op, (Binary, Unary, Cast)):
        return None
    found = [_interval(x, depth - 1, known) for x in value.node.inputs]
    parts = [part for part in found if part is not None]
    if len(parts) != len(found):
        return None
    if isinstance(op, Binary):
        return _combined(op.fn, parts[0], parts[1], value.type.dtype.is_float)
    (x,) = parts
    if isinstance(op, Unary):
        return Interval(math.floor(x.low), math.ceil(x.high)) if op.fn in WHOLE else None
    if value.type.dtype.is_integer and value.node.inputs[0].type.dtype.is_float:
        return Interval(math.trunc(x.low), math.trunc(x.high))
    return _rounded(x) if value.type.dtype.is_float else x


def _combined(fn: str, a: Interval, b: Interval, rounds: bool) -> Interval | None:
    match fn:
        case "add":
            ends = [a.low + b.low, a.high + b.high]
        case "sub":
            ends = [a.low - b.high, a.high - b.low]
        case "mul":
            ends = [x * y for x in a for y in b]
        case "min" | "max":
            choose = min if fn == "min" else max
            return Interval(choose(a.low, b.low), choose(a.high, b.high))
        case _:
            return None
    found = Interval(min(ends), max(ends))
    return _rounded(found) if rounds else found


def _rounded(x: Interval) -> Interval:
    return Interval(x.low - SLACK * abs(x.low) - TINY, x.high + SLACK * abs(x.high) + TINY)
