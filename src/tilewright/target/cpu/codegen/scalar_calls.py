"""Functions that are called for one element at a time: the remainder of floats, and calls into other code."""

from __future__ import annotations

from tilewright.ir.dtypes import DType
from tilewright.target.cpu.codegen.llvm_types import value_type, vector
from tilewright.target.cpu.codegen.text import Function, Operand

# Exact, as fmod: the divisor is doubled while it fits, then taken off and halved. A doubled number loses no bits, and a difference of two
# numbers within a factor of two of each other neither (Sterbenz's lemma).
_REMAINDER = """\
define internal TYPE @tw.remainder.TYPE(TYPE %x, TYPE %y) noinline ATTRIBUTES {
entry:
  %r0 = call TYPE @llvm.fabs.SUFFIX(TYPE %x)
  %b = call TYPE @llvm.fabs.SUFFIX(TYPE %y)
  %nonzero = fcmp ogt TYPE %b, 0.0
  %finite = fcmp olt TYPE %r0, 0x7FF0000000000000
  %number = fcmp ord TYPE %y, %y
  %some = and i1 %nonzero, %finite
  %good = and i1 %some, %number
  br i1 %good, label %double, label %nothing
nothing:
  ret TYPE 0x7FF8000000000000
double:
  %s = phi TYPE [ %b, %entry ], [ %twice, %more ]
  %left = fsub TYPE %r0, %s
  %fits = fcmp ole TYPE %s, %left
  br i1 %fits, label %more, label %reduce
more:
  %twice = fadd TYPE %s, %s
  br label %double
reduce:
  %t = phi TYPE [ %s, %double ], [ %half, %next ]
  %r = phi TYPE [ %r0, %double ], [ %r1, %next ]
  %over = fcmp oge TYPE %r, %t
  %less = fsub TYPE %r, %t
  %r1 = select i1 %over, TYPE %less, TYPE %r
  %last = fcmp ole TYPE %t, %b
  br i1 %last, label %done, label %next
next:
  %half = fmul TYPE %t, 0.5
  br label %reduce
done:
  %signed = call TYPE @llvm.copysign.SUFFIX(TYPE %r1, TYPE %x)
  ret TYPE %signed
}"""


def float_remainder(fn: Function, dtype: DType, a: Operand, b: Operand, lanes: int) -> Operand:
    """a - b * trunc(a / b), exact, with the sign of `a`; NaN where `b` is 0 or `a` is infinite."""
    scalar = value_type(dtype)
    suffix = "f32" if scalar == "float" else "f64"
    fn.module.declare(f"declare {scalar} @llvm.fabs.{suffix}({scalar})")
    fn.module.declare(f"declare {scalar} @llvm.copysign.{suffix}({scalar}, {scalar})")
    text = _REMAINDER.replace("TYPE", scalar).replace("SUFFIX", suffix).replace("ATTRIBUTES", fn.module.attributes)
    fn.module.define(text)
    return lane_by_lane(fn, f"@tw.remainder.{scalar}", scalar, [a, b], lanes)


def lane_by_lane(fn: Function, function: str, scalar: str, args: list[Operand], lanes: int) -> Operand:
    """`function` of values of LLVM type `scalar`, called once, or for each lane."""
    if not lanes:
        return fn.op(f"call {scalar} {function}({', '.join([f'{scalar} {a}' for a in args])})")
    type_ = vector(scalar, lanes)
    result: Operand = "poison"
    for lane in range(lanes):
        parts = [fn.op(f"extractelement {type_} {a}, i64 {lane}") for a in args]
        one = fn.op(f"call {scalar} {function}({', '.join([f'{scalar} {p}' for p in parts])})")
        result = fn.op(f"insertelement {type_} {result}, {scalar} {one}, i64 {lane}")
    return result
