"""Graph text: what it looks like, that text and graph say the same, and what the parser complains about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.graph.node import Function, GraphBuilder, Module, Node, Operator, Origin, Parameter, Value
from tilewright.graph.ops import Binary, BindSize, Cast, Concat, Iota, RandomUniform, Reshape, SizeValue, Transpose, Unary, constant
from tilewright.graph.ops.control import Call, If, Loop
from tilewright.graph.text import constants_of, format_function, format_module
from tilewright.graph.text_parser import parse_function, parse_module
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.types import TensorType, tensor
from tilewright.support.errors import ModelError, ParseError

F32 = dtypes.float32
N = size("N", 1, 64)


def param(label: str, dtype: DType, *shape: Any) -> Value:
    type_ = tensor(dtype, shape)
    return Node(Parameter(label, type_), (), (type_,))[0]


def assert_round_trip(function: Function) -> None:
    assert parse_function(format_function(function), constants_of([function])) is function


def test_golden_module() -> None:
    g = GraphBuilder()
    x = param("input.1", F32, N, 8)
    bias = g.one(constant(np.float32(0.5)))
    weights = g.one(constant(np.ones((4, 8), np.float32)))
    shifted = g.one(Binary("add"), x, bias, origin=Origin("shift", "Add", "model.onnx"))
    joined = g.one(Concat(0), shifted, weights)
    module = Module({"main": Function("main", (x,), (joined, shifted))}, "main", ("input.1",), ("joined", "shifted"))
    digest = next(iter(constants_of(module.functions.values())))
    assert format_module(module, origins=True) == (
        "N = size(lo=1, hi=64)\n"
        "\n"
        'def main(input_1: In[float32[N, 8], "input.1"]):\n'
        "    v0 = constant(0.5, float32[()])  # float32[()]\n"
        "    v1 = binary(input_1, v0, fn=\"add\")  # float32[N, 8] -- Add node 'shift' (model.onnx)\n"
        f'    v2 = constant("{digest}", float32[4, 8])  # float32[4, 8]\n'
        "    v3 = concat(v1, v2, axis=0)  # float32[N + 4, 8]\n"
        "    return v3, v1\n"
        "\n"
        'module(input_names=("input.1",), output_names=("joined", "shifted"))\n'
    )
    again = parse_module(format_module(module, origins=True), constants_of(module.functions.values()))
    assert again == module
    assert again.main is module.main
    assert repr(module.main) == format_function(module.main)


def test_control_flow_prints_local_functions() -> None:
    g = GraphBuilder()
    x, go = param("x", F32, N), param("go", dtypes.bool_)
    inner = param("x", F32, N)
    counter = size("t")
    body = Function("body", (inner,), (GraphBuilder().one(Binary("mul"), inner, inner),))
    (after,) = g.emit(Loop(body, 1, counter, const(3)), x)
    other = Function("twice as much", (inner,), (GraphBuilder().one(Binary("add"), inner, inner),))
    (chosen,) = g.emit(If(body, other), go, after)
    main = Function("main", (x, go), (chosen,))
    assert format_function(main) == (
        "N = size(lo=1, hi=64)\n"
        "\n"
        "def main(x: float32[N], go: bool[()]):\n"
        "    def body(x: float32[N]):\n"
        '        v0 = binary(x, x, fn="mul")  # float32[N]\n'
        "        return v0\n"
        "    v0 = loop(x, body=body, carried=1, counter=t, trip=3)  # float32[N]\n"
        '    @name("twice as much")\n'
        "    def twice_as_much(x: float32[N]):\n"
        '        v0 = binary(x, x, fn="add")  # float32[N]\n'
        "        return v0\n"
        "    v1 = if_(go, v0, then_branch=body, else_branch=twice_as_much)  # float32[N]\n"
        "    return v1\n"
    )
    assert_round_trip(main)


def test_binders_that_do_not_follow_are_written() -> None:
    g = GraphBuilder()
    count = param("count", dtypes.int64)
    m = size("m")
    bound = g.one(BindSize(m), count)
    ramp = g.one(Iota(m, F32))
    main = Function("main", (count,), (ramp, bound))
    assert "binders" not in format_function(main)
    assert_round_trip(main)
    loose = Node(Iota(m, F32), (), ramp.node.types)[0]
    unbound = Function("main", (count,), (bound, loose))
    assert "iota(length=m, dtype=float32, binders=())" in format_function(unbound)
    assert_round_trip(unbound)
    explicit = Node(Unary("neg"), (ramp,), ramp.node.types, (bound,))[0]
    strange = Function("main", (count,), (explicit,))
    assert 'fn="neg", binders=(v0,))' in format_function(strange)
    assert_round_trip(strange)


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2, 3]), np.array(True), np.array([], np.float32), np.array([np.nan, np.inf, -0.0, 0.1], np.float32),
        np.array([[1.5, -2.0]], ml_dtypes.bfloat16), np.array([-8, 7], ml_dtypes.int4), np.array(["a", 'b"\n'], object),
        np.array([1 + 2j], np.complex64), np.array([2**64 - 1], np.uint64), np.array([0x7FC00001], np.uint32).view(np.float32),
        np.arange(100), np.zeros((3, 0, 5)), np.array([0.1, 448.0], ml_dtypes.float8_e4m3fn), np.arange(10).astype(np.float16),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)  # fmt: skip
def test_constants(array: Any) -> None:
    main = Function("main", (), (GraphBuilder().one(constant(array)),))
    assert_round_trip(main)
    assert bool(constants_of([main])) == (array.size > 8 or "sha256" in format_function(main))


def test_names_that_are_no_identifiers_or_clash() -> None:
    g = GraphBuilder()
    strange, plain = size("batch size"), size("batch_size")
    low, high = size("K", 0), size("K", 5)
    x, y = param("v0", F32, strange, low), param("def", F32, plain, high)
    main = Function("main graph", (x, y), (g.one(Unary("exp"), x), g.one(Unary("exp"), y), g.one(SizeValue(low + high * 2))))
    assert_round_trip(main)


def test_module_with_calls_keys_and_entry() -> None:
    x = param("x", F32, N)
    helper = Function("helper", (x,), (GraphBuilder().one(Unary("exp"), x),))
    main = Function("main", (x,), GraphBuilder().emit(Call("the helper", (x.type,)), x))
    module = Module({"the helper": helper, "start": main}, "start", ("x",), ())
    assert parse_module(format_module(module)) == module
    assert parse_module("def main(x: float32[3]):\n    return x\n").main.results[0].type is tensor(F32, (3,))


@dataclass(frozen=True, slots=True, eq=False)
class Everything(Operator):
    """An operator with a field of each type."""

    name: ClassVar[str] = "everything"
    text: str
    number: float
    maybe: int | None
    nested: tuple[tuple[int, int], ...]
    pair: tuple[DType, Expr]
    types: tuple[TensorType, ...]
    mode: Literal["a", "b"] = "a"
    either: int | float = 1
    flag: bool = False
    function: Function | None = None

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return self.types


@given(
    st.builds(
        Everything, st.text(), st.floats(allow_nan=False), st.none() | st.integers(),
        st.lists(st.tuples(st.integers(), st.integers())).map(tuple),
        st.tuples(st.sampled_from(dtypes.ALL), st.sampled_from([const(3), N, N * 2 + 1, -N])),
        st.lists(st.sampled_from([tensor(F32, (N, 2)), tensor(dtypes.bool_, ())])).map(tuple),
        st.sampled_from(["a", "b"]), st.integers() | st.floats(allow_nan=False), st.booleans(),
    )
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_fields_of_every_type(op: Everything) -> None:
    x = param("x", F32, N)
    function = Function("main", (x,), GraphBuilder().emit(op, x, x) or (x,))
    text = format_function(function)
    assert parse_function(text, {}, {"everything": Everything}) is function


@st.composite
def functions(draw: Any, depth: int = 2) -> Function:
    """Random functions over values of shape [N] and [N, 2] and several dtypes."""
    g = GraphBuilder()
    params = [param(draw(st.sampled_from(["x", "y", "v1", "in.0"])) + str(i), F32, N) for i in range(draw(st.integers(1, 3)))]
    pool = list(params)
    for _ in range(draw(st.integers(0, 8))):
        kinds = ["unary", "binary", "constant", "cast", "random", "reshape"] + (["loop", "if"] if depth else [])
        kind, x = draw(st.sampled_from(kinds)), draw(st.sampled_from(pool))
        if kind == "unary":
            pool.append(g.one(Unary(draw(st.sampled_from(["exp", "tanh"]))), x))
        elif kind == "binary":
            pool.append(g.one(Binary(draw(st.sampled_from(["add", "mul"]))), x, draw(st.sampled_from(pool))))
        elif kind == "constant":
            values = draw(st.lists(st.floats(width=32), min_size=1, max_size=12))
            pool.append(g.one(Binary("add"), x, g.one(constant(np.float32(values[0])))))
            g.one(constant(np.array(values, np.float32)))
        elif kind == "cast":
            pool.append(g.one(Cast(F32), g.one(Cast(draw(st.sampled_from([dtypes.float64, dtypes.int32]))), x)))
        elif kind == "random":
            pool.append(g.one(RandomUniform((N,), F32, 0.0, 1.0, draw(st.integers(0, 3)))))
        elif kind == "reshape":
            pool.append(g.one(Reshape((N,)), g.one(Transpose((1, 0)), g.one(Reshape((N, const(1))), x))))
        elif kind == "loop":
            body = draw(functions(depth=depth - 1))
            results = (body.results * len(body.params))[: len(body.params)]
            loop = Loop(Function("body", body.params, results), len(results), size(f"t{depth}"), const(3))
            pool += g.emit(loop, *(draw(st.sampled_from(pool)) for _ in body.params))
        else:
            body = draw(functions(depth=depth - 1))
            other = Function("other", body.params, body.results[::-1])
            go = g.one(constant(np.array(True)))
            pool += g.emit(If(body, other), go, *(draw(st.sampled_from(pool)) for _ in body.params))
    return Function(
        draw(st.sampled_from(["main", "f", "a b"])), tuple(params), tuple(draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3)))
    )


@given(functions())
@settings(max_examples=60, deadline=None)
def test_parsing_gives_the_same_function_back(function: Function) -> None:
    assert_round_trip(function)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("    v0 = nothing(x)", "there is no operator `nothing`"),
        ("    v0 = unary(z, fn='exp')", "`z` is not a value here"),
        ("    v0 = unary(x)", "unary needs fn"),
        ("    v0 = unary(x, fn=3)", "`3` is no str"),
        ("    v0 = unary(x, fn='exp', fast=True)", "unary has no field `fast`"),
        ("    v0 = unary(x, fn='exp')  # float32[N, 3]", "the result of unary is annotated float32[N, 3]"),
        ("    v0, v1 = unary(x, fn='exp')", "the operator gives 1 results, 2 are named"),
        ("    x = unary(x, fn='exp')", "`x` is already defined here"),
        ("    v0 = constant('sha256:00', float32[9])", "the constant sha256:00 is not among those given"),
        ("    v0 = constant([1, 2], float32[9])", "`[1, 2]` are not the elements of float32[9]"),
        ("    v0 = transpose(x, perm=0)", "`0` is no tuple"),
        ("    if x: pass", "`if x:` has no meaning in a function"),
    ],
)
def test_errors_point_at_the_line(line: str, what: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse_module(f"def main(x: float32[N]):\n{line}\n    return v0\n")
    assert what in raised.value.what
    assert (raised.value.where or "").startswith("line 2, column ")


def test_golden_error() -> None:
    with pytest.raises(ParseError) as raised:
        parse_module("def main(x: float32[N]):\n    y = unary(x, fn=exp)\n    return y\n")
    assert str(raised.value) == (
        "`exp` is no str\n"
        "  where: line 2, column 21\n"
        "         y = unary(x, fn=exp)\n"
        "                         ^\n"
        "  docs:  docs/errors.md#parse-error"
    )


def test_type_rules_speak_of_the_line() -> None:
    with pytest.raises(ModelError) as raised:
        parse_module("def main(x: float32[3], y: int32[3]):\n    z = binary(x, y, fn='add')\n    return z\n")
    assert raised.value.where == "line 2: binary(x, y, fn='add')"
