"""Making a failing case smaller while it goes on failing in the same way: first the graph, then its dims."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tilewright.fuzzing.cases import Case, Finding, write_case
from tilewright.fuzzing.worker import Worker
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Node, Parameter, Value, map_operator, walk_nodes
from tilewright.graph.ops import Constant, If, Loop, constant
from tilewright.graph.shapes import canonical
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, substitute
from tilewright.ir.types import TensorType
from tilewright.support.errors import TilewrightError

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]


def shrink(case: Case, finding: Finding, worker: Worker, seconds: float = 60.0) -> tuple[Case, Finding]:
    """The smallest case found within the time that gives a finding of the same kind."""
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as folder:
        path = Path(folder) / "case.zip"

        def fails(candidate: Case) -> Finding | None:
            try:
                write_case(candidate, path)
            except (TilewrightError, ValueError):
                return None
            found = worker.ask({"file": str(path)}).finding
            return found if found is not None and found.kind == finding.kind and _same_error(found, finding) else None

        progress = True
        while progress and time.monotonic() < deadline:
            progress = False
            for candidate in _candidates(case, finding):
                if time.monotonic() > deadline:
                    break
                found = fails(candidate)
                if found is not None:
                    case, finding, progress = candidate, found, True
                    break
    return case, finding


def _same_error(a: Finding, b: Finding) -> bool:
    """Exceptions of the same type that begin alike: the rest may name other shapes and loops."""
    return a.kind != "error" or (a.text.split(":")[0] == b.text.split(":")[0] and a.text.split(":")[1][:16] == b.text.split(":")[1][:16])


def _candidates(case: Case, finding: Finding) -> Iterator[Case]:
    """Smaller cases, those that save most first."""
    function = case.function
    if len(function.results) > 1:
        order = [finding.result] if finding.result is not None and finding.result < len(function.results) else []
        for i in (*order, *(i for i in range(len(function.results)) if i not in order)):
            yield from _with(case, Function(function.name, function.params, (function.results[i],)))
    if len(case.inputs) > 1:
        for inputs in case.inputs:
            yield replace(case, inputs=(inputs,))
    simpler: tuple[dict[str, Any], ...] = (
        {"outlined": 0}, {"callers": 1}, {"limited": False}, {"saved": False}, {"passed": "plain"}, {"threads": 1}, {"target": "cpu"},
        {"precision": "default"}, {"opt_level": 0}, {"opt_level": 1},
    )  # fmt: skip
    for how in (replace(case.how, **change) for change in simpler):
        if how != case.how and how.opt_level <= case.how.opt_level:
            yield replace(case, how=how)
    for genes in shorter(case.how.genes):
        yield replace(case, how=replace(case.how, genes=genes))
    for passes in shorter(case.how.passes):
        yield replace(case, how=replace(case.how, passes=passes))
    nodes = [node for node in walk_nodes(function.results) if not isinstance(node.op, (Parameter, Constant))]
    # From the middle outwards, so that about half of the graph goes at once.
    for node in sorted(nodes, key=lambda node: abs(nodes.index(node) - len(nodes) // 2)):
        yield from _cut(case, node)
    for node in nodes:
        yield from _bodies(case, node)
    for node in reversed(nodes):
        for value in node.values:
            for source in node.inputs:
                if source.type is value.type:
                    yield from _with(case, _replaced(function, {value: source}))
    for node in nodes:
        for source in dict.fromkeys(node.inputs):
            if source not in function.params and not isinstance(source.op, Constant):
                yield from _with(case, Function(function.name, function.params, (source,)))
    yield from _smaller_dims(case)
    yield from _known_sizes(case)


def shorter(parts: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """None of them, then all but one."""
    if parts:
        yield ()
    if len(parts) > 1:
        yield from (parts[:i] + parts[i + 1 :] for i in range(len(parts)))


def _with(case: Case, function: Function | None) -> Iterator[Case]:
    """The case with another function of the same parameters; unused ones go."""
    if function is None:
        return
    reached = set(walk_nodes(function.results))
    kept = [i for i, param in enumerate(function.params) if param.node in reached]
    needed = {v for node in reached for t in node.types for d in t.shape for v in free_vars(d)}
    known = {d for i in kept for d in function.params[i].shape}
    if needed - known:
        kept = list(range(len(function.params)))
    smaller = Function(function.name, tuple(function.params[i] for i in kept), function.results)
    yield replace(case, function=smaller, inputs=tuple(tuple(inputs[i] for i in kept) for inputs in case.inputs))


def _replaced(function: Function, mapping: dict[Value, Value]) -> Function | None:
    """The function with values replaced by others that do not depend on them."""
    g = GraphBuilder()
    mapped: dict[Value, Value] = {}
    try:
        for node in walk_nodes(function.results):
            results = node.values if isinstance(node.op, (Parameter, Constant)) else g.emit(node.op, *(mapped[v] for v in node.inputs))
            mapped.update(zip(node.values, results, strict=True))
            for value in node.values:
                if value in mapping:
                    mapped[value] = mapped.get(mapping[value], mapping[value])
        return Function(function.name, function.params, tuple(mapped[v] for v in function.results))
    except (TilewrightError, KeyError):
        return None


def _cut(case: Case, node: Node) -> Iterator[Case]:
    """What a node computes becomes inputs."""
    function = case.function
    if node.op.defines or set(function.results) & set(node.values):
        return
    try:
        probe = Function("probe", function.params, node.values)
        computed = [interpret(probe, inputs) for inputs in case.inputs]
    except (TilewrightError, ValueError, IndexError):  # sizes that are not known without the rest, or NumPy's own refusals
        return
    number = max((int(op.label[3:].split("_")[0]) for op in _labels(function) if op.label.startswith("cut")), default=-1) + 1
    fresh = [GraphBuilder().one(Parameter(f"cut{number}_{i}", value.type)) for i, value in enumerate(node.values)]
    changed = _replaced(function, dict(zip(node.values, fresh, strict=True)))
    if changed is not None:
        extended = Function(function.name, (*function.params, *fresh), changed.results)
        arrays = tuple((*inputs, *results) for inputs, results in zip(case.inputs, computed, strict=True))
        yield from _with(replace(case, inputs=arrays), extended)


def _bodies(case: Case, node: Node) -> Iterator[Case]:
    """What a node of control flow runs, by itself: a branch, the first turn of a loop."""
    sizes: dict[Expr, Expr] = {}
    match node.op:
        case If(then_branch=first, else_branch=second):
            bodies, operands = [first, second], node.inputs[1:]
        case Loop() as loop:
            bodies, operands = [loop.body], node.inputs[int(loop.conditional) :]
            sizes[loop.counter] = const(0)
            for param, operand in zip(loop.body.params, operands, strict=True):
                sizes |= {dim: given for dim, given in zip(param.shape, operand.shape, strict=True) if dim in loop.fresh}
        case _:
            return
    try:
        probe = Function("probe", case.function.params, operands)
        arrays = tuple(tuple(interpret(probe, inputs)) for inputs in case.inputs)
    except (TilewrightError, ValueError, IndexError):
        return
    for body in bodies:
        for candidate in _reshaped(replace(case, function=body), sizes, arrays):
            yield from _with(candidate, candidate.function)


def _labels(function: Function) -> list[Parameter]:
    return [param.op for param in function.params if isinstance(param.op, Parameter)]


def _smaller_dims(case: Case) -> Iterator[Case]:
    """Every occurrence of a constant dim made smaller: in types, attributes and arrays."""
    params = case.function.params
    present = {int(d.value) for node in walk_nodes(case.function.results) for t in node.types for d in t.shape if d.is_const}
    for n in sorted(present, reverse=True):
        for smaller in dict.fromkeys((1, 2, n // 2, n - 1)):
            if 0 < smaller < n:
                shape = {const(n): const(smaller)}
                inputs = tuple(
                    tuple(
                        _cropped(array, [shape.get(d, const(m)) for d, m in zip(p.shape, array.shape, strict=True)])
                        for p, array in zip(params, arrays, strict=True)
                    )
                    for arrays in case.inputs
                )
                yield from _reshaped(case, shape, inputs)


def _known_sizes(case: Case) -> Iterator[Case]:
    """A named size made a constant."""
    for name in {v for p in case.function.params for d in p.shape for v in free_vars(d)}:
        values = {
            int(a.shape[i])
            for inputs in case.inputs
            for p, a in zip(case.function.params, inputs, strict=True)
            for i, d in enumerate(p.shape)
            if d is name
        }
        if len(values) == 1:
            yield from _reshaped(case, {name: const(values.pop())}, case.inputs)


def _cropped(array: Array, dims: list[Expr]) -> Array:
    return np.ascontiguousarray(array[tuple(slice(0, int(d.value)) for d in dims)]).reshape([int(d.value) for d in dims])


def _reshaped(case: Case, dims: dict[Expr, Expr], inputs: tuple[tuple[Array, ...], ...]) -> Iterator[Case]:
    sizes = {e: known for e, known in dims.items() if e.op is Op.VAR}

    def dim(e: Expr) -> Expr:
        found = dims.get(e)
        if found is None:
            found = canonical(substitute(e, sizes)) if sizes else e
        return found

    g = GraphBuilder()
    mapped: dict[Value, Value] = {}
    try:
        for param in case.function.params:
            if not isinstance(param.op, Parameter):
                return
            type_ = TensorType(param.type.dtype, tuple(map(dim, param.shape)))
            mapped[param] = g.one(Parameter(param.op.label, type_))
        for node in walk_nodes(case.function.results):
            if isinstance(node.op, Parameter):
                continue
            if isinstance(node.op, Constant):
                array = node.op.data.array
                results = g.emit(constant(_cropped(array, [dim(const(n)) for n in array.shape])))
            else:
                results = g.emit(map_operator(node.op, dim), *(mapped[v] for v in node.inputs))
            mapped.update(zip(node.values, results, strict=True))
        params = tuple(mapped[p] for p in case.function.params)
        function = Function(case.function.name, params, tuple(mapped[v] for v in case.function.results))
    except (TilewrightError, KeyError, ValueError, IndexError):
        return
    yield replace(case, function=function, inputs=inputs)
