"""The CPUs and ISA levels that can be named in a target string.

A row says what a compiler must know of one CPU model without having it at hand. Names are LLVM's. Sources: the vendors' optimisation guides
(AMD 57647 for Zen 4, 58455 for Zen 5; Intel 248966; Arm's software optimization guides for the Neoverse cores) for pipes, latencies and
caches; the x86-64 psABI for the levels. `x86-64-v*` and `generic` stand for many CPUs: their caches are small enough for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.machine.description import Peaks

KIB = 1024
MIB = 1024 * KIB

_V1 = frozenset({"sse", "sse2"})
_V2 = _V1 | {"cx16", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"}
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_CASCADE = _V4 | {"avx512vnni"}
_ICE = _CASCADE | {
    "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vpopcntdq", "gfni", "vaes", "vpclmulqdq",
}  # fmt: skip
_SAPPHIRE = _ICE | {"amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni"}
_ALDER = _V3 | {"avxvnni", "gfni", "vaes", "vpclmulqdq"}
_ZEN4 = _ICE | {"avx512bf16"}
_ZEN5 = _ZEN4 | {"avx512vp2intersect", "avxvnni"}

_ARM8 = frozenset({"fp-armv8", "neon"})
_ARM82 = _ARM8 | {"dotprod", "fullfp16", "lse"}
_ARM86 = _ARM82 | {"bf16", "i8mm"}
_SVE = _ARM86 | {"sve"}

# What each feature needs: without the second, the first is not there either.
FEATURE_NEEDS: dict[str, str] = {
    "amx-bf16": "amx-tile",
    "amx-int8": "amx-tile",
    "avx": "sse4.2",
    "avx2": "avx",
    "avx512bf16": "avx512bw",
    "avx512bitalg": "avx512bw",
    "avx512bw": "avx512f",
    "avx512cd": "avx512f",
    "avx512dq": "avx512f",
    "avx512f": "avx2",
    "avx512fp16": "avx512bw",
    "avx512ifma": "avx512f",
    "avx512vbmi": "avx512bw",
    "avx512vbmi2": "avx512bw",
    "avx512vl": "avx512f",
    "avx512vnni": "avx512f",
    "avx512vp2intersect": "avx512f",
    "avx512vpopcntdq": "avx512f",
    "avxvnni": "avx2",
    "bf16": "neon",
    "dotprod": "neon",
    "f16c": "avx",
    "fma": "avx",
    "fullfp16": "neon",
    "i8mm": "neon",
    "neon": "fp-armv8",
    "sse2": "sse",
    "sse3": "sse2",
    "sse4.1": "ssse3",
    "sse4.2": "sse4.1",
    "ssse3": "sse3",
    "sve": "fullfp16",
    "vaes": "avx",
    "vpclmulqdq": "avx",
}


@dataclass(frozen=True, slots=True)
class CpuRow:
    """One CPU. l1d and l2: bytes of one core; l3: bytes of one shared cache, 0 for none; l3_shared_by: cores that share it.

    vector_bits is 0 where the widest vectors of the ISA are the ones to use. system: operating system that goes without saying.
    """

    arch: str
    isa: frozenset[str]
    l1d: int
    l2: int
    l3: int
    l3_shared_by: int
    fma_units: int = 2
    fma_latency: int = 4
    vector_bits: int = 0
    line: int = 64
    system: str = "linux"
    peaks: Peaks | None = None


CPUS: dict[str, CpuRow] = {
    "x86-64": CpuRow("x86_64", _V1, 32 * KIB, 256 * KIB, 4 * MIB, 4, fma_units=1),
    "x86-64-v2": CpuRow("x86_64", _V2, 32 * KIB, 256 * KIB, 4 * MIB, 4, fma_units=1),
    "x86-64-v3": CpuRow("x86_64", _V3, 32 * KIB, 256 * KIB, 4 * MIB, 4),
    "x86-64-v4": CpuRow("x86_64", _V4, 32 * KIB, 1 * MIB, 8 * MIB, 4),
    "haswell": CpuRow("x86_64", _V3, 32 * KIB, 256 * KIB, 8 * MIB, 4, fma_latency=5),
    "skylake": CpuRow("x86_64", _V3, 32 * KIB, 256 * KIB, 8 * MIB, 4),
    "alderlake": CpuRow("x86_64", _ALDER, 48 * KIB, 1280 * KIB, 25 * MIB, 8),
    "skylake-avx512": CpuRow("x86_64", _V4, 32 * KIB, 1 * MIB, 22 * MIB, 16),
    "cascadelake": CpuRow("x86_64", _CASCADE, 32 * KIB, 1 * MIB, 22 * MIB, 16),
    "icelake-server": CpuRow("x86_64", _ICE, 48 * KIB, 1280 * KIB, 48 * MIB, 32),
    "sapphirerapids": CpuRow("x86_64", _SAPPHIRE, 48 * KIB, 2 * MIB, 105 * MIB, 56),
    "emeraldrapids": CpuRow("x86_64", _SAPPHIRE, 48 * KIB, 2 * MIB, 260 * MIB, 56),
    "znver2": CpuRow("x86_64", _V3, 32 * KIB, 512 * KIB, 16 * MIB, 4, fma_latency=5),
    "znver3": CpuRow("x86_64", _V3 | {"vaes", "vpclmulqdq"}, 32 * KIB, 512 * KIB, 32 * MIB, 8),
    # Zen 4 runs a 512-bit operation as two halves: one multiply-add per cycle, but half the instructions of 256-bit code.
    "znver4": CpuRow("x86_64", _ZEN4, 32 * KIB, 1 * MIB, 32 * MIB, 8, fma_units=1),
    "znver5": CpuRow(
        "x86_64", _ZEN5, 48 * KIB, 1 * MIB, 32 * MIB, 8,
        peaks=Peaks(f32=260.0, bf16=514.0, int8=1049.0, l1=447.0, l2=254.0, l3=122.0, memory=38.0),
    ),
    "generic": CpuRow("aarch64", _ARM8, 32 * KIB, 256 * KIB, 2 * MIB, 4, fma_units=1),
    "cortex-a72": CpuRow("aarch64", _ARM8, 32 * KIB, 1 * MIB, 0, 1, fma_units=1, fma_latency=7),
    "cortex-a76": CpuRow("aarch64", _ARM82, 64 * KIB, 512 * KIB, 2 * MIB, 4),
    "neoverse-n1": CpuRow("aarch64", _ARM82, 64 * KIB, 1 * MIB, 32 * MIB, 64),
    # SVE is there, at 256 bits, but vectors of fixed width are NEON's.
    "neoverse-v1": CpuRow("aarch64", _SVE, 64 * KIB, 1 * MIB, 32 * MIB, 64, fma_units=4),
    "neoverse-v2": CpuRow("aarch64", _SVE, 64 * KIB, 2 * MIB, 114 * MIB, 72, fma_units=4),
    "apple-m1": CpuRow("aarch64", _ARM82, 128 * KIB, 3 * MIB, 8 * MIB, 4, fma_units=4, line=128, system="macos"),
    "apple-m2": CpuRow("aarch64", _ARM86, 128 * KIB, 4 * MIB, 8 * MIB, 4, fma_units=4, line=128, system="macos"),
}  # fmt: skip

# Triples by architecture and operating system.
TRIPLES: dict[tuple[str, str], str] = {
    ("x86_64", "linux"): "x86_64-unknown-linux-gnu",
    ("x86_64", "macos"): "x86_64-apple-macosx",
    ("x86_64", "windows"): "x86_64-pc-windows-msvc",
    ("aarch64", "linux"): "aarch64-unknown-linux-gnu",
    ("aarch64", "macos"): "arm64-apple-macosx",
    ("aarch64", "windows"): "aarch64-pc-windows-msvc",
}


def widest_vector_bits(isa: frozenset[str]) -> int:
    """Width of the widest vectors of fixed size that an ISA has."""
    if "avx512f" in isa:
        return 512
    return 256 if "avx" in isa else 128


def vector_register_count(arch: str, isa: frozenset[str]) -> int:
    """Number of architectural vector registers: 16 on x86 before AVX-512, else 32."""
    return 16 if arch == "x86_64" and "avx512f" not in isa else 32


def without_feature(isa: frozenset[str], feature: str) -> frozenset[str]:
    """`isa` without `feature` and without all that need it."""
    lost = {feature}
    while grown := {name for name in isa - lost if FEATURE_NEEDS.get(name) in lost}:
        lost |= grown
    return isa - lost


def with_feature(isa: frozenset[str], feature: str) -> frozenset[str]:
    """`isa` with `feature` and all that it needs."""
    gained = {feature}
    while (needed := FEATURE_NEEDS.get(feature)) is not None:
        gained.add(needed)
        feature = needed
    return isa | gained
