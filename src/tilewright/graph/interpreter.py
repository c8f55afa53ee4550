"""Runs graphs in NumPy, operator by operator: the meaning of a graph, and the yardstick of compiled code.

(y,) = interpret(function, [x])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tilewright.graph.node import (
    Array,
    Function,
    GraphBuilder,
    Module,
    Node,
    Operator,
    Parameter,
    Value,
    bind_operator,
    decompose,
    has_decomposition,
    walk_nodes,
)
from tilewright.graph.ops.control import Call
from tilewright.graph.ops.source import BindSize
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.traverse import evaluate_int, free_vars, solve_for
from tilewright.ir.types import TensorType, tensor
from tilewright.support.errors import GraphError, InputError, InternalError, ShapeError, TilewrightError

Sizes = dict[Expr, int]


def interpret(program: Function | Module, inputs: Sequence[Array], sizes: Mapping[Expr, int] | None = None) -> list[Array]:
    """The results of a function, or of a module's entry, for `inputs`: arrays of the parameters' dtypes and shapes.

    Sizes that `sizes` does not give are solved from the shapes of the inputs. Raises InputError when inputs contradict the parameters
    or leave a size open, and InternalError, with the node, when an operator's reference breaks its type rule.
    """
    module = program if isinstance(program, Module) else None
    function = program.main if isinstance(program, Module) else program
    return Interpreter(module).run(function, [np.asarray(array) for array in inputs], dict(sizes or {}))


def bind_inputs(types: Sequence[TensorType], inputs: Sequence[Array], sizes: Sizes, labels: Sequence[str] = ()) -> None:
    """Add to `sizes` what the shapes of the inputs determine. Raises InputError for a wrong count, dtype, rank or dim, a size out of its
    range, or dims that do not determine their sizes."""
    if len(types) != len(inputs):
        raise InputError(f"{len(inputs)} inputs were given, {len(types)} are needed")
    names = [labels[i] if i < len(labels) else str(i) for i in range(len(types))]
    for name, type_, array in zip(names, types, inputs):
        if not _has_dtype(array, type_) or array.ndim != type_.rank:
            given = f"{array.dtype}{list(array.shape)}"
            raise InputError(f"input {name} is {given}", why=f"it must be {type_!r}")
    dims = [(name, dim, n) for name, type_, array in zip(names, types, inputs) for dim, n in zip(type_.shape, array.shape)]
    _solve_all([(dim, n) for _, dim, n in dims], sizes)
    for name, dim, n in dims:
        unknown = [v.name for v in free_vars(dim) if v not in sizes]
        if unknown:
            raise InputError(f"the size {unknown[0]} is not determined by the inputs", where=f"input {name}", hint="give it in `sizes`")
        if evaluate_int(dim, sizes) != n:
            raise InputError(f"input {name} has a dim of {n}", why=f"{dim!r} is {evaluate_int(dim, sizes)} here")
    for size in dict.fromkeys(v for _, dim, _ in dims for v in free_vars(dim)):
        check_size(size, sizes[size])


def _has_dtype(array: Array, type_: TensorType) -> bool:
    return array.dtype == type_.dtype.numpy or (type_.dtype is dtypes.string and array.dtype.kind in "US")


def check_size(size: Expr, value: int) -> None:
    """Raises InputError when a size's value is out of its declared range."""
    info = size.attr
    if (info.lo is not None and value < info.lo) or (info.hi is not None and value > info.hi) or value % info.multiple:
        low, high = ("" if limit is None else str(limit) for limit in (info.lo, info.hi))
        multiple = f" in multiples of {info.multiple}" if info.multiple != 1 else ""
        raise InputError(f"the size {info.name} is {value}", why=f"its range is [{low}, {high}]{multiple}")


def _solve_all(equations: Iterable[tuple[Expr, int]], sizes: Sizes) -> None:
    """Solve dims with one unknown that are linear in it, until nothing more follows."""
    pending = [(dim, n) for dim, n in equations if not dim.is_const]
    progress = True
    while progress:
        progress = False
        for dim, n in pending:
            unknown = [v for v in free_vars(dim) if v not in sizes]
            if len(unknown) != 1:
                continue
            solution = solve_for(dim, unknown[0], n, sizes)
            if solution is not None:
                sizes[unknown[0]] = solution
                progress = True


