"""Shapes, amounts, lengths and axes that are inputs of a model: right ones give what onnxruntime gives, wrong ones are refused, as there.

Nothing is computed from an amount that means nothing, and the error names the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

import tilewright as tw
from tests.frontend.onnx.models import Array, assert_same, parse, run_onnxruntime, single
from tilewright.support.errors import ModelError, TilewrightError, UnsupportedOperatorError

Refusal = (Fail, InvalidArgument, RuntimeException)  # what onnxruntime raises
LARGEST, SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@dataclass(frozen=True)
class Row:
    """One operator: its inputs, and for the input `at` values that are right and wrong. Wrong ones whose `here` is set are refused although
    onnxruntime computes something."""

    op: str
    opset: int
    inputs: Sequence[Array | None]
    at: int
    right: Sequence[Any]
    wrong: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    here: Sequence[Any] = ()
    outputs: int = 1


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


EXPAND = [
    Row("Expand", 13, [floats(5), ints(5)], 1, [[5], [1]], [[2], [0], [-1], [10], [1 << 40], [LARGEST], [SMALLEST]]),
    Row("Expand", 13, [floats(1, 5), ints(3, 5)], 1, [[1, 1], [3, 1], [0, 5], [2, 5]], [[3, 2], [-1, 5], [3, -1], [2, 10]]),
    Row("Expand", 13, [floats(4, 5), ints(5)], 1, [[5], [1]], [[2], [0], [-1], [10]]),
    Row("ConstantOfShape", 13, [ints(2, 3)], 0, [[2, 3], [0, 3]], [[-1, 3], [-1, -1], [SMALLEST, 2]]),
]


OUTSIDE_OF_TWO = [2, -3, 5, LARGEST, SMALLEST]
AXES = [
    Row("CumSum", 14, [floats(2, 3), np.array(0)], 1, [0, 1, -1, -2], OUTSIDE_OF_TWO),
    Row("CumSum", 14, [floats(2, 3), np.array(0, np.int32)], 1, [0, 1, -1, -2], [2, -3]),
    Row("CumSum", 14, [floats(3), ints(0)], 1, [[0], [-1]], [[1], [-2], [5]]),
    Row("ReduceSum", 18, [floats(2, 3), ints(0)], 1, [[0], [-1]], [[axis] for axis in OUTSIDE_OF_TWO]),
    Row("ReduceMax", 18, [floats(2, 3, 1), ints(0, 1)], 1, [[0, 1], [-1, 1]], [[0, 3], [-4, 0]], {"keepdims": 0}, [[0, 0], [0, -3]]),
    Row("Squeeze", 13, [floats(1, 3, 1), ints(0)], 1, [[0], [-1]], [[1], [3], [-4]]),
    Row("Squeeze", 13, [floats(1, 3, 1), ints(0, 2)], 1, [[0, 2], [-1, 0]], [[0, 1]], {}, [[0, 0], [0, -3]]),
    Row("Unsqueeze", 13, [floats(3, 4), ints(0)], 1, [[0], [-1], [-3]], [[3], [-4]]),
    Row("Unsqueeze", 13, [floats(3, 4), ints(0, 1)], 1, [[0, 3], [-1, -2]], [[0, 0], [0, -4], [4, 0]]),
    Row("Slice", 13, [floats(4, 5), ints(0), ints(2), ints(0)], 3, [[0], [1], [-1]], [[axis] for axis in OUTSIDE_OF_TWO]),
    Row("Pad", 18, [floats(4, 5), ints(1, 1), None, ints(0)], 3, [[0], [-1]], [[axis] for axis in OUTSIDE_OF_TWO]),
    Row("DFT", 20, [floats(2, 3, 4, 1), None, np.array(1)], 2, [0, 2, -2, -4], [3, -1, 4, -5, LARGEST, SMALLEST]),
]
WRONG_COUNTS = [[4, 4], [-1, 5], [-1, -1], [-2, -6], [-3, -4], [3, 0], [5, 0], [1 << 40, -1], [SMALLEST, 2]]
RESHAPE = [
    Row("Reshape", 14, [floats(2, 6), ints(3, 4)], 1, [[3, 4], [0, 6], [0, -1], [-1, 0], [0, 0], [-1, 12]], WRONG_COUNTS),
    Row("Reshape", 14, [floats(5), ints(5, 1)], 1, [[5, 1], [0, 1], [0, -1], [1, -1]], [[5, 0], [0, 0], [-1, 0], [1, 0], [0, 5]]),
    Row("Reshape", 14, [floats(1), ints(1, 1)], 1, [[1, 1], [0, -1]], [[-1, -1], [1, 0], [-1, 0]]),
    Row("Reshape", 14, [floats(0), ints(0, 1)], 1, [[0, 1], [0, 5], [-1, 5]], [[5, 0], [0, -1], [0, 0]]),
    Row("Reshape", 14, [floats(0, 3), ints(0, 3)], 1, [[0, 0], [0, 7], [2, 0], [-1, 3]], [[2, 3], [-1, -1]], {"allowzero": 1}, [[0, -1]]),
]
NAN, INF = float("nan"), float("inf")
IMAGE = floats(1, 1, 3, 4)
WRONG_SCALES = [[1, 1, scale, 1] for scale in (0, -1, NAN, -INF)]
PLACES = ints(0, 3, 8, 11).reshape(1, 1, 2, 2)
TWO_BY_TWO = {"kernel_shape": [2, 2], "strides": [2, 2]}
SCALES = np.array([1, 1, 2, 2], np.float32)
OFF_ON = np.array([0, 1], np.float32)
AMOUNTS = [
    Row("Resize", 13, [IMAGE, None, None, ints(1, 1, 6, 8)], 3, [[1, 1, 3, 4], [1, 1, 1, 9]], [[1, 1, 0, 4], [1, 1, -1, 4], [0, 0, 0, 0]]),
    Row("Resize", 13, [floats(0, 1, 3, 4), None, None, ints(0, 1, 6, 8)], 3, [[0, 1, 6, 8], [0, 1, 1, 2]], [[0, 1, 0, 8]]),
    Row("Resize", 13, [IMAGE, None, SCALES], 2, [[1, 1, 2, 2], [1, 1, 0.5, 3], [1, 1, 0.1, 1]], [*WRONG_SCALES, [NAN, 1, 1, 1]]),
    Row("Resize", 13, [IMAGE, None, SCALES], 2, [[1, 1, 2, 2], [1, 1, 0.5, 3]], WRONG_SCALES, {"mode": "linear"}),
    Row("Upsample", 9, [IMAGE, SCALES], 1, [[1, 1, 2, 2], [1, 1, 1, 3]], [*WRONG_SCALES, [1, 1, 0.5, 1]]),
    *(Row("Range", 11, [np.array(n, np.float32) for n in (0, 9, 2)], at, [3, -3], [NAN, INF, -INF]) for at in (0, 1)),
    Row("Range", 11, [np.array(n, np.float64) for n in (0, 9, 2)], 2, [3, -3, INF], [0, NAN]),
    Row("Range", 11, [np.array(n, np.int32) for n in (0, 9, 2)], 2, [3, -3], [0]),
    Row("OneHot", 11, [ints(0, 2, -1), np.array(3), OFF_ON], 1, [3, 1, 7], [0, -1, SMALLEST]),
    Row("OneHot", 11, [ints(0, 2, -1), np.array(3, np.float32), OFF_ON], 1, [3, 2.7], [0.5, -0.5, -1, NAN]),
    Row("MaxUnpool", 11, [floats(1, 1, 2, 2), PLACES, ints(1, 1, 4, 4)], 2, [[1, 1, 4, 4]], [[1, 1, 3, 3], [1, 1, -4, 4]], TWO_BY_TWO),
    Row("MaxUnpool", 11, [floats(1, 1, 2, 2), PLACES, ints(1, 1, 4, 4)], 2, [[1, 1, 6, 4]], [[1, 2, 4, 4], [2, 1, 4, 4]], TWO_BY_TWO),
    *(Row(op, 17, [np.array(5)], 0, [5, 1], [-1, -5]) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")),
    Row("Tile", 13, [floats(2, 3), ints(2, 2)], 1, [[1, 1], [3, 0], [0, 2]], [[-1, 1], [-1, -1], [SMALLEST, 1]]),
    Row("Pad", 18, [floats(4, 5), ints(1, 1, 1, 1)], 1, [[-1, 0, -3, 0], [0, -9, 0, 9]], [[-5, 0, 0, 0], [0, -3, 0, -3]]),
    Row("Split", 13, [floats(5, 2), ints(2, 3)], 1, [[5, 0], [0, 5]], [[6, -1], [-1, 6], [2, 2], [4, 4], [0, 0]], outputs=2),
    Row("TopK", 11, [floats(2, 5), ints(2)], 1, [[5], [0]], [[6], [-1], [1 << 20]], outputs=2),
    Row("CenterCropPad", 18, [floats(4, 5), ints(2, 7)], 1, [[4, 5], [0, 5], [9, 1]], [], {}, [[-1, 5]]),
    Row("Col2Im", 18, [floats(1, 4, 4), ints(4, 4), ints(2, 2)], 1, [[4, 4]], [[0, 4], [-4, -4]], {"strides": [2, 2]}),
    Row("Col2Im", 18, [floats(1, 4, 4), ints(4, 4), ints(2, 2)], 2, [[2, 2], [1, 1]], [[0, 2], [-2, -2]], {"strides": [2, 2]}),
]
ROWS = [*EXPAND, *AXES, *RESHAPE, *AMOUNTS]


def name(row: Row) -> str:
    shape = "x".join(map(str, np.shape(row.inputs[0]))) if row.inputs[0] is not None else ""  # type: ignore[arg-type]
    return "-".join(part for part in (row.op, *map(str, row.attributes.values()), shape) if part)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_amounts_that_are_inputs(row: Row) -> None:
    model = single(row.op, row.inputs, row.opset, row.outputs, **row.attributes)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    exe: Any = tw.compile(model, progress="none", opt_level=1)
    dtype = row.inputs[row.at].dtype  # type: ignore[union-attr]
    for values, fits in ((row.right, True), (row.wrong, False), (row.here, None)):
        for value in values:
            given = [np.array(value, dtype) if i == row.at else array for i, array in enumerate(row.inputs)]
            feeds = {f"x{i}": array for i, array in enumerate(given) if array is not None}
            if fits:
                assert_same(list(exe.run(feeds).values()), run_onnxruntime(model, feeds), 1e-4, 1e-5)
                continue
            with pytest.raises(TilewrightError, match=f"{row.op} node"):
                exe.run(feeds)
            if fits is False:
                with pytest.raises(Refusal):
                    run_onnxruntime(model, feeds)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3] x) => (float[k] y) { a = Constant<value_int = 1>() \n y = CumSum(x, a) }",
        "g (float[2, 3, 1] x) => (float[a, b, c] y) { y = DFT<axis = 2>(x) }",
    ],
)
def test_a_known_axis_that_does_not_exist(text: str) -> None:
    with pytest.raises(ModelError, match="axis"):
        tw.compile(parse(text), progress="none")


def test_a_known_size_that_a_dim_does_not_become() -> None:
    with pytest.raises(ModelError, match="a dim of 5 does not become 2"):
        tw.compile(parse("g (float[5] x) => (float[k] y) { s = Constant<value_ints = [2]>() \n y = Expand(x, s) }"), progress="none")


def test_a_known_dim_expanded_to_a_dim_of_another_input() -> None:
    model = parse("g (float[5] x, float[n] w) => (float[k] y) { s = Shape(w) \n y = Expand(x, s) }")
    exe = tw.compile(model, progress="none", opt_level=1)
    for n in (1, 5):
        np.testing.assert_array_equal(exe(floats(5), floats(n)), floats(5))
    for n in (2, 4, 10):
        with pytest.raises(TilewrightError, match="Expand node 'y'"):
            exe(floats(5), floats(n))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_an_empty_axis_has_no_border_to_repeat(mode: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[n, 5] x) => (float[a, b] y) {{
        p = Constant<value_ints = [1, 0, 0, 0]>() \n h = Neg(x) \n y = Pad<mode = "{mode}">(h, p) }}"""
    exe: Any = tw.compile(parse(text), progress="none", opt_level=1)
    np.testing.assert_array_equal(exe(floats(2, 5)), np.pad(-floats(2, 5), ((1, 0), (0, 0)), mode=mode))  # type: ignore[call-overload]
    with pytest.raises(TilewrightError, match=f"axis 0 is empty, so mode {mode} has no element to repeat.*Pad node 'y'"):
        exe(floats(0, 5))


