"""What code generation asks about the machine."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.machine.description import Machine
from tilewright.target.cpu.dots import DotInstruction, MatrixInstruction, dot_instructions, matrix_instructions, rounds_bf16


@dataclass(frozen=True, slots=True)
class Style:
    """What emission needs to know of the machine. native_floats: dtypes of 16 bits to which one instruction rounds a float32.
    flushed_floats: the same, with subnormal numbers as 0.
    native_fma: so is a fused multiply-add. native_max: so is a maximum that propagates NaN. rough_reciprocal: so are 14 bits
    of 1 / x. vector_bits: of one register. dots: instructions that sum products of narrow integers. tiles: those that multiply tiles."""

    native_floats: frozenset[DType]
    flushed_floats: frozenset[DType]
    native_fma: bool
    native_max: bool
    rough_reciprocal: bool
    masks: bool
    vector_bits: int
    dots: tuple[DotInstruction, ...]
    tiles: tuple[MatrixInstruction, ...]


def style_of(machine: Machine) -> Style:
    arm = machine.arch == "aarch64"
    return Style(
        native_floats=frozenset({dtypes.float16} if arm or machine.has("f16c") else ()),
        flushed_floats=frozenset({dtypes.bfloat16} if rounds_bf16(machine) else ()),
        native_fma=arm or machine.has("fma"),
        native_max=arm,
        rough_reciprocal=machine.has("avx512vl"),
        masks=machine.has("avx512vl"),
        vector_bits=max(machine.vector_bits, 64),
        dots=dot_instructions(machine),
        tiles=matrix_instructions(machine),
    )
