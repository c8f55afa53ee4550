"""Which register tile a product gets: which operand is the panel, along which axes vectors and rows lie, and how many there are of each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr
from tilewright.ir.typical import several_dims, typical_dim
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.borders import Border, Padding, border_of, fits, tile_cost
from tilewright.target.cpu.rules.narrow_weights import OnTile
from tilewright.target.cpu.rules.registers import TYPICAL_DEPTH, ProductShape, block_cost, register_block, register_blocks, versions_cost
from tilewright.target.cpu.rules.structure import MOST_VERSIONS, Product, geometric_mean, reductions, spatial, stride, uses, value_loads

REPACK = 24.0  # vector multiply-adds that packing one vector of a panel while running costs
GATHER = 128.0  # the same where nothing of the panel lies in order, so that its elements are loaded one by one
FAR_PANEL = 0.25  # of a multiply-add's time, at most, where a panel that is read in place goes on to another page with each step
LONG = 32  # rows from which on a longer axis makes no better tiles
WORTH = 3.0  # cost from which on the product is better computed as a plain reduction
PAGE = 4096  # bytes that one translation of addresses covers
COPIED_LINE = 8.0  # cycles to copy a cache line from the second cache or beyond
NEAR_PAGES = 64  # whose translations the first level of every current core holds
NEAR_SHARE = 0.6  # of the first cache, which a panel may fill beside the rows that stream past
MASKED = 0.3  # of a multiply-add's time, where the last vectors of a panel that is read in place are masked, which its loop does for all
FIRST_LINE = 3.0  # cycles to wait for one that then stays in the first cache
BRANCHES = 1.05  # times longer that tiles take whose taps may meet padding at either end of a row of unknown length
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
    `shape`: with typical extents where they are symbolic. `counts`: of rows, several to choose for where they are a side of images."""

    panel: Expr
    vector: BlockIter
    beyond: BlockIter | None
    row: BlockIter | None
    lanes: int
    shape: ProductShape
    counts: tuple[int, ...] = ()


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
    last = next((it for it in reversed(spatial(block)) if typical_dim(it.extent, 2) != 1), None)
    for panel, own, streamed, other in (
        (product.right, own_right, product.left, own_left),
        (product.left, own_left, product.right, own_right),
    ):
        # of axes that may be equally long the inner one
        row = max(reversed(other), key=lambda it: (it is last, _expected(it, streamed))) if other else None
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
        border = border_of(padding, axes.row, block.name, machine, space, lambda found: _slower(axes, found, machine))
    rows, vectors = _choose_block(block, axes, axes.panel.attr.name not in constants, border, machine, space)
    width = max(typical_dim(axes.vector.extent, 1 << 12), 1)
    wide = min(lanes, width) if axes.beyond is not None else lanes
    row = axes.row if rows > 1 or (border is not None and border.taps is not None) else None
    rows_of = broadcast if border is None else border.padding.read
    return Tile(axes.panel, rows_of, axes.vector, axes.beyond, vectors, wide, row, rows, border=border)


def _choose_block(block: Block, axes: Axes, in_place: bool, border: Border | None, machine: Machine, space: Space) -> tuple[int, int]:
    """Rows and vectors of the tile; `in_place`: the panel may be read where it lies."""

    def cost(tile: tuple[int, int]) -> float:
        masked = in_place and axes.beyond is None and is_ragged(axes.panel, axes.vector, tile[1] * axes.lanes)
        if axes.counts:
            return _versions_cost(axes, machine, tile) * (1 + MASKED * masked)
        return block_cost(machine, axes.shape, tile) * (1 + MASKED * masked)

    blocks = register_blocks(machine, _most_rows(axes), axes.shape.vectors)
    why = "time of a multiply-add over that at the peak: ragged ends, latency, loads, panels from afar, what each tile begins and ends with"
    if border is None or border.taps is None:
        return space.choose(f"{block.name}.tile", blocks, cost, why)
    blocks = _bordered(axes, border, machine)
    return space.choose(f"{block.name}.tile", blocks, lambda b: _bordered_cost(axes, border, machine, b), why + ", registers")


def _bordered(axes: Axes, border: Border, machine: Machine) -> list[tuple[int, int]]:
    """The blocks that may skip padding."""
    blocks = register_blocks(machine, _most_rows(axes), axes.shape.vectors)
    return [b for b in blocks if fits(border, b, versions=axes.shape.any_rows)] or [(1, 1)]


def _bordered_cost(axes: Axes, border: Border, machine: Machine, block: tuple[int, int]) -> float:
    return geometric_mean(tile_cost(border, machine, replace(axes.shape, rows=rows), block) for rows in axes.counts or (axes.shape.rows,))


def _slower(axes: Axes, border: Border, machine: Machine) -> float:
    """How many times longer than others tiles take that skip padding, where their rows have versions, so that they must be small."""
    if not axes.shape.any_rows or border.taps is None:
        return 1.0
    plain = min(_versions_cost(axes, machine, block) for block in register_blocks(machine, _most_rows(axes), axes.shape.vectors))
    return BRANCHES * min(_bordered_cost(axes, border, machine, block) for block in _bordered(axes, border, machine)) / plain


def _versions_cost(axes: Axes, machine: Machine, block: tuple[int, int]) -> float:
    """Of the numbers of rows to choose for: the last tile has a version for each (kernel/lower/row_tails.py)."""
    return geometric_mean(versions_cost(machine, replace(axes.shape, rows=rows), block) for rows in axes.counts or (axes.shape.rows,))


