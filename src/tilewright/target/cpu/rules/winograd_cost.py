"""What Winograd convolutions cost on a CPU, in cycles, by the description of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.machine.description import Machine, estimated_peaks
from tilewright.target.cpu.rules.registers import MOST_ACCUMULATORS
from tilewright.transform.choose_winograd import DenseConvolution

# Of computing and reading, the share of the shorter that is hidden where weights are asked for ahead, and where not (docs/decisions/011)
HIDDEN_AHEAD, HIDDEN = 0.9, 0.6
AGAIN = 0.3  # share of reading weights again from the second-level cache that is not hidden
FORK_US = 2.0  # of one more parallel loop, where nobody measured


@dataclass(frozen=True, slots=True)
class Work:
    """Extents of a Winograd convolution. depth: input channels. parts: vectors of output channels."""

    points: tuple[int, ...]
    tiles: int
    depth: int
    parts: int
    lanes: int


def register_tiles(work: Work, machine: Machine) -> list[tuple[int, int]]:
    """Rows (tiles) and vectors (of output channels) that fit the registers."""
    found = []
    for vectors in range(1, 5):
        if work.parts % vectors:
            continue
        for rows in range(1, min(work.tiles, MOST_ACCUMULATORS) + 1):
            if rows * vectors <= MOST_ACCUMULATORS and rows * vectors + vectors + 1 <= machine.vector_registers:
                found.append((rows, vectors))
    return found


def plans(work: Work, rows: int) -> list[tuple[int, bool]]:
    """Tiles at once, a multiple of `rows` and few of each magnitude; and whether their inputs are transformed with them."""
    most = -(-work.tiles // rows)
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, max(counts[-1] + 1, counts[-1] * 5 // 4)))
    return [(rows * count, together) for count in counts for together in (True, False)]


def products_cost(work: Work, tile: tuple[int, int], machine: Machine) -> float:
    """Cycles of the products: multiply-adds, more where there are too few accumulators to hide their latency, loads that are not shared,
    and weights that do not stay in the first-level cache from one register tile to the next."""
    rows, vectors = tile
    padded = -(-work.tiles // rows) * rows
    adds = prod(work.points) * padded * work.depth * work.parts / machine.fma_units
    hide = 1.5 * machine.fma_units * machine.fma_latency
    kept = 4 * work.depth * vectors * work.lanes <= machine.l1d.size // 2  # weights of one point and part
    again = 0.0 if kept else weight_bytes(work) * (padded // rows - 1) / bytes_per_cycle(estimated_peaks(machine).l2, machine)
    return adds * max(1.0, hide / (rows * vectors)) * (1 + 0.25 / rows + 0.3 / vectors) + AGAIN * again


def plan_cost(work: Work, tile: tuple[int, int], plan: tuple[int, bool], machine: Machine, trimmed: bool = False) -> float:
    """Cycles with groups of so many tiles, transformed together or not: the mean of one thread's and of all cores' sum, since how many run
    is not known when compiling. `trimmed`: the last group has only the register tiles that there are."""
    peaks = estimated_peaks(machine)
    group, together = plan
    group = min(group, -(-work.tiles // tile[0]) * tile[0]) if trimmed else group
    groups = -(-work.tiles // group)
    tasks = groups if together else max(1, groups * work.parts // tile[1])
    waste = 1.0 if trimmed else groups * group / work.tiles
    points = prod(work.points)
    images = 4 * points * group * work.depth * (1 if together else groups)  # bytes of transformed inputs that must last
    sums = 4 * points * group * tile[1] * work.lanes
    own = weight_bytes(work)
    kept = machine.l2.size * 3 // 4
    adds = products_cost(work, tile, machine) * waste
    stays = own + images + sums <= kept
    reads = read_cycles(own, 1 if stays else groups, machine)
    nearer = (groups - 1) * own / bytes_per_cycle(peaks.l2, machine) if stays else 0.0
    moved = 2 * 4 * points * work.tiles * work.depth / bytes_per_cycle(peaks.l3 if images + sums > kept else peaks.l2, machine)
    total = max(adds, reads) + (1 - HIDDEN_AHEAD) * min(adds, reads) + AGAIN * nearer + moved + transform_cycles(work, machine) * waste
    balance = -(-tasks // machine.cores) * machine.cores / tasks
    fork = 0.0 if together else 1000 * (machine.fork_us or FORK_US) * clock_ghz(machine)
    return total * (1 + balance) / 2 + fork


def prefetch_cost(work: Work, tile: tuple[int, int], plan: tuple[int, bool], asked: bool, machine: Machine) -> float:
    """Cycles of reading weights that computing does not hide, or of asking for their lines ahead, one for each two multiply-adds' time."""
    size, groups = weight_bytes(work), -(-work.tiles // plan[0])
    if asked:
        return groups * size / machine.l1d.line / machine.fma_units
    return (HIDDEN_AHEAD - HIDDEN) * read_cycles(size, 1 if size <= machine.l2.size // 2 else groups, machine)


def bytes_again(work: Work, tile: tuple[int, int], plan: tuple[int, bool], parts_first: bool) -> int:
    """Bytes that each group of tiles reads from beyond the second cache, where there are many groups: all weights, or, where a part of the
    weights is used for all groups before the next part, its transformed inputs once for each part."""
    inputs = 4 * prod(work.points) * plan[0] * work.depth
    return inputs * (work.parts // tile[1]) if parts_first else weight_bytes(work)


def weight_bytes(work: Work) -> int:
    """Bytes of the transformed weights."""
    return 4 * prod(work.points) * work.depth * work.parts * work.lanes


def transform_cycles(work: Work, machine: Machine) -> float:
    """Cycles of transforming inputs and sums: for each point a load, a store, and two multiply-adds along each axis."""
    vectors = work.tiles * (work.depth / work.lanes + work.parts)
    return vectors * prod(work.points) * (2 + 2 * len(work.points) / machine.fma_units)


def read_cycles(size: int, times: int, machine: Machine) -> float:
    """Cycles of reading weights of so many bytes: once from memory, since those of a whole model pass through the caches between two uses,
    then from the third-level cache."""
    peaks = estimated_peaks(machine)
    again = peaks.memory if machine.l3 is None or size > machine.l3.size else peaks.l3
    return size / bytes_per_cycle(peaks.memory, machine) + (times - 1) * size / bytes_per_cycle(again, machine)


def clock_ghz(machine: Machine) -> float:
    """The clock at which the machine reaches its peak."""
    return estimated_peaks(machine).f32 / (2 * machine.lanes(32) * machine.fma_units)


def bytes_per_cycle(bandwidth: float, machine: Machine) -> float:
    """A bandwidth in GB/s, at that clock."""
    return bandwidth / clock_ghz(machine)


@dataclass(frozen=True, slots=True)
class CpuConvolutionCost:
    """The costs that choosing between direct and Winograd convolutions asks for. speed: how many times faster direct ones are than in
    float32."""

    machine: Machine
    speed: float = 1.0

    def direct(self, convolution: DenseConvolution) -> float:
        """Cycles of a direct convolution: its multiply-adds at 85% of the peak, and reading its weights."""
        machine, lanes = self.machine, self.machine.lanes(32)
        points, weights = (
            prod(convolution.space) * convolution.images,
            convolution.channels * convolution.outputs * prod(convolution.window),
        )
        adds = points * weights / (lanes * machine.fma_units) / 0.85 / self.speed
        reads = read_cycles(4 * weights, 1, machine)
        return max(adds, reads) + (1 - HIDDEN) * min(adds, reads)

    def winograd(self, convolution: DenseConvolution, tile: tuple[int, ...]) -> float:
        """Cycles of the best schedule with tiles of so many results."""
        lanes = self.machine.lanes(32)
        points = tuple(m + r - 1 for m, r in zip(tile, convolution.window, strict=True))
        tiles = convolution.images * prod(-(-size // m) for size, m in zip(convolution.space, tile, strict=True))
        work = Work(points, tiles, convolution.channels, convolution.outputs // lanes, lanes)
        register_tile = min(register_tiles(work, self.machine), key=lambda pair: products_cost(work, pair, self.machine))
        return min(plan_cost(work, register_tile, plan, self.machine) for plan in plans(work, register_tile[0]))
