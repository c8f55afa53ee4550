"""Sums of products: matrix products and convolutions, by register tiles.

One operand (the panel) gives the vector axis, the other (the rows) is broadcast from memory: with MR rows and NV vectors, one step of
the reduction is NV panel loads and MR*NV multiply-adds on accumulators that stay in registers over the whole reduction. A panel that is
a constant of the model is packed at compile time so that it is read in order; convolutions are the same with output channels as the
vector axis and output columns as rows. Figures that led here: docs/decisions/002-register-tiles.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.ir.expr import Expr
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import ASSUMED_CLOCK_GHZ, Machine, estimated_peaks
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.registers import register_block
from tilewright.target.cpu.rules.structure import (
    Product,
    as_product,
    block_of,
    extent_value,
    is_injective,
    reductions,
    spatial,
    stride,
    uses,
    writes_output,
)

REPACK = 24.0  # vector multiply-adds that packing one vector of a panel while running costs
LONG = 32  # rows from which on a longer axis makes no better tiles
WORTH = 3.0  # cost from which on the product is better computed as a plain reduction
TRANSPOSED_STORE = 24.0  # vector multiply-adds that storing one vector element by element costs


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: which operand is the panel, its vector iter with `vectors` of `lanes`, the row iter with `rows` (None: no rows).
    Where the vector iter is no longer than a vector, the vectors of a tile are along `beyond`, another iter of the panel."""

    panel: Expr
    vector: BlockIter
    beyond: BlockIter | None
    vectors: int
    lanes: int
    row: BlockIter | None
    rows: int


def choose_tile(product: Product, constants: frozenset[str], machine: Machine) -> Tile | None:
    """The default tile of a product, or None when no operand has an output axis of its own (then it is no matrix product)."""
    block = product.block
    own_left = [it for it in spatial(block) if uses(product.left, it.var) and not uses(product.right, it.var)]
    own_right = [it for it in spatial(block) if uses(product.right, it.var) and not uses(product.left, it.var)]
    assert isinstance(block.body, Store)
    lanes = machine.lanes(block.body.buffer.dtype.bits)
    best: Tile | None = None
    best_cost = float("inf")
    for panel, own, streamed, other in (
        (product.right, own_right, product.left, own_left),
        (product.left, own_left, product.right, own_right),
    ):
        # of axes that may be equally long the inner one
        row = max(reversed(other), key=lambda it: (it is spatial(block)[-1], _expected(it, streamed))) if other else None
        for vector in own:
            cost, tile = _cost(block, panel, vector, row, constants, lanes, machine)
            if cost < best_cost:
                best, best_cost = tile, cost
    return best if best_cost < WORTH else None


