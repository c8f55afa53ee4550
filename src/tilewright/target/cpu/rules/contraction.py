"""Sums of products: matrix products and convolutions, by register tiles.

One operand (the panel) gives the vector axis, the other (the rows) is broadcast from memory: with MR rows and NV vectors, one step of
the reduction is NV panel loads and MR*NV multiply-adds on accumulators that stay in registers over the whole reduction. A panel that is
a constant of the model is packed at compile time so that it is read in order; convolutions are the same with output channels as the
vector axis and output columns as rows. Figures that led here: docs/decisions/002-register-tiles.md.
"""

from __future__ import annotations

import math

from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.ahead import prefetch_panel, prefetch_rows, prefetch_short_rows
from tilewright.target.cpu.rules.blocking import block_rows, unroll_steps
from tilewright.target.cpu.rules.borders import padding_of
from tilewright.target.cpu.rules.elementwise import parallelise, schedule_nest
from tilewright.target.cpu.rules.narrow_weights import schedule_conversion, schedule_runs, sum_by_runs, widening
from tilewright.target.cpu.rules.panels import narrow_panel, pack_panel
from tilewright.target.cpu.rules.register_tile import Tile, choose_tile
from tilewright.target.cpu.rules.streams import prefetch_stream
from tilewright.target.cpu.rules.structure import as_product, block_of, extent_value, reductions, spatial, uses, value_loads
from tilewright.target.cpu.rules.tile_loops import clamp_tile, place_epilogue, split_tile, take_epilogue


def schedule_contraction(s: Schedule, name: str, constants: frozenset[str], machine: Machine, space: Space) -> Schedule | None:
    """The kernel with the product block `name` in register tiles and its consumer on them; None when it is no matrix product."""
    product = as_product(block_of(s, name))
    if product is None:
        return None
    converting = widening(s, product, constants)
    converted = () if converting is None else s.nest.outputs(converting)
    known = constants | {buffer.name for buffer in converted[:1]}
    padding = padding_of(s, name, product)
    # weights that are filled up with zeros are no image: they are made once, and nothing is copied while running
    padding = None if padding is None or padding.copy.attr in converted else padding
    tile = choose_tile(product, known, machine, space, padding)
    if tile is None:
        return None
    if tile.border is not None:
        s = tile.border.padding.without
    taken = take_epilogue(s, name)
    if taken is None:
        return None
    s, epilogue = taken
    if converting is not None and tile.panel.attr in converted:
        s, tile, packing = narrow_panel(s, name, tile, converting, constants, machine, space)
    else:
        s, packing = pack_panel(s, name, tile, constants, machine, space)
    middle = None
    if tile.vector is not spatial(block_of(s, name))[-1]:
        # results are stored across the lanes: the accumulators go to memory first, so that only constant positions of them are used
        s, (middle, *_) = s.cache_write(name, "local")
    return _tile_loops(s, name, middle, epilogue, tile, packing, constants, machine, space)


def _lanes_innermost(s: Schedule, name: str, tile: Tile) -> Schedule:
    """Lay out the buffers that the tile goes through with the vector axis last."""
    position = [it.var for it in spatial(block_of(s, name))].index(tile.vector.var)
    for buffer in (s.nest.outputs(name)[0], *(s.nest.outputs(c)[0] for c in s.consumers(name))):
        if buffer in s.kernel.scratch and position != len(buffer.shape) - 1:
            axes = range(len(buffer.shape))
            s = s.pack(buffer.name, [()] * len(buffer.shape), [*(a for a in axes if a != position), position])
    return s


