"""Small ONNX models with symbolic dims, for tests of the whole way from a file to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret

Array = np.ndarray
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def vision_model() -> onnx.ModelProto:
    """Images x [N, 3, H, W] to probabilities [N, 10]: convolutions with a batch norm and a residual, pooling, a dense layer, a softmax."""
    rng = np.random.default_rng(1)
    weights = {
        "w1": rng.normal(0, 0.3, (16, 3, 3, 3)),
        "w2": rng.normal(0, 0.1, (16, 16, 3, 3)),
        "scale": rng.uniform(0.5, 1.5, 16),
        "shift": rng.normal(0, 0.1, 16),
        "mean": rng.normal(0, 0.1, 16),
        "variance": rng.uniform(0.5, 1.5, 16),
        "dense": rng.normal(0, 0.3, (16, 10)),
        "bias": rng.normal(0, 0.3, 10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w2"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "dense", "bias"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"], axis=1),
    ]
    return _model(nodes, {"x": (F32, ["N", 3, "H", "W"])}, {"y": (F32, ["N", 10])}, weights)


def text_model() -> onnx.ModelProto:
    """Token numbers [B, T] to positions of tokens with a high score (their number depends on the data), and to scores [B, T]."""
    rng = np.random.default_rng(2)
    weights = {
        "table": rng.normal(0, 1, (50, 24)),
        "wq": rng.normal(0, 0.2, (24, 24)),
        "gain": rng.uniform(0.5, 1.5, 24),
        "shift": rng.normal(0, 0.1, 24),
        "wo": rng.normal(0, 0.3, (24, 1)),
        "last": np.array([-1]),
        "zero": np.array(0.0),
    }
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["a"]),
        helper.make_node("MatMul", ["a", "wq"], ["q"]),
        helper.make_node("Transpose", ["a"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("LayerNormalization", ["c", "gain", "shift"], ["d"], axis=-1),
        helper.make_node("MatMul", ["d", "wo"], ["e"]),
        helper.make_node("Squeeze", ["e", "last"], ["scores"]),
        helper.make_node("Greater", ["scores", "zero"], ["high"]),
        helper.make_node("NonZero", ["high"], ["found"]),
    ]
    return _model(nodes, {"tokens": (I64, ["B", "T"])}, {"found": (I64, [2, "K"]), "scores": (F32, ["B", "T"])}, weights)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str]]],
    weights: Mapping[str, Array],
) -> onnx.ModelProto:
    described = [[helper.make_tensor_value_info(name, *about) for name, about in table.items()] for table in (inputs, outputs)]
    arrays = [numpy_helper.from_array(a.astype(np.float32 if a.dtype.kind == "f" else np.int64), name) for name, a in weights.items()]
    graph = helper.make_graph(list(nodes), "small", *described, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(seed: int, *shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)}


def tokens(seed: int, *shape: int) -> dict[str, Array]:
    return {"tokens": np.random.default_rng(seed).integers(0, 50, shape)}


def reference(model: onnx.ModelProto | Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the interpreter makes of the model."""
    module = import_model(load_model(model)).module
    return dict(zip(module.output_names, interpret(module, [inputs[name] for name in module.input_names]), strict=True))


def same(got: Mapping[str, Array], want: Mapping[str, Array], tolerance: float = 1e-4) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_identical(got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name, strict=True)
        assert got[name].tobytes() == array.tobytes(), f"{name}: signs of zero or NaNs differ"
