"""How many accumulators to keep in registers."""

from __future__ import annotations

from tilewright.machine.description import ASSUMED_CLOCK_GHZ, Machine, estimated_peaks

MOST_ACCUMULATORS = 24  # past these LLVM begins to spill (measured: docs/decisions/002)
MOST_ROWS, MOST_VECTORS = 14, 8
OPERAND_LOAD = 1.15  # of its time that a multiply-add takes where each has a broadcast of its own, since the next vector does not share it
DELIVERED = 0.75  # share of the second cache's bandwidth that panels get beside everything else


def register_blocks(machine: Machine, rows: int, vectors: int) -> list[tuple[int, int]]:
    """All blocks of (rows, vectors) accumulators that fit the registers, with room for the panel's vectors and one broadcast."""
    return [
        (mr, nv)
        for nv in range(1, min(vectors, MOST_VECTORS) + 1)
        for mr in range(1, min(rows, MOST_ROWS) + 1)
        if mr * nv + nv + 1 <= machine.vector_registers and mr * nv <= MOST_ACCUMULATORS
    ] or [(1, 1)]


def block_cost(machine: Machine, rows: int, vectors: int, block: tuple[int, int]) -> float:
    """What a multiply-add costs with a block, relative to the peak: what ragged extents waste, too few accumulators to hide the latency of
    multiply-adds, loads for each of them, and a panel that the second cache delivers too slowly for so few rows."""
    mr, nv = block
    hide = machine.fma_units * machine.fma_latency
    work = -(-rows // mr) * mr * (-(-vectors // nv) * nv) / (rows * vectors)
    loads = 1 / mr + 0.5 / nv  # broadcasts are part of the multiply-add's instruction
    alone = OPERAND_LOAD if nv == 1 and vectors > 1 else 1.0
    panel = machine.vector_bits / 8 * machine.fma_units / mr  # bytes a cycle
    late = max(1.0, panel * ASSUMED_CLOCK_GHZ / (DELIVERED * estimated_peaks(machine).l2))
    return work * max(1.0, hide / (mr * nv)) * (1 + 0.3 * loads) * alone * late


def register_block(machine: Machine, rows: int, vectors: int) -> tuple[int, int]:
    """The block with the least cost; of nearly equal ones the one with fewer vectors."""
    best, best_cost = (1, 1), float("inf")
    for block in register_blocks(machine, rows, vectors):
        cost = block_cost(machine, rows, vectors, block)
        if cost < best_cost - 1e-9:
            best, best_cost = block, cost
    return best
