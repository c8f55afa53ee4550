"""Weights that are stored as small integers (`graph/ops/narrow_weights.py`), in the product that multiplies by them.

On the tile: each vector of weights is converted when it is multiplied, once for each tile of rows. By panels: a panel is converted when it
is begun, into floats that stay in the second cache while the rows stream past. With few rows the product runs at the bandwidth of the
stored codes, which the first keeps to; with many rows the second converts each weight once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.kernel.nodes import Block, BlockIter
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.packing import operand_layout, pack_operand
from tilewright.target.cpu.rules.structure import Product, block_of, extent_value, is_injective, reductions, value_loads

CONVERT = 4.0  # vector instructions that one vector of weights takes to become floats
STORED = 4.0  # to store it for later, in the second cache, and to load it again
TYPICAL_ROWS = 64
SPARE = 4  # registers for words, masks and a broadcast beside the sums


def widening(s: Schedule, product: Product, constants: frozenset[str]) -> str | None:
    """The block that converts one operand of a product from constants, for this product alone. An operand that windows go over is an image:
    what is made of a constant one, its padding, is no conversion of weights."""
    points = {it.var for it in product.block.iters}
    for side in (product.right, product.left):
        if not all(index.is_const or index in points for index in side.args):
            continue
        writers = s.nest.writers(side.attr) if side.attr in s.kernel.scratch else []
        if len(writers) != 1 or s.consumers(writers[0]) != (product.block.name,):
            continue
        block = block_of(s, writers[0])
        loads = value_loads(block)
        if is_injective(block) and loads and all(load.attr.name in constants for load in loads):
            return writers[0]
    return None


def conversion_cost(how: str, rows: Expr | None, height: int) -> float:
    """Vector instructions for each vector of weights, relative to the multiply-adds that it takes; added up over one row and a typical
    number of them where rows are a size that is known only while running."""
    counts = [1] if rows is None else [int(rows.value)] if rows.is_const else [1, max(extent_value(rows, TYPICAL_ROWS), 2)]
    return sum((CONVERT * -(-n // height) if how == "tile" else CONVERT + STORED) / n for n in counts)


@dataclass(frozen=True, slots=True)
class OnTile:
    """A product with converted weights in its expression. codes: the load of the stored weights. runs: along which reduction iter several
    codes have one scale, or are in one word. scaled: what scales are multiplied into: each weight, or the sums over codes of one scale."""

    codes: Expr
    runs: Runs | None
    scaled: Literal["weights", "sums"]


@dataclass(frozen=True, slots=True)
class Runs:
    """Codes that belong together along a reduction iter: `scale` of them have one scale (0: all), `word` of them are in a word."""

    along: BlockIter
    scale: int
    word: int

    @property
    def factors(self) -> tuple[int | None, ...]:
        """To split the loop by: runs of one scale, if there are several, words, codes."""
        if not self.scale:
            return (None, self.word)
        return (None, self.scale) if self.word == 1 else (None, self.scale // self.word, self.word)


def on_tile(
    s: Schedule,
    name: str,
    block: str,
    vector: BlockIter,
    tile: tuple[int, int, int],
    constants: frozenset[str],
    machine: Machine,
    space: Space,
) -> tuple[Schedule, OnTile]:
    """Convert weights where the product `name` multiplies by them, and store codes, scales and zero points in the order in which it reads
    them. `tile`: its rows, vectors, and elements along the vectors."""
    rows, vectors, width = tile
    s = s.inline(block)
    loads = _stored(s, name, constants)
    codes = max(loads, key=_size)
    found = _runs(block_of(s, name), loads)
    for load in loads:
        s = pack_operand(s, name, load, load.attr.name, vector, width)
    run = _terms_of_one_scale(block_of(s, name), found)
    fits = run > 0 and 2 * rows * vectors + vectors + SPARE <= machine.vector_registers
    why = "vector instructions for each vector of weights: scaling it, or clearing sums and adding them up for each run of one scale"
    options: tuple[Literal["weights", "sums"], ...] = ("weights", "sums") if fits else ("weights",)
    how = space.choose(f"{name}.scaled", options, lambda how: 1.0 if how == "weights" else 2 * rows / run, why)
    return s, OnTile(codes, found, how)


def _terms_of_one_scale(product: Block, found: Runs | None) -> int:
    """How many terms of a sum have one scale; 0 where that is not known, or where the last ones are fewer."""
    extents = [it.extent for it in reductions(product)]
    if not all(extent.is_const for extent in extents):
        return 0
    if found is None or not found.scale:
        return prod(int(extent.value) for extent in extents)
    return found.scale if len(extents) == 1 and extents[0].value % found.scale == 0 else 0


def sum_by_runs(s: Schedule, name: str, narrow: OnTile) -> tuple[Schedule, str | None]:
    """Scale sums instead of weights: where there are several runs of one scale, each has a sum of its own, made by the block that is the
    second result."""
    if narrow.runs is None or not narrow.runs.scale:
        return s.factor_out(name), None
    block = block_of(s, name)
    loops = dict(zip([it.var for it in block.iters], s.loops_of(name)[-len(block.iters) :], strict=True))
    s, parts = s.split(loops.pop(narrow.runs.along.var), narrow.runs.factors)
    s = s.reorder(*parts, *loops.values())  # a nest of their own for the sums of runs
    s, (partial, *_) = s.rfactor(parts[0])
    s = s.factor_out(partial)
    return s.set_scope(s.nest.outputs(partial)[0].name, "local"), partial


def schedule_runs(s: Schedule, partial: str, at: str, vector: int, lanes: int) -> Schedule:
    """The sums of one run, in registers, inside the loop over runs: vectors along their iter number `vector`, the codes of a word in one
    step."""
    block = block_of(s, partial)
    s, made = s.compute_at(partial, at)
    s, (part, lane) = s.split(made[vector], (None, lanes))
    own = [loop for i, (loop, it) in enumerate(zip(made, block.iters, strict=True)) if it.kind == "spatial" and i != vector]
    summed = [loop for loop, it in zip(made, block.iters, strict=True) if it.kind == "reduction"]
    s = s.reorder(*summed, *own, part, lane)
    s = s.vectorize(lane)
    for loop in (*own, part, *summed[1:]):
        s = s.unroll(loop)
    s, _ = s.decompose_reduction(partial, summed[0])
    for position, it in enumerate(block.iters):
        if it.kind == "spatial":
            s = s.clamp_reads(partial, position, masked=position == vector)
            s = s.clamp_reads(f"{partial}_init", position)
    return s


def by_panels(s: Schedule, name: str, block: str, vector: BlockIter, width: int, constants: frozenset[str]) -> Schedule:
    """Store what the block that converts weights reads in the order in which the product `name` reads what it writes."""
    inlined = s.inline(block)
    for load in _stored(inlined, name, constants):
        layout = operand_layout(block_of(inlined, name), load, vector, width)
        s = s if layout is None else s.pack(load.attr.name, *layout)
    return s


def _stored(s: Schedule, name: str, constants: frozenset[str]) -> tuple[Expr, ...]:
    """What a product reads of the constants that its weights are made of: a load for each."""
    return tuple({load.attr: load for load in value_loads(block_of(s, name)) if load.attr.name in constants}.values())


def _size(load: Expr) -> int:
    size = 1
    for dim in load.attr.shape:
        size *= extent_value(dim)
    return size


def _runs(product: Block, loads: tuple[Expr, ...]) -> Runs | None:
    """The reduction iter that indices divide: those of words, and those of scales."""
    for it in reductions(product):
        divisors: dict[bool, int] = {True: 1, False: 0}
        for load in loads:
            for e in walk(*load.args):
                if e.op is Op.FLOORDIV and e.args[0] is it.var and e.args[1].is_const:
                    divisors[load.dtype is dtypes.uint32] = int(e.args[1].value)
        word, scale = divisors[True], divisors[False]
        if (word > 1 or scale) and scale % word == 0:
            return Runs(it, scale, word)
    return None


def schedule_conversion(s: Schedule, block: str, machine: Machine, lane: int) -> Schedule:
    """The loops of a block that converts a panel of weights: vectors along its iter number `lane`, the codes of a word in one step."""
    converting = block_of(s, block)
    loops = list(s.loops_of(block)[-len(converting.iters) :])
    along, steps = _codes_in_a_word(converting, lane)
    s, (part, vector) = s.split(loops[lane], (None, machine.lanes(32)))
    order = [loop for i, loop in enumerate(loops) if i not in (lane, along)]
    inner: list[str] = []
    if along is not None:
        s, (step, code) = s.split(loops[along], (None, steps))
        order.append(step)
        inner.append(code)
    s = s.reorder(*order, *inner, part, vector)
    s = s.vectorize(vector)
    for loop in (*inner, part):
        s = s.unroll(loop)
    return s


def _codes_in_a_word(block: Block, lane: int) -> tuple[int | None, int]:
    """The number of the iter along which a word holds several codes, other than the vectors' iter number `lane`, and how many."""
    words = [load for load in value_loads(block) if load.dtype is dtypes.uint32]
    for load in words:
        for e in walk(*load.args):
            for i, it in enumerate(block.iters):
                if i != lane and e.op is Op.FLOORDIV and e.args[0] is it.var and e.args[1].is_const:
                    return i, int(e.args[1].value)
    return None, 1
