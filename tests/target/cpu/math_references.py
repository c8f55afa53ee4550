"""Exact values of the elementary functions, samples of their arguments, and errors in units of the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

Array = np.ndarray[Any, Any]
Real = Any

MP = mpmath.mp.clone()
MP.prec = 140

EXACT: dict[str, Callable[..., Real]] = {
    "exp": MP.exp, "exp_nonpositive": MP.exp, "exp2": lambda x: MP.power(2, x), "expm1": MP.expm1,
    "sigmoid": lambda x: 1 / (1 + MP.exp(-x)), "tanh": MP.tanh,
    "erf": MP.erf, "log": MP.log, "log2": lambda x: MP.log(x, 2), "log1p": MP.log1p, "pow": MP.power, "rsqrt": lambda x: 1 / MP.sqrt(x),
    "sin": MP.sin, "cos": MP.cos, "tan": MP.tan, "asin": MP.asin, "acos": MP.acos, "atan": MP.atan, "atan2": MP.atan2,
    "sinh": MP.sinh, "cosh": MP.cosh, "asinh": MP.asinh, "acosh": MP.acosh, "atanh": MP.atanh,
}  # fmt: skip

IN_FLOAT64: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp_nonpositive": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[float]), "log": np.log, "log2": np.log2, "log1p": np.log1p, "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
"""Good to about 1e-16: references for float32, and for special values of both."""

RANGES: dict[str, tuple[float, float]] = {
    "exp": (-104.0, 89.0), "exp_nonpositive": (-86.0, 0.0), "exp2": (-150.0, 128.0), "expm1": (-18.0, 89.0),
    "sigmoid": (-87.0, 20.0), "tanh": (-9.0, 9.0),
    "erf": (-4.0, 4.0), "log": (0.0, 3.0), "log2": (0.0, 3.0), "log1p": (-1.0, 3.0), "rsqrt": (0.0, 4.0), "sin": (-100.0, 100.0),
    "cos": (-100.0, 100.0), "tan": (-10.0, 10.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "atan": (-9.0, 9.0), "sinh": (-90.0, 90.0),
    "cosh": (-90.0, 90.0), "asinh": (-9.0, 9.0), "acosh": (1.0, 5.0), "atanh": (-1.0, 1.0), "pow": (0.0, 10.0), "atan2": (-5.0, 5.0),
}  # fmt: skip
"""Where each function is neither constant nor undefined; float64 goes eight times as far in the exponentials."""
EXPONENTIALS = ("exp", "exp2", "expm1", "sigmoid", "sinh", "cosh")
ARGUMENTS = {"pow": 2, "atan2": 2}


def arguments(name: str, dtype: Any, count: int, seed: int = 0) -> tuple[Array, ...]:
    """Random arguments: over the function's range, over all magnitudes, near 1, and any bits at all (NaN and infinity among them)."""
    rng = np.random.default_rng(seed)
    low, high = RANGES[name]
    if name in EXPONENTIALS and dtype == np.float64:
        low, high = 8 * low, 8 * high
    word = np.uint32 if dtype == np.float32 else np.uint64

    def draw() -> Array:
        inside = rng.uniform(low, high, count)
        magnitudes = np.exp(rng.uniform(-20.0, math.log(max(high, 2.0)), count)) * rng.choice([-1.0, 1.0], count)
        near_one = 1.0 + rng.normal(size=count // 4) * 0.01
        anything = rng.integers(0, np.iinfo(word).max, count // 2, dtype=word, endpoint=True).view(dtype)
        if name in ("sin", "cos", "tan"):
            # Next to the multiples of pi/2, where the reduction cancels most.
            inside = np.concatenate([inside, np.rint(np.exp(rng.uniform(0.0, 13.0, count))) * (math.pi / 2)])
        return np.concatenate([inside.astype(dtype), magnitudes.astype(dtype), near_one.astype(dtype), anything])

    first = draw()
    if name == "exp_nonpositive":
        inside = (first <= 0) & (first >= low)
        return (np.where(inside | np.isnan(first), first, -np.abs(np.remainder(first, 1.0))),)
    if name == "atan2":
        return first, rng.permutation(draw())
    if name == "pow":
        # Exponents that take the result over all its range.
        logarithm = np.log2(np.maximum(np.abs(first.astype(np.float64)), 1e-300))
        span = 1.1 * np.finfo(dtype).maxexp
        second = (rng.uniform(-span, span, first.size) / np.where(logarithm == 0, 1.0, logarithm)).astype(dtype)
        whole = rng.uniform(size=first.size) < 0.3
        return first, np.where(whole, np.rint(second), second)
    return (first,)


def unit(exact: Array, dtype: Any) -> Array:
    """The distance of the neighbouring floats of `dtype` at finite `exact` values."""
    info = np.finfo(dtype)
    _, exponent = np.frexp(np.abs(exact))
    return np.ldexp(1.0, np.maximum(exponent - 1, info.minexp) - info.nmant)


def errors_in_float32(values: Array, exact: Array) -> Array:
    """Errors in units of the last place, given exact values in float64: 0 where both are NaN or the same infinity, infinite where
    only one is (but one past the greatest number is one unit)."""
    rounded = exact.astype(np.float32)
    finite = np.isfinite(exact)
    error = np.abs(values.astype(np.float64) - exact) / unit(np.where(finite, exact, 1.0), np.float32)
    same = (values == rounded) | (np.isnan(values) & np.isnan(rounded))
    almost = 0.999999 * float(np.finfo(np.float32).max)
    edge = (np.sign(values) == np.sign(rounded)) & (np.abs(exact) > almost) & (np.abs(values) > almost)
    return np.where(np.isfinite(values) & np.isfinite(rounded), error, np.where(same, 0.0, np.where(edge, 1.0, np.inf)))


def error_in_float64(name: str, value: float, args: tuple[float, ...]) -> float:
    """The error of one finite value at finite arguments inside the function's domain, in units of the last place."""
    exact = EXACT[name](*(MP.mpf(a) for a in args))
    greatest = MP.mpf(np.finfo(np.float64).max)
    if abs(exact) > greatest:
        return 0.0 if math.isinf(value) else float((abs(exact) - abs(MP.mpf(value))) / MP.ldexp(1, 971))
    if math.isinf(value):
        return float((MP.ldexp(1, 1024) - abs(exact)) / MP.ldexp(1, 971))
    exponent = int(MP.frexp(exact)[1]) if exact else -1074
    return float(abs(MP.mpf(value) - exact) / MP.ldexp(1, max(exponent - 1, -1022) - 52))
