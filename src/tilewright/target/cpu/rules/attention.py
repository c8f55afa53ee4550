"""Attention as one kernel: products with the keys, whatever is added to the scores, softmax, products with the values.

For each batch, head and block of query rows:

    scores[rows, all keys] = mask(q k^T)    in register tiles, panels of k packed with the keys in the lanes
    weights[rows, all keys] = softmax       two passes over what the first or second level of the cache holds
    y[rows, :] = weights v                  in register tiles

The scores of a block are all that is ever stored of them. An online softmax (Milakov and Gimelshein, 2018) keeps to blocks of keys, and
corrects what it has for each; but a row of scores is far shorter than the cache, and reading it twice costs a few percent of the products.
Figures: docs/decisions/012-rows-and-attention.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine, estimated_peaks
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.elementwise import parallelise, schedule_nest
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.reduction import schedule_reduction
from tilewright.target.cpu.rules.registers import MOST_ACCUMULATORS
from tilewright.target.cpu.rules.rowwise import schedule_rows
from tilewright.target.cpu.rules.structure import (
    as_product,
    block_of,
    extent_value,
    is_injective,
    is_reduction,
    reductions,
    spatial,
    stride,
    uses,
    value_loads,
    writes_output,
)

FEW_ROWS = 4  # queries up to which packing the keys costs more than it saves
TYPICAL = 128  # queries, keys of unknown number
TILES = (1, 2, 4, 8)  # register tiles of rows in a block
SCORES = 64 << 10  # bytes of a block's scores: what lowering still places on the stack
NEAR = 0.1  # of the time of a block: what scores cost that do not stay in the first level of the cache
FAR = 0.6  # and in the second
BUFFERS = 3  # of the size of a block's scores: scores, their exponentials, weights
WAYS = 12  # of the first level of the cache, about
SCATTERED = 2.0  # times as long: the second level for rows that lie apart, which nothing fetches ahead
CROSSING = 1.5  # of the time of a load: one that crosses lines
FRESH = 0.3  # of the time of attention: what it costs to write scores where no block has written before


@dataclass(frozen=True, slots=True)
class Attention:
    """The blocks of a kernel that is attention. `scores`, `mixed`: the two products; `weights`: the block whose results are multiplied with
    the values; `between`: the blocks from scores to weights, in order; `row`: the dim of the scores that counts queries."""

    scores: str
    between: tuple[str, ...]
    weights: str
    mixed: str
    row: int


def find_attention(s: Schedule) -> Attention | None:
    """The kernel's blocks read as attention, or None."""
    names = s.blocks()
    products = [name for name in names if as_product(block_of(s, name)) is not None]
    outputs = [name for name in names if writes_output(s, name)]
    if len(products) != 2 or len(outputs) != 1 or outputs[0] != names[-1]:
        return None
    scores, mixed = products
    if len(spatial(block_of(s, scores))) < 2 or names.index(mixed) < len(names) - 2:
        return None
    between = names[names.index(scores) + 1 : names.index(mixed)]
    if names.index(scores) != 0 or not between or not all(is_injective(block_of(s, n)) or is_reduction(block_of(s, n)) for n in between):
        return None
    if sum(is_reduction(block_of(s, name)) for name in between) != 2:
        return None
    weights = next((name for name in between if _operands(s, name, mixed) is not None), None)
    found = None if weights is None else _operands(s, weights, mixed)
    if weights is None or found is None:
        return None
    weight, value = found
    block = block_of(s, mixed)
    (along, *others) = reductions(block)
    if others or weight.args[-1] is not along.var or any(index not in {it.var for it in block.iters} for index in weight.args):
        return None
    rows = [dim for dim, index in enumerate(weight.args[:-1]) if not uses(value, index)]
    return Attention(scores, between, weights, mixed, rows[-1]) if rows else None


def _operands(s: Schedule, weights: str, mixed: str) -> tuple[Expr, Expr] | None:
    """The two loads of the second product: of the weights, of the values."""
    product = as_product(block_of(s, mixed))
    if product is None:
        return None
    made = s.nest.outputs(weights)[0]
    for weight, value in ((product.left, product.right), (product.right, product.left)):
        if weight.attr is made and value.attr is not made:
            return weight, value
    return None


