"""Applying a pass to a whole module: every function of its table, and the functions that control flow operators hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache

from tilewright.graph.node import Function, GraphBuilder, Module, Operator, Value, rewrite_function, walk_nodes
from tilewright.graph.ops import Fused

Pass = Callable[[Function], Function]


def on_all_functions(module: Module, apply: Pass) -> Module:
    """The module with `apply` run on each function, bodies of control flow before the function that holds them."""
    memo: dict[Function, Function] = {}
    return replace(module, functions={name: on_function(function, apply, memo) for name, function in module.functions.items()})


def on_function(function: Function, apply: Pass, memo: dict[Function, Function]) -> Function:
    """`apply` on the functions nested in `function`, then on itself. Fused groups are final: nothing looks inside."""
    if function in memo:
        return memo[function]

    def nested(f: Function) -> Function:
        return on_function(f, apply, memo)

    inner = function
    if any(function_fields(type(node.op)) and not isinstance(node.op, Fused) for node in walk_nodes(function.results)):
        inner = rewrite_function(function, lambda g, node, inputs: _with_nested(g, node.op, inputs, nested))
    result = apply(inner)
    memo[function] = result
    return result


def _with_nested(g: GraphBuilder, op: Operator, inputs: Sequence[Value], nested: Pass) -> Sequence[Value] | None:
    changed = op if isinstance(op, Fused) else map_functions(op, nested)
    return None if changed is op else g.emit(changed, *inputs)


@cache
def function_fields(kind: type[Operator]) -> tuple[str, ...]:
    """The attributes of an operator that are functions."""
    return tuple(f.name for f in fields(kind) if f.type in ("Function", Function))


def held_functions(op: Operator) -> list[Function]:
    """The functions among an operator's attributes."""
    return [getattr(op, name) for name in function_fields(type(op))]


def map_functions(op: Operator, apply: Pass) -> Operator:
    """The operator with each function among its attributes mapped."""
    changes = {}
    for name in function_fields(type(op)):
        value = getattr(op, name)
        mapped = apply(value)
        if mapped is not value:
            changes[name] = mapped
    return replace(op, **changes) if changes else op
