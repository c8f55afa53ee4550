"""Image nodes: Resize in its versions and ways of giving sizes, Upsample, sampling."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.frontend.onnx.models import assert_like_onnxruntime, imported, operators, parse, run, run_onnxruntime, single
from tilewright.frontend.onnx.operators.vision import scaled_dim
from tilewright.ir.expr import size
from tilewright.ir.traverse import evaluate_int

F32 = np.float32
EMPTY = np.zeros(0, F32)


def image(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape or (1, 2, 4, 5)).astype(F32)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_opset_10(mode: str) -> None:
    x = image()
    model = single("Resize", [x], 10, constants={1: np.array([1, 1, 2, 1.5], F32)}, mode=mode)
    assert_like_onnxruntime(model, [x])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.5, 1.5), (1.0, 0.3), (2.0, 0.9)])
def test_nearest_elements_of_opset_10(scales: tuple[float, float], known: bool) -> None:
    x, factors = image(), np.array([1, 1, *scales], F32)
    model = single("Resize", [x] if known else [x, factors], 10, constants={1: factors} if known else None, mode="nearest")
    assert_like_onnxruntime(model, [x, factors])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_half_pixels_of_opset_11(mode: str, nearest: str) -> None:
    x, constants = image(), {1: EMPTY, 2: np.array([1, 1, 0.6, 1.3], F32)}
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": nearest}
    assert_like_onnxruntime(single("Resize", [x], 11, constants=constants, **attributes), [x], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinate", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_by_sizes(mode: str, coordinate: str) -> None:
    x = image()
    constants = {1: EMPTY, 2: EMPTY, 3: np.array([1, 2, 7, 9])}
    model = single("Resize", [x], 13, constants=constants, mode=mode, coordinate_transformation_mode=coordinate)
    assert_like_onnxruntime(model, [x], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("known", [False, True])
def test_by_scales(known: bool) -> None:
    x, scales = image(), np.array([1, 1, 1.7, 0.6], F32)
    given = {1: EMPTY, 2: scales} if known else {1: EMPTY}
    model = single("Resize", [x] if known else [x, None, scales], 13, constants=given, mode="linear")
    assert_like_onnxruntime(model, [x, None, scales], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("known", [False, True])
def test_aspect_ratio(policy: str, known: bool) -> None:
    x, sizes = image(), np.array([7, 8])
    model = single(
        "Resize", [x] if known else [x, None, None, sizes], 18, constants={3: sizes} if known else None,
        mode="nearest", axes=[2, 3], keep_aspect_ratio_policy=policy,
    )  # fmt: skip
    assert_like_onnxruntime(model, [x, None, None, sizes])


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("shape", [(5, 6), (6, 4), (7, 3), (2, 9)])
def test_sizes_that_keep_the_aspect_ratio(shape: tuple[int, int], policy: str) -> None:
    """Rounded half up, known or not."""
    x, attributes = image(1, 1, *shape), {"mode": "nearest", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    for wanted in product(range(1, 8), repeat=2):
        sizes = np.array(wanted)
        for known in (False, True):
            model = single("Resize", [x] if known else [x, None, None, sizes], 18, 1, {3: sizes} if known else None, **attributes)
            feeds = {"x0": x} if known else {"x0": x, "x3": sizes}
            assert run(model, feeds)[0].shape == run_onnxruntime(model, feeds)[0].shape, (wanted, known)


def test_sizes_of_another_tensor_stay_sizes() -> None:
    """The usual form of a feature pyramid: resize to the shape of a sibling."""
    model = parse("""
        g (float[1, 2, H, W] x, float[1, 3, P, Q] like) => (float[A, B, C, D] y) {
            shape = Shape<start = 2>(like)
            own = Shape<end = 2>(x)
            sizes = Concat<axis = 0>(own, shape)
            y = Resize<mode = "linear">(x, , , sizes)
        }
    """)
    assert operators(imported(model)) == ["resize"]
    feeds = {"x": image(1, 2, 3, 4), "like": image(1, 3, 6, 5)}
    np.testing.assert_allclose(run(model, feeds)[0], run_onnxruntime(model, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9])
def test_upsample(mode: str, opset: int) -> None:
    x, scales = image(), [1.0, 1.0, 2.0, 3.0]
    if opset == 7:
        model = single("Upsample", [x], 7, mode=mode, scales=scales)
    else:
        model = single("Upsample", [x], 9, constants={1: np.array(scales, F32)}, mode=mode)
    assert_like_onnxruntime(model, [x], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.5, 1 / 3, 0.1, 0.6])
def test_scaled_symbolic_dims(factor: float) -> None:
    n = size("n")
    for value in range(1, 60):
        expected = int(np.floor(F32(value) * F32(factor)))
        assert evaluate_int(scaled_dim(n, float(F32(factor))), {n: value}) == expected


def test_sampling() -> None:
    rng = np.random.default_rng(1)
    inputs = [image(), rng.uniform(-1.2, 1.2, (1, 3, 2, 2)).astype(F32)]
    assert_like_onnxruntime(single("GridSample", inputs, 16, mode="bicubic", padding_mode="border"), inputs, 1e-3, 1e-4)
    inputs = [image(), np.array([[0, 0, 3, 3], [1, 0, 4, 2]], F32), np.zeros(2, np.int64)]
    for opset in (10, 16):
        model = single("RoiAlign", inputs, opset, output_height=2, output_width=2, sampling_ratio=2)
        assert_like_onnxruntime(model, inputs, 1e-4, 1e-5)
