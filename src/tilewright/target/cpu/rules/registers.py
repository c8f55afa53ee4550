"""How many accumulators to keep in registers."""

from __future__ import annotations

from tilewright.machine.description import Machine

MOST_ACCUMULATORS = 24  # past these LLVM begins to spill (measured: docs/decisions/002)


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
