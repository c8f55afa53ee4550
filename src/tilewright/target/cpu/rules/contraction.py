"""Sums of products: matrix products and convolutions, by register tiles.

One operand (the panel) gives the vector axis, the other (the rows) is broadcast from memory: with MR rows and NV vectors, one step of
the reduction is NV panel loads and MR*NV multiply-adds on accumulators that stay in registers over the whole reduction. A panel that is
a constant of the model is packed at compile time so that it is read in order; convolutions are the same with output channels as the
vector axis and output columns as rows. Figures that led here: docs/decisions/002-register-tiles.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import Expr
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.elementwise import parallelise
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

MOST_ACCUMULATORS = 24  # past these LLVM begins to spill (measured: docs/decisions/002)
REPACK = 24.0  # vector multiply-adds that packing one vector of a panel while running costs
WORTH = 3.0  # cost from which on the product is better computed as a plain reduction
TRANSPOSED_STORE = 24.0  # vector multiply-adds that storing one vector element by element costs


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: which operand is the panel, its vector iter with `vectors` of `lanes`, the row iter with `rows` (None: no rows)."""

    panel: Expr
    vector: BlockIter
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
    for panel, own, other in ((product.right, own_right, own_left), (product.left, own_left, own_right)):
        # of axes that may be equally long the inner one: outer ones are batches, which are often 1
        row = max(reversed(other), key=lambda it: (it is spatial(block)[-1], extent_value(it.extent))) if other else None
        for vector in own:
            cost, tile = _cost(block, panel, vector, row, constants, lanes, machine)
            if cost < best_cost:
                best, best_cost = tile, cost
    return best if best_cost < WORTH else None


