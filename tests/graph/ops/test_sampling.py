"""Grid sampling and regions of interest: kernels against references, references against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.kernels import check_operator
from tests.graph.ops.onnx_oracle import onnx_result
from tilewright.graph.ops.sampling import GridSample, RoiAlign


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 2, 4, 5)).astype(np.float32)
    grid = rng.uniform(-1.4, 1.4, (2, 3, 4, 2)).astype(np.float32)
    (y,) = check_operator(GridSample(mode, padding, align), [x, grid], tolerance=1e-4)
    names = {"linear": "bilinear", "cubic": "bicubic"}
    expected = onnx_result("GridSample", [x, grid], opset=16, mode=names.get(mode, mode), padding_mode=padding, align_corners=int(align))
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_of_volumes(mode: str, padding: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 2, 3, 2, 4)).astype(np.float32)
    grid = rng.uniform(-1.4, 1.4, (1, 2, 2, 3, 3)).astype(np.float32)
    (y,) = check_operator(GridSample(mode, padding, False), [x, grid], tolerance=1e-4)
    expected = onnx_result("GridSample", [x, grid], opset=20, mode=mode, padding_mode=padding)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("maximum", [False, True])
@pytest.mark.parametrize("half_pixel", [False, True])
def test_roi_align(samples: int, maximum: bool, half_pixel: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 2, 6, 7)).astype(np.float32)
    low = rng.uniform(-1, 5, (4, 2))
    rois = np.concatenate([low, low + rng.uniform(0.5, 6, (4, 2))], axis=1).astype(np.float32)
    batch = np.array([0, 1, 1, 0])
    (y,) = check_operator(RoiAlign((3, 2), 0.8, samples, maximum, half_pixel), [x, rois, batch], tolerance=1e-4)
    expected = onnx_result(
        "RoiAlign",
        [x, rois, batch],
        coordinate_transformation_mode="half_pixel" if half_pixel else "output_half_pixel",
        mode="max" if maximum else "avg",
        output_height=3,
        output_width=2,
        sampling_ratio=samples,
        spatial_scale=0.8,
    )
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
