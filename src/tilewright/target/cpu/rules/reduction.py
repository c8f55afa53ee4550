"""Reductions that are no matrix products: pooling, sums over axes, depthwise convolutions.

Two ways to use vectors. Along an output axis, when the loads move with it by at most one element: each lane has its own sum. Along the
reduced axis, when that is the one that memory runs along: each lane sums a part (rfactor), and the parts are added at the end.
"""

from __future__ import annotations

from tilewright.kernel.schedule.schedule import Schedule
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.elementwise import parallelise, schedule_nest
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.registers import register_block
from tilewright.target.cpu.rules.structure import block_of, extent_value, reductions, spatial, stride, value_loads, writes_output

SHORT = 8  # reduction loops up to this length are unrolled


def schedule_reduction(
    s: Schedule, name: str, machine: Machine, parallel: bool = True, reassociate: bool = True, constants: frozenset[str] = frozenset()
) -> Schedule:
    """Vectorise the nest of one reduction block; at the root also parallelise it and compute its elementwise consumers with it. `constants`
    are the inputs that may be repacked."""
    block = block_of(s, name)
    if not spatial(block) or _along_reduction(s, name):
        if reassociate:
            return reduce_along_memory(s, name, machine, parallel)
        outer = list(s.loops_of(name)[-len(block.iters) :])[: len(spatial(block))]
        return parallelise(s, outer) if parallel and outer else s
    return reduce_lanes(s, name, machine, parallel, constants)


def _along_reduction(s: Schedule, name: str) -> bool:
    """Memory runs along the last reduction axis rather than along the last output axis."""
    block = block_of(s, name)
    last, inner = spatial(block)[-1], reductions(block)[-1]
    steps = [(stride(load, last.var), stride(load, inner.var)) for load in value_loads(block)]
    by_output = all(step[0] in (0, 1) for step in steps) and extent_value(last.extent) > 1
    by_reduction = any(step[1] == 1 for step in steps) and all(step[1] in (0, 1) for step in steps)
    if by_output and not all(step[0] == 0 for step in steps):
        return False
    return by_reduction and extent_value(inner.extent) >= 8


def reduce_lanes(s: Schedule, name: str, machine: Machine, parallel: bool, constants: frozenset[str] = frozenset()) -> Schedule:
    """One sum per lane, kept in a register over the reduction loops; consumers follow on it. Where the lanes are the whole last axis,
    several points of the axis before it are computed at once, which share what does not move with them."""
    block = block_of(s, name)
    loops = s.loops_of(name)[-len(block.iters) :]
    count = len(spatial(block))
    outer, vector, inner = list(loops[: count - 1]), loops[count - 1], list(loops[count:])
    dtype_bits = max(8, *(load.dtype.bits for load in value_loads(block))) if value_loads(block) else 32
    lanes = machine.lanes(min(max(dtype_bits, s.nest.outputs(name)[0].dtype.bits), 64))
    extent = s.nest.loop(vector).stmt.extent
    width = min(lanes, int(extent.value)) if extent.is_const else lanes
    if writes_output(s, name):
        s, (epilogue, *_) = s.cache_write(name, "local")
    else:
        consumers = s.consumers(name)
        epilogue = consumers[0] if len(consumers) == 1 else ""
        if epilogue:
            s = s.set_scope(s.nest.outputs(name)[0].name, "local")
    for load in value_loads(block):
        if load.attr.name in constants and stride(load, spatial(block)[-1].var) not in (0, 1):
            s = pack_operand(s, name, load, load.attr.name, spatial(block)[-1], width)
    rows = _rows_at_once(s, name, machine, width)
    row_part = None
    if rows > 1:
        s, (row_chunk, row_part) = s.split(outer[-1], rows)
        s = s.reorder(row_chunk, *inner, row_part, vector)
        outer, chunk, lane = [*outer[:-1], row_chunk], row_chunk, vector
    else:
        s, (chunk, lane) = s.split(vector, width)
        s = s.reorder(chunk, *inner, lane)
    if epilogue:
        try:
            s, made = s.reverse_compute_at(epilogue, chunk)
            s = _vectorised_tail(s, made[-1], width)
            if row_part is not None:
                for loop in made[:-1]:
                    size = s.nest.loop(loop).stmt.extent
                    s = s.unroll(loop) if size.is_const and size.value <= rows else s
        except ScheduleError:
            s = _unlocal(s, name)
    if row_part is not None:
        s = s.unroll(row_part)
    if inner:
        s = s.vectorize(lane)
        s, _ = s.decompose_reduction(name, inner[0])
    else:
        s = s.vectorize(lane)
    for loop in inner:
        size = s.nest.loop(loop).stmt.extent
        if size.is_const and size.value <= SHORT:
            s = s.unroll(loop)
    return parallelise(s, outer or [chunk]) if parallel else s


