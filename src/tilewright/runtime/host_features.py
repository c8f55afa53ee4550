"""Which platform this is and which instruction set features its processor has, as far as the runtime must know to refuse foreign code."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from functools import cache

from tilewright.support.tile_registers import usable

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_SYSTEMS = {"linux": "linux", "windows": "windows", "win32": "windows", "darwin": "macos", "macos": "macos"}  # starts of names


def host_platform() -> str:
    """Architecture and operating system of this process, such as `x86_64 linux`."""
    return _platform(platform.machine().lower(), sys.platform)


def platform_of(triple: str) -> str:
    """The same of an LLVM triple, such as `arm64-apple-macosx`."""
    arch, *rest = triple.split("-")
    return _platform(arch, *rest)


def _platform(arch: str, *systems: str) -> str:
    known = (name for text in systems for start, name in _SYSTEMS.items() if text.startswith(start))
    return f"{_ARCHITECTURES.get(arch, arch)} {next(known, 'unknown')}"


@cache
def host_features() -> frozenset[str] | None:
    """LLVM's names of the features of this processor; None when they cannot be told."""
    import llvmlite.binding as llvm

    try:
        return frozenset(name for name, present in llvm.get_host_cpu_features().items() if usable(name, present))
    except RuntimeError:
        return None


def missing_features(needed: Iterable[str]) -> list[str]:
    """Features of `needed` that this processor lacks, sorted."""
    have = host_features()
    return [] if have is None else sorted(set(needed) - have)
