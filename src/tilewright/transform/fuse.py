"""Fusion: groups a core of work with the elementwise and data-movement operators around it; every group becomes one kernel.

Walks from results to parameters. A node joins the group of its users when all of them are in one group (so no cycle can arise) and the
group can compute it without doing work twice:

* injective producers (elementwise, movement, iota ...) join injective groups and the input side of reductions;
* a core (contraction, convolution, reduction, normalisation ...) joins a group of elementwise users that read it point by point: they
  become its epilogue;
* only data movement, and weights that are stored narrow, join the input side of contractions and convolutions, which read each element
  many times; but for a softmax and the product before it (`attention_groups`), which compute masks of positions (`causal_masks`).

Whether an operator is injective, what it reads point by point and what it costs is read off its kernel definition (`patterns.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.graph.in_place import is_in_place, picked_axis
from tilewright.graph.node import Function, GraphBuilder, Node, Origin, Parameter, Value, users_of, walk_nodes
from tilewright.graph.ops import (
    BindSize,
    BlockedConvolution,
    Call,
    Constant,
    Contract,
    Convolution,
    Fused,
    If,
    Loop,
    RefineShape,
    Reshape,
    Softmax,
    Transpose,
    WidenWeights,
    WinogradConvolution,
)
from tilewright.ir.expr import const
from tilewright.ir.prove import equal_dims
from tilewright.transform.attention_groups import MOVEMENT, joins_attention
from tilewright.transform.causal_masks import formula
from tilewright.transform.patterns import Pattern, pattern_of

STRUCTURAL = (Parameter, Constant, Reshape, RefineShape, BindSize, If, Loop, Call, Fused)
PRODUCTS = (Contract, Convolution, BlockedConvolution, WinogradConvolution)  # they read each element of their operands many times
MAX_GROUP = 48  # nodes; bounds the size of one kernel's expressions
MAX_COSTLY = 16  # of them those that are expressions of many operations themselves: exp, erf, divisions


@dataclass(slots=True)
class Group:
    """A group under construction, users first. `core` is its node with reductions, if any; `epilogue` are nodes computed after it;
    `costly` counts those that are no cheap elementwise ones."""

    nodes: list[Node] = field(default_factory=list)
    core: Node | None = None
    expensive: bool = False
    costly: int = 0

    @property
    def root(self) -> Node:
        return self.nodes[0]


def is_structural(node: Node) -> bool:
    """Whether the node needs no kernel: control flow, what only names memory, and movement that planning does in place."""
    return isinstance(node.op, STRUCTURAL) or is_in_place(node)


def isolate(function: Function) -> Function:
    """The function with every computation in a group of its own: what `fuse` gives when nothing is fused."""
    groups: dict[Node, Group] = {}
    for node in walk_nodes(function.results):
        if not is_structural(node) and picked_axis(node) is None:
            groups[node] = Group([node], None if pattern_of(node).injective else node)
    return _rebuild(function, groups)


def is_literal(value: Value) -> bool:
    """A constant of one element: written into the kernel as a number."""
    return isinstance(value.op, Constant) and value.op.data.array.size == 1 and value.type.dtype.kind in ("bool", "int", "uint", "float")


def fuse(function: Function) -> Function:
    """The function with every computation inside Fused nodes."""
    users = users_of(function.results)
    results = {value.node for value in function.results}
    groups: dict[Node, Group] = {}
    for node in reversed(list(walk_nodes(function.results))):
        if is_structural(node):
            continue
        pattern = pattern_of(node)
        group = None if node in results else _group_of_users(node, users[node], groups)
        if group is None or not _joins(node, pattern, group, users):
            if picked_axis(node) is not None and node not in results:
                continue  # whoever needs it as it is reads it where it lies
            group = Group(core=None if pattern.injective else node)
        elif not pattern.injective and group.core is None:
            group.core = node
        group.nodes.append(node)
        group.costly += not pattern.cheap
        groups[node] = group
    return _rebuild(function, groups)


def _group_of_users(node: Node, users: Sequence[Node], groups: dict[Node, Group]) -> Group | None:
    """The one group that all users are in."""
    found = {id(groups[user]): groups[user] for user in users if user in groups}
    outside = any(user not in groups for user in users)
    binds = any(value.node is node for user in users for value in user.binders)
    return next(iter(found.values())) if len(found) == 1 and not outside and not binds else None


def _joins(node: Node, pattern: Pattern, group: Group, users: dict[Node, list[Node]]) -> bool:
    if pattern.opaque or len(group.nodes) >= MAX_GROUP or group.costly >= MAX_COSTLY:
        return False
    core = group.core
    if core is not None and pattern_of(core).opaque:
        return False
    if core is not None and isinstance(core.op, Contract):
        attends = joins_attention(node, core, group.nodes)
        if attends is not None:
            return attends
    readers = [user for user in group.nodes if any(value.node is node for value in user.inputs)]
    if not pattern.injective:
        return core is None and _elementwise_from(node, group)
    if core is None:
        return all(_reads_once(node, user) or pattern.cheap for user in readers)
    feeds_core = _reaches(node, core, group)
    if not feeds_core:
        # a second product of the group that ends in a narrower dtype is stored in that, by a kernel of its own
        return all(_reads_once(node, user) or pattern.cheap for user in readers) and not (_narrows(node) and ends_a_product(node, users))
    if isinstance(core.op, PRODUCTS):
        absorbed = pattern.movement and node.types[0].count is not const(1) and _keeps_rows(node) and not _strides_lanes(node, core)
        return (absorbed or isinstance(node.op, WidenWeights)) and all(user is core for user in readers)
    return pattern_of(core).blocks == 1 and pattern.cheap and not ends_a_product(node, users)


def _narrows(node: Node) -> bool:
    """The result takes less memory than an operand of its shape."""
    (result,) = node.types
    return any(value.shape == result.shape and value.type.dtype.bits > result.dtype.bits for value in node.inputs)


def ends_a_product(node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """The node, point by point, finishes a contraction or convolution that nobody else reads: it is worth more as its epilogue."""
    members = {node}
    grown = True
    while grown and len(members) < MAX_GROUP:
        grown = False
        for member in tuple(members):
            for value, use in zip(member.inputs, pattern_of(member).uses, strict=True):
                producer = value.node
                if producer in members or not use.identity or not members.issuperset(users[producer]):
                    continue
                if len(value.shape) != len(node.types[0].shape) or not equal_dims(value.shape, node.types[0].shape):
                    continue
                if isinstance(producer.op, PRODUCTS):
                    return True
                if not is_structural(producer) and pattern_of(producer).injective:
                    members.add(producer)
                    grown = True
    return False


def _reads_once(node: Node, user: Node) -> bool:
    """The user reads each point of the node's result once, at its own point, and is not larger."""
    pattern = pattern_of(user)
    for value, use in zip(user.inputs, pattern.uses, strict=True):
        if value.node is node:
            same = value.type.rank == user.types[0].rank and all(
                equal_dims(a, b) for a, b in zip(value.shape, user.types[0].shape, strict=True)
            )
            if not (use.identity and same):
                return False
    return True


