"""What a machine is, as far as code generation, schedules and cost models care."""

from __future__ import annotations

from dataclasses import dataclass

ASSUMED_CLOCK_GHZ = 3.0
ASSUMED_FORK_US = 5.0
MEMORY_SCALES_TO = 3  # cores that together saturate the memory of most machines


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """One level of data cache. size, line: bytes. shared_by: cores that share one."""

    size: int
    line: int = 64
    shared_by: int = 1


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one core can do at best: f32, bf16, int8 in GFLOP/s (GOP/s; a multiply-add counts as two), read bandwidths in GB/s."""

    f32: float
    bf16: float
    int8: float
    l1: float
    l2: float
    l3: float
    memory: float


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU as the compiler sees it. Two equal descriptions get equal code.

    name: of the CPU model or ISA level. arch: `x86_64` or `aarch64`. isa: features by LLVM's names.
    triple, llvm_cpu, llvm_features: for LLVM; features are those that differ from the cpu's own, `+a,-b`, in order.
    vector_bits: width of the vectors to use. vector_registers: how many there are. fma_units: vector multiply-adds of that width started
    per cycle. fma_latency: cycles. cores: physical cores to schedule for. peaks: measured ones of one core, where somebody measured;
    together: of all `cores` at once; fork_us: microseconds by which a loop on all cores takes longer than a part of it.
    """

    name: str
    arch: str
    isa: frozenset[str]
    triple: str
    llvm_cpu: str
    llvm_features: str
    vector_bits: int
    vector_registers: int
    fma_units: int
    fma_latency: int
    l1d: CacheLevel
    l2: CacheLevel
    l3: CacheLevel | None
    cores: int
    peaks: Peaks | None = None
    together: Peaks | None = None
    fork_us: float | None = None

    def has(self, *features: str) -> bool:
        """Whether the ISA has all of `features` (LLVM's names: `avx512vnni`, `dotprod`)."""
        return self.isa.issuperset(features)

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one vector."""
        return max(1, self.vector_bits // bits)


def estimated_peaks(machine: Machine) -> Peaks:
    """The measured peaks, or an estimate from the description at 3 GHz. Good for comparing schedules, not for promises.

    Bandwidths: two vector loads per cycle from L1, half a line per cycle from L2, a quarter from L3, 20 GB/s from memory.
    """
    if machine.peaks is not None:
        return machine.peaks
    f32 = 2.0 * machine.lanes(32) * machine.fma_units * ASSUMED_CLOCK_GHZ
    bf16 = 2.0 if machine.has("avx512bf16") or machine.has("bf16") else 1.0
    int8 = 4.0 if any(map(machine.has, ("avx512vnni", "avxvnni", "dotprod"))) else 1.0
    if machine.vector_bits == 512:  # tile instructions: 16 x 16 sums of 64 bytes each in 16 cycles
        bf16 = 16.0 if machine.has("amx-bf16") else bf16
        int8 = 32.0 if machine.has("amx-int8") else int8
    line = machine.l1d.line
    return Peaks(
        f32=f32,
        bf16=f32 * bf16,
        int8=f32 * int8,
        l1=2.0 * machine.vector_bits / 8 * ASSUMED_CLOCK_GHZ,
        l2=line / 2 * ASSUMED_CLOCK_GHZ,
        l3=line / 4 * ASSUMED_CLOCK_GHZ,
        memory=20.0,
    )


def peaks_together(machine: Machine) -> Peaks:
    """What all cores can do at once: as measured, or an estimate from one core: everything that each core has of its own scales with their
    number, and memory up to MEMORY_SCALES_TO cores."""
    if machine.together is not None:
        return machine.together
    one, cores = estimated_peaks(machine), machine.cores
    return Peaks(
        f32=one.f32 * cores,
        bf16=one.bf16 * cores,
        int8=one.int8 * cores,
        l1=one.l1 * cores,
        l2=one.l2 * cores,
        l3=one.l3 * cores,
        memory=one.memory * min(cores, MEMORY_SCALES_TO),
    )


def fork_us(machine: Machine) -> float:
    """Microseconds that a parallel loop costs over a serial one: measured, or ASSUMED_FORK_US; 0 with one core."""
    return 0.0 if machine.cores == 1 else machine.fork_us if machine.fork_us is not None else ASSUMED_FORK_US
