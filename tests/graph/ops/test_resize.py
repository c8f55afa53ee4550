"""Resize: kernels against references, references against ONNX's own definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.graph.ops.kernels import check_operator, run_definition
from tilewright.graph.ops.resize import Resize
from tilewright.graph.ops.resize_axis import COORDINATES, NEAREST
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor


def onnx_resize(x: np.ndarray, sizes: list[int] | None, scales: list[float] | None, **attributes: Any) -> np.ndarray:
    """The reference implementation that comes with the ONNX package."""
    inputs = ["x", "roi" if "roi" in attributes else "", "scales" if scales else "", "sizes" if sizes else ""]
    roi = attributes.pop("roi", None)
    feeds = {"x": x}
    if roi is not None:
        feeds["roi"] = np.array(roi, np.float32)
    if scales:
        feeds["scales"] = np.array(scales, np.float32)
    if sizes:
        feeds["sizes"] = np.array(sizes, np.int64)
    infos = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    node = onnx.helper.make_node("Resize", inputs, ["y"], **attributes)
    out = onnx.helper.make_tensor_value_info("y", infos[0].type.tensor_type.elem_type, None)
    graph = onnx.helper.make_graph([node], "g", infos, [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    return ReferenceEvaluator(model).run(None, feeds)[0]


def image(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("coordinate", [c for c in COORDINATES if not c.startswith("tf_")])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("target", [(1, 1, 7, 3), (1, 1, 8, 10), (1, 1, 2, 1), (1, 1, 4, 5)])
def test_sizes(mode: str, coordinate: str, target: tuple[int, ...]) -> None:
    x = image((1, 1, 4, 5))
    op = Resize(tuple(const(n) for n in target), (None,) * 4, mode, coordinate)
    (y,) = check_operator(op, [x], tolerance=1e-5)
    if coordinate == "pytorch_half_pixel" and 1 in target[2:]:
        return  # the specification says coordinate 0 for one element, ONNX's implementation takes -0.5
    expected = onnx_resize(x, list(target), None, mode=mode, coordinate_transformation_mode=coordinate)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("coordinate", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("nearest", [n for n in NEAREST if n != "ceil_where_smaller"])
@pytest.mark.parametrize("scale", [0.22, 0.25, 0.27, 0.48, 0.5, 0.53, 1.0, 1.12, 2.0, 2.11, 3.0, 3.08, 4.11])
def test_nearest_by_scales_near_whole_ones(scale: float, nearest: str, coordinate: str) -> None:
    """The scale that the model gives counts, also where the sizes have a whole ratio that is another one."""
    x = image((1, 8))
    target = int(np.floor(8 * np.float32(scale)))
    op = Resize((const(1), const(target)), (1.0, float(np.float32(scale))), "nearest", coordinate, nearest)
    (y,) = check_operator(op, [x], tolerance=0)
    attributes = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": coordinate}
    np.testing.assert_array_equal(y, onnx_resize(x, None, [1.0, scale], **attributes))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_float64_is_weighted_in_float64(mode: str, antialias: bool) -> None:
    x = np.random.default_rng(0).standard_normal((2, 9))
    for target, scale in ((7, None), (25, None), (12, 1.4)):
        op = Resize((const(2), const(target)), (None, scale), mode, "half_pixel", exclude_outside=antialias, antialias=antialias)
        check_operator(op, [x], tolerance=1e-13)


@pytest.mark.parametrize("nearest", [n for n in NEAREST if n != "ceil_where_smaller"])
@pytest.mark.parametrize("coordinate", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("scale", [2.0, 3.0, 4.0, 0.5, 0.25, 0.65, 1.5])
def test_nearest_modes(nearest: str, coordinate: str, scale: float) -> None:
    x = image((1, 8))
    target = int(8 * scale)
    op = Resize((const(1), const(target)), (1.0, scale), "nearest", coordinate, nearest)
    (y,) = check_operator(op, [x])
    expected = onnx_resize(x, None, [1.0, scale], mode="nearest", coordinate_transformation_mode=coordinate, nearest_mode=nearest)
    np.testing.assert_array_equal(y, expected)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["linear", "cubic"]),
    st.booleans(),
    st.integers(2, 7),
    st.integers(1, 12),
    st.sampled_from(["half_pixel", "asymmetric"]),
)
def test_antialias_and_exclude_outside(mode: str, exclude: bool, n: int, m: int, coordinate: str) -> None:
    x = image((2, n))
    op = Resize((const(2), const(m)), (None, None), mode, coordinate, exclude_outside=exclude, antialias=True)
    (y,) = check_operator(op, [x], tolerance=1e-4)
    options = {"mode": mode, "antialias": 1, "coordinate_transformation_mode": coordinate, "exclude_outside": int(exclude)}
    np.testing.assert_allclose(y, onnx_resize(x, [2, m], None, **options), rtol=1e-3, atol=1e-4)


def test_cubic_exclude_outside() -> None:
    x = image((1, 1, 4, 4))
    op = Resize(tuple(const(n) for n in (1, 1, 9, 7)), (None,) * 4, "cubic", "half_pixel", cubic_a=-0.5, exclude_outside=True)
    (y,) = check_operator(op, [x], tolerance=1e-5)
    expected = onnx_resize(x, [1, 1, 9, 7], None, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(mode: str) -> None:
    x = image((1, 1, 4, 4))
    roi = (0.0, 0.0, 0.4, -0.2, 1.0, 1.0, 1.2, 0.7)
    op = Resize(tuple(const(n) for n in (1, 1, 3, 5)), (None,) * 4, mode, "tf_crop_and_resize", extrapolation=10.0, roi=roi)
    (y,) = check_operator(op, [x], tolerance=1e-5)
    options = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0, "roi": roi}
    np.testing.assert_allclose(y, onnx_resize(x, [1, 1, 3, 5], None, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_symbolic_sizes(mode: str, antialias: bool) -> None:
    h, w = size("h", 1), size("w", 1)
    x = image((1, 2, 3, 4))
    symbolic = Resize((const(1), const(2), h * 2, w * 2), (None,) * 4, mode, "half_pixel", antialias=antialias)
    static = Resize(tuple(const(n) for n in (1, 2, 6, 8)), (None,) * 4, mode, "half_pixel", antialias=antialias)
    (y,) = run_definition(symbolic, [x], [tensor(dtypes.float32, (1, 2, h, w))])
    np.testing.assert_allclose(y, static.reference((x,))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [0.25, 0.5, 0.6, 0.9, 1.0, 1.3, 2.0])
def test_the_next_element_where_an_axis_shrinks(scale: float) -> None:
    """Nearest elements of opset 10, by a scale that is known, by one that is read at run time, and by that of the sizes."""
    x, target = image((1, 8)), int(8 * scale)
    places = np.arange(target) / scale
    expected = x[:, (np.ceil(places) if scale < 1 else np.floor(places)).astype(int)]
    sizes = (const(1), const(target))
    known = Resize(sizes, (1.0, scale), "nearest", "asymmetric", "ceil_where_smaller")
    read = Resize(sizes, (None, None), "nearest", "asymmetric", "ceil_where_smaller", given=("scales",))
    np.testing.assert_array_equal(check_operator(known, [x])[0], expected)
    np.testing.assert_array_equal(check_operator(read, [x, np.array([1, scale], np.float32)])[0], expected)
    if scale * 8 == target:
        sizes_only = Resize(sizes, (None, None), "nearest", "asymmetric", "ceil_where_smaller")
        np.testing.assert_array_equal(check_operator(sizes_only, [x])[0], expected)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("target", [3, 6, 13])
def test_half_elements_that_stay(mode: str, target: int) -> None:
    """tf_half_pixel_for_nn: element i lies at (i + 0.5) / scale, half an element after `half_pixel`."""
    x = image((1, 8))
    (y,) = check_operator(Resize((const(1), const(target)), (None, None), mode, "tf_half_pixel_for_nn", "floor"), [x], tolerance=1e-5)
    places = (np.arange(target) + 0.5) * 8 / target
    if mode == "nearest":
        np.testing.assert_array_equal(y, x[:, places.astype(int)])
    if mode == "linear":
        np.testing.assert_allclose(y[0], np.interp(places, np.arange(8), x[0]), rtol=1e-5, atol=1e-6)


def test_bytes_truncate() -> None:
    x = np.array([[0, 255, 3]], np.uint8)
    (y,) = check_operator(Resize((const(1), const(6)), (None, None), "linear", "half_pixel"), [x])
    assert y.tolist() == [[0, 63, 191, 192, 66, 3]]