def _cost(
    block: Block, panel: Expr, vector: BlockIter, row: BlockIter | None, constants: frozenset[str], lanes: int, machine: Machine
) -> tuple[float, Tile]:
    """What a multiply-add costs with this tile, relative to the peak, and the tile. Counts lanes wasted on ragged extents, panels that are
    not read in order (gathered once per step and row tile) and results that are not stored in order (once per reduction)."""
    width, height = max(extent_value(vector.extent, 1 << 12), 1), 1 if row is None else max(extent_value(row.extent, 1 << 12), 1)
    needed = -(-width // lanes)
    rows, vectors = register_block(machine, height, needed)
    tile = Tile(panel, vector, vectors, lanes, row if rows > 1 else None, rows)
    padded = -(-needed // vectors) * vectors * lanes * (-(-height // rows)) * rows
    cost = padded / (width * height)
    if not (panel.attr.name in constants or stride(panel, vector.var) == 1):
        cost += REPACK / height
    if vector is not spatial(block)[-1]:
        depth = 1
        for it in reductions(block):
            depth *= max(extent_value(it.extent, 256), 1)
        cost += TRANSPOSED_STORE / depth
    return cost, tile


def register_block(machine: Machine, rows: int, vectors: int) -> tuple[int, int]:
    """Rows and vectors of accumulators: the block that fits the registers, leaving room for the panel's vectors and one broadcast, with the
    least cost: what ragged extents waste, too few accumulators to hide the latency of multiply-adds, and loads for each of them."""
    hide = machine.fma_units * machine.fma_latency
    best, best_cost = (1, 1), float("inf")
    for nv in range(1, min(vectors, 8) + 1):
        for mr in range(1, min(rows, 14) + 1):
            if mr * nv + nv + 1 > machine.vector_registers or mr * nv > MOST_ACCUMULATORS:
                continue
            work = -(-rows // mr) * mr * (-(-vectors // nv) * nv) / (rows * vectors)
            loads = 1 / mr + 0.5 / nv  # broadcasts are part of the multiply-add's instruction
            cost = work * max(1.0, hide / (mr * nv)) * (1 + 0.3 * loads)
            if cost < best_cost - 1e-9:
                best, best_cost = (mr, nv), cost
    return best


def schedule_contraction(s: Schedule, name: str, constants: frozenset[str], machine: Machine) -> Schedule | None:
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
    return _tile_loops(s, name, middle, epilogue, tile)


def _single_epilogue(s: Schedule, name: str) -> str | None:
    """The one injective block that reads the product, if it writes an output point by point."""
    consumers = s.consumers(name)
    if writes_output(s, name) or len(consumers) != 1:
        return None
    block = block_of(s, consumers[0])
    return consumers[0] if is_injective(block) and writes_output(s, consumers[0]) else None


def _pack_panel(s: Schedule, name: str, tile: Tile, constants: frozenset[str]) -> Schedule:
    """Store a panel as [vector / width][reduction ...][width], other dims outside: a constant at compile time, one that is computed and not
    in order by a copy at the start of the kernel."""
    buffer = tile.panel.attr
    position = next((i for i, index in enumerate(tile.panel.args) if index is tile.vector.var), None)
    constant = buffer.name in constants
    if position is None or (not constant and stride(tile.panel, tile.vector.var) == 1):
        return s
    packed = buffer.name
    if not constant:
        if buffer in s.kernel.inputs:
            s, (copy, *_) = s.cache_read(name, packed, "global")
            packed = s.nest.outputs(copy)[0].name
        elif buffer not in s.kernel.scratch:
            return s
    width = tile.vectors * tile.lanes
    block = block_of(s, name)
    reduced = {it.var for it in reductions(block)}
    tiles = [(width,) if i == position else () for i in range(len(tile.panel.args))]
    axes: list[tuple[int, int, bool]] = []  # axis number, dimension, inner
    for dim, factors in enumerate(tiles):
        axes.append((len(axes), dim, False))
        axes.extend((len(axes), dim, True) for _ in factors)
    outside = [a for a, dim, inner in axes if not inner and dim != position and tile.panel.args[dim] not in reduced]
    panel = [a for a, dim, inner in axes if not inner and dim == position]
    inside = [a for a, dim, inner in axes if not inner and dim != position and tile.panel.args[dim] in reduced]
    lanes = [a for a, _, inner in axes if inner]
    return s.pack(packed, tiles, (*outside, *panel, *inside, *lanes))


def _lanes_innermost(s: Schedule, name: str, tile: Tile) -> Schedule:
    """Lay out the buffers that the tile goes through with the vector axis last."""
    position = [it.var for it in spatial(block_of(s, name))].index(tile.vector.var)
    for buffer in (s.nest.outputs(name)[0], *(s.nest.outputs(c)[0] for c in s.consumers(name))):
        if buffer in s.kernel.scratch and position != len(buffer.shape) - 1:
            axes = range(len(buffer.shape))
            s = s.pack(buffer.name, [()] * len(buffer.shape), [*(a for a in axes if a != position), position])
    return s


def _tile_loops(s: Schedule, name: str, middle: str | None, epilogue: str, tile: Tile) -> Schedule:
    block = block_of(s, name)
    loops = dict(zip([it.var for it in block.iters], s.loops_of(name)[-len(block.iters) :], strict=True))
    vector = loops[tile.vector.var]
    row = loops[tile.row.var] if tile.row is not None else None
    reduced = [loops[it.var] for it in reductions(block)]
    # panels outside of what only the rows operand moves with: a panel stays in the cache while the rows stream past
    rest = [it for it in spatial(block) if it.var is not tile.vector.var and (tile.row is None or it.var is not tile.row.var)]
    outer = [loops[it.var] for it in rest if uses(tile.panel, it.var)]
    streamed = [loops[it.var] for it in rest if not uses(tile.panel, it.var)]
    s, (panel, part, lane) = s.split(vector, (None, tile.vectors, tile.lanes))
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
    for iter_ in (tile.vector, tile.row):
        if iter_ is not None:
            position = [it.var for it in block.iters].index(iter_.var)
            s = s.clamp_reads(name, position, masked=iter_ is tile.vector)
            init = f"{name}_init"
            if init in s.nest.blocks:
                where = [it.var for it in spatial(block)].index(iter_.var)
                s = s.clamp_reads(init, where)
    return parallelise(s, [*outer, *tiles])


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
