"""Winograd convolutions: transformed inputs of a group of tiles, their products with the weights, and results, while all is in cache.

    parallel for a group of tiles:
      transform the group's inputs                         [*n][C/lanes][tiles][lanes]
      for a part of the output channels:
        for each point: product of [tiles x C] and [C x part] in register tiles
        transform the sums back, with whatever follows, into the output

Where that leaves too few tasks, or the weights are large against the images, the inputs of all tiles are transformed first and tasks take
groups of tiles and parts of the output channels; with images of unknown number, parts may be outside, so that groups share their weights.
Transforms are straight code on vectors of channels, everything in them unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import substitute, walk
from tilewright.ir.typical import typical_dim
from tilewright.kernel.nodes import Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.elementwise import parallelise
from tilewright.target.cpu.rules.structure import (
    Product,
    as_product,
    block_of,
    extent_value,
    few_sizes,
    is_injective,
    spatial,
    value_loads,
    writes_output,
)
from tilewright.target.cpu.rules.winograd_cost import Work, bytes_again, plan_cost, plans, prefetch_cost, products_cost, register_tiles


@dataclass(frozen=True, slots=True)
class Blocks:
    """The three blocks of a Winograd convolution, the product's operand that are the weights, and results of a tile along each axis."""

    inputs: str
    product: str
    output: str
    weights: Expr
    tile: tuple[int, ...]


def schedule_winograd(s: Schedule, constants: frozenset[str], machine: Machine, space: Space) -> Schedule | None:
    """The kernel of a Winograd convolution; None when it is none. Weights that may be packed are, and only those are asked for ahead."""
    found = find_blocks(s)
    if found is None:
        return None
    packed = found.weights.attr.name in constants
    block = block_of(s, found.product)
    *points, parts, _, lane = (typical_dim(it.extent, 64) for it in spatial(block))
    depth = prod(typical_dim(it.extent) for it in block.iters if it.kind == "reduction")
    images, *_ = (it.extent for it in spatial(block_of(s, found.output)))
    work = Work(tuple(points), _tiles(spatial(block)[-2].extent, images), depth, parts, lane)
    known = spatial(block)[-2].extent.is_const
    tile = space.choose(
        f"{found.product}.tile",
        register_tiles(work, machine),
        lambda pair: products_cost(work, pair, machine),
        "cycles of products in register tiles of so many tiles and vectors",
    )
    plan = space.choose(
        f"{found.product}.group",
        plans(work, tile[0]),
        lambda option: plan_cost(work, tile, option, machine, not known),
        "cycles with so many tiles at once, inputs transformed with them (True) or all before (False)",
    )
    ahead = space.choose(
        f"{found.product}.prefetch",
        (False, True) if packed else (False,),
        lambda asked: prefetch_cost(work, tile, plan, asked, machine),
        "cycles of waiting for weights, or of asking for those of the next point while one is computed",
    )
    turned = not (plan[1] or known) and space.choose(
        f"{found.product}.parts_first",
        (False, True),
        lambda parts_first: bytes_again(work, tile, plan, parts_first),
        "bytes read again for each group of tiles: all weights, or, with a part of the output channels for all groups first, inputs",
    )
    return _scheduled(s, found, work, tile, plan, turned, packed, machine.l1d.line if ahead else 0)


def _tiles(count: Expr, images: Expr) -> int:
    """Tiles to choose for: those of the fewest images that there may be, of which each register tile asks for its share of the weights."""
    return max(typical_dim(simplify(substitute(count, few_sizes(images)[0]))), 1)


def find_blocks(s: Schedule) -> Blocks | None:
    """The blocks of a product between transforms: one operand is computed by an injective block, and one injective block reads the sums,
    several for each of its points."""
    for name in s.blocks():
        product = as_product(block_of(s, name))
        consumers = s.consumers(name)
        if product is None or len(consumers) != 1 or writes_output(s, name):
            continue
        output = block_of(s, consumers[0])
        sums = s.nest.outputs(name)[0]
        reads = [load for load in value_loads(output) if load.attr is sums]
        if not (is_injective(output) and writes_output(s, consumers[0]) and len(reads) > 1):
            continue
        made = _made(s, product)
        points = len(spatial(block_of(s, name))) - 3
        if made is None or len(spatial(output)) != points + 3:
            continue
        tile = tuple(_divisor(output.body, it.var) for it in spatial(output)[2:-1])
        return Blocks(made[0], name, consumers[0], made[1], tile)
    return None


def _made(s: Schedule, product: Product) -> tuple[str, Expr] | None:
    """The block that makes one operand, and the other operand."""
    for own, other in ((product.left, product.right), (product.right, product.left)):
        writers = s.nest.writers(own.attr)
        if len(writers) == 1 and is_injective(block_of(s, writers[0])) and other.attr in s.kernel.inputs:
            return writers[0], other
    return None


