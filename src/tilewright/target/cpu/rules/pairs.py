"""Two or three convolutions in one kernel: a strip of rows of the first, then all that follows from it, while the strip is in the cache.

    dense, then depthwise:                                   depthwise, then pointwise:
      parallel for a few blocks of channels and a strip:       parallel for a strip of rows:
        the rows of the first that the strip needs,              these rows of the first, all channels,
          in register tiles                                        results in lanes
        the strip of the second, results in lanes                the strip of the second, in register tiles

    dense, depthwise, pointwise:
      parallel for a strip of rows:
        the rows of the first that the strip needs, all channels, in register tiles
        for each row of the strip:
          this row of the second, all channels, results in lanes
          this row of the third, in register tiles

Inside, each convolution is tiled as it is alone (`contraction`, `lanes`): a tile is computed at the loop over tiles of the block that
finishes it. Neighbouring strips both compute the rows that both need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.scalar_ops import POLYNOMIALS, Op
from tilewright.ir.traverse import walk
from tilewright.ir.typical import typical_dim
from tilewright.kernel.nodes import Block, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.lanes import LONG, in_lanes, points_side_by_side, slides
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.pairs_cost import dense_tiles, strip_cost, strips
from tilewright.target.cpu.rules.registers import ProductShape, block_cost
from tilewright.target.cpu.rules.structure import (
    as_product,
    block_of,
    is_injective,
    is_reduction,
    reductions,
    spatial,
    uses,
    value_loads,
    writes_output,
)
from tilewright.transform.pair_convolutions import EXPENSIVE_OPERATIONS, Chain, Stage

N, BLOCK, ROW, COLUMN, LANE = range(5)  # of the spatial iters of a blocked convolution


@dataclass(frozen=True, slots=True)
class Part:
    """A convolution's block, and the block that finishes its results."""

    core: str
    finish: str


def schedule_pair(s: Schedule, constants: frozenset[str], machine: Machine, space: Space) -> Schedule | None:
    """The kernel of a chain of convolutions in blocked channels, every other one depthwise; None when it is none."""
    cores = [name for name in s.blocks() if is_reduction(block_of(s, name))]
    if len(cores) not in (2, 3) or any(len(spatial(block_of(s, name))) != 5 for name in cores):
        return None
    depthwise = [in_lanes(block_of(s, name)) for name in cores]
    dense = [name for name, lanes in zip(cores, depthwise, strict=True) if not lanes]
    if depthwise not in ([False, True], [True, False], [False, True, False]):
        return None
    if any(as_product(block_of(s, name)) is None for name in dense):
        return None
    parts = []
    for core in cores:
        s, part = _part(s, core)
        parts.append(part)
    chain = Chain(tuple(_stage(s, part) for part in parts), machine.lanes(32))
    tiles = {core: _choose_tile(s, core, machine, space) for core in dense}
    vectors = tiles[cores[0]][1] if cores[0] in tiles else 1
    why = "nanoseconds: rows computed twice, what of a strip is still in which cache, tasks for each core"
    options = strips(chain.stages[-1].space[0])
    height = space.choose(f"{cores[-1]}.strip", options, lambda rows: strip_cost(chain, vectors, rows, machine), why)
    for core in cores:
        s = _packed(s, core, constants)
    n, block, row, column, lane = s.loops_of(parts[-1].finish)
    s, (strip, row) = s.split(row, height)
    if depthwise == [False, True]:
        s, (group, member) = s.split(block, tiles[cores[0]][1])
        s = s.reorder(n, group, strip, member, row, column, lane)
        s = _in_lanes(s, parts[1], column, lane, machine, space)
        s, made = s.compute_at(parts[0].finish, strip)
        s = s.reorder(*(made[axis] for axis in (N, ROW, COLUMN, BLOCK, LANE)))
        s = _tiled(s, parts[0], made[COLUMN], made[BLOCK], made[LANE], tiles[cores[0]][0])
        return parallelise(s, [n, group, strip])
    columns, count = tiles[cores[-1]]
    s, (group, member) = s.split(block, count)
    if depthwise == [True, False]:
        s = s.reorder(n, strip, group, row, column, member, lane)
        s = _tiled(s, parts[1], column, member, lane, columns)
        s, made = s.compute_at(parts[0].finish, strip)
        s = _in_lanes(s, parts[0], made[COLUMN], made[LANE], machine, space)
        return parallelise(s, [n, strip])
    s = s.reorder(n, strip, row, group, column, member, lane)
    s = _tiled(s, parts[2], column, member, lane, columns)
    s, made = s.compute_at(parts[1].finish, row)
    s = _in_lanes(s, parts[1], made[COLUMN], made[LANE], machine, space)
    s, made = s.compute_at(parts[0].finish, strip)
    columns, count = tiles[cores[0]]
    s, (group, member) = s.split(made[BLOCK], count)
    s = s.reorder(made[N], group, made[ROW], made[COLUMN], member, made[LANE])
    s = _tiled(s, parts[0], made[COLUMN], member, made[LANE], columns)
    return parallelise(s, [n, strip])


