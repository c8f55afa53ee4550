"""Sizes of attention's schedule: what a model of the machine says of register tiles, blocks of rows, tiles of keys, packing."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm, prod

from tilewright.ir.affine import affine_in
from tilewright.ir.expr import Expr, const, sub
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.online import needed_conditions
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine, estimated_peaks
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.attention_form import Attention, operands_of
from tilewright.target.cpu.rules.registers import MOST_ACCUMULATORS
from tilewright.target.cpu.rules.structure import block_of, extent_value, reductions, spatial, stride, uses

TYPICAL = 128  # queries, keys of unknown number
TILES = (1, 2, 4, 8)  # register tiles of rows in a block
KEYS = (64, 128, 256, 512)  # of a tile, about
SCORES = 64 << 10  # bytes of a block's scores: what lowering still places on the stack
NEAR = 0.1  # of the time of a block: what scores cost that do not stay in the first level of the cache
FAR = 0.6  # and in the second
BUFFERS = 3  # of the size of a block's scores: scores, their exponentials, weights
PARTIAL = 4  # vectors of partial results of a maximum or a sum, which divide a tile
CORRECTION = 45  # cycles for each row of a tile: maxima and sums across lanes, an exponential
WAYS = 12  # of the first level of the cache, about
SCATTERED = 2.0  # times as long: the second level for rows that lie apart, which nothing fetches ahead
CROSSING = 1.5  # of the time of a load: one that crosses lines
FRESH = 0.3  # of the time of attention: what it costs to write scores where no block has written before


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a schedule: rows of a register tile, its vectors over the keys and over the values' width, rows of a block. `pack_values`:
    they are copied into panels first; `heads_alone`: blocks of rows of one head run one after the other. `mixed_row`, `mixed_vector`:
    which spatial iters of the second product are its rows and its lanes. `tile`: keys of a tile, 0 for all of them at once."""

    lanes: int
    rows: int
    keys: int
    values: int
    block: int
    pack_values: bool
    heads_alone: bool
    mixed_row: int
    mixed_vector: int
    tile: int