class Interpreter:
    """Runs functions; `module` resolves calls by name."""

    __slots__ = ("module",)

    def __init__(self, module: Module | None) -> None:
        self.module = module

    def run(self, function: Function, inputs: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The results of `function`; sizes that it binds are added to `sizes`."""
        labels = [param.op.label if isinstance(param.op, Parameter) else str(i) for i, param in enumerate(function.params)]
        bind_inputs([param.type for param in function.params], inputs, sizes, labels)
        values: dict[Value, Array] = dict(zip(function.params, inputs, strict=True))
        nodes = list(walk_nodes(function.results))
        last = {value: node for node in nodes for value in node.inputs}
        kept = set(function.results)
        for node in nodes:
            if isinstance(node.op, Parameter):
                if node.values[0] not in values:
                    raise GraphError(f"function {function.name} uses a parameter {node.op.label} that is not its own")
                continue
            results = self._node(node, [values[value] for value in node.inputs], sizes)
            values.update(zip(node.values, results, strict=True))
            for value in dict.fromkeys(node.inputs):
                if last[value] is node and value not in kept:
                    del values[value]
        return [values[value] for value in function.results]

    def results_of(self, node: Node, inputs: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The results of one node for these operands; sizes that it binds are added to `sizes`."""
        return self._node(node, list(inputs), sizes)

    def _node(self, node: Node, inputs: list[Array], sizes: Sizes) -> list[Array]:
        try:
            _refuse_negative_dims(node, sizes)
            results = [np.asarray(result) for result in self._operator(node.op, inputs, sizes, [value.type for value in node.inputs])]
        except TilewrightError as error:
            raise (error if node.origin is None else error.located(str(node.origin))) from None
        if isinstance(node.op, Call):
            dims = [(dim, n) for type_, array in zip(node.types, results) for dim, n in zip(type_.shape, array.shape)]
            _solve_all(dims, sizes)
        _check_results(node, results, sizes)
        return results

    def _operator(self, op: Operator, inputs: list[Array], sizes: Sizes, types: list[TensorType]) -> Sequence[Array]:
        if isinstance(op, BindSize):
            value = int(inputs[0])
            check_size(op.size, value)
            sizes[op.size] = value
            return inputs
        if isinstance(op, Call):
            if self.module is None or op.function not in self.module.functions:
                raise GraphError(f"call of the function {op.function!r}, which the module does not have")
            return self.run(self.module.functions[op.function], inputs, {})
        if hasattr(op, "interpret"):
            results: Sequence[Array] = op.interpret(self.run, inputs, sizes)
            return results
        bound = bind_operator(op, sizes)
        if has_reference(op) or not has_decomposition(op):
            return bound.reference(tuple(inputs))
        return self.run(decomposed(bound, [tensor(t.dtype, array.shape) for t, array in zip(types, inputs)]), inputs, {})


def has_reference(op: Operator) -> bool:
    return type(op).reference is not Operator.reference


def decomposed(op: Operator, types: Sequence[TensorType]) -> Function:
    """The operator's decomposition for operands of these types, as a function."""
    g = GraphBuilder()
    params = tuple(g.one(Parameter(f"operand{i}", type_)) for i, type_ in enumerate(types))
    return Function(op.name, params, decompose(op, g, params))


def _refuse_negative_dims(node: Node, sizes: Sizes) -> None:
    """Raises ShapeError when a result cannot be, as of a window that is larger than its image, before a reference is asked for it."""
    for i, type_ in enumerate(node.types):
        for dim in type_.shape:
            if not dim.is_const and all(v in sizes for v in free_vars(dim)) and evaluate_int(dim, sizes) < 0:
                raise ShapeError(f"result {i} of {node.op.name} would have a dim of {evaluate_int(dim, sizes)}", why=f"it is {dim!r}")


def _check_results(node: Node, results: Sequence[Array], sizes: Sizes) -> None:
    """Raises InternalError when results are not of the types inferred."""
    where = str(node.origin) if node.origin is not None else repr(node)
    if len(results) != len(node.types):
        raise InternalError(f"the reference of {node.op.name} gives {len(results)} results, not {len(node.types)}", where=where)
    for i, (type_, array) in enumerate(zip(node.types, results)):
        open_sizes = [v.name for v in free_vars(*type_.shape) if v not in sizes]
        if open_sizes:
            raise InternalError(f"the size {open_sizes[0]} in result {i} of {node.op.name} is not bound", where=where)
        shape = tuple(evaluate_int(dim, sizes) for dim in type_.shape)
        if array.shape != shape or dtypes.from_numpy(array.dtype) is not type_.dtype:
            raise InternalError(
                f"result {i} of {node.op.name} is {array.dtype}{list(array.shape)}",
                where=where,
                why=f"the type rule says {type_!r}, which is {list(shape)} here",
            )
