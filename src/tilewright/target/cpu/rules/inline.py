"""What is computed where it is used, before anything else is decided."""

from __future__ import annotations

from math import prod

from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.kernel.nodes import Block, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.lanes import slides
from tilewright.target.cpu.rules.structure import (
    as_product,
    block_of,
    extent_value,
    is_expensive,
    is_injective,
    is_movement,
    is_reduction,
    spatial,
    value_loads,
    writes_output,
)

TABLE_OPERATIONS = 4  # from which on a value is worth keeping
TABLE_USES = 32  # of each value, at least


def inline_producers(s: Schedule) -> Schedule:
    """Inline the injective blocks that cost nothing to recompute where they are read, in program order."""
    for name in s.blocks():
        if name not in s.nest.blocks or writes_output(s, name) or not is_injective(block_of(s, name)):
            continue
        if _worth_inlining(s, name):
            try:
                s = s.inline(name)
            except ScheduleError:
                continue  # an imperative reader: the block keeps its buffer
    return s


def _worth_inlining(s: Schedule, name: str) -> bool:
    block = block_of(s, name)
    consumers = [block_of(s, consumer) for consumer in s.consumers(name)]
    if not consumers:
        return False
    if is_movement(block):
        return True
    buffers = s.nest.outputs(name)
    reads = sum(load.attr in buffers for consumer in consumers for load in value_loads(consumer))
    if is_expensive(block) and (reads > 1 or len(consumers) > 1):
        return False
    if any(slides(consumer) for consumer in consumers) and _finishes_product(s, name):
        return False  # each window would compute it again
    if all(is_injective(block_of(s, other)) for other in s.blocks()) and _is_table(block, consumers):
        return False
    return all(_takes(consumer, block, reads) for consumer in consumers)


def _finishes_product(s: Schedule, name: str) -> bool:
    """The block reads sums of products that are not read by anything else."""
    producers = [block_of(s, producer) for producer in s.producers(name)]
    return any(as_product(producer) is not None for producer in producers)


def _is_table(block: Block, consumers: list[Block]) -> bool:
    """A few values, not cheap, that every consumer reads again and again: positions and weights of a resize."""
    points, operations = _points(block), sum(e.op is not Op.LOAD and bool(e.args) for e in walk(block.body.value))  # type: ignore[union-attr]
    return operations >= TABLE_OPERATIONS and all(points * TABLE_USES <= _points(consumer) for consumer in consumers)


def _points(block: Block) -> int:
    return prod(extent_value(it.extent) for it in spatial(block))


def _takes(consumer: Block, producer: Block, reads: int) -> bool:
    if is_injective(consumer):
        return True
    if not is_reduction(consumer) or as_product(consumer) is not None:
        return False
    # a pad's select in the innermost loop of a window costs more than the padded copy
    return reads == 1 and not (_selects(producer) and len(consumer.iters) > len(producer.iters))


def _selects(block: Block) -> bool:
    return isinstance(block.body, Store) and any(e.op is Op.SELECT for e in walk(block.body.value))
