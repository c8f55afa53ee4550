"""The operators of scalar expressions and what they compute on Python scalars."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType


class Op(StrEnum):
    """The kinds of scalar expression. `attr` of the node is given in brackets where it is used."""

    __hash__ = str.__hash__  # Enum's own is a Python function, and every node built or looked up hashes its operator

    CONST = "const"  # [bool | int | float]
    VAR = "var"  # [VarInfo]
    LOAD = "load"  # [buffer], args are indices
    CALL = "call"  # [name of an intrinsic in INTRINSICS]
    CAST = "cast"  # value conversion to the node's dtype: float to int truncates, saturating is spelled out
    BITCAST = "bitcast"
    SELECT = "select"  # condition, value if true, value if false; both sides may be evaluated
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # floats only
    FLOORDIV = "floordiv"
    FLOORMOD = "floormod"
    TRUNCDIV = "truncdiv"
    TRUNCMOD = "truncmod"  # sign of the dividend; for floats: fmod
    MIN = "min"  # of floats: NaN when either is NaN
    MAX = "max"
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    AND = "and"  # bool or bitwise by dtype
    OR = "or"
    XOR = "xor"
    NOT = "not"
    SHL = "shl"
    SHR = "shr"  # arithmetic for signed, logical for unsigned


COMPARISONS = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE})
COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.MIN, Op.MAX, Op.EQ, Op.NE, Op.AND, Op.OR, Op.XOR})

# name -> number of arguments; all take and give one float dtype, except the predicates (bool), `fma` and the sums of products of DOTS
INTRINSICS: dict[str, int] = {
    "abs": 1, "sqrt": 1, "rsqrt": 1, "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log1p": 1, "log2": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1,
    "exp_nonpositive": 1, "asinh": 1, "acosh": 1, "atanh": 1, "erf": 1, "sigmoid": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1,
    "isnan": 1, "isinf": 1, "pow": 2, "atan2": 2, "copysign": 2, "fma": 3, "popcount": 1, "reciprocal_normal": 1,
    "may_flush": 1, "dot2": 5, "dot4": 9,
}  # fmt: skip
# `exp_nonpositive` and `reciprocal_normal` are cheaper than exp and 1 / x, and promise nothing about other arguments. The second wants
# those that are normal and have a normal reciprocal. `may_flush` is its argument: whoever rounds it may take subnormal numbers for 0.
BOOL_INTRINSICS = frozenset({"isnan", "isinf"})
# those that cost as much as tens of multiplications: nothing computes them twice to save a store
POLYNOMIALS = frozenset(
    {"exp", "exp_nonpositive", "log", "tanh", "erf", "sin", "cos", "tan", "pow", "sigmoid", "log1p", "expm1", "asin", "acos", "atan"}
)
DOTS: dict[str, int] = {
    "dot2": 2,
    "dot4": 4,
}  # name -> products n: dotn(sum, a_1 .. a_n, b_1 .. b_n) is sum + a_1 * b_1 + ...


def integer_of(value: float, dtype: DType) -> int:
    """A float as an integer: truncated, saturated to int32 (for uint32 and int64 to int64, for uint64 to itself), and of that the low
    bits. NaN is 0."""
    bits = 64 if dtype.bits == 64 or dtype is dtypes.uint32 else 32
    low, high = (0, (1 << 64) - 1) if dtype is dtypes.uint64 else (-1 << bits - 1, (1 << bits - 1) - 1)
    if math.isfinite(value):
        return wrap_integer(min(max(int(value), low), high), dtype)
    return 0 if value != value else wrap_integer(high if value > 0 else low, dtype)


def wrap_integer(value: int, dtype: DType) -> int:
    """`value` modulo 2**bits, as the two's complement number of `dtype`."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def _round_to(value: float, dtype: DType) -> float:
    return value if dtype is dtypes.float64 else float(np.asarray(value).astype(dtype.numpy))


def _float_divide(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def _trunc_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _nan_aware(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        return math.nan if a != a or b != b else choose(a, b)

    return apply


BINARY: dict[Op, Callable[[Any, Any], Any]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: _float_divide,
    Op.FLOORDIV: lambda a, b: a // b,
    Op.FLOORMOD: lambda a, b: a % b,
    Op.TRUNCDIV: _trunc_div,
    Op.TRUNCMOD: lambda a, b: math.fmod(a, b) if isinstance(a, float) else a - b * _trunc_div(a, b),
    Op.MIN: _nan_aware(min),
    Op.MAX: _nan_aware(max),
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.AND: lambda a, b: a & b,
    Op.OR: lambda a, b: a | b,
    Op.XOR: lambda a, b: a ^ b,
    Op.SHL: lambda a, b: a << b,
    Op.SHR: lambda a, b: a >> b,
}
_DIVISIONS = frozenset({Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD})


def evaluate(op: Op, dtype: DType, a: Any, b: Any) -> Any:
    """The value of a binary operator on two Python scalars of `dtype`, wrapped or rounded to the dtype. Division of an integer by
    zero gives None (no value)."""
    if op in _DIVISIONS and b == 0:
        return math.nan if dtype.is_float else None
    if op in (Op.SHL, Op.SHR) and not 0 <= b < dtype.bits:
        return None
    try:
        value = BINARY[op](a, b)
    except (OverflowError, ValueError):
        return None
    if op in COMPARISONS:
        return bool(value)
    if dtype.is_float:
        return _round_to(value, dtype)
    return bool(value) if dtype.kind == "bool" else wrap_integer(int(value), dtype)
