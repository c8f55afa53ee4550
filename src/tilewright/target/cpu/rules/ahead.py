"""Asking for operands of a product before they are needed: the next panel, the rows of the next tile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ir.expr import ceildiv
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import ASSUMED_CLOCK_GHZ, Machine, estimated_peaks
from tilewright.target.cpu.rules.blocking import byte_count
from tilewright.target.cpu.rules.register_tile import Tile
from tilewright.target.cpu.rules.structure import block_of, extent_value, reductions, spatial, stride, uses

ASKED = 2  # cache lines asked for at once
REMOTE_LINE = 12.0  # nanoseconds that a line in a short run costs which another core has written, where nobody asked for it
FEWEST_TILES = 8  # of rows, where their number is known only while running, among which a whole panel can be asked for


def prefetch_panel(
    s: Schedule, name: str, tile: Tile, step: int, tiles: list[str], reduced: list[str], machine: Machine, space: Space
) -> Schedule:
    """While a panel of weights is worked on, ask for the next one, evenly: each is used as often as there are row tiles, and comes from far
    away. `step`: elements of the panel that one step of the reduction reads. `tiles`: the loop over panels, then those of its row tiles."""
    depths = [it.extent for it in reductions(block_of(s, name))]
    extents = [s.nest.loop(loop).stmt.extent for loop in tiles[1:]]
    if not all(depth.is_const for depth in depths) or math.prod(map(extent_value, extents)) < 2:  # a panel that is used once is a stream
        return s
    size = step * math.prod(int(depth.value) for depth in depths)
    element = tile.panel.dtype.bytes
    line = machine.l1d.line
    stall = size * element / estimated_peaks(machine).memory
    asking = size * element / line / ASSUMED_CLOCK_GHZ
    why = "nanoseconds for each panel: waiting for memory, or asking for it ahead"
    if not space.choose(f"{name}.prefetch", (True, False), lambda ahead: asking if ahead else stall, why):
        return s
    rolled = [loop for loop in reduced if s.nest.loop(loop).stmt.kind != "unrolled"]
    # the fewest iterations among which a panel is shared: numbers that are known only while running may be small
    known = all(extent.is_const for extent in extents)
    passes = math.prod(int(extent.value) for extent in extents if extent.is_const)
    share = -(-size // (passes if known else max(passes, FEWEST_TILES)))
    # the outermost loop that need not ask for more than a few lines at once, and is not unrolled
    at = latest = tiles[-1]
    sharing = tiles[1:]
    for i, loop in enumerate(reduced):
        if not any(rest in rolled for rest in reduced[i:]) or (share * element <= ASKED * line and at == latest):
            break
        share = -(-share // max(int(s.nest.loop(loop).stmt.extent.value), 1))
        latest = loop
        at = loop if loop in rolled else at
        sharing = [*sharing, loop]
    lines = min(max(-(-share * element // line), 1), 2 * ASKED)
    return s.prefetch(at, tile.panel.attr.name, size, [(tiles[0], size, 0)], lines, line, size, sharing)


def prefetch_rows(
    s: Schedule, name: str, tile: Tile, panel: str, row_tiles: Sequence[str], reduced: list[str], machine: Machine, space: Space
) -> Schedule:
    """While a row tile is worked on, ask for the rows of the next one, where they come from beyond the second cache: for the first panel,
    and for each where all rows of a block do not stay. `panel`: the loop over panels; `row_tiles`: those over tiles of rows, outermost
    first. Where their number is known only while running, so is whether all of them stay."""
    rows, buffer = tile.broadcast, tile.broadcast.attr
    inner = reductions(block_of(s, name))
    if tile.row is None or len(inner) != 1 or buffer not in s.kernel.inputs or stride(rows, inner[0].var) != 1:
        return s
    depth = inner[0].extent
    if not depth.is_const or stride(rows, tile.row.var) != depth.value:
        return s
    at_once = math.prod(extent_value(s.nest.loop(loop).stmt.extent) for loop in row_tiles[-1:]) * tile.rows
    size = at_once * int(depth.value) * rows.dtype.bytes
    first = 1 / max(extent_value(s.nest.loop(panel).stmt.extent), 1) if byte_count(buffer) > machine.l2.size / 2 else 0.0
    known = all(dim.is_const for dim in buffer.shape)
    far = max(1.0 - min(1.0, machine.l2.size / 2 / size), first) if known else 1.0  # as it is for many rows
    why = "share of the rows that comes from beyond the second cache and is waited for, or is asked for ahead"
    if not space.choose(f"{name}.prefetch_rows", (False, True), lambda ahead: 0.1 if ahead else far, why):
        return s
    ahead = step = tile.rows * int(depth.value)
    share = step // extent_value(s.nest.loop(reduced[0]).stmt.extent)
    steps = [(reduced[0], share, 0)]
    for loop in reversed(row_tiles):
        steps.append((loop, step, 0))
        step *= extent_value(s.nest.loop(loop).stmt.extent)
    lines = -(-share * rows.dtype.bytes // machine.l1d.line)
    beyond = 0 if known else machine.l2.size // 2 // rows.dtype.bytes
    return s.prefetch(reduced[0], buffer.name, ahead, steps, lines, machine.l1d.line, beyond=beyond)


def prefetch_short_rows(
    s: Schedule, name: str, tile: Tile, blocks: Sequence[str], tiles: Sequence[str], reduced: list[str], machine: Machine, space: Space
) -> Schedule:
    """While the first panel of a thread or of a block of rows is worked on, ask for the rows of the next tile where they lie in short runs,
    one for each step of the outer reduction, as channels in blocks do: another core has written a part of them, and the hardware does not
    see which run comes next. For later panels they are in this core's second cache. `blocks`: loops over blocks of rows; `tiles`: the loop
    over panels, those that move only with the rows, the one over row tiles."""
    rows, buffer, block = tile.broadcast, tile.broadcast.attr, block_of(s, name)
    taps = reductions(block)
    if tile.row is None or len(taps) < 2 or machine.cores == 1 or buffer not in s.kernel.inputs:
        return s
    apart, run = stride(rows, taps[0].var), stride(rows, tile.row.var)
    line, element = machine.l1d.line, rows.dtype.bytes
    if not apart or not run or run * element > line or apart <= tile.rows * run:
        return s
    if any(extent_value(it.extent) != 1 for it in taps[1:-1]):
        return s  # a window: rows of the next tile are those of this one, but for the last
    own = {it.var for it in (tile.vector, tile.beyond, tile.row) if it is not None}  # padded, an iter is another one of the same variable
    streamed = [it for it in spatial(block) if it.var not in own and not uses(tile.panel, it.var)]
    pitches = [stride(rows, it.var) for it in streamed] + [tile.rows * run]
    extents = [it.extent for it in streamed] + [ceildiv(tile.row.extent, tile.rows)]
    steps, ahead = [(reduced[0], apart, 0)], 0
    for loop, pitch, extent in zip(tiles[1:], pitches, extents, strict=True):
        held = s.nest.loop(loop).stmt.extent
        if pitch is None or not extent.is_const:
            return s
        steps.append((loop, pitch, 0))
        ahead = pitch if held.value > 1 else ahead
        if held is not extent:  # split into blocks
            steps += [(outer, pitch * int(held.value), 0) for outer in blocks]
    lines = -(-tile.rows * run * element // line) + any(step * element % line for _, step, _ in steps)  # where it begins within one
    asked = lines * max(extent_value(taps[0].extent), 1) / ASSUMED_CLOCK_GHZ
    waited = asked * ASSUMED_CLOCK_GHZ * REMOTE_LINE * (1 - 1 / machine.cores)
    why = "nanoseconds for each row tile of a first panel: waiting for runs that another core has written, or asking for them ahead"
    if not ahead or not space.choose(f"{name}.prefetch_rows", (True, False), lambda ahead: asked if ahead else waited, why):
        return s
    panels = max(extent_value(s.nest.loop(tiles[0]).stmt.extent), 1)
    first = panels if blocks else -(-panels // machine.cores)
    return s.prefetch(reduced[0], buffer.name, ahead, steps, lines, line, only=(tiles[0], first))
