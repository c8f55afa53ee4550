"""From ONNX graphs to Tilewright graphs: names, functions, symbolic dims, chains of shape arithmetic, errors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.frontend.onnx.models import assert_same, imported, operators, parse, run, run_onnxruntime
from tilewright.frontend.onnx.importer import DimRange, import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.ir.expr import size
from tilewright.support.errors import GraphError, ModelError, TypeRuleError, UnsupportedDtypeError, UnsupportedOperatorError

SHAPE_OPERATORS = {"gather", "concat", "size_value", "bind_size", "slice", "cast"}


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return generator().standard_normal(shape).astype(np.float32)


def test_a_small_model_as_text() -> None:
    model = imported(
        parse("""
        m (float[n, 4] x) => (float[n, 3] y)
        <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>
        { h = MatMul(x, w)  y = Relu(h) }
        """)
    )
    assert operators(model) == ["contract", "binary"]
    text = repr(model.module.main)
    assert "float32[n, 4]" in text
    assert "XY,YZ->XZ" in text
    assert model.module.input_names == ("x",)
    assert model.module.output_names == ("y",)


def test_dims_are_shared_by_name() -> None:
    module = imported(
        parse("""
        m (float[n, m] a, float[m, n] b, float[?, ?] c) => (float[n, n] y, float[p, q] z)
        { y = MatMul(a, b) z = Neg(c) }
    """)
    ).module
    a, b, c = (param.type.shape for param in module.main.params)
    assert a == (b[1], b[0])
    assert c[0] is not c[1]
    assert module.main.results[0].shape == (a[0], a[0])


def test_dims_are_bounded_and_fixed() -> None:
    model = load_model(parse("m (float[batch, length] x) => (float[batch, length] y) { y = Neg(x) }"))
    module = import_model(model, {"batch": 4, "length": DimRange(1, 512, 8)}).module
    batch, length = module.main.params[0].type.shape
    assert batch.value == 4
    assert length is size("length", 1, 512, 8)


def test_declared_dims_must_exist() -> None:
    model = load_model(parse("m (float[batch, 3] x) => (float[batch, 3] y) { y = Neg(x) }"))
    with pytest.raises(ModelError, match="no input has a dim named 'bach'") as caught:
        import_model(model, {"bach": 4})
    assert "the symbolic dims are: 'batch'" in str(caught.value)


def test_old_operator_sets() -> None:
    header = '<ir_version: 3, opset_import: ["" : %d]> m (float[3] x) => (float[3] y)'
    with pytest.raises(UnsupportedOperatorError, match="Add of operator set 5 is not supported"):
        imported(parse(header % 5 + "{ y = Add(x, x) }"))
    assert operators(imported(parse(header % 6 + "{ y = Neg(x) }"))) == ["unary"]


@pytest.mark.parametrize(("axis", "shape"), [(None, (4,)), (1, (3,)), (1, (3, 4)), (0, (2, 3)), (0, (2,))])
def test_operator_set_6_broadcasts_by_attribute(axis: int | None, shape: tuple[int, ...]) -> None:
    given = "" if axis is None else f", axis = {axis}"
    dims = ", ".join(map(str, shape))
    model = parse(
        f'<ir_version: 3, opset_import: ["" : 6]> m (float[2, 3, 4] x, float[{dims}] y) => (float[2, 3, 4] z)'
        f"{{ z = Sub <broadcast = 1{given}> (x, y) }}"
    )
    x, y = floats(2, 3, 4), floats(*shape)
    after = 0 if axis is None else 3 - axis - len(shape)
    assert_same(run(model, {"x": x, "y": y}), [x - y.reshape(*shape, *[1] * after)])


def test_operator_set_6_trains_nothing() -> None:
    text = '<ir_version: 3, opset_import: ["" : 6]> m (float[2] x) => (float[2] y) { y = Dropout%s (x) }'
    assert run(parse(text % " <is_test = 1>"), {"x": floats(2)})[0].shape == (2,)
    with pytest.raises(UnsupportedOperatorError, match="training mode"):
        imported(parse(text % ""))


def test_unfit_dim_names_become_identifiers() -> None:
    model = parse("m (float[n] x) => (float[n] y) { y = Neg(x) }")
    names = ["batch size", "2nd", "µ", "a.b/c"]
    for name in names:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
        (dim,) = imported(model).module.main.params[0].type.shape
        assert dim.name.isidentifier()


CHAINS = {
    "heads": """
        m (float[b, s, 24] x) => (float[b, 4, s, 6] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] h = {4}, int64[1] d = {6}>
        { shape = Shape(x)
          n0 = Gather<axis=0>(shape, zero)   n1 = Gather<axis=0>(shape, one)
          u0 = Unsqueeze(n0, axis)           u1 = Unsqueeze(n1, axis)
          target = Concat<axis=0>(u0, u1, h, d)
          r = Reshape(x, target)             y = Transpose<perm=[0, 2, 1, 3]>(r) }
    """,
    "merge": """
        m (float[b, s, 4, 6] x) => (float[b, s, 24] y)
        <int64[1] axis = {0}, int64[1] start = {0}, int64[1] stop = {2}, int64[1] free = {-1}>
        { shape = Shape(x)  first = Slice(shape, start, stop, axis)
          target = Concat<axis=0>(first, free)  y = Reshape(x, target) }
    """,
    "expand": """
        m (float[b, 1] x, float[b, s] like) => (float[b, s] y)
        { shape = Shape(like)  y = Expand(x, shape) }
    """,
    "expand_where": """
        m (float[b, 1] x, float[b, s] like) => (float[b, s] y)
        <int64[2] minus = {-1, -1}, int64 one = {1}>
        { shape = Shape(like)  rank = Shape(shape)  ones = ConstantOfShape<value = int64[1] {1}>(rank)
          is = Equal(shape, minus)  fixed = Where(is, ones, shape)  y = Expand(x, fixed) }
    """,
    "zeros": """
        m (float[b, s] x) => (float[b, s, 3] y)
        <int64[1] three = {3}>
        { shape = Shape(x)  target = Concat<axis=0>(shape, three)
          y = ConstantOfShape<value = float[1] {7}>(target) }
    """,
    "flatten": """
        m (float[b, c, h, w] x) => (float[b, n] y)
        <int64 zero = {0}, int64[1] axis = {0}, int64[1] free = {-1}>
        { shape = Shape(x)  b = Gather(shape, zero)  u = Unsqueeze(b, axis)
          target = Concat<axis=0>(u, free)  y = Reshape(x, target) }
    """,
    "window": """
        m (float[b, s] x, float[b, t] past) => (float[b, n] y)
        <int64[1] axis = {1}>
        { all = Concat<axis=1>(past, x)
          n = Shape<start=1, end=2>(all)  m = Shape<start=1, end=2>(x)  start = Sub(n, m)
          y = Slice(all, start, n, axis) }
    """,
    "arithmetic": """
        m (float[b, s, 8] x) => (float[k, 4] y)
        <int64 two = {2}, int64 four = {4}, int64[1] axis = {0}>
        { shape = Shape(x)  whole = ReduceProd<keepdims=0>(shape)
          half = Div(whole, two)  back = Mul(half, two)  rows = Div(back, four)
          u = Unsqueeze(rows, axis)  v = Unsqueeze(four, axis)  target = Concat<axis=0>(u, v)  y = Reshape(x, target) }
    """,
    "split_sizes": """
        m (float[n, 6] x) => (float[n, 2] y, float[n, 4] z)
        <int64[2] parts = {2, 4}>
        { y, z = Split<axis=1>(x, parts) }
    """,
}


@pytest.mark.parametrize("name", CHAINS)
def test_shape_arithmetic_becomes_dims(name: str) -> None:
    model = parse(CHAINS[name])
    kinds = operators(imported(model))
    allowed = {"window": {"concat", "slice"}, "split_sizes": {"slice"}}.get(name, set())
    assert not (SHAPE_OPERATORS - allowed).intersection(kinds)
    for b, s, t in ((2, 3, 5), (1, 1, 0), (4, 7, 2)):
        sizes = {"b": b, "s": s, "t": t, "c": 3, "h": s, "w": 2, "n": b}
        feeds = {}
        for info in model.graph.input:
            shape = [d.dim_value or sizes[d.dim_param] for d in info.type.tensor_type.shape.dim]
            feeds[info.name] = floats(*shape)
        assert_same(run(model, feeds), run_onnxruntime(model, feeds))


def test_results_have_simple_dims() -> None:
    wanted = {"heads": "[b, 4, s, 6]", "merge": "[b, s, 24]", "expand": "[b, s]", "expand_where": "[b, s]", "window": "[b, s]"}
    for name, shape in wanted.items():
        (result,) = imported(parse(CHAINS[name])).module.main.results
        assert repr(result.type) == f"float32{shape}"


def test_sizes_computed_from_data_are_bound() -> None:
    model = parse("""
        m (float[n] x, int64 count) => (float[k] y)
        <int64[1] axis = {0}, int64[1] zero = {0}>
        { stop = Unsqueeze(count, axis)  y = Slice(x, zero, stop, axis) }
    """)
    assert "bind_size" in operators(imported(model))
    for count in (0, 2, 9, -1, -9):
        feeds = {"x": floats(5), "count": np.array(count)}
        assert_same(run(model, feeds), run_onnxruntime(model, feeds))


def test_range_with_run_time_limits() -> None:
    model = parse("m (int64 a, int64 b, int64 d) => (int64[k] y) { y = Range(a, b, d) }")
    for limits in ((0, 5, 1), (0, 5, 2), (5, 0, -2), (0, -3, 1), (2, 2, 1)):
        feeds = {name: np.array(number) for name, number in zip("abd", limits, strict=True)}
        assert_same(run(model, feeds), run_onnxruntime(model, feeds))


def test_reshape_to_a_run_time_shape() -> None:
    model = parse("m (float[a, b] x, int64[3] shape) => (float[p, q, r] y) { y = Reshape(x, shape) }")
    for shape in ((2, 3, 4), (0, 2, 2), (-1, 2, 3), (6, 0, 1), (1, -1, 1)):
        feeds = {"x": floats(6, 4), "shape": np.array(shape)}
        assert_same(run(model, feeds), run_onnxruntime(model, feeds))


def test_functions_are_imported_in_place() -> None:
    model = parse("""
        <ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
        m (float[n] x) => (float[n] y, float[n] z)
        { y = mine.twice<factor = 3.0>(x)  z = mine.twice(x) }
        <domain: "mine", opset_import: ["" : 18]>
        twice <factor: float = 2.0> (a) => (b)
        { c = Constant<value_float: float = @factor>()  d = Mul(a, c)  b = Identity(d) }
    """)
    feeds = {"x": floats(4)}
    got = run(model, feeds)
    assert_same(got, [feeds["x"] * np.float32(3), feeds["x"] * np.float32(2)])
    (value, _) = imported(model).module.main.results
    assert str(value.node.origin) == "Mul node 'y/d'"


def test_a_function_has_its_own_operator_set() -> None:
    model = parse("""
        <ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
        m (float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] z)
        { y = mine.old(x)  z = Softmax<axis = 1>(x) }
        <domain: "mine", opset_import: ["" : 11]>
        old (a) => (b) { b = Softmax<axis = 1>(a) }
    """)
    x = floats(2, 3, 4)
    together, apart = run(model, {"x": x})
    np.testing.assert_allclose(together.reshape(2, -1).sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(apart.sum(axis=1), 1, rtol=1e-5)


def test_operators_without_importer_go_by_the_definition_of_onnx() -> None:
    model = parse('<ir_version: 8, opset_import: ["" : 17]> m () => (float[8] y) <int64 n = {8}> { y = HannWindow(n) }')
    (got,) = run(model, {})
    np.testing.assert_allclose(got, 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(8) / 8), atol=1e-6)


def test_initializers_that_are_inputs_too_are_constants() -> None:
    model = parse("m (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    module = imported(model).module
    assert module.input_names == ("x",)


def test_origins_name_the_nodes() -> None:
    model = parse("m (float[n] x) => (float[n] y) { h = Exp(x)  y = Neg(h) }")
    model.graph.node[0].name = "layer1/exp"
    (result,) = imported(model).module.main.results
    assert str(result.node.origin) == "Neg node 'y'"
    assert str(result.node.inputs[0].node.origin) == "Exp node 'layer1/exp'"


def test_unsupported_operators_are_all_listed() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["" : 18, "other": 1]>
        m (float[n] x) => (float[n] y)
        { a = other.One(x) b = other.Two(a) c = other.Two(x) y = Neg(c) }
        """
    )
    with pytest.raises(UnsupportedOperatorError, match="operator other::One is not supported") as caught:
        imported(model)
    assert caught.value.where == "One node 'a'"
    found = import_model(load_model(model), keep_going=True)
    assert [problem.where for problem in found.problems] == ["One node 'a'", "Two node 'c'"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m (float[n] x) => (float[n] y) { y = Neg(z) }", "'z' is used before it is defined"),
        ("m (float[n] x) => (float[n] y) { y = Neg(h)  h = Neg(x) }", "Neg node 'h' defines it and comes later"),
        (
            "m (float[n] x) => (float[n] y) { a = Add(x, c) b = Exp(a) c = Neg(b) y = Neg(c) }",
            "the nodes form a cycle: Neg node 'c' -> Add node 'a' -> Exp node 'b' -> Neg node 'c'",
        ),
        ("m (float[n] x) => (float[n] y) { y = Add(x, y) }", "the nodes form a cycle: Add node 'y' -> Add node 'y'"),
        ("m (float[n] x) => (float[n] y) { z = Neg(x) }", "output 'y' is not defined"),
        ("m (float[n] x) => (float[n] y) { y = Neg(x)  y = Exp(x) }", "'y' is defined twice"),
    ],
)
def test_broken_graphs(text: str, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        imported(parse(text))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m (float[3] x) => (float[4] y) <float[4] w = {1,2,3,4}> { y = Add(x, w) }", "do not broadcast"),
        ("m (float[2,3] x) => (float[2,3] y) { y = Transpose<perm = [0, 0]>(x) }", "permutation"),
        ("m (float[2,3] x) => (float[2,3] y) { y = Softmax<axis = 2>(x) }", "axis 2 is out of range"),
        ("m (float[2,3] x) => (float[5] y) <int64[1] s = {5}> { y = Reshape(x, s) }", "numbers of elements differ"),
        ("m (float[2,3] x) => (float[n] y) { y = Add(x) }", "Add has 1 input"),
        ("m (float[2,3] x, float[4,5] w) => (float[2,5] y) { y = MatMul(x, w) }", "sizes 3 and 4 do not match"),
    ],
)
def test_wrong_nodes_are_named(text: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        imported(parse(text))
    assert message in str(caught.value)
    assert "node 'y'" in str(caught.value)


def test_what_comes_too_early_is_listed_too() -> None:
    model = parse("m (float[n] x) => (float[n] y) { y = Neg(h)  h = Neg(x) }")
    (problem,) = import_model(load_model(model), keep_going=True).problems
    assert problem.where == "Neg node 'y'"


def test_names_that_two_have() -> None:
    model = parse("m (float[n] x, float[n] z) => (float[n] y) <float[1] v = {1}, float[1] w = {2}> { a = Add(x, v)  y = Add(a, w) }")
    model.graph.input[1].name = "x"
    with pytest.raises(GraphError, match="two inputs of the model are called 'x'"):
        imported(model)
    model.graph.input[1].name = "z"
    model.graph.initializer[1].name = "v"
    with pytest.raises(GraphError, match="two initializers of the model are called 'v'"):
        imported(model)


def test_outputs_declared_with_another_dtype() -> None:
    with pytest.raises(TypeRuleError, match="the output 'y' is declared to be float64, and is float32"):
        imported(parse("m (float[n] x) => (double[n] y) { y = Neg(x) }"))


def test_operator_sets_of_the_future() -> None:
    model = parse("m (float[n] x) => (float[n] y) { y = Neg(x) }")
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(UnsupportedOperatorError, match="is not supported"):
        imported(model)


def test_ranges_past_all_bounds() -> None:
    for numbers in ("{0}, float b = {1e30}, float c = {1}", "{0}, float b = {inf}, float c = {1}"):
        with pytest.raises(ModelError, match="more elements than memory"):
            imported(parse(f"m () => (float[n] y) <float a = {numbers}> {{ y = Range(a, b, c) }}"))


def test_inputs_that_cannot_be_compiled() -> None:
    model = parse("m (float[n] x) => (float[n] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="input 'x' has no shape"):
        imported(model)
    model.graph.input[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, [2])))
    with pytest.raises(ModelError, match="input 'x' is a sequence_type"):
        imported(model)
    model.graph.input[0].type.CopyFrom(onnx.helper.make_tensor_type_proto(0, [2]))
    with pytest.raises(UnsupportedDtypeError, match="UNDEFINED"):
        imported(model)


def test_an_attribute_that_the_operator_does_not_have_is_refused() -> None:
    model = parse("g (float[2, 3] x) => (float[2, 3] y) { y = Softmax<axes = [0]>(x) }")
    with pytest.raises(ModelError, match="Softmax has no attribute 'axes'") as caught:
        imported(model)
    assert caught.value.where == "Softmax node 'y'"
    assert "axis" in str(caught.value.why)
