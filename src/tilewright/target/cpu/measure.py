"""Measuring the machine at hand: peaks of its arithmetic, read bandwidth of each level of memory, and what a parallel loop costs.

The kernels are generated as all code here is. Arithmetic: independent sums of multiply-adds in registers. Bandwidth: a share of a buffer
is read from end to end, again and again; the shares together fit into the level measured and not into the one before. What counts is the
best of several rounds: a peak is what the machine can do when nothing disturbs it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilewright.machine.description import Machine, Peaks
from tilewright.runtime.executable import aligned_empty
from tilewright.runtime.linker import LinkedCode, link
from tilewright.runtime.pool import process_pools
from tilewright.support.host_limits import usable_memory
from tilewright.support.progress import NullProgress, Progress
from tilewright.target.cpu.llvm import LlvmOptions, compile_to_object, llvm_target
from tilewright.target.cpu.measure_ir import ARITHMETIC, READ, RUN, arithmetic_name, available, measuring_module, operations
from tilewright.target.cpu.thread_pool import thread_pool_object

ROUND_S = 0.01  # seconds of one round, so that the clock's grain and the start of the loop do not matter
ROUNDS = 7
FORKS, FORK_ROUNDS = 50, 40  # parallel loops in one round of measuring them, which is short: a core that is taken away spoils all of it
PART_S = 20e-6  # seconds of a part of such a loop: long enough that every worker begins its own before the caller is done and takes it over
DIGITS = 3  # significant ones that are kept: more would be noise
SHARE_OF_MEMORY = 4  # at most a fourth of the memory is taken for measuring it
LARGEST = 1 << 30  # bytes that are read to measure memory, at most
SMALL = 4096  # bytes of a share of arithmetic, which reads its factors once

_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured. one: of a single core; together: of all `cores` at once; fork_us: microseconds by which a parallel loop on all
    cores takes longer than one of its parts."""

    vector_bits: int
    cores: int
    one: Peaks
    together: Peaks
    fork_us: float

    def to_json(self) -> dict[str, Any]:
        """Plain data, as it is kept."""
        figures = {"one": asdict(self.one), "all": asdict(self.together), "fork_us": self.fork_us}
        return {"vector_bits": self.vector_bits, "cores": self.cores, **figures}


def measure(machine: Machine, progress: Progress | None = None) -> Measurement:
    """Measure the machine at hand, which `machine` describes. Takes a few seconds; other load on the machine spoils it."""
    pool = thread_pool_object(llvm_target(machine))
    imports = process_pools.code(pool).imports
    code = link([compile_to_object(measuring_module(machine), llvm_target(machine), LlvmOptions())], imports)
    counts = dict.fromkeys((1, machine.cores))
    with (progress or NullProgress()).stage("measure", len(counts) * (len(ARITHMETIC) + len(working_sets(machine, 1))) + 1) as stage:
        found = {}
        for threads in counts:
            bench = _Bench(code, process_pools.handle(pool, threads), threads)
            figures = {}
            for name, figure in _figures(bench, machine):
                figures[name] = figure
                stage.advance(1, f"{name}, {threads} threads")
            found[threads] = peaks(figures)
        fork = 0.0 if machine.cores == 1 else bench.fork() * 1e6
    return Measurement(machine.vector_bits, machine.cores, found[1], found[machine.cores], rounded(fork))


def peaks(figures: Mapping[str, float]) -> Peaks:
    """Figures by name as peaks. Arithmetic without an instruction of its own runs as f32; a machine without L3 reads memory there."""
    f32 = figures["f32"]
    return Peaks(
        f32=rounded(f32),
        bf16=rounded(figures.get("bf16", f32)),
        int8=rounded(figures.get("int8", f32)),
        l1=rounded(figures["l1"]),
        l2=rounded(figures["l2"]),
        l3=rounded(figures.get("l3", figures["memory"])),
        memory=rounded(figures["memory"]),
    )


def working_sets(machine: Machine, threads: int) -> dict[str, int]:
    """Level -> bytes that each of `threads` threads reads to measure it: inside of that level, and past the one before."""
    sets = {"l1": machine.l1d.size // 2, "l2": max(machine.l2.size // 2, min(2 * machine.l1d.size, machine.l2.size))}
    last = threads * machine.l2.size
    if machine.l3 is not None:
        last = machine.l3.size
        total = min(last // 2, max(3 * threads * machine.l2.size, min(last // 4, 16 << 20)))
        sets["l3"] = total // threads
    room = min(LARGEST, (usable_memory() or LARGEST) // SHARE_OF_MEMORY)
    sets["memory"] = min(max(2 * last, 64 << 20), room) // threads
    return {level: max(SMALL, size // SMALL * SMALL) for level, size in sets.items()}


def rounded(figure: float) -> float:
    """DIGITS significant digits."""
    return float(f"{figure:.{DIGITS}g}")


def _figures(bench: _Bench, machine: Machine) -> Iterator[tuple[str, float]]:
    """Names and figures: GFLOP/s of arithmetic, GB/s of levels."""
    for kind in available(machine):
        yield kind, bench.rate(arithmetic_name(kind), SMALL, operations(machine, kind)) / 1e9
    for level, size in working_sets(machine, bench.threads).items():
        yield level, bench.rate(READ, size, size) / 1e9


@dataclass(slots=True)
class _Bench:
    """Linked kernels and a pool of `threads` threads to run them on."""

    code: LinkedCode
    pool: int
    threads: int

    def rate(self, kernel: str, share: int, work: int) -> float:
        """The best rate of a kernel, in units of `work` per second over all threads, where `work` is what one repetition does in one share
        of so many bytes."""
        data, results = self._memory(share)
        repetitions = self._repetitions(kernel, share, data, results, ROUND_S, self.threads)
        best = min(self._seconds(kernel, repetitions, share, data, results, self.threads) for _ in range(ROUNDS + 1))
        return repetitions * work * self.threads / best

    def fork(self) -> float:
        """Seconds by which a parallel loop takes longer than one of its parts, which all do the same arithmetic."""
        kernel = arithmetic_name("f32")
        data, results = self._memory(SMALL)
        repetitions = self._repetitions(kernel, SMALL, data, results, PART_S, 1)

        def best(parts: int) -> float:
            return min(self._seconds(kernel, repetitions, SMALL, data, results, parts, FORKS) for _ in range(FORK_ROUNDS))

        return max(0.0, best(self.threads) - best(1)) / FORKS

    def _memory(self, share: int) -> tuple[Any, Any]:
        data, results = aligned_empty(share * self.threads), aligned_empty(64 * self.threads)
        data[:] = 0  # so that every page is there
        return data, results

    def _repetitions(self, kernel: str, share: int, data: Any, results: Any, least: float, parts: int) -> int:
        """How often a kernel repeats its work so that a loop of `parts` parts takes `least` seconds or more."""
        repetitions = 1
        while (seconds := self._seconds(kernel, repetitions, share, data, results, parts)) < least and repetitions < 1 << 40:
            repetitions *= max(2, min(1000, round(1.5 * least / max(seconds, 1e-9))))
        return repetitions

    def _seconds(self, kernel: str, repetitions: int, share: int, data: Any, results: Any, parts: int, times: int = 1) -> float:
        """Seconds of `times` loops of `parts` parts."""
        args = np.array([repetitions, share, data.ctypes.data, results.ctypes.data], np.int64)
        run: Callable[..., None] = _RUN(self.code.address(RUN))
        begin = time.perf_counter()
        run(self.pool, self.code.address(kernel), args.ctypes.data, parts, times)
        return time.perf_counter() - begin
