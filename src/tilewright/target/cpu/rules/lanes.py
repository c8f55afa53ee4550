"""Reductions with one result per vector lane: pooling, depthwise convolutions, sums over axes that memory does not run along.

A result stays in a register over all steps of its reduction; elementwise consumers follow on it. Where the lanes are the whole last axis
(blocked channels), neighbouring points of the axis before it, the *columns*, are computed side by side: they share what does not move with
them (weights), and overlapping windows share their inputs, which are loaded once for all taps of a row. The taps along the columns are
unrolled; a loop over other taps stays a loop where padding shortens it at the border, so that taps on padding cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.affine import affine_in
from tilewright.kernel.nodes import Block, BlockIter
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.structure import (
    block_of,
    extent_value,
    is_injective,
    is_reduction,
    reductions,
    spatial,
    stride,
    value_loads,
    writes_output,
)

SHORT = 8  # reduction loops up to this length are unrolled
MOST_COLUMNS = 14
TILE = 6.0  # cycles that a tile costs apart from its arithmetic: addresses, the start of the sums, the branch


@dataclass(frozen=True, slots=True)
class Slide:
    """How the taps of reduction iter `tap` move over the input: by `dilation` for each, and with the points of spatial iter `point` by
    `stride`."""

    tap: BlockIter
    point: BlockIter
    stride: int
    dilation: int


def slides(block: Block) -> tuple[Slide, ...]:
    """The axes along which the block reduces over windows, in the order of its reduction iters."""
    found: dict[BlockIter, Slide] = {}
    for load in value_loads(block):
        for index in load.args:
            for tap in reductions(block):
                for point in spatial(block):
                    form = affine_in(index, (point.var, tap.var))
                    if form is None or not all(c.is_const and c.value for c in form[0].values()):
                        continue
                    found[tap] = Slide(tap, point, abs(int(form[0][point.var].value)), abs(int(form[0][tap.var].value)))
    return tuple(found[tap] for tap in reductions(block) if tap in found)


def schedule_windows(s: Schedule, machine: Machine, constants: frozenset[str], space: Space) -> Schedule | None:
    """A kernel that reduces over windows, and what is elementwise before and after; None for any other."""
    blocks = {name: block_of(s, name) for name in s.blocks()}
    windows = [name for name, block in blocks.items() if is_reduction(block) and slides(block)]
    if len(windows) != 1 or any(not is_injective(block) for name, block in blocks.items() if name not in windows):
        return None
    return reduce_lanes(s, windows[0], machine, True, constants, space)


def reduce_lanes(
    s: Schedule, name: str, machine: Machine, parallel: bool, constants: frozenset[str] = frozenset(), space: Space | None = None
) -> Schedule:
    """The nest of one reduction block in lanes, and its elementwise consumer on the results; see the module's docstring."""
    space = space if space is not None else Space()
    block = block_of(s, name)
    loops = s.loops_of(name)[-len(block.iters) :]
    count = len(spatial(block))
    outer, vector, inner = list(loops[: count - 1]), loops[count - 1], list(loops[count:])
    extent = s.nest.loop(vector).stmt.extent
    lanes = _lanes(s, name, machine)
    width = min(lanes, int(extent.value)) if extent.is_const else lanes
    if writes_output(s, name):
        s, (epilogue, *_) = s.cache_write(name, "local")
    else:
        consumers = s.consumers(name)
        epilogue = consumers[0] if len(consumers) == 1 else ""
        if epilogue:
            s = s.set_scope(s.nest.outputs(name)[0].name, "local")
    for load in value_loads(block):
        if load.attr.name in constants and stride(load, spatial(block)[-1].var) not in (0, 1):
            s = pack_operand(s, name, load, load.attr.name, spatial(block)[-1], width)
    columns = _columns(block, machine, width, space)
    part = None
    if columns > 1:
        s, (chunk, part) = s.split(outer.pop(), columns)
        s = s.reorder(chunk, *inner, part, vector)
        outer, lane = [*outer, chunk], vector
    else:
        s, (chunk, lane) = s.split(vector, width)
        s = s.reorder(chunk, *inner, lane)
    if epilogue:
        try:
            s, made = s.reverse_compute_at(epilogue, chunk)
            s = _vectorised_tail(s, made[-1], width)
            if part is not None:
                for loop in made[:-1]:
                    size = s.nest.loop(loop).stmt.extent
                    s = s.unroll(loop) if size.is_const and size.value <= columns else s
        except ScheduleError:
            s = s.set_scope(s.nest.outputs(name)[0].name, "global")
    if part is not None:
        s = s.unroll(part)
    s = s.vectorize(lane)
    if inner:
        s, _ = s.decompose_reduction(name, inner[0])
    for loop in _unrolled(s, block, inner, part is not None):
        s = s.unroll(loop)
    return parallelise(s, (outer[:-1] or outer) if part is not None else outer or [chunk]) if parallel else s


