"""Branches, loops and scans through the graph interpreter, and the rules that their functions must obey."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Parameter, Value, walk_nodes
from tilewright.graph.ops.control import Call, Loop, branch, scan
from tilewright.graph.ops.elementwise import Binary
from tilewright.graph.ops.movement import Concat, Slice
from tilewright.graph.ops.source import BindSize, SizeValue, constant
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.types import TensorType, tensor
from tilewright.support.errors import TypeRuleError

FLOAT = dtypes.float32


def param(g: GraphBuilder, label: str, dtype: DType, *shape: int | Expr) -> Value:
    return g.one(Parameter(label, tensor(dtype, shape)))


def add(g: GraphBuilder, a: Value, b: Value) -> Value:
    return g.one(Binary("add"), a, b)


def test_branches_bind_the_dims_in_which_they_differ() -> None:
    g = GraphBuilder()
    x = param(g, "x", FLOAT, 4)
    short = Function("short", (x,), (g.one(Slice((const(0),), (const(2),), (1,)), x),))
    long = Function("long", (x,), (g.one(Concat(0), x, x),))
    c, y = param(g, "c", dtypes.bool_), param(g, "y", FLOAT, 4)
    m = size("m")
    (result,) = branch(g, c, [y], short, long, lambda: m)
    assert result.shape == (m,)
    after = g.one(SizeValue(m))
    assert result.node in {b.node for b in after.node.binders}
    main = Function("main", (c, y), (result, after))
    data = np.arange(4, dtype=np.float32)
    for flag, want in ((True, data[:2]), (False, np.concatenate([data, data]))):
        got, length = interpret(main, [np.array(flag), data])
        np.testing.assert_array_equal(got, want)
        assert length == len(want)


def test_equal_branches_bind_nothing() -> None:
    g = GraphBuilder()
    n = size("n")
    x = param(g, "x", FLOAT, n)
    same, double = Function("same", (x,), (x,)), Function("double", (x,), (add(g, x, x),))
    c, y = param(g, "c", dtypes.bool_), param(g, "y", FLOAT, n)
    (result,) = branch(g, c, [y], double, same, lambda: pytest.fail("no size is needed"))
    assert result.shape == (n,)
    (got,) = interpret(Function("main", (c, y), (result,)), [np.array(True), np.ones(3, np.float32)])
    np.testing.assert_array_equal(got, [2, 2, 2])


def test_branches_of_different_ranks_are_refused() -> None:
    g = GraphBuilder()
    x = param(g, "x", FLOAT, 4)
    first = Function("a", (x,), (x,))
    second = Function("b", (x,), (g.one(constant(np.zeros((2, 2), np.float32))),))
    with pytest.raises(TypeRuleError, match="result 0 of the branches"):
        branch(g, param(g, "c", dtypes.bool_), [x], first, second, lambda: size("m"))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_runs_over_a_sequence(reverse: bool) -> None:
    g = GraphBuilder()
    n = size("n")
    xs, start, scale = param(g, "xs", FLOAT, n, 2), param(g, "start", FLOAT, 2), param(g, "scale", FLOAT)

    def body(g: GraphBuilder, carried: list[Value], items: list[Value], captured: list[Value]) -> tuple[list[Value], list[Value]]:
        total = add(g, carried[0], g.one(Binary("mul"), items[0], captured[0]))
        return [total], [total]

    last, (sums,) = scan(g, "t", n, [start], [xs], [scale], body, reverse)
    main = Function("main", (xs, start, scale), (*last, sums))
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    final, all_sums = interpret(main, [x, np.ones(2, np.float32), np.array(2, np.float32)])
    order = x[::-1] if reverse else x
    want = 1 + np.cumsum(order * 2, axis=0)
    np.testing.assert_array_equal(final, want[-1])
    np.testing.assert_array_equal(all_sums, want[::-1] if reverse else want)


def test_scan_over_a_bound_length_keeps_its_body_closed() -> None:
    g = GraphBuilder()
    count, n = param(g, "count", dtypes.int64), size("n")
    bound = g.one(BindSize(n), count)
    xs, start = param(g, "xs", FLOAT, 8), param(g, "start", FLOAT)
    head = g.one(Slice((const(0),), (n,), (1,)), xs)
    last, _ = scan(g, "t", n, [start], [head], [], lambda g, c, i, _: ([add(g, c[0], i[0])], []), reverse=True)
    loop = last[0].node
    assert loop.binders == (bound,)
    assert isinstance(loop.op, Loop)
    assert bound.node not in set(walk_nodes(loop.op.body.results))
    (total,) = interpret(
        Function("main", (count, xs, start), tuple(last)), [np.array(3), np.arange(8, dtype=np.float32), np.zeros((), np.float32)]
    )
    assert total == 3


def test_conditional_loop_stops_and_counts() -> None:
    """Double until above a limit: the condition is computed in the body."""
    g = GraphBuilder()
    k = size("k")
    x, limit = param(g, "x", FLOAT), param(g, "limit", FLOAT)
    twice = add(g, x, x)
    body = Function("body", (x, limit), (g.one(Binary("less"), twice, limit), twice, twice))
    go, start, top = param(g, "go", dtypes.bool_), param(g, "start", FLOAT), param(g, "top", FLOAT)
    final, steps = g.emit(Loop(body, 1, k, None, True), go, start, top)
    assert steps.shape == (k,)
    main = Function("main", (go, start, top), (final, steps, g.one(SizeValue(k))))
    run = lambda flag: interpret(main, [np.array(flag), np.array(1, np.float32), np.array(10, np.float32)])  # noqa: E731
    final_value, all_steps, count = run(True)
    assert (final_value, count) == (16, 4)
    np.testing.assert_array_equal(all_steps, [2, 4, 8, 16])
    final_value, all_steps, count = run(False)
    assert (final_value, count, all_steps.shape) == (1, 0, (0,))


def test_carried_values_may_grow() -> None:
    g = GraphBuilder()
    n, k = size("n"), size("k")
    x, item = param(g, "x", FLOAT, n), param(g, "item", FLOAT, 1)
    body = Function("body", (x, item), (g.one(Concat(0), x, item),))
    start, one = param(g, "start", FLOAT, 2), param(g, "one", FLOAT, 1)
    (grown,) = g.emit(Loop(body, 1, k, const(3), fresh=(n,)), start, one)
    assert grown.shape == (n,)
    (got,) = interpret(Function("main", (start, one), (grown,)), [np.zeros(2, np.float32), np.ones(1, np.float32)])
    np.testing.assert_array_equal(got, [0, 0, 1, 1, 1])


def test_carried_values_that_change_unannounced_are_refused() -> None:
    g = GraphBuilder()
    x, item = param(g, "x", FLOAT, 2), param(g, "item", FLOAT, 1)
    body = Function("body", (x, item), (g.one(Concat(0), x, item),))
    with pytest.raises(TypeRuleError, match="after one iteration"):
        g.emit(Loop(body, 1, size("k"), const(3)), x, item)


def test_call_runs_a_function_of_the_module() -> None:
    g = GraphBuilder()
    x = param(g, "x", FLOAT, 3)
    double = Function("double", (x,), (add(g, x, x),))
    y = param(g, "y", FLOAT, 3)
    (result,) = g.emit(Call("double", (TensorType(FLOAT, (const(3),)),)), y)
    module = Module({"main": Function("main", (y,), (result,)), "double": double})
    (got,) = interpret(module, [np.ones(3, np.float32)])
    np.testing.assert_array_equal(got, [2, 2, 2])
