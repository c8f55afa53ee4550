"""Constants passed into the functions of control flow become constants of the functions, so that kernels inside may pack them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function, walk_nodes
from tilewright.graph.ops import Constant, If, Loop


def sink_constants(function: Function) -> Function:
    """The function with captures of branches and loops that are constants moved inside; unused captures are dropped."""
    if not any(isinstance(node.op, (If, Loop)) for node in walk_nodes(function.results)):
        return function
    return rewrite_function(function, _visit)


def _visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    match node.op:
        case If():
            captures = inputs[1:]
            keep = _kept(captures, (node.op.then_branch, node.op.else_branch))
            if len(keep) == len(captures):
                return None
            then_branch = specialise(node.op.then_branch, captures, keep)
            else_branch = specialise(node.op.else_branch, captures, keep)
            return g.emit(If(then_branch, else_branch, node.op.fresh), inputs[0], *(captures[i] for i in keep))
        case Loop():
            first = int(node.op.conditional) + node.op.carried
            captures = inputs[first:]
            values = (*[None] * node.op.carried, *captures)
            carried = list(range(node.op.carried))
            keep = carried + [i for i in _kept(values, (node.op.body,)) if i >= node.op.carried]
            if len(keep) == len(values):
                return None
            body = specialise(node.op.body, values, keep)
            kept = [captures[i - node.op.carried] for i in keep[node.op.carried :]]
            return g.emit(replace(node.op, body=body), *inputs[:first], *kept)
    return None


def _kept(captures: Sequence[Value | None], functions: Sequence[Function]) -> list[int]:
    used = [set(walk_nodes(function.results)) for function in functions]

    def is_kept(i: int, value: Value | None) -> bool:
        needed = any(function.params[i].node in nodes for function, nodes in zip(functions, used, strict=True))
        return needed and not (value is not None and isinstance(value.op, Constant))

    return [i for i, value in enumerate(captures) if is_kept(i, value)]


def specialise(function: Function, captures: Sequence[Value | None], keep: Sequence[int]) -> Function:
    """The function of the parameters numbered in `keep`, with the constants among the others filled in."""
    kept = set(keep)
    constants = {
        function.params[i]: value
        for i, value in enumerate(captures)
        if i not in kept and value is not None and isinstance(value.op, Constant)
    }
    body = rewrite_function(function, lambda g, node, inputs: (constants[node[0]],) if node.values and node[0] in constants else None)
    # The constants may be captures of control flow in there.
    return sink_constants(Function(function.name, tuple(function.params[i] for i in keep), body.results))