def schedule_attention(s: Schedule, machine: Machine, reassociate: bool, space: Space) -> Schedule | None:
    """The kernel as described above; None where it is no attention or has too few rows. Raises ScheduleError where it does not fit."""
    found = find_attention(s)
    if found is None:
        return None
    queries = spatial(block_of(s, found.scores))[found.row].extent
    if queries.is_const and queries.value <= FEW_ROWS:
        rows = schedule_rows(s, machine, reassociate, space)
        return None if rows is s else rows
    s, masked = _masked_scores(s, found)
    s, last = _last_block(s, found.mixed)
    plan = _plan(s, found, machine, space)
    names = s.blocks()
    inside = names[names.index(found.scores) : names.index(last)]
    s = _pack_keys(s, found, plan)
    s = _pack_values(s, found, plan)
    s, outer, chunk = _row_loops(s, found, last, plan)
    for name in reversed(inside):
        s, _ = s.compute_at(name, chunk)
    for name in inside:
        block = block_of(s, name)
        if name in (found.scores, masked, found.mixed):
            continue
        if is_reduction(block):
            s = schedule_reduction(s, name, machine, parallel=False, reassociate=reassociate, space=space)
        else:
            s = schedule_nest(s, name, machine, parallel=False)
    s = _in_tiles(s, found.scores, masked, found.row, len(spatial(block_of(s, found.scores))) - 1, plan.rows, plan.keys, plan.lanes)
    s = _in_tiles(s, found.mixed, last, plan.mixed_row, plan.mixed_vector, plan.rows, plan.values, plan.lanes)
    tasks = outer if plan.heads_alone else [*outer, chunk]
    return parallelise(s, tasks)


def _masked_scores(s: Schedule, found: Attention) -> tuple[Schedule, str]:
    """The one injective block that reads the products with the keys, or a copy of them."""
    consumers = s.consumers(found.scores)
    if len(consumers) == 1 and is_injective(block_of(s, consumers[0])):
        return s.set_scope(s.nest.outputs(found.scores)[0].name, "local"), consumers[0]
    s, (copy, *_) = s.cache_write(found.scores, "local")
    return s, copy


