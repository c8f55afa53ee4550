"""Scalar arithmetic of every dtype on Python numbers: rounding, casts and intrinsics, as `ir/expr.py` defines them.

Floats of every width are Python floats that hold a value of their dtype; integers are Python ints in range; bools are bools.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.scalar_ops import integer_of, wrap_integer

Unary = Callable[[float], float]


def round_float32(value: float) -> float:
    """The nearest float32; infinity past the range."""
    return ctypes.c_float(value).value


@lru_cache(maxsize=64)
def rounder(dtype: DType) -> Callable[[Any], Any]:
    """The function that rounds a Python number to the nearest value of a float or complex dtype."""
    if dtype is dtypes.float64:
        return float
    if dtype is dtypes.float32:
        return round_float32
    if dtype is dtypes.complex128:
        return complex
    scalar = dtype.numpy.type
    if dtype.kind == "complex":
        return lambda value: complex(scalar(value))
    return lambda value: float(scalar(value))


def divide(a: Any, b: Any) -> Any:
    """IEEE division: by zero it gives an infinity or NaN."""
    if b:
        return a / b
    with np.errstate(all="ignore"):
        return (np.asarray(a) / np.asarray(b)).item()


def floor_divide(a: float, b: float) -> float:
    return a // b if b else math.nan


def floor_mod(a: float, b: float) -> float:
    return a % b if b else math.nan


def float_mod(a: float, b: float) -> float:
    """C's fmod: the sign of the dividend, NaN where there is no remainder."""
    return math.fmod(a, b) if b and math.isfinite(a) else math.nan


def trunc_divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def trunc_remainder(a: int, b: int) -> int:
    return a - b * trunc_divide(a, b)


def float_min(a: float, b: float) -> float:
    """NaN when either is NaN."""
    return a if a != a else (b if b != b or b < a else a)


def float_max(a: float, b: float) -> float:
    """NaN when either is NaN."""
    return a if a != a else (b if b != b or b > a else a)


@lru_cache(maxsize=1024)
def caster(source: DType, target: DType) -> Callable[[Any], Any]:
    """The value conversion from one dtype to another, as `ir.expr.cast` says. Integers are rounded once, straight to the target."""
    if target.kind == "bool":
        return lambda value: bool(value != 0)
    if target.kind == "complex":
        return rounder(target)
    if target.is_float:
        round_to = rounder(target)
        if source.is_integer and source.bits == 64 and target is not dtypes.float64:
            # Above 2**53, going through a Python float would round twice.
            return lambda value: (
                round_to(float(value)) if -(1 << 53) <= value <= 1 << 53 else float(np.asarray(value, source.numpy).astype(target.numpy))
            )
        return lambda value: round_to(float(value))
    if target.is_integer:
        if source.is_float:
            return lambda value: integer_of(value, target)
        return lambda value: wrap_integer(int(value), target)
    return lambda value: value


@lru_cache(maxsize=256)
def bitcaster(source: DType, target: DType) -> Callable[[Any], Any]:
    """Reads the bits of one dtype as another of the same width."""
    return lambda value: np.asarray(value, source.numpy).reshape(1).view(target.numpy)[0].item()


def _total(function: Unary, limit: Callable[[Any], Any]) -> Unary:
    """`function` of `math`, with NumPy's value at poles and outside the domain, where `math` raises."""

    def apply(value: float) -> float:
        try:
            return function(value)
        except (ValueError, OverflowError):
            with np.errstate(all="ignore"):
                return float(limit(np.float64(value)))

    return apply


def _numpy(function: Callable[[Any], Any]) -> Unary:
    return lambda value: float(function(value))


def _sigmoid(value: float) -> float:
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    power = math.exp(value) if value > -745.2 else 0.0
    return power / (1.0 + power) if value == value else value


def _rsqrt(value: float) -> float:
    root = math.sqrt(value) if value > 0 else (value if value == 0 else math.nan)
    return 1.0 / root if root else math.copysign(math.inf, root)


def _pow(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except (ValueError, OverflowError):
        with np.errstate(all="ignore"):
            return float(np.power(np.float64(a), np.float64(b)))


def _fma(a: float, b: float, c: float) -> float:
    """a * b + c rounded once to float64 (math.fma is newer than our oldest Python)."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    try:
        return float(exact)
    except OverflowError:
        return math.copysign(math.inf, exact)


def _reciprocal(value: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(1.0) / np.float64(value))


def _dot(total: float, *factors: float) -> float:
    """total + a_1 * b_1 + ..., of factors a_1 .. a_n, b_1 .. b_n."""
    half = len(factors) // 2
    return total + sum(a * b for a, b in zip(factors[:half], factors[half:], strict=True))


INTRINSIC_VALUES: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "sqrt": _total(math.sqrt, np.sqrt),
    "rsqrt": _rsqrt,
    "exp": _total(math.exp, np.exp),
    "exp_nonpositive": _total(math.exp, np.exp),
    "exp2": _total(math.exp2, np.exp2),
    "expm1": _total(math.expm1, np.expm1),
    "log": _total(math.log, np.log),
    "log1p": _total(math.log1p, np.log1p),
    "log2": _total(math.log2, np.log2),
    "sin": _total(math.sin, np.sin),
    "cos": _total(math.cos, np.cos),
    "tan": _total(math.tan, np.tan),
    "asin": _total(math.asin, np.arcsin),
    "acos": _total(math.acos, np.arccos),
    "atan": math.atan,
    "sinh": _total(math.sinh, np.sinh),
    "cosh": _total(math.cosh, np.cosh),
    "tanh": math.tanh,
    "asinh": math.asinh,
    "acosh": _total(math.acosh, np.arccosh),
    "atanh": _total(math.atanh, np.arctanh),
    "erf": math.erf,
    "sigmoid": _sigmoid,
    "floor": _numpy(np.floor),
    "ceil": _numpy(np.ceil),
    "round": _numpy(np.rint),
    "trunc": _numpy(np.trunc),
    "isnan": math.isnan,
    "isinf": math.isinf,
    "pow": _pow,
    "atan2": math.atan2,
    "copysign": math.copysign,
    "fma": _fma,
    "reciprocal_normal": _reciprocal,
    "may_flush": float,
    "dot2": _dot,
    "dot4": _dot,
}
"""Intrinsic -> its value in float64 (of integers: unbounded); the caller rounds to the dtype, or wraps. `popcount` depends on the width."""


def popcount(value: int, bits: int) -> int:
    """Number of one bits in the two's complement form of `value`."""
    return (value & ((1 << bits) - 1)).bit_count()
