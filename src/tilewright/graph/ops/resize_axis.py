"""One axis of a resize: where the elements of the result lie in the source, and how much each source element weighs.

Coordinates follow ONNX Resize and are computed in float32, as its implementations do, so that ties fall the same way. Weights are computed
from these coordinates in the dtype that sums are made in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.shapes import dims_equal
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, as_expr, call, cast, ceildiv, const, maximum, minimum, select
from tilewright.kernel.builder import KernelBuilder, Tensor

Array = np.ndarray[Any, np.dtype[Any]]
_F32 = dtypes.float32

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "ceil_where_smaller")  # the last: floor where nothing shrinks


@dataclass(frozen=True, slots=True)
class Axis:
    """`source` elements become `target`; `scale` is their ratio where the model gives it, as a number or a float32 scalar at run time;
    `roi` the part of the source that tf_crop_and_resize takes, likewise."""

    source: Expr
    target: Expr
    scale: float | Expr | None
    coordinate: str
    roi: tuple[float | Expr, float | Expr] = (0.0, 1.0)

    @property
    def is_identity(self) -> bool:
        return self.scale in (None, 1.0) and self.coordinate != "tf_crop_and_resize" and dims_equal(self.source, self.target)


def _number(e: Expr) -> Expr:
    return cast(_F32, e)


def _ratio(axis: Axis, dtype: DType = _F32) -> Expr:
    if isinstance(axis.scale, Expr):
        return cast(dtype, axis.scale)
    if axis.scale is not None:
        return const(axis.scale, dtype)
    return cast(dtype, axis.target) / cast(dtype, axis.source)


def position(axis: Axis, i: Expr) -> Expr:
    """The float32 coordinate in the source of element `i` of the result."""
    scale, half, one = _ratio(axis), const(0.5, _F32), const(1, _F32)
    x, last = _number(i), _number(axis.source - 1)
    match axis.coordinate:
        case "asymmetric":
            return x / scale
        case "tf_half_pixel_for_nn":
            return (x + half) / scale
        case "align_corners":
            return select(axis.target > 1, x * last / _number(maximum(axis.target - 1, const(1))), const(0, _F32))
        case "pytorch_half_pixel":
            return select(axis.target > 1, (x + half) / scale - half, const(0, _F32))
        case "half_pixel_symmetric":
            adjustment = _number(axis.target) / (scale * _number(axis.source))
            return half * _number(axis.source) * (one - adjustment) + (x + half) / scale - half
        case "tf_crop_and_resize":
            start, end = (as_expr(v, _F32) for v in axis.roi)
            spread = start * last + x * (end - start) * last / _number(maximum(axis.target - 1, const(1)))
            return select(axis.target > 1, spread, half * (start + end) * last)
        case _:
            return (x + half) / scale - half


def position_array(axis: Axis) -> Array:
    """`position` of every element, with dims that are constants."""
    n, m = int(axis.source.value), int(axis.target.value)
    x = np.arange(m).astype(np.float32)
    f32 = np.float32
    scale = f32(axis.scale) if isinstance(axis.scale, float) else f32(m) / f32(max(n, 1))
    half, last = f32(0.5), f32(n - 1)
    match axis.coordinate:
        case "asymmetric":
            found = x / scale
        case "tf_half_pixel_for_nn":
            found = (x + half) / scale
        case "align_corners":
            found = x * last / f32(max(m - 1, 1)) if m > 1 else x * 0
        case "pytorch_half_pixel":
            found = (x + half) / scale - half if m > 1 else x * 0
        case "half_pixel_symmetric":
            found = half * f32(n) * (f32(1) - f32(m) / (scale * f32(n))) + (x + half) / scale - half
        case "tf_crop_and_resize":
            start, end = (f32(v) if isinstance(v, float) else f32(0) for v in axis.roi)
            found = start * last + x * (end - start) * last / f32(max(m - 1, 1)) if m > 1 else x * 0 + half * (start + end) * last
        case _:
            found = (x + half) / scale - half
    return np.asarray(found, np.float32)


_ROUND: dict[str, Callable[[Expr], Expr]] = {
    "round_prefer_floor": lambda x: call("ceil", x - const(0.5, _F32)),
    "round_prefer_ceil": lambda x: call("floor", x + const(0.5, _F32)),
    "floor": lambda x: call("floor", x),
    "ceil": lambda x: call("ceil", x),
}
_ROUND_ARRAY: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _integer_factor(axis: Axis) -> tuple[int, int] | None:
    """(up, down): the target is the source times `up` over `down`, both known and one of them 1."""
    if isinstance(axis.scale, Expr):
        return None
    if axis.source.is_const and axis.target.is_const:
        n, m = int(axis.source.value), int(axis.target.value)
        if n and m % n == 0:
            factor = (m // n, 1)
        elif m and n % m == 0:
            factor = (1, n // m)
        else:
            return None
    elif isinstance(axis.scale, float) and axis.scale >= 1 and axis.scale.is_integer():
        factor = (int(axis.scale), 1)
        if not dims_equal(axis.source * factor[0], axis.target):
            return None
    else:
        return next(((k, 1) for k in (2, 3, 4, 8) if axis.scale is None and dims_equal(axis.source * k, axis.target)), None)
    return factor if axis.scale in (None, factor[0] / factor[1]) else None


def _rounded(axis: Axis, mode: str, x: Expr) -> Expr:
    if mode != "ceil_where_smaller":
        return _ROUND[mode](x)
    if isinstance(axis.scale, float):
        return call("ceil" if axis.scale < 1 else "floor", x)
    smaller = axis.target < axis.source if axis.scale is None else axis.scale < const(1, _F32)
    return select(smaller, call("ceil", x), call("floor", x))


def nearest_index(k: KernelBuilder, axis: Axis, mode: str) -> Callable[[Expr], Expr]:
    """The source index of element `i` of the result: integer arithmetic where the ratio is a known whole number, else a table."""
    factor = _integer_factor(axis)
    if factor is not None and axis.coordinate in ("asymmetric", "half_pixel"):
        up, down = factor
        if axis.coordinate == "half_pixel":
            within = (down - 1) // 2 if mode in ("floor", "round_prefer_floor") else down // 2
            if down > 1:
                return lambda i: i * down + within
            if mode in ("round_prefer_floor", "round_prefer_ceil"):
                return lambda i: i // up
        elif down > 1 or up == 1:
            return lambda i: i * down
        elif mode in ("floor", "ceil_where_smaller", "round_prefer_floor", "round_prefer_ceil"):
            shift = {"floor": 0, "ceil_where_smaller": 0, "round_prefer_floor": (up - 1) // 2, "round_prefer_ceil": up // 2}[mode]
            return lambda i: minimum((i + shift) // up, axis.source - 1) if shift else i // up
    last = axis.source - 1

    def entry(i: Expr) -> Expr:
        return minimum(maximum(cast(dtypes.int64, _rounded(axis, mode, position(axis, i))), const(0)), last)

    table = k.compute("index", (axis.target,), entry)
    return lambda i: table[i]


def nearest_array(axis: Axis, mode: str) -> Array:
    if mode == "ceil_where_smaller":
        shrinks = axis.scale < 1 if isinstance(axis.scale, float) else int(axis.target.value) < int(axis.source.value)
        mode = "ceil" if shrinks else "floor"
    found = _ROUND_ARRAY[mode](position_array(axis)).astype(np.int64)
    return np.asarray(np.clip(found, 0, int(axis.source.value) - 1))


def cubic(x: Any, a: float, absolute: Callable[[Any], Any], choose: Callable[[Any, Any, Any], Any], one: Any) -> Any:
    """Keys' kernel with parameter `a` at distance x; `one` is 1 of x's type."""
    d = absolute(x)
    near = ((one * (a + 2)) * d - (one * (a + 3))) * d * d + one
    far = (((one * a) * d - (one * (5 * a))) * d + (one * (8 * a))) * d - (one * (4 * a))
    return choose(d <= one, near, choose(d < one * 2, far, one * 0))


def taps(axis: Axis, support: int, antialias: bool) -> Expr:
    """How many source elements an element of the result may depend on: `support` on each side, more when shrinking with antialias. A scale
    that is not known is at least the ratio of the sizes."""
    if not antialias:
        return const(2 * support)
    if isinstance(axis.scale, float):
        return const(2 * math.ceil(support * max(1.0, 1.0 / axis.scale)))
    return maximum(const(support), ceildiv(axis.source * support, axis.target)) * 2


def weight_tables(
    k: KernelBuilder, axis: Axis, support: int, cubic_a: float, exclude: bool, antialias: bool, dtype: DType
) -> tuple[Expr, Tensor, Tensor]:
    """(taps, first int64 [target], weight `dtype` [target, taps]): tap t of element i reads source element first[i] + t, clamped."""
    count = taps(axis, support, antialias)
    zero, one = const(0, dtype), const(1, dtype)
    ratio = minimum(_ratio(axis, dtype), one) if antialias else one
    place = k.compute("position", (axis.target,), lambda i: position(axis, i))
    first = k.compute("first", (axis.target,), lambda i: cast(dtypes.int64, call("floor", place[i])) - count // 2 + 1)

    def raw(i: Expr, t: Expr) -> Expr:
        source = first[i] + t
        distance = (cast(dtype, source) - cast(dtype, place[i])) * ratio
        if support == 1:
            weight = maximum(one - call("abs", distance), zero)
        else:
            weight = cubic(distance, cubic_a, lambda v: call("abs", v), select, one)
        return select((source >= 0) & (source < axis.source), weight, zero) if exclude else weight

    weight = k.compute("weight", (axis.target, count), raw)
    if not (exclude or antialias):
        return count, first, weight
    total = k.reduce("total", (axis.target,), (count,), lambda i, t: weight[i, t], "sum")
    return count, first, k.compute("share", (axis.target, count), lambda i, t: weight[i, t] / total[i])


def weight_matrix(axis: Axis, support: int, cubic_a: float, exclude: bool, antialias: bool) -> Array:
    """The resize of one axis as a float64 matrix [target, source]."""
    n, m = int(axis.source.value), int(axis.target.value)
    scale = axis.scale if isinstance(axis.scale, float) else m / max(n, 1)
    ratio = min(scale, 1.0) if antialias else 1.0
    count = int(taps(axis, support, antialias).value)
    matrix = np.zeros((m, n))
    for i, x in enumerate(position_array(axis).astype(np.float64)):
        source = int(np.floor(x)) - count // 2 + 1 + np.arange(count)
        distance = (source - x) * ratio
        weight = np.maximum(1 - np.abs(distance), 0) if support == 1 else cubic(distance, cubic_a, np.abs, np.where, 1.0)
        if exclude:
            weight = np.where((source >= 0) & (source < n), weight, 0)
        if exclude or antialias:
            weight = weight / weight.sum()
        np.add.at(matrix[i], np.clip(source, 0, n - 1), weight)
    return matrix
