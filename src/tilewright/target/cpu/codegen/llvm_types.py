"""How dtypes look in LLVM: as values in registers, and in memory.

In registers a bool is `i1`, an integer has its own width (`i2` and `i4` too), float32 and float64 are themselves. Every narrower float is
held as the `float` that has its value: each operation computes in float32 and rounds, so that the value always fits. In memory a bool is
a byte, an integer of less than 8 bits the low part of a byte, narrow floats the integer of their bits.
"""

from __future__ import annotations

import struct
from functools import cache

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Number
from tilewright.support.errors import UnsupportedDtypeError
from tilewright.target.cpu.codegen.text import Operand


@cache
def value_type(dtype: DType) -> str:
    """LLVM's type of one value in a register."""
    if dtype.kind == "bool":
        return "i1"
    if dtype.is_integer:
        return f"i{dtype.bits}"
    if dtype.is_float:
        return "double" if dtype is dtypes.float64 else "float"
    raise UnsupportedDtypeError(f"CPU kernels cannot compute with {dtype}")


@cache
def memory_type(dtype: DType) -> str:
    """LLVM's type of one element in memory."""
    if dtype in (dtypes.float32, dtypes.float64):
        return value_type(dtype)
    if dtype.kind in ("complex", "string"):
        raise UnsupportedDtypeError(f"CPU kernels cannot hold {dtype}")
    return f"i{dtype.bytes * 8}"


@cache
def vector(type_: str, lanes: int) -> str:
    """`<lanes x type_>`, or the scalar type for 0 lanes."""
    return f"<{lanes} x {type_}>" if lanes else type_


@cache
def is_narrow_float(dtype: DType) -> bool:
    """A float that is held as `float` and rounded after each operation."""
    return dtype.is_float and dtype.bits < 32


def number(value: Number, dtype: DType) -> Operand:
    """The constant as text (int64: as a plain int). Floats are written by their bits, as LLVM wants those that decimals cannot say."""
    if dtype is dtypes.int64:
        return int(value)
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    bits: int = struct.unpack("<Q", struct.pack("<d", float(value)))[0]
    return f"0x{bits:016X}"


def splat_constant(value: Operand, type_: str, lanes: int) -> str:
    """A vector constant with equal lanes."""
    return "zeroinitializer" if value in (0, "0", "false", "0x0000000000000000") else f"splat ({type_} {value})"


@cache
def lane_numbers(type_: str, lanes: int, first: int = 0, step: int = 1) -> str:
    """The constant `<first, first + step, ...>`."""
    return "<" + ", ".join(f"{type_} {first + lane * step}" for lane in range(lanes)) + ">"


@cache
def shuffle_mask(indices: tuple[int, ...]) -> str:
    """The typed mask operand of a `shufflevector`."""
    return f"<{len(indices)} x i32> <" + ", ".join(f"i32 {index}" for index in indices) + ">"
