"""Products of narrow numbers by tile instructions (`target/cpu/dots.py`, Intel AMX).

The operands are those of `dot.py`: a panel with the vector axis, rows with their factors side by side. A register tile is one to three
tiles of up to 16 rows by as many of 16 lanes; the reduction goes in steps of up to 64 bytes of a row. Sums stay in tile registers over the
whole reduction, then go to memory that stays in the first cache, from where the consumer takes them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

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
from tilewright.target.cpu.rules.structure import as_product, block_of, extent_value, reductions, stride
from tilewright.target.cpu.rules.tile_loops import clamp_tile, place_epilogue, split_tile, take_epilogue

STEPS = 16  # of the reduction in one instruction: rows of a tile of the panel
LEAST_STEPS = 4  # fewer leave too much of the registers empty
FEW_ROWS = 8.0  # an instruction on fewer rows takes as long as one on so many
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
    height, tall, count = _tile_size(tile, steps, s, name, machine, space)
    if not height:
        return None
    taken = take_epilogue(s, name)
    if taken is None:
        return None
    s, epilogue = taken
    s = packed_panel(s, name, tile, count, constants)
    block = block_of(s, name)
    position = reductions(block).index(tile.contracted)
    s = s.dot(name, block.iters.index(tile.contracted), instruction.factors)
    register = Tile(tile.panel, tile.rows, tile.vector, tile.beyond, count, tile.lanes, tile.row, height * tall)
    return _loops(s, name, epilogue, register, tile, (height, tall), (position, steps), instruction, machine, space)


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


def _tile_size(tile: DotTile, steps: int, s: Schedule, name: str, machine: Machine, space: Space) -> tuple[int, int, int]:
    """Rows of a tile, tiles of rows and tiles of lanes of a register tile; no rows where dot products are faster."""
    assert tile.row is not None
    block = block_of(s, name)
    length = extent_value(tile.vector.extent, 1 << 10)
    vectors = -(-length // tile.lanes) if tile.beyond is None else extent_value(tile.beyond.extent, 1 << 10)
    rows = extent_value(tile.row.extent, 1 << 12)
    terms = prod(max(extent_value(it.extent), 1) for it in reductions(block))
    products = -(-terms // (tile.instruction.factors * steps))  # instructions for each tile of sums
    whole = [n for n in range(8, ROWS + 1) if rows % n == 0]
    heights = sorted({min(rows, ROWS), *whole})
    sizes = [
        (height, tall, count)
        for height in heights
        for tall in range(1, 4)
        for count in range(1, min(vectors, 3) + 1)
        if tall * count + tall + count <= MATRIX_REGISTERS and (tall - 1) * height < rows
    ]

    def cycles(size: tuple[int, int, int]) -> float:
        """Of the whole product, for each of its other axes."""
        height, tall, count = size
        total = 0.0
        left = rows
        per_tile = height * tall
        for here, times in ((per_tile, left // per_tile), (left % per_tile, 1)):
            if here == 0:
                continue
            parts = [min(height, here - at) for at in range(0, here, height)]
            computing = count * sum(max(n, FEW_ROWS) for n in parts)
            loading = (here + count * steps) / LOADS
            stored = STORED * here * count
            total += times * (products * max(computing, loading) + stored + BEGUN)
        return total * -(-vectors // count)

    # the same by dot products: each takes a cycle of a unit, in tiles whose loads are hidden
    dots = rows * vectors * terms / tile.instruction.factors / machine.fma_units if _has_dot(tile) else float("inf")
    why = "cycles: products or loads of tiles, sums to memory and back, ragged rows; or of dot products instead"
    options = [(0, 0, 0), *sizes]
    return space.choose("matrix_tile", options, lambda size: cycles(size) if size[0] else dots, why)


def _has_dot(tile: DotTile) -> bool:
    return tile.instruction.chained


def _loops(
    s: Schedule,
    name: str,
    epilogue: str,
    register: Tile,
    tile: DotTile,
    rows: tuple[int, int],
    split: tuple[int, int],
    instruction: MatrixInstruction,
    machine: Machine,
    space: Space,
) -> Schedule:
    """The tiles of `rows` (rows of one, how many), the reduction number `split[0]` in steps of `split[1]`, and the consumer."""
    height, tall = rows
    position, steps = split
    s, loops = split_tile(s, name, register)
    blocks: list[str] = []
    if not loops.outer:
        remote = REMOTE if in_short_runs(tile.rows, block_of(s, name), machine) else 0.0
        s, blocks, tiles = block_rows(s, name, tile.rows.attr, tile.panel.attr, loops.tiles, len(loops.tiles), machine, space, remote)
        loops = replace(loops, tiles=tiles)
    row, part, lane = loops.inner
    step_loop = loops.reduced[position]
    s, (outer_step, step) = s.split(step_loop, (None, steps))
    reduced = [outer_step if loop == step_loop else loop for loop in loops.reduced]
    s, (row_tile, row) = s.split(row, (tall, height))
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
