"""Runs a lowered kernel on NumPy arrays: generate, compile, link, call."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import Expr
from tilewright.ir.traverse import evaluate_int
from tilewright.kernel.nodes import Kernel
from tilewright.machine.description import Machine
from tilewright.machine.detect import detect_host
from tilewright.runtime.linker import LinkedCode, link
from tilewright.target.cpu.codegen import generate, workspace_bytes
from tilewright.target.cpu.llvm import LlvmTarget, compile_to_object

CANARY = 0xA5
GUARD_BYTES = 256
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def host() -> Machine:
    return detect_host()


def llvm_target(machine: Machine) -> LlvmTarget:
    return LlvmTarget(machine.triple, machine.llvm_cpu, machine.llvm_features)


def libm() -> dict[str, int]:
    """Addresses of the C library's functions, for kernels whose functions were not expanded."""
    library = ctypes.CDLL("libm.so.6")
    names = (
        "exp",
        "log",
        "log1p",
        "tanh",
        "erf",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "atan2",
        "pow",
        "fmod",
    )
    return {n: ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for name in names for n in (name, name + "f")}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
def parallel_for(pool: int, task: int, frame: int, extent: int, grain: int) -> None:
    """The seam of the thread pool, last range first, in pieces of three iterations."""
    run = TASK(task)
    for begin in reversed(range(0, extent, 3)):
        run(frame, begin, min(begin + 3, extent))


def build(kernel: Kernel, machine: Machine | None = None) -> LinkedCode:
    machine = machine or host()
    code = compile_to_object(generate(kernel, machine), llvm_target(machine))
    return link([code], {"tw_parallel_for": ctypes.cast(parallel_for, ctypes.c_void_p).value or 0, **libm()})


def run(
    kernel: Kernel, inputs: Sequence[Any], sizes: Mapping[Expr, int] | None = None, *, pool: bool = False, code: LinkedCode | None = None
) -> list[Any]:
    """The outputs. Bytes before and after every buffer are checked to be untouched."""
    sizes = dict(sizes or {})
    code = code or build(kernel)
    blocks: list[tuple[Any, int]] = []
    slots: list[int] = []

    def place(nbytes: int) -> tuple[Any, int]:
        block = np.full(nbytes + 2 * GUARD_BYTES + 64, CANARY, np.uint8)
        start = -(block.ctypes.data + GUARD_BYTES) % 64 + GUARD_BYTES
        blocks.append((block, start))
        slots.append(block.ctypes.data + start)
        return block, start

    checks: list[tuple[Any, int, int]] = []
    for buffer, array in zip(kernel.inputs, inputs, strict=True):
        data = np.ascontiguousarray(array)
        assert data.dtype == buffer.dtype.numpy, (buffer, data.dtype)
        block, start = place(data.nbytes)
        block[start : start + data.nbytes] = data.view(np.uint8).reshape(-1) if data.ndim else np.frombuffer(data.tobytes(), np.uint8)
        checks.append((block, start, data.nbytes))
    outs = []
    for buffer in kernel.outputs:
        shape = tuple(evaluate_int(dim, sizes) for dim in buffer.shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * buffer.dtype.bytes
        block, start = place(nbytes)
        checks.append((block, start, nbytes))
        outs.append((block, start, nbytes, shape, buffer.dtype.numpy))
    workspace = workspace_bytes(kernel, host())
    if not workspace.is_const or workspace.value:  # it has its argument also where it is empty
        scratch = evaluate_int(workspace, sizes)
        block, start = place(scratch)
        checks.append((block, start, scratch))
    slots.extend(sizes[size] for size in kernel.sizes)
    args = (ctypes.c_int64 * max(1, len(slots)))(*slots)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address(kernel.name))
    entry(1 if pool else None, ctypes.addressof(args))
    for block, start, nbytes in checks:
        assert (block[:start] == CANARY).all(), "bytes before a buffer were written"
        assert (block[start + nbytes :] == CANARY).all(), "bytes after a buffer were written"
    return [block[s : s + n].copy().view(dtype).reshape(shape) for block, s, n, shape, dtype in outs]