def _choose_tile(s: Schedule, core: str, machine: Machine, space: Space) -> tuple[int, int]:
    """The register tile of a dense convolution: columns, and blocks of channels."""
    block = block_of(s, core)
    width, blocks = (typical_dim(spatial(block)[axis].extent) for axis in (COLUMN, BLOCK))
    depth = prod(typical_dim(it.extent) for it in reductions(block))
    why = "time of a multiply-add over that at the peak: ragged ends, latency, loads, panels from afar, what each tile begins and ends with"
    options = dense_tiles(machine, width, blocks)
    return space.choose(f"{core}.tile", options, lambda tile: block_cost(machine, ProductShape(width, blocks, depth), tile), why)


def _part(s: Schedule, core: str) -> tuple[Schedule, Part]:
    """The convolution, its sums in registers, with the block that finishes them: what reads them point by point, or a copy."""
    consumers = s.consumers(core)
    if len(consumers) == 1 and not writes_output(s, core) and is_injective(block_of(s, consumers[0])):
        return s.set_scope(s.nest.outputs(core)[0].name, "local"), Part(core, consumers[0])
    s, (copy, *_) = s.cache_write(core, "local")
    return s, Part(core, copy)


def _stage(s: Schedule, part: Part) -> Stage:
    """What the cost model wants to know of a convolution."""
    block = block_of(s, part.core)
    images, blocks, *space, _ = (it.extent for it in spatial(block))
    depth, window, strides = 1, [], []
    for it in reductions(block):
        slide = next((slide for slide in slides(block) if slide.tap is it and slide.point in spatial(block)[ROW : COLUMN + 1]), None)
        if slide is None:
            depth *= typical_dim(it.extent)
        else:
            window.append(typical_dim(it.extent))
            strides.append(slide.stride)
    body = block_of(s, part.finish).body
    calls = [e for e in walk(body.value) if e.args and e.op is not Op.LOAD and not e.dtype.is_integer] if isinstance(body, Store) else []
    operations = sum(EXPENSIVE_OPERATIONS if e.op is Op.CALL and e.attr in POLYNOMIALS else 1 for e in calls)
    return Stage(
        int(images.value) if images.is_const else 1,
        typical_dim(blocks),
        tuple(typical_dim(dim) for dim in space),
        depth,
        tuple(window) or (1, 1),
        tuple(strides) or (1, 1),
        in_lanes(block),
        operations,
    )


def _packed(s: Schedule, name: str, constants: frozenset[str]) -> Schedule:
    """Constant weights in the order in which the tiles read them."""
    block = block_of(s, name)
    lane = spatial(block)[LANE]
    for load in value_loads(block):
        if load.attr.name in constants and uses(load, lane.var):
            return pack_operand(s, name, load, load.attr.name, lane, typical_dim(lane.extent))
    return s


def _tiled(s: Schedule, part: Part, column: str, blocks: str, lane: str, columns: int) -> Schedule:
    """A dense convolution in register tiles of so many columns by all iterations of `blocks`, which is inside of `column`."""
    s, (tiles, own) = s.split(column, columns)
    s = s.reorder(tiles, own, blocks, lane)
    s, made = s.compute_at(part.core, tiles)
    outer, reduced = [made[N], made[ROW]], list(made[LANE + 1 :])
    s = s.reorder(*outer, *reduced, made[COLUMN], made[BLOCK], made[LANE])
    s = s.vectorize(lane).vectorize(made[LANE])
    for loop in (own, blocks, made[COLUMN], made[BLOCK]):
        s = s.unroll(loop)
    s, (init, *_) = s.decompose_reduction(part.core, reduced[0])
    return s.clamp_reads(part.core, COLUMN).clamp_reads(init, COLUMN)


def _in_lanes(s: Schedule, part: Part, column: str, lane: str, machine: Machine, space: Space) -> Schedule:
    """A depthwise convolution with one result for each lane, several columns side by side."""
    block = block_of(s, part.core)
    points = points_side_by_side(block, machine, typical_dim(spatial(block)[LANE].extent), 1, space)
    s, (chunk, own) = s.split(column, points)
    s, made = s.compute_at(part.core, chunk)
    taps = list(made[LANE + 1 :])
    s = s.reorder(*made[:COLUMN], *taps, made[COLUMN], made[LANE])
    s = s.vectorize(lane).vectorize(made[LANE])
    s = s.unroll(own).unroll(made[COLUMN])
    s, _ = s.decompose_reduction(part.core, taps[0])
    for loop in _short(s, block, taps):
        s = s.unroll(loop)
    return s


def _short(s: Schedule, block: Block, taps: Sequence[str]) -> list[str]:
    """The taps to unroll: those along a row."""
    near = {slide.tap for slide in slides(block) if slide.point is spatial(block)[COLUMN]}
    return [loop for it, loop in zip(reductions(block), taps, strict=True) if it in near and typical_dim(it.extent) <= LONG]
