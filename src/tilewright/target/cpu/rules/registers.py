"""How many accumulators to keep in registers, and what a register tile costs. Figures behind it: docs/decisions/029-cost-of-a-tile.md."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.machine.description import ASSUMED_CLOCK_GHZ, Machine

MOST_ACCUMULATORS = 24  # past these LLVM begins to spill (measured: docs/decisions/002)
MOST_ROWS, MOST_VECTORS = 14, 8
LOADS = 2  # vectors that the first cache delivers a cycle
STAYS, GOES = 0.8, 2.0  # of the first cache: a panel up to the one stays there from one tile of rows to the next, of the other nothing does
SECOND = 0.75  # lines that the second cache delivers a cycle, where nobody measured
DELIVERED = 0.5  # share of that up to which a panel keeps up with multiply-adds, beside everything else
OVERLAP = 0.08  # share of what is not the bottleneck that is not hidden behind it
STREAMED = 0.23  # the same of rows, which come from the second cache for each panel
BEGUN = 24.0  # cycles of each tile beside its steps: zeros, addresses, the last multiply-adds' latency, a branch that goes the other way
# the same for each lane where results are stored across them: of each vector and half vector of rows, and of each vector past two, for
# which LLVM lacks registers
ACROSS, SPILLED = 1.1, 2.6
ALONE = 1.1  # of its time that a multiply-add takes where no other shares its broadcast
FEW_ROWS = 128  # where their number is known only while running: tokens of a sentence, images of a batch
TYPICAL_DEPTH = 256  # steps of a reduction of unknown length


@dataclass(frozen=True, slots=True)
class ProductShape:
    """What of a product its register tile depends on: rows, vectors of a whole panel, `depth`: steps of its reduction. `turned`: results
    go across lanes to memory. `any_rows`: the number of rows is known only while running."""

    rows: int
    vectors: int
    depth: int = TYPICAL_DEPTH
    turned: bool = False
    any_rows: bool = False


def register_blocks(machine: Machine, rows: int, vectors: int) -> list[tuple[int, int]]:
    """All blocks of (rows, vectors) accumulators that fit the registers, with room for the panel's vectors and one broadcast."""
    return [
        (mr, nv)
        for nv in range(1, min(vectors, MOST_VECTORS) + 1)
        for mr in range(1, min(rows, MOST_ROWS) + 1)
        if mr * nv + nv + 1 <= machine.vector_registers and mr * nv <= MOST_ACCUMULATORS
    ] or [(1, 1)]


def tile_cycles(machine: Machine, shape: ProductShape, rows: int, vectors: int) -> float:
    """Cycles of a tile with (rows, vectors) accumulators. Of what a step of the reduction takes the longest counts and a share of the rest:
    multiply-adds, no faster than their latency lets each accumulator take the next; loads, of each vector of the panel and of a broadcast
    for each row; and the panel, as far as it does not stay in the first cache and comes from the second for each tile of rows. What a
    tile costs beside its steps counts where the reduction is short."""
    line, depth = machine.vector_bits / 8, max(shape.depth, 1)
    second = machine.l1d.line * SECOND if machine.peaks is None else machine.peaks.l2 / ASSUMED_CLOCK_GHZ  # bytes a cycle
    first = LOADS * line
    size = depth * vectors * line / machine.l1d.size
    far = min(max((size - STAYS) / (GOES - STAYS), 0.0), 1.0) if shape.rows > rows else 1.0  # what is used once was nowhere before
    broadcasts = rows if machine.arch != "x86_64" or machine.has("avx") else 2 * rows  # by a load, or by a load and a shuffle
    panel = vectors * line * (far / second + (1 - far) / first)
    each = (max(rows * vectors / machine.fma_units, float(machine.fma_latency)), (broadcasts + vectors) / LOADS, panel)
    step = max(*each, panel / DELIVERED if far else 0.0) + OVERLAP * (sum(each) - max(each)) + STREAMED * 4 * rows / second
    step *= ALONE if vectors == 1 < shape.vectors else 1.0
    return depth * step + beginning(machine, shape, rows, vectors)


def beginning(machine: Machine, shape: ProductShape, rows: int, vectors: int) -> float:
    """Cycles of a tile beside its steps."""
    lanes = machine.lanes(32)
    across = (ACROSS * vectors * -(-2 * rows // lanes) + SPILLED * max(vectors - 2, 0)) * lanes
    return BEGUN + (across if shape.turned else 0.0)


def block_cost(machine: Machine, shape: ProductShape, block: tuple[int, int]) -> float:
    """What a multiply-add costs with a block, relative to the peak. Ragged extents are computed in full; of an unknown number of rows
    half a tile counts as in vain for each FEW_ROWS."""
    rows, vectors = block
    row_tiles = shape.rows / rows * (1 + (rows - 1) / (2 * FEW_ROWS)) if shape.any_rows else -(-shape.rows // rows)
    cycles = row_tiles * -(-shape.vectors // vectors) * tile_cycles(machine, shape, rows, vectors)
    return cycles * machine.fma_units / (max(shape.depth, 1) * shape.rows * shape.vectors)


def versions_cost(machine: Machine, shape: ProductShape, block: tuple[int, int]) -> float:
    """The same where the last tile of rows has a version for each number of rows."""
    rows, vectors = block
    full, rest = divmod(shape.rows, rows)
    cycles = full * tile_cycles(machine, shape, rows, vectors) + (tile_cycles(machine, shape, rest, vectors) if rest else 0.0)
    return cycles * -(-shape.vectors // vectors) * machine.fma_units / (max(shape.depth, 1) * shape.rows * shape.vectors)


def register_block(machine: Machine, shape: ProductShape) -> tuple[int, int]:
    """The block with the least cost; of nearly equal ones the one with fewer vectors."""
    best, best_cost = (1, 1), float("inf")
    for block in register_blocks(machine, shape.rows, shape.vectors):
        cost = block_cost(machine, shape, block)
        if cost < best_cost - 1e-9:
            best, best_cost = block, cost
    return best
