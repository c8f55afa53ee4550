"""Sums of products: matrix products and convolutions, by register tiles.

One operand (the panel) gives the vector axis, the other (the rows) is broadcast from memory: with MR rows and NV vectors, one step of
the reduction is NV panel loads and MR*NV multiply-adds on accumulators that stay in registers over the whole reduction. A panel that is
a constant of the model is packed at compile time so that it is read in order; convolutions are the same with output channels as the
vector axis and output columns as rows. Figures that led here: docs/decisions/002-register-tiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import ASSUMED_CLOCK_GHZ, Machine, estimated_peaks
from tilewright.target.cpu.rules.blocking import block_rows, byte_count, unroll_steps
from tilewright.target.cpu.rules.borders import Border, Padding, border_of, fits, padding_of, tile_cost
from tilewright.target.cpu.rules.elementwise import parallelise, schedule_nest
from tilewright.target.cpu.rules.narrow_weights import (
    OnTile,
    by_panels,
    conversion_cost,
    on_tile,
    schedule_conversion,
    schedule_runs,
    sum_by_runs,
    widening,
)
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.registers import block_cost, register_block, register_blocks
from tilewright.target.cpu.rules.streams import prefetch_stream
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
    value_loads,
    writes_output,
)

REPACK = 24.0  # vector multiply-adds that packing one vector of a panel while running costs
GATHER = 128.0  # the same where nothing of the panel lies in order, so that its elements are loaded one by one
FAR_PANEL = 0.25  # of a multiply-add's time, at most, where a panel that is read in place goes on to another page with each step
LONG = 32  # rows from which on a longer axis makes no better tiles
WORTH = 3.0  # cost from which on the product is better computed as a plain reduction
PAGE = 4096  # bytes that one translation of addresses covers
NEAR_ROW, FAR_ROW = 2.0, 20.0  # cycles by which a step is late when its row is not in the first cache, and when it is in another page
COPIED_LINE = 8.0  # cycles to copy a cache line from the second cache or beyond
TRANSPOSED_STORE = 12.0  # vector multiply-adds that storing one vector element by element costs


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: which operand is the panel, its vector iter with `vectors` of `lanes`, the other operand, of which single elements
    are broadcast, and the row iter with `rows` (None: no rows). `border`: padding to skip.
    Where the vector iter is no longer than a vector, the vectors of a tile are along `beyond`, another iter of the panel.
    `narrow`: the panel is made of small integers, which are converted on the tile."""

    panel: Expr
    broadcast: Expr
    vector: BlockIter
    beyond: BlockIter | None
    vectors: int
    lanes: int
    row: BlockIter | None
    rows: int
    narrow: OnTile | None = None
    border: Border | None = None


@dataclass(frozen=True, slots=True)
class Axes:
    """Which operand of a product is the panel, the axis of the vectors, the one that several vectors are along, and the one of the rows.
    `height`, `count`: rows, and vectors of a whole panel, typical ones where they are symbolic."""

    panel: Expr
    vector: BlockIter
    beyond: BlockIter | None
    row: BlockIter | None
    lanes: int
    height: int
    count: int


def choose_tile(
    product: Product, constants: frozenset[str], machine: Machine, space: Space | None = None, padding: Padding | None = None
) -> Tile | None:
    """The tile of a product, or None when no operand has an output axis of its own (then it is no matrix product), or tiles do not pay.
    `padding`: of one of its operands."""
    space = space if space is not None else Space()
    block = product.block
    own_left = [it for it in spatial(block) if uses(product.left, it.var) and not uses(product.right, it.var)]
    own_right = [it for it in spatial(block) if uses(product.right, it.var) and not uses(product.left, it.var)]
    assert isinstance(block.body, Store)
    lanes = machine.lanes(block.body.buffer.dtype.bits)
    found: dict[tuple[str, str], Axes] = {}
    for panel, own, streamed, other in (
        (product.right, own_right, product.left, own_left),
        (product.left, own_left, product.right, own_right),
    ):
        # of axes that may be equally long the inner one
        row = max(reversed(other), key=lambda it: (it is spatial(block)[-1], _expected(it, streamed))) if other else None
        for vector in own:
            found[panel.attr.name, vector.var.name] = _axes(block, panel, vector, row, lanes)
    if not found:
        return None
    costs = {key: _cost(block, axes, constants, machine) for key, axes in found.items()}
    why = "multiply-adds at the peak for one of the product: ragged ends, gathered panels, results stored across lanes"
    axes = found[space.choose(f"{block.name}.axes", list(found), costs.__getitem__, why)]
    if costs[axes.panel.attr.name, axes.vector.var.name] >= WORTH:
        return None
    broadcast = product.left if axes.panel is product.right else product.right
    border = None
    if padding is not None and padding.copy is broadcast:
        border = border_of(padding, axes.row, block.name, machine, space)
    rows, vectors = _choose_block(block, axes, border, machine, space)
    width = max(extent_value(axes.vector.extent, 1 << 12), 1)
    wide = min(lanes, width) if axes.beyond is not None else lanes
    row = axes.row if rows > 1 or (border is not None and border.taps is not None) else None
    rows_of = broadcast if border is None else border.padding.read
    return Tile(axes.panel, rows_of, axes.vector, axes.beyond, vectors, wide, row, rows, border=border)


