"""Memory for results that is used again once the caller has dropped them, so that its pages need not be made anew for each call."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.constants import ALIGNMENT

Array = np.ndarray[Any, np.dtype[Any]]

SMALL = 1 << 16  # bytes up to which the allocator of NumPy hands out warm memory anyway
KEPT = 2  # buffers kept for each output: the last result is often still held while the next one is computed
_UNUSED = 3  # references to a buffer that nobody uses: of the tuple, of the local variable, of getrefcount's argument

# Without a global interpreter lock, counts of references are not to be relied on.
_COUNTS: bool = getattr(sys, "_is_gil_enabled", lambda: True)() and hasattr(sys, "getrefcount")


def no_buffers_kept(size: int) -> bool:
    """Whether results of `size` bytes come from NumPy's allocator."""
    return size <= SMALL or not _COUNTS


class RecycledOutput:
    """Buffers of one output. A buffer is free when no array over it is alive. Several threads may take from one at once."""

    __slots__ = ("_allocate", "_kept")

    def __init__(self, allocate: Callable[[int], Array] = lambda size: np.empty(size, np.uint8)) -> None:
        self._allocate = allocate
        self._kept: list[tuple[Array, int]] = []

    def take(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An uninitialised C-contiguous array. Raises MemoryError or ValueError where there is no room for it."""
        size = math.prod(shape) * dtype.itemsize
        if no_buffers_kept(size):
            return np.empty(shape, dtype)
        found = self._free(size)
        if found is None:
            buffer = self._allocate(size + ALIGNMENT)
            found = buffer, -buffer.ctypes.data % ALIGNMENT
        result: Array = np.ndarray(shape, dtype, buffer=found[0], offset=found[1])
        self._kept.append(found)
        if len(self._kept) > KEPT:
            del self._kept[:-KEPT]
        return result

    def _free(self, size: int) -> tuple[Array, int] | None:
        """A kept buffer of about `size` bytes that nobody uses, taken out so that no other thread finds it."""
        for _ in range(len(self._kept)):
            try:
                entry = self._kept.pop(0)
            except IndexError:  # other threads have them in hand
                return None
            buffer, start = entry
            if sys.getrefcount(buffer) == _UNUSED and size <= buffer.nbytes - start <= 2 * size + ALIGNMENT:
                return entry
            self._kept.append(entry)
        return None
