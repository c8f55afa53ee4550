"""Several blocks over the same rows (softmax, normalisations): everything of one row, or of a few, while it is in the cache."""

from __future__ import annotations

from math import log2

from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, walk
from tilewright.kernel.nodes import Block, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.elementwise import parallelise, schedule_nest
from tilewright.target.cpu.rules.reduction import runs_along_reduction, schedule_reduction
from tilewright.target.cpu.rules.structure import (
    block_of,
    extent_value,
    is_injective,
    is_reduction,
    reductions,
    spatial,
    value_loads,
    writes_output,
)

ROWS = (1, 2, 4, 8)  # rows computed together
CALL = 16  # vector operations of a function such as exp


def schedule_rows(s: Schedule, machine: Machine, reassociate: bool = True, space: Space | None = None) -> Schedule:
    """Compute all blocks under the outer loops that they share, each vectorised inside; as they are where they share none."""
    space = space if space is not None else Space()
    names = s.blocks()
    outputs = [name for name in names if writes_output(s, name)]
    if len(names) < 2 or len(outputs) != 1 or names[-1] != outputs[0]:
        return s
    if not any(is_reduction(block_of(s, name)) for name in names):
        return s
    last = outputs[0]
    first = block_of(s, names[0])
    if len(names) == 2 and is_reduction(first) and spatial(first) and not runs_along_reduction(s, names[0]):
        return s  # each lane has a sum of its own, and what follows is computed on it
    s = _split_groups(s, last)
    loops = s.loops_of(last)
    for depth in range(min(len(spatial(block_of(s, name))) for name in names), 0, -1):
        try:
            with space.attempt("rows"):
                return _at_depth(s, names, last, loops[:depth], machine, reassociate, space)
        except ScheduleError:
            continue
    return s


def _split_groups(s: Schedule, last: str) -> Schedule:
    """Where the last block reads one result for a group of its points, by `v // k` (of channels, in group normalisation), split its loop,
    so that groups have a loop of their own."""
    block = block_of(s, last)
    variables = [it.var for it in block.iters]
    indices = [index for load in value_loads(block) for index in load.args]
    found = [e for e in indices if e.op is Op.FLOORDIV and e.args[0] in variables and e.args[1].is_const]
    if len(set(found)) != 1:
        return s
    variable, size = found[0].args
    loop = s.loops_of(last)[variables.index(variable)]
    extent = s.nest.loop(loop).stmt.extent
    if extent.is_const and extent.value % size.value == 0:
        s, _ = s.split(loop, int(size.value))
    return s


def is_one(extent: Expr) -> bool:
    return bool(extent.is_const and extent.value == 1)


def _at_depth(
    s: Schedule, names: tuple[str, ...], last: str, rows: tuple[str, ...], machine: Machine, reassociate: bool, space: Space
) -> Schedule:
    _check_rows(s, names, rows)
    s, rows = _rows_together(s, names, last, rows, machine, space)
    for name in reversed(names[:-1]):
        s, _ = s.compute_at(name, rows[-1])
    for name in names:
        block = block_of(s, name)
        if name == last and s.loops_of(name)[-1] == rows[-1]:
            continue
        if is_injective(block):
            s = schedule_nest(s, name, machine, parallel=False, space=space)
        elif is_reduction(block):
            s = schedule_reduction(s, name, machine, parallel=False, reassociate=reassociate, space=space)
    return parallelise(s, list(rows))


def _check_rows(s: Schedule, names: tuple[str, ...], rows: tuple[str, ...]) -> None:
    """Refuse outer loops over which a block would be computed again and again."""
    for name in reversed(names[:-1]):
        s, _ = s.compute_at(name, rows[-1])
        used = free_vars(*block_of(s, name).bindings)
        if any(loop.var not in used and not is_one(loop.extent) for loop in (s.nest.loop(row).stmt for row in rows)):
            raise ScheduleError(f"block '{name}' would be computed again in each iteration of an outer loop")


def _rows_together(
    s: Schedule, names: tuple[str, ...], last: str, rows: tuple[str, ...], machine: Machine, space: Space
) -> tuple[Schedule, tuple[str, ...]]:
    """Split the last of the row loops, so that each block runs over a few rows before the next one: what one row waits for (its maximum,
    its sum) is there when the others are through."""
    at = max((i for i, row in enumerate(rows) if not is_one(s.nest.loop(row).stmt.extent)), default=None)
    if at is None or is_reduction(block_of(s, last)):
        return s, rows
    extent = s.nest.loop(rows[at]).stmt.extent
    options = [n for n in ROWS if n == 1 or (extent.is_const and extent.value % n == 0)]
    blocks = [block_of(s, name) for name in names]
    taken = space.choose(
        f"{last}.rows", options, lambda n: _row_cost(blocks, len(rows), n, machine),
        "rows computed together, by cycles for a row: instructions, and what is left of the wait for reductions",
    )  # fmt: skip
    if taken == 1:
        return s, rows
    s, (chunk, _) = s.split(rows[at], taken)
    return s, (*rows[:at], chunk)


def _row_cost(blocks: list[Block], depth: int, together: int, machine: Machine) -> float:
    """Cycles for one row of `together`."""
    lanes = machine.lanes(32)
    work, wait, length = 0.0, 0.0, 1
    for block in blocks:
        count = 1
        for it in (*spatial(block)[depth:], *reductions(block)):
            count *= extent_value(it.extent, 256)
        length = max(length, count)
        work += _operations(block) * -(-count // lanes) / machine.fma_units
        wait += machine.fma_latency * (2 * log2(lanes) if is_reduction(block) else 2.0)
    # with several rows, what is computed once and read later goes through memory, at last through the second level
    through = 0.0 if together == 1 else 2.0 * len(blocks) * length / lanes / 2
    spill = 4.0 * length / lanes if together > 1 and together * length * 4 * 3 > machine.l1d.size else 0.0
    return work + wait / together + through * 0.25 + spill


def _operations(block: Block) -> int:
    """Vector operations for one point."""
    body = block.body
    if not isinstance(body, Store):
        return 1
    nodes = set(walk(body.value))
    return sum(CALL if e.op is Op.CALL else 1 for e in nodes if e.op not in (Op.CONST, Op.VAR))
