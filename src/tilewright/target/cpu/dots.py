"""Instructions that add products of narrow numbers to 32-bit sums, and which of them a machine has.

`vpdpbusd` (AVX512_VNNI, AVX-VNNI) adds four products of an unsigned and a signed byte, `sdot` and `udot` (Armv8.2 dot product) of two
signed or two unsigned ones, `usdot` (i8mm) of both kinds. `vpdpwssd` (VNNI) and `vpmaddwd` (SSE2 and up) add two products of 16-bit
numbers, which bytes are widened to. Four bytes in a row are two pairs of such numbers, the even and the odd ones: a shift or a mask each
makes them, where loading them as 16 bits takes a shuffle for every pair. All are exact: no intermediate saturates, as that of `vpmaddubsw`
would.

`vdpbf16ps` (AVX512_BF16) and `bfdot` (Armv8.6 BF16) add two products of bfloat16 to a float32 sum. Subnormal numbers count as 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.machine.description import Machine


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """factors: products that it adds to each sum. left, right: dtypes of its factors; narrower ones are converted.

    What it costs, in operations on vectors: `operations` for itself, `rows` and `panel` to make its factors of what is broadcast or loaded,
    once for all tiles' sums that read them. `registers`: those that hold factors and intermediate results beside one for each vector of
    the panel, of which each takes `parts`. `chained`: whether the sum goes through all of it, so that its latency must be hidden.
    """

    name: str
    factors: int
    left: DType
    right: DType
    operations: int = 1
    rows: int = 0
    panel: int = 0
    registers: int = 1
    parts: int = 1
    chained: bool = True

    @property
    def sums(self) -> DType:
        """Dtype of the sums."""
        return dtypes.float32 if self.left.is_float else dtypes.int32


VPDPBUSD = DotInstruction("vpdpbusd", 4, dtypes.uint8, dtypes.int8)
SDOT = DotInstruction("sdot", 4, dtypes.int8, dtypes.int8)
UDOT = DotInstruction("udot", 4, dtypes.uint8, dtypes.uint8)
USDOT = DotInstruction("usdot", 4, dtypes.uint8, dtypes.int8)
VPDPWSSD = DotInstruction("vpdpwssd", 2, dtypes.int16, dtypes.int16)
VPMADDWD = DotInstruction("vpmaddwd", 2, dtypes.int16, dtypes.int16, operations=2, rows=2, panel=1, registers=2, chained=False)
EVEN_ODD = DotInstruction(
    "vpmaddwd of even and odd bytes", 4, dtypes.uint8, dtypes.int8, operations=4, rows=2, panel=3, registers=3, parts=2, chained=False
)
EVEN_ODD_VNNI = replace(EVEN_ODD, name="vpdpwssd of even and odd bytes", operations=2, chained=True)
VDPBF16PS = DotInstruction("vdpbf16ps", 2, dtypes.bfloat16, dtypes.bfloat16)
BFDOT = DotInstruction("bfdot", 2, dtypes.bfloat16, dtypes.bfloat16)
WORDS = (VPDPWSSD, VPMADDWD)  # bytes are widened for them
BYTES = (EVEN_ODD_VNNI, EVEN_ODD)  # of any signs


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """An instruction that adds the products of two tiles, of up to 16 rows of 64 bytes, to a tile of 16 x 16 sums of 32 bits (Intel AMX):
    each row of the left one with each lane of the right one, in which `factors` neighbours lie side by side."""

    name: str
    factors: int
    left: DType
    right: DType

    @property
    def sums(self) -> DType:
        """Dtype of the sums."""
        return dtypes.float32 if self.left.is_float else dtypes.int32


MATRIX_REGISTERS = 8
TILE_BYTES = 64  # of one row
TDP_BYTES = tuple(
    MatrixInstruction(f"tdpb{'s' if a is dtypes.int8 else 'u'}{'s' if b is dtypes.int8 else 'u'}d", 4, a, b)
    for a in (dtypes.uint8, dtypes.int8)
    for b in (dtypes.int8, dtypes.uint8)
)
TDPBF16PS = MatrixInstruction("tdpbf16ps", 2, dtypes.bfloat16, dtypes.bfloat16)


def matrix_instructions(machine: Machine) -> tuple[MatrixInstruction, ...]:
    """Those that the machine has; no other width of vectors than theirs is beside them."""
    if machine.arch != "x86_64" or machine.vector_bits != 512 or not machine.has("amx-tile"):
        return ()
    return (TDP_BYTES if machine.has("amx-int8") else ()) + ((TDPBF16PS,) if machine.has("amx-bf16") else ())


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
    return ((VPDPBUSD, EVEN_ODD_VNNI, VPDPWSSD) if vnni else ()) + ((EVEN_ODD, VPMADDWD) if wide else ()) + floats


def dot_instruction(machine: Machine, left: DType, right: DType) -> tuple[DotInstruction, bool] | None:
    """The instruction for products of two dtypes, and whether its operands are in the other order. None where there is none."""
    for found in dot_instructions(machine):
        for a, b, swapped in ((left, right, False), (right, left, True)):
            if takes(found, a, b):
                return found, swapped
    return None


def takes(instruction: DotInstruction, left: DType, right: DType) -> bool:
    """Whether factors of these dtypes are its own, or are converted to them."""
    if instruction in WORDS:
        return _fits_16(left) and _fits_16(right)
    if instruction in BYTES:
        return left.is_integer and right.is_integer and left.bits == right.bits == 8
    return (left, right) == (instruction.left, instruction.right)


def _fits_16(dtype: DType) -> bool:
    return dtype.is_integer and (dtype.bits == 8 or dtype is dtypes.int16)


def activation_dtype(machine: Machine) -> DType:
    """The dtype of 8 bits that activations should have, so that an instruction takes them with signed weights."""
    found = dot_instructions(machine)
    return found[0].left if found and found[0] not in WORDS and found[0].left.is_integer else dtypes.uint8


def multiplies_bf16(machine: Machine) -> bool:
    """Whether an instruction takes bfloat16 factors."""
    return dot_instruction(machine, dtypes.bfloat16, dtypes.bfloat16) is not None


def rounds_bf16(machine: Machine) -> bool:
    """Whether one instruction rounds a vector of float32 to bfloat16."""
    return machine.has("avx512bf16", "avx512vl")
