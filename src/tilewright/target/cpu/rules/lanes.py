"""Reductions with one result per vector lane: pooling, depthwise convolutions, sums over axes that memory does not run along.

A result stays in a register over all steps of its reduction; elementwise consumers follow on it. The vector axis is the last one: blocked
channels, or the columns of a plain image. Of the axis before it several neighbouring points are computed side by side (columns of the
image, or rows): overlapping windows share their inputs, and weights are loaded once for all of them. Taps along these two axes are
unrolled, those along the side by side points innermost, so that few inputs are live at a time; a loop over other taps stays a loop where
padding shortens it at the border, so that taps on padding cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.affine import affine_in
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import depends_on, substitute, walk
from tilewright.ir.typical import several_dims, typical_dim
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.structure import (
    MOST_VERSIONS,
    as_product,
    block_of,
    geometric_mean,
    is_injective,
    is_reduction,
    reductions,
    spatial,
    stride,
    uses,
    value_loads,
    writes_output,
)

SHORT = 8  # reduction loops up to this length are unrolled
LONG = 32  # taps along an axis from which on they are no more unrolled
MOST_POINTS = 14
MOST_STEPS = 80  # unrolled steps of a tile: tiles at borders get code of their own, which must stay small
TILE = 6.0  # cycles that a tile costs apart from its arithmetic: addresses, the start of the sums, the branch
TASKS = 4  # parallel tasks for each core that are enough
JUMP = 6.0  # cycles that going to another row costs: address, cache lines that nobody has asked for ahead
HORIZONTAL = 8.0  # steps that adding up the lanes of one vector costs


@dataclass(frozen=True, slots=True)
class Slide:
    """How the taps of reduction iter `tap` move over the input: by `dilation` for each, and with the points of spatial iter `point` by
    `stride`."""

    tap: BlockIter
    point: BlockIter
    stride: int
    dilation: int


def slides(block: Block) -> tuple[Slide, ...]:
    """The axes along which the block reduces over windows, in the order of its reduction iters."""
    found: dict[BlockIter, Slide] = {}
    for load in value_loads(block):
        for index in load.args:
            for tap in reductions(block):
                for point in spatial(block):
                    form = affine_in(index, (point.var, tap.var))
                    if form is None or not all(c.is_const and c.value for c in form[0].values()):
                        continue
                    found[tap] = Slide(tap, point, abs(int(form[0][point.var].value)), abs(int(form[0][tap.var].value)))
    return tuple(found[tap] for tap in reductions(block) if tap in found)


def schedule_windows(s: Schedule, machine: Machine, constants: frozenset[str], space: Space, reassociate: bool = True) -> Schedule | None:
    """A kernel that reduces over windows or within groups of channels, and what is elementwise before and after; None for any other, and
    for windows that are better summed along memory. `reassociate`: steps of a reduction may change places."""
    blocks = {name: block_of(s, name) for name in s.blocks()}
    windows = [name for name, block in blocks.items() if is_reduction(block) and in_lanes(block)]
    if len(windows) != 1 or any(not is_injective(block) for name, block in blocks.items() if name not in windows):
        return None
    (name,) = windows
    results = s.nest.outputs(name)
    for consumer in (blocks[user] for user in s.consumers(name)):
        own = {it.var for it in consumer.iters}
        reads = [index for load in value_loads(consumer) if load.attr in results for index in load.args]
        if not all(index in own or index.is_const for index in reads):
            return None  # a result is read again and again, by other points than its own: statistics of groups, say
    if _along_memory(blocks[name], _lanes(s, name, machine)):
        return None
    return reduce_lanes(s, name, machine, True, constants, space, reassociate)


def in_lanes(block: Block) -> bool:
    """Whether the block reduces over windows or within groups, and is no matrix product, whose operands both have an axis of their own."""
    product = as_product(block)
    if product is not None:
        sides = (product.left, product.right)
        own = [{it for it in spatial(block) if uses(side, it.var)} for side in sides]
        if own[0] - own[1] and own[1] - own[0]:
            return False
    return bool(slides(block)) or _grouped_axis(block) is not None


def _along_memory(block: Block, lanes: int) -> bool:
    """Whether lanes along the last reduced axis take fewer steps than lanes along the last output axis."""
    last, inner = spatial(block)[-1], reductions(block)[-1]
    moving = [load for load in value_loads(block) if stride(load, inner.var) == 1]
    if not moving or typical_dim(inner.extent) < SHORT:
        return False
    apart = max(stride(load, last.var) or lanes for load in moving)
    taps = max(typical_dim(inner.extent), 1)
    side_by_side = taps * min(max(apart, 1), lanes) / min(max(typical_dim(last.extent), 1), lanes)
    return -(-taps // lanes) + HORIZONTAL < side_by_side


def reduce_lanes(
    s: Schedule,
    name: str,
    machine: Machine,
    parallel: bool,
    constants: frozenset[str] = frozenset(),
    space: Space | None = None,
    reassociate: bool = True,
) -> Schedule:
    """The nest of one reduction block in lanes, and its elementwise consumer on the results; see the module's docstring."""
    space = space if space is not None else Space()
    block = block_of(s, name)
    loops = dict(zip(block.iters, s.loops_of(name)[-len(block.iters) :], strict=True))
    outer = [loops[it] for it in spatial(block)[:-1]]
    vector = spatial(block)[-1]
    lanes = _lanes(s, name, machine)
    width = min(lanes, int(vector.extent.value)) if vector.extent.is_const else lanes
    if writes_output(s, name):
        s, (epilogue, *_) = s.cache_write(name, "local")
    else:
        consumers = s.consumers(name)
        epilogue = consumers[0] if len(consumers) == 1 and is_injective(block_of(s, consumers[0])) else ""
        if epilogue:
            s = s.set_scope(s.nest.outputs(name)[0].name, "local")
    for load in value_loads(block):
        if load.attr.name in constants and stride(load, vector.var) not in (0, 1):
            s = pack_operand(s, name, load, load.attr.name, vector, width)
    axis, channels = _channels(block, width, space)
    points = points_side_by_side(block, machine, width, channels, space)
    along = [slide.tap for slide in slides(block) if points > 1 and reassociate and slide.point is spatial(block)[-2]]
    inner = [loops[it] for it in (*(it for it in reductions(block) if it not in along), *along)]
    columns = 1 if channels * points > 1 or along or slides(block) else _columns(block, machine, width, space)
    chunk, parts = "", []
    if columns > 1:
        s, (at, column, lane) = s.split(loops[vector], (None, columns, width))
        parts.append(column)
    else:
        s, (at, lane) = s.split(loops[vector], width)
    if axis is not None:
        place = outer.index(loops[axis])
        s, (outer[place], part) = s.split(loops[axis], channels)
        parts.append(part)
    if points > 1:
        s, (chunk, part) = s.split(outer.pop(), points)
        parts.append(part)
    s = s.reorder(*outer, *([chunk] if chunk else []), at, *inner, *parts, lane)
    if epilogue:
        try:
            s, made = s.reverse_compute_at(epilogue, at)
            if columns > 1:
                s, made = s.split(made[-1], width)
            s = _vectorised_tail(s, made[-1], width)
            for loop in made[:-1]:
                size = s.nest.loop(loop).stmt.extent
                s = s.unroll(loop) if size.is_const and size.value <= max(points, channels, columns) else s
        except ScheduleError:
            s = s.set_scope(s.nest.outputs(name)[0].name, "global")
    for part in parts:
        s = s.unroll(part)
    s = s.vectorize(lane)
    if inner:
        s, _ = s.decompose_reduction(name, inner[0])
    for loop in _unrolled(s, block, loops, points > 1):
        s = s.unroll(loop)
    return _in_parallel(s, outer, chunk, at, machine) if parallel else s


