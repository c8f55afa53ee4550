"""Reductions that are no matrix products: pooling, sums over axes, depthwise convolutions.

Two ways to use vectors. Along an output axis, when the loads move with it by at most one element: each lane has its own sum. Along the
reduced axis, when that is the one that memory runs along: each lane sums a part, and the parts are added at the end (`along_memory`).
"""

from __future__ import annotations

from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.along_memory import flat_reductions, reduce_along_memory
from tilewright.target.cpu.rules.elementwise import parallelise, schedule_nest
from tilewright.target.cpu.rules.lanes import reduce_lanes
from tilewright.target.cpu.rules.structure import (
    block_of,
    extent_value,
    is_injective,
    is_reduction,
    reductions,
    spatial,
    stride,
    value_loads,
)


def schedule_reduction(
    s: Schedule,
    name: str,
    machine: Machine,
    parallel: bool = True,
    reassociate: bool = True,
    constants: frozenset[str] = frozenset(),
    space: Space | None = None,
) -> Schedule:
    """Vectorise the nest of one reduction block; at the root also parallelise it and compute its elementwise consumers with it. `constants`
    are the inputs that may be repacked."""
    block = block_of(s, name)
    if not spatial(block) or runs_along_reduction(s, name):
        if reassociate:
            return reduce_along_memory(s, name, machine, parallel, space if space is not None else Space())
        outer = list(s.loops_of(name)[-len(block.iters) :])[: len(spatial(block))]
        return parallelise(s, outer) if parallel and outer else s
    return reduce_lanes(s, name, machine, parallel, constants, space)


def runs_along_reduction(s: Schedule, name: str) -> bool:
    """Memory runs along the last reduction axis rather than along the last output axis."""
    block = block_of(s, name)
    last, inner = spatial(block)[-1], reductions(block)[-1]
    steps = [(stride(load, last.var), stride(load, inner.var)) for load in value_loads(block)]
    by_output = all(step[0] in (0, 1) for step in steps) and extent_value(last.extent) > 1
    by_reduction = any(step[1] == 1 for step in steps) and all(step[1] in (0, 1) for step in steps)
    if by_output and not all(step[0] == 0 for step in steps):
        return False
    length = 1
    for it in reductions(block)[-flat_reductions(block) :]:
        length *= extent_value(it.extent)
    return by_reduction and length >= 8


def schedule_rest(
    s: Schedule, machine: Machine, reassociate: bool = True, constants: frozenset[str] = frozenset(), space: Space | None = None
) -> Schedule:
    """Each nest at the root for itself."""
    for name in s.blocks():
        if name in s.nest.blocks:
            s = schedule_alone(s, name, machine, reassociate, constants, space)
    return s


def schedule_alone(
    s: Schedule, name: str, machine: Machine, reassociate: bool, constants: frozenset[str], space: Space | None = None
) -> Schedule:
    placed = s.nest.blocks[name]
    if any(loop.kind != "serial" for loop in placed.around):
        return s
    if len([b for b in s.nest.blocks.values() if placed.around and b.around and b.around[0] is placed.around[0]]) > 1:
        return s
    block = placed.stmt
    try:
        if is_injective(block):
            return schedule_nest(s, name, machine, space=space)
        if is_reduction(block):
            return schedule_reduction(s, name, machine, reassociate=reassociate, constants=constants, space=space)
    except ScheduleError:
        pass
    loops = [loop for loop, it in zip(s.loops_of(name), block.iters) if it.kind == "spatial"]
    return parallelise(s, loops) if loops else s
