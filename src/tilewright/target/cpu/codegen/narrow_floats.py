"""Floats of 16 bits and fewer: their bits to `float`, rounding a `float` to them, and back to bits, in integer operations.

Follows NumPy and ml_dtypes: round to nearest even, no saturation (past the greatest value comes infinity where the format has one, else
NaN; float4e2m1, which has neither, gives its greatest value). Works on scalars (0 lanes) and vectors alike, without branches.
`native`: dtypes of 16 bits to which an instruction rounds; that of bfloat16 takes subnormal numbers as 0, and keeps other NaN than 0x7fc0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Number
from tilewright.target.cpu.codegen.llvm_types import memory_type, number, splat_constant, vector
from tilewright.target.cpu.codegen.text import Function, Operand

F32_INFINITY, F32_NAN, F32_MAGNITUDE, F32_SIGN = 0x7F800000, 0x7FC00000, 0x7FFFFFFF, -0x80000000

Native: TypeAlias = frozenset[DType]
LEAST_LANES = 4  # of a vector that the instruction takes which rounds to bfloat16


@dataclass(frozen=True, slots=True)
class _Format:
    """mantissa: bits of it. bias: of the exponent. top: bits of the greatest finite magnitude. specials: what lies above it."""

    mantissa: int
    bias: int
    top: int
    specials: Literal["infinity", "nan", "unsigned zero", "none"]

    @property
    def shift(self) -> int:
        return 23 - self.mantissa

    @property
    def least_exponent(self) -> int:
        """Exponent of the least normal number."""
        return 1 - self.bias

    @property
    def has_f32_range(self) -> bool:
        return self.bias == 127


_FORMATS: dict[DType, _Format] = {
    dtypes.float16: _Format(10, 15, 0x7BFF, "infinity"),
    dtypes.bfloat16: _Format(7, 127, 0x7F7F, "infinity"),
    dtypes.float8e5m2: _Format(2, 15, 0x7B, "infinity"),
    dtypes.float8e4m3fn: _Format(3, 7, 0x7E, "nan"),
    dtypes.float8e5m2fnuz: _Format(2, 16, 0x7F, "unsigned zero"),
    dtypes.float8e4m3fnuz: _Format(3, 8, 0x7F, "unsigned zero"),
    dtypes.float4e2m1: _Format(1, 1, 0x7, "none"),
}


@cache
def _f32_bits(value: float) -> int:
    result: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return result


class _Lanes:
    """Instructions on i32 and float of one number of lanes, in the middle of an emission."""

    __slots__ = ("fn", "lanes", "real", "whole")

    def __init__(self, fn: Function, lanes: int) -> None:
        self.fn, self.lanes = fn, lanes
        self.whole, self.real = vector("i32", lanes), vector("float", lanes)

    def constant(self, value: Number, dtype: DType = dtypes.int32) -> Operand:
        text = number(value, dtype)
        return splat_constant(text, "i32" if dtype is dtypes.int32 else "float", self.lanes) if self.lanes else text

    def integer(self, op: str, a: Operand, b: int | str) -> str:
        return self.fn.op(f"{op} {self.whole} {a}, {self.constant(b) if isinstance(b, int) else b}")

    def test(self, how: str, a: Operand, b: int) -> str:
        return self.fn.op(f"icmp {how} {self.whole} {a}, {self.constant(b)}")

    def choose(self, condition: str, if_true: int | str, if_false: Operand) -> str:
        chosen = self.constant(if_true) if isinstance(if_true, int) else if_true
        return self.fn.op(f"select {vector('i1', self.lanes)} {condition}, {self.whole} {chosen}, {self.whole} {if_false}")

    def bits(self, real: Operand) -> str:
        return self.fn.op(f"bitcast {self.real} {real} to {self.whole}")

    def from_bits(self, whole: Operand) -> str:
        return self.fn.op(f"bitcast {self.whole} {whole} to {self.real}")


def decode(fn: Function, bits: Operand, dtype: DType, lanes: int, native: Native) -> str:
    """The `float` whose value the element `bits` (of `memory_type(dtype)`) has."""
    if dtype is dtypes.float16 and dtype in native:
        half = fn.op(f"bitcast {vector('i16', lanes)} {bits} to {vector('half', lanes)}")
        return fn.op(f"fpext {vector('half', lanes)} {half} to {vector('float', lanes)}")
    on = _Lanes(fn, lanes)
    code = fn.op(f"zext {vector(memory_type(dtype), lanes)} {bits} to {on.whole}")
    if dtype is dtypes.float8e8m0:
        wide = on.integer("shl", code, 23)
        wide = on.choose(on.test("eq", code, 0), _f32_bits(2.0**-127), wide)
        return on.from_bits(on.choose(on.test("eq", code, 255), F32_NAN, wide))
    form = _FORMATS[dtype]
    if form.has_f32_range:
        return on.from_bits(on.integer("shl", code, 16))
    width = dtype.bits
    magnitude = on.integer("and", code, (1 << (width - 1)) - 1)
    wide = on.integer("add", on.integer("shl", magnitude, form.shift), (127 - form.bias) << 23)
    counted = fn.op(f"uitofp {on.whole} {magnitude} to {on.real}")
    unit = on.constant(2.0 ** (form.least_exponent - form.mantissa), dtypes.float32)
    tiny = on.bits(fn.op(f"fmul {on.real} {counted}, {unit}"))
    wide = on.choose(on.test("ult", magnitude, 1 << form.mantissa), tiny, wide)
    if form.specials == "infinity":
        special = on.integer("or", on.integer("shl", on.integer("and", magnitude, (1 << form.mantissa) - 1), form.shift), F32_INFINITY)
        wide = on.choose(on.test("ugt", magnitude, form.top), special, wide)
    elif form.specials == "nan":
        wide = on.choose(on.test("ugt", magnitude, form.top), F32_NAN, wide)
    sign = on.integer("shl", on.integer("and", code, 1 << (width - 1)), 32 - width)
    wide = on.integer("or", wide, sign)
    if form.specials == "unsigned zero":
        wide = on.choose(on.test("eq", code, 1 << (width - 1)), F32_NAN, wide)
    return on.from_bits(wide)


def round_to(fn: Function, value: Operand, dtype: DType, lanes: int, native: Native) -> str:
    """The `float` value rounded to one that `dtype` has."""
    on = _Lanes(fn, lanes)
    if dtype is dtypes.float16 and dtype in native:
        half = fn.op(f"fptrunc {on.real} {value} to {vector('half', lanes)}")
        return fn.op(f"fpext {vector('half', lanes)} {half} to {on.real}")
    if dtype in native and lanes >= LEAST_LANES:
        brain = fn.op(f"fptrunc {on.real} {value} to {vector('bfloat', lanes)}")
        code = fn.op(f"bitcast {vector('bfloat', lanes)} {brain} to {vector('i16', lanes)}")
        return on.from_bits(on.integer("shl", fn.op(f"zext {vector('i16', lanes)} {code} to {on.whole}"), 16))
    bits = on.bits(value)
    magnitude = on.integer("and", bits, F32_MAGNITUDE)
    if dtype is dtypes.float8e8m0:
        power = on.integer("lshr", on.integer("add", magnitude, 1 << 22), 23)
        wide = on.choose(on.test("eq", power, 0), _f32_bits(2.0**-127), on.integer("shl", power, 23))
        wide = on.choose(on.test("slt", bits, 1), F32_NAN, wide)
        return on.from_bits(on.choose(on.test("ugt", magnitude, F32_INFINITY - (1 << 22) - 1), F32_NAN, wide))
    form = _FORMATS[dtype]
    last = on.integer("and", on.integer("lshr", magnitude, form.shift), 1)
    up = on.integer("add", on.integer("add", magnitude, (1 << (form.shift - 1)) - 1), last)
    wide = on.integer("and", up, -(1 << form.shift))
    if not form.has_f32_range:
        # Below the least normal number the step is fixed: adding and taking off a number with that step rounds to it.
        step = on.constant(2.0 ** (form.least_exponent - form.mantissa + 23), dtypes.float32)
        lifted = fn.op(f"fadd {on.real} {on.from_bits(magnitude)}, {step}")
        tiny = on.bits(fn.op(f"fsub {on.real} {lifted}, {step}"))
        wide = on.choose(on.test("ult", magnitude, _f32_bits(2.0**form.least_exponent)), tiny, wide)
        top = _top_bits(form)
        over = {"infinity": F32_INFINITY, "none": top}.get(form.specials, F32_NAN)
        wide = on.choose(on.test("ugt", wide, top), over, wide)
    sign = on.integer("and", bits, F32_SIGN)
    if form.specials == "unsigned zero":
        sign = on.choose(on.test("eq", wide, 0), 0, sign)
    wide = on.integer("or", wide, sign)
    is_nan = on.test("ugt", magnitude, F32_INFINITY)
    return on.from_bits(on.choose(is_nan, F32_SIGN if form.specials == "none" else F32_NAN, wide))


def encode(fn: Function, value: Operand, dtype: DType, lanes: int, native: Native) -> str:
    """The bits (of `memory_type(dtype)`) of a `float` that `dtype` holds exactly, as `round_to` gives."""
    on = _Lanes(fn, lanes)
    memory = vector(memory_type(dtype), lanes)
    if dtype is dtypes.float16 and dtype in native:
        half = fn.op(f"fptrunc {on.real} {value} to {vector('half', lanes)}")
        return fn.op(f"bitcast {vector('half', lanes)} {half} to {memory}")
    bits = on.bits(value)
    if dtype is dtypes.float8e8m0:
        code = on.choose(on.test("ugt", bits, F32_INFINITY), 255, on.integer("lshr", bits, 23))
        return fn.op(f"trunc {on.whole} {code} to {memory}")
    form = _FORMATS[dtype]
    if form.has_f32_range:
        return fn.op(f"trunc {on.whole} {on.integer('lshr', bits, 16)} to {memory}")
    magnitude = on.integer("and", bits, F32_MAGNITUDE)
    code = on.integer("sub", on.integer("lshr", magnitude, form.shift), (127 - form.bias) << form.mantissa)
    scale = on.constant(2.0 ** (form.mantissa - form.least_exponent), dtypes.float32)
    counted = fn.op(f"fmul {on.real} {on.from_bits(magnitude)}, {scale}")
    # Frozen, since the lanes that are not taken may be past the range of i32.
    tiny = fn.op(f"freeze {on.whole} {fn.op(f'fptosi {on.real} {counted} to {on.whole}')}")
    code = on.choose(on.test("ult", magnitude, _f32_bits(2.0**form.least_exponent)), tiny, code)
    if form.specials == "infinity":
        code = on.choose(on.test("eq", magnitude, F32_INFINITY), form.top + 1, code)
    nan = {"infinity": form.top + 1 + (1 << (form.mantissa - 1)), "nan": form.top + 1, "unsigned zero": 0, "none": 0}[form.specials]
    code = on.choose(on.test("ugt", magnitude, F32_INFINITY), nan, code)
    sign = on.integer("lshr", on.integer("and", bits, F32_SIGN), 32 - dtype.bits)
    if form.specials == "unsigned zero":
        sign = on.choose(on.test("ugt", magnitude, F32_INFINITY), 1 << (dtype.bits - 1), sign)
    return fn.op(f"trunc {on.whole} {on.integer('or', code, sign)} to {memory}")


def _top_bits(form: _Format) -> int:
    return (form.top << form.shift) + ((127 - form.bias) << 23)
