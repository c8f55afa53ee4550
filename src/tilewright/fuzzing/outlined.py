"""Graphs with parts of them as functions that are called: what the compiler is given, while the reference runs the graph as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from tilewright.graph.node import (
    Function,
    GraphBuilder,
    Module,
    Node,
    Operator,
    Parameter,
    Value,
    operator_sizes,
    rewrite_function,
    substitute_operator,
    walk_nodes,
)
from tilewright.graph.ops import Binary, Call, Cast, Constant, Unary
from tilewright.ir.expr import Expr, size
from tilewright.ir.traverse import free_vars, substitute
from tilewright.ir.types import TensorType

LONGEST = 8  # nodes of a function


def outlined(module: Module, seed: int) -> Module:
    """The module with parts of its main function as functions: operators that occur more than once, each a call of one function, and nodes
    that follow one another, calls among them."""
    rng = np.random.default_rng([seed, 5])
    functions: dict[str, Function] = {}
    main = _repeated(module.main, functions, rng)
    functions[module.entry] = _cut_out(main, "part", functions, rng)
    return replace(module, functions=functions)


def _movable(node: Node) -> bool:
    """Whether a node may be part of a function: it binds no size that others read, and holds no function."""
    holds = any(isinstance(getattr(node.op, entry.name), Function) for entry in fields(node.op))
    return not holds and not node.op.defines and not isinstance(node.op, Parameter)


def _named(params: Sequence[TensorType], part: Sequence[Node]) -> bool:
    """Whether every size that the nodes mention is a dim of a parameter."""
    types = [*params, *(type_ for node in part for type_ in node.types)]
    mentioned = {v for type_ in types for v in free_vars(*type_.shape)} | {v for node in part for v in free_vars(*operator_sizes(node.op))}
    return mentioned <= {dim for type_ in params for dim in type_.shape}


def _cut_out(function: Function, name: str, functions: dict[str, Function], rng: np.random.Generator) -> Function:
    """The function with some nodes that follow one another in a function of their own."""
    nodes = [node for node in walk_nodes(function.results) if not isinstance(node.op, Parameter)]
    first = int(rng.integers(max(len(nodes), 1)))
    calls = [i for i, node in enumerate(nodes) if isinstance(node.op, Call)]
    if calls and rng.random() < 0.5:  # so that functions call functions
        first = max(calls[int(rng.integers(len(calls)))] - int(rng.integers(4)), 0)
    part: list[Node] = []
    for node in nodes[first : first + LONGEST]:
        if not _movable(node):
            break
        part.append(node)
    inside = set(part)
    read = {value for node in nodes if node not in inside for value in node.inputs} | set(function.results)
    results = [value for node in part for value in node.values if value in read]
    params = list(dict.fromkeys(value for node in part for value in node.inputs if value.node not in inside))
    if not results or not params or not _named([value.type for value in params], part):
        return function
    mine = {v: size(f"{name}_{v.name}", v.attr.lo, v.attr.hi, v.attr.multiple) for value in params for v in free_vars(*value.shape)}
    g = GraphBuilder()
    made = {value: g.one(Parameter(f"{name}_p{i}", _renamed(value.type, mine))) for i, value in enumerate(params)}
    own = tuple(made.values())
    for node in part:
        made.update(zip(node.values, g.emit(substitute_operator(node.op, mine), *(made[v] for v in node.inputs)), strict=True))
    functions[name] = Function(name, own, tuple(made[value] for value in results))
    called: dict[Value, Value] = {}
    now = dict[Value, Value]()

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        now.update(zip(node.inputs, inputs, strict=True))
        if node not in inside:
            return None
        if not called:  # whatever the part reads comes before it
            call = Call(name, tuple(value.type for value in results))
            called.update(zip(results, g.emit(call, *(now.get(value, value) for value in params)), strict=True))
        return [called.get(value, value) for value in node.values]

    return rewrite_function(function, visit)


def _renamed(type_: TensorType, sizes: dict[Expr, Expr]) -> TensorType:
    return TensorType(type_.dtype, tuple(substitute(dim, sizes) for dim in type_.shape))


def _repeated(function: Function, functions: dict[str, Function], rng: np.random.Generator) -> Function:
    """The function with all nodes of one operator and the same types as calls of one function; those that take every shape, of any dims."""
    alike: dict[tuple[Operator, tuple[TensorType, ...]], list[Node]] = {}
    for node in walk_nodes(function.results):
        types = tuple(value.type for value in node.inputs)
        if isinstance(node.op, (Unary, Cast, Binary)) and len({type_.shape for type_ in types}) == 1:
            types = tuple(TensorType(t.dtype, tuple(size(f"any{axis}", 0) for axis in range(t.rank))) for t in types)
        if _movable(node) and not isinstance(node.op, Constant) and types and not operator_sizes(node.op) and _named(types, ()):
            alike.setdefault((node.op, types), []).append(node)
    several = [(op, types, nodes) for (op, types), nodes in alike.items() if len(nodes) > 1]
    if not several:
        return function
    op, types, nodes = several[int(rng.integers(len(several)))]
    g = GraphBuilder()
    params = tuple(g.one(Parameter(f"operand{i}", type_)) for i, type_ in enumerate(types))
    functions["repeated"] = Function("repeated", params, g.emit(op, *params))
    chosen = set(nodes)

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        return g.emit(Call("repeated", node.types), *inputs) if node in chosen else None

    return rewrite_function(function, visit)
