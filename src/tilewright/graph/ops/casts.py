"""Value conversion between dtypes, as an expression and in NumPy, with the same meaning."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilewright.graph.node import Array
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, cast, const, maximum, minimum

_finfo: Any = ml_dtypes.finfo


def _saturation_range(dtype: DType) -> tuple[float, float] | None:
    """The finite range of a float of at most 8 bits, to which saturating casts clamp."""
    if not dtype.is_float or dtype.bits > 8:
        return None
    info = _finfo(dtype.numpy)
    low = float(info.smallest_normal) if dtype is dtypes.float8e8m0 else float(info.min)
    return low, float(info.max)


def cast_scalar(x: Expr, dtype: DType, saturate: bool = True) -> Expr:
    """The scalar converted to `dtype`: see `elementwise.Cast`."""
    if x.dtype is dtype:
        return x
    wide = _as_float32(x)
    bounds = _saturation_range(dtype)
    if bounds is not None:
        wide = cast(dtypes.float32, wide)
        if saturate:
            wide = minimum(maximum(wide, const(bounds[0], wide.dtype)), const(bounds[1], wide.dtype))
    if wide.dtype.is_float and dtype.is_integer and dtype.bits < 32:
        wide = cast(dtypes.int32, wide)
    return cast(dtype, wide)


def _truncated(x: Array, dtype: DType) -> Array:
    """Floats as integers of at least 32 bits, whose low bits are those of `dtype`: see `scalar_ops.integer_of`."""
    wide = np.uint64 if dtype is dtypes.uint64 else np.int64 if dtype.bits == 64 or dtype is dtypes.uint32 else np.int32
    low, high = int(np.iinfo(wide).min), int(np.iinfo(wide).max)
    numbers = np.trunc(x.astype(np.float64))
    below, above = numbers < low, numbers >= float(high + 1)
    inside = np.where(below | above | np.isnan(numbers), 0, numbers).astype(wide)
    return np.asarray(np.where(above, wide(high), np.where(below, wide(low), inside)))


def _as_float32(x: Expr) -> Expr:
    return cast(dtypes.float32, x) if x.dtype.is_float and x.dtype.bits < 32 else x


def cast_array(x: Array, dtype: DType, saturate: bool = True) -> Array:
    """The array converted to `dtype`: see `elementwise.Cast`."""
    source = dtypes.from_numpy(x.dtype)
    if source is dtype:
        return x
    with np.errstate(all="ignore"):
        if source is dtypes.string:
            return _from_strings(x, dtype)
        if dtype is dtypes.string:
            return _to_strings(x)
        if source.is_float and source.bits < 32:
            x = x.astype(np.float32)
        if dtype.kind == "bool":
            return np.asarray(x != 0)
        bounds = _saturation_range(dtype)
        if bounds is not None:
            x = x.astype(np.float32)
            if saturate:
                x = np.clip(x, np.float32(bounds[0]), np.float32(bounds[1]))
        if source.is_float and dtype.is_integer:
            x = _truncated(x, dtype)
        if dtype.is_integer and dtype.bits < 8:
            x = x.astype(np.int8)
        return x.astype(dtype.numpy)


def _from_strings(x: Array, dtype: DType) -> Array:
    if dtype.is_float or dtype.kind == "bool":
        return np.vectorize(float, otypes=[np.float64])(x).astype(dtype.numpy) if x.size else x.astype(dtype.numpy)
    return np.vectorize(int, otypes=[np.object_])(x).astype(dtype.numpy) if x.size else x.astype(dtype.numpy)


def _to_strings(x: Array) -> Array:
    """Decimal text; floats in the shortest form that reads back to the same value."""
    texts = [str(item.item() if x.dtype.kind in "iub" else np.float32(item) if x.dtype.itemsize < 8 else item) for item in x.reshape(-1)]
    result = np.empty(len(texts), np.object_)
    result[:] = texts
    return result.reshape(x.shape)
