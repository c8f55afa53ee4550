"""Operators by stored results of onnxruntime, or by a formula in NumPy where it has none on a CPU: interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.models import assert_same, run
from tests.frontend.onnx.stored import Case, expected

Array = np.ndarray[Any, np.dtype[Any]]
F32, F64, U8, I8, I16, I32, I64 = np.float32, np.float64, np.uint8, np.int8, np.int16, np.int32, np.int64
ML = "ai.onnx.ml"


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def whole(dtype: Any, *shape: int, seed: int = 0, lo: int | None = None, hi: int | None = None) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min if lo is None else lo, (info.max if hi is None else hi) + 1, shape).astype(dtype)


def s(value: float, dtype: Any = F32) -> Array:
    return np.asarray(value, dtype)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def erf_gelu(x: Array) -> Array:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def group_norm(x: Array, gamma: Array, beta: Array, groups: int) -> Array:
    """x [N, *S, C]."""
    n, c = x.shape[0], x.shape[-1]
    rows = x.reshape(n, -1, groups, c // groups).astype(F64)
    normal = (rows - rows.mean((1, 3), keepdims=True)) / np.sqrt(rows.var((1, 3), keepdims=True) + 1e-5)
    return normal.reshape(x.shape) * gamma + beta


def convolve_nhwc(x: Array, w: Array, bias: Array) -> Array:
    """x [1, H, W, C], w [O, kh, kw, C], no padding."""
    kh, kw = w.shape[1:3]
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(1, 2))  # [1, h, w, C, kh, kw]
    return np.einsum("nhwcij,oijc->nhwo", windows, w) + bias


TOKENS = np.array([[1, 2, 3, 1, 2], [4, 5, 4, 5, 4]], I64)
ROWS = floats(20, 3, seed=9)


def q(seed: int, *shape: int, dtype: Any = U8, scale: float = 0.02, zero: int = 120) -> list[Array]:
    return [whole(dtype, *shape, seed=seed), s(scale), s(zero, dtype)]


def machine(classes: int, kernel: str = "RBF", probabilities: bool = False, transform: str = "NONE") -> dict[str, Any]:
    rng = np.random.default_rng(classes)
    counts = [2 + i for i in range(classes)]
    total, pairs = sum(counts), classes * (classes - 1) // 2
    found: dict[str, Any] = {
        "kernel_type": kernel, "kernel_params": [0.3, 0.1, 3.0], "vectors_per_class": counts, "post_transform": transform,
        "support_vectors": rng.normal(size=3 * total).tolist(), "coefficients": rng.normal(size=total * (classes - 1)).tolist(),
        "rho": rng.normal(size=pairs).tolist(), "classlabels_ints": [10 * i + 3 for i in range(classes)],
    }  # fmt: skip
    if probabilities:
        found |= {"prob_a": (-1 - rng.random(pairs)).tolist(), "prob_b": rng.normal(size=pairs).tolist()}
    return found


def regressor(kernel: str, one_class: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "kernel_type": kernel, "kernel_params": [0.3, 0.1, 3.0], "n_supports": 5, "support_vectors": rng.normal(size=15).tolist(),
        "coefficients": rng.normal(size=5).tolist(), "rho": [0.2], "one_class": one_class,
    }  # fmt: skip


REGIONS = np.array([[0, 0, 0, 5, 5], [1, 2, 1, 9, 4], [0, 3, 3, 3, 3], [1, -4, 6, 2, 12]], F32)

CASES: dict[str, Case] = {
    "bias_add": Case("BiasAdd", [floats(2, 3, 4), floats(4, seed=1), floats(2, 3, 4, seed=2)], reference=lambda x, b, k: [x + b + k]),
    "bias_split_gelu": Case(
        "BiasSplitGelu", [floats(2, 3, 8), floats(8, seed=1)],
        reference=lambda x, b: [(x + b)[..., :4] * erf_gelu((x + b)[..., 4:])],
    ),
    "cdist": Case("CDist", [floats(5, 3), floats(4, 3, seed=1)], attributes={"metric": "euclidean"}),
    "cdist_squares": Case("CDist", [floats(5, 3), floats(4, 3, seed=1)], attributes={"metric": "sqeuclidean"}),
    "complex_mul": Case(
        "ComplexMul", [floats(3, 4, 2), floats(3, 4, 2, seed=1)],
        reference=lambda a, b: [(lambda z: np.stack([z.real, z.imag], -1))((a[..., 0] + 1j * a[..., 1]) * (b[..., 0] + 1j * b[..., 1]))],
    ),
    "complex_mul_conj": Case(
        "ComplexMulConj", [floats(3, 4, 2), floats(3, 4, 2, seed=1)],
        reference=lambda a, b: [(lambda z: np.stack([z.real, z.imag], -1))((a[..., 0] + 1j * a[..., 1]) * (b[..., 0] - 1j * b[..., 1]))],
    ),
    "expand_dims": Case("ExpandDims", [floats(3, 4), s(-1, I32)], constants=[1]),
    "gather_nd": Case("GatherND", [floats(3, 4, 5), np.array([[0, 1], [-1, 2]], I64)]),
    "gemm_fast_gelu": Case(
        "GemmFastGelu", [floats(2, 3, 4), floats(4, 5, seed=1), floats(5, seed=2)],
        reference=lambda x, w, b: [(lambda y: 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))))(x @ w + b)], atol=1e-4,
    ),
    "grid_sample": Case("GridSample", [floats(1, 2, 4, 5), floats(1, 3, 3, 2, seed=1)], attributes={"padding_mode": "border"}),
    "group_norm": Case(
        "GroupNorm", [floats(2, 3, 3, 8), floats(8, seed=1), floats(8, seed=2)], attributes={"groups": 4, "activation": 1},
        reference=lambda x, g, b: [(lambda y: y * sigmoid(y))(group_norm(x, g, b, 4))],
    ),
    "skip_group_norm": Case(
        "SkipGroupNorm", [floats(2, 3, 3, 8), floats(8, seed=1), floats(8, seed=2), floats(2, 3, 3, 8, seed=3), floats(8, seed=4)],
        (F32, F32), {"groups": 4}, reference=lambda x, g, b, k, c: [group_norm(x + k + c, g, b, 4), x + k + c],
    ),
    "inverse": Case("Inverse", [floats(3, 5, 5)], atol=1e-3),
    "is_all_finite": Case(
        "IsAllFinite", [floats(3), np.array([1, np.inf], F32)], (np.bool_,), reference=lambda a, b: [np.asarray(False)],
    ),
    "ngram_repeat_block": Case("NGramRepeatBlock", [TOKENS, floats(2, 8)], attributes={"ngram_size": 3}),
    "ngram_repeat_block_longer_than_all": Case("NGramRepeatBlock", [TOKENS, floats(2, 8)], attributes={"ngram_size": 7}),
    "nhwc_conv": Case(
        "NhwcConv", [floats(1, 5, 6, 3), floats(4, 3, 2, 3, seed=1), floats(4, seed=2)],
        reference=lambda x, w, b: [convolve_nhwc(x, w, b)],
    ),
    "nhwc_fused_conv": Case(
        "NhwcFusedConv", [floats(1, 5, 6, 3), floats(4, 3, 3, 2, seed=1), floats(4, seed=2), floats(1, 3, 5, 4, seed=3)],
        attributes={"activation": "Relu"},
        reference=lambda x, w, b, z: [np.maximum(convolve_nhwc(x, w.transpose(0, 2, 3, 1), b) + z, 0)],
    ),
    "nhwc_max_pool": Case("NhwcMaxPool", [whole(U8, 1, 5, 6, 3)], (U8,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}),
    "pad": Case("Pad", [floats(3, 4), np.array([0, 2, 1, 0], I64), s(1.5)]),
    "range": Case("Range", [s(1.0), s(5.5)]),
    "transpose_matmul": Case("TransposeMatMul", [floats(2, 4, 3), floats(2, 4, 5, seed=1)], attributes={"transA": 1, "alpha": 0.5}),
    "fused_matmul_activation": Case(
        "FusedMatMulActivation", [floats(3, 4), floats(4, 5, seed=1)], attributes={"activation": "Relu", "alpha": 0.5},
        reference=lambda a, b: [np.maximum(0.5 * (a @ b), 0)],
    ),
    "trilu": Case("Trilu", [floats(2, 4, 5), s(1, I64)], attributes={"upper": 0}),
    "unfold": Case("UnfoldTensor", [floats(3, 8, 2)], attributes={"dim": 1, "size": 3, "step": 2}),
    "unique": Case("Unique", [np.array([2, 1, 1, 3, 4, 3], F32)], (F32, I64, I64)),
    "qlinear_conv_channels_last": Case(
        "QLinearConv",
        [*q(0, 1, 5, 6, 4), whole(I8, 6, 4, 3, 3, seed=1), s(0.015), s(0, I8), s(0.4), s(130, U8), whole(I32, 6, seed=4, lo=-999, hi=999)],
        (U8,), {"channels_last": 1, "pads": [1, 1, 1, 1]}, constants=[3, 4, 5, 8], atol=1,
    ),
    "qlinear_average_pool_channels_last": Case(
        "QLinearAveragePool", [*q(0, 1, 5, 6, 4), s(0.03), s(90, U8)], (U8,), {"channels_last": 1, "kernel_shape": [2, 3]}, atol=1,
    ),
    "qlinear_global_average_pool_channels_last": Case(
        "QLinearGlobalAveragePool", [*q(0, 1, 5, 6, 4), s(0.03), s(90, U8)], (U8,), {"channels_last": 1}, atol=1,
    ),
    "qlinear_where": Case(
        "QLinearWhere", [whole(U8, 3, 4, seed=3) > 120, *q(0, 3, 4), *q(1, 3, 4, scale=0.01, zero=7), s(0.03), s(60, U8)], (U8,), atol=1,
    ),
    "qlinear_reduce_mean": Case(
        "QLinearReduceMean", [*q(0, 3, 4), s(0.03), s(60, U8)], (U8,), {"axes": [1], "keepdims": 0}, atol=1,
        reference=lambda x, a, z, b, w: [np.clip(np.rint(((x.astype(F64) - z) * a).mean(1) / b) + w, 0, 255).astype(U8)],
    ),
    "qgemm": Case(
        "QGemm", [*q(0, 3, 8), *q(1, 8, 5, dtype=I8, scale=0.01, zero=3), whole(I32, 5, seed=4, lo=-999, hi=999), s(0.1), s(100, U8)],
        (U8,), {"alpha": 0.5}, atol=1,
    ),
    "qgemm_to_float": Case(
        "QGemm", [*q(0, 3, 8), whole(I8, 5, 8, seed=1), np.array([1, 2, 3, 4, 5], F32) / 100, np.zeros(5, I8), None, None, None],
        attributes={"transB": 1}, constants=[3, 4, 5], atol=1e-4,
    ),
    "qattention": Case(
        "QAttention",
        [whole(U8, 2, 5, 6), whole(I8, 6, 24, seed=1), floats(24, seed=2), s(0.02), s(0.01), np.array([[1, 1, 1, 0, 0], [1] * 5], I32),
         s(120, U8), s(0, I8)],
        attributes={"num_heads": 2}, constants=[1, 2, 4, 7], atol=1e-4,
    ),
    "qattention_causal": Case(
        "QAttention", [whole(U8, 2, 5, 6), whole(U8, 6, 24, seed=1), floats(24, seed=2), s(0.02), s(0.01), None, s(120, U8), s(110, U8)],
        attributes={"num_heads": 2, "unidirectional": 1}, constants=[1, 2, 4, 7], atol=1e-4,
    ),
    "qembed_layer_normalization": Case(
        "QEmbedLayerNormalization",
        [whole(I32, 2, 3, lo=0, hi=6), whole(I32, 2, 3, lo=0, hi=1), whole(U8, 7, 8), whole(U8, 5, 8, seed=1), whole(U8, 2, 8, seed=2),
         whole(U8, 8, seed=3), whole(U8, 8, seed=4), np.array([[1, 1, 0], [1, 1, 1]], I32), *[s(0.01 + 0.001 * i) for i in range(5)],
         *[s(100 + i, U8) for i in range(5)]],
        (F32, I32), atol=1e-4,
    ),
    "gather_block_quantized": Case(
        "GatherBlockQuantized", [whole(U8, 5, 16), np.array([[3, 0], [1, 4]], I64), floats(5, 2, seed=1), whole(U8, 5, 1, seed=2)],
        attributes={"bits": 4, "block_size": 16, "quantize_axis": 1}, constants=[0, 2, 3],
    ),
    "matmul_bnb4_nf4": Case(
        "MatMulBnb4", [floats(3, 32), whole(U8, 80), np.abs(floats(10, seed=1))],
        attributes={"K": 32, "N": 5, "block_size": 16, "quant_type": 1}, constants=[1, 2], atol=1e-4,
    ),
    "matmul_bnb4_fp4": Case(
        "MatMulBnb4", [floats(3, 32), whole(U8, 80), np.abs(floats(10, seed=1))],
        attributes={"K": 32, "N": 5, "block_size": 16, "quant_type": 0}, constants=[1, 2], atol=1e-4,
    ),
    "matmul_integer_16": Case("MatMulInteger16", [whole(I16, 3, 4, lo=-99, hi=99), whole(I16, 4, 5, seed=1, lo=-99, hi=99)], (I32,)),
    "mul_integer": Case(
        "MulInteger", [whole(U8, 3, 4), s(7, U8), whole(U8, 4, seed=1), s(9, U8)], (I32,),
        reference=lambda a, z, b, w: [(a.astype(I32) - z) * (b.astype(I32) - w)],
    ),
    "reduce_sum_integer": Case(
        "ReduceSumInteger", [whole(I8, 3, 4)], (I32,), {"axes": [1], "keepdims": 0}, reference=lambda x: [x.sum(1, dtype=I32)],
    ),
    "max_roi_pool": Case(
        "MaxRoiPool", [floats(2, 3, 8, 10), REGIONS], attributes={"pooled_shape": [2, 3], "spatial_scale": 0.7}, domain="",
    ),
    **{
        f"svm_regressor_{kernel}_{one}".lower(): Case("SVMRegressor", [ROWS], attributes=regressor(kernel, one), domain=ML)
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID") for one in (0, 1)
    },
    **{
        f"svm_classifier_{classes}_{kernel}_{transform}_{likely}".lower(): Case(
            "SVMClassifier", [ROWS], (I64, F32), machine(classes, kernel, bool(likely), transform), ML,
        )
        for classes, kernel, transform, likely in (
            (2, "RBF", "NONE", 0), (2, "RBF", "LOGISTIC", 0), (2, "LINEAR", "NONE", 1), (3, "POLY", "NONE", 0),
            (3, "SIGMOID", "SOFTMAX", 0),
            (4, "RBF", "NONE", 1), (4, "RBF", "SOFTMAX_ZERO", 1),
        )
    },
    "feature_vectorizer": Case(
        "FeatureVectorizer", [floats(3, 2), floats(3, 1, seed=1)], attributes={"inputdimensions": [2, 1]}, domain=ML,
    ),
    "array_feature_extractor": Case("ArrayFeatureExtractor", [floats(3, 5), np.array([[4, 0]], I64)], domain=ML),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, request: pytest.FixtureRequest) -> None:
    case = CASES[name]
    model, feeds = case.model()
    if case.reference is not None:
        dtypes = [t for t in case.outputs if t is not None]
        want = [np.asarray(r).astype(t) for r, t in zip(case.reference(*case.inputs), dtypes, strict=True)]
    else:
        want = expected(name, model, feeds, request.config.getoption("--store-expected"))
    assert_same(run(model, feeds), want, 1e-4, case.atol)
    compiled = tw.compile(model, cache=False, progress="none").run(feeds)
    assert_same(list(compiled.values()), want, 1e-4, case.atol)