def _most_rows(axes: Axes) -> int:
    return min(max(axes.counts), MOST_VERSIONS) if axes.counts else axes.shape.rows


def _depth(block: Block) -> int:
    """Steps of a reduction, typical ones as far as they are symbolic."""
    return math.prod(max(typical_dim(it.extent, TYPICAL_DEPTH), 1) for it in reductions(block))


def _expected(it: BlockIter, streamed: Expr) -> int:
    """Rows to expect along an axis of the operand that rows are read from, as far as they matter. A size that is known only while running
    may be 1, and most likely is where it is the operand's outermost axis: a batch."""
    if it.extent.is_const:
        return min(int(it.extent.value), LONG)
    return min(typical_dim(it.extent), LONG // 8 if uses(streamed.args[0], it.var) else LONG // 2)


def _axes(block: Block, panel: Expr, vector: BlockIter, row: BlockIter | None, lanes: int) -> Axes:
    width = max(typical_dim(vector.extent, 1 << 12), 1)
    height = 1 if row is None else max(typical_dim(row.extent, 1 << 12), 1)
    count = -(-width // lanes)
    beyond = None
    if count == 1 and vector.extent.is_const:
        others = [it for it in spatial(block) if it is not vector and it is not row and uses(panel, it.var) and typical_dim(it.extent) > 1]
        beyond = max(others, key=lambda it: typical_dim(it.extent)) if others and _is_part(panel, vector) else None
    count = count if beyond is None else typical_dim(beyond.extent, 1 << 10)
    turned, any_rows = vector is not spatial(block)[-1], row is not None and not row.extent.is_const
    shape = ProductShape(height, count, _depth(block), turned, any_rows)
    return Axes(panel, vector, beyond, row, lanes, shape, several_dims(row.extent) if row is not None else ())


def _cost(block: Block, axes: Axes, constants: frozenset[str], machine: Machine) -> float:
    """What a multiply-add costs with the best tile on these axes, relative to the peak. Counts lanes wasted on ragged extents, panels that
    are not read in order (gathered once per step and row tile) and results that are not stored in order (once per reduction)."""
    shape = axes.shape
    rows, vectors = register_block(machine, shape)
    width = max(typical_dim(axes.vector.extent, 1 << 12), 1)
    height = shape.rows if axes.counts else -(-shape.rows // rows) * rows
    padded = -(-shape.vectors // vectors) * vectors * axes.lanes * height
    cost = padded / (width * shape.rows * (1 if axes.beyond is None else shape.vectors))
    if axes.panel.attr.name not in constants:
        cost += _reading_cost(block, axes, constants, machine)
    if shape.turned:
        cost += TRANSPOSED_STORE / shape.depth
    return cost


def _reading_cost(block: Block, axes: Axes, constants: frozenset[str], machine: Machine) -> float:
    """What reading a panel that is no constant adds to a multiply-add: packing it while running, or waiting for it where it lies, if the
    other operand is a constant, which could be the panel instead."""
    steps = {it: stride(axes.panel, it.var) for it in block.iters if typical_dim(it.extent) > 1}
    if stride(axes.panel, axes.vector.var) != 1:
        turned = any(step == 1 and typical_dim(it.extent) >= axes.lanes for it, step in steps.items())
        return (REPACK if turned else GATHER) / axes.shape.rows
    apart = [(steps[it] or 0) * axes.panel.dtype.bytes for it in reductions(block) if it in steps]
    if all(load is axes.panel or load.attr.name not in constants for load in value_loads(block)):
        return 0.0
    masks = min(MASKED, COPIED_LINE * machine.fma_units / axes.shape.rows) if is_ragged(axes.panel, axes.vector, axes.lanes) else 0.0
    if max(apart, default=0) < PAGE:
        return masks
    _, vectors = register_block(machine, axes.shape)
    waiting = FIRST_LINE if stays_near(block, axes.panel, vectors * axes.lanes, machine) else COPIED_LINE
    return min(FAR_PANEL, waiting * machine.fma_units / axes.shape.rows) + masks


def is_ragged(panel: Expr, vector: BlockIter, width: int) -> bool:
    """Whether vectors of a panel in order end before `width` elements do."""
    return vector.extent.is_const and int(vector.extent.value) % width != 0 and stride(panel, vector.var) == 1


def stays_near(block: Block, panel: Expr, width: int, machine: Machine) -> bool:
    """Whether a panel of so many elements for each step stays in the first cache where it lies, from its first use to its last."""
    line = machine.l1d.line
    reduced = [it for it in reductions(block) if uses(panel, it.var)]
    depth = math.prod(max(typical_dim(it.extent, TYPICAL_DEPTH), 1) for it in reduced)
    steps = [stride(panel, it.var) for it in reduced]
    pages = depth * min(1.0, max((PAGE if step is None else abs(step) * panel.dtype.bytes for step in steps), default=0) / PAGE)
    lines = depth * -(-width * panel.dtype.bytes // line)
    return pages <= NEAR_PAGES and lines * line <= NEAR_SHARE * machine.l1d.size


def _is_part(panel: Expr, vector: BlockIter) -> bool:
    """The vector iter is the fast part of an index of the panel: `a * lanes + v`."""
    return vector.var not in panel.args
