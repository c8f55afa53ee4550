"""Placing buffers in arenas: each storage has a live interval on the plan's clock and a size; those that are alive together must not
overlap.

Constant sizes: best fit by decreasing size (the greedy-by-size strategy of Pisarchyk and Lee, "Efficient Memory Management for Deep
Neural Net Inference", 2020, section 5.2), then again with what ended highest placed first, as long as that may help. Symbolic sizes:
storages share slots; a slot is as large as the largest of its storages, which keeps every offset an expression of the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.expr import Expr, const, maximum
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.ir.typical import TYPICAL
from tilewright.plan.steps import aligned
from tilewright.runtime.constants import ALIGNMENT

ROUNDS = 50  # attempts to place storages of constant size at most, fewer where there are many
COMPARISONS = 400_000  # of two storages in all attempts together


@dataclass(frozen=True, slots=True)
class Interval:
    """One storage to place: bytes, and the first and last tick at which it holds something needed."""

    bytes: Expr
    first: int
    last: int

    def overlaps(self, other: Interval) -> bool:
        return self.first <= other.last and other.first <= self.last


def place(intervals: Sequence[Interval]) -> tuple[list[Expr], Expr]:
    """Offsets, one for each interval, and the total bytes. Offsets are multiples of ALIGNMENT."""
    if all(interval.bytes.is_const for interval in intervals):
        offsets, total = place_static([(int(i.bytes.value), i.first, i.last) for i in intervals])
        return [const(offset) for offset in offsets], const(total)
    return place_slots(intervals)


def place_static(intervals: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets and total for (bytes, first, last) triples: largest first, then in orders that put first what ended highest."""
    order = sorted(range(len(intervals)), key=lambda i: (-intervals[i][0], intervals[i][1]))
    best = found = _place_in_order(intervals, order)
    least = most_alive(intervals)
    for _ in range(min(ROUNDS, COMPARISONS // max(len(intervals), 1) ** 2)):
        if best[1] <= least:
            break
        offsets, total = found
        highest = {i for i in order if offsets[i] + _aligned(intervals[i][0]) == total}
        order = sorted(order, key=lambda i: i not in highest)
        found = _place_in_order(intervals, order)
        best = min(best, found, key=lambda placed: placed[1])
    return best


def most_alive(intervals: Sequence[tuple[int, int, int]]) -> int:
    """Bytes alive at the worst moment: no placement needs less."""
    changes: dict[int, int] = {}
    for size, first, last in intervals:
        changes[first] = changes.get(first, 0) + _aligned(size)
        changes[last + 1] = changes.get(last + 1, 0) - _aligned(size)
    most = alive = 0
    for tick in sorted(changes):
        alive += changes[tick]
        most = max(most, alive)
    return most


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _place_in_order(intervals: Sequence[tuple[int, int, int]], order: Sequence[int]) -> tuple[list[int], int]:
    """Offsets and total: each into the smallest gap that holds it, else above all that it meets."""
    offsets = [0] * len(intervals)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last, by offset
    total = 0
    for index in order:
        size, first, last = intervals[index]
        size = _aligned(size)
        best, best_gap, cursor = -1, 0, 0
        for offset, end, other_first, other_last in placed:
            if first <= other_last and other_first <= last:
                gap = offset - cursor
                if gap >= size and (best < 0 or gap < best_gap):
                    best, best_gap = cursor, gap
                cursor = max(cursor, end)
        offset = best if best >= 0 else cursor
        offsets[index] = offset
        placed.append((offset, offset + size, first, last))
        placed.sort()
        total = max(total, offset + size)
    return offsets, total


def typical_value(e: Expr, typical: Mapping[Expr, int] | None = None) -> int:
    """The value of a size expression at typical sizes: the declared upper bound if there is one, else TYPICAL."""
    env = {v: (typical or {}).get(v) or v.attr.hi or max(TYPICAL, v.attr.lo or 0) for v in free_vars(e)}
    return evaluate_int(e, env)


def place_slots(intervals: Sequence[Interval]) -> tuple[list[Expr], Expr]:
    """Shared slots for storages of symbolic size: each storage, largest first at typical sizes, joins the first slot whose storages it
    never meets and that is not much larger than it needs."""
    sizes = [typical_value(interval.bytes) for interval in intervals]
    slots: list[list[int]] = []
    for index in sorted(range(len(intervals)), key=lambda i: (-sizes[i], intervals[i].first)):
        for slot in slots:
            if not any(intervals[index].overlaps(intervals[other]) for other in slot):
                slot.append(index)
                break
        else:
            slots.append([index])
    offsets: list[Expr] = [const(0)] * len(intervals)
    cursor: Expr = const(0)
    for slot in slots:
        needed: Expr = const(0)
        for bytes_ in dict.fromkeys(intervals[index].bytes for index in slot):
            needed = maximum(needed, bytes_)
        for index in slot:
            offsets[index] = cursor
        cursor = simplify(cursor + aligned(needed))
    return offsets, cursor
