"""Two or three convolutions that become one kernel, so that what goes from one to the other stays in the cache.

    y = fused[dense, add, clip](x, ..)
    z = fused[depthwise, add, clip](y, ..)   ->   z = fused[dense, add, clip, depthwise, add, clip](x, ..)

A dense convolution followed by a depthwise one, a depthwise one followed by a pointwise one, and a depthwise one between two pointwise
ones, where nothing else reads what is between them. The kernel makes a strip of rows of the first and goes on with it at once (a target's
rule says how), at the cost of rows that two neighbouring strips need. Where that pays, the target says. Of chains that share a convolution
the one that gains most is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.graph.node import Function, GraphBuilder, Node, Origin, Parameter, Value, rewrite_function, users_of, walk_nodes
from tilewright.graph.ops import BlockedConvolution, Constant, Fused
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.typical import IMAGE, typical_dim
from tilewright.transform.patterns import pattern_of

EXPENSIVE_OPERATIONS = 20  # of an exponential and a reciprocal


@dataclass(frozen=True, slots=True)
class Stage:
    """A convolution in blocked channels. images: of a batch, 1 where that is symbolic. blocks: of output channels. space: of the result,
    that of a typical image where it is symbolic. depth: input channels of one result, 1 for `depthwise`. operations: elementwise ones on
    each result, of which an expensive one counts as EXPENSIVE_OPERATIONS."""

    images: int
    blocks: int
    space: tuple[int, ...]
    depth: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    depthwise: bool
    operations: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Two or three convolutions, each of which alone reads the one before: dense and depthwise ones in turn."""

    stages: tuple[Stage, ...]
    lanes: int


class PairCost(Protocol):
    """The target's opinion, in any unit of time, of what computes a chain in a kernel for each convolution and in one for all."""

    def apart(self, chain: Chain) -> float: ...

    def together(self, chain: Chain) -> float: ...


def pair_convolutions(function: Function, cost: PairCost) -> Function:
    """The function, whose operators are in groups, with groups of chains joined where `cost` says so."""
    gains: list[tuple[float, int, tuple[Node, ...]]] = []
    for number, (nodes, chain) in enumerate(_chains(function)):
        gain = cost.apart(chain) - cost.together(chain)
        if gain > 0:
            gains.append((-gain, number, nodes))
    chosen: dict[Node, tuple[Node, ...]] = {}
    taken: set[Node] = set()
    for _, _, nodes in sorted(gains, key=lambda found: found[:2]):
        if taken.isdisjoint(nodes):
            taken.update(nodes)
            chosen[nodes[-1]] = nodes
    if not chosen:
        return function
    inputs_of: dict[Node, tuple[Value, ...]] = {}

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        inputs_of[node] = inputs
        nodes = chosen.get(node)
        return None if nodes is None else _joined(g, [(part, inputs_of[part]) for part in nodes])

    return rewrite_function(function, visit)


def _chains(function: Function) -> list[tuple[tuple[Node, ...], Chain]]:
    """All pairs, and all threes that are a pointwise convolution, a depthwise one, and a pointwise one."""
    users = users_of(function.results)
    results = {value.node for value in function.results}
    pairs: dict[Node, tuple[Node, Chain]] = {}  # by the first
    for node in walk_nodes(function.results):
        readers = users[node] if isinstance(node.op, Fused) and node not in results else []
        chain = find_pair(node, readers[0]) if len(readers) == 1 else None
        if chain is not None:
            pairs[node] = (readers[0], chain)
    found: list[tuple[tuple[Node, ...], Chain]] = []
    for first, (second, chain) in pairs.items():
        found.append(((first, second), chain))
        if second in pairs and chain.stages[1].depthwise and all(n == 1 for n in chain.stages[0].window):
            third, rest = pairs[second]
            found.append(((first, second, third), Chain((*chain.stages, rest.stages[1]), chain.lanes)))
    return found


def find_pair(first: Node, second: Node) -> Chain | None:
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
    return Chain((a, b), own.op.lanes)


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
    if any(value.type.dtype is not dtypes.float32 for value in (x, w, core[0])) or any(typical_dim(dim, IMAGE) < 1 for dim in space):
        return None
    depth, *window = (int(dim.value) for dim in w.shape[1:])
    others = [node for node in walk_nodes(group.op.body.results) if node is not core and not isinstance(node.op, (Parameter, Constant))]
    operations = sum(1 if pattern_of(node).cheap else EXPENSIVE_OPERATIONS for node in others)
    sizes = tuple(typical_dim(dim, IMAGE) for dim in space)
    return Stage(_count(batch), _count(blocks), sizes, depth, tuple(window), op.strides, op.depthwise, operations)


def _count(dim: Expr) -> int:
    return int(dim.value) if dim.is_const else 1


def _joined(g: GraphBuilder, groups: Sequence[tuple[Node, Sequence[Value]]]) -> Sequence[Value]:
    """The group that computes all of these groups, given with their inputs; each reads the one before."""
    inner = GraphBuilder(binders={})
    operands: dict[Value, Value] = {}

    def copy(group: Node, inputs: Sequence[Value], before: Node | None, made: Value | None) -> Value:
        """The result of a group's body; `made` stands for what the group before computes."""
        assert isinstance(group.op, Fused)
        body = group.op.body
        local: dict[Value, Value] = {}  # of this body alone: parameters of two bodies may be the same value
        for param, old, value in zip(body.params, group.inputs, inputs, strict=True):
            if made is not None and old.node is before:
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

    before, made, names = None, None, []
    for group, inputs in groups:
        assert isinstance(group.op, Fused)
        made = copy(group, inputs, before, made)
        before = group
        names.append(group.op.body.name)
    assert made is not None
    body = Function("_".join(names), tuple(operands.values()), (made,))
    return g.emit(Fused(body), *operands, origin=_all_origins([group for group, _ in groups]))


def _all_origins(groups: Sequence[Node]) -> Origin | None:
    parts = tuple(part for node in groups if node.origin is not None for part in node.origin.parts or (node.origin,))
    return None if not parts else replace(parts[0], parts=parts)
