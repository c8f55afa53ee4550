"""Sizes and positions that a model computes: what fits runs, at the ends of int64 too; what does not is refused by the node's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.models import assert_like_onnxruntime, parse, run, single
from tilewright.runtime.executable import Executable
from tilewright.support.errors import InputError, ModelError, ShapeError

F32, I64 = np.float32, np.int64
LARGEST, SMALLEST = np.iinfo(I64).max, np.iinfo(I64).min
TOP_K = "g (float[n, m] x, int64[1] k) => (float[n, a] y) { y, i = TopK(x, k) }"
COMPRESS = "g (float[n, m] x, bool[k] c) => (float[p, m] y) { y = Compress<axis = 0>(x, c) }"
FLAT_COMPRESS = "g (float[n, m] x, bool[k] c) => (float[p] y) { y = Compress(x, c) }"
EXPAND = "g (float[n, 1] x, int64[2] s) => (float[a, b] y) { y = Expand(x, s) }"
SPLIT = "g (float[n, m] x, int64[2] s) => (float[a, m] y, float[b, m] z) { y, z = Split(x, s) }"
RANGE = "g (int64 a, int64 b, int64 d) => (int64[n] y) { y = Range(a, b, d) }"
FLOAT_RANGE = "g (float a, float b, float d) => (float[n] y) { y = Range(a, b, d) }"


def compiled(text: str) -> Executable:
    exe = tw.compile(parse(text), progress="none", opt_level=1)
    assert isinstance(exe, Executable)
    return exe


def matrix(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=F32).reshape(shape)


@pytest.mark.parametrize(
    ("text", "fitting", "others"),
    [
        (TOP_K, [[matrix(2, 3), np.array([3])], [matrix(2, 3), np.array([0])]], [[matrix(2, 3), np.array([4])]]),
        (COMPRESS, [[matrix(3, 2), np.ones(2, bool)]], [[matrix(3, 2), np.ones(4, bool)]]),
        (FLAT_COMPRESS, [[matrix(3, 2), np.ones(6, bool)]], [[matrix(3, 2), np.ones(7, bool)]]),
        (
            EXPAND,
            [[matrix(3, 1), np.array([1, 4])], [matrix(3, 1), np.array([3, 0])]],
            [[matrix(3, 1), np.array(s)] for s in ([2, 4], [-3, 4])],
        ),
        (SPLIT, [[matrix(5, 2), np.array([2, 3])]], [[matrix(5, 2), np.array(s)] for s in ([4, 4], [2, 2])]),
        (RANGE, [[I64(9), I64(0), I64(-4)]], [[I64(0), I64(9), I64(0)]]),
        (FLOAT_RANGE, [[F32(9), F32(0), F32(-4)]], [[F32(0), F32(9), F32(step)] for step in (0, np.nan)]),
    ],
    ids=["top_k", "compress", "flat_compress", "expand", "split", "range", "float_range"],
)
def test_sizes_that_do_not_fit_are_refused(text: str, fitting: list[list[Any]], others: list[list[Any]]) -> None:
    model, exe = parse(text), compiled(text)
    names = [entry.name for entry in model.graph.input]
    for inputs in fitting:
        arrays = [np.asarray(value) for value in inputs]
        for result, wanted in zip(
            exe.run(dict(zip(names, arrays, strict=True))).values(), run(model, dict(zip(names, arrays, strict=True))), strict=True
        ):
            np.testing.assert_array_equal(result, wanted)
    for inputs in others:
        with pytest.raises(ShapeError, match="node 'y'"):
            exe(*[np.asarray(value) for value in inputs])


@pytest.mark.parametrize(
    "text",
    [
        "g (float[5] x) => (float[a] y, float[b] z) { s = Constant<value_ints = [2, 2]>() \n y, z = Split(x, s) }",
        "g (float[3] x) => (float[5] y) { k = Constant<value_ints = [5]>() \n y, i = TopK(x, k) }",
        "g (float[3] x, bool[5] c) => (float[p] y) { y = Compress<axis = 0>(x, c) }",
    ],
)
def test_known_sizes_that_do_not_fit_are_refused_when_compiling(text: str) -> None:
    with pytest.raises(ModelError, match="axis") as caught:
        tw.compile(parse(text), progress="none")
    assert "node 'y'" in str(caught.value)


EVEN = {13: "Split(x)", 18: "Split<num_outputs = 4>(x)"}


@pytest.mark.parametrize("version", [13, 18])
def test_parts_that_would_be_negative_are_refused_when_compiling(version: int) -> None:
    header = f'<ir_version: 8, opset_import: ["" : {version}]>'
    even = f"g (float[5] x) => (float[a] y, float[b] z, float[c] u, float[d] v) {{ y, z, u, v = {EVEN[version]} }}"
    with pytest.raises(ModelError, match="axis 0 has 5 elements, which are not enough for 4 parts") as caught:
        tw.compile(parse(header + even), progress="none")
    assert "node 'y'" in str(caught.value)
    assert "3 * 2 is 6" in str(caught.value)
    given = "g (float[5] x) => (float[a] y, float[b] z, float[c] u) { s = Constant<value_ints = [3, -1, 3]>() \n y, z, u = Split(x, s) }"
    with pytest.raises(ModelError, match=r"Split has a part of -1 elements: its sizes are \[3, -1, 3\]"):
        tw.compile(parse(header + given), progress="none")


@pytest.mark.parametrize(
    ("split", "last", "refused"),
    [
        ("a, b, c, z = Split<num_outputs = 4>(x)", {0: 0, 3: 0, 4: 1, 6: 0, 7: 1, 8: 2, 9: 0, 10: 1}, (1, 2, 5)),
        ("a, b, z = Split<num_outputs = 3>(x)", {0: 0, 2: 0, 3: 1, 4: 0, 5: 1}, (1,)),
        ("a, z = Split<num_outputs = 2>(x)", {0: 0, 1: 0, 2: 1, 3: 1}, ()),
        ("h = Shape(x) \n d = Sub(h, three) \n s = Concat<axis = 0>(three, d) \n a, z = Split(x, s)", {3: 0, 4: 1, 8: 5}, (0, 1, 2)),
    ],
)
def test_parts_that_are_no_results_must_not_be_negative(split: str, last: dict[int, int], refused: tuple[int, ...]) -> None:
    exe = compiled(f"""g (float[n] x) => (float[k] w) {{
        three = Constant<value_ints = [3]>()
        {split}
        w = Concat<axis = 0>(z, x)
    }}""")
    for n, size in last.items():
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(exe(x), np.concatenate([x[n - size :], x]))
    for n in refused:
        with pytest.raises((ShapeError, InputError), match=r"would be -|would have shape \[-"):
            exe(np.arange(n, dtype=np.float32))


BRANCH = """p = Constant<value_ints = [-3, 0]>()
    y = If(c) <then_branch = g1 () => (float[a] t) { t = Pad(x, p) }, else_branch = g2 () => (float[b] e) { e = Identity(x) }>"""


@pytest.mark.parametrize(
    ("body", "least", "named"),
    [
        ("y = ConstantOfShape<value = float[1] {1.0}>(d)", 3, "ConstantOfShape node 'y'"),
        ("y, i = TopK(x, d)", 3, "TopK node 'y'"),
        ("y = Expand(one, d)", 3, "Expand node 'y'"),
        ("whole = Cast<to = 7>(x) \n l = ReduceMax<keepdims = 1>(whole) \n e = Sub(l, three) \n y = Expand(one, e)", 4, "node 'y'"),
        ("p = Constant<value_ints = [-2, -2]>() \n y = Pad(x, p)", 4, "Pad node 'y'"),
        ("a = Unsqueeze(x, axes) \n b = AveragePool<kernel_shape = [5]>(a) \n y = Squeeze(b, axes)", 4, "AveragePool node 'b'"),
        ("a = Unsqueeze(x, axes) \n b = Conv(a, w) \n y = Squeeze(b, axes)", 4, "Conv node 'b'"),
        ("h = Tanh(x) \n p = Constant<value_ints = [-2, -2]>() \n q = Pad(h, p) \n y = Exp(q)", 4, "Pad node 'q'"),
        (BRANCH, 3, "Pad node 't'"),
    ],
)
def test_no_tensor_inside_of_a_model_has_a_negative_size(body: str, least: int, named: str) -> None:
    """It would be laid out over others, and what reads it would read before its beginning."""
    exe = compiled(f"""g (float[n] x, bool c) => (float s, float[n] after) <float[1, 1, 5] w = {{1, 1, 1, 1, 1}}, float[1] one = {{1}},
                              int64[1] three = {{3}}, int64[2] axes = {{0, 1}}> {{
        size = Shape(x)
        d = Sub(size, three)
        {body}
        both = Concat<axis = 0>(y, x)
        s = ReduceSum<keepdims = 0>(both)
        after = Neg(x)
    }}""")
    yes = np.array(True)
    for n in (least, least + 4):
        np.testing.assert_array_equal(exe(np.arange(n, dtype=np.float32), yes)[1], -np.arange(n, dtype=np.float32))
    for n in range(1, least):
        with pytest.raises(ShapeError, match=named):
            exe(np.arange(n, dtype=np.float32), yes)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n, m] x, bool c) => (float[p, m] y) { y = Compress<axis = 0>(x, c) }",
        "g (float[n, m] x, bool[2, 2] c) => (float[p, m] y) { y = Compress<axis = 0>(x, c) }",
        "g (float x, bool[2] c) => (float[p] y) { y = Compress<axis = 0>(x, c) }",
        "g (float x, int64[1] k) => (float[a] y) { y, i = TopK(x, k) }",
        "g (float x, int64[2] s) => (float[a] y, float[b] z) { y, z = Split(x, s) }",
        "g (float x) => (float[a] y, float[b] z) { y, z = Split<num_outputs = 2>(x) }",
        "g (float[n, m] x, int64[1] a, int64[1] b, int64[1] axes, float[1] s) => (float[k, m] y) { y = Slice(x, a, b, axes, s) }",
        "g (float[n, m] x, float[1] a, int64[1] b) => (float[k, m] y) { y = Slice(x, a, b) }",
    ],
)
def test_operands_of_the_wrong_rank_or_dtype_are_refused(text: str) -> None:
    with pytest.raises(ModelError):
        compiled(text)


@pytest.mark.parametrize("bounds", [(0, LARGEST), (SMALLEST, LARGEST), (LARGEST, SMALLEST), (-3, LARGEST), (2, 4)])
def test_ends_of_a_slice_at_the_ends_of_int64(bounds: tuple[int, int]) -> None:
    exe = compiled("""g (float[n, m] x, int64[1] s, int64[1] e) => (float[a, m] y) {
        axis = Constant<value_ints = [0]>() \n y = Slice(x, s, e, axis) }""")
    x = matrix(10, 3)
    np.testing.assert_array_equal(exe(x, *[np.array([at]) for at in bounds]), x[bounds[0] : bounds[1]])


@pytest.mark.parametrize(
    "bounds", [(0, LARGEST, 3), (SMALLEST, LARGEST, 2), (LARGEST, SMALLEST, -1), (9, SMALLEST, SMALLEST), (0, 5, LARGEST)]
)
def test_steps_of_a_slice_at_the_ends_of_int64(bounds: tuple[int, int, int]) -> None:
    exe = compiled("""g (float[n, m] x, int64[1] s, int64[1] e, int64[1] t) => (float[a, m] y) {
        axis = Constant<value_ints = [0]>() \n y = Slice(x, s, e, axis, t) }""")
    x = matrix(10, 3)
    np.testing.assert_array_equal(exe(x, *[np.array([at]) for at in bounds]), x[bounds[0] : bounds[1] : bounds[2]])


@pytest.mark.parametrize("end", [3, 100, 1 << 30, 1 << 41, LARGEST, SMALLEST, -1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_ends_of_a_slice_along_an_axis_known_while_running(axis: int, end: int) -> None:
    """The axis that is not chosen has the end it has; what is allocated is the size that is left of the end, not the end."""
    text = "g (float[n, 4] x, int64[1] s, int64[1] e, int64[1] a) => (float[p, q] y) { y = Slice(x, s, e, a) }"
    x = matrix(3, 4)
    wanted = x[1:end] if axis == 0 else x[:, 1:end]
    np.testing.assert_array_equal(compiled(text)(x, *[np.array([at]) for at in (1, end, axis)]), wanted)


@pytest.mark.parametrize("step", [LARGEST, 1 << 62, -LARGEST, SMALLEST])
@pytest.mark.parametrize("known", ["", "start", "end", "both"])
def test_known_steps_at_the_ends_of_int64(step: int, known: str) -> None:
    start, end = (2, 4) if step > 0 else (8, -7)
    given = {"s": start, "e": end}
    constants = {
        name: f"int64[1] {name} = {{{value}}}" for name, value in given.items() if known in ("both", {"s": "start", "e": "end"}[name])
    }
    inputs = ", ".join(f"int64[1] {name}" for name in given if name not in constants)
    inits = ", ".join([f"int64[1] t = {{{step}}}", "int64[1] axis = {0}", *constants.values()])
    exe = compiled(f"""g (float[5, 3] x{inputs and f", {inputs}"}) => (float[a, 3] y) <{inits}> {{ y = Slice(x, s, e, axis, t) }}""")
    x = matrix(5, 3)
    arguments = [np.array([value]) for name, value in given.items() if name not in constants]
    np.testing.assert_array_equal(exe(x, *arguments), x[start:end:step])


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_ranges_over_all_of_a_dtype(dtype: str) -> None:
    exe = compiled(RANGE.replace("int64 ", f"{dtype} ").replace("int64[n]", f"{dtype}[n]"))
    least, greatest, quarter = (int(n) for n in (np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).max // 2 + 1))
    for start, limit, step in (
        (least, greatest, quarter), (greatest, least, -quarter), (least, greatest, greatest), (greatest, least, least),
        (0, greatest, quarter), (greatest, least, quarter), (least, greatest, -quarter), (greatest - 3, greatest, 2), (5, 5, 1), (-3, 4, 7),
    ):  # fmt: skip
        wanted = [start + n * step for n in range(max(-((start - limit) // step), 0))]
        np.testing.assert_array_equal(exe(*[np.array(n, dtype) for n in (start, limit, step)]), np.array(wanted, dtype))


def test_distinct_elements_with_nans() -> None:
    x = np.array([1, np.nan, 2, np.nan, 1, 0], F32)
    text = "g (float[n] x) => (float[u] y, int64[u] f, int64[n] v, int64[u] c) { y, f, v, c = Unique(x) }"
    results = compiled(text)(x)
    for result, wanted, reference in zip(
        results, np.unique(x, return_index=True, return_inverse=True, return_counts=True), run(parse(text), {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(result, wanted)
        np.testing.assert_array_equal(reference, wanted)


CUBE = matrix(2, 3, 4)
LENGTHS: list[tuple[str, int, list[Any], list[int], dict[str, Any]]] = [
    ("Tile", 13, [CUBE, np.array([1, 2, 3])], [1], {}),
    ("Pad", 13, [CUBE, np.array([0, 1, 2, 1, 0, 0])], [1], {}),
    ("Pad", 18, [CUBE, np.array([1, 2, 1, 0]), F32(0), np.array([0, 2])], [1], {}),
    ("Slice", 13, [CUBE, np.array([0, 1]), np.array([2, 3]), np.array([0, 2])], [1, 2], {}),
    ("Slice", 13, [CUBE, np.array([0, 1]), np.array([2, 3])], [1], {}),
    ("CenterCropPad", 18, [CUBE, np.array([2, 5])], [1], {"axes": [0, 2]}),
    ("Split", 13, [CUBE, np.array([1, 3])], [1], {"axis": 2}),
    ("MaxUnpool", 11, [matrix(1, 1, 2), np.array([[[1, 2]]]), np.array([1, 1, 3])], [2], {"kernel_shape": [2]}),
    ("AffineGrid", 20, [matrix(1, 2, 3), np.array([1, 2, 3, 3])], [1], {}),
]


@pytest.mark.parametrize(("op", "opset", "inputs", "opened", "attributes"), LENGTHS)
def test_a_list_of_open_length_has_what_the_node_takes(
    op: str, opset: int, inputs: list[Any], opened: list[int], attributes: dict[str, Any]
) -> None:
    """The rank of the tensor, the number of axes or of results says how many; another number is refused while running."""
    arrays = [None if array is None else np.asarray(array) for array in inputs]
    outputs = 2 if op == "Split" else 1
    model = single(op, arrays, opset, outputs, dims={i: ["length"] for i in opened}, **attributes)
    assert_like_onnxruntime(model, arrays)
    feeds = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    wrong = {name: np.append(array, 1) if int(name[1:]) in opened else array for name, array in feeds.items()}
    exe = tw.compile(model, progress="none", opt_level=1)
    assert isinstance(exe, Executable)
    with pytest.raises((InputError, ShapeError)):
        exe.run(wrong)


@pytest.mark.parametrize(("axes", "sizes"), [("", [2, 5, 7]), (", axes = [1, 2]", [5, 7])])
def test_a_resize_to_a_list_of_open_length(axes: str, sizes: list[int]) -> None:
    """As above, for a node whose result ONNX gives no type: the same as by a list of known length."""
    text = f'g (float[2, 3, 4] x0, int64[n] x3) => (float[a, b, c] y) {{ y = Resize<mode = "nearest"{axes}>(x0, , , x3) }}'
    feeds = {"x0": CUBE, "x3": np.array(sizes)}
    (y,), (expected,) = (run(parse(t), feeds) for t in (text, text.replace("[n]", f"[{len(sizes)}]")))
    np.testing.assert_array_equal(y, expected)
    with pytest.raises((InputError, ShapeError)):
        compiled(text).run({"x0": CUBE, "x3": np.array([*sizes, 1])})
