"""How fast a kernel could be on a machine: the roofline model over the levels of its memory.

Time is bounded below by arithmetic at the peak of its kind, and by bytes at the bandwidth of the level that holds them. Operands and
results of one kernel are taken to lie where that kernel's own bytes fit, since the kernel before has just touched them; constants of the
model lie where all that one inference touches fits, since they come back only once per inference; in a loop, those of the second iteration
and on lie where the kernel's own bytes fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEVELS = ("l1", "l2", "l3", "memory")
NAMES = {"compute": "arithmetic", "l1": "L1", "l2": "L2", "l3": "L3", "memory": "memory"}
SHARED = ("l3", "memory")  # levels whose capacity does not grow with the number of threads


@dataclass(frozen=True, slots=True)
class Roofs:
    """What `threads` threads can do at best. peaks: GFLOP/s by kind of multiply-add (`f32`, `f64`, `bf16`, `int8`); bandwidth: GB/s by
    level; capacity: bytes by level (memory has none). measured: else the figures are estimates from the description of the machine."""

    threads: int
    peaks: Mapping[str, float]
    bandwidth: Mapping[str, float]
    capacity: Mapping[str, int]
    measured: bool

    def level(self, size: float) -> str:
        """The nearest level that holds so many bytes."""
        return next((level for level in LEVELS[:-1] if size <= self.capacity.get(level, 0)), "memory")

    def to_json(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "gflops": dict(self.peaks),
            "gigabytes_per_second": dict(self.bandwidth),
            "capacity_bytes": dict(self.capacity),
            "measured": self.measured,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one run of a kernel at given sizes: operations by the convention of two for a multiply-add; arithmetic (multiply_adds by
    kind, other); bytes moved in and out, of which `constant` are constants of the model."""

    operations: int
    multiply_adds: Mapping[str, int]
    other: int
    moved: int
    constant: int


@dataclass(frozen=True, slots=True)
class Limit:
    """The least time of a kernel, and what binds it: `compute` or a level of memory."""

    seconds: float
    binding: str


def roofs(
    caches: Mapping[str, int], one: Mapping[str, float], together: Mapping[str, float], cores: int, threads: int, measured: bool
) -> Roofs:
    """Roofs for `threads` threads, between those of one core and of all `cores`."""
    part = min(1.0, (threads - 1) / (cores - 1)) if cores > 1 else 0.0
    figures = {name: one[name] + (together[name] - one[name]) * part for name in one}
    peaks = {kind: figures[kind] for kind in ("f32", "bf16", "int8")} | {"f64": figures["f32"] / 2}
    capacity = {level: size * (1 if level in SHARED else threads) for level, size in caches.items()}
    return Roofs(threads, peaks, {level: figures[level] for level in LEVELS}, capacity, measured)


def limit(cost: Cost, machine: Roofs, footprint: int, calls: int = 1) -> Limit:
    """The roof over a kernel that runs `calls` times in one inference; `footprint`: bytes that the inference touches in all. Arithmetic
    outside of multiply-adds runs at half of the peak, one operation where a multiply-add has two."""
    arithmetic = sum(count / (machine.peaks[kind] * 1e9) for kind, count in cost.multiply_adds.items())
    arithmetic += cost.other / (machine.peaks["f32"] / 2 * 1e9)
    parts = {"compute": arithmetic * calls}
    near, far = machine.level(cost.moved), machine.level(footprint)
    traffic = {near: (cost.moved * calls - cost.constant) / (machine.bandwidth[near] * 1e9)}
    traffic[far] = traffic.get(far, 0.0) + cost.constant / (machine.bandwidth[far] * 1e9)
    slowest = max(traffic, key=traffic.__getitem__)
    parts[slowest] = sum(traffic.values())
    binding = max(parts, key=parts.__getitem__)
    return Limit(parts[binding], binding)