def _rows_at_once(s: Schedule, name: str, machine: Machine, width: int) -> int:
    """How many points of the axis before the last one to compute at once; 1 where the last axis is longer than a vector."""
    axes = spatial(block_of(s, name))
    if len(axes) < 2 or not axes[-1].extent.is_const or int(axes[-1].extent.value) != width or width < 2:
        return 1
    extent = axes[-2].extent
    if not extent.is_const:
        return 1
    return register_block(machine, int(extent.value), 1)[0] if extent.value > 1 else 1


def _unlocal(s: Schedule, name: str) -> Schedule:
    return s.set_scope(s.nest.outputs(name)[0].name, "global")


def _vectorised_tail(s: Schedule, loop: str, width: int) -> Schedule:
    """Vectorise the innermost loop of what was computed at a tile, if it still has the tile's width."""
    try:
        extent = s.nest.loop(loop).stmt.extent
        return s.vectorize(loop) if extent.is_const and 1 < extent.value <= max(width, 2) else s
    except ScheduleError:
        return s


def reduce_along_memory(s: Schedule, name: str, machine: Machine, parallel: bool) -> Schedule:
    """Partial sums in lanes along the reduced axis, added at the end."""
    block = block_of(s, name)
    loops = list(s.loops_of(name)[-len(block.iters) :])
    count = len(spatial(block))
    outer, inner = loops[:count], loops[count:]
    lanes = machine.lanes(max(32, *(load.dtype.bits for load in value_loads(block)), 32))
    last = inner[-1]
    extent = s.nest.loop(last).stmt.extent
    if extent.is_const and extent.value < 2 * lanes:
        return parallelise(s, outer) if parallel and outer else s
    s, (chunk, lane) = s.split(last, lanes)
    s, (partial, *_) = s.rfactor(lane)
    s = s.set_scope(s.nest.outputs(partial)[0].name, "local")
    s = s.vectorize(lane)
    s, _ = s.decompose_reduction(partial, [*inner[:-1], chunk][0])
    return parallelise(s, outer) if parallel and outer else s


def schedule_rest(s: Schedule, machine: Machine, reassociate: bool = True, constants: frozenset[str] = frozenset()) -> Schedule:
    """Each nest at the root for itself."""
    for name in s.blocks():
        if name in s.nest.blocks:
            s = schedule_alone(s, name, machine, reassociate, constants)
    return s


def schedule_alone(s: Schedule, name: str, machine: Machine, reassociate: bool, constants: frozenset[str]) -> Schedule:
    from tilewright.target.cpu.rules.structure import is_injective, is_reduction

    placed = s.nest.blocks[name]
    if any(loop.kind != "serial" for loop in placed.around):
        return s
    if len([b for b in s.nest.blocks.values() if placed.around and b.around and b.around[0] is placed.around[0]]) > 1:
        return s
    block = placed.stmt
    try:
        if is_injective(block):
            return schedule_nest(s, name, machine)
        if is_reduction(block):
            return schedule_reduction(s, name, machine, reassociate=reassociate, constants=constants)
    except ScheduleError:
        pass
    loops = [loop for loop, it in zip(s.loops_of(name), block.iters) if it.kind == "spatial"]
    return parallelise(s, loops) if loops else s