def _tile_loops(
    s: Schedule,
    name: str,
    middle: str | None,
    epilogue: str,
    tile: Tile,
    packing: str | None,
    constants: frozenset[str],
    machine: Machine,
    space: Space,
) -> Schedule:
    """Loops around the tile, the epilogue on it, and `packing`, the block that copies a panel, once for each panel."""
    partial: str | None = None
    if tile.narrow is not None and tile.narrow.scaled == "sums":
        s, partial = sum_by_runs(s, name, tile.narrow)
    block = block_of(s, name)
    position = [it.var for it in spatial(block)].index(tile.vector.var)
    s, loops = split_tile(s, name, tile)
    outer, tiles, reduced, panel = loops.outer, loops.tiles, list(loops.reduced), loops.tiles[0]
    rest = [it for it in spatial(block) if it not in (tile.vector, tile.beyond, tile.row)]
    bordered = tile.border.taps if tile.border is not None else None
    words: list[str] = []
    if tile.narrow is not None and tile.narrow.runs is not None and partial is None:
        along = dict(zip([it.var for it in reductions(block)], reduced, strict=True))[tile.narrow.runs.along.var]
        s, parts = s.split(along, tile.narrow.runs.factors)
        reduced = [*(loop for loop in reduced if loop != along), *parts]
        words = [parts[-1]] if tile.narrow.runs.word > 1 else []
    elif tile.narrow is None and len(reduced) == 1 and bordered is None:  # which is unrolled as it is
        s, reduced[0], words = unroll_steps(s, name, reduced[0], (tile.rows, tile.vectors), space)
    if not outer and packing is None:
        free = len(tiles) - (bordered is not None)  # then the loop over the tiles of a row stays inside
        s, outer, tiles = block_rows(s, name, tile.broadcast.attr, tile.panel.attr, tiles, free, machine, space)
    s = s.reorder(*outer, *tiles, *reduced, *(loop for loop in words if loop not in reduced), *loops.inner)
    if middle is not None:
        s = _place_copy(s, middle, position, tiles[-1], tile)
    s = place_epilogue(s, epilogue, tiles[-1], tile)
    if middle is not None:
        s = _lanes_innermost(s, name, tile)
    s = s.vectorize(loops.lane)
    taps = [loop for it, loop in zip(reductions(block), loops.reduced, strict=True) if it is bordered]
    for loop in (*words, *loops.inner[:-1], *taps):
        s = s.unroll(loop)
    if reduced:
        s, _ = s.decompose_reduction(name, reduced[0])
    if partial is not None:
        s = schedule_runs(s, partial, reduced[0], position, tile.lanes)
    s = clamp_tile(s, name, tile, rows=bordered is None)
    if bordered is None:
        s = prefetch_short_rows(s, name, tile, outer, tiles, reduced, machine, space)
    if tile.row is not None and not rest:
        s = prefetch_rows(s, name, tile, panel, [*outer, *tiles[1:]], reduced, machine, space)
    if tile.narrow is None and tile.panel.attr.name in constants and not any(uses(tile.panel, it.var) for it in rest):
        s = _prefetch_weights(s, name, tile, tiles, reduced, machine, space)
    if packing is not None:
        s, _ = s.compute_at(packing, panel)
        if all(load.attr.name in constants for load in value_loads(block_of(s, packing))):
            s = schedule_conversion(s, packing, machine, tile.panel.args.index(tile.vector.var))
        else:
            s = schedule_nest(s, packing, machine, parallel=False, space=space)
        return parallelise(s, [*outer, panel])
    # A task finds its tile by divisions, which take long where the loops have lengths known only while running: once for a row of an image.
    divided = len(tiles) > 3 and tile.row is not None and not tile.row.extent.is_const
    return parallelise(s, [*outer, *(tiles[:-1] if divided or bordered is not None else tiles)])


def _prefetch_weights(s: Schedule, name: str, tile: Tile, tiles: list[str], reduced: list[str], machine: Machine, space: Space) -> Schedule:
    """Ask for the next panel of weights while one is worked on, or, for narrow ones that are used once, for what comes next."""
    depths = [it.extent for it in reductions(block_of(s, name))]
    if math.prod(extent_value(s.nest.loop(loop).stmt.extent) for loop in tiles[1:]) >= 2:
        return prefetch_panel(s, name, tile, tile.vectors * tile.lanes, tiles, reduced, machine, space)
    if not all(depth.is_const for depth in depths) or tile.panel.dtype.bytes >= s.nest.outputs(name)[0].dtype.bytes:
        return s
    step = tile.vectors * tile.lanes
    size = step * math.prod(int(depth.value) for depth in depths)
    return prefetch_stream(s, name, tile.panel.attr.name, (tiles[0], size), (reduced[-1], step), machine, space)


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