def plan_attention(s: Schedule, found: Attention, masked: str, tiles_apply: bool, machine: Machine, space: Space) -> Plan:
    """Decides the sizes. `masked`: the block of the scores that the softmax reads; `tiles_apply`: keys may go in tiles."""
    scores, mixed = block_of(s, found.scores), block_of(s, found.mixed)
    lanes = machine.lanes(s.nest.outputs(found.scores)[0].dtype.bits)
    queries, keys = spatial(scores)[found.row].extent, spatial(scores)[-1].extent
    operands = operands_of(s, found.weights, found.mixed)
    if operands is None:
        raise ScheduleError("the weights are no operand of the second product")
    weight, value = operands
    iters = [it.var for it in spatial(mixed)]
    own = [it for it in spatial(mixed) if uses(value, it.var) and not uses(weight, it.var)]
    if not own:
        raise ScheduleError("the values have no axis of their own")
    vector = max(own, key=lambda it: (stride(value, it.var) == 1, extent_value(it.extent)))
    count = extent_value(queries, TYPICAL)
    options = [n for n in range(1, 15) if n <= count]
    # the same rows in both products, each with its best number of vectors
    tiles = {n: tuple(_best_vectors(machine, n, lanes, queries, extent) for extent in (keys, vector.extent)) for n in options}
    rows = space.choose(
        "attention.rows", options, lambda n: sum(cost for cost, _ in tiles[n]),
        "rows of a register tile, by what a multiply-add of the two products costs",
    )  # fmt: skip
    heads = prod(extent_value(it.extent, 1) for it in spatial(scores) if it.extent not in (queries, keys))
    length = extent_value(keys, TYPICAL)
    seen = _Seen(count, length, _diagonal(block_of(s, masked), found.row), extent_value(vector.extent, TYPICAL), lanes)
    step = lcm(tiles[rows][0][1], PARTIAL) * lanes
    options = [0, *(-(-n // step) * step for n in KEYS if tiles_apply and keys.is_const and 2 * n <= length)]

    def block_cost(n: int, tile: int) -> float:
        return seen.part(n, tile) * (_padded(queries, n) / count + _block_cost(n, 4 * (tile or length), length, seen.width, machine))

    def blocks(tile: int, most: int) -> list[int]:
        return [rows * n for n in TILES if n == 1 or rows * n * 4 * (tile or length) <= most]

    def tile_cost(n: int) -> float:
        return min(block_cost(rows, n) for rows in blocks(n, SCORES if n else machine.l2.size // BUFFERS)) + seen.corrections(n, machine)

    tile = space.choose(
        "attention.tile", options, tile_cost,
        "keys of a tile of scores, all for 0: by tiles that a causal mask leaves out, scores that leave a cache, corrections for each tile",
    )  # fmt: skip
    row_bytes = 4 * (tile or length)
    on_stack = (keys.is_const or tile > 0) and rows * row_bytes <= SCORES
    heads_alone = space.choose(
        "attention.heads_alone", (False, True),
        lambda alone: _idle(heads if alone else heads * -(-count // rows), machine) + (0.0 if alone or on_stack else FRESH),
        "one task for each head, not for each block of rows, by idle cores, and scores in memory that no block has used before",
    )  # fmt: skip
    block = space.choose(
        "attention.block", blocks(tile, machine.l2.size // BUFFERS if heads_alone and not tile else SCORES), lambda n: block_cost(n, tile),
        "rows of a block, by rows computed past the end, keys and values read again for each block, and scores that leave a cache",
    )  # fmt: skip
    along, panel = reductions(mixed)[0], tiles[rows][1][1] * lanes
    pack_values = space.choose(
        "attention.pack_values", (False, True), lambda pack: _values_cost(pack, value, along, vector, count / rows, panel, machine),
        "copy the values into panels, by nanoseconds of reading them for each tile of rows, of a head",
    )  # fmt: skip
    mixed_row, mixed_vector = iters.index(weight.args[found.row]), iters.index(vector.var)
    return Plan(lanes, rows, tiles[rows][0][1], tiles[rows][1][1], block, pack_values, heads_alone, mixed_row, mixed_vector, tile)


def _idle(tasks: int, machine: Machine) -> float:
    """Time on all cores over what it would be if tasks could be divided."""
    return -(-tasks // machine.cores) * machine.cores / max(1, tasks)


def _block_cost(rows: int, row_bytes: int, keys: int, width: int, machine: Machine) -> float:
    """What reading keys and values for a block of rows costs, and scores that leave a cache, as a part of its products: `row_bytes` of them
    are there for each row at a time. Some of the former happens while products are computed: half, or most where the second level holds
    them."""
    peaks = estimated_peaks(machine)
    operands = 2 * 4 * keys * width
    read = 4 * peaks.l2 if operands <= machine.l2.size / 2 else peaks.l3
    scores = BUFFERS * rows * row_bytes
    away = NEAR * min(1.0, scores / machine.l1d.size) if scores <= machine.l2.size else FAR
    return peaks.f32 / (rows * read) + away


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a mask lets see: query i of `queries` the keys up to i + diagonal of `keys`, or all where that is None."""

    queries: int
    keys: int
    diagonal: int | None
    width: int
    lanes: int

    def part(self, block: int, tile: int) -> float:
        """The part of the scores that is computed where keys go in tiles."""
        if self.diagonal is None or not tile:
            return 1.0
        ends = range(min(block, self.queries), self.queries + block, block)
        return sum(min(-(-max(0, end + self.diagonal) // tile) * tile, self.keys) for end in ends) / (len(ends) * self.keys)

    def corrections(self, tile: int, machine: Machine) -> float:
        """What it costs to correct sums for each row of each tile, as a part of the products of all keys."""
        if not tile:
            return 0.0
        vectors = self.width / self.lanes
        products = 2 * tile * vectors / machine.fma_units
        return self.part(1, tile) * (CORRECTION + 2 * vectors) / products


def _diagonal(masked: Block, row: int) -> int | None:
    """How many keys past its own number a query may see, where the block's value is -inf for others; None where it is not so, and 0 where
    the number is not known."""
    rows, keys = spatial(masked)[row].var, spatial(masked)[-1].var
    for condition in needed_conditions(masked.body.value) if isinstance(masked.body, Store) else ():
        form = affine_in(sub(*condition.args), (rows, keys)) if condition.op in (Op.LT, Op.LE) else None
        if form is not None and form[0][keys] is const(1) and form[0][rows] is const(-1):
            return -int(form[1].value) + (condition.op is Op.LE) if form[1].is_const else 0
    return None


def _values_cost(pack: bool, value: Expr, along: BlockIter, vector: BlockIter, tiles: float, panel: int, machine: Machine) -> float:
    """Nanoseconds to read the values of one head for each of `tiles` tiles of rows, and to pack them if wanted.

    Keys whose values lie many lines apart share a few sets of the first-level cache, so that values come from the second level for each
    tile. Values that are no whole vectors take masks, and their vectors cross lines."""
    peaks, line = estimated_peaks(machine), machine.l1d.line
    width = extent_value(vector.extent, TYPICAL) * value.dtype.bytes
    count = extent_value(along.extent, TYPICAL)
    size = count * width
    kept = count * min(width, panel * value.dtype.bytes)  # what a tile reads
    if pack:
        return 2 * size / peaks.l2 + tiles * size / (peaks.l1 if kept <= machine.l1d.size / 2 else peaks.l2)
    apart = (stride(value, along.var) or 0) * value.dtype.bytes
    sets = machine.l1d.size // line // WAYS
    reached = sets // gcd(apart // line, sets) * -(-width // line) if apart and apart % line == 0 else sets
    near = size <= min(reached, sets) * WAYS * line / 2
    far = peaks.l2 / (SCATTERED if apart > width else 1.0)
    return tiles * size * (CROSSING if width % line else 1.0) / (peaks.l1 if near else far)


def _padded(extent: Expr, step: int) -> float:
    """What an extent becomes when it is rounded up to steps: where it is a symbol, between the average and what a typical one does."""
    count = extent_value(extent, TYPICAL)
    rounded = float(-(-count // step) * step)
    return rounded if extent.is_const else (rounded + count + (step - 1) / 2) / 2


def _best_vectors(machine: Machine, rows: int, lanes: int, queries: Expr, extent: Expr) -> tuple[float, int]:
    """What a multiply-add costs in tiles of so many rows, relative to the peak, with the best number of vectors along `extent`, and it."""
    hide = machine.fma_units * machine.fma_latency

    def cost(vectors: int) -> float:
        work = _padded(queries, rows) * _padded(extent, vectors * lanes)
        work /= extent_value(queries, TYPICAL) * extent_value(extent, TYPICAL)
        return work * max(1.0, hide / (rows * vectors)) * (1 + 0.3 * (1.2 / rows + 0.5 / vectors))

    needed = -(-extent_value(extent, TYPICAL) // lanes)
    fitting = [n for n in range(1, min(needed, 8) + 1) if rows * n <= MOST_ACCUMULATORS and rows * n + n + 1 <= machine.vector_registers]
    return min((cost(n), n) for n in fitting or [1])
