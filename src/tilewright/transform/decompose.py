"""Opening composites: operators that a target does not take whole become the operators of their decomposition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.graph.node import (
    Function,
    GraphBuilder,
    Node,
    Operator,
    Value,
    decompose,
    has_decomposition,
    has_definition,
    rewrite_function,
    walk_nodes,
)
from tilewright.transform.functions import function_fields, map_functions

Takes = Callable[[Operator], bool]


def takes_defined(op: Operator) -> bool:
    """A target without preferences: it takes every operator that defines a kernel."""
    return has_definition(op)


def open_composites(function: Function, takes: Takes = takes_defined) -> Function:
    """The function with composites decomposed, also in the bodies of control flow that decompositions bring, until every operator is one
    that `takes` accepts or that cannot be opened."""
    memo: dict[Function, Function] = {}

    def is_concerned(node: Node) -> bool:
        return bool(function_fields(type(node.op))) or (has_decomposition(node.op) and not takes(node.op))

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if has_decomposition(node.op) and not takes(node.op):
            return decompose(node.op, g, inputs)
        op = map_functions(node.op, opened)
        return None if op is node.op else g.emit(op, *inputs)

    def opened(f: Function) -> Function:
        if f not in memo:
            after = f
            while any(map(is_concerned, walk_nodes(after.results))):
                before, after = after, rewrite_function(after, visit)
                if after is before:
                    break
            memo[f] = after
        return memo[f]

    return opened(function)
