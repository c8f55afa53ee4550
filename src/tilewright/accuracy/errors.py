"""How far two arrays are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SMALL = 2.0**-10  # elements below this share of the greatest one are left out of the count of ulps: cancellation made them


@dataclass(frozen=True, slots=True)
class Error:
    """The difference of an array from the one expected. absolute: the greatest; relative: that over the greatest magnitude expected; ulps:
    the greatest in units in the last place of what is expected, of elements that are not small; cosine: of the angle between both. NaNs and
    infinities in the same places are equal; in others, or for another shape, every figure is infinite and the cosine 0."""

    absolute: float
    relative: float
    ulps: float
    cosine: float


APART = Error(math.inf, math.inf, math.inf, 0.0)
# Units in the last place of the greatest magnitude that are taken for rounding: sums of some thousand terms stay below a tenth of 64. Of
# narrow floats few, since sums are not made in them; integers, booleans, and floats of eight bits must be equal.
ULPS = {"float32": 64.0, "complex64": 64.0, "float64": 64.0, "complex128": 64.0, "float16": 4.0, "bfloat16": 4.0}
BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "complex64": 23, "float64": 52, "complex128": 52}  # of the fraction
LARGE = 1e-3  # a relative error that people see


def tolerance_of(dtype: np.dtype[Any]) -> float:
    """The relative error that is taken for rounding without a closer look."""
    return ULPS[dtype.name] * 2.0 ** -BITS[dtype.name] if dtype.name in ULPS else 0.0


def is_large(error: Error, dtype: np.dtype[Any]) -> bool:
    """Whether an error is one that people see, and more than any rounding of one operation in this dtype."""
    return not error.relative <= max(LARGE, tolerance_of(dtype))


def error_of(found: Array, expected: Array) -> Error:
    """The difference of `found` from `expected`."""
    if found.shape != expected.shape or (found.dtype.kind in "OU") != (expected.dtype.kind in "OU"):
        return APART
    if expected.dtype.kind in "OU":
        return Error(0.0, 0.0, 0.0, 1.0) if found.tolist() == expected.tolist() else APART
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = found.astype(wide).reshape(-1), expected.astype(wide).reshape(-1)
        odd = ~np.isfinite(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not np.array_equal(odd, ~np.isfinite(a)) or not same[odd].all():
            return APART
        a, b = a[~odd], b[~odd]
        if b.size == 0:
            return Error(0.0, 0.0, 0.0, 1.0)
        difference = np.abs(a - b)
        worst, greatest = float(difference.max()), float(np.abs(b).max())
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        cosine = float(np.abs(np.vdot(a, b)) / lengths) if lengths else float(worst == 0.0)
        relative = worst / greatest if greatest else (0.0 if worst == 0.0 else math.inf)
        return Error(worst, relative, _ulps(difference, np.abs(b), greatest, expected.dtype), min(cosine, 1.0))


def share_beyond(found: Array, expected: Array, tolerance: float) -> float:
    """The share of elements that are farther off than `tolerance` times the greatest magnitude expected; 1 for another shape."""
    if found.shape != expected.shape or expected.dtype.kind in "OU":
        return 1.0
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        greatest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        near = (np.abs(a - b) <= tolerance * greatest) | (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.mean(~near)) if near.size else 0.0


def _ulps(difference: Array, magnitude: Array, greatest: float, dtype: np.dtype[Any]) -> float:
    kept = magnitude >= greatest * SMALL
    if dtype.kind in "biu":
        return float(difference.max())
    unit = np.exp2(np.floor(np.log2(np.maximum(magnitude[kept], np.finfo(np.float64).tiny))) - BITS.get(dtype.name, 3))
    return float((difference[kept] / unit).max()) if kept.any() else 0.0
