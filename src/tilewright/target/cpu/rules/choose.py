"""Which rule schedules a kernel."""

from __future__ import annotations

from contextlib import suppress

from tilewright.kernel.nodes import For, Kernel, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.attention import schedule_attention
from tilewright.target.cpu.rules.contraction import schedule_contraction
from tilewright.target.cpu.rules.dot import schedule_dot
from tilewright.target.cpu.rules.flat_rows import flat_rows
from tilewright.target.cpu.rules.inline import inline_producers
from tilewright.target.cpu.rules.lanes import schedule_windows
from tilewright.target.cpu.rules.matrix import schedule_matrix
from tilewright.target.cpu.rules.pairs import schedule_pair
from tilewright.target.cpu.rules.reduction import schedule_rest
from tilewright.target.cpu.rules.rowwise import schedule_rows
from tilewright.target.cpu.rules.structure import as_product, block_of
from tilewright.target.cpu.rules.winograd import schedule_winograd


def schedule_kernel(
    kernel: Kernel, constants: frozenset[int], machine: Machine, reassociate: bool = True, space: Space | None = None
) -> Schedule:
    """The default schedule, or the one at the point that `space` gives; the space holds the decisions afterwards. `constants` are the
    numbers of the inputs that are constants of the model (they may be repacked); `reassociate`: sums may be split into partial sums."""
    space = space if space is not None else Space()
    if any(isinstance(stmt, For) and stmt.extent.is_const and stmt.extent.value == 0 for stmt in walk_stmts(kernel.body)):
        return Schedule.of(kernel)  # tiles and fused loops would divide by the extents of loops that never run
    s = inline_producers(Schedule.of(kernel))
    names = frozenset(kernel.inputs[i].name for i in constants)
    with suppress(ScheduleError), space.attempt("winograd"):
        winograd = schedule_winograd(s, names, machine, space)
        if winograd is not None:
            return winograd
    with suppress(ScheduleError), space.attempt("pair"):
        pair = schedule_pair(s, names, machine, space)
        if pair is not None:
            return schedule_rest(pair, machine, reassociate, names, space)
    with suppress(ScheduleError), space.attempt("attention"):
        attention = schedule_attention(s, machine, reassociate, space)
        if attention is not None:
            return schedule_rest(attention, machine, reassociate, names, space)
    with suppress(ScheduleError), space.attempt("windows"):
        windows = schedule_windows(s, machine, names, space, reassociate)
        if windows is not None:
            return schedule_rest(windows, machine, reassociate, names, space)
    products = [name for name in s.blocks() if as_product(block_of(s, name)) is not None]
    for name in products:
        s = flat_rows(s, name)
        try:
            with space.attempt(f"product {name}"):
                scheduled = schedule_matrix(s, name, names, machine, space, reassociate)
                if scheduled is None:
                    scheduled = schedule_dot(s, name, names, machine, space, reassociate)
                if scheduled is None:
                    scheduled = schedule_contraction(s, name, names, machine, space)
        except ScheduleError:
            scheduled = None
        if scheduled is not None:
            s = scheduled
    if not products:
        with suppress(ScheduleError), space.attempt("rows"):
            s = schedule_rows(s, machine, reassociate, space)
    return schedule_rest(s, machine, reassociate, names, space)
