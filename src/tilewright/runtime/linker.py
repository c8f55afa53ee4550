"""Relocatable objects into this process: the code is mapped, far calls get stubs, and functions have addresses.

LLVM's JITLink does the work, by llvmlite's LLJIT. Each `LinkedCode` has an LLJIT of its own (about 1 ms to make, 0.4 ms to link a small
object), so artifacts with equal symbol names live side by side, nothing is shared between threads, and freeing one frees all of its
memory. MCJIT, the other linker in llvmlite, ends the process at the first unresolved symbol and may place code and constants more than
2 GiB apart. JITLink too is not asked about symbols that are missing: they are found here first, in the symbol tables.

Importing this file costs about 50 ms (llvmlite's binding and its shared library), the greatest part of the time to load a small artifact.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tilewright.runtime.object_symbols import ObjectSymbols, read_symbols
from tilewright.support.errors import ArtifactError

# All that compiled code may take from the process: what LLVM makes of copy loops, and of rounding where the processor has no instruction
# for it (x86-64 before SSE4.1), memory, and the thread seam of the pool.
PROCESS_SYMBOLS = frozenset(
    {"memcpy", "memset", "memmove", "bzero", "malloc", "free", "aligned_alloc", "sched_yield"}
    | {f"{name}{suffix}" for name in ("floor", "ceil", "trunc", "rint", "nearbyint", "roundeven") for suffix in ("", "f")}
    | {f"pthread_{name}" for name in ("create", "join", "self")}
    | {f"pthread_mutex_{name}" for name in ("init", "destroy", "lock", "unlock")}
    | {f"pthread_cond_{name}" for name in ("init", "destroy", "wait", "signal", "broadcast")}
)

MACHINE_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


class LinkedCode:
    """Code that is mapped into the process as long as this object lives, and freed with it.

    Addresses become invalid when it is freed: whoever keeps an address keeps this object. Not freed at the exit of the interpreter, since
    threads may still run in it.
    """

    __slots__ = ("__weakref__", "_addresses", "_finalizer")

    def __init__(self, addresses: Mapping[str, int], owner: tuple[Any, Any]) -> None:
        self._addresses = dict(addresses)
        self._finalizer = weakref.finalize(self, _release, *owner)
        self._finalizer.atexit = False

    def address(self, name: str) -> int:
        """The address of a global symbol. Raises ArtifactError if the objects do not define it, or after `close`."""
        try:
            return self._addresses[name]
        except KeyError:
            raise ArtifactError(f"the compiled code has no symbol {name!r}", why=f"it defines {_listed(self._addresses)}") from None

    def names(self) -> tuple[str, ...]:
        """All global symbols that the objects define, sorted."""
        return tuple(sorted(self._addresses))

    def close(self) -> None:
        """Frees the code now. Calling any of its functions afterwards is a fault."""
        self._addresses.clear()
        self._finalizer()


def link(objects: Sequence[bytes], imports: Mapping[str, int] | None = None) -> LinkedCode:
    """Links relocatable objects with each other, with `imports` (name to address) and with `PROCESS_SYMBOLS`, and maps them.

    Raises ArtifactError if an object is damaged or for another processor, if two define the same name, or if a symbol stays unresolved.
    """
    given = dict(imports or {})
    tables = [read_symbols(data) for data in objects]
    _check_machine(tables)
    defined = _check_definitions(tables)
    undefined = frozenset[str]().union(*(table.undefined for table in tables)) - defined
    given.update(_process_addresses(undefined - given.keys()))
    builder = llvm.JITLibraryBuilder()
    for data in objects:
        builder.add_object_img(data)
    for name in sorted(undefined):
        builder.import_symbol(name, given[name])
    for name in sorted(defined):
        builder.export_symbol(name)
    _initialize()
    try:
        engine = llvm.create_lljit_compiler(use_jit_link=True)
        tracker = builder.link(engine, "code")
    except RuntimeError as error:
        raise ArtifactError("compiled code cannot be linked into this process", why=str(error)) from error
    return LinkedCode({name: tracker[name] for name in defined}, (tracker, engine))


def host_machine() -> str:
    """The processor of this process by the names that `ObjectSymbols.machine` uses."""
    name = platform.machine().lower()
    return MACHINE_NAMES.get(name, name)


def _check_machine(tables: Sequence[ObjectSymbols]) -> None:
    host = host_machine()
    others = sorted({table.machine for table in tables} - {host})
    if others:
        raise ArtifactError(
            f"the compiled code is for {_listed(others)}, and this process runs on {host}",
            hint="compile for this machine, or run the artifact where it was compiled for",
        )


def _check_definitions(tables: Sequence[ObjectSymbols]) -> frozenset[str]:
    counts = Counter(name for table in tables for name in table.defined)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ArtifactError(f"two objects of one artifact define the same symbol: {_listed(twice)}")
    return frozenset(counts)


def _process_addresses(names: frozenset[str]) -> dict[str, int]:
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    found: dict[str, int | None] = {}
    for name in names & PROCESS_SYMBOLS:
        if hasattr(library, name):
            found[name] = ctypes.cast(library[name], ctypes.c_void_p).value
    missing = sorted(name for name in names if not found.get(name))
    if missing:
        raise ArtifactError(
            f"the compiled code needs symbols that nothing provides: {_listed(missing)}",
            why="compiled code may call other compiled code, the imports it was given and a short list of functions of the C library",
            hint="the artifact may be of another version; compile the model again",
        )
    return {name: address for name, address in found.items() if address}


def _listed(names: Sequence[str] | Mapping[str, int], limit: int = 12) -> str:
    ordered = sorted(names)
    rest = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return (", ".join(ordered[:limit]) or "nothing") + rest


def _release(tracker: Any, engine: Any) -> None:
    # The code belongs to the engine: it goes first.
    tracker.close()
    engine.close()


_registration = threading.Lock()


@cache
def _register_target() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _initialize() -> None:
    with _registration:
        _register_target()
