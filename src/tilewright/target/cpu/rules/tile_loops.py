"""The loops around a register tile, and its consumer on it: what products of floats and of narrow integers have in common."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernel.schedule.schedule import Schedule
from tilewright.target.cpu.rules.register_tile import Tile
from tilewright.target.cpu.rules.structure import block_of, is_injective, reductions, spatial, uses, writes_output


@dataclass(frozen=True, slots=True)
class TileLoops:
    """Names of the loops around a product, outermost first. outer: each iteration has panels of its own. tiles: over the panels, over what
    moves only with the rows, over tiles of rows (the last, where there are rows). reduced: the reduction. inner: the rows of a tile, its
    vectors, lanes."""

    outer: list[str]
    tiles: list[str]
    reduced: list[str]
    inner: list[str]

    @property
    def lane(self) -> str:
        return self.inner[-1]


def split_tile(s: Schedule, name: str, tile: Tile) -> tuple[Schedule, TileLoops]:
    """The loops of product `name`, split into those over tiles and those within one; not reordered yet. Panels are outside of what only the
    rows operand moves with: a panel stays in the cache while the rows stream past."""
    block = block_of(s, name)
    loops = dict(zip([it.var for it in block.iters], s.loops_of(name)[-len(block.iters) :], strict=True))
    rest = [it for it in spatial(block) if it not in (tile.vector, tile.beyond, tile.row)]
    outer = [loops[it.var] for it in rest if uses(tile.panel, it.var)]
    streamed = [loops[it.var] for it in rest if not uses(tile.panel, it.var)]
    lane = loops[tile.vector.var]
    if tile.beyond is None:
        s, (panel, part, lane) = s.split(lane, (None, tile.vectors, tile.lanes))
    else:
        s, (panel, part) = s.split(loops[tile.beyond.var], tile.vectors)
    inner, tiles = [part, lane], [panel, *streamed]
    if tile.row is not None:
        s, (row_tile, row_part) = s.split(loops[tile.row.var], tile.rows)
        inner, tiles = [row_part, *inner], [*tiles, row_tile]
    return s, TileLoops(outer, tiles, [loops[it.var] for it in reductions(block)], inner)


def clamp_tile(s: Schedule, name: str, tile: Tile, rows: bool = True) -> Schedule:
    """Compute ragged tiles in full, from clamped addresses; `rows`: those of too few rows as well. After the init is a block of its own."""
    block = block_of(s, name)
    init = f"{name}_init"
    for iter_ in (tile.vector, tile.beyond, tile.row if rows else None):
        if iter_ is None:
            continue
        s = s.clamp_reads(name, [it.var for it in block.iters].index(iter_.var), masked=iter_ is tile.vector)
        if init in s.nest.blocks:
            s = s.clamp_reads(init, [it.var for it in spatial(block)].index(iter_.var))
    return s


def single_epilogue(s: Schedule, name: str) -> str | None:
    """The one injective block that reads the product, if it writes an output point by point."""
    consumers = s.consumers(name)
    if writes_output(s, name) or len(consumers) != 1:
        return None
    block = block_of(s, consumers[0])
    return consumers[0] if is_injective(block) and writes_output(s, consumers[0]) else None


def take_epilogue(s: Schedule, name: str) -> tuple[Schedule, str] | None:
    """The product in a buffer of the tile's, and the block that reads it: its consumer, or a copy into the output. None where others read
    the product."""
    epilogue = single_epilogue(s, name)
    if epilogue is not None:
        return s.set_scope(s.nest.outputs(name)[0].name, "local"), epilogue
    if not writes_output(s, name):
        return None
    s, (copy, *_) = s.cache_write(name, "local")
    return s, copy


def place_epilogue(s: Schedule, epilogue: str, at: str, tile: Tile, rolled: bool = False) -> Schedule:
    """Compute the consumer at the tile and vectorise it along the axis that it stores in order. `rolled`: rows are a loop; else all of the
    tile is written out."""
    s, made = s.reverse_compute_at(epilogue, at)
    last = made[-1]
    extent = s.nest.loop(last).stmt.extent
    width = tile.vectors * tile.lanes
    most = tile.vectors if rolled else width
    if extent.is_const and extent.value == width:
        s, (part, lane) = s.split(last, tile.lanes)
        s = s.vectorize(lane)
        s = s.unroll(part)
    elif extent.is_const and 1 < extent.value <= 64:
        s = s.vectorize(last)
    for loop in s.loops_of(epilogue):
        placed = s.nest.loop(loop).stmt
        if loop in made and placed.kind == "serial" and placed.extent.is_const and placed.extent.value <= most:
            s = s.unroll(loop)
    return s
