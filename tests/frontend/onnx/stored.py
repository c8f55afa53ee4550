"""Expected results that are kept beside the tests, so that they hold without onnxruntime: made by it once, and compared with it again
wherever it is installed. `pytest tests/frontend/onnx --store-expected` makes them anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.frontend.onnx.models import IR_VERSION

Array = np.ndarray[Any, np.dtype[Any]]
MS, ML = "com.microsoft", "ai.onnx.ml"
FILE = Path(__file__).parent / "expected.npz"


@dataclass(frozen=True)
class Case:
    """One node. `constants`: inputs, by position, that are initializers; `outputs`: dtypes of the results, None for one left out;
    `reference` gives the results where onnxruntime has no kernel."""

    op: str
    inputs: Sequence[Array | None]
    outputs: Sequence[Any] = (np.float32,)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = MS
    constants: Sequence[int] = ()
    atol: float = 1e-5
    reference: Callable[..., Sequence[Array]] | None = None

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        code = helper.np_dtype_to_tensor_dtype
        given = {i: a for i, a in enumerate(self.inputs) if a is not None}
        names = [f"x{i}" if i in given else "" for i in range(len(self.inputs))]
        results = [f"y{i}" if t is not None else "" for i, t in enumerate(self.outputs)]
        node = helper.make_node(self.op, names, results, domain=self.domain, name="node", **self.attributes)
        infos = [helper.make_tensor_value_info(f"x{i}", code(a.dtype), a.shape) for i, a in given.items() if i not in self.constants]
        outs = [helper.make_tensor_value_info(n, code(np.dtype(t)), None) for n, t in zip(results, self.outputs) if t is not None]
        constants = [onnx.numpy_helper.from_array(given[i], f"x{i}") for i in self.constants]
        graph = helper.make_graph([node], "g", infos, outs, constants)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MS, 1), helper.make_opsetid(ML, 3)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return model, {f"x{i}": a for i, a in given.items() if i not in self.constants}


def key_of(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> str:
    """Of the model and what goes in, so that an expectation never speaks for another case."""
    digest = hashlib.sha256(model.SerializeToString(deterministic=True))
    for name in sorted(feeds):
        digest.update(f"{name} {feeds[name].dtype} {feeds[name].shape}".encode() + np.ascontiguousarray(feeds[name]).tobytes())
    return digest.hexdigest()[:16]


def expected(name: str, model: onnx.ModelProto, feeds: Mapping[str, Array], store: bool = False) -> list[Array]:
    """The stored results of a case. With `store`, onnxruntime's, which are stored."""
    key = f"{name}/{key_of(model, feeds)}/"
    kept = dict(np.load(FILE)) if FILE.exists() else {}
    if store:
        results = _onnxruntime(model, feeds)
        kept = {entry: array for entry, array in kept.items() if not entry.startswith(f"{name}/")}
        kept |= {f"{key}{i}": result for i, result in enumerate(results)}
        np.savez_compressed(FILE, **dict(sorted(kept.items())))
        return results
    found = [kept[entry] for entry in sorted(kept) if entry.startswith(key)]
    if not found:
        raise AssertionError(f"{FILE.name} does not have the case {name}: run the tests with --store-expected where onnxruntime is")
    if find_spec("onnxruntime") is not None:
        for stored, again in zip(found, _onnxruntime(model, feeds), strict=True):
            np.testing.assert_allclose(stored, again, rtol=1e-4, atol=1e-5)
    return found


def _onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    results: list[Array] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))
    return results
