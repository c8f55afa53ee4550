"""Which instruction set features this processor has, as far as the runtime must know to refuse foreign code."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache


@cache
def host_features() -> frozenset[str] | None:
    """LLVM's names of the features of this processor; None when they cannot be told."""
    import llvmlite.binding as llvm

    try:
        return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
    except RuntimeError:
        return None


def missing_features(needed: Iterable[str]) -> list[str]:
    """Features of `needed` that this processor lacks, sorted."""
    have = host_features()
    return [] if have is None else sorted(set(needed) - have)
