"""If, Loop and Scan of ONNX: what is decided at import, what becomes control flow, and results like onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.models import assert_same, imported, operators, parse, run, run_onnxruntime
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret
from tilewright.support.errors import InputError, ModelError, TilewrightError, UnsupportedOperatorError

BRANCHES = """
g (bool c, float[N, 4] x) => (float[M, 4] y) {
    y = If (c) <then_branch = t () => (float[A, 4] a) { a = Concat<axis = 0>(x, x) },
                else_branch = e () => (float[B, 4] b) { b = Relu(x) }>
}
"""


@pytest.mark.parametrize("flag", [True, False])
def test_branches_with_captures_and_different_dims(flag: bool) -> None:
    model = parse(BRANCHES)
    feeds = {"c": np.array(flag), "x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    assert "if" in operators(imported(model))
    assert_same(run(model, feeds), run_onnxruntime(model, feeds))


def test_known_conditions_pick_their_branch() -> None:
    model = parse(
        """
        g (float[2, N] x) => (float[P, Q] y) {
            shape = Shape(x)
            zero = Constant<value_ints = [0]>()
            two = Constant<value_ints = [2]>()
            rows = Gather<axis = 0>(shape, zero)
            flat = Squeeze(zero)
            same = Equal(rows, two)
            c = Squeeze(same)
            y = If (c) <then_branch = t () => (float[A, B] a) { a = Neg(x) },
                        else_branch = e () => (float[C] b) { b = Reshape(x, minus) }>
        }
    """.replace("zero = Constant", "minus = Constant<value_ints = [-1]>()\n            zero = Constant", 1)
    )
    assert operators(imported(model)) == ["unary"]


SQUEEZE = """
g (float[N, K] x) => (float[M] y) {
    shape = Shape(x)
    one = Constant<value_int = 1>()
    axis = Constant<value_ints = [1]>()
    at = Constant<value_int = 1>()
    width = Gather<axis = 0>(shape, at)
    c = Equal(width, one)
    s = If (c) <then_branch = t () => (float[A] a) { a = Squeeze(x, axis) },
                else_branch = e () => (float[B, C] b) { b = Identity(x) }>
    y = Relu(s)
}
"""


def test_exporters_squeeze_asserts_the_dim() -> None:
    model = imported(parse(SQUEEZE))
    x = np.array([[1], [-2], [3]], np.float32)
    (y,) = interpret(model.module, [x])
    np.testing.assert_array_equal(y, [1, 0, 3])
    with pytest.raises(TilewrightError):
        interpret(model.module, [np.zeros((3, 2), np.float32)])


def test_other_branches_of_different_ranks_are_refused() -> None:
    model = parse(
        BRANCHES.replace("b = Relu(x)", "r = Constant<value_ints = [-1]>()\n b = Reshape(x, r)").replace("float[B, 4]", "float[B]")
    )
    with pytest.raises(UnsupportedOperatorError, match="branches of 2 and 1 axes"):
        imported(model)


def test_a_branch_that_cannot_be_right_fails_only_when_taken() -> None:
    """One branch needs another width than the input has: models for two sample rates look like this."""
    model = parse(
        """
        g (int64 rate, float[1, N] x) => (float[1, 1] y) {
            high = Constant<value_int = 16>()
            c = Equal(rate, high)
            y = If (c) <then_branch = t () => (float[1, 1] a) { w16 = ConstantOfShape(s16) a = MatMul(x, w16) },
                        else_branch = e () => (float[1, 1] b) { w8 = ConstantOfShape(s8) b = MatMul(x, w8) }>
        }
    """.replace("high = Constant", "s16 = Constant<value_ints = [6, 1]>()\n s8 = Constant<value_ints = [3, 1]>()\n high = Constant")
    )
    module = import_model(load_model(model), {"N": 6}).module
    (y,) = interpret(module, [np.array(16), np.ones((1, 6), np.float32)])
    assert y.shape == (1, 1)
    with pytest.raises(InputError, match="else_branch_fits"):
        interpret(module, [np.array(8), np.ones((1, 6), np.float32)])


def test_loop_by_count_with_outputs() -> None:
    model = parse("""
        g (int64 trips, float[3] x) => (float[3] final, float[T, 3] steps) {
            yes = Constant<value = bool {1}>()
            final, steps = Loop (trips, yes, x) <body = b (int64 i, bool go, float[3] v) => (bool again, float[3] w, float[3] out) {
                again = Identity(go)
                step = Cast<to = 1>(i)
                moved = Add(v, step)
                w = Add(moved, x)
                out = Neg(w)
            }>
        }
    """)
    assert "loop" in operators(imported(model))
    for trips in (0, 1, 4, -1):
        feeds = {"trips": np.array(trips), "x": np.array([1, 2, 3], np.float32)}
        assert_same(run(model, feeds), run_onnxruntime(model, feeds))


def test_loop_while_a_condition_holds_with_a_growing_value() -> None:
    model = parse("""
        g (float[1] x, float limit) => (float[N] all) {
            most = Constant<value_int = 9223372036854775807>()
            yes = Constant<value = bool {1}>()
            all = Loop (most, yes, x) <body = b (int64 i, bool go, float[M] v) => (bool again, float[P] w) {
                w = Concat<axis = 0>(v, x)
                total = ReduceSum<keepdims = 0>(w)
                again = Less(total, limit)
            }>
        }
    """)
    feeds = {"x": np.array([2], np.float32), "limit": np.array(9, np.float32)}
    assert_same(run(model, feeds), run_onnxruntime(model, feeds))
    assert run(model, feeds)[0].shape == (5,)


def test_nested_control_flow() -> None:
    model = parse("""
        g (int64 n, float[2] x) => (float[2] y) {
            yes = Constant<value = bool {1}>()
            y = Loop (n, yes, x) <body = b (int64 i, bool go, float[2] v) => (bool again, float[2] w) {
                again = Identity(go)
                two = Constant<value_int = 2>()
                rest = Mod(i, two)
                odd = Cast<to = 9>(rest)
                w = If (odd) <then_branch = t () => (float[2] p) { p = Add(v, x) }, else_branch = e () => (float[2] q) { q = Mul(v, x) }>
            }>
        }
    """)
    feeds = {"n": np.array(5), "x": np.array([2, 3], np.float32)}
    assert_same(run(model, feeds), run_onnxruntime(model, feeds))


def test_outputs_that_change_shape_are_refused() -> None:
    model = parse("""
        g (float[1] x) => (float[N] last, float[T, M] all) {
            n = Constant<value_int = 3>()
            yes = Constant<value = bool {1}>()
            last, all = Loop (n, yes, x) <body = b (int64 i, bool go, float[K] v) => (bool again, float[P] w, float[Q] out) {
                again = Identity(go)
                w = Concat<axis = 0>(v, x)
                out = Neg(w)
            }>
        }
    """)
    with pytest.raises(UnsupportedOperatorError, match="changes its shape"):
        imported(model)


def test_carried_values_that_change_their_rank_are_refused() -> None:
    model = parse("""
        g (float x) => (float[1] last) {
            n = Constant<value_int = 3>()
            yes = Constant<value = bool {1}>()
            one = Constant<value_floats = [1.0]>()
            last = Loop (n, yes, x) <body = b (int64 i, bool go, float[1] v) => (bool again, float[1] w) {
                again = Identity(go)
                w = Add(v, one)
            }>
        }
    """)
    with pytest.raises(UnsupportedOperatorError, match="carried value 0 changes from"):
        imported(model)


def test_outputs_as_long_as_the_number_of_the_iteration_are_refused() -> None:
    model = parse("""
        g (float[1] x) => (float[1] last, int64[T, M] all) {
            n = Constant<value_int = 3>()
            yes = Constant<value = bool {1}>()
            zero = Constant<value_int = 0>()
            one = Constant<value_int = 1>()
            last, all = Loop (n, yes, x) <body = b (int64 i, bool go, float[1] v) => (bool again, float[1] w, int64[Q] out) {
                again = Identity(go)
                w = Neg(v)
                out = Range(zero, i, one)
            }>
        }
    """)
    with pytest.raises(UnsupportedOperatorError, match="changes its shape"):
        imported(model)


WRONG_GRAPHS = {
    "a branch that takes a value": (
        "y = If (c) <then_branch = t (float[2] a) => (float[2] b) { b = Neg (x) }, else_branch = e () => (float[2] d) { d = Exp (x) }>",
        "'then_branch' of If takes 1 value",
    ),
    "a branch without a value": (
        "y = If (c) <then_branch = t () => () { b = Neg (x) }, else_branch = e () => (float[2] d) { d = Exp (x) }>",
        "'then_branch' of If gives 0 values",
    ),
    "branches that differ": (
        "y = If (c) <then_branch = t () => (float[2] b, float[2] f) { b = Neg(x) f = Abs(x) }, else_branch = e()=>(float[2] d) {d=Exp(x)}>",
        "the branches of If differ",
    ),
    "a body that takes too little": (
        "y = Loop (n, c, x) <body = b (int64 i, bool g) => (bool h, float[2] z) { h = Identity (g) z = Neg (x) }>",
        "'body' of Loop takes 2 values",
    ),
    "a body that takes too much": (
        "y = Loop (n, c) <body = b (int64 i, bool g, float[2] a) => (bool h, float[2] z) { h = Identity (g) z = Neg (a) }>",
        "'body' of Loop takes 3 values",
    ),
    "a body that gives too little": (
        "y = Loop (n, c, x) <body = b (int64 i, bool g, float[2] a) => (bool h) { h = Identity (g) }>",
        "'body' of Loop gives 1 value",
    ),
    "a body of rows that takes too much": (
        "y = Scan <num_scan_inputs = 1, body = b (float a, float d) => (float z) { z = Neg (a) }> (x)",
        "'body' of Scan takes 2 values",
    ),
}


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("case", WRONG_GRAPHS)
def test_graphs_inside_must_take_and_give_what_the_node_does(case: str, host: bool) -> None:
    text, what = WRONG_GRAPHS[case]
    beside = "s = StringNormalizer (w)" if host else "s = Neg (w)"
    kind = "string[1]" if host else "float[1]"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> m (bool c, int64 n, float[2] x, {kind} w) => (float[k] y, {kind} s) {{ {beside} {text} }}'
    )
    with pytest.raises(ModelError, match=what):
        tw.compile(model, progress="none")


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan(backwards: int, axis: int) -> None:
    model = parse(f"""
        g (float[2] start, float[T, 2] xs) => (float[2] final, float[P, Q] sums) {{
            final, sums = Scan <num_scan_inputs = 1, scan_input_directions = [{backwards}], scan_output_directions = [{backwards}],
                scan_output_axes = [{axis}], body = b (float[2] a, float[2] x) => (float[2] s, float[2] out) {{
                s = Add(a, x)
                out = Mul(s, start)
            }}> (start, xs)
        }}
    """)
    rng = np.random.default_rng(1)
    feeds = {"start": rng.standard_normal(2).astype(np.float32), "xs": rng.standard_normal((4, 2)).astype(np.float32)}
    assert_same(run(model, feeds), run_onnxruntime(model, feeds))
