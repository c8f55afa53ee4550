"""The driver of graph rewrites: tables of rules by operator, applied bottom-up until none fires.

A rule is `(r: Rewriter, node: Node) -> Value | tuple of values | None`: it answers what the node is equal to, or None. Operands of `node`
are in normal form already, and what a rule builds with `r.emit` is brought into normal form as well, so that one walk over a function is
enough. A rewrite keeps the type of each value exactly; an answer of another type is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.graph.contents import ContentsAnalysis
from tilewright.graph.node import Function, GraphBuilder, Node, Operator, Parameter, Value, walk_nodes
from tilewright.graph.ops import BroadcastTo, Reshape
from tilewright.graph.shapes import is_one, shapes_equal
from tilewright.ir.types import Shape
from tilewright.support.errors import InternalError

Answer: TypeAlias = Value | tuple[Value, ...] | None
Rule: TypeAlias = "Callable[[Rewriter, Node], Answer]"
Rules: TypeAlias = Mapping[type[Operator], tuple[Rule, ...]]

MAX_DEPTH = 100  # rules that fire inside of what rules build; more can only be a loop


def merged(*tables: Rules) -> dict[type[Operator], tuple[Rule, ...]]:
    """One table of several, in order."""
    result: dict[type[Operator], tuple[Rule, ...]] = {}
    for table in tables:
        for operator, rules in table.items():
            result[operator] = (*result.get(operator, ()), *rules)
    return result


@dataclass(slots=True)
class Rewriter:
    """What rules build with. `shared` are values with several users, which rules that would compute them twice must leave alone;
    `applied` counts how often each rule fired."""

    rules: Rules
    g: GraphBuilder = field(default_factory=GraphBuilder)
    contents: ContentsAnalysis = field(default_factory=ContentsAnalysis)
    shared: set[Value] = field(default_factory=set)
    applied: dict[str, int] = field(default_factory=dict)
    depth: int = 0

    def emit(self, op: Operator, *inputs: Value) -> Value:
        """The single result of `op`, in normal form."""
        (result,) = self.emit_all(op, *inputs)
        return result

    def emit_all(self, op: Operator, *inputs: Value) -> tuple[Value, ...]:
        return self.normal(self.g.emit(op, *inputs)[0].node)

    def shaped(self, x: Value, shape: Shape) -> Value:
        """x broadcast to a shape, by the least operator that does it."""
        if x.shape == shape:
            return x
        extra = len(shape) - x.type.rank
        if extra >= 0 and all(map(is_one, shape[:extra])) and shapes_equal(x.shape, shape[extra:]):
            return self.emit(Reshape(shape), x)
        return self.emit(BroadcastTo(shape), x)

    def is_shared(self, value: Value) -> bool:
        return value in self.shared

    def normal(self, node: Node) -> tuple[Value, ...]:
        """The values of a node whose operands are in normal form, after its operator's rules."""
        for rule in self.rules.get(type(node.op), ()):
            answer = self._apply(rule, node)
            if answer is not None:
                return answer
        return node.values

    def _apply(self, rule: Rule, node: Node) -> tuple[Value, ...] | None:
        name = rule.__name__
        if self.depth > MAX_DEPTH:
            raise InternalError(f"graph rewrites do not end: {name} on {node.op.name}", where=str(node.origin or node))
        self.depth += 1
        answer = rule(self, node)
        self.depth -= 1
        if answer is None:
            return None
        values = answer if isinstance(answer, tuple) else (answer,)
        if tuple(value.type for value in values) != node.types or values == node.values:
            return None
        self.applied[name] = self.applied.get(name, 0) + 1
        return values


def apply_rules(function: Function, rules: Rules) -> Function:
    """The function with every node in normal form."""
    r = Rewriter(rules)
    nodes = list(walk_nodes(function.results))
    many = _values_with_several_users(nodes, function.results)
    mapped: dict[Value, Value] = {}
    for node in nodes:
        rebuilt = _rebuilt(r, node, mapped)
        results = r.normal(rebuilt)
        _bind(r.g, rebuilt, results)
        for value, new in zip(node.values, results, strict=True):
            mapped[value] = new
            if value in many:
                r.shared.add(new)
    return Function(function.name, function.params, tuple(mapped[value] for value in function.results))


def _rebuilt(r: Rewriter, node: Node, mapped: Mapping[Value, Value]) -> Node:
    """The node over mapped operands. Sizes that it binds are not registered yet."""
    r.g.origin = node.origin
    if isinstance(node.op, Parameter):
        return node
    if all(mapped[value] is value for value in node.dependencies):
        return node
    inputs = [mapped[value] for value in node.inputs]
    known = dict(r.g.binders) if node.op.defines else None
    rebuilt = r.g.emit(node.op, *inputs)[0].node
    if known is not None:
        r.g.binders = known
    return rebuilt


def _bind(g: GraphBuilder, node: Node, results: Sequence[Value]) -> None:
    if results == node.values:
        for defined in node.op.defines:
            g.binders.setdefault(defined, Value(node, 0))


def _values_with_several_users(nodes: Iterable[Node], results: Iterable[Value]) -> set[Value]:
    once: set[Value] = set()
    several: set[Value] = set()
    for value in (*(v for node in nodes for v in dict.fromkeys(node.dependencies)), *results):
        (several if value in once else once).add(value)
    return several
