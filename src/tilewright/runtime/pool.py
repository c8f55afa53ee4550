"""Thread pools of this process: one per pool code and thread count, made when first needed, stopped at exit, made anew after a fork.

The code of the pool comes with the artifact as an object (see `target/cpu/thread_pool.py` for its functions); it is linked once per process
for each distinct content and stays linked, since its threads run in it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from tilewright.runtime.linker import LinkedCode, link
from tilewright.support.errors import ArtifactError, InputError

# Symbols that compiled models import from the pool.
POOL_IMPORTS = ("tw_pool_begin", "tw_pool_end", "tw_parallel_for")

_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class PoolCode:
    """A linked pool. imports: what compiled models need of it, name to address, for `link`."""

    linked: LinkedCode
    create: Callable[[int], int | None]
    stop: Callable[[int], None]
    imports: dict[str, int]


class ThreadPools:
    """All pools of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self.births = 0  # forks between the process that made this and the present one
        self._lock = threading.Lock()
        self._codes: dict[bytes, PoolCode] = {}
        self._handles: dict[tuple[bytes, int], int] = {}

    def code(self, pool_object: bytes) -> PoolCode:
        """The functions of a pool's object, linked at the first call for its content. Raises ArtifactError if they cannot be linked."""
        return self._code(sha256(pool_object).digest(), pool_object)

    def _code(self, key: bytes, pool_object: bytes) -> PoolCode:
        with self._lock:
            if key not in self._codes:
                linked = link([pool_object])
                self._codes[key] = PoolCode(
                    linked,
                    _CREATE(linked.address("tw_pool_create")),
                    _STOP(linked.address("tw_pool_stop")),
                    {name: linked.address(name) for name in POOL_IMPORTS},
                )
            return self._codes[key]

    def handle(self, pool_object: bytes, threads: int) -> int:
        """The pool of so many threads, as the pointer that `tw_parallel_for` takes; 0, which means the calling thread alone, for 1.

        Raises InputError if `threads` is not positive, ArtifactError if the system does not give the threads. The handle is not valid in
        a forked child: ask again there.
        """
        if threads < 1:
            raise InputError(f"a model cannot run on {threads} threads", hint="1 is the calling thread alone")
        if threads == 1:
            return 0
        key = sha256(pool_object).digest()
        code = self._code(key, pool_object)
        with self._lock:
            handle = self._handles.get((key, threads))
            if handle is None:
                handle = code.create(threads)
                if not handle:
                    raise ArtifactError(
                        f"the system does not give {threads - 1} more threads",
                        hint="ask for fewer threads, or raise the limit on processes (ulimit -u, pids.max of the container)",
                    )
                self._handles[key, threads] = handle
            return handle

    def stop(self) -> None:
        """Ends all threads. Handles given out stay usable and run on the calling thread alone; new ones get new threads."""
        with self._lock:
            for (key, _), handle in self._handles.items():
                self._codes[key].stop(handle)
            self._handles.clear()

    def forget(self) -> None:
        """In a forked child: none of the threads exist there, and the lock may be held by a thread that does not exist either."""
        self.births += 1
        self._lock = threading.Lock()
        self._handles.clear()


class PoolReference:
    """One pool as an executable keeps it: `handle` is valid in the process that reads it, after a fork as well."""

    __slots__ = ("_births", "_handle", "_object", "_pools", "threads")

    def __init__(self, pool_object: bytes, threads: int, pools: ThreadPools | None = None) -> None:
        self.threads = threads
        self._object = pool_object
        self._pools = pools or process_pools
        self._births = -1  # none: the handle has not been asked for
        self._handle = 0

    @property
    def handle(self) -> int:
        """The pool's pointer; its threads start when this is first read. Raises as `ThreadPools.handle`."""
        births = self._pools.births
        if births != self._births:
            self._handle, self._births = self._pools.handle(self._object, self.threads), births
        return self._handle


process_pools = ThreadPools()
atexit.register(process_pools.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process_pools.forget)
