"""Reductions along the axis that memory runs along: partial results in vector lanes, several vectors side by side, added as a tree.

    for k in 1000: y += x[k]                 for k_o in 16: unrolled p in 4: vectorized l in 16: part[p, l] += x[k_o*64 + p*16 + l]
                                       ->    unrolled p in 4: vectorized l in 16: lanes[l] += part[p, l]
                                             vectorized l in 16: y += lanes[l]       (halves onto each other)

One vector of partial results would wait for its own addition at each step; with as many as a multiply-add has cycles of latency, the loads
are the limit. The ragged end runs under a mask, with the identity in the lanes that are off.
"""

from __future__ import annotations

from math import log2

from tilewright.ir.expr import Expr
from tilewright.kernel.nodes import Block
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.structure import block_of, extent_value, geometric_mean, reductions, spatial, uses, value_loads

ACCUMULATORS = (1, 2, 4, 8)  # vectors of partial results
TYPICAL = 512  # elements of a reduction of unknown length, at most
FEWEST = 16  # and at least, as it is in a row of attention over a few tokens
MASKED = 2.0  # cycles of a vector under a mask that is worked out while running
TASK = 1 << 15  # elements of a reduction to one element that a task takes at least
MOST_TASKS = 16
SHORT = 2  # steps up to which the loop over them is unrolled
SHUFFLE = 3.0  # cycles of latency of a shuffle between the halves of a vector


def reduce_along_memory(s: Schedule, name: str, machine: Machine, parallel: bool, space: Space) -> Schedule:
    """The reduction block `name` with partial results in lanes; at the root its outer loops run in parallel."""
    block = block_of(s, name)
    loops = list(s.loops_of(name)[-len(block.iters) :])
    count = len(spatial(block))
    outer, inner = loops[:count], loops[count:]
    flat = flat_reductions(block)
    if flat > 1:
        s, fused = s.fuse(*inner[len(inner) - flat :])
        inner = [*inner[: len(inner) - flat], fused]
    if parallel and len(inner) == 1 and all(extent_value(s.nest.loop(loop).stmt.extent, 2) == 1 for loop in outer):
        tasks = min(MOST_TASKS, extent_value(s.nest.loop(inner[0]).stmt.extent, 1) // TASK)
        tasks -= tasks % machine.cores if tasks > machine.cores else 0  # as many for each core
        if tasks > 1:
            return _in_tasks(s, name, inner[0], tasks, machine, space)
    lanes = machine.lanes(min(64, max(32, s.nest.outputs(name)[0].dtype.bits, *(load.dtype.bits for load in value_loads(block)))))
    extent = s.nest.loop(inner[-1]).stmt.extent
    vectors = space.choose(
        f"{name}.accumulators", (0, *ACCUMULATORS), lambda n: _expected(extent, n, lanes, machine),
        "vectors of partial results (0: none, one element after the other), by the cycles that one reduction waits for",
    )  # fmt: skip
    if vectors == 0 or lanes == 1:
        return parallelise(s, outer) if parallel and outer else s
    s = _in_lanes(s, name, inner, lanes, vectors)
    return parallelise(s, outer) if parallel and outer else s


def _in_tasks(s: Schedule, name: str, loop: str, tasks: int, machine: Machine, space: Space) -> Schedule:
    """A reduction to one element, by parts that run on several threads."""
    s, (task, _) = s.split(loop, (tasks, None))
    s, (partial, *_) = s.rfactor(task)
    return reduce_along_memory(s, partial, machine, False, space).parallel(task)


def _expected(extent: Expr, vectors: int, lanes: int, machine: Machine) -> float:
    """Cycles of a reduction; where its length is known only while running, the mean of what few and many elements take, whose ragged end
    takes all vectors under their masks."""
    if extent.is_const:
        return _latency(int(extent.value), vectors, lanes, machine)
    longest = extent_value(extent, TYPICAL)
    lengths = [longest >> n for n in range(longest.bit_length()) if longest >> n >= FEWEST] or [longest]
    return geometric_mean(_latency(length, vectors, lanes, machine) + vectors * MASKED for length in lengths)


def _latency(length: int, vectors: int, lanes: int, machine: Machine) -> float:
    """Cycles from the first element of a reduction to its result, or those that its instructions take if these are more."""
    if vectors == 0:
        return float(length * machine.fma_latency)
    steps = -(-length // (lanes * vectors))
    tree = log2(lanes) * (machine.fma_latency + SHUFFLE) + log2(vectors) * machine.fma_latency
    return max(float(steps * machine.fma_latency), steps * vectors / machine.fma_units) + tree


def _in_lanes(s: Schedule, name: str, inner: list[str], lanes: int, vectors: int) -> Schedule:
    s, (chunk, part, lane) = s.split(inner[-1], (None, vectors, lanes))
    s, (partial, *_, last) = s.rfactor(lane)
    s = s.set_scope(s.nest.outputs(partial)[0].name, "local")
    first = [*inner[:-1], chunk][0]
    final = ""
    if vectors > 1:
        collected = partial
        s, (partial, *made) = s.rfactor(part)
        final, across = made[-2], made[-1]
        s = s.set_scope(s.nest.outputs(partial)[0].name, "local")
        s = s.reorder(across, final)
        s = s.vectorize(final)
        s = s.unroll(across)
        s, _ = s.decompose_reduction(collected, across)
    s = s.vectorize(lane)
    s = s.unroll(part)
    s, _ = s.decompose_reduction(partial, first)
    steps = s.nest.loop(chunk).stmt.extent
    if steps.is_const and steps.value <= SHORT:
        s = s.unroll(chunk)
    return s.vectorize(last)


def flat_reductions(block: Block) -> int:
    """How many of the last reduction iters may be walked as one: each load that moves with one of them indexes consecutive whole dims of
    its buffer by all of them, in their order."""
    iters = reductions(block)
    for count in range(len(iters), 1, -1):
        suffix = iters[len(iters) - count :]
        if all(_is_flat(load, [it.var for it in suffix], [it.extent for it in suffix]) for load in value_loads(block)):
            return count
    return 1


def _is_flat(load: Expr, variables: list[Expr], extents: list[Expr]) -> bool:
    used = [position for position, index in enumerate(load.args) if any(uses(index, v) for v in variables)]
    if not used:
        return True
    start = used[0]
    whole = [dim is extent for dim, extent in zip(load.attr.shape[start + 1 : start + len(variables)], extents[1:], strict=False)]
    return list(load.args[start : start + len(variables)]) == variables and len(used) == len(variables) and all(whole)
