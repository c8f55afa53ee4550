"""Operators on values in registers: the same text serves scalars (0 lanes) and vectors.

Chosen here, and why:

* Float add, sub and mul carry `contract`, so that LLVM forms FMAs. No other fast-math flag: NaN, infinity and -0 keep their meaning.
* max(a, b) that propagates NaN is compare and select: one instruction on x86 when one side is a constant (`vmaxps` gives its second
  operand when either is NaN), two in general; `llvm.maximum` would take six there. On AArch64 it is one instruction.
* Integer division never traps: a zero divisor, and -1 (whose quotient of the least number overflows), are replaced by 1.
* Shifts by the width or more give 0 (arithmetic right shift: the sign), as in NumPy.
"""

from __future__ import annotations

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op, evaluate
from tilewright.target.cpu.codegen.conversions import mangled
from tilewright.target.cpu.codegen.llvm_types import number, splat_constant, value_type, vector
from tilewright.target.cpu.codegen.scalar_calls import float_remainder, lane_by_lane
from tilewright.target.cpu.codegen.text import Function, Operand

_INTEGER = {Op.ADD: "add", Op.SUB: "sub", Op.MUL: "mul", Op.AND: "and", Op.OR: "or", Op.XOR: "xor"}
_STRICT = {Op.ADD: "fadd", Op.SUB: "fsub", Op.MUL: "fmul", Op.DIV: "fdiv"}
_FLOAT = {Op.ADD: "fadd contract", Op.SUB: "fsub contract", Op.MUL: "fmul contract", Op.DIV: "fdiv"}
_COMPARE = {Op.EQ: ("eq", "oeq"), Op.NE: ("ne", "une"), Op.LT: ("lt", "olt"), Op.LE: ("le", "ole")}
_FOLDED = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD, Op.MIN, Op.MAX})
_FOLDED_TESTS = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE})


def constant(value: bool | int | float, dtype: DType, lanes: int) -> Operand:
    """The constant, in every lane."""
    text = number(value, dtype)
    return splat_constant(text, value_type(dtype), lanes) if lanes else text


def binary(
    fn: Function, op: Op, dtype: DType, a: Operand, b: Operand, lanes: int, *, indexing: bool = False, native_max: bool = False
) -> Operand:
    """`a op b` on operands of `dtype`, not yet rounded to a narrow float.

    indexing: no loaded value is in it, so that overflow cannot occur. native_max: `llvm.maximum` is cheap here.
    """
    if type(a) is int and type(b) is int:
        folded = _fold(op, a, b)
        if folded is not None:
            return folded
    if op is Op.MUL and indexing and dtype is dtypes.int64 and (a == 0 or b == 0) and not lanes:
        return 0
    type_ = vector(value_type(dtype), lanes)
    if op in _COMPARE:
        integer, real = _COMPARE[op]
        if dtype.is_float:
            return fn.op(f"fcmp {real} {type_} {a}, {b}")
        sign = "" if op in (Op.EQ, Op.NE) else ("s" if dtype.kind == "int" else "u")
        return fn.op(f"icmp {sign}{integer} {type_} {a}, {b}")
    if op in (Op.MIN, Op.MAX):
        if dtype.is_float:
            return _float_extreme(fn, op, dtype, a, b, lanes, native_max)
        return _intrinsic(fn, f"{'s' if dtype.kind == 'int' else 'u'}{op.value}", dtype, (a, b), lanes)
    if dtype.is_float:
        if op is Op.TRUNCMOD:
            return float_remainder(fn, dtype, a, b, lanes)
        return fn.op(f"{(_FLOAT if fn.module.contract else _STRICT)[op]} {type_} {a}, {b}")
    if op in _INTEGER:
        no_wrap = " nsw" if indexing and op in (Op.ADD, Op.SUB, Op.MUL) and dtype is dtypes.int64 else ""
        return fn.op(f"{_INTEGER[op]}{no_wrap} {type_} {a}, {b}")
    if op in (Op.SHL, Op.SHR):
        return _shift(fn, op, dtype, a, b, lanes)
    return _divide(fn, op, dtype, a, b, lanes)


def _fold(op: Op, a: int, b: int) -> Operand | None:
    if op in _FOLDED:
        value = evaluate(op, dtypes.int64, a, b)
        return None if value is None else int(value)
    if op in _FOLDED_TESTS:
        return "true" if evaluate(op, dtypes.int64, a, b) else "false"
    return None


