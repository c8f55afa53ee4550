"""The graph verifier, on graphs that are wrong in one way each."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.node import Function, GraphBuilder, Module, Node, Origin, Parameter, Value
from tilewright.graph.ops import Binary, BindSize, Call, Iota, Loop, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor
from tilewright.support.errors import VerifyError
from tilewright.transform.verify import verify_function, verify_module

F32 = dtypes.float32
X_TYPE = tensor(F32, (4,))


def param(label: str = "x") -> Value:
    return GraphBuilder().one(Parameter(label, X_TYPE))


def test_a_right_function_passes() -> None:
    x = param()
    verify_function(Function("main", (x,), (GraphBuilder().one(Unary("neg"), x),)), "some pass")


def test_a_wrong_type_is_found_with_pass_and_node() -> None:
    x = param()
    node = Node(Unary("neg"), (x,), (tensor(F32, (5,)),), (), Origin("act", "Neg"))
    with pytest.raises(VerifyError, match="after the pass tidy: function main: unary has the type") as caught:
        verify_function(Function("main", (x,), node.values), "tidy")
    assert caught.value.where == "Neg node 'act'"
    assert "its type rule says" in str(caught.value)


def test_inputs_that_do_not_fit_are_found() -> None:
    x, other = param(), GraphBuilder().one(constant(np.zeros(3, np.float32)))
    node = Node(Binary("add"), (x, other), (X_TYPE,))
    with pytest.raises(VerifyError, match="do not broadcast"):
        verify_function(Function("main", (x,), node.values))


def test_a_function_that_is_not_closed_is_found() -> None:
    x, y = param(), param("y")
    with pytest.raises(VerifyError, match="parameter y belongs to another function"):
        verify_function(Function("main", (x,), (GraphBuilder().one(Binary("add"), x, y),)))


def test_parameters_must_be_parameters() -> None:
    c = GraphBuilder().one(constant(1.0, F32))
    with pytest.raises(VerifyError, match="not distinct parameter nodes"):
        verify_function(Function("main", (c,), (c,)))


def test_a_missing_binder_is_found() -> None:
    n = size("n")
    count = GraphBuilder().one(Parameter("count", tensor(dtypes.int64, ())))
    bound = GraphBuilder().one(BindSize(n), count)
    free = GraphBuilder().one(Iota(n, dtypes.int64))
    with pytest.raises(VerifyError, match="mentions the size n without depending on what binds it"):
        verify_function(Function("main", (count,), (bound, free)))


def test_bodies_are_verified() -> None:
    x, inner = param(), param("inner")
    wrong = Node(Unary("neg"), (inner,), (X_TYPE,))
    body = Function("body", (param("other"),), wrong.values)
    (after,) = GraphBuilder().emit(Loop(body, 1, size("t"), const(2)), x)
    with pytest.raises(VerifyError, match="function body: parameter inner belongs to another function"):
        verify_function(Function("main", (x,), (after,)))


def test_modules_have_what_they_call() -> None:
    x = param()
    function = Function("main", (x,), GraphBuilder().emit(Call("other", (X_TYPE,)), x))
    with pytest.raises(VerifyError, match="call of the function 'other', which the module does not have"):
        verify_module(Module({"main": function}))
    with pytest.raises(VerifyError, match="no entry function"):
        verify_module(Module({"other": function}))
    verify_module(Module({"main": function, "other": Function("other", (x,), (x,))}))
