"""The long suite for aarch64: each family of kernels and each small model of the zoo is compiled for it, linked into a program, run under
qemu-user, and compared with the interpreter.

    python -m tests.emulated                                     all of them
    python -m tests.emulated --target cpu:neoverse-v2 --threads 2 product rows

Needs `qemu-aarch64-static` (or `qemu-aarch64`) and `aarch64-linux-gnu-gcc` with its C library, which link and start programs; on Debian:
apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross. The program itself is no C: its `main` is LLVM IR that reads
weights and inputs, calls the artifact's entry function and writes what came of it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tests.model_families import FAMILIES
from tilewright import zoo
from tilewright.compiler import compile_module
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret
from tilewright.machine.targets import parse_target, resolve_target
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.formula import Formula
from tilewright.runtime.specs import SizeSpec, solve_sizes, tensor_spec
from tilewright.support.settings import Settings
from tilewright.target.cpu.llvm import LlvmOptions, LlvmTarget, compile_to_object

Array = np.ndarray

TOOLS = {"emulator": ("qemu-aarch64-static", "qemu-aarch64"), "linker": ("aarch64-linux-gnu-gcc",)}
TOLERANCE = {"float16": 2e-2, "float32": 2e-4}
TIMEOUT_S = 120
ZOO = {
    "mlp": {"sizes": (16, 33, 5), "batch": "batch"},
    "resnet18": {"width": 8, "image": 32},
    "mobilenet_v2": {"image": 32},
    "bert": {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "vocab": 50},
    "gpt2": {"layers": 1, "hidden": 32, "heads": 2, "vocab": 50},
    "gpt2_decode": {"layers": 1, "hidden": 32, "heads": 2, "vocab": 50},
    "lstm_lm": {"layers": 1, "hidden": 24, "vocab": 50},
}


@dataclass(frozen=True)
class Case:
    """A model and what it is run on."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]


def cases(wanted: Sequence[str]) -> Iterator[Case]:
    for name, make in FAMILIES.items():
        if not wanted or name in wanted:
            family = make()
            yield Case(name, family.model(), family.inputs)
    for name, options in ZOO.items():
        if not wanted or name in wanted:
            model = zoo.build(name, 0, **options)
            sizes = {dim.dim_param: 3 for info in model.graph.input for dim in info.type.tensor_type.shape.dim if dim.dim_param}
            yield Case(name, model, zoo.example_inputs(model, sizes, 0))


def run_case(case: Case, target: str, threads: int, tools: Mapping[str, str]) -> float:
    """The largest error of any output, in tolerances. Raises AssertionError, or CalledProcessError where a tool fails."""
    module = import_model(load_model(case.model)).module
    machine = resolve_target(parse_target(target), missing)
    artifact = compile_module(module, machine, Settings().changed(cache=False)).artifact
    arrays = [np.ascontiguousarray(case.inputs[entry["name"]]) for entry in artifact.manifest["inputs"]]
    with tempfile.TemporaryDirectory(prefix="tilewright-emulated-") as folder:
        program = link(artifact, arrays, threads, LlvmTarget(machine.triple), Path(folder), tools["linker"])
        given = b"".join([artifact.weights.tobytes(), *(array.tobytes() for array in arrays)])
        done = subprocess.run([tools["emulator"], str(program)], input=given, capture_output=True, check=True, timeout=TIMEOUT_S)
    results = outputs_of(artifact, arrays, done.stdout)
    return max(error_of(got, want) for got, want in zip(results, interpret(module, arrays), strict=True))


def missing() -> None:
    raise AssertionError("the target must name a CPU")


def sizes_of(artifact: Artifact, arrays: Sequence[Array]) -> dict[str, int]:
    manifest = artifact.manifest
    specs = [tensor_spec(entry) for entry in manifest["inputs"]]
    return solve_sizes(arrays, specs, [SizeSpec(s["name"], s["lo"], s["hi"], s["multiple"]) for s in manifest["sizes"]])


def outputs_of(artifact: Artifact, arrays: Sequence[Array], written: bytes) -> list[Array]:
    """The outputs that the program has written, behind the answer of the entry function."""
    code = int.from_bytes(written[:8], "little", signed=True)
    assert code == 0, f"the entry function answers {code}"
    sizes, place, found = sizes_of(artifact, arrays), 8, []
    for spec in map(tensor_spec, artifact.manifest["outputs"]):
        shape = spec.shape_at(sizes)
        count = int(np.prod(shape, dtype=np.int64))
        found.append(np.frombuffer(written, spec.dtype, count, place).reshape(shape))
        place += count * spec.dtype.itemsize
    assert place == len(written)
    return found


def error_of(got: Array, want: Array) -> float:
    if got.dtype.kind not in "fV":
        return 0.0 if np.array_equal(got, want) else float("inf")
    scale = TOLERANCE.get(got.dtype.name, 1e-6) * np.maximum(1.0, np.abs(want.astype(np.float64)))
    return float((np.abs(got.astype(np.float64) - want) / scale).max(initial=0.0))


# ---- the program


def link(artifact: Artifact, arrays: Sequence[Array], threads: int, target: LlvmTarget, folder: Path, linker: str) -> Path:
    """A static program of the artifact's objects, its thread pool and a `main`."""
    objects = {
        **artifact.objects,
        "pool": artifact.pool,
        "main": compile_to_object(main_text(artifact, arrays, threads), target, LlvmOptions()),
    }
    paths = []
    for number, content in enumerate(objects.values()):
        paths.append(folder / f"{number}.o")
        paths[-1].write_bytes(content)
    program = folder / "program"
    subprocess.run([linker, "-static", "-o", str(program), *map(str, paths), "-lpthread", "-lm"], check=True, capture_output=True)
    return program


