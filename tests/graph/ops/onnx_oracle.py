"""Single ONNX nodes computed by onnxruntime, as an oracle that shares nothing with this project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime


def onnx_results(
    op_type: str,
    arrays: Sequence[np.ndarray | None],
    output_types: Sequence[Any] = (),
    opset: int = 18,
    domain: str = "",
    constants: Sequence[int] = (),
    **attributes: object,
) -> list[np.ndarray]:
    """The results of one node. None is an input left out; `output_types` are NumPy dtypes, by default one, that of the first
    input; inputs at the positions `constants` become initializers."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    feeds = {n: a for n, a in zip(names, arrays) if a is not None}
    fixed = {f"x{i}" for i in constants}
    code = onnx.helper.np_dtype_to_tensor_dtype
    infos = [onnx.helper.make_tensor_value_info(n, code(a.dtype), a.shape) for n, a in feeds.items() if n not in fixed]
    wanted = list(output_types) or [next(iter(feeds.values())).dtype]
    outs = [onnx.helper.make_tensor_value_info(f"y{i}", code(np.dtype(t)), None) for i, t in enumerate(wanted)]
    node = onnx.helper.make_node(op_type, names, [o.name for o in outs], domain=domain, **attributes)
    opsets = [onnx.helper.make_opsetid("", opset)] + ([onnx.helper.make_opsetid(domain, 1)] if domain else [])
    initializers = [onnx.numpy_helper.from_array(feeds.pop(n), n) for n in sorted(fixed)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos, outs, initializers), opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)


def onnx_result(op_type: str, arrays: Sequence[np.ndarray | None], output_type: Any = None, **attributes: Any) -> np.ndarray:
    """The single result of one node."""
    return onnx_results(op_type, arrays, () if output_type is None else (output_type,), **attributes)[0]
