"""Opening composites: operators that a target does not take whole become the operators of their decomposition."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.node import Function, Operator, decompose, has_decomposition, has_definition, rewrite_function

Takes = Callable[[Operator], bool]


def takes_defined(op: Operator) -> bool:
    """A target without preferences: it takes every operator that defines a kernel."""
    return has_definition(op)


def open_composites(function: Function, takes: Takes = takes_defined) -> Function:
    """The function with composites decomposed until every operator is one that `takes` accepts or that cannot be opened."""
    while True:
        opened = rewrite_function(
            function, lambda g, node, inputs: decompose(node.op, g, inputs) if has_decomposition(node.op) and not takes(node.op) else None
        )
        if opened is function:
            return function
        function = opened
