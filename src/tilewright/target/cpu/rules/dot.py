"""Products of narrow numbers, by register tiles of instructions that add several products at once (`target/cpu/dots.py`).

As for floats (`contraction.py`) one operand, the panel, gives the vector axis and the other, the rows, is broadcast. What differs:
neighbouring points of one reduction axis go into one instruction. So the rows must be contiguous along it (a broadcast takes 4 bytes),
and the panel is packed as [vectors ...][reduction ...][vectors of a tile][lanes][factors]. Sums of integers are exact in any
order; bfloat16 is summed in float32, which may be added up in another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.dots import DotInstruction, dot_instruction
from tilewright.target.cpu.rules.ahead import prefetch_panel, prefetch_short_rows
from tilewright.target.cpu.rules.blocking import block_rows
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.packing import parts_of
from tilewright.target.cpu.rules.register_tile import Tile
from tilewright.target.cpu.rules.structure import (
    Product,
    as_product,
    block_of,
    extent_value,
    reductions,
    spatial,
    stride,
    uses,
)
from tilewright.target.cpu.rules.tile_loops import TileLoops, clamp_tile, place_epilogue, split_tile, take_epilogue

LOADS = 2  # started per cycle: broadcasts of rows, vectors of the panel
REMOTE = 4.0  # bytes of weights, in order, that take as long as one in short runs that another core has written (docs/decisions/028)
UNROLLED = 8  # steps of the contracted axis that are written out; beyond, they are a loop


@dataclass(frozen=True, slots=True)
class DotTile:
    """panel, rows: the loads. vector: the iter of the lanes; `beyond`: the iter along which the tile has further vectors, where `vector` is
    no longer than one. row: the iter of the rows (None: no rows). contracted: the reduction iter whose points go into one instruction."""

    instruction: DotInstruction
    panel: Expr
    rows: Expr
    vector: BlockIter
    beyond: BlockIter | None
    row: BlockIter | None
    contracted: BlockIter
    lanes: int


def schedule_dot(
    s: Schedule, name: str, constants: frozenset[str], machine: Machine, space: Space, reassociate: bool = True
) -> Schedule | None:
    """The kernel with product block `name` in tiles of dot instructions and its consumer on them; None where no instruction fits.
    `reassociate`: sums of floats may be added up in another order."""
    product = as_product(block_of(s, name))
    tile = None if product is None else dot_tile(product, constants, machine)
    if tile is None or (tile.instruction.sums.is_float and not reassociate):
        return None
    taken = take_epilogue(s, name)
    if taken is None:
        return None
    s, epilogue = taken
    height, count = _tile_size(tile, machine, space)
    s = packed_panel(s, name, tile, count, constants)
    position = block_of(s, name).iters.index(tile.contracted)
    s = s.dot(name, position, tile.instruction.factors)
    register = Tile(tile.panel, tile.rows, tile.vector, tile.beyond, count, tile.lanes, tile.row, height)
    s, loops, blocks = _tile_loops(s, name, epilogue, register, machine, space)
    if tile.panel.attr.name in constants and not loops.outer:
        step = count * tile.lanes * tile.instruction.factors
        s = prefetch_panel(s, name, register, step, loops.tiles, loops.reduced, machine, space)
        s = prefetch_short_rows(s, name, register, blocks, loops.tiles, loops.reduced, machine, space)
    return parallelise(s, [*blocks, *loops.outer, *loops.tiles])


def dot_tile(product: Product, constants: frozenset[str], machine: Machine) -> DotTile | None:
    """Which operand is the panel, which the rows, and along which axes; None where no instruction fits."""
    block = product.block
    body = block.body
    assert isinstance(body, Store)
    found = dot_instruction(machine, product.left.dtype, product.right.dtype)
    if found is None or body.buffer.dtype is not found[0].sums or not spatial(block):
        return None  # a sum of everything has no axis for the lanes
    instruction = found[0]
    lanes = machine.lanes(32)
    vector = spatial(block)[-1]  # what is stored in order
    for panel, rows in ((product.right, product.left), (product.left, product.right)):
        if not uses(panel, vector.var) or uses(rows, vector.var):
            continue
        inner = [it for it in reductions(block) if uses(panel, it.var) and stride(rows, it.var) == 1 and _divides(it, rows, instruction)]
        if not inner or not (panel.attr.name in constants or _packable(panel, block)):
            continue
        own = [it for it in spatial(block) if it is not vector and not uses(panel, it.var) and uses(rows, it.var)]
        row = max(reversed(own), key=lambda it: extent_value(it.extent, 1 << 12)) if own else None
        others = [it for it in spatial(block) if it is not vector and uses(panel, it.var) and not uses(rows, it.var)]
        short = vector.extent.is_const and vector.extent.value <= lanes and vector.var not in panel.args
        beyond = max(others, key=lambda it: extent_value(it.extent)) if short and others else None
        width = min(lanes, int(vector.extent.value)) if short else lanes
        return DotTile(instruction, panel, rows, vector, beyond, row, inner[-1], width)
    return None


def _divides(it: BlockIter, rows: Expr, instruction: DotInstruction) -> bool:
    """Whole groups of factors; or an axis of its own, of which only the last step is ragged."""
    return (it.extent.is_const and it.extent.value % instruction.factors == 0) or it.var in rows.args


def _packable(panel: Expr, block: Block) -> bool:
    return all(parts_of(index, {it.var: it.extent for it in block.iters}) is not None for index in panel.args)


def _tile_size(tile: DotTile, machine: Machine, space: Space) -> tuple[int, int]:
    """Rows and vectors of a tile: (height, count)."""
    length = extent_value(tile.vector.extent, 1 << 10)
    vectors = -(-length // tile.lanes) if tile.beyond is None else extent_value(tile.beyond.extent, 1 << 10)
    rows = 1 if tile.row is None else extent_value(tile.row.extent, 1 << 12)
    dot = tile.instruction
    sizes = [
        (height, count)
        for count in range(1, min(vectors, 6) + 1)
        for height in range(1, min(rows, 14) + 1)
        if height * count + count * dot.parts + dot.registers <= machine.vector_registers
    ]
    hide = machine.fma_units * (machine.fma_latency + 1) if dot.chained else 0

    def cost(size: tuple[int, int]) -> float:
        height, count = size
        dots = height * count
        waste = -(-rows // height) * height * -(-vectors // count) * count / (rows * vectors)
        loads = (height + count) * machine.fma_units / (LOADS * dots * dot.operations)
        made = (height * dot.rows + count * dot.panel) / (dots * dot.operations)
        return waste * max(1.0 + made, hide / dots, loads) * (1 + 0.1 * (1 / height + 0.5 / count))

    return space.choose("dot_tile", sizes, cost, "rows x vectors: ragged waste, sums too few to hide the latency, loads, widening")


def packed_panel(s: Schedule, name: str, tile: DotTile, count: int, constants: frozenset[str]) -> Schedule:
    """The panel as [outer][vectors / count][reduction][count][lanes][factors]: at compile time, or by a copy at the start."""
    buffer = tile.panel.attr.name
    if buffer not in constants:
        s, (copy, *_) = s.cache_read(name, buffer, "global")
        buffer = s.nest.outputs(copy)[0].name
    block = block_of(s, name)
    extents = {it.var: it.extent for it in block.iters}
    order = [it.var for it in (*spatial(block), *reductions(block))]
    reduced = {it.var for it in reductions(block)}
    factors = tile.instruction.factors
    tiles: list[tuple[int, ...]] = []
    axes: list[tuple[tuple[int, int], int]] = []  # (group, position in it) to sort by, number of the axis

    def axis(group: int, place: int) -> None:
        axes.append(((group, place), len(axes)))

    for index in tile.panel.args:
        own: list[int] = []
        for i, part in enumerate(parts_of(index, extents) or ()):
            first = i == 0
            if part is tile.contracted.var:
                steps = -(-extent_value(tile.contracted.extent) // factors)
                own += [factors] if first else [steps, factors]
                axis(2, order.index(part))
                axis(5, 0)
            elif part is tile.vector.var and tile.beyond is None:
                own += [count, tile.lanes] if first else [-(-extent_value(extents[part]) // (count * tile.lanes)), count, tile.lanes]
                axis(1, 0)
                axis(3, 0)
                axis(4, 0)
            elif tile.beyond is not None and part is tile.beyond.var:
                own += [count]
                axis(1, 0)
                axis(3, 0)
            else:
                own += [] if first else [extent_value(extents[part])]
                axis(4 if part is tile.vector.var else 2 if part in reduced else 0, order.index(part) if part in order else 0)
        tiles.append(tuple(own))
    return s.pack(buffer, tiles, [number for _, number in sorted(axes)])


def _tile_loops(s: Schedule, name: str, epilogue: str, tile: Tile, machine: Machine, space: Space) -> tuple[Schedule, TileLoops, list[str]]:
    """The tiles, and loops over blocks of rows around them; of the loops of the reduction only those that are not written out."""
    s, loops = split_tile(s, name, tile)
    blocks: list[str] = []
    if not loops.outer:
        rows, panels = tile.broadcast.attr, tile.panel.attr
        remote = REMOTE if in_short_runs(tile.broadcast, block_of(s, name), machine) else 0.0
        s, blocks, tiles = block_rows(s, name, rows, panels, loops.tiles, len(loops.tiles), machine, space, remote)
        loops = replace(loops, tiles=tiles)
    s = s.reorder(*blocks, *loops.outer, *loops.tiles, *loops.reduced, *loops.inner)
    s = place_epilogue(s, epilogue, loops.tiles[-1], tile)
    s = s.vectorize(loops.lane)
    for loop in loops.inner[:-1]:
        s = s.unroll(loop)
    rolled = loops.reduced
    steps = s.nest.loop(rolled[-1]).stmt.extent
    if len(rolled) > 1 and steps.is_const and steps.value <= UNROLLED:
        s = s.unroll(rolled[-1])
        rolled = rolled[:-1]
    s, _ = s.decompose_reduction(name, loops.reduced[0])
    return clamp_tile(s, name, tile), replace(loops, reduced=rolled), blocks


def in_short_runs(rows: Expr, block: Block, machine: Machine) -> bool:
    """Whether rows lie apart from one step of a reduction to the next, so that the hardware does not see what comes."""
    steps = [stride(rows, it.var) for it in reductions(block)]
    return any(step is None or abs(step) * rows.dtype.bytes > machine.l1d.line for step in steps)
