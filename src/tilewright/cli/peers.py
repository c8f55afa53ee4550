"""Other runtimes that `bench` measures beside ours. Each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright.runtime.specs import Array
from tilewright.support.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Session:
    """A model opened in a runtime: `run` computes the outputs, by name, for fixed inputs."""

    name: str
    version: str
    run: Callable[[], Mapping[str, Array]]


def open_onnxruntime(model: str, inputs: Mapping[str, Array], outputs: Sequence[str], threads: int) -> Session:
    """ONNX Runtime on the CPU with all its optimisations."""
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = list(outputs)

    def run() -> Mapping[str, Array]:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return Session("onnxruntime", runtime.__version__, run)


def open_openvino(model: str, inputs: Mapping[str, Array], outputs: Sequence[str], threads: int) -> Session:
    """OpenVINO on the CPU, told to keep to float32 and to latency."""
    openvino: Any = import_module("openvino")
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(model), "CPU", settings).create_infer_request()

    def run() -> Mapping[str, Array]:
        results = request.infer(dict(inputs))
        return {name: np.asarray(results[name]) for name in outputs}

    return Session("openvino", openvino.__version__, run)


def ready(name: str, open_: Opener, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], threads: int) -> Session:
    """A session that has run once. Raises SettingsError when the other runtime cannot run the model."""
    try:
        session = open_(model, inputs, outputs, threads)
        session.run()
    except Exception as error:
        raise SettingsError(f"{name} cannot run this model", why=str(error), hint="leave it out of --against") from error
    return session


Opener = Callable[[str, Mapping[str, Array], Sequence[str], int], Session]
PEERS: Mapping[str, Opener] = {"onnxruntime": open_onnxruntime, "openvino": open_openvino}


def opener(name: str) -> Opener:
    """The function that opens a model in a runtime. Raises SettingsError when there is no such runtime, or it is not installed."""
    if name not in PEERS:
        raise SettingsError(f"bench knows no runtime '{name}'", hint=f"it knows {', '.join(PEERS)}")
    if find_spec(name) is None:
        raise SettingsError(f"{name} is not installed", hint="pip install tilewright[bench]")
    return PEERS[name]
