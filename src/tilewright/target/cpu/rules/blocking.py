"""How the loops around a register tile go through memory: in which blocks of rows, and how many steps of the reduction at a time.

Figures that led here: docs/decisions/024-blocks-of-rows.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.ir.expr import Expr
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import substitute
from tilewright.ir.typical import typical_dim
from tilewright.kernel.nodes import Buffer
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.structure import extent_value, few_sizes, geometric_mean

STEPS = (1, 2, 4, 8)  # of the reduction that are carried out one after the other without a branch
LOOP_INSTRUCTIONS = 3.0  # of one iteration: counter, comparison, branch
MOST_UNROLLED = 192  # multiply-adds past which instructions no longer come from the cache of decoded ones
KEPT = 0.5  # share of the second cache that rows keep while panels and results stream past
MOST_BLOCKS = 32


def unroll_steps(s: Schedule, name: str, loop: str, tile: tuple[int, int], space: Space) -> tuple[Schedule, str, list[str]]:
    """The loop of a reduction in iterations of several steps, where its length allows: the outer loop, and inner ones to unroll.
    `tile`: rows and vectors of the register tile."""
    extent = s.nest.loop(loop).stmt.extent
    products = tile[0] * tile[1]
    options = [
        n for n in STEPS if n == 1 or (extent.is_const and extent.value > n and extent.value % n == 0 and n * products <= MOST_UNROLLED)
    ]
    why = "instructions beside each multiply-add: of the loop"
    steps = space.choose(f"{name}.steps", options, lambda n: LOOP_INSTRUCTIONS / (n * products), why)
    if steps == 1:
        return s, loop, []
    s, (outer, inner) = s.split(loop, (int(extent.value) // steps, steps))
    return s, outer, [inner]


def block_rows(
    s: Schedule,
    name: str,
    rows: Buffer,
    panels: Buffer,
    tiles: list[str],
    free: int,
    machine: Machine,
    space: Space,
    remote: float = 0.0,
) -> tuple[Schedule, list[str], list[str]]:
    """Loops over blocks of rows to put outside of the panels, and the tile loops that are left; `tiles`: the loop over panels first;
    of them the first `free` may be split. `remote`: bytes in order that a byte of rows costs more which another core has written.

    Without blocks, each thread takes some of the panels, and reads all rows for each of them; what of the rows does not stay in its
    second cache comes from beyond. With blocks, the threads share these, and all panels are read once for each block."""
    panel_count = max(extent_value(s.nest.loop(tiles[0]).stmt.extent), 1)
    row_bytes = [byte_count(rows, images) for images in few_sizes(*rows.shape[:1])]
    panel_bytes = byte_count(panels)

    def moved(blocks: int) -> float:
        return geometric_mean(traffic(count, panel_bytes, panel_count, blocks, machine, remote) for count in row_bytes)

    for loop in tiles[1:free]:
        extent = s.nest.loop(loop).stmt.extent
        if not extent.is_const or extent.value < max(machine.cores, 2):
            continue
        least = max(machine.cores, 2)
        options = [1, *(n for n in range(least, min(int(extent.value), MOST_BLOCKS) + 1) if extent.value % n == 0)]
        if len(options) == 1:
            continue
        why = "bytes that come from beyond the second cache of a core: panels for each block of rows, rows that did not stay"
        blocks = space.choose(f"{name}.row_blocks", options, moved, why)
        if blocks == 1:
            break
        s, (block, rest) = s.split(loop, (blocks, int(extent.value) // blocks))
        return s, [block], [rest if old == loop else old for old in tiles]
    return s, [], tiles


def traffic(rows: int, panels: int, panel_count: int, blocks: int, machine: Machine, remote: float = 0.0) -> float:
    """Bytes that come from beyond second caches, of all cores: `rows` and `panels` are bytes of the operands. Where cores share panels,
    each reads the rows that others have written, too, a byte of which costs `remote` more."""
    one = machine.cores == 1 or blocks > 1
    passes = panel_count if one else -(-panel_count // machine.cores)
    room = KEPT * max(machine.l2.size - 2 * panels / panel_count, 0)
    far = 1 - min(1.0, room * blocks / max(rows, 1))
    readers = 1 if one else machine.cores
    return panels * blocks + rows * readers * (1 + (passes - 1) * far) + remote * rows * (readers - 1)


def byte_count(buffer: Buffer, sizes: Mapping[Expr, Expr] | None = None) -> int:
    """Bytes of a buffer, typical ones where sizes are symbolic that have no value in `sizes`."""
    return math.prod(typical_dim(simplify(substitute(dim, sizes or {}))) for dim in buffer.shape) * buffer.dtype.bytes
