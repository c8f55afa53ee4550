"""The machine at hand.

LLVM says which CPU it is and which features are usable (a virtual machine or the operating system may hide some); `/sys` says how large the
caches are; `support.host_limits` says how many cores this process may use. Where one of them is silent, as `/sys` is outside Linux,
the table of CPUs answers, by LLVM's name. What `tilewright doctor --measure` has kept for this CPU model and number of cores replaces
estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.machine.cpus import CPUS, CpuRow, vector_register_count, widest_vector_bits
from tilewright.machine.description import CacheLevel, Machine, Peaks
from tilewright.support.errors import TargetError
from tilewright.support.host_limits import allowed_processors, usable_cores
from tilewright.support.measurements import cpu_model, measured
from tilewright.support.tile_registers import usable

_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
# What an unknown CPU is taken for: caches and pipes of the most modest of its family.
_FALLBACK = {"x86_64": "x86-64-v3", "aarch64": "generic"}


@dataclass(frozen=True, slots=True)
class LlvmHost:
    """What LLVM says of a host: triple, name of the CPU, and for each feature it knows whether it is usable."""

    triple: str
    cpu: str
    features: tuple[tuple[str, bool], ...]


@lru_cache(maxsize=1)
def detect_host() -> Machine:
    """The machine at hand, as this process may use it now, with what was measured on it; looked at once per process."""
    machine = detect_machine(llvm_host(), Path("/"), allowed_processors())
    return with_measurements(machine, measured(cpu_model(), machine.cores))


def llvm_host() -> LlvmHost:
    """Ask LLVM. Raises TargetError where LLVM has no code generator for this machine."""
    import llvmlite.binding as llvm

    features = {name: usable(name, present) for name, present in llvm.get_host_cpu_features().items()}
    return LlvmHost(llvm.get_process_triple(), llvm.get_host_cpu_name(), tuple(sorted(features.items())))


def detect_machine(llvm: LlvmHost, root: Path, affinity: frozenset[int]) -> Machine:
    """The machine that LLVM, the files below `root` and the affinity mask describe. Raises TargetError for an unknown architecture."""
    arch = _ARCHITECTURES.get(llvm.triple.split("-")[0].lower())
    if arch is None:
        raise TargetError(
            f"the machine at hand, {llvm.triple}, cannot be a target",
            why=f"code can be generated for {', '.join(sorted(set(_ARCHITECTURES.values())))}",
            hint="name the machine to compile for, such as cpu:x86-64-v3",
        )
    row = CPUS.get(llvm.cpu) or CPUS[_FALLBACK[arch]]
    isa = frozenset(name for name, usable in llvm.features if usable) or row.isa
    cores = usable_cores(root, affinity)
    caches = _read_caches(root, min(affinity, default=0), cores)
    return Machine(
        name=llvm.cpu,
        arch=arch,
        isa=isa,
        triple=llvm.triple,
        llvm_cpu=llvm.cpu,
        llvm_features=",".join(("+" if usable else "-") + name for name, usable in llvm.features),
        vector_bits=row.vector_bits or widest_vector_bits(isa),
        vector_registers=vector_register_count(arch, isa),
        fma_units=row.fma_units,
        fma_latency=row.fma_latency,
        l1d=caches.get(1) or CacheLevel(row.l1d, row.line),
        l2=caches.get(2) or CacheLevel(row.l2, row.line),
        l3=caches.get(3) or (_table_l3(row, cores) if not caches else None),
        cores=cores,
        peaks=row.peaks,
    )


def with_measurements(machine: Machine, figures: Mapping[str, Any] | None) -> Machine:
    """The machine with what `tilewright doctor --measure` has kept for it; figures of vectors of another width, or of another form, are
    left out."""
    if figures is None or figures.get("vector_bits") != machine.vector_bits:
        return machine
    try:
        one, together = Peaks(**figures["one"]), Peaks(**figures["all"])
        return replace(machine, peaks=one, together=together, fork_us=float(figures["fork_us"]))
    except (KeyError, TypeError, ValueError):
        return machine


def _table_l3(row: CpuRow, cores: int) -> CacheLevel | None:
    return CacheLevel(row.l3, row.line, min(cores, row.l3_shared_by)) if row.l3 else None


def _read_caches(root: Path, processor: int, cores: int) -> dict[int, CacheLevel]:
    """Level -> data cache of one processor, from sysfs; empty where there is none."""
    caches: dict[int, CacheLevel] = {}
    for folder in sorted((root / f"sys/devices/system/cpu/cpu{processor}/cache").glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
            line = (folder / "coherency_line_size").read_text().strip()
            shared = (folder / "shared_cpu_list").read_text().strip()
            if kind in ("Data", "Unified"):
                caches[int(level)] = CacheLevel(_bytes(size), int(line), max(1, min(cores, _count(shared)) if level == "3" else 1))
        except (OSError, ValueError):
            continue  # a virtual machine may show half of it
    return caches


def _bytes(size: str) -> int:
    """`48K`, `32768K` or `260M` in bytes."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    return int(size[:-1]) * units[size[-1]] if size[-1:] in units else int(size)


def _count(ranges: str) -> int:
    """Number of processors in `0-3,8,10-11`."""
    total = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