def _lanes(s: Schedule, name: str, machine: Machine) -> int:
    """Lanes of the widest element that the block computes with."""
    bits = [load.dtype.bits for load in value_loads(block_of(s, name))]
    return machine.lanes(min(max(8, *bits, s.nest.outputs(name)[0].dtype.bits), 64) if bits else 32)


def _unrolled(s: Schedule, block: Block, inner: list[str], tiled: bool) -> list[str]:
    """The reduction loops to unroll: short ones. In a tile of columns only those along the columns, and the outer ones where no padding
    shortens them."""
    short = []
    for loop, it in zip(inner, reductions(block), strict=True):
        size = s.nest.loop(loop).stmt.extent
        if size.is_const and size.value <= SHORT:
            short.append((loop, it))
    if not tiled:
        return [loop for loop, _ in short]
    column = spatial(block)[-2]
    along = {slide.tap for slide in slides(block) if slide.point is column}
    return [loop for loop, it in short if it in along or extent_value(it.extent) == 1 or not along]


def _columns(block: Block, machine: Machine, width: int, space: Space) -> int:
    """How many points of the axis before the last one to compute at once; 1 where the last axis is not one vector."""
    axes = spatial(block)
    if len(axes) < 2 or not axes[-1].extent.is_const or int(axes[-1].extent.value) != width or width < 2:
        return 1
    extent = extent_value(axes[-2].extent)
    if extent < 2:
        return 1
    along = [slide for slide in slides(block) if slide.point is axes[-2]]
    taps = extent_value(along[0].tap.extent) if along else 1
    rows = 1
    for it in reductions(block):
        rows *= max(extent_value(it.extent), 1)
    rows //= max(taps, 1)

    def inputs(columns: int) -> int:
        """Vectors that a row of taps reads for so many columns."""
        if not along:
            return columns
        slide = along[0]
        step = min(slide.stride, slide.dilation * taps)
        return min((columns - 1) * step + (taps - 1) * slide.dilation + 1, columns * taps)

    def cycles(columns: int) -> float:
        arithmetic = max(rows * taps * columns / machine.fma_units, rows * taps * machine.fma_latency / 4)
        return TILE + max(arithmetic, rows * (inputs(columns) + taps) / 2)

    def cost(columns: int) -> float:
        whole, rest = divmod(extent, columns)
        return (whole * cycles(columns) + (cycles(rest) if rest else 0.0)) / extent

    fitting = [n for n in range(1, min(extent, MOST_COLUMNS) + 1) if n + inputs(n) + 1 <= machine.vector_registers]
    return space.choose(
        "columns", fitting or [1], cost, "cycles for each point: arithmetic or loads, whichever is more, and the tile's own"
    )


def _vectorised_tail(s: Schedule, loop: str, width: int) -> Schedule:
    """Vectorise the innermost loop of what was computed at a tile, if it still has the tile's width."""
    try:
        extent = s.nest.loop(loop).stmt.extent
        return s.vectorize(loop) if extent.is_const and 1 < extent.value <= max(width, 2) else s
    except ScheduleError:
        return s
