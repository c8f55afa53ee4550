"""What pairs and threes of convolutions cost on a CPU, in one kernel and in several, in nanoseconds, by the description of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.machine.description import Machine, estimated_peaks
from tilewright.target.cpu.rules.registers import ProductShape, block_cost, register_blocks
from tilewright.transform.pair_convolutions import Chain, Stage

KEPT = 0.75  # of a cache: what is written there up to this size is still there when it is read
HIDDEN = 0.3  # of arithmetic and moving data, the share of the shorter that is left beside the longer (docs/decisions/019)
WORTH = 0.98  # of the cost of two kernels that one may have: its code is larger, and takes longer to compile


@dataclass(frozen=True, slots=True)
class CpuPairCost:
    """`transform.pair_convolutions.PairCost` of the mean of one thread and all cores."""

    machine: Machine

    def apart(self, chain: Chain) -> float:
        machine, sizes = self.machine, [result_bytes(stage, chain.lanes) for stage in chain.stages[:-1]]
        moved = [0.0, *(moving(size, size, machine) for size in sizes), 0.0]  # before each convolution, and after the last
        work = [arithmetic(stage, chain.lanes, machine) for stage in chain.stages]
        serial = sum(busy(own, before + after) for own, before, after in zip(work, moved, moved[1:], strict=False))
        return WORTH * serial * (1 + 1 / machine.cores) / 2

    def together(self, chain: Chain) -> float:
        vectors = [] if chain.stages[0].depthwise else [best_tile(self.machine, chain.stages[0])[1]]
        return min(strip_cost(chain, vectors[0] if vectors else 1, rows, self.machine) for rows in strips(chain.stages[-1].space[0]))


def dense_tiles(machine: Machine, width: int, blocks: int) -> list[tuple[int, int]]:
    """Register tiles of (columns, blocks of channels) that leave no part of a tile of channels over."""
    return [(rows, vectors) for rows, vectors in register_blocks(machine, width, blocks) if blocks % vectors == 0]


def strips(height: int) -> list[int]:
    """Heights of strips, of each number of strips the smallest."""
    return sorted({-(-height // count) for count in range(1, height + 1)})


def best_tile(machine: Machine, stage: Stage) -> tuple[int, int]:
    """The register tile of a dense convolution."""
    shape = ProductShape(stage.space[-1], stage.blocks, stage.depth * prod(stage.window))
    return min(dense_tiles(machine, shape.rows, shape.vectors), key=lambda block: block_cost(machine, shape, block))


def rows_needed(first: Stage, second: Stage, rows: int) -> int:
    """Rows of the first convolution that a strip of the second reads."""
    return min((rows - 1) * second.strides[0] + second.window[0], first.space[0])


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


def strip_cost(chain: Chain, vectors: int, rows: int, machine: Machine) -> float:
    """Nanoseconds of one kernel that takes so many rows of the result at once, and in a pair `vectors` blocks of channels of a dense first
    convolution: the mean of one thread's and of all cores', since how many run is not known when compiling."""
    first, second, *rest = chain.stages
    count = -(-second.space[0] // rows)
    needed = rows_needed(first, second, rows)
    again = count * needed / first.space[0]
    blocks, groups = (vectors, first.blocks // vectors) if not first.depthwise and not rest else (first.blocks, 1)
    moved = moving(result_bytes(first, chain.lanes) * again, blocks * chain.lanes * 4 * needed * first.space[1], machine)
    serial = busy(arithmetic(first, chain.lanes, machine) * again, moved)
    for stage in rest:  # it takes the depthwise convolution row by row
        size, row = result_bytes(second, chain.lanes), second.blocks * chain.lanes * 4 * second.space[1]
        after = size / estimated_peaks(machine).l1 if row <= KEPT * machine.l1d.size else moving(size, row, machine)
        serial += busy(arithmetic(stage, chain.lanes, machine), after)
        moved += after
    serial += busy(arithmetic(second, chain.lanes, machine), moved)
    tasks = first.images * groups * count
    parallel = -(-tasks // machine.cores) / tasks
    return serial * (1 + parallel) / 2