def _elementwise_from(node: Node, group: Group) -> bool:
    """Everything in the group that depends on the node reads it point by point and has its shape."""
    if len(node.types) != 1:
        return False
    shape = node.types[0].shape
    tainted = {node}
    for member in reversed(group.nodes):
        touched = [i for i, value in enumerate(member.inputs) if value.node in tainted]
        if not touched:
            continue
        pattern = pattern_of(member)
        if not pattern.injective or len(member.types) != 1 or len(member.types[0].shape) != len(shape):
            return False
        if not all(equal_dims(a, b) for a, b in zip(member.types[0].shape, shape, strict=True)):
            return False
        if not all(pattern.uses[i].identity for i in touched):
            return False
        tainted.add(member)
    return group.root in tainted


def _reaches(node: Node, core: Node, group: Group) -> bool:
    """The core depends on the node through members of the group."""
    members = set(group.nodes)
    stack, seen = [core], set()
    while stack:
        current = stack.pop()
        for value in current.inputs:
            if value.node is node:
                return True
            if value.node in members and value.node not in seen:
                seen.add(value.node)
                stack.append(value.node)
    return False


def _keeps_rows(node: Node) -> bool:
    """Movement that a contraction can absorb into its access pattern without losing contiguous reads: all but pads and concats."""
    return node.op.name in MOVEMENT


def _strides_lanes(node: Node, core: Node) -> bool:
    """A transpose that moves the last axis, before a convolution in groups: points of the image are its lanes, and would lie far apart."""
    op = core.op
    return isinstance(op, Convolution) and op.groups > 1 and isinstance(node.op, Transpose) and node.op.perm[-1] != len(node.op.perm) - 1


def _rebuild(function: Function, groups: dict[Node, Group]) -> Function:
    g = GraphBuilder()
    mapped: dict[Value, Value] = {}
    for node in walk_nodes(function.results):
        group = groups.get(node)
        if group is None:
            g.origin = node.origin
            results = node.values if isinstance(node.op, (Parameter, Constant)) else g.emit(node.op, *(mapped[v] for v in node.inputs))
        elif group.root is node:
            results = _emit_group(g, group, mapped)
        else:
            continue
        mapped.update(zip(node.values, results, strict=True))
    return Function(function.name, function.params, tuple(mapped[value] for value in function.results))


def _emit_group(g: GraphBuilder, group: Group, mapped: dict[Value, Value]) -> tuple[Value, ...]:
    inner = GraphBuilder(binders={})
    local: dict[Value, Value] = {}
    operands: list[Value] = []
    by_operand: dict[Value, Value] = {}
    attends = group.core is not None and isinstance(group.core.op, Contract) and any(isinstance(n.op, Softmax) for n in group.nodes)
    for node in reversed(group.nodes):
        arguments = []
        for value in node.inputs:
            if value not in local:
                outer = mapped[value]
                mask = formula(inner, value) if attends and not is_literal(outer) else None
                if is_literal(outer):
                    local[value] = outer
                elif mask is not None:
                    local[value] = mask
                else:
                    if outer not in by_operand:
                        by_operand[outer] = inner.one(Parameter(f"x{len(operands)}", outer.type))
                        operands.append(outer)
                    local[value] = by_operand[outer]
            arguments.append(local[value])
        inner.origin = node.origin
        local.update(zip(node.values, inner.emit(node.op, *arguments), strict=True))
    results = tuple(local[value] for value in group.root.values)
    body = Function(_group_name(group), tuple(by_operand.values()), results)
    return g.emit(Fused(body), *operands, origin=_group_origin(group))


def _group_name(group: Group) -> str:
    names = [getattr(node.op, "fn", node.op.name) for node in reversed(group.nodes)]
    short = names if len(names) <= 6 else [*names[:3], f"{len(names) - 5}_more", *names[-2:]]
    return "_".join("".join(c if c.isalnum() else "_" for c in name) for name in short)


def _group_origin(group: Group) -> Origin | None:
    parts = tuple(dict.fromkeys(node.origin for node in reversed(group.nodes) if node.origin is not None))
    chosen = (group.core or group.root).origin or (parts[0] if parts else None)
    return chosen if chosen is None or len(parts) < 2 else replace(chosen, parts=parts)
