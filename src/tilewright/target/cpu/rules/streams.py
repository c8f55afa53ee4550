"""Weights that are read once, from beginning to end: products with so few rows that one row tile uses each panel."""

from __future__ import annotations

import math

from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import ASSUMED_CLOCK_GHZ, Machine, estimated_peaks
from tilewright.target.cpu.rules.structure import extent_value

AHEAD = 8192  # bytes: two pages, and the hardware by itself looks no further than one
ALONE = 0.65  # of the bandwidth of memory that a stream reaches by itself, where its elements are converted as they are loaded


def prefetch_stream(
    s: Schedule, name: str, buffer: str, panel: tuple[str, int], step: tuple[str, int], machine: Machine, space: Space
) -> Schedule:
    """Ask for what is read two pages later, for elements that are converted as they are loaded: loads of half a line let the hardware run
    less far ahead than those of whole ones. Weights that the second cache could hold count as near: not worth asking for.
    `panel`, `step`: a loop, and the elements of `buffer` that one iteration of it reads."""
    held = s.nest.buffer(buffer)
    line, element = machine.l1d.line, held.dtype.bytes
    far = math.prod(extent_value(dim) for dim in held.shape) * element > machine.l2.size
    reading = panel[1] * element / estimated_peaks(machine).memory
    asking = panel[1] * element / line / ASSUMED_CLOCK_GHZ
    alone = reading / ALONE if far else reading
    why = "nanoseconds for each panel: reading what the hardware runs ahead of, or asking for it as well"
    if not space.choose(f"{name}.prefetch", (True, False), lambda asked: reading + asking if asked else alone, why):
        return s
    lines = max(step[1] * element // line, 1)
    return s.prefetch(step[0], buffer, AHEAD // element, [(*panel, 0), (*step, 0)], lines, line)