def _last_block(s: Schedule, mixed: str) -> tuple[Schedule, str]:
    if writes_output(s, mixed):
        s, (copy, *_) = s.cache_write(mixed, "local")
        return s, copy
    (last,) = s.consumers(mixed)
    return s.set_scope(s.nest.outputs(mixed)[0].name, "local"), last


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a schedule: rows of a register tile, its vectors over the keys and over the values' width, rows of a block. `pack_values`:
    they are copied into panels first; `heads_alone`: blocks of rows of one head run one after the other. `mixed_row`, `mixed_vector`:
    which spatial iters of the second product are its rows and its lanes."""

    lanes: int
    rows: int
    keys: int
    values: int
    block: int
    pack_values: bool
    heads_alone: bool
    mixed_row: int
    mixed_vector: int


def _plan(s: Schedule, found: Attention, machine: Machine, space: Space) -> Plan:
    scores, mixed = block_of(s, found.scores), block_of(s, found.mixed)
    lanes = machine.lanes(s.nest.outputs(found.scores)[0].dtype.bits)
    queries, keys = spatial(scores)[found.row].extent, spatial(scores)[-1].extent
    operands = _operands(s, found.weights, found.mixed)
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
    row_bytes = 4 * extent_value(keys, TYPICAL)
    heads = prod(extent_value(it.extent, 1) for it in spatial(scores) if it.extent not in (queries, keys))
    on_stack = keys.is_const and rows * row_bytes <= SCORES
    heads_alone = space.choose(
        "attention.heads_alone", (False, True),
        lambda alone: _idle(heads if alone else heads * -(-count // rows), machine) + (0.0 if alone or on_stack else FRESH),
        "one task for each head, not for each block of rows, by idle cores, and scores in memory that no block has used before",
    )  # fmt: skip
    most = machine.l2.size // BUFFERS if heads_alone else SCORES
    block = space.choose(
        "attention.block", [rows * n for n in TILES if n == 1 or rows * n * row_bytes <= most],
        lambda n: _padded(queries, n) / count + _block_cost(n, row_bytes, extent_value(vector.extent, TYPICAL), machine),
        "rows of a block, by rows computed past the end, keys and values read again for each block, and scores that leave a cache",
    )  # fmt: skip
    along, panel = reductions(mixed)[0], tiles[rows][1][1] * lanes
    pack_values = space.choose(
        "attention.pack_values", (False, True), lambda pack: _values_cost(pack, value, along, vector, count / rows, panel, machine),
        "copy the values into panels, by nanoseconds of reading them for each tile of rows, of a head",
    )  # fmt: skip
    mixed_row, mixed_vector = iters.index(weight.args[found.row]), iters.index(vector.var)
    return Plan(lanes, rows, tiles[rows][0][1], tiles[rows][1][1], block, pack_values, heads_alone, mixed_row, mixed_vector)


def _idle(tasks: int, machine: Machine) -> float:
    """Time on all cores over what it would be if tasks could be divided."""
    return -(-tasks // machine.cores) * machine.cores / max(1, tasks)


def _block_cost(rows: int, row_bytes: int, width: int, machine: Machine) -> float:
    """What reading keys and values for a block of rows costs, and scores that leave a cache, as a part of its products. Some of the former
    happens while products are computed: half, or most where the second level holds them."""
    peaks = estimated_peaks(machine)
    operands = 2 * row_bytes * width
    read = 4 * peaks.l2 if operands <= machine.l2.size / 2 else peaks.l3
    scores = BUFFERS * rows * row_bytes
    away = NEAR * min(1.0, scores / machine.l1d.size) if scores <= machine.l2.size else FAR
    return peaks.f32 / (rows * read) + away


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


def _pack_keys(s: Schedule, found: Attention, plan: Plan) -> Schedule:
    """The keys with the lanes along them, in the order in which the tiles read."""
    block = block_of(s, found.scores)
    product = as_product(block)
    assert product is not None
    key = spatial(block)[-1]
    panel = next((load for load in (product.left, product.right) if uses(load, key.var)), None)
    if panel is None or uses(product.left, key.var) == uses(product.right, key.var):
        raise ScheduleError("the keys are no operand of their own")
    return _packed(s, found.scores, panel, key, plan.keys * plan.lanes, True)


def _pack_values(s: Schedule, found: Attention, plan: Plan) -> Schedule:
    """The values with the lanes along their width, key after key."""
    operands = _operands(s, found.weights, found.mixed)
    assert operands is not None
    vector = spatial(block_of(s, found.mixed))[plan.mixed_vector]
    return _packed(s, found.mixed, operands[1], vector, plan.values * plan.lanes, not plan.pack_values)


def _packed(s: Schedule, name: str, panel: Expr, vector: BlockIter, width: int, in_order: bool) -> Schedule:
    if in_order and stride(panel, vector.var) == 1:
        return s
    if panel.attr not in s.kernel.inputs:
        raise ScheduleError(f"{panel.attr.name} is no parameter, so it is not packed")
    s, (copy, *_) = s.cache_read(name, panel.attr.name, "global")
    return pack_operand(s, name, panel, s.nest.outputs(copy)[0].name, vector, width)


def _row_loops(s: Schedule, found: Attention, last: str, plan: Plan) -> tuple[Schedule, list[str], str]:
    """The loops of the last block: batches and heads, blocks of rows, and what is left to it. Results: the former two."""
    block = block_of(s, last)
    buffer = s.nest.outputs(found.mixed)[0]
    read = [load for load in value_loads(block) if load.attr is buffer]
    variables = [it.var for it in block.iters]
    if len({load.args for load in read}) != 1 or any(index not in variables for index in read[0].args):
        raise ScheduleError(f"block '{last}' does not read the products point by point")
    loops = dict(zip(variables, s.loops_of(last)[-len(variables) :], strict=True))
    row, vector = read[0].args[plan.mixed_row], read[0].args[plan.mixed_vector]
    outer = [loops[index] for index in read[0].args if index is not row and index is not vector]
    rest = [loops[v] for v in variables if v not in read[0].args]
    s = s.reorder(*outer, *rest, loops[row], loops[vector]) if len(variables) > 1 else s
    s, (chunk, _) = s.split(loops[row], plan.block)
    return s, [*outer, *rest], chunk


def _in_tiles(s: Schedule, name: str, epilogue: str, row: int, vector: int, rows: int, vectors: int, lanes: int) -> Schedule:
    """The product `name` in register tiles over its spatial iters `row` and `vector`, with the one block that reads it on each."""
    block = block_of(s, name)
    made = s.loops_of(name)[-len(block.iters) :]
    reduced = list(made[len(spatial(block)) :])
    s, (panel, part, lane) = s.split(made[vector], (None, vectors, lanes))
    s, (tile, row_part) = s.split(made[row], rows)
    others = [loop for i, loop in enumerate(made[: len(spatial(block))]) if i not in (row, vector)]
    s = s.reorder(*others, panel, tile, *reduced, row_part, part, lane)
    s, own = s.reverse_compute_at(epilogue, tile)
    s = _vectorised_epilogue(s, epilogue, own, vectors, lanes)
    s = s.vectorize(lane)
    s = s.unroll(part)
    s = s.unroll(row_part)
    s, _ = s.decompose_reduction(name, reduced[0])
    for target in (name, f"{name}_init"):
        if target in s.nest.blocks:
            s = s.clamp_reads(target, vector, masked=target == name)
            s = s.clamp_reads(target, row)
    return s


def _vectorised_epilogue(s: Schedule, name: str, made: tuple[str, ...], vectors: int, lanes: int) -> Schedule:
    block = block_of(s, name)
    body = block.body
    assert isinstance(body, Store)
    loop = made[[it.var for it in block.iters].index(_fast(block, body))]
    extent = s.nest.loop(loop).stmt.extent
    if extent.is_const and extent.value == vectors * lanes:
        s, (part, lane) = s.split(loop, (vectors, lanes))
        s = s.vectorize(lane)
        s = s.unroll(part)
    elif extent.is_const and 1 < extent.value <= vectors * lanes:
        s = s.vectorize(loop)
    for other in made:
        placed = s.nest.loops.get(other)
        if placed is not None and placed.stmt.kind == "serial" and placed.stmt.extent.is_const and placed.stmt.extent.value <= 16:
            s = s.unroll(other)
    return s


def _fast(block: Block, body: Store) -> Expr:
    """The iter along which the block stores in order."""
    last = body.indices[-1]
    return last if last.op is Op.VAR else block.iters[-1].var