def _divisor(body: object, variable: Expr) -> int:
    """The constant by which the value divides an iter: results in a tile."""
    if not isinstance(body, Store):
        return 1
    divisions = (e for e in walk(body.value) if e.op is Op.FLOORDIV and e.args[0] is variable and e.args[1].is_const)
    return max((int(e.args[1].value) for e in divisions), default=1)


def _scheduled(
    s: Schedule, blocks: Blocks, work: Work, tile: tuple[int, int], plan: tuple[int, bool], turned: bool, packed: bool, line: int
) -> Schedule:
    """The schedule of these decisions. `turned`: parts of the output channels are outside of groups of tiles; `packed`: weights are stored
    in the order of reading; `line`: bytes of a cache line, 0 where they are not asked for ahead."""
    (_, vectors), (group, together) = tile, plan
    axes = len(blocks.tile)
    # Tiles past the last one are computed like it and never read. Where their number is not known, groups end where they do.
    multiple = group if spatial(block_of(s, blocks.product))[-2].extent.is_const else tile[0]
    s = s.pad(blocks.inputs, axes + 1, multiple).pad(blocks.product, axes + 1, multiple)
    # in the order of reading: for each part of the output channels its points, for each of them the input channels
    order = (axes + 2, *range(axes), axes, axes + 1, axes + 3, axes + 4)
    if packed:
        s = s.pack(blocks.weights.attr.name, [*((),) * axes, (work.lanes,), (vectors, work.lanes)], order)
    s, (copy, *_) = s.cache_write(blocks.product, "local")
    n, channel, *axis_loops, lane = s.loops_of(blocks.output)
    outer, inner = [], []
    for loop, m in zip(axis_loops, blocks.tile, strict=True):
        if m == 1:
            outer.append(loop)
            continue
        s, (place, within) = s.split(loop, m)
        outer.append(place)
        inner.append(within)
    s = s.reorder(n, *outer, channel, lane, *inner)
    s, tiles = s.fuse(n, *outer)
    s, (chunk, own_tile) = s.split(tiles, group)
    s, (part, vector) = s.split(channel, vectors)
    s = s.reorder(chunk, part, vector, own_tile, lane, *inner)
    s = _place_product(s, blocks, copy, part, work, tile, line)
    made = s.loops_of(blocks.inputs)
    if together:
        s, made = s.compute_at(blocks.inputs, chunk)
    *points, depth, images, own_lane = made
    s = s.reorder(depth, images, own_lane, *points)
    s = s.vectorize(own_lane)
    s = s.vectorize(lane)
    for loop in (*points, *inner):
        s = s.unroll(loop)
    if together:
        return parallelise(s, [chunk])
    s = parallelise(s, [depth, images])
    if turned:
        return parallelise(s.reorder(part, chunk), [part, chunk])
    return parallelise(s, [chunk, part])


def _place_product(s: Schedule, blocks: Blocks, copy: str, part: str, work: Work, tile: tuple[int, int], line: int) -> Schedule:
    """The sums of one part of the output channels, point by point, in register tiles."""
    product = blocks.product
    s, (*points, vector, tiles, lane) = s.compute_at(copy, part)
    s, (row_tile, row) = s.split(tiles, tile[0])
    s = s.reorder(*points, row_tile, vector, row, lane)
    s, made = s.compute_at(product, row_tile)
    at, (own_vector, own_row, own_lane, depth, channel) = made[: len(points)], made[len(points) :]
    s = s.reorder(*at, depth, channel, own_row, own_vector, own_lane)
    s = s.vectorize(own_lane).vectorize(lane)
    for loop in (own_row, own_vector, row, vector):
        s = s.unroll(loop)
    s, _ = s.decompose_reduction(product, depth)
    return _asked_ahead(s, blocks, part, points, row_tile, (depth, channel), work, tile[1], line) if line else s


def _asked_ahead(
    s: Schedule,
    blocks: Blocks,
    part: str,
    points: Sequence[str],
    row_tile: str,
    reduced: tuple[str, str],
    work: Work,
    vectors: int,
    line: int,
) -> Schedule:
    """While the weights of one point are used, ask for those of the next: an even share for each register tile."""
    size = work.depth * vectors * work.lanes  # elements of one point
    passes = extent_value(s.nest.loop(row_tile).stmt.extent)
    steps = [(part, size * prod(work.points), 0)]
    for axis, loop in enumerate(points):
        steps.append((loop, size * prod(work.points[axis + 1 :]), 0))
    each = -(-vectors * work.lanes // passes)  # elements asked for with each input channel
    steps += [(row_tile, each * work.depth, passes), (reduced[0], each * work.lanes, 0)]
    at = reduced[0]
    if each * 4 >= line:
        at, each = reduced[1], each
        steps.append((reduced[1], each, 0))
    else:
        each *= work.lanes
    return s.prefetch(at, blocks.weights.attr.name, size, steps, -(-each * 4 // line), line)
