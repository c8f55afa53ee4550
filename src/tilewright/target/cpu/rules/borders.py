"""Padding of dense convolutions: a padded copy of the image, or steps that meet padding left out.

A product that reads `x where inside, else 0` adds nothing outside, and lowering makes the condition one of the step
(`kernel/lower/skip_identity.py`). Taps along axes other than that of the rows of a tile then have a shorter loop at the border. Taps along
the rows are unrolled, and the loop over the tiles of a row of the image stays a loop of its own, which is split at the borders, where each
condition is a constant; so the last tile has only the rows that there are. Where the width is known only while running, that tile has
versions by its number of rows, which decide the conditions (`kernel/lower/decide_borders.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tilewright.ir.affine import affine_in
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int, variables_in
from tilewright.ir.typical import sides, typical_dim
from tilewright.kernel.nodes import Block, BlockIter, Store
from tilewright.kernel.regions import conjuncts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import ASSUMED_CLOCK_GHZ, Machine, estimated_peaks
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.registers import ProductShape, beginning
from tilewright.target.cpu.rules.structure import Product, block_of, is_injective, reductions, spatial

MOST_COPIES = 300  # multiply-adds and stores of a tile with its taps unrolled, so that copies of it for borders stay small
MOST_POINTS = 1 << 16  # of a condition's axes, up to which it is counted where it holds
HELD = 8  # inputs past the free registers that unrolled taps may share: LLVM keeps them from tap to tap, or reads them again
SPILL = 0.03  # of a tile's time, for each further one
ACCUMULATED = 2 / 3  # of the registers: past these LLVM keeps inputs that taps share and spills accumulators, if not all have room
SPILLED = 0.2  # of a tile's time, where it does
OVERLAP = 0.1  # share of what is not the bottleneck that is not hidden behind it


@dataclass(frozen=True, slots=True)
class Padding:
    """A product whose operand is a padded copy. copy: the buffer. without: the schedule in which the product reads the image itself, under
    `tests`, as `read`."""

    copy: Expr
    without: Schedule
    block: Block
    tests: tuple[Expr, ...]
    read: Expr


@dataclass(frozen=True, slots=True)
class Border:
    """Padding to be skipped. taps: of the reduction iters the one whose steps meet padding or not by the row of a tile, if there is one.
    A row reads `reach` inputs, the next one those `step` further on."""

    padding: Padding
    taps: BlockIter | None
    step: int
    reach: int


def padding_of(s: Schedule, name: str, product: Product) -> Padding | None:
    """The padding that the product `name` reads, where steps on it can be left out."""
    for operand in (product.left, product.right):
        writers = s.nest.writers(operand.attr)
        if len(writers) != 1 or s.consumers(writers[0]) != (name,) or not is_injective(block_of(s, writers[0])):
            continue
        try:
            without = s.inline(writers[0])
        except ScheduleError:
            continue
        block = block_of(without, name)
        found = _conditional(block)
        tests = () if found is None else tuple(conjuncts(found.args[0]))
        if found is not None and all(_on_one_point(block, test) for test in tests):
            return Padding(operand, without, block, tests, found.args[1])
    return None


def _conditional(block: Block) -> Expr | None:
    """The operand of a sum of products that is a load where a condition holds, else 0."""
    if not isinstance(block.body, Store):
        return None
    term = next((a for a in block.body.value.args if a.op is Op.MUL), None)
    sides = () if term is None else term.args
    found = [side for side in sides if side.op is Op.SELECT and side.args[1].op is Op.LOAD and side.args[2].op is Op.CONST]
    return found[0] if len(found) == 1 and found[0].args[2].attr == 0 else None


def _on_one_point(block: Block, test: Expr) -> bool:
    """Whether a condition is a comparison that looks at one axis of the result."""
    used = variables_in(test)
    return test.op in (Op.LT, Op.LE) and sum(it.var in used for it in spatial(block)) <= 1


def border_of(
    padding: Padding, row: BlockIter | None, name: str, machine: Machine, space: Space, slower: Callable[[Border], float] = lambda _: 1.0
) -> Border | None:
    """What to do about padding where `row` is the axis of the rows of a tile: None where it is copied, because that costs less, or because
    it is not known while compiling which taps meet it. `slower`: how many times longer tiles take that skip it."""
    slide = _slide(padding, row)
    if slide is None:
        return None
    border = Border(padding, *slide)
    images = frozenset[Expr]().union(*(sides(it.extent) for it in padding.block.iters))  # the image that is read has not been divided yet
    steps = prod(max(typical_dim(it.extent), 1) for it in padding.block.iters)
    cycles = steps / (machine.lanes(padding.copy.dtype.bits) * machine.fma_units)
    bytes_ = prod(max(typical_dim(dim, images=images), 1) for dim in padding.copy.attr.shape) * padding.copy.dtype.bytes
    copy = 2.0 * bytes_ / estimated_peaks(machine).l2 * ASSUMED_CLOCK_GHZ
    inside = _share_inside(padding)
    why = "cycles: copying the image with its padding first, or leaving out the steps on padding"
    times = slower(border)
    skip = space.choose(f"{name}.skip_padding", (True, False), lambda skip: cycles * inside * times if skip else cycles + copy, why)
    return border if skip else None


def _slide(padding: Padding, row: BlockIter | None) -> tuple[BlockIter | None, int, int] | None:
    """The taps that meet padding along the rows, by how many inputs neighbouring rows are apart, and how many a row reads. None where
    that is not known while compiling."""
    if row is None:
        return None, 0, 1
    along = {v for test in padding.tests for v in variables_in(test) if row.var in variables_in(test)}
    taps = [it for it in reductions(padding.block) if it.var in along]
    if len(taps) > 1 or not all(it.extent.is_const for it in taps):
        return None
    for tap in taps:
        for index in padding.read.args:
            form = affine_in(index, (row.var, tap.var))
            step, dilation = (None, None) if form is None else (form[0][row.var], form[0][tap.var])
            if step is not None and dilation is not None and step.is_const and dilation.is_const and step.value and dilation.value:
                return tap, abs(int(step.value)), (int(tap.extent.value) - 1) * abs(int(dilation.value)) + 1
    return (None, 0, 1) if not taps else None


def fits(border: Border, tile: tuple[int, int], versions: bool = False) -> bool:
    """Whether a tile of (rows, vectors) with its taps unrolled is small enough to be copied. `versions`: beside one for each number of rows
    below."""
    rows, vectors = tile
    rows = rows * (rows + 1) // 2 if versions else rows
    return ((1 if border.taps is None else int(border.taps.extent.value)) + 2) * rows * vectors <= MOST_COPIES


def tile_cost(border: Border, machine: Machine, shape: ProductShape, tile: tuple[int, int]) -> float:
    """Time of a multiply-add with tiles of (rows, vectors), relative to the peak, where the last tile of a row of the image is shorter.
    Steps cost as in `registers.tile_cycles`, but the image takes more of the first cache, and taps share what they read of it."""
    height, width = tile
    full, rest = divmod(shape.rows, height)
    depth, line = max(shape.depth, 1), machine.vector_bits / 8
    far = depth * line * width > machine.l1d.size // 2
    near = estimated_peaks(machine).l2 / ASSUMED_CLOCK_GHZ if far else 2.0 * line

    def cycles(count: int) -> float:
        adds = max(count * width / machine.fma_units, float(machine.fma_latency))
        others = (count + width) / 2, width * line / near
        # what a single multiply-add takes of the image is part of its instruction, and holds no register
        shared = (count - 1) * border.step + border.reach if width > 1 else 0
        held = count * width + width + shared
        spilled = SPILL * max(held - machine.vector_registers - HELD, 0)
        if count * width > ACCUMULATED * machine.vector_registers and held > machine.vector_registers + HELD // 4:
            spilled += SPILLED
        step = (max(adds, *others) + OVERLAP * (adds + sum(others) - max(adds, *others))) * (1 + spilled)
        return depth * step + beginning(machine, shape, count, width)

    ideal = depth * shape.rows * shape.vectors / machine.fma_units
    return -(-shape.vectors // width) * (full * cycles(height) + (cycles(rest) if rest else 0.0)) / ideal


def _share_inside(padding: Padding) -> float:
    """Share of the steps that meet no padding, as far as extents are known."""
    groups: dict[tuple[BlockIter, ...], list[Expr]] = {}
    for test in padding.tests:
        used = variables_in(test)
        groups.setdefault(tuple(it for it in padding.block.iters if it.var in used), []).append(test)
    share = 1.0
    for axes, tests in groups.items():
        own = [it.var for it in axes]
        extents = [typical_dim(it.extent) for it in axes]
        known = all(it.extent.is_const for it in axes) and all(v in own for test in tests for v in variables_in(test))
        if known and 0 < prod(extents) <= MOST_POINTS:
            points = [dict(zip(own, at, strict=True)) for at in itertools.product(*map(range, extents))]
            share *= sum(all(evaluate_int(test, at) for test in tests) for at in points) / len(points)
    return share