def _in_parallel(s: Schedule, outer: list[str], chunk: str, at: str, machine: Machine) -> Schedule:
    """Parallel tasks of the outer loops; where they are few, of stretches of the loop over tiles as well, which stays a loop of its own:
    its conditions are decided where it is split."""
    if not chunk:
        return parallelise(s, outer or [at])
    tasks, tiles = 1, s.nest.loop(chunk).stmt.extent
    for loop in outer:
        tasks *= max(typical_dim(s.nest.loop(loop).stmt.extent), 1)
    wanted = TASKS * machine.cores
    if tasks < wanted and typical_dim(tiles) > 1:
        s, (stretch, _) = s.split(chunk, max(1, typical_dim(tiles) * tasks // wanted))
        outer = [*outer, stretch]
    return parallelise(s, outer) if outer else s


def _lanes(s: Schedule, name: str, machine: Machine) -> int:
    """Lanes of the widest element that the block computes with."""
    bits = [load.dtype.bits for load in value_loads(block_of(s, name))]
    return machine.lanes(min(max(8, *bits, s.nest.outputs(name)[0].dtype.bits), 64) if bits else 32)


def _unrolled(s: Schedule, block: Block, loops: dict[BlockIter, str], tiled: bool) -> list[str]:
    """The reduction loops to unroll: short ones; of windows in tiles those along the tile, so that padding shortens the others."""
    near = {slide.tap for slide in slides(block) if slide.point in spatial(block)[-2:]}
    chosen = []
    for it in reductions(block):
        size = s.nest.loop(loops[it]).stmt.extent
        if size.is_const and size.value <= (LONG if it in near else SHORT) and (it in near or not tiled or not near or size.value == 1):
            chosen.append(loops[it])
    return chosen


def _channels(block: Block, width: int, space: Space) -> tuple[BlockIter | None, int]:
    """An axis of which neighbouring points read the same inputs, since these depend on their group alone (`c // k`: grouped convolutions),
    and how many of a group to compute side by side; none where there is no such axis."""
    found = _grouped_axis(block)
    if found is None or width < 2:
        return None, 1
    axis, size = found
    steps = _unrolled_steps(block)
    fitting = [n for n in range(1, MOST_POINTS + 1) if size % n == 0 and n * steps <= MOST_STEPS // 2] or [1]
    chosen = space.choose("channels side by side", fitting, lambda n: 1 + 1 / n, "loads for each multiply-add")
    return (axis, chosen) if chosen > 1 else (None, 1)


def _grouped_axis(block: Block) -> tuple[BlockIter, int] | None:
    """The output axis of a sum of products of which one operand depends on the group alone, and the size of a group."""
    loads, body = value_loads(block), block.body
    if len({load.attr for load in loads}) != 2 or not isinstance(body, Store) or not any(e.op is Op.MUL for e in body.value.args):
        return None
    for it in spatial(block)[:-1]:
        size = next((k for load in loads if (k := _group(load, it)) is not None), 1)
        if size > 1 and it.extent.is_const and it.extent.value % size == 0 and any(it.var in load.args for load in loads):
            return it, size
    return None


def _group(load: Expr, it: BlockIter) -> int | None:
    """k where the load moves with `it` by `it // k` alone."""
    divisions = [e for e in walk(*load.args) if e.op is Op.FLOORDIV and e.args[0] is it.var and e.args[1].is_const]
    if len(divisions) != 1 or any(depends_on(substitute(index, {divisions[0]: const(0)}), {it.var}) for index in load.args):
        return None
    return int(divisions[0].args[1].value)


def _unrolled_steps(block: Block) -> int:
    """Steps of the reduction that are unrolled in a tile: those along its axes."""
    steps = 1
    for slide in slides(block):
        taps = typical_dim(slide.tap.extent)
        steps *= taps if slide.point in spatial(block)[-2:] and taps <= LONG else 1
    return steps


def points_side_by_side(block: Block, machine: Machine, width: int, channels: int, space: Space) -> int:
    """How many points of the axis before the last one to compute side by side, of so many channels each."""
    axes = spatial(block)
    if len(axes) < 2 or width < 2 or typical_dim(axes[-2].extent) < 2:
        return 1
    whole = axes[-1].extent.is_const and int(axes[-1].extent.value) == width
    along = [slide for slide in slides(block) if slide.point is axes[-2]]
    if not whole and not along:
        return 1
    extents = several_dims(axes[-2].extent) or (typical_dim(axes[-2].extent),)
    taps = typical_dim(along[0].tap.extent) if along else 1
    rows = 1
    for it in reductions(block):
        rows *= max(typical_dim(it.extent), 1)
    rows //= max(taps, 1)

    def inputs(points: int) -> int:
        """Vectors that a row of taps reads for so many points."""
        if not along:
            return points
        step = min(along[0].stride, along[0].dilation * taps)
        return min((points - 1) * step + (taps - 1) * along[0].dilation + 1, points * taps)

    def cycles(points: int) -> float:
        arithmetic = max(rows * taps * points * channels / machine.fma_units, rows * taps * machine.fma_latency / 4)
        return TILE + max(arithmetic, rows * (inputs(points) + taps * channels) / 2)

    def each(points: int, extent: int) -> float:
        full, rest = divmod(extent, points)
        return (full * cycles(points) + (cycles(rest) if rest else 0.0)) / extent

    def cost(points: int) -> float:
        return each(points, extents[0]) if len(extents) == 1 else geometric_mean(each(points, extent) for extent in extents)

    most = min(max(extents), MOST_POINTS if len(extents) == 1 else MOST_VERSIONS, MOST_STEPS // (_unrolled_steps(block) * channels))
    fitting = [n for n in range(1, most + 1) if n * channels + inputs(n) + 1 <= machine.vector_registers]
    why = "cycles for each point: arithmetic or loads, whichever take longer, and those of the tile itself"
    return space.choose("points side by side", fitting or [1], cost, why)


def _columns(block: Block, machine: Machine, width: int, space: Space) -> int:
    """How many neighbouring vectors of the last axis to reduce side by side, where rows are longer than a vector: the sums of one do not
    wait for those of the others, and more of a row is read before the next one, somewhere else in memory."""
    extent = typical_dim(spatial(block)[-1].extent)
    vectors = max(-(-extent // width), 1)
    outer = 1
    for it in spatial(block)[:-1]:
        outer *= max(typical_dim(it.extent), 1)

    def cost(columns: int) -> float:
        tiles = -(-vectors // columns)
        step = max(columns / 2, machine.fma_latency) + JUMP
        return step * tiles / vectors * (-(-outer * tiles // machine.cores) * machine.cores / (outer * tiles))

    fitting = range(1, min(vectors, machine.vector_registers // 2) + 1)
    why = "cycles for a vector of a row: loads, what additions wait for, and those of going to the next row, as far as tasks are balanced"
    return space.choose("columns side by side", list(fitting), cost, why)


def _vectorised_tail(s: Schedule, loop: str, width: int) -> Schedule:
    """Vectorise the innermost loop of what was computed at a tile, if it still has the tile's width."""
    try:
        extent = s.nest.loop(loop).stmt.extent
        return s.vectorize(loop) if extent.is_const and 1 < extent.value <= max(width, 2) else s
    except ScheduleError:
        return s
