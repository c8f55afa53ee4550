"""Products by constant weights with bfloat16 factors and float32 sums (`precision="bf16"`).

Weights are rounded to the nearest bfloat16 here, once. What happens then is up to the target, for each product: its instructions multiply
bfloat16 and add in float32, so that the other operand is rounded as well, where it is produced; or weights are widened again where they
are read, which is worth it where reading them takes longer than the arithmetic; or the product stays as it is.

    contract(x, w)  ->  contract(x, bf16(w))  or  contract(bf16(x), bf16(w)),  in float32

Everything else stays float32 here: products of two computed operands, depthwise and grouped convolutions, Winograd's algorithm, elementwise
operators, norms, sums. What is stored between kernels is up to `bf16_storage`, which comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from tilewright.graph.node import Function, GraphBuilder, Node, Operator, Value, rewrite_function, walk_nodes
from tilewright.graph.ops import BlockedConvolution, Cast, Constant, ConstantData, Contract, Convolution, Reshape
from tilewright.graph.ops.contraction import parse_spec
from tilewright.ir import dtypes

Form = Literal["float32", "weights", "operands"]
WORTH = 0.95  # of the cost in float32 that another form may have: nobody loses bits for nothing


class ProductCost(Protocol):
    """The target's opinion, in any unit of time."""

    def product(self, node: Node, weights: int, form: Form, resident: int) -> float:
        """A product with its weights, operand number `weights`, in bfloat16, or both operands, or none; infinite where the target has no
        instructions for it. `resident`: bytes in float32 of all weights of the function, which are read in turn."""
        ...


def bf16_products(function: Function, cost: ProductCost) -> Function:
    """The function with the products that are cheaper so in bfloat16."""
    found = {node: slot for node in walk_nodes(function.results) if (slot := weights_of(node)) is not None}
    resident = sum(data.nbytes for data in {constant_data(node.inputs[slot]) for node, slot in found.items()})

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        slot = found.get(node)
        form = "float32" if slot is None else cheapest(node, slot, cost, resident)
        if slot is None or form == "float32":
            return None
        operands = list(inputs)
        operands[slot] = g.one(Constant(rounded(constant_data(inputs[slot]))))
        if form == "operands":
            operands[1 - slot] = rounded_value(g, operands[1 - slot])
        return g.emit(node.op, *operands)

    return rewrite_function(function, visit) if found else function


def cheapest(node: Node, slot: int, cost: ProductCost, resident: int) -> Form:
    """The form to compute a product in."""
    forms: tuple[Form, ...] = ("weights", "operands")
    costs = {form: cost.product(node, slot, form, resident) for form in forms}
    best = min(forms, key=costs.__getitem__)
    return best if costs[best] < WORTH * cost.product(node, slot, "float32", resident) else "float32"


def weights_of(node: Node) -> int | None:
    """Which operand of a float32 product is its constant weights, where it is a dense one; None for other nodes."""
    op = node.op
    if not is_dense(op) or any(value.type.dtype is not dtypes.float32 for value in (*node.inputs, *node.values)):
        return None
    held = [slot for slot, value in enumerate(node.inputs) if isinstance(value.op, Constant)]
    if len(held) != 1 or (not isinstance(op, Contract) and held != [1]):
        return None
    if isinstance(op, Contract):
        letters = parse_spec(op.spec)
        own = (letters.left, letters.right)[held[0]]
        return held[0] if letters.reduced and set(letters.reduced) <= set(own) else None
    return held[0]


def is_dense(op: Operator) -> bool:
    """Whether each weight goes into a sum of many products."""
    if isinstance(op, Convolution):
        return op.groups == 1
    return isinstance(op, Contract) or (isinstance(op, BlockedConvolution) and not op.depthwise)


def constant_data(value: Value) -> ConstantData:
    op = value.op
    assert isinstance(op, Constant)
    return op.data


def rounded_value(g: GraphBuilder, value: Value) -> Value:
    """The value in bfloat16; rounded in front of a reshape, next to the operator that computes it."""
    if isinstance(value.op, Reshape):
        return g.one(value.op, rounded_value(g, value.node.inputs[0]))
    return g.one(Cast(dtypes.bfloat16, may_flush=True), value)


def rounded(data: ConstantData) -> ConstantData:
    """The elements rounded to the nearest bfloat16, ties to even."""
    return ConstantData(data.array.astype(dtypes.bfloat16.numpy))
