"""Attention as one group: two products with a softmax between them, so that a kernel may keep the scores of a few rows in the cache.

    scores = contract(q, k, "bhsd,bhtd->bhst")        any elementwise operators on the scores: scales, masks, biases, caps
    weights = softmax(f(scores, ...), axis=-1)
    y = contract(weights, v, "bhst,bhte->bhse")

Conditions are about reading point by point, so that nothing is computed twice: the scores have one user each on their way.
"""

from __future__ import annotations

from tilewright.graph.node import Node
from tilewright.graph.ops import Contract, Softmax
from tilewright.graph.ops.contraction import parse_spec
from tilewright.ir.expr import const
from tilewright.ir.prove import equal_dims
from tilewright.transform.patterns import pattern_of

MOVEMENT = ("transpose", "slice", "broadcast_to", "repeat")


def joins_attention(node: Node, core: Node, members: list[Node]) -> bool | None:
    """Whether a node, whose users are all among the members of the group around the contraction `core`, is part of its attention. None: the
    question is not one of attention."""
    softmax = next((member for member in members if isinstance(member.op, Softmax)), None)
    if softmax is None:
        return True if isinstance(node.op, Softmax) and _weighs(node, core, members) else None
    if not _feeds(node, softmax, members):
        return None
    scores = next((member for member in members if isinstance(member.op, Contract) and member is not core), None)
    if scores is not None:
        pattern = pattern_of(node)
        readers = [m for m in members if any(value.node is node for value in m.inputs)]
        return pattern.movement and node.types[0].count is not const(1) and readers == [scores] and node.op.name in MOVEMENT
    if len(node.types) != 1 or len(node.types[0].shape) != len(softmax.types[0].shape):
        return False
    if not equal_dims(node.types[0].shape, softmax.types[0].shape) or not _read_once(node, softmax, members):
        return False
    return _makes_scores(node) if isinstance(node.op, Contract) else pattern_of(node).injective


def _weighs(softmax: Node, core: Node, members: list[Node]) -> bool:
    """The contraction alone reads the softmax, which runs along the last axis, sums over that axis, and has rows that its other operand
    lacks."""
    op = softmax.op
    if not isinstance(op, Softmax) or not isinstance(core.op, Contract) or not softmax.types[0].dtype.is_float:
        return False
    readers = [m for m in members if any(value.node is softmax for value in m.inputs)]
    sides = [value.node is softmax for value in core.inputs]
    if readers != [core] or sides.count(True) != 1 or op.axis % softmax.types[0].rank != softmax.types[0].rank - 1:
        return False
    letters = parse_spec(core.op.spec)
    own, other = (letters.left, letters.right) if sides[0] else (letters.right, letters.left)
    rows = [letter for letter in own[:-1] if letter in letters.result and letter not in other]
    return letters.reduced == own[-1] and own[-1] in other and bool(rows) and all(letter in letters.result for letter in own[:-1])


def _makes_scores(node: Node) -> bool:
    """A product whose last axis counts the keys, which one operand has, and which has rows that only the other one has."""
    op = node.op
    if not isinstance(op, Contract) or not op.dtype.is_float:
        return False
    letters = parse_spec(op.spec)
    key = letters.result[-1]
    if (key in letters.left) == (key in letters.right) or len(letters.contracted) != 1 or letters.reduced != letters.contracted:
        return False
    keys, queries = (letters.left, letters.right) if key in letters.left else (letters.right, letters.left)
    return any(letter in queries and letter not in keys for letter in letters.result)


def _feeds(node: Node, target: Node, members: list[Node]) -> bool:
    """`target` depends on the node through members of the group."""
    inside, stack, seen = set(members), [target], {target}
    while stack:
        for value in stack.pop().inputs:
            if value.node is node:
                return True
            if value.node in inside and value.node not in seen:
                seen.add(value.node)
                stack.append(value.node)
    return False


def _read_once(node: Node, softmax: Node, members: list[Node]) -> bool:
    """One member reads the node, at its own points."""
    readers = [(m, i) for m in members for i, value in enumerate(m.inputs) if value.node is node]
    return len(readers) == 1 and (readers[0][0] is softmax or pattern_of(readers[0][0]).uses[readers[0][1]].identity)
