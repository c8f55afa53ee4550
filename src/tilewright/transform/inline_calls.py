"""Inlining: the functions of a module that are called become part of their callers, with sizes of their own for each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from tilewright.graph.node import (
    Function,
    GraphBuilder,
    Module,
    Node,
    Operator,
    Parameter,
    Value,
    operator_sizes,
    substitute_operator,
    walk_nodes,
)
from tilewright.graph.ops import Call, RefineShape
from tilewright.ir.expr import Expr, size
from tilewright.ir.traverse import free_vars, substitute
from tilewright.ir.types import TensorType
from tilewright.support.errors import GraphError

Values = tuple[Value, ...]
Callers = tuple[str, ...]  # the functions being inlined, outermost first


def inline_calls(module: Module) -> Module:
    """The module with `main` alone, in which nothing is called. Raises GraphError for recursion, which cannot be planned ahead, and for a
    callee whose sizes are not dims of its parameters."""
    if len(module.functions) == 1 and not any(_calls(function) for function in module.functions.values()):
        return module
    inliner = _Inliner(module)
    return replace(module, functions={module.entry: inliner.function(module.main, {}, ())})


def _calls(function: Function) -> bool:
    return any(
        isinstance(node.op, Call) or any(_calls(value) for value in _attributes(node.op) if isinstance(value, Function))
        for node in walk_nodes(function.results)
    )


def _attributes(op: Operator) -> list[object]:
    return [getattr(op, f.name) for f in fields(op)]


@dataclass(slots=True)
class _Inliner:
    """Copies functions with their sizes renamed; `names` counts the copies of each name."""

    module: Module
    names: dict[str, int] = field(default_factory=dict)

    def function(self, function: Function, sizes: Mapping[Expr, Expr], callers: tuple[str, ...]) -> Function:
        """A closed function with its sizes replaced and its calls inlined."""
        g = GraphBuilder()
        params = tuple(g.one(_parameter(param.op, sizes)) for param in function.params)
        return Function(function.name, params, self.body(g, function, params, dict(sizes), callers))

    def body(
        self, g: GraphBuilder, function: Function, args: Values, sizes: dict[Expr, Expr], callers: tuple[str, ...]
    ) -> tuple[Value, ...]:
        """The results of a function's nodes, emitted over `args`."""
        mapped: dict[Value, Value] = dict(zip(function.params, args, strict=True))
        for node in walk_nodes(function.results):
            if isinstance(node.op, Parameter):
                continue
            g.origin = node.origin
            inputs = tuple(mapped[value] for value in node.inputs)
            results = self.node(g, node, inputs, sizes, callers)
            mapped.update(zip(node.values, results, strict=True))
        return tuple(mapped[value] for value in function.results)

    def node(self, g: GraphBuilder, node: Node, inputs: Values, sizes: dict[Expr, Expr], callers: tuple[str, ...]) -> tuple[Value, ...]:
        if isinstance(node.op, Call):
            results = self.call(g, node.op.function, inputs, callers)
            wanted = tuple(TensorType(t.dtype, tuple(substitute(dim, sizes) for dim in t.shape)) for t in node.op.types)
            return tuple(v if v.type is t else g.one(RefineShape(t.shape), v) for v, t in zip(results, wanted, strict=True))
        if callers:
            for bound in node.op.defines:
                sizes.setdefault(bound, self.fresh(bound))
        op = substitute_operator(node.op, sizes) if operator_sizes(node.op) or node.op.defines else node.op
        changes = {f.name: self.function(value, sizes, callers) for f in fields(op) if isinstance(value := getattr(op, f.name), Function)}
        return g.emit(replace(op, **changes) if changes else op, *inputs)

    def call(self, g: GraphBuilder, name: str, args: Values, callers: Callers) -> Values:
        if name in callers:
            raise GraphError(f"function '{name}' calls itself", why="recursion cannot be planned ahead")
        callee = self.module.functions.get(name)
        if callee is None:
            raise GraphError(f"call of the function '{name}', which the module does not have")
        sizes: dict[Expr, Expr] = {}
        for param, arg in zip(callee.params, args, strict=True):
            sizes.update(
                (dim, given) for dim, given in zip(param.shape, arg.shape, strict=True) if free_vars(dim) == (dim,) and dim not in sizes
            )
        given = []
        for param, arg in zip(callee.params, args, strict=True):
            if unknown := [v.name for v in free_vars(*param.shape) if v not in sizes]:
                raise GraphError(f"the size {unknown[0]} of function '{name}' is not a dim of its parameters")
            shape = tuple(substitute(dim, sizes) for dim in param.shape)
            given.append(arg if shape == arg.shape else g.one(RefineShape(shape), arg))
        return self.body(g, callee, tuple(given), sizes, (*callers, name))

    def fresh(self, bound: Expr) -> Expr:
        count = self.names[bound.name] = self.names.get(bound.name, 0) + 1
        info = bound.attr
        return size(f"{bound.name}_call{count}", info.lo, info.hi, info.multiple)


def _parameter(op: Operator, sizes: Mapping[Expr, Expr]) -> Operator:
    return substitute_operator(op, sizes) if sizes and operator_sizes(op) else op