def _choose_block(block: Block, axes: Axes, border: Border | None, machine: Machine, space: Space) -> tuple[int, int]:
    """Rows and vectors of the tile."""
    blocks = register_blocks(machine, axes.height, axes.count)
    why = "time of a multiply-add over that at the peak: ragged ends, latency, loads"
    if border is None or border.taps is None:
        return space.choose(f"{block.name}.tile", blocks, lambda b: block_cost(machine, axes.height, axes.count, b), why)
    depth = math.prod(max(extent_value(it.extent, 256), 1) for it in reductions(block))
    vector = depth * axes.lanes * axes.panel.dtype.bytes
    blocks = [b for b in blocks if fits(border, b)] or [(1, 1)]
    return space.choose(
        f"{block.name}.tile", blocks, lambda b: tile_cost(border, machine, axes.height, axes.count, vector, b), why + ", registers"
    )


def _expected(it: BlockIter, streamed: Expr) -> int:
    """Rows to expect along an axis of the operand that rows are read from, as far as they matter. A size that is known only while running
    may be 1, and most likely is where it is the operand's outermost axis: a batch."""
    if it.extent.is_const:
        return min(int(it.extent.value), LONG)
    return min(extent_value(it.extent), LONG // 8 if uses(streamed.args[0], it.var) else LONG // 2)


def _axes(block: Block, panel: Expr, vector: BlockIter, row: BlockIter | None, lanes: int) -> Axes:
    width = max(extent_value(vector.extent, 1 << 12), 1)
    height = 1 if row is None else max(extent_value(row.extent, 1 << 12), 1)
    count = -(-width // lanes)
    beyond = None
    if count == 1 and vector.extent.is_const:
        others = [it for it in spatial(block) if it is not vector and it is not row and uses(panel, it.var) and extent_value(it.extent) > 1]
        beyond = max(others, key=lambda it: extent_value(it.extent)) if others and _is_part(panel, vector) else None
    return Axes(panel, vector, beyond, row, lanes, height, count if beyond is None else extent_value(beyond.extent, 1 << 10))


def _cost(block: Block, axes: Axes, constants: frozenset[str], machine: Machine) -> float:
    """What a multiply-add costs with the best tile on these axes, relative to the peak. Counts lanes wasted on ragged extents, panels that
    are not read in order (gathered once per step and row tile) and results that are not stored in order (once per reduction)."""
    rows, vectors = register_block(machine, axes.height, axes.count)
    width = max(extent_value(axes.vector.extent, 1 << 12), 1)
    padded = -(-axes.count // vectors) * vectors * axes.lanes * (-(-axes.height // rows)) * rows
    cost = padded / (width * axes.height * (1 if axes.beyond is None else axes.count))
    if axes.panel.attr.name not in constants:
        cost += _reading_cost(block, axes, constants, machine)
    if axes.vector is not spatial(block)[-1]:
        depth = 1
        for it in reductions(block):
            depth *= max(extent_value(it.extent, 256), 1)
        cost += TRANSPOSED_STORE / depth
    return cost


def _reading_cost(block: Block, axes: Axes, constants: frozenset[str], machine: Machine) -> float:
    """What reading a panel that is no constant adds to a multiply-add: packing it while running, or waiting for it where it lies, if the
    other operand is a constant, which could be the panel instead."""
    steps = {it: stride(axes.panel, it.var) for it in block.iters if extent_value(it.extent) > 1}
    if stride(axes.panel, axes.vector.var) != 1:
        turned = any(step == 1 and extent_value(it.extent) >= axes.lanes for it, step in steps.items())
        return (REPACK if turned else GATHER) / axes.height
    apart = [(steps[it] or 0) * axes.panel.dtype.bytes for it in reductions(block) if it in steps]
    if all(load is axes.panel or load.attr.name not in constants for load in value_loads(block)) or max(apart, default=0) < PAGE:
        return 0.0
    return min(FAR_PANEL, COPIED_LINE * machine.fma_units / axes.height)


def _is_part(panel: Expr, vector: BlockIter) -> bool:
    """The vector iter is the fast part of an index of the panel: `a * lanes + v`."""
    return vector.var not in panel.args


def schedule_contraction(s: Schedule, name: str, constants: frozenset[str], machine: Machine, space: Space) -> Schedule | None:
    """The kernel with the product block `name` in register tiles and its consumer on them; None when it is no matrix product."""
    product = as_product(block_of(s, name))
    if product is None:
        return None
    converting = widening(s, product, constants)
    known = constants if converting is None else constants | {s.nest.outputs(converting)[0].name}
    tile = choose_tile(product, known, machine, space, padding_of(s, name, product))
    if tile is None:
        return None
    if tile.border is not None:
        s = tile.border.padding.without
    epilogue = _single_epilogue(s, name)
    if epilogue is None:
        if not writes_output(s, name):
            return None
        s, (epilogue, *_) = s.cache_write(name, "local")
    else:
        s = s.set_scope(s.nest.outputs(name)[0].name, "local")
    if converting is not None and tile.panel.attr in s.nest.outputs(converting):
        s, tile, packing = _narrow_panel(s, name, tile, converting, constants, machine, space)
    else:
        s, packing = _pack_panel(s, name, tile, constants, machine, space)
    middle = None
    if tile.vector is not spatial(block_of(s, name))[-1]:
        # results are stored across the lanes: the accumulators go to memory first, so that only constant positions of them are used
        s, (middle, *_) = s.cache_write(name, "local")
    return _tile_loops(s, name, middle, epilogue, tile, packing, constants, machine, space)


def _single_epilogue(s: Schedule, name: str) -> str | None:
    """The one injective block that reads the product, if it writes an output point by point."""
    consumers = s.consumers(name)
    if writes_output(s, name) or len(consumers) != 1:
        return None
    block = block_of(s, consumers[0])
    return consumers[0] if is_injective(block) and writes_output(s, consumers[0]) else None


def _pack_panel(
    s: Schedule, name: str, tile: Tile, constants: frozenset[str], machine: Machine, space: Space
) -> tuple[Schedule, str | None]:
    """Store a panel in the order in which the tiles read it: a constant at compile time; one that is computed by a copy, where that pays.
    The second result is a block that copies panels and is to be computed at each of them."""
    buffer = tile.panel.attr
    packed = buffer.name
    packing: str | None = None
    if packed not in constants:
        in_order = stride(tile.panel, tile.vector.var) == 1
        if buffer in s.kernel.inputs:
            options = ("no", "panel", "whole") if in_order else ("panel", "whole")
            why = "cycles for each panel: reading it where it lies by each row tile, or copying it first"
            how = space.choose(f"{name}.pack", options, lambda how: _packing_cost(block_of(s, name), tile, how, machine), why)
            if how == "no":
                return s, None
            s, (copy, *_) = s.cache_read(name, packed, "global")
            packed = s.nest.outputs(copy)[0].name
            packing = copy if how == "panel" else None
        elif in_order or buffer not in s.kernel.scratch:
            return s, None
    width = tile.lanes if tile.beyond is not None else tile.vectors * tile.lanes
    return pack_operand(s, name, tile.panel, packed, tile.vector, width), packing


def _narrow_panel(
    s: Schedule, name: str, tile: Tile, converting: str, constants: frozenset[str], machine: Machine, space: Space
) -> tuple[Schedule, Tile, str | None]:
    """Weights that the block `converting` makes of small integers: on the tile, or a panel at a time by that block, which then is the last
    result."""
    rows = None if tile.row is None else tile.row.extent
    why = "vector instructions that convert a vector of weights, for each row"
    how = space.choose(f"{name}.weights", ("tile", "panel"), lambda how: conversion_cost(how, rows, tile.rows), why)
    width = tile.lanes if tile.beyond is not None else tile.vectors * tile.lanes
    if how == "tile":
        s, narrow = on_tile(s, name, converting, tile.vector, (tile.rows, tile.vectors, width), constants, machine, space)
        return s, replace(tile, panel=narrow.codes, narrow=narrow), None
    s = by_panels(s, name, converting, tile.vector, width, constants)
    return pack_operand(s, name, tile.panel, tile.panel.attr.name, tile.vector, width), tile, converting


def _packing_cost(block: Block, tile: Tile, how: str, machine: Machine) -> float:
    """Cycles that one panel costs beyond multiply-adds, by how it is read. In place, each step of the reduction goes on to another row of
    the operand: rows that are far apart come from further away than a panel in order would, and past a page each takes a translation."""
    depth, passes, panels = 1, 1, 1
    for it in block.iters:
        extent = max(extent_value(it.extent, 256), 1)
        if it.kind == "reduction":
            depth *= extent
        elif it is tile.row:
            passes *= -(-extent // tile.rows)
        elif not uses(tile.panel, it.var):
            passes *= extent
        elif it is tile.vector:
            panels *= -(-extent // (tile.lanes * tile.vectors))
        else:
            panels *= extent
    inner = reductions(block)[-1] if reductions(block) else None
    step = stride(tile.panel, inner.var) if inner is not None else 0
    apart = (step if step is not None else PAGE) * tile.panel.dtype.bytes
    lines = tile.vectors * tile.lanes * tile.panel.dtype.bytes / machine.l1d.line
    if how == "no":
        far = depth * apart > machine.l1d.size
        return passes * depth * (FAR_ROW if far and apart >= PAGE else NEAR_ROW if far else 0.0)
    copying = depth * lines * COPIED_LINE
    # panels that are too few for the cores are packed by all of them together
    return copying * (1.5 if how == "whole" else 1.0 if panels >= 2 * machine.cores else 2.0)


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
    words: list[str] = []
    if tile.narrow is not None and tile.narrow.runs is not None and partial is None:
        along = loops[tile.narrow.runs.along.var]
        s, parts = s.split(along, tile.narrow.runs.factors)
        reduced = [*(loop for loop in reduced if loop != along), *parts]
        words = [parts[-1]] if tile.narrow.runs.word > 1 else []
    elif tile.narrow is None and len(reduced) == 1:
        s, reduced[0], words = unroll_steps(s, name, reduced[0], (tile.rows, tile.vectors), space)
    if not outer and packing is None:
        tied = tile.border is not None and tile.border.taps is not None  # then the loop over the tiles of a row stays inside
        s, outer, tiles = block_rows(s, name, tile.broadcast.attr, tile.panel.attr, tiles, len(tiles) - tied, machine, space)
    s = s.reorder(*outer, *tiles, *reduced, *(loop for loop in words if loop not in reduced), *inner)
    if middle is not None:
        s = _place_copy(s, middle, [it.var for it in spatial(block)].index(tile.vector.var), tiles[-1], tile)
    s = _place_epilogue(s, epilogue, tiles[-1], tile)
    if middle is not None:
        s = _lanes_innermost(s, name, tile)
    s = s.vectorize(lane)
    bordered = tile.border.taps if tile.border is not None else None
    for loop in (*words, *inner[:-1], *([] if bordered is None else [loops[bordered.var]])):
        s = s.unroll(loop)
    if reduced:
        s, _ = s.decompose_reduction(name, reduced[0])
    if partial is not None:
        s = schedule_runs(s, partial, reduced[0], [it.var for it in spatial(block)].index(tile.vector.var), tile.lanes)
    for iter_ in (tile.vector, tile.beyond, tile.row):
        if iter_ is not None and not (iter_ is tile.row and bordered is not None):
            position = [it.var for it in block.iters].index(iter_.var)
            s = s.clamp_reads(name, position, masked=iter_ is tile.vector)
            init = f"{name}_init"
            if init in s.nest.blocks:
                where = [it.var for it in spatial(block)].index(iter_.var)
                s = s.clamp_reads(init, where)
    if row is not None and not streamed and not rest:
        s = _prefetch_rows(s, name, tile, panel, [*outer, *tiles[1:]], reduced, machine, space)
    if tile.narrow is None and tile.panel.attr.name in constants and not any(uses(tile.panel, it.var) for it in rest):
        s = _prefetch_panel(s, name, tile, tiles, reduced, machine, space)
    if packing is not None:
        s, _ = s.compute_at(packing, panel)
        if all(load.attr.name in constants for load in value_loads(block_of(s, packing))):
            s = schedule_conversion(s, packing, machine, tile.panel.args.index(tile.vector.var))
        else:
            s = schedule_nest(s, packing, machine, parallel=False, space=space)
        return parallelise(s, [*outer, panel])
    return parallelise(s, [*outer, *(tiles if bordered is None else tiles[:-1])])


def _prefetch_panel(s: Schedule, name: str, tile: Tile, tiles: list[str], reduced: list[str], machine: Machine, space: Space) -> Schedule:
    """While a panel is worked on, ask for the next one, evenly: each is used as often as there are row tiles, and comes from far away."""
    size = tile.vectors * tile.lanes
    for it in reductions(block_of(s, name)):
        if not it.extent.is_const:
            return s
        size *= int(it.extent.value)
    element = tile.panel.dtype.bytes
    line = machine.l1d.line
    extents = [s.nest.loop(loop).stmt.extent for loop in tiles[1:]]
    if math.prod(map(extent_value, extents)) < 2:  # a panel that is used once is a stream
        narrow = element < s.nest.outputs(name)[0].dtype.bytes
        step = (reduced[-1], tile.vectors * tile.lanes)
        return prefetch_stream(s, name, tile.panel.attr.name, (tiles[0], size), step, machine, space) if narrow else s
    passes = _passes(extents, tile.vectors * tile.lanes * element // line)
    steps = [(tiles[0], size, 0)]
    share = -(-size // math.prod(passes))
    inner = share
    for loop, count in zip(reversed(tiles[1:]), reversed(passes), strict=True):
        steps.append((loop, inner, count))
        inner *= count
    # the outermost loop that need not ask for more than two lines at once, and is not unrolled
    at = tiles[-1]
    rolled = [s.nest.loop(loop).stmt.kind != "unrolled" for loop in reduced]
    for i, loop in enumerate(reduced):
        if not any(rolled[i:]) or (share * element <= 2 * line and at == steps[-1][0]):
            break
        share = -(-share // max(int(s.nest.loop(loop).stmt.extent.value), 1))
        at = loop if rolled[i] else at
        steps.append((loop, share, 0))
    lines = min(max(-(-share * element // line), 1), 4)
    stall = size * element / estimated_peaks(machine).memory
    asking = size * element / line / ASSUMED_CLOCK_GHZ
    why = "nanoseconds for each panel: waiting for memory, or asking for it ahead"
    if not space.choose(f"{name}.prefetch", (True, False), lambda ahead: asking if ahead else stall, why):
        return s
    return s.prefetch(at, tile.panel.attr.name, size, steps, lines, line)


def _passes(extents: Sequence[Expr], lines: int) -> list[int]:
    """Over how many iterations of the loops around a row tile to spread asking for a panel of so many cache lines a step. A number that is
    known only while running may be small: then over as few as one line a step takes, and what comes after them asks in vain."""
    left = max(1, -(-lines // math.prod(int(extent.value) for extent in extents if extent.is_const)))
    passes = []
    for extent in reversed(extents):
        passes.append(int(extent.value) if extent.is_const else left)
        left = left if extent.is_const else 1
    return passes[::-1]


def _prefetch_rows(
    s: Schedule, name: str, tile: Tile, panel: str, row_tiles: Sequence[str], reduced: list[str], machine: Machine, space: Space
) -> Schedule:
    """While a row tile is worked on, ask for the rows of the next one, where they come from beyond the second cache: for the first panel,
    and for each where all rows of a block do not stay. `panel`: the loop over panels; `row_tiles`: those over tiles of rows, outermost
    first."""
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
    far = max(1.0 - min(1.0, machine.l2.size / 2 / size), first)
    why = "share of the rows that comes from beyond the second cache and is waited for, or is asked for ahead"
    if not space.choose(f"{name}.prefetch_rows", (False, True), lambda ahead: 0.1 if ahead else far, why):
        return s
    ahead = step = tile.rows * int(depth.value)
    share = step // extent_value(s.nest.loop(reduced[0]).stmt.extent)
    steps = [(reduced[0], share, 0)]
    for loop in reversed(row_tiles):
        steps.append((loop, step, 0))
        step *= extent_value(s.nest.loop(loop).stmt.extent)
    return s.prefetch(reduced[0], buffer.name, ahead, steps, -(-share * rows.dtype.bytes // machine.l1d.line), machine.l1d.line)


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
