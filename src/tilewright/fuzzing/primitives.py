"""Random schedule primitives: one step that applies, or nothing where it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from tilewright.ir.expr import Expr, const
from tilewright.ir.traverse import evaluate_int, substitute
from tilewright.kernel.nodes import For
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError

T = TypeVar("T")

PRIMITIVES = (
    "split", "split", "split3", "fuse", "reorder", "parallel", "vectorize", "unroll", "compute_at", "compute_at", "reverse_compute_at",
    "reverse_compute_at", "inline", "reverse_inline", "cache_read", "cache_write", "pack", "decompose_reduction", "rfactor", "clamp_reads",
    "factor_out", "pad", "set_scope", "prefetch",
)  # fmt: skip


class Chooser(Protocol):
    """Where random choices come from: a generator of numbers, or a search."""

    def pick(self, choices: Sequence[T]) -> T:
        """One of them."""

    def order(self, items: Sequence[T]) -> Sequence[T]:
        """Them in some order."""


class Drawn:
    """Choices of NumPy's generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def order(self, items: Sequence[T]) -> Sequence[T]:
        return [items[int(i)] for i in self.rng.permutation(len(items))]


def step(s: Schedule, chosen: Chooser, packable: Sequence[str] | None = None) -> tuple[Schedule, str]:
    """The schedule after one random primitive, and its name; the schedule as it was when the primitive refuses. packable: names of the
    buffers whose layout may change; all inputs and scratch buffers where it is None."""
    name = chosen.pick(PRIMITIVES)
    loops, blocks = tuple(s.nest.loops), s.blocks()
    if not loops:
        return s, name
    block, loop = chosen.pick(blocks), chosen.pick(loops)
    try:
        return applied(s, name, block, loop, chosen, packable), name
    except ScheduleError:
        return s, f"{name} refused"


def applied(s: Schedule, name: str, block: str, loop: str, chosen: Chooser, packable: Sequence[str] | None) -> Schedule:
    """The schedule after a primitive on a block or loop, with random arguments. Raises ScheduleError where it refuses."""
    kernel = s.kernel
    factor = chosen.pick((1, 2, 3, 4))
    match name:
        case "split":
            return s.split(loop, factor)[0]
        case "split3":
            return s.split(loop, (None, 2, factor))[0]
        case "fuse" if factor == 4:  # of what is chosen already: seeds stay what they were
            own = s.loops_of(block)
            return s.flatten(block, own.index(loop) if loop in own else 0)[0]
        case "fuse":
            below = s.nest.loop(loop).stmt.body
            return s.fuse(loop, below.var.name)[0] if isinstance(below, For) else s
        case "reorder":
            around = list(s.loops_of(block))
            return s.reorder(*chosen.order(around)) if len(around) > 1 else s
        case "parallel":
            return s.parallel(loop)
        case "vectorize":
            return s.vectorize(loop)
        case "unroll":
            return s.unroll(loop)
        case "compute_at":
            return s.compute_at(block, loop)[0]
        case "reverse_compute_at":
            return s.reverse_compute_at(block, loop)[0]
        case "inline":
            return s.inline(block)
        case "reverse_inline":
            return s.reverse_inline(block)
        case "prefetch":
            if not kernel.inputs:
                return s
            asked = chosen.pick(tuple(b.name for b in kernel.inputs))
            steps = [(name, factor, chosen.pick((0, 1, 2))) for name in s.nest.loops if name in s.loops_of(block)]
            sharing = [name for name, _, _ in steps if chosen.pick((False, True))]
            ahead, lines, shared = chosen.pick(range(-4, 5)), chosen.pick((1, 2)), chosen.pick(range(41))
            only = (steps[0][0], 1 + shared % 3) if steps and shared % 2 else None  # of what is chosen already: seeds stay what they were
            return s.prefetch(loop, asked, ahead, steps, lines, shared=shared, sharing=sharing, only=only)
        case "cache_read":
            inputs = s.nest.inputs(block)
            return s.cache_read(block, chosen.pick(inputs).name)[0] if inputs else s
        case "cache_write":
            return s.cache_write(block)[0]
        case "pack":
            changed = {layout.buffer for layout in s.layouts}
            buffers = [b for b in (*kernel.inputs, *kernel.scratch) if b.name not in changed]
            buffers = [b for b in buffers if packable is None or b.name in packable or b in kernel.scratch]
            if not buffers:
                return s
            buffer = chosen.pick(buffers)
            options: tuple[tuple[int, ...], ...] = ((), (2,), (4,), (2, 3))
            tiles = [chosen.pick(options) for _ in buffer.shape]
            return s.pack(buffer.name, tiles, chosen.order(range(sum(1 + len(t) for t in tiles))))
        case "decompose_reduction":
            return s.decompose_reduction(block, loop)[0]
        case "rfactor":
            return s.rfactor(loop, chosen.pick((0, 1)))[0]
        case "factor_out":
            return s.factor_out(block)
        case "clamp_reads":
            return s.clamp_reads(block, chosen.pick((0, 1)))
        case "pad":
            return s.pad(block, chosen.pick((0, 1, 2)), factor)
        case _:
            return s.set_scope(chosen.pick(kernel.scratch).name, "local") if kernel.scratch else s


def cost(s: Schedule, sizes: Mapping[Expr, int]) -> int:
    """How many points the blocks run, recomputation included."""
    total = 0
    for placed in s.nest.blocks.values():
        points = 1
        for loop in placed.around:
            # Extents that depend on loops around count at these loops' start.
            extent = substitute(loop.extent, {other.var: const(0) for other in placed.around})
            points *= evaluate_int(extent, sizes)
        total += points
    return total
