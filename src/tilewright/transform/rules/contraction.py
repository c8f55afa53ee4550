"""Rules of contractions: transposes of operands and results are a matter of the spec."""

from __future__ import annotations

from tilewright.graph.node import Node, Value
from tilewright.graph.ops import Contract, Transpose
from tilewright.graph.ops.contraction import parse_spec
from tilewright.transform.match import made_by
from tilewright.transform.rewriting import Answer, Rewriter, Rules


def transposed_operands(r: Rewriter, node: Node) -> Answer:
    """contract(transpose(a), b, "ij,jk->ik") -> contract(a, b, "ji,jk->ik")."""
    op = node.op
    assert isinstance(op, Contract)
    letters = parse_spec(op.spec)
    left, a = _untransposed(letters.left, node.inputs[0])
    right, b = _untransposed(letters.right, node.inputs[1])
    if a is node.inputs[0] and b is node.inputs[1]:
        return None
    return r.emit(Contract(f"{left},{right}->{letters.result}", op.dtype), a, b)


def _untransposed(letters: str, value: Value) -> tuple[str, Value]:
    op = made_by(value, Transpose)
    if op is None:
        return letters, value
    # Axis perm[i] of the source is axis i of the transpose.
    source = dict(zip(op.perm, letters, strict=True))
    return "".join(source[axis] for axis in range(len(letters))), value.node.inputs[0]


def transposed_result(r: Rewriter, node: Node) -> Answer:
    """transpose(contract(a, b, "hst,htd->hsd")) -> contract(a, b, "hst,htd->shd")."""
    (x,) = node.inputs
    op, contract = node.op, made_by(x, Contract)
    assert isinstance(op, Transpose)
    if contract is None or r.is_shared(x):
        return None
    letters = parse_spec(contract.spec)
    result = "".join(letters.result[axis] for axis in op.perm)
    return r.emit(Contract(f"{letters.left},{letters.right}->{result}", contract.dtype), *x.node.inputs)


RULES: Rules = {Contract: (transposed_operands,), Transpose: (transposed_result,)}
