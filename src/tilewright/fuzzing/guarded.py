"""Memory between pages that nobody may touch: reading or writing one byte past an array ends the process, which the fuzzer notices.

Inputs, outputs, weights and the arena of an inference lie at the very end of their pages, or at the very start.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.runtime import executable as runtime
from tilewright.runtime import recycled
from tilewright.runtime.executable import Executable
from tilewright.runtime.recycled import RecycledOutput

Array = np.ndarray[Any, np.dtype[Any]]
PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def guarded_bytes(size: int, at_end: bool) -> Array:
    """`size` bytes with a forbidden page right after them, or right before. All bits are set: what is never written shows as NaN."""
    whole = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, whole + 2 * PAGE)
    first = np.frombuffer(memory, np.uint8)
    address = first.ctypes.data
    for page in (address, address + PAGE + whole):
        if _libc.mprotect(ctypes.c_void_p(page), PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")
    start = PAGE + (whole - size if at_end else 0)
    inside = first[start : start + size]
    inside[:] = 0xFF
    return inside


def guarded_array(shape: Sequence[int], dtype: np.dtype[Any], at_end: bool) -> Array:
    """An array with guards and no content."""
    dtype = np.dtype(dtype)
    raw = guarded_bytes(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, at_end)
    return raw.view(dtype).reshape(shape)


def guarded_copy(array: Array, at_end: bool) -> Array:
    copy = guarded_array(array.shape, array.dtype, at_end)
    copy[...] = array
    return copy


@contextmanager
def guarded_runtime(executable: Executable, at_end: bool) -> Iterator[None]:
    """Inside, inferences of the executable get guarded outputs, arenas and weights."""
    kept = (executable._weights, executable._weights_address, executable._recycled, executable._idle)
    outputs: Any = SimpleNamespace(take=lambda shape, dtype: guarded_array(tuple(shape), dtype, at_end))
    allocate = runtime.aligned_empty
    setattr(runtime, "aligned_empty", lambda size: guarded_bytes(size, at_end))  # noqa: B010 (mypy knows it as a function)
    try:
        executable._weights = guarded_copy(executable._weights, at_end)
        executable._weights_address = executable._weights.ctypes.data
        executable._recycled, executable._idle = [outputs for _ in executable.outputs], []
        yield
    finally:
        setattr(runtime, "aligned_empty", allocate)  # noqa: B010
        executable._weights, executable._weights_address, executable._recycled, executable._idle = kept


@contextmanager
def kept_outputs(executable: Executable) -> Iterator[None]:
    """Inside, the executable keeps memory of results of any size, as it does of large ones. It ends where nobody may touch, so that
    it begins at addresses of all alignments."""
    outputs, small = executable._recycled, recycled.SMALL
    try:
        executable._recycled = [RecycledOutput(lambda size: guarded_bytes(size, True)) for _ in outputs]
        setattr(recycled, "SMALL", -1)  # noqa: B010 (mypy takes it for final)
        yield
    finally:
        setattr(recycled, "SMALL", small)  # noqa: B010
        executable._recycled = outputs
