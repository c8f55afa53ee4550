"""Attention as one kernel: products with the keys, whatever is added to the scores, softmax, products with the values.

For each batch, head and block of query rows:

    scores[rows, keys] = mask(q k^T)     in register tiles, panels of k packed with the keys in the lanes
    weights[rows, keys] = exp(scores - maximum)     in the first or second level of the cache
    y[rows, :] = weights v / sum of the weights     in register tiles

The scores of a block are all that is ever stored of them: of all keys, or, where those are many or a causal mask leaves many of them out,
of one tile of keys after the other, with what was summed so far corrected when a maximum grows (`kernel/schedule/online.py`). Tiles that
a causal mask rules out are not visited. Figures: docs/decisions/012-rows-and-attention.md.
"""

from __future__ import annotations

from tilewright.ir.expr import Expr, const
from tilewright.ir.prove import at_most
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.attention_form import Attention, find_attention, operands_of
from tilewright.target.cpu.rules.attention_plan import Plan, plan_attention
from tilewright.target.cpu.rules.elementwise import own_loops, parallelise, schedule_nest
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.reduction import schedule_reduction
from tilewright.target.cpu.rules.rowwise import schedule_rows
from tilewright.target.cpu.rules.structure import (
    as_product,
    block_of,
    is_injective,
    is_reduction,
    spatial,
    stride,
    uses,
    value_loads,
    writes_output,
)

FEW_ROWS = 4  # queries up to which packing the keys costs more than it saves


def schedule_attention(s: Schedule, machine: Machine, reassociate: bool, space: Space) -> Schedule | None:
    """The kernel as described above; None where it is no attention or has too few rows. Raises ScheduleError where it does not fit."""
    found = find_attention(s)
    if found is None:
        return None
    queries = spatial(block_of(s, found.scores))[found.row].extent
    if queries.is_const and queries.value <= FEW_ROWS:
        rows = schedule_rows(s, machine, reassociate, space)
        return None if rows is s else rows
    try:
        with space.attempt("tiles of keys"):
            return _scheduled(s, found, machine, reassociate, True, space)
    except ScheduleError:
        return _scheduled(s, found, machine, reassociate, False, space)


def _scheduled(s: Schedule, found: Attention, machine: Machine, reassociate: bool, tiled: bool, space: Space) -> Schedule:
    """The schedule of attention; `tiled`: keys may go in tiles."""
    s, masked = _masked_scores(s, found)
    s, last = _last_block(s, found.mixed)
    s, found, divided = _divided_late(s, found) if reassociate else (s, found, False)
    plan = plan_attention(s, found, masked, tiled and divided, machine, space)
    names = s.blocks()
    inside = names[names.index(found.scores) : names.index(last)]
    s = _pack_keys(s, found, plan)
    s = _pack_values(s, found, plan)
    s, outer, chunk = _row_loops(s, found, last, plan)
    # what the last block divides by goes before the product that it follows tile by tile
    ends = [name for name in inside if s.consumers(name) == (last,) and name != found.mixed]
    for name in (*ends, *(name for name in reversed(inside) if name not in ends)):
        s, _ = s.compute_at(name, chunk)
    mixed, collected, tiles = found.mixed, last, None
    if plan.tile:
        s, (tiles, _, *sums) = s.online(
            next(name for name in inside if is_reduction(block_of(s, name)) and name != found.scores), chunk, plan.tile
        )
        mixed, collected = sums[sums.index(found.mixed) - 1], found.mixed
    products = (found.scores, masked, mixed, collected)
    for name in [name for name in s.blocks() if s.nest.loop(chunk).stmt in s.nest.blocks[name].around and name not in products]:
        if is_reduction(block_of(s, name)) and (tiles is None or not _goes_along(s, name, tiles)):
            s = schedule_reduction(s, name, machine, parallel=False, reassociate=reassociate, space=space)
        elif is_injective(block_of(s, name)):
            s = schedule_nest(s, name, machine, parallel=False)
    s = _in_tiles(s, found.scores, masked, found.row, len(spatial(block_of(s, found.scores))) - 1, plan.rows, plan.keys, plan.lanes)
    s = _in_tiles(s, mixed, collected, plan.mixed_row, plan.mixed_vector, plan.rows, plan.values, plan.lanes)
    if tiles is not None:
        for name in [name for name in s.blocks() if _goes_along(s, name, tiles)]:
            s = s if name == collected else _across_rows(s, name, plan.lanes)
            s, _ = s.decompose_reduction(name, tiles)
    tasks = outer if plan.heads_alone else [*outer, chunk]
    return parallelise(s, tasks)


def _goes_along(s: Schedule, name: str, tiles: str) -> bool:
    """The block collects what tiles make."""
    placed = s.nest.blocks[name]
    variable = s.nest.loop(tiles).stmt.var
    return any(it.kind == "reduction" and variable in free_vars(b) for it, b in zip(placed.stmt.iters, placed.stmt.bindings, strict=True))


def _across_rows(s: Schedule, name: str, lanes: int) -> Schedule:
    """The block, which has one point for each row of a tile, with its rows in the lanes."""
    rows = [
        loop for loop in own_loops(s, name) if not (s.nest.loop(loop).stmt.extent.is_const and s.nest.loop(loop).stmt.extent.value == 1)
    ]
    if len(rows) != 1 or not s.nest.loop(rows[0]).stmt.extent.is_const:
        return s
    s, (_, lane) = s.split(rows[0], min(lanes, int(s.nest.loop(rows[0]).stmt.extent.value)))
    return s.vectorize(lane)


def _divided_late(s: Schedule, found: Attention) -> tuple[Schedule, Attention, bool]:
    """The weights divided by their sum after the second product, if that can be: there are fewer values than weights. Not where there may
    be queries and no keys: then a sum of nothing, 0, is not divided by 0."""
    rows = spatial(block_of(s, found.scores))
    queries, keys = rows[found.row].extent, rows[-1].extent
    if not (at_most(const(1), keys) or at_most(queries, keys)):
        return s, found, False
    powers = [name for name in s.producers(found.weights) if name in found.between and is_injective(block_of(s, name))]
    if len(powers) != 1:
        return s, found, False
    try:
        late = s.inline(found.weights).factor_out(found.mixed)
    except ScheduleError:
        return s, found, False
    if operands_of(late, powers[0], found.mixed) is None:
        return s, found, False
    between = tuple(name for name in found.between if name != found.weights)
    return late, Attention(found.scores, between, powers[0], found.mixed, found.row), True


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
    operands = operands_of(s, found.weights, found.mixed)
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
