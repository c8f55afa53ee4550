"""Products of narrow numbers by tile instructions (`target/cpu/dots.py`, Intel AMX).

The operands are those of `dot.py`: a panel with the vector axis, rows with their factors side by side. A register tile is one to three
tiles of up to 16 rows by as many of 16 lanes; the reduction goes in steps of up to 64 bytes of a row. Sums stay in tile registers over the
whole reduction, then go to memory that stays in the first cache, from where the consumer takes them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple

from tilewright.kernel.nodes import Block, BlockIter
from tilewright.kernel.schedule.matrix import ROWS
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.dots import MATRIX_REGISTERS, MatrixInstruction, matrix_instructions
from tilewright.target.cpu.rules.ahead import prefetch_panel
from tilewright.target.cpu.rules.blocking import block_rows
from tilewright.target.cpu.rules.dot import LOADS, REMOTE, DotTile, dot_tile, in_short_runs, packed_panel
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.register_tile import Tile
from tilewright.target.cpu.rules.structure import as_product, block_of, extent_value, reductions, spatial, stride, uses
from tilewright.target.cpu.rules.tile_loops import clamp_tile, place_epilogue, split_tile, take_epilogue

STEPS = 16  # of the reduction in one instruction: rows of a tile of the panel
LEAST_STEPS = 4  # fewer leave too much of the registers empty
LATENCY = 52.0  # cycles from one product to the next that adds to the same sums
FEW_ROWS = 8.0  # an instruction on fewer rows takes as long as one on so many
KEPT = 0.5  # of the first cache, which a panel may fill and stay there
FAR_LOAD = 1.5  # cycles to load one row of a tile from beyond it
STORED = 1.5  # cycles to store one row of sums, and to load it again
BEGUN = 40.0  # cycles that a register tile takes beside its products and stores: shapes, latencies of the first and the last


def schedule_matrix(
    s: Schedule, name: str, constants: frozenset[str], machine: Machine, space: Space, reassociate: bool = True
) -> Schedule | None:
    """The kernel with product block `name` in tiles of matrix instructions and its consumer on them; None where no instruction fits, or
    where dot products are expected to be faster. `reassociate`: sums of floats may be added up in another order."""
    product = as_product(block_of(s, name))
    tile = None if product is None else dot_tile(product, constants, machine)
    if tile is None:
        return None
    instruction = _instruction(tile, machine)
    if instruction is None or (instruction.sums.is_float and not reassociate):
        return None
    steps = _steps(tile, instruction)
    if tile.row is None or steps is None or stride(tile.rows, tile.row.var) is None or tile.panel.attr.name not in constants:
        return None
    beside = _beside(block_of(s, name), tile)
    size = _tile_size(tile, beside, steps, s, name, machine, space)
    if not size.height:
        return None
    taken = take_epilogue(s, name)
    if taken is None:
        return None
    s, epilogue = taken
    s = packed_panel(s, name, tile, size.wide, constants)
    block = block_of(s, name)
    position = reductions(block).index(tile.contracted)
    s = s.dot(name, block.iters.index(tile.contracted), instruction.factors)
    rows = size.height if beside is not None else size.height * size.tall
    register = Tile(tile.panel, tile.rows, tile.vector, tile.beyond, size.wide, tile.lanes, tile.row, rows)
    return _loops(s, name, epilogue, register, tile, beside, size, (position, steps), instruction, machine, space)


class TileSize(NamedTuple):
    """A register tile: rows of a tile, how many tiles of rows, how many of lanes. No rows: no tiles at all."""

    height: int = 0
    tall: int = 0
    wide: int = 0


def _beside(block: Block, tile: DotTile) -> BlockIter | None:
    """The iter that tiles of rows are along where one tile holds all rows there are: rows of an image, say."""
    if tile.row is None or not tile.row.extent.is_const or tile.row.extent.value > ROWS:
        return None
    others = [it for it in spatial(block) if it not in (tile.row, tile.vector, tile.beyond) and not uses(tile.panel, it.var)]
    others = [it for it in others if uses(tile.rows, it.var) and it.extent.is_const and it.extent.value > 1]
    return max(reversed(others), key=lambda it: int(it.extent.value), default=None)


def _instruction(tile: DotTile, machine: Machine) -> MatrixInstruction | None:
    wanted = (tile.rows.dtype, tile.panel.dtype)
    return next((found for found in matrix_instructions(machine) if (found.left, found.right) == wanted), None)


def _steps(tile: DotTile, instruction: MatrixInstruction) -> int | None:
    """Steps of the reduction in one instruction, without a rest."""
    extent = tile.contracted.extent
    return tile_steps(int(extent.value), instruction) if extent.is_const else None


def tile_steps(terms: int, instruction: MatrixInstruction) -> int | None:
    """Steps of one instruction for so many terms that lie side by side, without a rest; None where they would leave most of it empty."""
    if terms % instruction.factors:
        return None
    best = max((n for n in range(1, STEPS + 1) if terms // instruction.factors % n == 0), default=1)
    return best if best >= LEAST_STEPS else None


def _tile_size(tile: DotTile, beside: BlockIter | None, steps: int, s: Schedule, name: str, machine: Machine, space: Space) -> TileSize:
    """The register tile, without rows where dot products are faster. `beside`: the iter that tiles of rows are along, else that of rows."""
    assert tile.row is not None
    block = block_of(s, name)
    length = extent_value(tile.vector.extent, 1 << 10)
    vectors = -(-length // tile.lanes) if tile.beyond is None else extent_value(tile.beyond.extent, 1 << 10)
    rows = extent_value(tile.row.extent, 1 << 12)
    images = 1 if beside is None else int(beside.extent.value)
    terms = prod(max(extent_value(it.extent), 1) for it in reductions(block))
    products = -(-terms // (tile.instruction.factors * steps))  # instructions for each tile of sums
    heights = {rows} if beside is not None else {min(rows, ROWS), *(n for n in range(8, ROWS + 1) if rows % n == 0)}
    sizes = [
        TileSize(height, tall, count)
        for height in sorted(heights)
        for tall in range(1, 4)
        for count in range(1, min(vectors, 3) + 1)
        if tall * count + tall + count <= MATRIX_REGISTERS and (images % tall == 0 if beside is not None else (tall - 1) * height < rows)
    ]

    def cycles(size: TileSize) -> float:
        """Of the whole product, for each of its other axes."""
        panel = products * size.wide * steps * tile.lanes * 4
        far = FAR_LOAD if panel > KEPT * machine.l1d.size else 1 / LOADS
        total = 0.0
        for parts, times in _register_tiles(size, rows, images, beside is not None):
            computing = size.wide * sum(max(n, FEW_ROWS) for n in parts)
            loading = sum(parts) / LOADS + size.wide * steps * far
            total += times * (products * max(computing, loading, LATENCY) + STORED * sum(parts) * size.wide + BEGUN)
        return total * -(-vectors // size.wide)

    # the same by dot products: each takes a unit one cycle or more, in tiles whose loads are hidden
    dot = tile.instruction
    dots = rows * images * vectors * terms / dot.factors / machine.fma_units * dot.operations if dot.chained else float("inf")
    why = "cycles: products or loads of tiles, sums to memory and back, ragged rows; or of dot products instead"
    return space.choose("matrix_tile", [TileSize(), *sizes], lambda size: cycles(size) if size.height else dots, why)


def _register_tiles(size: TileSize, rows: int, images: int, beside: bool) -> list[tuple[list[int], int]]:
    """The rows of the tiles in a register tile, and how many such register tiles there are."""
    if beside:
        found = [([size.height] * size.tall, images // size.tall)]
    else:
        step = size.height * size.tall
        found = [
            ([min(size.height, here - at) for at in range(0, here, size.height)], times)
            for here, times in ((step, rows // step), (rows % step, 1))
        ]
    return [(parts, times) for parts, times in found if parts and times]


def _loops(
    s: Schedule,
    name: str,
    epilogue: str,
    register: Tile,
    tile: DotTile,
    beside: BlockIter | None,
    size: TileSize,
    split: tuple[int, int],
    instruction: MatrixInstruction,
    machine: Machine,
    space: Space,
) -> Schedule:
    """The tiles of a size, along `beside` where that is an iter, the reduction number `split[0]` in steps of `split[1]`, and the
    consumer."""
    position, steps = split
    block = block_of(s, name)
    around = dict(zip([it.var for it in block.iters], s.loops_of(name)[-len(block.iters) :], strict=True))
    s, loops = split_tile(s, name, register)
    row, part, lane = loops.inner
    if beside is None:
        s, (row_tile, row) = s.split(row, (size.tall, size.height))
    else:
        s, (stack, row_tile) = s.split(around[beside.var], size.tall)
        loops = replace(loops, tiles=[stack if loop == around[beside.var] else loop for loop in loops.tiles])
    blocks: list[str] = []
    if not loops.outer:
        remote = REMOTE if in_short_runs(tile.rows, block_of(s, name), machine) else 0.0
        s, blocks, tiles = block_rows(s, name, tile.rows.attr, tile.panel.attr, loops.tiles, len(loops.tiles), machine, space, remote)
        loops = replace(loops, tiles=tiles)
    step_loop = loops.reduced[position]
    s, (outer_step, step) = s.split(step_loop, (None, steps))
    reduced = [outer_step if loop == step_loop else loop for loop in loops.reduced]
    s = s.reorder(*blocks, *loops.outer, *loops.tiles, *reduced, row_tile, part, row, step, lane)
    s = place_epilogue(s, epilogue, loops.tiles[-1], register, rolled=True)
    s = s.vectorize(lane)
    s = s.unroll(row_tile)
    s = s.unroll(part)
    s, (_, *cleared) = s.decompose_reduction(name, reduced[0])
    s = clamp_tile(s, name, register, rows=False)
    s = s.matrix(row).matrix(cleared[-2])
    if not loops.outer:
        step_size = register.vectors * register.lanes * instruction.factors
        s = prefetch_panel(s, name, register, step_size, loops.tiles, reduced, machine, space)
    return parallelise(s, [*blocks, *loops.outer, *loops.tiles])
