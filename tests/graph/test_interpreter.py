"""The graph interpreter: sizes, control flow and checks of results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from tilewright.graph.interpreter import bind_inputs, interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Operator, Origin, Parameter
from tilewright.graph.ops import Attention, Binary, Call, If, Iota, Loop, Reshape, SizeValue, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import TensorType, as_shape, tensor
from tilewright.support.errors import GraphError, InputError, InternalError, TypeRuleError


def unary_function(name: str, fn: str, type_: TensorType) -> Function:
    g = GraphBuilder()
    x = g.one(Parameter("x", type_))
    return Function(name, (x,), (g.one(Unary(fn), x),))


def test_values_are_computed_once_and_in_order():
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (2,))))
    doubled = g.one(Binary("add"), x, x)
    again = g.one(Binary("add"), x, x)
    assert doubled is again
    y = g.one(Binary("mul"), doubled, g.one(Unary("neg"), doubled))
    first, second = interpret(Function("f", (x,), (y, doubled)), [np.array([1, 2], np.float32)])
    assert first.tolist() == [-4, -16]
    assert second.tolist() == [2, 4]


def test_sizes_are_solved_from_affine_dims():
    n, m = size("n", 0), size("m", 0)
    sizes = {}
    types = [tensor(dtypes.float32, (n * 2 + 1, m + n)), tensor(dtypes.float32, (n,))]
    bind_inputs(types, [np.zeros((7, 5), np.float32), np.zeros(3, np.float32)], sizes)
    assert sizes == {n: 3, m: 2}
    sizes = {}
    bind_inputs(types[:1], [np.zeros((7, 5), np.float32)], sizes)
    assert sizes == {n: 3, m: 2}


def test_a_quotient_does_not_say_which_size_it_is_of():
    n = size("n", 0)
    types = [tensor(dtypes.float32, ((n + 3) // 4,)), tensor(dtypes.float32, (n,))]
    for extent in (1, 2, 4, 5):
        sizes = {}
        bind_inputs(types, [np.zeros((extent + 3) // 4, np.float32), np.zeros(extent, np.float32)], sizes)
        assert sizes == {n: extent}
    with pytest.raises(InputError, match="is not determined"):
        bind_inputs(types[:1], [np.zeros(1, np.float32)], {})


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ([np.zeros((2, 3), np.float32)], "1 inputs were given, 2 are needed"),
        ([np.zeros((2, 3), np.float64), np.zeros(2, np.float32)], r"input 0 is float64\[2, 3\]"),
        ([np.zeros(2, np.float32), np.zeros(2, np.float32)], r"must be float32\[n, n \+ 1\]"),
        ([np.zeros((2, 3), np.float32), np.zeros(3, np.float32)], "input 1 has a dim of 3"),
        ([np.zeros((9, 10), np.float32), np.zeros(9, np.float32)], "the size n is 9"),
    ],
)
def test_wrong_inputs_are_explained(arrays, text):
    n = size("n", 1, 8)
    types = [tensor(dtypes.float32, (n, n + 1)), tensor(dtypes.float32, (n,))]
    with pytest.raises(InputError, match=text):
        bind_inputs(types, arrays, {})


def test_sizes_that_inputs_leave_open_are_given():
    n, m = size("n", 1), size("m", 1)
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (n * m,))))
    y = g.one(Reshape(as_shape((n, m))), x)
    function = Function("f", (x,), (y,))
    with pytest.raises(InputError, match="is not determined"):
        interpret(function, [np.zeros(6, np.float32)])
    (result,) = interpret(function, [np.zeros(6, np.float32)], {n: 2})
    assert result.shape == (2, 3)


def test_composites_without_reference_are_opened():
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (size("s", 1), 4))))
    (y,) = interpret(Function("f", (x,), (g.one(Attention(1.0, False), x, x, x),)), [np.ones((3, 4), np.float32)])
    np.testing.assert_allclose(y, np.ones((3, 4)), rtol=1e-6)


def test_branches():
    type_ = tensor(dtypes.float32, (3,))
    g = GraphBuilder()
    c, x = g.one(Parameter("c", tensor(dtypes.bool_, ()))), g.one(Parameter("x", type_))
    y = g.one(If(unary_function("a", "neg", type_), unary_function("b", "abs", type_)), c, x)
    function = Function("f", (c, x), (y,))
    for condition, expected in [(True, [-1, 2, -3]), (False, [1, 2, 3])]:
        (result,) = interpret(function, [np.array(condition), np.array([1, -2, 3], np.float32)])
        assert result.tolist() == expected


def test_loops_see_their_counter():
    counter = size("i", 0)
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.int64, ())))
    total = g.one(Binary("add"), x, g.one(SizeValue(counter)))
    body = Function("body", (x,), (total, total))
    start = g.one(Parameter("start", tensor(dtypes.int64, ())))
    final, partial = g.emit(Loop(body, 1, counter, as_shape((4,))[0]), start)
    last, sums = interpret(Function("f", (start,), (final, partial)), [np.array(10, np.int64)])
    assert int(last) == 16
    assert sums.tolist() == [10, 11, 13, 16]


@pytest.mark.parametrize("inner", [False, True], ids=["the counter", "a size of the body"])
def test_a_loop_stacks_no_values_whose_shapes_differ(inner):
    counter, own = size("i", 0), size("own", 0)
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.int64, ())))
    row = g.one(Iota(counter, dtypes.int64))
    if inner:  # as many as an inner loop has turns until its condition fails
        y = g.one(Parameter("y", tensor(dtypes.int64, ())))
        less = g.one(Binary("less"), y, g.one(constant(3, dtypes.int64)))
        body = Function("inner", (y,), (less, g.one(Binary("add"), y, y), y))
        _, row = g.emit(Loop(body, 1, own, const(9), True), g.one(constant(True, dtypes.bool_)), x)
    start = g.one(Parameter("start", tensor(dtypes.int64, ())))
    with pytest.raises(TypeRuleError, match=f"has the size {'own' if inner else 'i'},"):
        g.emit(Loop(Function("body", (x,), (x, row)), 1, counter, const(4)), start)


def test_recursive_calls():
    """f(x) = x if x <= 1 else x * f(x - 1)."""
    scalar = tensor(dtypes.int64, ())
    g = GraphBuilder()
    x = g.one(Parameter("x", scalar))
    one = g.one(constant(1, dtypes.int64))
    inner = g.one(Call("f", (scalar,)), g.one(Binary("sub"), x, one))
    recurse = Function("recurse", (x,), (g.one(Binary("mul"), x, inner),))
    stop = Function("stop", (x,), (x,))
    g = GraphBuilder()
    n = g.one(Parameter("n", scalar))
    condition = g.one(Binary("less_equal"), n, g.one(constant(1, dtypes.int64)))
    f = Function("f", (n,), (g.one(If(stop, recurse), condition, n),))
    (result,) = interpret(Module({"main": f, "f": f}), [np.array(5, np.int64)])
    assert int(result) == 120
    with pytest.raises(GraphError, match="does not have"):
        interpret(f, [np.array(5, np.int64)])


@dataclass(frozen=True, slots=True, eq=False)
class Liar(Operator):
    """An operator whose reference breaks its type rule."""

    name: ClassVar[str] = "liar"

    def infer(self, inputs):
        return inputs

    def reference(self, inputs):
        return (inputs[0][1:],)


def test_references_are_checked_against_type_rules():
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (size("n", 1),))))
    y = g.one(Liar(), x, origin=Origin("fib_3", "Liar"))
    with pytest.raises(InternalError) as caught:
        interpret(Function("f", (x,), (y,)), [np.zeros(4, np.float32)])
    text = str(caught.value)
    assert "result 0 of liar is float32[3]" in text
    assert "Liar node 'fib_3'" in text
    assert "[4] here" in text


def test_foreign_parameters_are_found():
    g = GraphBuilder()
    x, y = (g.one(Parameter(name, tensor(dtypes.float32, (2,)))) for name in "xy")
    with pytest.raises(GraphError, match="parameter y"):
        interpret(Function("f", (x,), (g.one(Binary("add"), x, y),)), [np.zeros(2, np.float32)])
