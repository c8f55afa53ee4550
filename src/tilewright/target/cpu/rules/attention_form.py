"""Kernels that are attention: a product, operators on its scores, a softmax, a product with its weights."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import Expr
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.target.cpu.rules.structure import as_product, block_of, is_injective, is_reduction, reductions, spatial, uses, writes_output


@dataclass(frozen=True, slots=True)
class Attention:
    """The blocks of a kernel that is attention. `scores`, `mixed`: the two products; `weights`: the block whose results are multiplied with
    the values; `between`: the blocks from scores to weights, in order; `row`: the dim of the scores that counts queries."""

    scores: str
    between: tuple[str, ...]
    weights: str
    mixed: str
    row: int


def find_attention(s: Schedule) -> Attention | None:
    """The kernel's blocks read as attention, or None."""
    names = s.blocks()
    products = [name for name in names if as_product(block_of(s, name)) is not None]
    outputs = [name for name in names if writes_output(s, name)]
    if len(products) != 2 or len(outputs) != 1 or outputs[0] != names[-1]:
        return None
    scores, mixed = products
    if len(spatial(block_of(s, scores))) < 2 or names.index(mixed) < len(names) - 2:
        return None
    between = names[names.index(scores) + 1 : names.index(mixed)]
    if names.index(scores) != 0 or not between or not all(is_injective(block_of(s, n)) or is_reduction(block_of(s, n)) for n in between):
        return None
    if sum(is_reduction(block_of(s, name)) for name in between) != 2:
        return None
    weights = next((name for name in between if operands_of(s, name, mixed) is not None), None)
    found = None if weights is None else operands_of(s, weights, mixed)
    if weights is None or found is None:
        return None
    weight, value = found
    block = block_of(s, mixed)
    (along, *others) = reductions(block)
    if others or weight.args[-1] is not along.var or any(index not in {it.var for it in block.iters} for index in weight.args):
        return None
    rows = [dim for dim, index in enumerate(weight.args[:-1]) if not uses(value, index)]
    return Attention(scores, between, weights, mixed, rows[-1]) if rows else None


def operands_of(s: Schedule, weights: str, mixed: str) -> tuple[Expr, Expr] | None:
    """The two loads of the second product: of the weights, of the values."""
    product = as_product(block_of(s, mixed))
    if product is None:
        return None
    made = s.nest.outputs(weights)[0]
    for weight, value in ((product.left, product.right), (product.right, product.left)):
        if weight.attr is made and value.attr is not made:
            return weight, value
    return None