def test_counts_of_elements_do_not_wrap_around() -> None:
    """Nothing is allocated here that would be too large."""
    exe = tw.compile(
        parse("g (float[n] x, int64[2] s) => (float y) { r = Reshape<allowzero = 1>(x, s) \n y = ReduceMax<keepdims = 0>(r) }"),
        progress="none",
        opt_level=1,
    )
    assert exe(floats(6), ints(2, 3)) == floats(6).max()
    for count, sizes in ((0, ints(1 << 32, 1 << 32)), (1, ints(LARGEST, LARGEST))):
        with pytest.raises(TilewrightError, match="Reshape node 'r'"):
            exe(floats(count), sizes)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("Slice(x, l, l)", "Slice with 'l', of which the length n is open"),
        ("ReduceSum(x, l)", "ReduceSum with an open number of axes"),
        ("Reshape(x, l)", "Reshape whose rank depends on data"),
        ("Expand(x, l)", "Expand whose rank depends on data"),
        ("ConstantOfShape(l)", "ConstantOfShape whose rank depends on data"),
    ],
)
def test_a_list_of_open_length(node: str, message: str) -> None:
    """What is open is the rank of the result, or, where that is the operand's, the list, if nothing else says how long it is."""
    with pytest.raises(UnsupportedOperatorError, match=message):
        tw.compile(parse(f"g (float[4, 5] x, int64[n] l) => (float[a, b] y) {{ y = {node} }}"), progress="none")