def _expected(it: BlockIter, streamed: Expr) -> int:
    """Rows to expect along an axis of the operand that rows are read from, as far as they matter. A size that is known only while running
    may be 1, and most likely is where it is the operand's outermost axis: a batch."""
    if it.extent.is_const:
        return min(int(it.extent.value), LONG)
    return min(extent_value(it.extent), LONG // 8 if uses(streamed.args[0], it.var) else LONG // 2)


def _cost(
    block: Block, panel: Expr, vector: BlockIter, row: BlockIter | None, constants: frozenset[str], lanes: int, machine: Machine
) -> tuple[float, Tile]:
    """What a multiply-add costs with this tile, relative to the peak, and the tile. Counts lanes wasted on ragged extents, panels that are
    not read in order (gathered once per step and row tile) and results that are not stored in order (once per reduction)."""
    width, height = max(extent_value(vector.extent, 1 << 12), 1), 1 if row is None else max(extent_value(row.extent, 1 << 12), 1)
    needed = -(-width // lanes)
    beyond = None
    if needed == 1 and vector.extent.is_const:
        others = [it for it in spatial(block) if it is not vector and it is not row and uses(panel, it.var) and extent_value(it.extent) > 1]
        beyond = max(others, key=lambda it: extent_value(it.extent)) if others and _is_part(panel, vector) else None
    count = needed if beyond is None else extent_value(beyond.extent, 1 << 10)
    rows, vectors = register_block(machine, height, count)
    tile = Tile(panel, vector, beyond, vectors, min(lanes, width) if beyond is not None else lanes, row if rows > 1 else None, rows)
    padded = -(-count // vectors) * vectors * lanes * (-(-height // rows)) * rows
    cost = padded / (width * height * (1 if beyond is None else count))
    if not (panel.attr.name in constants or stride(panel, vector.var) == 1):
        cost += REPACK / height
    if vector is not spatial(block)[-1]:
        depth = 1
        for it in reductions(block):
            depth *= max(extent_value(it.extent, 256), 1)
        cost += TRANSPOSED_STORE / depth
    return cost, tile


def _is_part(panel: Expr, vector: BlockIter) -> bool:
    """The vector iter is the fast part of an index of the panel: `a * lanes + v`."""
    return vector.var not in panel.args


def schedule_contraction(s: Schedule, name: str, constants: frozenset[str], machine: Machine, space: Space) -> Schedule | None:
    """The kernel with the product block `name` in register tiles and its consumer on them; None when it is no matrix product."""
    product = as_product(block_of(s, name))
    if product is None:
        return None
    tile = choose_tile(product, constants, machine)
    if tile is None:
        return None
    epilogue = _single_epilogue(s, name)
    if epilogue is None:
        if not writes_output(s, name):
            return None
        s, (epilogue, *_) = s.cache_write(name, "local")
    else:
        s = s.set_scope(s.nest.outputs(name)[0].name, "local")
    s = _pack_panel(s, name, tile, constants)
    middle = None
    if tile.vector is not spatial(block_of(s, name))[-1]:
        # results are stored across the lanes: the accumulators go to memory first, so that only constant positions of them are used
        s, (middle, *_) = s.cache_write(name, "local")
    return _tile_loops(s, name, middle, epilogue, tile, constants, machine, space)


def _single_epilogue(s: Schedule, name: str) -> str | None:
    """The one injective block that reads the product, if it writes an output point by point."""
    consumers = s.consumers(name)
    if writes_output(s, name) or len(consumers) != 1:
        return None
    block = block_of(s, consumers[0])
    return consumers[0] if is_injective(block) and writes_output(s, consumers[0]) else None


def _pack_panel(s: Schedule, name: str, tile: Tile, constants: frozenset[str]) -> Schedule:
    """Store a panel in the order in which the tiles read it: a constant at compile time, one that is computed and not in order by a copy at
    the start of the kernel."""
    buffer = tile.panel.attr
    packed = buffer.name
    if packed not in constants:
        if stride(tile.panel, tile.vector.var) == 1:
            return s
        if buffer in s.kernel.inputs:
            s, (copy, *_) = s.cache_read(name, packed, "global")
            packed = s.nest.outputs(copy)[0].name
        elif buffer not in s.kernel.scratch:
            return s
    width = tile.lanes if tile.beyond is not None else tile.vectors * tile.lanes
    return pack_operand(s, name, tile.panel, packed, tile.vector, width)


def _lanes_innermost(s: Schedule, name: str, tile: Tile) -> Schedule:
    """Lay out the buffers that the tile goes through with the vector axis last."""
    position = [it.var for it in spatial(block_of(s, name))].index(tile.vector.var)
    for buffer in (s.nest.outputs(name)[0], *(s.nest.outputs(c)[0] for c in s.consumers(name))):
        if buffer in s.kernel.scratch and position != len(buffer.shape) - 1:
            axes = range(len(buffer.shape))
            s = s.pack(buffer.name, [()] * len(buffer.shape), [*(a for a in axes if a != position), position])
    return s


def _tile_loops(
    s: Schedule, name: str, middle: str | None, epilogue: str, tile: Tile, constants: frozenset[str], machine: Machine, space: Space
) -> Schedule:
    block = block_of(s, name)
    loops = dict(zip([it.var for it in block.iters], s.loops_of(name)[-len(block.iters) :], strict=True))
    vector = loops[tile.vector.var]
    row = loops[tile.row.var] if tile.row is not None else None
    reduced = [loops[it.var] for it in reductions(block)]
    # panels outside of what only the rows operand moves with: a panel stays in the cache while the rows stream past
    rest = [it for it in spatial(block) if it not in (tile.vector, tile.beyond, tile.row)]
    outer = [loops[it.var] for it in rest if uses(tile.panel, it.var)]
    streamed = [loops[it.var] for it in rest if not uses(tile.panel, it.var)]
    if tile.beyond is None:
        s, (panel, part, lane) = s.split(vector, (None, tile.vectors, tile.lanes))
    else:
        s, (panel, part) = s.split(loops[tile.beyond.var], tile.vectors)
        lane = vector
    inner = [part, lane]
    tiles = [panel, *streamed]
    if row is not None:
        s, (row_tile, row_part) = s.split(row, tile.rows)
        inner = [row_part, *inner]
        tiles = [panel, *streamed, row_tile]
    s = s.reorder(*outer, *tiles, *reduced, *inner)
    if middle is not None:
        s = _place_copy(s, middle, [it.var for it in spatial(block)].index(tile.vector.var), tiles[-1], tile)
    s = _place_epilogue(s, epilogue, tiles[-1], tile)
    if middle is not None:
        s = _lanes_innermost(s, name, tile)
    s = s.vectorize(lane)
    for loop in inner[:-1]:
        s = s.unroll(loop)
    if reduced:
        s, _ = s.decompose_reduction(name, reduced[0])
    for iter_ in (tile.vector, tile.beyond, tile.row):
        if iter_ is not None:
            position = [it.var for it in block.iters].index(iter_.var)
            s = s.clamp_reads(name, position, masked=iter_ is tile.vector)
            init = f"{name}_init"
            if init in s.nest.blocks:
                where = [it.var for it in spatial(block)].index(iter_.var)
                s = s.clamp_reads(init, where)
    if tile.panel.attr.name in constants and not outer:
        s = _prefetch_panel(s, name, tile, tiles, reduced, machine, space)
    return parallelise(s, [*outer, *tiles])


def _prefetch_panel(s: Schedule, name: str, tile: Tile, tiles: list[str], reduced: list[str], machine: Machine, space: Space) -> Schedule:
    """While a panel is worked on, ask for the next one, evenly: each is used as often as there are row tiles, and comes from far away."""
    size = tile.vectors * tile.lanes
    for loop in reduced:
        extent = s.nest.loop(loop).stmt.extent
        if not extent.is_const:
            return s
        size *= int(extent.value)
    element = tile.panel.dtype.bytes
    line = machine.l1d.line
    passes = [extent_value(s.nest.loop(loop).stmt.extent) for loop in tiles[1:]]
    if math.prod(passes) < 2:
        return s  # a panel that is used once is a stream, which the hardware sees
    steps = [(tiles[0], size, 0)]
    share = -(-size // math.prod(passes))
    inner = share
    for loop, count in zip(reversed(tiles[1:]), reversed(passes), strict=True):
        steps.append((loop, inner, count))
        inner *= count
    # the outermost loop that need not ask for more than two lines at once
    at = tiles[-1]
    for loop in reduced:
        if share * element <= 2 * line:
            break
        at, share = loop, -(-share // max(int(s.nest.loop(loop).stmt.extent.value), 1))
        steps.append((loop, share, 0))
    lines = min(max(-(-share * element // line), 1), 4)
    stall = size * element / estimated_peaks(machine).memory
    asking = size * element / line / ASSUMED_CLOCK_GHZ
    why = "nanoseconds for each panel: waiting for memory, or asking for it ahead"
    if not space.choose(f"{name}.prefetch", (True, False), lambda ahead: asking if ahead else stall, why):
        return s
    return s.prefetch(at, tile.panel.attr.name, size, steps, lines, line)


def _place_copy(s: Schedule, middle: str, position: int, at: str, tile: Tile) -> Schedule:
    """Write the accumulators of a tile to memory, vector by vector; `position` is the vector axis among the copy's iters."""
    s, made = s.reverse_compute_at(middle, at)
    s, (part, lane) = s.split(made[position], tile.lanes)
    others = [loop for i, loop in enumerate(made) if i != position]
    s = s.reorder(*others, part, lane)
    s = s.vectorize(lane)
    for loop in (*others, part):
        s = s.unroll(loop)
    return s


def _place_epilogue(s: Schedule, epilogue: str, at: str, tile: Tile) -> Schedule:
    """Compute the consumer at the tile and vectorise it along the axis that it stores in order."""
    block = block_of(s, epilogue)
    s, made = s.reverse_compute_at(epilogue, at)
    own = dict(zip([it.var for it in block.iters], made, strict=True))
    last = own[block.iters[-1].var]
    extent = s.nest.loop(last).stmt.extent
    width = tile.vectors * tile.lanes
    if extent.is_const and extent.value == width:
        s, (part, lane) = s.split(last, tile.lanes)
        s = s.vectorize(lane)
        s = s.unroll(part)
    elif extent.is_const and 1 < extent.value <= 64:
        s = s.vectorize(last)
    for loop in s.loops_of(epilogue):
        placed = s.nest.loop(loop).stmt
        if loop in made and placed.kind == "serial" and placed.extent.is_const and placed.extent.value <= width:
            s = s.unroll(loop)
    return s
