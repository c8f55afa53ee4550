"""Memory of an inference, beside ONNX Runtime and OpenVINO.

    python -m benchmarks.memory MODELS [NAME ...] [--threads N] [--json FILE]

MODELS holds NAME.onnx and NAME.io.npz. Each figure comes from a process of its own that opens the model, touches its weights, gives freed
memory back to the system, and then runs it three times: the figure is by how much the peak of its resident memory grew meanwhile (VmHWM,
which writing 5 to /proc/self/clear_refs sets back), so inputs, weights and code do not count, and outputs do. OpenVINO allocates when a
request is made, which counts. `arena` is what our manifest's formula says, without outputs.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.variants import collected, markdown, stored_feeds

NAMES = ("resnet50", "densenet121", "bert_base")
MIB = 1024 * 1024
RUNS = 3
Prepare = Callable[[], Callable[[], object]]


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def growth(prepare: Prepare) -> int:
    """Bytes by which peak resident memory grows while what `prepare` gives runs; preparing counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run = prepare()
    for _ in range(RUNS):
        run()
    return status("VmHWM") - before


def ours(model: Path, feeds: Mapping[str, Any], threads: int) -> dict[str, int]:
    import tilewright as tw

    path = model.with_suffix(".tw.tmp")
    try:
        subprocess.run([sys.executable, "-c", COMPILE, str(model), str(path)], check=True)  # compiling leaves memory behind
        exe = tw.load(path, threads=threads)
    finally:
        path.unlink(missing_ok=True)
    int(exe.artifact.weights.max())
    sizes = {spec.name: 0 for spec in exe.sizes}
    arena = exe.memory(**sizes)["arena"] if not sizes else 0
    return {"growth": growth(lambda: lambda: exe.run(feeds)), "arena": arena}


COMPILE = "import sys, tilewright; tilewright.compile(sys.argv[1], cache=False, progress='none').save(sys.argv[2])"


def onnxruntime(model: Path, feeds: Mapping[str, Any], threads: int) -> dict[str, int]:
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return {"growth": growth(lambda: lambda: session.run(None, dict(feeds)))}


def openvino(model: Path, feeds: Mapping[str, Any], threads: int) -> dict[str, int]:
    runtime: Any = importlib.import_module("openvino")
    core = runtime.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model), "CPU", settings)

    def prepare() -> Callable[[], object]:
        request = compiled.create_infer_request()
        return lambda: request.infer(dict(feeds))

    return {"growth": growth(prepare)}


ENGINES: Mapping[str, Callable[[Path, Mapping[str, Any], int], dict[str, int]]] = {
    "tilewright": ours,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def measure(model: Path, threads: int) -> dict[str, float]:
    """MiB by engine, and of our arena."""
    found: dict[str, float] = {}
    for engine in ENGINES:
        command = [sys.executable, "-m", "benchmarks.memory", str(model), "--engine", engine, "--threads", str(threads)]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        found[engine] = answer["growth"] / MIB
        if "arena" in answer:
            found["arena"] = answer["arena"] / MIB
    return found


def report(found: Mapping[str, Mapping[str, float]]) -> str:
    columns = ("arena", *ENGINES)
    rows: list[Sequence[object]] = [[name, *(np.format_float_positional(row[c], 1) for c in columns)] for name, row in found.items()]
    return markdown(["MiB of an inference", "our arena", *ENGINES], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.engine:
        print(json.dumps(ENGINES[args.engine](args.models, stored_feeds(args.models), args.threads)))
        return
    found = {name: measure(args.models / f"{name}.onnx", args.threads) for name in args.names}
    print(report(collected(args.json, found)))


if __name__ == "__main__":
    main()
