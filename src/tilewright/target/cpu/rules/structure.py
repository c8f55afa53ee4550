"""What schedule rules ask about the blocks of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log

from tilewright.ir.affine import affine_in
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import POLYNOMIALS, Op
from tilewright.ir.traverse import free_vars, variables_in, walk
from tilewright.kernel.nodes import Block, BlockIter, Store, loads
from tilewright.kernel.schedule.schedule import Schedule

MOST_VERSIONS = 8  # of a tile, one for each number of rows that are left: code, and the time to compile it, grow with the square of that
FEW = (1, 2, 4, 8)  # times the least: values of a size that a schedule for all is chosen for


def block_of(s: Schedule, name: str) -> Block:
    return s.nest.blocks[name].stmt


def spatial(block: Block) -> tuple[BlockIter, ...]:
    return tuple(it for it in block.iters if it.kind == "spatial")


def reductions(block: Block) -> tuple[BlockIter, ...]:
    return tuple(it for it in block.iters if it.kind == "reduction")


def is_injective(block: Block) -> bool:
    """One store of an expression for each point, nothing reduced."""
    return isinstance(block.body, Store) and block.init is None and not reductions(block)


def is_reduction(block: Block) -> bool:
    """One accumulation into a store, with an init."""
    return isinstance(block.body, Store) and block.init is not None and bool(reductions(block))


def writes_output(s: Schedule, name: str) -> bool:
    return any(buffer in s.kernel.outputs for buffer in s.nest.outputs(name))


def extent_value(e: Expr, typical: int = 64) -> int:
    """A constant extent, or what a symbolic one typically is."""
    if e.is_const:
        return int(e.value)
    from tilewright.plan.memory import typical_value

    return typical_value(e, {v: typical for v in free_vars(e) if v.attr.hi is None})


def few_sizes(*exprs: Expr) -> list[dict[Expr, Expr]]:
    """Values of the sizes in expressions, such as a number of images, to choose a schedule for that serves all: the least ones, and small
    multiples. One without sizes where there are none."""
    used = free_vars(*exprs)
    found = [{v: const(min(max(v.attr.lo or 1, 1) * times, v.attr.hi or 1 << 30)) for v in used} for times in FEW]
    return [values for i, values in enumerate(found) if values not in found[:i]]


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive costs: what is a percent dearer in one case and a percent cheaper in another stays as it is."""
    logarithms = [log(value) for value in values]
    return exp(sum(logarithms) / len(logarithms))


def is_expensive(block: Block) -> bool:
    body = block.body
    return isinstance(body, Store) and any(e.op is Op.CALL and e.attr in POLYNOMIALS for e in walk(body.value))


def is_movement(block: Block) -> bool:
    """The value is one load, perhaps converted."""
    if not isinstance(block.body, Store):
        return False
    value = block.body.value
    while value.op is Op.CAST or (value.op is Op.CALL and value.attr == "may_flush"):
        value = value.args[0]
    return value.op in (Op.LOAD, Op.CONST)


def stride(load: Expr, variable: Expr) -> int | None:
    """Elements by which the address of a load moves when `variable` grows by one: 0 if it does not depend on it, None if that is not a
    constant."""
    step: Expr | None = None
    result = 0
    factor = 1
    known = True
    for index, dim in zip(reversed(load.args), reversed(load.attr.shape), strict=True):
        found = affine_in(index, (variable,))
        if found is None:
            return None
        step = found[0][variable]
        if not (step.is_const and step.value == 0):
            if not known or not step.is_const:
                return None
            result += int(step.value) * factor
        if dim.is_const:
            factor *= int(dim.value)
        else:
            known = False
    return result


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products of two loads: out[spatial] += left[..] * right[..]. Loads may be converted."""

    block: Block
    left: Expr
    right: Expr


def as_product(block: Block) -> Product | None:
    """The block as a sum of products, if it is one."""
    body = block.body
    if not is_reduction(block) or not isinstance(body, Store) or body.value.op is not Op.ADD:
        return None
    term = next((a for a in body.value.args if a.op is Op.MUL), None)
    if term is None:
        return None
    sides = []
    for side in term.args:
        while side.op is Op.CAST:
            side = side.args[0]
        sides.append(side)
    if any(side.op is not Op.LOAD for side in sides):
        return None
    return Product(block, sides[0], sides[1])


def uses(load: Expr, variable: Expr) -> bool:
    return variable in variables_in(load)


def value_loads(block: Block) -> list[Expr]:
    """Loads in the stored value, without the accumulator."""
    body = block.body
    if not isinstance(body, Store):
        return []
    return [load for load in loads(body.value) if load.attr is not body.buffer]
