"""Expected results that are kept beside the tests, so that they hold without onnxruntime: made by it once, and compared with it again
wherever it is installed. `pytest tests/frontend/onnx --store-expected` makes them anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, np.dtype[Any]]
FILE = Path(__file__).parent / "expected.npz"


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
