"""Products of integers: which operands they keep."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Module, walk_nodes
from tilewright.graph.ops import Contract, Convolution
from tilewright.ir import dtypes

Array = np.ndarray
RNG = np.random.default_rng(0)


def imported(op: str, x: tuple[int, ...], weights: Array, zero: Array) -> Module:
    """MatMulInteger or ConvInteger of uint8 x with zero point 7 and constant weights."""
    node = helper.make_node(op, ["x", "w", "xz", "wz"], ["y"])
    constants = {"w": weights, "xz": np.array(7, np.uint8), "wz": zero}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return import_model(load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)), {}).module


def weight_dtype(module: Module) -> dtypes.DType:
    (product,) = [node for node in walk_nodes(module.main.results) if isinstance(node.op, (Contract, Convolution))]
    return product.inputs[1].type.dtype


@pytest.mark.parametrize(("zero", "low", "high"), [(0, -128, 128), (128, 0, 256), (90, 0, 256), (90, 10, 200)])
def test_weights_of_products_are_signed_bytes(zero: int, low: int, high: int) -> None:
    dtype = np.int8 if low < 0 else np.uint8
    w = RNG.integers(low, high, (24, 10)).astype(dtype)
    x = RNG.integers(0, 256, (5, 24)).astype(np.uint8)
    module = imported("MatMulInteger", (5, 24), w, np.array(zero, dtype))
    assert weight_dtype(module) is dtypes.int8
    np.testing.assert_array_equal(interpret(module, [x])[0], (x.astype(np.int32) - 7) @ (w.astype(np.int32) - zero))


@pytest.mark.parametrize(("zero", "low", "wanted"), [(128, 0, dtypes.int8), (90, 0, dtypes.int16), (0, -128, dtypes.int8)])
def test_weights_of_convolutions_are_centred(zero: int, low: int, wanted: dtypes.DType) -> None:
    dtype = np.int8 if low < 0 else np.uint8
    w = RNG.integers(low, low + 256, (6, 4, 1, 1)).astype(dtype)
    x = RNG.integers(0, 256, (1, 4, 3, 5)).astype(np.uint8)
    module = imported("ConvInteger", (1, 4, 3, 5), w, np.array(zero, dtype))
    assert weight_dtype(module) is wanted
    want = np.einsum("oc,nchw->nohw", w[:, :, 0, 0].astype(np.int32) - zero, x.astype(np.int32) - 7)
    np.testing.assert_array_equal(interpret(module, [x])[0], want)