def divide_known(fn: Function, op: Op, a: Operand, divisor: int, lanes: int, *, nonnegative: bool) -> Operand:
    """Floor division or modulo of an int64 by a positive constant. nonnegative: `a` is known not to be negative."""
    type_ = vector("i64", lanes)
    if divisor & (divisor - 1) == 0:
        if op is Op.FLOORDIV:
            return fn.op(f"ashr {type_} {a}, {constant(divisor.bit_length() - 1, dtypes.int64, lanes)}")
        return fn.op(f"and {type_} {a}, {constant(divisor - 1, dtypes.int64, lanes)}")
    by = constant(divisor, dtypes.int64, lanes)
    if nonnegative:
        return fn.op(f"{'udiv' if op is Op.FLOORDIV else 'urem'} {type_} {a}, {by}")
    zero = constant(0, dtypes.int64, lanes)
    remainder = fn.op(f"srem {type_} {a}, {by}")
    below = fn.op(f"icmp slt {type_} {remainder}, {zero}")
    mask = vector("i1", lanes)
    if op is Op.FLOORMOD:
        fixed = fn.op(f"select {mask} {below}, {type_} {by}, {type_} {zero}")
        return fn.op(f"add {type_} {remainder}, {fixed}")
    quotient = fn.op(f"sdiv {type_} {a}, {by}")
    return fn.op(f"add {type_} {quotient}, {fn.op(f'sext {mask} {below} to {type_}')}")


def _divide(fn: Function, op: Op, dtype: DType, a: Operand, b: Operand, lanes: int) -> Operand:
    type_, mask = vector(value_type(dtype), lanes), vector("i1", lanes)
    zero, one = constant(0, dtype, lanes), constant(1, dtype, lanes)
    signed = dtype.kind == "int"
    bad = fn.op(f"icmp eq {type_} {b}, {zero}")
    if signed:
        overflow = fn.op(f"icmp eq {type_} {b}, {constant(-1, dtype, lanes)}")
        negated = fn.op(f"sub {type_} {zero}, {a}")
        bad = fn.op(f"or {mask} {bad}, {overflow}")
    by = fn.op(f"select {mask} {bad}, {type_} {one}, {type_} {b}")
    quotient = fn.op(f"{'sdiv' if signed else 'udiv'} {type_} {a}, {by}")
    if signed and op in (Op.TRUNCDIV, Op.FLOORDIV):
        quotient = fn.op(f"select {mask} {overflow}, {type_} {negated}, {type_} {quotient}")
    if op is Op.TRUNCDIV or (op is Op.FLOORDIV and not signed):
        return quotient
    remainder = fn.op(f"{'srem' if signed else 'urem'} {type_} {a}, {by}")
    if op is Op.TRUNCMOD or not signed:
        return remainder
    # Floor: one less than truncation where the remainder is not zero and has the other sign than the divisor.
    differs = fn.op(f"icmp slt {type_} {fn.op(f'xor {type_} {remainder}, {by}')}, {zero}")
    inexact = fn.op(f"icmp ne {type_} {remainder}, {zero}")
    below = fn.op(f"and {mask} {differs}, {inexact}")
    if op is Op.FLOORDIV:
        return fn.op(f"add {type_} {quotient}, {fn.op(f'sext {mask} {below} to {type_}')}")
    return fn.op(f"add {type_} {remainder}, {fn.op(f'select {mask} {below}, {type_} {by}, {type_} {zero}')}")


def _shift(fn: Function, op: Op, dtype: DType, a: Operand, b: Operand, lanes: int) -> Operand:
    type_, mask = vector(value_type(dtype), lanes), vector("i1", lanes)
    arithmetic = op is Op.SHR and dtype.kind == "int"
    name = "shl" if op is Op.SHL else ("ashr" if arithmetic else "lshr")
    inside = fn.op(f"icmp ult {type_} {b}, {constant(dtype.bits, dtype, lanes)}")
    last = constant(dtype.bits - 1, dtype, lanes)
    amount = fn.op(f"select {mask} {inside}, {type_} {b}, {type_} {last}")
    shifted = fn.op(f"{name} {type_} {a}, {amount}")
    return shifted if arithmetic else fn.op(f"select {mask} {inside}, {type_} {shifted}, {type_} {constant(0, dtype, lanes)}")


def _float_extreme(fn: Function, op: Op, dtype: DType, a: Operand, b: Operand, lanes: int, native_max: bool) -> Operand:
    if native_max:
        return _intrinsic(fn, "maximum" if op is Op.MAX else "minimum", dtype, (a, b), lanes)
    type_, mask = vector(value_type(dtype), lanes), vector("i1", lanes)
    how = "ogt" if op is Op.MAX else "olt"
    if _is_constant(a) or _is_constant(b):
        # `vmaxps a, b` is `a > b ? a : b`, so that NaN in either gives `b`: all that is needed when `a` is a constant.
        a, b = (a, b) if _is_constant(a) else (b, a)
        better = fn.op(f"fcmp {how} {type_} {a}, {b}")
        return fn.op(f"select {mask} {better}, {type_} {a}, {type_} {b}")
    # NaN in `a` comes through the select, NaN in `b` through the second one: a maximum under a mask. Only the maximum is on the way from
    # `a`, the accumulator of a reduction, to the result.
    better = fn.op(f"fcmp {how} {type_} {b}, {a}")
    result = fn.op(f"select {mask} {better}, {type_} {b}, {type_} {a}")
    is_number = fn.op(f"fcmp ord {type_} {b}, {b}")
    return fn.op(f"select {mask} {is_number}, {type_} {result}, {type_} {b}")


