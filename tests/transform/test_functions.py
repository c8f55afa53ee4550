"""Passes over functions inside of functions: opening composites, sinking constants, applying a pass everywhere."""

from __future__ import annotations

import numpy as np

from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Operator, Parameter, Value, walk_nodes
from tilewright.graph.ops import BatchNorm, Binary, Constant, If, Loop, Lstm, Softmax, Unary, constant
from tilewright.graph.text_parser import parse_function
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor
from tilewright.transform.decompose import open_composites
from tilewright.transform.functions import held_functions, map_functions, on_all_functions, on_function
from tilewright.transform.simplify import simplify_graph
from tilewright.transform.sink_constants import sink_constants
from tilewright.transform.verify import verify_function

F32 = dtypes.float32


def names(function: Function) -> set[str]:
    """Names of operators in a function and those that it holds."""
    found: set[str] = set()
    for node in walk_nodes(function.results):
        found.add(node.op.name)
        for held in held_functions(node.op):
            found |= names(held)
    return found


def param(label: str, *shape: int, dtype: dtypes.DType = F32) -> Value:
    return GraphBuilder().one(Parameter(label, tensor(dtype, shape)))


def loop_of(body_result: Value, params: tuple[Value, ...], *arguments: Value) -> Value:
    body = Function("body", params, (body_result,))
    return GraphBuilder().emit(Loop(body, 1, size("t"), const(3)), *arguments)[0]


def test_constants_sink_through_nested_loops() -> None:
    g = GraphBuilder()
    x, c = param("x", 4), g.one(constant(np.arange(4, dtype=np.float32)))
    inner_x, inner_c = param("ix", 4), param("ic", 4)
    middle_x, middle_c = param("mx", 4), param("mc", 4)
    inner = loop_of(g.one(Binary("add"), inner_x, inner_c), (inner_x, inner_c), middle_x, middle_c)
    outer = loop_of(inner, (middle_x, middle_c), x, c)
    function = Function("main", (x,), (outer,))
    sunk = sink_constants(function)
    verify_function(sunk, "sink_constants")
    (loop,) = (node for node in walk_nodes(sunk.results) if isinstance(node.op, Loop))
    assert loop.inputs == (x,)
    (nested,) = (node for node in walk_nodes(loop.op.body.results) if isinstance(node.op, Loop))  # type: ignore[attr-defined]
    assert len(nested.inputs) == 1
    assert "constant" in names(nested.op.body)  # type: ignore[attr-defined]
    value = np.ones(4, np.float32)
    np.testing.assert_array_equal(interpret(sunk, [value])[0], interpret(function, [value])[0])


def test_unused_captures_of_branches_go() -> None:
    g = GraphBuilder()
    x, go, extra = param("x", 4), param("go", dtype=dtypes.bool_), param("extra", 2)
    p, q = param("p", 4), param("q", 2)
    yes, no = (Function(name, (p, q), (g.one(Unary(fn), p),)) for name, fn in (("yes", "neg"), ("no", "abs")))
    function = Function("main", (x, go, extra), g.emit(If(yes, no), go, x, extra))
    sunk = sink_constants(function)
    verify_function(sunk)
    assert sunk.results[0].node.inputs == (go, x)
    assert sink_constants(sunk) is sunk


def test_a_constant_that_one_branch_needs_sinks_into_both() -> None:
    g = GraphBuilder()
    x, go, c = param("x", 4), param("go", dtype=dtypes.bool_), g.one(constant(2.0, F32))
    p, q = param("p", 4), g.one(Parameter("q", c.type))
    yes = Function("yes", (p, q), (g.one(Binary("mul"), p, q),))
    no = Function("no", (p, q), (g.one(Unary("abs"), p),))
    sunk = sink_constants(Function("main", (x, go), g.emit(If(yes, no), go, x, c)))
    verify_function(sunk)
    (branch,) = (node for node in walk_nodes(sunk.results) if isinstance(node.op, If))
    assert branch.inputs == (go, x)


def test_composites_open_inside_of_what_opens() -> None:
    """An LSTM becomes a loop, whose body must be open as well."""
    text = """
def main(x: float32[5, 2, 3], y: float32[2, 4]):
    v = softmax(y, axis=1)
    return v
"""
    function = parse_function(text)

    def takes(op: Operator) -> bool:
        return not isinstance(op, (Softmax, Lstm, BatchNorm))

    opened = open_composites(function, takes)
    assert "softmax" not in names(opened)
    inner = param("y", 2, 4)
    body = Function("body", (inner,), (GraphBuilder().one(Softmax(1), inner),))
    y = param("z", 2, 4)
    outer = Function("main", (y,), GraphBuilder().emit(Loop(body, 1, size("t"), const(2)), y))
    assert "softmax" not in names(open_composites(outer, takes))
    verify_function(open_composites(outer, takes))


def test_operators_that_are_taken_stay() -> None:
    function = parse_function("def main(y: float32[2, 4]):\n    v = softmax(y, axis=1)\n    return v\n")
    assert open_composites(function) is function


def test_a_pass_reaches_every_function_once() -> None:
    seen: list[str] = []

    def note(function: Function) -> Function:
        seen.append(function.name)
        return function

    p = param("p", 4)
    body = Function("body", (p,), (GraphBuilder().one(Unary("neg"), p),))
    g, x = GraphBuilder(), param("x", 4)
    first = g.emit(Loop(body, 1, size("t"), const(2)), x)
    second = g.emit(Loop(body, 1, size("u"), const(2)), *first)
    module = Module({"main": Function("main", (x,), second), "other": Function("other", (x,), (x,))})
    assert on_all_functions(module, note) == module
    assert seen == ["body", "main", "other"]


def test_bodies_are_rewritten_before_what_holds_them() -> None:
    p = param("p", 4)
    g, x = GraphBuilder(), param("x", 4)
    twice = g.one(Unary("neg"), g.one(Unary("neg"), p))
    body = Function("body", (p,), (twice,))
    function = Function("main", (x,), g.emit(Loop(body, 1, size("t"), const(2)), x))
    (result,) = on_function(function, simplify_graph, {}).results
    assert result.op.body.results == (p,)  # type: ignore[attr-defined]
    assert map_functions(result.op, lambda f: f) is result.op
    assert not any(isinstance(node.op, Constant) for node in walk_nodes([result]))
