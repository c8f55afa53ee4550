"""Sorting by digits in opaque kernel blocks: stable, O(n) for keys of a fixed width, for run-time lengths.

Keys are unsigned integers in the order of the values. One pass counts all digits of all keys; then, from the last digit on, elements move
to where those with lower digits, and those before them with the same one, leave off. Digits that all keys share are passed over.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, binary, bitcast, cast, const, equal, less, select
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.builder import StmtBuilder, Tensor

DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS
FEW = 64  # elements up to which a heap is faster: it has no counters to clear and to add up
_ZEROED = 16  # counters that are cleared at once

_UNSIGNED = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}


def key_dtype(dtype: DType) -> DType:
    """Of the keys of values of an arithmetic dtype."""
    return _UNSIGNED[dtype.bits]


def sort_key(value: Expr, descending: bool) -> Expr:
    """An unsigned integer that is less where the value comes first, and equal where values are. Zeros of either sign are equal, and so
    are NaNs, which are greater than all numbers."""
    dtype = value.dtype
    wanted = key_dtype(dtype)
    highest = const(1 << (wanted.bits - 1), wanted)
    if dtype.is_float:
        bits = bitcast(wanted, select(equal(value, const(0, dtype)), const(0, dtype), value))
        ordered = select(less(bits, highest), binary(Op.XOR, bits, highest), _inverted(bits))
        ordered = select(equal(value, value), ordered, const((1 << wanted.bits) - 1, wanted))
    elif dtype.is_signed:
        ordered = binary(Op.XOR, bitcast(wanted, value), highest)
    else:
        ordered = value
    return _inverted(ordered) if descending else ordered


def _inverted(bits: Expr) -> Expr:
    return binary(Op.XOR, bits, const((1 << bits.dtype.bits) - 1, bits.dtype))


def _digit(key: Expr, number: int) -> Expr:
    shifted = binary(Op.SHR, key, const(number * DIGIT_BITS, key.dtype)) if number else key
    return cast(dtypes.int64, cast(dtypes.uint8, shifted))


def radix_sort(
    s: StmtBuilder,
    count: Expr,
    key_of: Callable[[Expr], Expr],
    keys: Callable[[Expr, Expr], tuple[Tensor, tuple[Expr, ...]]],
    order: Callable[[Expr, Expr], tuple[Tensor, tuple[Expr, ...]]],
) -> Expr:
    """Sort `count` elements, whose keys `key_of(position)` gives. `keys` and `order` (int64) say where half 0 or 1 of two arrays keeps its
    element i. Gives the half of `order` that in the end holds the elements' positions in their sorted order."""
    width = key_of(const(0)).dtype
    passes = width.bits // DIGIT_BITS
    counts = s.local("counts", dtypes.int64, (passes, DIGITS))
    for number in range(passes):
        with s.loop("c", DIGITS // _ZEROED) as block, s.loop("c", _ZEROED, "vectorized") as lane:
            s.store(counts, (const(number), block * _ZEROED + lane), 0)

    def put(where: tuple[Tensor, tuple[Expr, ...]], value: Expr) -> None:
        s.store(where[0], where[1], value)

    def get(where: tuple[Tensor, tuple[Expr, ...]]) -> Expr:
        return where[0][where[1]]

    with s.loop("j", count) as j:
        key = s.let("key", key_of(j))
        put(keys(const(0), j), key)
        put(order(const(0), j), j)
        for number in range(passes):
            digit = s.let("digit", _digit(key, number))
            s.store(counts, (const(number), digit), counts[number, digit] + 1)
    half = s.local("half", dtypes.int64, (), 0)
    total = s.local("total", dtypes.int64, (), 0)
    with s.when(count > 0):
        for number in range(passes):
            first = s.let("first", _digit(get(keys(half[()], const(0))), number))
            with s.when(counts[number, first] < count):
                s.store(total, (), 0)
                with s.loop("d", DIGITS) as d:
                    found = s.let("found", counts[number, d])
                    s.store(counts, (const(number), d), total[()])
                    s.store(total, (), total[()] + found)
                here = s.let("here", half[()])
                there = s.let("there", 1 - here)
                with s.loop("j", count) as j:
                    key = s.let("key", get(keys(here, j)))
                    digit = s.let("digit", _digit(key, number))
                    place = s.let("place", counts[number, digit])
                    put(keys(there, place), key)
                    put(order(there, place), get(order(here, j)))
                    s.store(counts, (const(number), digit), place + 1)
                s.store(half, (), there)
    return s.let("sorted", half[()])
