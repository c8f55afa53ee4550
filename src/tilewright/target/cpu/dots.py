"""Instructions that add products of narrow numbers to 32-bit sums, and which of them a machine has.

`vpdpbusd` (AVX512_VNNI, AVX-VNNI) adds four products of an unsigned and a signed byte, `sdot` and `udot` (Armv8.2 dot product) of two
signed or two unsigned ones, `usdot` (i8mm) of both kinds. `vpdpwssd` (VNNI) and `vpmaddwd` (SSE2 and up) add two products of 16-bit
numbers, which bytes are widened to. All are exact: no intermediate saturates, as that of `vpmaddubsw` would.

`vdpbf16ps` (AVX512_BF16) and `bfdot` (Armv8.6 BF16) add two products of bfloat16 to a float32 sum. Subnormal numbers count as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.machine.description import Machine


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """factors: products that it adds to each sum. left, right: dtypes of its factors; narrower ones are converted."""

    name: str
    factors: int
    left: DType
    right: DType

    @property
    def sums(self) -> DType:
        """Dtype of the sums."""
        return dtypes.float32 if self.left.is_float else dtypes.int32


VPDPBUSD = DotInstruction("vpdpbusd", 4, dtypes.uint8, dtypes.int8)
SDOT = DotInstruction("sdot", 4, dtypes.int8, dtypes.int8)
UDOT = DotInstruction("udot", 4, dtypes.uint8, dtypes.uint8)
USDOT = DotInstruction("usdot", 4, dtypes.uint8, dtypes.int8)
VPDPWSSD = DotInstruction("vpdpwssd", 2, dtypes.int16, dtypes.int16)
VPMADDWD = DotInstruction("vpmaddwd", 2, dtypes.int16, dtypes.int16)
VDPBF16PS = DotInstruction("vdpbf16ps", 2, dtypes.bfloat16, dtypes.bfloat16)
BFDOT = DotInstruction("bfdot", 2, dtypes.bfloat16, dtypes.bfloat16)
WORDS = (VPDPWSSD, VPMADDWD)  # bytes are widened for them


def dot_instructions(machine: Machine) -> tuple[DotInstruction, ...]:
    """What the machine has, best first."""
    if machine.arch == "aarch64":
        integers = ((USDOT,) if machine.has("i8mm") else ()) + ((SDOT, UDOT) if machine.has("dotprod") else ())
        return integers + ((BFDOT,) if machine.has("bf16") else ())
    if machine.arch != "x86_64":
        return ()
    vnni = machine.has("avx512vnni") if machine.vector_bits == 512 else machine.has("avxvnni") or machine.has("avx512vnni", "avx512vl")
    wide = machine.vector_bits < 512 or machine.has("avx512bw")
    floats = (VDPBF16PS,) if machine.has("avx512bf16", "avx512vl") else ()
    return ((VPDPBUSD, VPDPWSSD) if vnni else ()) + ((VPMADDWD,) if wide else ()) + floats


def dot_instruction(machine: Machine, left: DType, right: DType) -> tuple[DotInstruction, bool] | None:
    """The instruction for products of two dtypes, and whether its operands are in the other order. None where there is none."""
    for found in dot_instructions(machine):
        for a, b, swapped in ((left, right, False), (right, left, True)):
            if (a, b) == (found.left, found.right) or (found in WORDS and _fits_16(a) and _fits_16(b)):
                return found, swapped
    return None


def _fits_16(dtype: DType) -> bool:
    return dtype.is_integer and (dtype.bits == 8 or dtype is dtypes.int16)


def activation_dtype(machine: Machine) -> DType:
    """The dtype of 8 bits that activations should have, so that an instruction takes them with signed weights."""
    found = dot_instructions(machine)
    return found[0].left if found and found[0] not in WORDS and found[0].left.is_integer else dtypes.uint8


def multiplies_bf16(machine: Machine) -> bool:
    """Whether an instruction takes bfloat16 factors."""
    return dot_instruction(machine, dtypes.bfloat16, dtypes.bfloat16) is not None
