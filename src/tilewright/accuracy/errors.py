"""How far two arrays are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
BLOCK = 1 << 18  # elements that are compared at once
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
    worst = greatest = 0.0
    products = np.zeros(3, np.complex128)  # of both, and of each with itself
    with np.errstate(all="ignore"):
        for a, b in _blocks(found, expected):
            odd = ~np.isfinite(b)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            if not np.array_equal(odd, ~np.isfinite(a)) or not same[odd].all():
                return APART
            a, b = a[~odd], b[~odd]
            worst = max(worst, float(np.abs(a - b).max(initial=0.0)))
            greatest = max(greatest, float(np.abs(b).max(initial=0.0)))
            products += np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
        if worst == 0.0:
            return Error(0.0, 0.0, 0.0, 1.0)
        lengths = math.sqrt(products[1].real) * math.sqrt(products[2].real)
        cosine = float(np.abs(products[0]) / lengths) if lengths else 0.0
        ulps = max(_ulps(a, b, greatest, expected.dtype) for a, b in _blocks(found, expected))
    return Error(worst, worst / greatest if greatest else math.inf, ulps, min(cosine, 1.0))


def _blocks(found: Array, expected: Array) -> Iterator[tuple[Array, Array]]:
    """Both in pieces, in the widest dtype of their kind: whole ones would take several times the memory of what is compared."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = found.reshape(-1), expected.reshape(-1)
    for start in range(0, b.size, BLOCK):
        yield a[start : start + BLOCK].astype(wide), b[start : start + BLOCK].astype(wide)


def share_beyond(found: Array, expected: Array, tolerance: float) -> float:
    """The share of elements that are farther off than `tolerance` times the greatest magnitude expected; 1 for another shape."""
    if found.shape != expected.shape or expected.dtype.kind in "OU":
        return 1.0
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        greatest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        near = (np.abs(a - b) <= tolerance * greatest) | (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.mean(~near)) if near.size else 0.0


def _ulps(found: Array, expected: Array, greatest: float, dtype: np.dtype[Any]) -> float:
    difference, magnitude = np.abs(found - expected), np.abs(expected)
    kept = (magnitude >= greatest * SMALL) & np.isfinite(magnitude)
    if dtype.kind in "biu":
        return float(difference.max())
    unit = np.exp2(np.floor(np.log2(np.maximum(magnitude[kept], np.finfo(np.float64).tiny))) - BITS.get(dtype.name, 3))
    return float((difference[kept] / unit).max()) if kept.any() else 0.0
