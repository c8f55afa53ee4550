"""Schedules: how a kernel is computed, changed step by step without changing what it computes.

    s = Schedule.of(kernel)
    s, (i_0, i_1) = s.split("i", 8)
    s = s.parallel(i_0)

A schedule is an immutable value: every primitive gives a new one, and keeping an old one forks. Blocks, loops and buffers are addressed by
name; names stay what they are until a primitive removes the thing. Primitives that make loops or blocks also give their names.
Each primitive checks that it applies and that results stay the same, or raises ScheduleError with the loop nest and the reason. What
each one does is documented at the function of the same name in this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.kernel.nodes import Kernel, Scope
from tilewright.kernel.schedule import ahead, caching, dot, factor, flatten, layout, loop, matrix, online, padding, placement, reduction
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.layout import PackedLayout
from tilewright.kernel.schedule.legality import check_locals
from tilewright.kernel.schedule.loop_tree import loop_tree
from tilewright.kernel.schedule.nest import Nest, Refused
from tilewright.kernel.schedule.trace import Instruction, Trace, freeze
from tilewright.support.errors import ScheduleError

PRIMITIVES: Mapping[str, Callable[..., Change]] = {
    "split": loop.split,
    "fuse": loop.fuse,
    "reorder": loop.reorder,
    "parallel": loop.parallel,
    "vectorize": loop.vectorize,
    "unroll": loop.unroll,
    "compute_at": placement.compute_at,
    "reverse_compute_at": placement.reverse_compute_at,
    "inline": placement.inline,
    "reverse_inline": placement.reverse_inline,
    "cache_read": caching.cache_read,
    "cache_write": caching.cache_write,
    "set_scope": caching.set_scope,
    "pack": layout.pack,
    "flatten": flatten.flatten,
    "decompose_reduction": reduction.decompose_reduction,
    "rfactor": reduction.rfactor,
    "factor_out": factor.factor_out,
    "online": online.online,
    "clamp_reads": padding.clamp_reads,
    "pad": padding.pad,
    "dot": dot.dot,
    "matrix": matrix.matrix,
    "prefetch": ahead.prefetch,
}

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A kernel in some state of scheduling, the trace that led to it, and how inputs must be packed. Make one with `Schedule.of`."""

    kernel: Kernel
    trace: Trace = field(default_factory=Trace)
    layouts: tuple[PackedLayout, ...] = ()
    nest: Nest = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nest", Nest(self.kernel))

    @staticmethod
    def of(kernel: Kernel) -> Schedule:
        """The schedule that does nothing yet. Raises ScheduleError when two loops or two blocks share a name."""
        try:
            return Schedule(kernel)
        except Refused as refusal:
            raise ScheduleError(f"kernel '{kernel.name}' cannot be scheduled", why=refusal.why, hint=refusal.hint) from None

    def apply(self, name: str, args: Sequence[str], attrs: Mapping[str, Any]) -> tuple[Schedule, Names]:
        """Apply the primitive `name`: `args` are names of blocks, loops and buffers, `attrs` the decisions. What all methods call."""
        primitive = PRIMITIVES.get(name)
        if primitive is None:
            raise ScheduleError(f"there is no primitive '{name}'", hint=f"the primitives are {', '.join(PRIMITIVES)}")
        try:
            change = primitive(self.nest.for_one_change(), *args, **attrs)
            step = Instruction(name, tuple(args), freeze(attrs), change.results)
            layouts = self.layouts if change.layout is None else (*self.layouts, change.layout)
            result = Schedule(change.kernel, self.trace.then(step), layouts)
            check_locals(result.nest)
            return result, change.results
        except Refused as refusal:
            shown = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in attrs.items())])
            kernel = self.kernel
            raise ScheduleError(
                f"cannot {name}({shown})", why=refusal.why, hint=refusal.hint, loop_nest=lambda: loop_tree(kernel)
            ) from None

    def __str__(self) -> str:
        return loop_tree(self.kernel)

    def split(self, loop: str, factors: int | Sequence[int | None]) -> tuple[Schedule, Names]:
        """Split a loop into nested ones: `loop.split`."""
        return self.apply("split", (loop,), {"factors": factors})

    def fuse(self, *loops: str) -> tuple[Schedule, str]:
        """Make one loop of nested ones: `loop.fuse`."""
        s, (name,) = self.apply("fuse", loops, {})
        return s, name

    def reorder(self, *loops: str) -> Schedule:
        """Put nested loops in this order: `loop.reorder`."""
        return self.apply("reorder", loops, {})[0]

    def parallel(self, loop: str) -> Schedule:
        """Run a loop on several threads: `loop.parallel`."""
        return self.apply("parallel", (loop,), {})[0]

    def vectorize(self, loop: str) -> Schedule:
        """Run a loop as vector lanes: `loop.vectorize`."""
        return self.apply("vectorize", (loop,), {})[0]

    def unroll(self, loop: str) -> Schedule:
        """Repeat a loop's body: `loop.unroll`."""
        return self.apply("unroll", (loop,), {})[0]

    def compute_at(self, block: str, loop: str) -> tuple[Schedule, Names]:
        """Compute a producer under a loop of its consumers: `placement.compute_at`."""
        return self.apply("compute_at", (block, loop), {})

    def reverse_compute_at(self, block: str, loop: str) -> tuple[Schedule, Names]:
        """Compute a consumer under a loop of its producer: `placement.reverse_compute_at`."""
        return self.apply("reverse_compute_at", (block, loop), {})

    def inline(self, block: str) -> Schedule:
        """Put a block's expression into its consumers: `placement.inline`."""
        return self.apply("inline", (block,), {})[0]

    def reverse_inline(self, block: str) -> Schedule:
        """Put an elementwise consumer into its producer: `placement.reverse_inline`."""
        return self.apply("reverse_inline", (block,), {})[0]

    def cache_read(self, block: str, buffer: str, scope: Scope = "local") -> tuple[Schedule, Names]:
        """Let a block read a copy of an input: `caching.cache_read`."""
        return self.apply("cache_read", (block, buffer), {"scope": scope})

    def cache_write(self, block: str, scope: Scope = "local") -> tuple[Schedule, Names]:
        """Let a block write a private buffer first: `caching.cache_write`."""
        return self.apply("cache_write", (block,), {"scope": scope})

    def set_scope(self, buffer: str, scope: Scope) -> Schedule:
        """Say where scratch lives: `caching.set_scope`."""
        return self.apply("set_scope", (buffer,), {"scope": scope})[0]

    def pack(self, buffer: str, tiles: Sequence[Sequence[int]], order: Sequence[int]) -> Schedule:
        """Store a buffer in tiles: `layout.pack`."""
        return self.apply("pack", (buffer,), {"tiles": tiles, "order": order})[0]

    def flatten(self, block: str, iter: str | int) -> tuple[Schedule, str]:  # noqa: A002 (the term of the kernel form)
        """Make one axis of two neighbouring ones, in all blocks and buffers that have them: `flatten.flatten`."""
        s, (name,) = self.apply("flatten", (block,), {"iter": iter})
        return s, name

    def decompose_reduction(self, block: str, loop: str) -> tuple[Schedule, Names]:
        """Make a block of a reduction's init, before a loop: `reduction.decompose_reduction`."""
        return self.apply("decompose_reduction", (block, loop), {})

    def rfactor(self, loop: str, axis: int = 0) -> tuple[Schedule, Names]:
        """Give each iteration of a reduction loop its own partial result: `reduction.rfactor`."""
        return self.apply("rfactor", (loop,), {"axis": axis})

    def factor_out(self, block: str) -> Schedule:
        """Multiply a sum by what its terms have in common where it is read: `factor.factor_out`."""
        return self.apply("factor_out", (block,), {})[0]

    def online(self, block: str, loop: str, tile: int) -> tuple[Schedule, Names]:
        """Compute a softmax and what it weighs for one tile of its axis after the other: `online.online`."""
        return self.apply("online", (block, loop), {"tile": tile})

    def clamp_reads(self, block: str, iter: str | int, masked: bool = False) -> Schedule:  # noqa: A002 (the term of the kernel form)
        """Compute past the ragged end of a scratch buffer instead of guarding it: `padding.clamp_reads`."""
        return self.apply("clamp_reads", (block,), {"iter": iter, "masked": masked} if masked else {"iter": iter})[0]

    def pad(self, block: str, iter: str | int, multiple: int) -> Schedule:  # noqa: A002
        """Round a block's extent up to a multiple: `padding.pad`."""
        return self.apply("pad", (block,), {"iter": iter, "multiple": multiple})[0]

    def dot(self, block: str, iter: str | int, factors: int) -> Schedule:  # noqa: A002
        """Take several points of a reduction iter in one instruction: `dot.dot`."""
        return self.apply("dot", (block,), {"iter": iter, "factors": factors})[0]

    def matrix(self, loop: str) -> Schedule:
        """Let tile instructions carry out a loop over rows: `matrix.matrix`."""
        return self.apply("matrix", (loop,), {})[0]

    def prefetch(
        self,
        loop: str,
        buffer: str,
        ahead: int,
        steps: Sequence[tuple[str, int, int]],
        lines: int = 1,
        line: int = 64,
        shared: int = 0,
        sharing: Sequence[str] = (),
        beyond: int = 0,
        only: tuple[str, int] | None = None,
    ) -> Schedule:
        """Ask for memory before it is read: `ahead.prefetch`."""
        even: dict[str, Any] = {"shared": shared, "sharing": tuple(sharing)} if sharing else {}
        even |= {"beyond": beyond} if beyond else {}
        even |= {"only": only} if only is not None else {}
        return self.apply("prefetch", (loop, buffer), {"ahead": ahead, "steps": steps, "lines": lines, "line": line, **even})[0]

    def loops_of(self, block: str) -> Names:
        """Names of the loops around a block, outermost first."""
        try:
            return tuple(lp.var.name for lp in self.nest.block(block).around)
        except Refused as refusal:
            raise ScheduleError(refusal.why, hint=refusal.hint) from None

    def blocks(self) -> Names:
        """Names of the blocks in program order."""
        return tuple(self.nest.blocks)

    def consumers(self, block: str) -> Names:
        """Names of the blocks that read what a block writes."""
        return tuple(self.nest.consumers(block))

    def producers(self, block: str) -> Names:
        """Names of the blocks that write what a block reads."""
        return tuple(dict.fromkeys(w for buffer in self.nest.inputs(block) for w in self.nest.writers(buffer)))


def replay(trace: Trace, kernel: Kernel, decisions: Mapping[int, Mapping[str, Any]] | None = None) -> Schedule:
    """Apply a trace to a kernel. `decisions` replaces attributes of instructions, by position. The same trace on the same kernel gives
    the identical kernel; names that instructions made are followed when they come out different. Raises ScheduleError as the
    primitives do, and when an instruction makes another number of things than recorded."""
    s = Schedule.of(kernel)
    renamed: dict[str, str] = {}
    for position, step in enumerate(trace.instructions):
        attrs = {**dict(step.attrs), **(decisions or {}).get(position, {})}
        s, results = s.apply(step.name, [renamed.get(arg, arg) for arg in step.args], attrs)
        if len(results) != len(step.results):
            raise ScheduleError(
                f"instruction {position}, {step.name}, made {len(results)} loops and blocks, not {len(step.results)}",
                where=f"a trace of {len(trace.instructions)} instructions",
                why="it was recorded on another kernel, or with a decision of another kind",
            )
        renamed.update(zip(step.results, results, strict=True))
    return s
