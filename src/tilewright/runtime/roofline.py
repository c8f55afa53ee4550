"""How fast a kernel could be on a machine: the roofline model over the levels of its memory.

Time is bounded below by arithmetic at the peak of its kind, and by bytes at the bandwidth of the levels that hold them. Operands and
results of one kernel are taken to lie where that kernel's own bytes fit, since the kernel before has just touched them; constants of the
model lie where all that one inference touches fits, since they come back only once per inference; in a loop, those of the second iteration
and on lie where the kernel's own bytes fit. What is larger than a level lies there in part (`resident`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Any

LEVELS = ("l1", "l2", "l3", "memory")
NAMES = {"compute": "arithmetic", "l1": "L1", "l2": "L2", "l3": "L3", "memory": "memory"}
ROUNDS = 30  # of the iteration for `resident`
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

    def shares(self, size: float) -> dict[str, float]:
        """Which part of so many bytes, touched over and over, each level holds; levels that hold nothing are left out."""
        found: dict[str, float] = {}
        held = 0.0
        for level in LEVELS:
            here = 1.0 if level == LEVELS[-1] else max(held, resident(size, self.capacity.get(level, 0)))
            if here > held:
                found[level] = here - held
            held = here
        return found

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


def resident(size: float, capacity: float) -> float:
    """The part of `size` bytes, walked over again and again, that is found in a cache of `capacity` bytes when its turn comes.

    All of them where they fit. Else, with evicted lines chosen at random, a line survives the misses of a round with the probability
    h = exp(-(1 - h) size / capacity), which is also the part that hits: 0.82 for 1.1 times the capacity, 0.42 for 1.5, 0.2 for 2,
    0.02 for 4. Processors find less: a cache of 2 MiB of which neighbours and page tables take their share, and whose choice favours what
    came last, 0.4, 0.1, 0.05 and 0.01. A limit is to be one, so the larger figure counts.
    """
    if size <= capacity:
        return 1.0
    if capacity <= 0:
        return 0.0
    ratio, hits = size / capacity, 0.0
    for _ in range(ROUNDS):  # Newton's method from below: h - exp(..) is concave and rises there
        survives = exp(-ratio * (1 - hits))
        hits += (survives - hits) / max(1 - ratio * survives, 1e-9)
    return min(hits, 1.0)


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
    traffic: dict[str, float] = {}
    for count, size in ((cost.moved * calls - cost.constant, cost.moved), (cost.constant, footprint)):
        for level, share in machine.shares(size).items():
            traffic[level] = traffic.get(level, 0.0) + count * share / (machine.bandwidth[level] * 1e9)
    slowest = max(traffic, key=traffic.__getitem__)
    parts[slowest] = sum(traffic.values())
    binding = max(parts, key=parts.__getitem__)
    return Limit(parts[binding], binding)