def main_text(artifact: Artifact, arrays: Sequence[Array], threads: int) -> str:
    """LLVM IR of `main`: reads weights and inputs from standard input, runs the entry function, writes its answer and the outputs."""
    manifest = artifact.manifest
    assert not manifest["late_outputs"], "outputs of sizes known only while running are allocated by the entry function"
    sizes = sizes_of(artifact, arrays)
    specs = list(map(tensor_spec, manifest["outputs"]))
    written = [int(np.prod(spec.shape_at(sizes), dtype=np.int64)) * spec.dtype.itemsize for spec in specs]
    arena = Formula(manifest["memory"]["arena"])(sizes)
    known = [sizes.get(size["name"], 0) for size in manifest["sizes"]]
    lines: list[str] = []

    def allocate(name: str, size: int) -> str:
        lines.append(f"  %{name} = call ptr @aligned_alloc(i64 64, i64 {max(64, -(-size // 64) * 64)})")
        return f"%{name}"

    def filled(name: str, size: int) -> str:
        pointer = allocate(name, size)
        lines.append(f"  call void @fill(ptr {pointer}, i64 {size})")
        return pointer

    weights = filled("weights", artifact.weights.nbytes)
    inputs = [filled(f"input{i}", array.nbytes) for i, array in enumerate(arrays)]
    outputs = [allocate(f"output{i}", size) for i, size in enumerate(written)]
    work = allocate("arena", arena)
    tables = {"inputs": [("ptr", p) for p in inputs], "outputs": [("ptr", p) for p in outputs], "sizes": [("i64", str(n)) for n in known]}
    for name, values in tables.items():
        lines.append(f"  %{name} = alloca [{max(1, len(values))} x i64], align 16")
        for i, (type_, value) in enumerate(values):
            lines.append(f"  %{name}.{i} = getelementptr i64, ptr %{name}, i64 {i}")
            lines.append(f"  store {type_} {value}, ptr %{name}.{i}")
    lines.append("  %failure = alloca [4 x i64], align 16")
    lines.append("  %answer = alloca i64, align 8")
    pool = "null"
    if threads > 1:
        lines.append(f"  %pool = call ptr @tw_pool_create(i32 {threads})")
        pool = "%pool"
    arguments = ", ".join(f"ptr {p}" for p in (pool, "%inputs", "%outputs", "%sizes", weights, work, "%failure"))
    lines.append(f"  %code = call i64 @{manifest['entry']}({arguments})")
    lines.append("  store i64 %code, ptr %answer")
    lines.append("  call void @drain(ptr %answer, i64 8)")
    lines += [f"  call void @drain(ptr {pointer}, i64 {size})" for pointer, size in zip(outputs, written, strict=True)]
    body = "\n".join(lines)
    return f"""
declare ptr @aligned_alloc(i64, i64)
declare i64 @read(i32, ptr, i64)
declare i64 @write(i32, ptr, i64)
declare ptr @tw_pool_create(i32)
declare i64 @{manifest["entry"]}(ptr, ptr, ptr, ptr, ptr, ptr, ptr)
{_transfer("fill", "read", 0)}
{_transfer("drain", "write", 1)}
define i32 @main() {{
{body}
  ret i32 0
}}
"""


def _transfer(name: str, call: str, descriptor: int) -> str:
    """A function that reads or writes so many bytes, however few come at a time."""
    return f"""
define internal void @{name}(ptr %memory, i64 %size) {{
entry:
  br label %loop
loop:
  %done = phi i64 [0, %entry], [%more, %step]
  %rest = sub i64 %size, %done
  %any = icmp sgt i64 %rest, 0
  br i1 %any, label %step, label %end
step:
  %place = getelementptr i8, ptr %memory, i64 %done
  %moved = call i64 @{call}(i32 {descriptor}, ptr %place, i64 %rest)
  %fine = icmp sgt i64 %moved, 0
  %forward = select i1 %fine, i64 %moved, i64 %rest
  %more = add i64 %done, %forward
  br label %loop
end:
  ret void
}}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join((*FAMILIES, *ZOO))}")
    parser.add_argument("--target", default="cpu:generic")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in FAMILIES and name not in ZOO]
    if unknown:
        parser.error(f"there is no case {unknown[0]}")
    tools = {what: next(filter(None, map(shutil.which, names)), None) for what, names in TOOLS.items()}
    absent = [f"{what} ({' or '.join(TOOLS[what])})" for what, found in tools.items() if found is None]
    if absent:
        print(f"not installed: {', '.join(absent)}; the head of this file says how to get it")
        return 2
    failed = 0
    for case in cases(options.cases):
        try:
            error = run_case(case, options.target, options.threads, {what: str(found) for what, found in tools.items()})
            verdict = "ok" if error <= 1 else "WRONG"
        except (AssertionError, subprocess.SubprocessError) as problem:
            error, verdict = float("nan"), f"FAILED: {problem} {getattr(problem, 'stderr', b'') or b''!r}"
        failed += verdict != "ok"
        print(f"{case.name:24} {error:8.3g} tolerances  {verdict}", flush=True)
    print(f"{failed} failed on {options.target}, {options.threads} threads")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
