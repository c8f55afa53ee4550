"""The graph verifier: what every pass must leave true."""

from __future__ import annotations

from tilewright.graph.node import Function, Module, Node, Parameter, operator_sizes, walk_nodes
from tilewright.graph.ops import Call
from tilewright.ir.expr import Expr
from tilewright.support.errors import TilewrightError, VerifyError
from tilewright.transform.functions import held_functions


def verify_module(module: Module, after: str = "") -> None:
    """Raises VerifyError, with the pass `after` which and the node where, if the module is not well formed: types are those that the type
    rules infer, parameters are the functions' own, calls find their functions, and binders are present."""
    if module.entry not in module.functions:
        raise VerifyError(_title(after, f"there is no entry function {module.entry!r}"))
    for function in module.functions.values():
        verify_function(function, after)
        for node in walk_nodes(function.results):
            if isinstance(node.op, Call):
                _verify_call(module, node, after)


def verify_function(function: Function, after: str = "") -> None:
    """`verify_module` for one function and those that it holds."""
    labels = [param.op.label for param in function.params if isinstance(param.op, Parameter)]
    if len(labels) != len(function.params) or len(set(function.params)) != len(labels):
        raise VerifyError(_title(after, f"function {function.name}: the parameters are not distinct parameter nodes"))
    binding: dict[Expr, set[Node]] = {}
    for node in walk_nodes(function.results):
        for size in node.op.defines:
            binding.setdefault(size, set()).add(node)
    for node in walk_nodes(function.results):
        try:
            _verify_node(function, node, binding)
        except TilewrightError as error:
            raise VerifyError(
                _title(after, f"function {function.name}: {error.what}"), where=str(node.origin or node), why=error.why
            ) from error
        for held in held_functions(node.op):
            verify_function(held, after)


def _verify_node(function: Function, node: Node, binding: dict[Expr, set[Node]]) -> None:
    if isinstance(node.op, Parameter):
        if node[0] not in function.params:
            raise VerifyError(f"parameter {node.op.label} belongs to another function")
        return
    inferred = node.op.infer(tuple(value.type for value in node.inputs))
    if inferred != node.types:
        raise VerifyError(f"{node.op.name} has the type {node.types!r}", why=f"its type rule says {inferred!r}")
    present = {value.node for value in node.binders}
    for size in operator_sizes(node.op):
        sources = binding.get(size)
        if sources and size not in node.op.defines and not sources & present:
            raise VerifyError(f"{node.op.name} mentions the size {size!r} without depending on what binds it")
    for value in node.binders:
        if not value.node.op.defines:
            raise VerifyError(f"{node.op.name} has a binder that binds nothing: {value!r}")


def _verify_call(module: Module, node: Node, after: str) -> None:
    op = node.op
    assert isinstance(op, Call)
    called = module.functions.get(op.function)
    where = str(node.origin or node)
    if called is None:
        raise VerifyError(_title(after, f"call of the function {op.function!r}, which the module does not have"), where=where)
    if tuple(p.type.dtype for p in called.params) != tuple(value.type.dtype for value in node.inputs):
        raise VerifyError(_title(after, f"call of {op.function!r} with arguments of other types"), where=where)


def _title(after: str, what: str) -> str:
    return f"after the pass {after}: {what}" if after else what
