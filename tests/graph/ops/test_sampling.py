"""Grid sampling and regions of interest: kernels against references, references against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.kernels import check_operator
from tests.graph.ops.onnx_oracle import onnx_result
from tilewright.graph.ops.deformable import DeformableColumns
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


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolution(groups: int, masked: bool) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 4, 5, 6)).astype(np.float32)
    offsets = rng.uniform(-2, 2, (2, groups * 4 * 2, 3, 6)).astype(np.float32)
    mask = rng.uniform(0, 1, (2, groups * 4, 3, 6)).astype(np.float32)
    operands = [x, offsets, mask] if masked else [x, offsets]
    (columns,) = check_operator(DeformableColumns((2, 2), (2, 1), (1, 2), (1, 1), groups), operands, tolerance=1e-5)
    weights = rng.standard_normal((3, 4, 2, 2)).astype(np.float32)
    product = np.einsum("nckhw,ock->nohw", columns, weights.reshape(3, 4, 4))
    attributes = {"kernel_shape": [2, 2], "strides": [2, 1], "dilations": [1, 2], "pads": [1, 1, 0, 1], "offset_group": groups}
    inputs = [x, weights, offsets, None, mask] if masked else [x, weights, offsets]
    expected = onnx_result("DeformConv", inputs, opset=19, **attributes)
    np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-4)
