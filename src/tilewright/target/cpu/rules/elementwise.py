"""Nests of one block without reduction: flat where memory is walked in order, vectors along the last axis, threads along the rest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.kernel.nodes import Block, Buffer, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.structure import block_of, extent_value, spatial, uses, value_loads
from tilewright.target.cpu.rules.transposition import tile_transposition

UNROLL = 4  # vectors per iteration of a flat loop: enough loads in flight
TASK = 4096  # elements of one flat loop that a task takes at least
_ONE = const(1)


def schedule_nest(s: Schedule, name: str, machine: Machine, parallel: bool = True, space: Space | None = None) -> Schedule:
    """Vectorise and, at the root, parallelise the nest of one injective block. `parallel`: it is not inside another loop."""
    block = block_of(s, name)
    every = own_loops(s, name)
    loops = [loop for loop in every if s.nest.loop(loop).stmt.extent is not _ONE]
    if not isinstance(block.body, Store) or not every:
        return s
    if not loops:
        return parallelise(s, list(every)) if parallel else s
    lanes = vector_lanes(block, machine)
    space = space if space is not None else Space()
    with suppress(ScheduleError), space.attempt("elementwise"):
        turned = tile_transposition(s, name, every, lanes, machine, space)
        if turned is not None:
            return parallelise(*turned) if parallel else turned[0]
    first = loops[max(0, len(loops) - contiguous_suffix(block))]
    outer, inner = list(every[: every.index(first)]), list(every[every.index(first) :])
    alone = first is loops[0]
    if len(inner) > 1:
        s, vector = s.fuse(*inner)
    else:
        vector = inner[0]
    extent = s.nest.loop(vector).stmt.extent
    if alone and extent_value(extent, TASK * 8) > lanes * UNROLL * 2:
        s, (chunk, part, lane) = s.split(vector, (None, UNROLL, lanes))
        s = s.vectorize(lane)
        s = s.unroll(part)
        return parallelise(s, [*outer, chunk]) if parallel else s
    width = min(lanes, int(extent.value)) if extent.is_const else lanes
    s, (chunk, lane) = s.split(vector, width)
    s = s.vectorize(lane)
    return parallelise(s, [*outer, chunk] if alone else outer) if parallel else s


def parallelise(s: Schedule, loops: list[str]) -> Schedule:
    """Fuse loops at the root and run the result in parallel; where iterations depend on each other they stay serial, and where there are
    none, nothing is to be shared out."""
    if not loops:
        return s
    try:
        if len(loops) > 1:
            s, fused = s.fuse(*loops)
        else:
            fused = loops[0]
        return s.parallel(fused)
    except ScheduleError:
        return s


def own_loops(s: Schedule, name: str) -> tuple[str, ...]:
    """The loops around a block that hold no other block, outermost first."""
    names = []
    for placed in s.nest.blocks[name].around:
        if len([b for b in s.nest.blocks.values() if placed in b.around]) == 1:
            names.append(placed.var.name)
    return tuple(names)


def vector_lanes(block: Block, machine: Machine) -> int:
    """Lanes for the widest dtype that the block computes with."""
    body = block.body
    if not isinstance(body, Store):
        return 1
    widths = [body.buffer.dtype.bits] + [load.dtype.bits for load in value_loads(block)]
    narrow_float = any(load.dtype.is_float and load.dtype.bits < 32 for load in value_loads(block))
    return machine.lanes(max(32 if narrow_float else 8, *(min(w, 64) for w in widths)))


def contiguous_suffix(block: Block) -> int:
    """How many of the last iters, those of one iteration aside, may be walked as one flat axis: over them, every load is at consecutive
    addresses or does not move."""
    iters = [it for it in spatial(block) if it.extent is not _ONE]
    body = block.body
    if not isinstance(body, Store) or any(e.op is Op.VAR and e not in {it.var for it in spatial(block)} for e in body.indices):
        return 1
    if [index for index, _ in _moving(body.indices, body.buffer)] != [it.var for it in iters]:
        return 1
    best = 1
    for count in range(2, len(iters) + 1):
        suffix = [it.var for it in iters[len(iters) - count :]]
        for load in value_loads(block):
            if not any(uses(load, v) for v in suffix):
                continue
            dims = _moving(load.args, load.attr)
            tail = dims[len(dims) - count :] if len(dims) >= count else []
            whole = [size is it.extent for (_, size), it in zip(tail[1:], iters[len(iters) - count + 1 :], strict=False)]
            outside = [index for index, _ in dims[: len(dims) - count]]
            if [index for index, _ in tail] != suffix or not all(whole) or any(uses_any(index, suffix) for index in outside):
                return best
        best = count
    return best


def _moving(indices: Sequence[Expr], buffer: Buffer) -> list[tuple[Expr, Expr]]:
    """The indices of dimensions that have more than one element, and their sizes."""
    return [(index, size) for index, size in zip(indices, buffer.shape, strict=True) if size is not _ONE]


def uses_any(index: Expr, variables: list[Expr]) -> bool:
    return any(e in variables for e in walk(index))