def _is_constant(operand: Operand) -> bool:
    return type(operand) is int or not str(operand).startswith("%")


_NATIVE = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc", "copysign": "copysign", "fma": "fma",
    "fmuladd": "fmuladd",
}  # fmt: skip


def is_native(name: str) -> bool:
    """Whether an intrinsic of the expressions is an instruction (or few) rather than a function to be expanded."""
    return name in _NATIVE or name in ("abs", "rsqrt", "reciprocal_normal", "may_flush", "isnan", "isinf", "popcount")


def call(fn: Function, e: Expr, args: list[Operand], lanes: int, *, native_fma: bool = True, rough_reciprocal: bool = False) -> Operand:
    """The intrinsic that `e` calls, on emitted arguments; functions that are not native become calls of the C library, lane by lane.

    native_fma: there is an instruction for it; else `fma` is a product and a sum, each rounded, since the C library's is slow.
    rough_reciprocal: there is an instruction for 14 bits of a reciprocal.
    """
    name: str = e.attr
    if name == "fma" and not native_fma:
        name = "fmuladd"
    dtype = e.args[0].dtype
    type_ = vector(value_type(dtype), lanes)
    if name == "abs":
        if dtype.is_float:
            return _intrinsic(fn, "fabs", dtype, tuple(args), lanes)
        if dtype.kind == "uint":
            return args[0]
        full = f"@llvm.abs.{mangled(value_type(dtype), lanes)}"
        fn.module.declare(f"declare {type_} {full}({type_}, i1 immarg)")
        return fn.op(f"call {type_} {full}({type_} {args[0]}, i1 false)")
    if name == "popcount":
        return _intrinsic(fn, "ctpop", dtype, tuple(args), lanes)
    if name == "isnan":
        return fn.op(f"fcmp uno {type_} {args[0]}, {args[0]}")
    if name == "isinf":
        magnitude = _intrinsic(fn, "fabs", dtype, tuple(args), lanes)
        return fn.op(f"fcmp oeq {type_} {magnitude}, {constant(float('inf'), dtype, lanes)}")
    if name == "may_flush":
        return args[0]
    if name == "reciprocal_normal":
        return _reciprocal(fn, dtype, args[0], lanes, rough_reciprocal)
    if name == "rsqrt":
        root = _intrinsic(fn, "sqrt", dtype, tuple(args), lanes)
        return fn.op(f"fdiv {type_} {constant(1.0, dtype, lanes)}, {root}")
    if name in _NATIVE:
        return _intrinsic(fn, _NATIVE[name], dtype, tuple(args), lanes)
    scalar = value_type(dtype)
    full = f"@{name}{'f' if scalar == 'float' else ''}"
    fn.module.declare(f"declare {scalar} {full}({', '.join([scalar] * len(args))})")
    return lane_by_lane(fn, full, scalar, args, lanes)


def _reciprocal(fn: Function, dtype: DType, x: Operand, lanes: int, rough: bool) -> str:
    """1 / x of normal numbers: 14 bits of it, and a step of Newton's method. Processors divide vectors in parts, one after another."""
    type_, one = vector(value_type(dtype), lanes), constant(1.0, dtype, lanes)
    if not rough or dtype is not dtypes.float32 or lanes not in (4, 8, 16):
        return fn.op(f"fdiv {type_} {one}, {x}")
    name, mask = f"@llvm.x86.avx512.rcp14.ps.{32 * lanes}", "i8" if lanes < 16 else "i16"
    fn.module.declare(f"declare {type_} {name}({type_}, {type_}, {mask})")
    first = fn.op(f"call {type_} {name}({type_} {x}, {type_} zeroinitializer, {mask} -1)")
    negative = fn.op(f"fneg {type_} {x}")
    error = _intrinsic(fn, "fma", dtype, (negative, first, one), lanes)
    return _intrinsic(fn, "fma", dtype, (first, error, first), lanes)


def _intrinsic(fn: Function, name: str, dtype: DType, args: tuple[Operand, ...], lanes: int) -> str:
    scalar = value_type(dtype)
    type_, full = vector(scalar, lanes), f"@llvm.{name}.{mangled(scalar, lanes)}"
    fn.module.declare(f"declare {type_} {full}({', '.join([type_] * len(args))})")
    return fn.op(f"call {type_} {full}({', '.join([f'{type_} {a}' for a in args])})")
