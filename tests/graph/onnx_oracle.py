"""One-node ONNX models run by onnxruntime: an oracle that shares no code with us."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper


def onnx_results(operator: str, inputs: Sequence[np.ndarray], outputs: int = 1, opset: int = 18, **attributes: Any) -> list[np.ndarray]:
    names = [f"x{i}" for i in range(len(inputs))]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results, **attributes)
    values = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in zip(names, inputs)]
    graph = helper.make_graph([node], "oracle", values, [onnx.ValueInfoProto(name=name) for name in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, dict(zip(names, inputs)))]
