"""Several blocks over the same rows (softmax, normalisations): everything of one row while it is in the cache."""

from __future__ import annotations

from tilewright.ir.expr import free_vars
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.elementwise import parallelise, schedule_nest
from tilewright.target.cpu.rules.reduction import schedule_reduction
from tilewright.target.cpu.rules.structure import block_of, is_injective, is_reduction, spatial, writes_output


def schedule_rows(s: Schedule, machine: Machine, reassociate: bool = True) -> Schedule:
    """Compute all blocks under the outer loops that they share, each vectorised inside; as they are where they share none."""
    names = s.blocks()
    outputs = [name for name in names if writes_output(s, name)]
    if len(names) < 2 or len(outputs) != 1 or names[-1] != outputs[0]:
        return s
    if not any(is_reduction(block_of(s, name)) for name in names):
        return s
    last = outputs[0]
    loops = s.loops_of(last)
    for depth in range(min(len(spatial(block_of(s, name))) for name in names), 0, -1):
        try:
            return _at_depth(s, names, last, loops[:depth], machine, reassociate)
        except ScheduleError:
            continue
    return s


def _at_depth(s: Schedule, names: tuple[str, ...], last: str, rows: tuple[str, ...], machine: Machine, reassociate: bool) -> Schedule:
    for name in reversed(names[:-1]):
        s, _ = s.compute_at(name, rows[-1])
        used = free_vars(*block_of(s, name).bindings)
        if any(s.nest.loop(row).stmt.var not in used for row in rows):
            raise ScheduleError(f"block '{name}' would be computed again in each iteration of an outer loop")
    for name in names:
        block = block_of(s, name)
        if name == last and len(rows) == len(spatial(block)):
            continue
        if is_injective(block):
            s = schedule_nest(s, name, machine, parallel=False)
        elif is_reduction(block):
            s = schedule_reduction(s, name, machine, parallel=False, reassociate=reassociate)
    return parallelise(s, list(rows))
