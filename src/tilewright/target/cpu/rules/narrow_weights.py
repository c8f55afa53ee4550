"""Weights that are stored as small integers (`graph/ops/narrow_weights.py`), in the product that multiplies by them.

On the tile: each vector of weights is converted when it is multiplied, once for each tile of rows. By panels: a panel is converted when it
is begun, into floats that stay in the second cache while the rows stream past. With few rows the product runs at the bandwidth of the
stored codes, which the first keeps to; with many rows the second converts each weight once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.kernel.nodes import Block, BlockIter
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.packing import operand_layout, pack_operand
from tilewright.target.cpu.rules.structure import Product, block_of, extent_value, is_injective, reductions, value_loads

CONVERT = 4.0  # vector instructions that one vector of weights takes to become floats
STORED = 4.0  # to store it for later, in the second cache, and to load it again
TYPICAL_ROWS = 64


def widening(s: Schedule, product: Product, constants: frozenset[str]) -> str | None:
    """The block that converts one operand of a product from constants, for this product alone."""
    for side in (product.right, product.left):
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
    """A product with converted weights in its expression. codes: the load of the stored weights. along: the reduction iter along which
    several codes are in a word, or have one scale; steps: for each, how many, outermost first."""

    codes: Expr
    along: BlockIter | None
    steps: tuple[int, ...]


def on_tile(s: Schedule, name: str, block: str, vector: BlockIter, width: int, constants: frozenset[str]) -> tuple[Schedule, OnTile]:
    """Convert weights where the product `name` multiplies by them, and store codes, scales and zero points in the order in which it reads
    them."""
    s = s.inline(block)
    loads = _stored(s, name, constants)
    codes = max(loads, key=_size)
    along, steps = _runs(block_of(s, name), loads)
    for load in loads:
        s = pack_operand(s, name, load, load.attr.name, vector, width)
    return s, OnTile(codes, along, steps)


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


def _runs(product: Block, loads: tuple[Expr, ...]) -> tuple[BlockIter | None, tuple[int, ...]]:
    """The reduction iter that indices divide, and the divisors, the greatest first, each a multiple of the next."""
    for it in reductions(product):
        found = {
            int(e.args[1].value)
            for load in loads
            for e in walk(*load.args)
            if e.op is Op.FLOORDIV and e.args[0] is it.var and e.args[1].is_const
        }
        if found:
            steps: list[int] = []
            for divisor in sorted(found):
                if not steps or divisor % steps[0] == 0:
                    steps.insert(0, divisor)
            return it, tuple(steps)
    return None, ()


def runs(steps: tuple[int, ...]) -> tuple[int | None, ...]:
    """The factors that split a loop for runs of so many codes, outermost first."""
    return (None, *(outer // inner for outer, inner in zip(steps, (*steps[1:], 1), strict=True)))


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
    words = [load for load in value_loads(block) if load.dtype.name == "uint32"]
    for load in words:
        for e in walk(*load.args):
            for i, it in enumerate(block.iters):
                if i != lane and e.op is Op.FLOORDIV and e.args[0] is it.var and e.args[1].is_const:
                    return i, int(e.args[1].value)
    return None, 1
