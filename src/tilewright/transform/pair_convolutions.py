"""Pairs of convolutions that become one kernel, so that what goes from one to the other stays in the cache.

    y = fused[dense, add, clip](x, ..)
    z = fused[depthwise, add, clip](y, ..)   ->   z = fused[dense, add, clip, depthwise, add, clip](x, ..)

A dense convolution followed by a depthwise one, and a depthwise one followed by a pointwise one, where nothing else reads what is between
them. The kernel makes a strip of rows of the first and goes on with it at once (a target's rule says how), at the cost of rows that two
neighbouring strips need. Where that pays, the target says. Of pairs that share a convolution the one that gains more is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.graph.node import Function, GraphBuilder, Node, Origin, Parameter, Value, rewrite_function, users_of, walk_nodes
from tilewright.graph.ops import BlockedConvolution, Constant, Fused
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.transform.patterns import pattern_of

EXPENSIVE_OPERATIONS = 20  # of an exponential and a reciprocal


@dataclass(frozen=True, slots=True)
class Stage:
    """A convolution in blocked channels. images: of a batch, 1 where that is symbolic. blocks: of output channels. space: of the result.
    depth: input channels of one result, 1 for `depthwise`. operations: elementwise ones on each result, of which an expensive one counts as
    EXPENSIVE_OPERATIONS."""

    images: int
    blocks: int
    space: tuple[int, ...]
    depth: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    depthwise: bool
    operations: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two convolutions of which the second alone reads the first."""

    first: Stage
    second: Stage
    lanes: int


class PairCost(Protocol):
    """The target's opinion, in any unit of time."""

    def apart(self, pair: Pair) -> float: ...

    def together(self, pair: Pair) -> float: ...


def pair_convolutions(function: Function, cost: PairCost) -> Function:
    """The function, whose operators are in groups, with groups of pairs joined where `cost` says so."""
    users = users_of(function.results)
    results = {value.node for value in function.results}
    gains: list[tuple[float, int, Node, Node]] = []
    for number, node in enumerate(walk_nodes(function.results)):
        readers = users[node] if isinstance(node.op, Fused) and node not in results else []
        pair = find_pair(node, readers[0]) if len(readers) == 1 else None
        if pair is not None:
            gain = cost.apart(pair) - cost.together(pair)
            if gain > 0:
                gains.append((-gain, number, node, readers[0]))
    firsts: dict[Node, Node] = {}
    taken: set[Node] = set()
    for _, _, first, second in sorted(gains, key=lambda found: found[:2]):
        if first not in taken and second not in taken:
            taken |= {first, second}
            firsts[second] = first
    if not firsts:
        return function
    inputs_of: dict[Node, tuple[Value, ...]] = {}

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        inputs_of[node] = inputs
        first = firsts.get(node)
        return None if first is None else _joined(g, first, inputs_of[first], node, inputs)

    return rewrite_function(function, visit)


def find_pair(first: Node, second: Node) -> Pair | None:
    """What two groups compute, if they are a pair of convolutions."""
    if not isinstance(first.op, Fused) or not isinstance(second.op, Fused):
        return None
    own, other = _core(first), _core(second)
    if own is None or other is None:
        return None
    link = [param for param, value in zip(second.op.body.params, second.inputs, strict=True) if value.node is first]
    reads = [user for user in walk_nodes(second.op.body.results) for value in user.inputs if value in link]
    if len(link) != 1 or reads != [other] or other.inputs[0] is not link[0]:
        return None
    a, b = _stage(first, own), _stage(second, other)
    if a is None or b is None or a.depthwise == b.depthwise or own.types[0].shape != link[0].shape:
        return None
    if a.depthwise and any(n != 1 for n in (*b.window, *b.strides)):
        return None
    assert isinstance(own.op, BlockedConvolution)
    return Pair(a, b, own.op.lanes)


def _core(group: Node) -> Node | None:
    """The convolution of a group that has one result and is elementwise otherwise."""
    assert isinstance(group.op, Fused)
    body = group.op.body
    cores = [node for node in walk_nodes(body.results) if not isinstance(node.op, (Parameter, Constant)) and not pattern_of(node).injective]
    if len(cores) != 1 or len(body.results) != 1 or group.op.turn is not None:
        return None
    return cores[0] if isinstance(cores[0].op, BlockedConvolution) and body.results[0].shape == cores[0].types[0].shape else None


def _stage(group: Node, core: Node) -> Stage | None:
    op = core.op
    assert isinstance(op, BlockedConvolution)
    assert isinstance(group.op, Fused)
    x, w = core.inputs
    weights = next((value for param, value in zip(group.op.body.params, group.inputs, strict=True) if param is w), None)
    batch, blocks, *space, _ = core.types[0].shape
    if weights is None or not isinstance(weights.op, Constant) or len(space) != 2 or any(n != 1 for n in op.dilations):
        return None
    if any(value.type.dtype is not dtypes.float32 for value in (x, w, core[0])) or not all(dim.is_const and dim.value for dim in space):
        return None
    depth, *window = (int(dim.value) for dim in w.shape[1:])
    others = [node for node in walk_nodes(group.op.body.results) if node is not core and not isinstance(node.op, (Parameter, Constant))]
    operations = sum(1 if pattern_of(node).cheap else EXPENSIVE_OPERATIONS for node in others)
    return Stage(_count(batch), _count(blocks), tuple(map(_count, space)), depth, tuple(window), op.strides, op.depthwise, operations)


def _count(dim: Expr) -> int:
    return int(dim.value) if dim.is_const else 1


def _joined(g: GraphBuilder, first: Node, first_inputs: Sequence[Value], second: Node, second_inputs: Sequence[Value]) -> Sequence[Value]:
    """The group that computes both."""
    assert isinstance(first.op, Fused)
    assert isinstance(second.op, Fused)
    inner = GraphBuilder(binders={})
    operands: dict[Value, Value] = {}

    def copy(group: Node, body: Function, inputs: Sequence[Value], made: Value | None) -> Value:
        """The result of a group's body; `made` stands for what the first group computes."""
        local: dict[Value, Value] = {}  # of this body alone: parameters of both may be the same value
        for param, old, value in zip(body.params, group.inputs, inputs, strict=True):
            if made is not None and old.node is first:
                local[param] = made
                continue
            if value not in operands:
                operands[value] = inner.one(Parameter(f"x{len(operands)}", value.type))
            local[param] = operands[value]
        for node in walk_nodes(body.results):
            if not isinstance(node.op, Parameter):
                inner.origin = node.origin
                local.update(zip(node.values, inner.emit(node.op, *(local[value] for value in node.inputs)), strict=True))
        return local[body.results[0]]

    made = copy(first, first.op.body, first_inputs, None)
    result = copy(second, second.op.body, second_inputs, made)
    body = Function(f"{first.op.body.name}_{second.op.body.name}", tuple(operands.values()), (result,))
    return g.emit(Fused(body), *operands, origin=_both_origins(first, second))


def _both_origins(first: Node, second: Node) -> Origin | None:
    parts = tuple(part for node in (first, second) if node.origin is not None for part in node.origin.parts or (node.origin,))
    return None if not parts else replace(parts[0], parts=parts)
