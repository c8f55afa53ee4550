"""What pairs of convolutions cost on a CPU, in one kernel and in two, in nanoseconds, by the description of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.machine.description import Machine, estimated_peaks
from tilewright.target.cpu.rules.registers import block_cost, register_blocks
from tilewright.transform.pair_convolutions import Pair, Stage

KEPT = 0.75  # of the second-level cache: what is written there up to this size is still there when it is read
HIDDEN = 0.3  # of arithmetic and moving data, the share of the shorter that is left beside the longer (docs/decisions/019)
WORTH = 0.98  # of the cost of two kernels that one may have: its code is larger, and takes longer to compile


@dataclass(frozen=True, slots=True)
class CpuPairCost:
    """`transform.pair_convolutions.PairCost` of the mean of one thread and all cores."""

    machine: Machine

    def apart(self, pair: Pair) -> float:
        machine, between = self.machine, result_bytes(pair.first, pair.lanes)
        moved = moving(between, between, machine)
        serial = sum(busy(arithmetic(stage, pair.lanes, machine), moved) for stage in (pair.first, pair.second))
        return WORTH * serial * (1 + 1 / machine.cores) / 2

    def together(self, pair: Pair) -> float:
        dense = pair.second if pair.first.depthwise else pair.first
        found = dense_tiles(self.machine, dense.space[-1], dense.blocks)
        _, vectors = min(found, key=lambda block: block_cost(self.machine, dense.space[-1], dense.blocks, block))
        return min(strip_cost(pair, vectors, rows, self.machine) for rows in strips(pair.second.space[0]))


def dense_tiles(machine: Machine, width: int, blocks: int) -> list[tuple[int, int]]:
    """Register tiles of (columns, blocks of channels) that leave no part of a tile of channels over."""
    return [(rows, vectors) for rows, vectors in register_blocks(machine, width, blocks) if blocks % vectors == 0]


def strips(height: int) -> list[int]:
    """Heights of strips, of each number of strips the smallest."""
    return sorted({-(-height // count) for count in range(1, height + 1)})


def rows_needed(pair: Pair, rows: int) -> int:
    """Rows of the first convolution that a strip of the second reads."""
    return min((rows - 1) * pair.second.strides[0] + pair.second.window[0], pair.first.space[0])


def result_bytes(stage: Stage, lanes: int) -> int:
    return stage.images * stage.blocks * prod(stage.space) * lanes * 4


def arithmetic(stage: Stage, lanes: int, machine: Machine) -> float:
    """Nanoseconds of multiply-adds and elementwise operations at the peak."""
    steps = stage.depth * prod(stage.window) + stage.operations
    return 2.0 * stage.images * stage.blocks * lanes * prod(stage.space) * steps / estimated_peaks(machine).f32


def moving(moved: float, at_once: float, machine: Machine) -> float:
    """Nanoseconds of writing or reading so many bytes between two convolutions, `at_once` of them before the first is read."""
    peaks = estimated_peaks(machine)
    if at_once <= KEPT * machine.l2.size:
        return moved / peaks.l2
    return moved / (peaks.l3 if machine.l3 is not None and at_once <= machine.l3.size / 2 else peaks.memory)


def busy(arithmetic: float, moving: float) -> float:
    """Nanoseconds of computing and moving data at the same time."""
    return max(arithmetic, moving) + HIDDEN * min(arithmetic, moving)


def strip_cost(pair: Pair, vectors: int, rows: int, machine: Machine) -> float:
    """Nanoseconds of one kernel that takes so many rows of the result at once, and `vectors` blocks of channels of the dense convolution:
    the mean of one thread's and of all cores', since how many run is not known when compiling."""
    first, second = pair.first, pair.second
    count = -(-second.space[0] // rows)
    needed = rows_needed(pair, rows)
    again = count * needed / first.space[0]
    blocks, groups = (first.blocks, 1) if first.depthwise else (vectors, first.blocks // vectors)
    at_once = blocks * pair.lanes * 4 * needed * first.space[1]
    moved = moving(result_bytes(first, pair.lanes) * again, at_once, machine)
    serial = busy(arithmetic(first, pair.lanes, machine) * again, moved) + busy(arithmetic(second, pair.lanes, machine), moved)
    tasks = first.images * groups * count
    parallel = -(-tasks // machine.cores) / tasks
    return serial * (1 + parallel) / 2
