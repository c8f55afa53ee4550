"""Resizing of tensors by interpolation, with every mode of ONNX Resize."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.casts import cast_array, cast_scalar
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.resize_axis import (
    COORDINATES,
    NEAREST,
    Axis,
    nearest_array,
    nearest_index,
    position,
    position_array,
    weight_matrix,
    weight_tables,
)
from tilewright.graph.shapes import format_shape
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, call, cast, const, logical_or, maximum, minimum, select
from tilewright.ir.types import TensorType, tensor
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

MODES = ("nearest", "linear", "cubic")
_F32 = dtypes.float32


@dataclass(frozen=True, slots=True, eq=False)
class Resize(Operator):
    """(x, *operands) -> x interpolated to the shape `sizes`. `scales` gives the ratio of each axis as the model states it, None where it
    is that of the sizes. `mode`, `coordinate` (COORDINATES), `nearest` (NEAREST), `cubic_a`, `exclude_outside`, `antialias` are as in ONNX;
    `extrapolation` fills what tf_crop_and_resize takes from outside, `roi` is (starts..., ends...) or empty. Interpolates in float32,
    float64 in float64. What is known only at run time is an operand, in `given`: "scales" float32 [rank], "roi" float32 [2 * rank]."""

    name: ClassVar[str] = "resize"
    sizes: tuple[Expr, ...]
    scales: tuple[float | None, ...]
    mode: str
    coordinate: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    roi: tuple[float, ...] = ()
    given: tuple[str, ...] = ()

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("resize", inputs, 1 + len(self.given))
        x, *operands = inputs
        if not len(self.sizes) == len(self.scales) == x.rank or len(self.roi) not in (0, 2 * x.rank):
            raise TypeRuleError(f"resize: {format_shape(x.shape)} needs {x.rank} sizes and scales")
        for what, value, allowed in (
            ("mode", self.mode, MODES),
            ("coordinate transformation", self.coordinate, COORDINATES),
            ("nearest mode", self.nearest, NEAREST),
        ):
            if value not in allowed:
                raise TypeRuleError(f"resize: there is no {what} {value!r}", why=f"it is one of {', '.join(allowed)}")
        for name, operand in zip(self.given, operands, strict=True):
            if name not in ("scales", "roi") or operand != tensor(_F32, (x.rank if name == "scales" else 2 * x.rank,)):
                raise TypeRuleError(f"resize: the operand {name} is {operand!r}")
        if any(scale is not None and scale <= 0 for scale in self.scales):
            raise TypeRuleError(f"resize: the scales {self.scales} are not positive")
        if self.mode != "nearest" and x.dtype.kind not in ("float", "int", "uint"):
            raise TypeRuleError(f"resize of {x.dtype} by interpolation is not defined")
        return (TensorType(x.dtype, self.sizes),)

    def _axes(self, shape: tuple[Expr, ...], operands: dict[str, list[float] | list[Expr]]) -> list[Axis]:
        """What happens to each axis; `operands` are the elements of those given."""
        rank = len(shape)
        axes = []
        for a, (n, m) in enumerate(zip(shape, self.sizes, strict=True)):
            scale = operands["scales"][a] if "scales" in operands else self.scales[a]
            roi: Sequence[float] | Sequence[Expr] = operands.get("roi") or self.roi or (*[0.0] * rank, *[1.0] * rank)
            untouched = n is m and scale in (None, 1.0) and (roi[a], roi[rank + a]) == (0.0, 1.0)
            axes.append(Axis(n, m, None, "asymmetric") if untouched else Axis(n, m, scale, self.coordinate, (roi[a], roi[rank + a])))
        return axes

    @property
    def _support(self) -> int:
        return 1 if self.mode == "linear" else 2

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, *operands = inputs
        values = {name: [float(v) for v in array] for name, array in zip(self.given, operands, strict=True)}
        axes = self._axes(tuple(const(n) for n in x.shape), {**values})
        result = x if self.mode == "nearest" else x.astype(np.float64)
        for a, axis in enumerate(axes):
            if axis.is_identity:
                continue
            if self.mode == "nearest":
                result = np.take(result, nearest_array(axis, self.nearest), axis=a)
            else:
                matrix = weight_matrix(axis, self._support, self.cubic_a, self.exclude_outside, self.antialias)
                result = np.moveaxis(np.tensordot(matrix, np.moveaxis(result, a, 0), axes=1), 0, a)
        if self.coordinate == "tf_crop_and_resize":
            for a, axis in enumerate(axes):
                at = position_array(axis)
                outside = (at < 0) | (at > int(axis.source.value) - 1)
                shape = [-1 if b == a else 1 for b in range(x.ndim)]
                result = np.where(outside.reshape(shape) & (axis.coordinate == "tf_crop_and_resize"), self.extrapolation, result)
        if self.mode == "nearest" or x.dtype == np.float64:
            return (np.ascontiguousarray(result, x.dtype),)
        return (np.ascontiguousarray(cast_array(result.astype(np.float32), dtypes.from_numpy(x.dtype), False)),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *operands = inputs
        elements = {name: [t[const(i)] for i in range(int(t.shape[0].value))] for name, t in zip(self.given, operands, strict=True)}
        axes = self._axes(x.shape, {**elements})
        if self.mode == "nearest":
            return (self._nearest(k, x, axes),)
        if self.mode == "linear" and not self.antialias and not self.exclude_outside:
            return (self._linear(k, x, axes),)
        return (self._by_axis(k, x, axes),)

    def _filled(self, axes: list[Axis], at: tuple[Expr, ...], value: Expr) -> Expr:
        """`value`, or the extrapolation value outside of the source."""
        outside = None
        for axis, i in zip(axes, at, strict=True):
            if axis.coordinate == "tf_crop_and_resize":
                place = position(axis, i)
                out = logical_or(place < const(0, _F32), place > cast(_F32, axis.source - 1))
                outside = out if outside is None else logical_or(outside, out)
        return value if outside is None else select(outside, cast_scalar(const(self.extrapolation, _F32), value.dtype), value)

    def _nearest(self, k: KernelBuilder, x: Tensor, axes: list[Axis]) -> Tensor:
        index: list[Callable[[Expr], Expr]] = [_same if axis.is_identity else nearest_index(k, axis, self.nearest) for axis in axes]
        return k.compute("resize", self.sizes, lambda *i: self._filled(axes, i, x[tuple(f(e) for f, e in zip(index, i))]))

    def _linear(self, k: KernelBuilder, x: Tensor, axes: list[Axis]) -> Tensor:
        """Every element from its 2**n neighbours at once."""
        wide = _sums(x.dtype)
        active = [a for a, axis in enumerate(axes) if not axis.is_identity]
        place: dict[int, Tensor] = {}
        for a in active:
            last = cast(_F32, axes[a].source - 1)
            place[a] = k.compute(
                "position", (axes[a].target,), lambda i, a=a, last=last: minimum(maximum(position(axes[a], i), const(0, _F32)), last)
            )
        # Positions as int32, which vector units convert and gather by in half the time of int64.
        low = {a: k.compute("low", (axes[a].target,), lambda i, a=a: cast(dtypes.int32, call("floor", place[a][i]))) for a in active}

        def value(*i: Expr) -> Expr:
            total = _wide(const(0, x.dtype))
            for n, corner in enumerate(itertools.product((0, 1), repeat=len(active))):
                at, weight = list(i), None
                for a, high in zip(active, corner):
                    base = low[a][i[a]]
                    fraction = cast(wide, place[a][i[a]]) - cast(wide, base)
                    if high:
                        base = minimum(base + const(1, dtypes.int32), cast(dtypes.int32, axes[a].source - 1))
                    at[a] = cast(dtypes.int64, base)
                    share = fraction if high else const(1, wide) - fraction
                    weight = share if weight is None else weight * share
                term = _wide(x[tuple(at)])
                term = term if weight is None else term * weight
                total = total + term if n else term
            return self._filled(axes, i, cast_scalar(total, x.dtype, False))

        return k.compute("resize", self.sizes, value)

    def _by_axis(self, k: KernelBuilder, x: Tensor, axes: list[Axis]) -> Tensor:
        """One axis after another, each a weighted sum over its taps."""
        source, shape = x, list(x.shape)
        for a, axis in enumerate(axes):
            if axis.is_identity:
                continue
            count, first, weight = weight_tables(k, axis, self._support, self.cubic_a, self.exclude_outside, self.antialias, _sums(x.dtype))
            shape[a] = axis.target

            def term(
                *i: Expr, a: int = a, axis: Axis = axis, source: Tensor = source, first: Tensor = first, weight: Tensor = weight
            ) -> Expr:
                *at, t = i
                read = list(at)
                read[a] = minimum(maximum(first[at[a]] + t, const(0)), axis.source - 1)
                return _wide(source[tuple(read)]) * weight[at[a], t]

            source = k.reduce("resize", shape, (count,), term, "sum")
        return k.compute("resize", self.sizes, lambda *i: self._filled(axes, i, cast_scalar(source[i], x.dtype, False)))


def _same(i: Expr) -> Expr:
    return i


def _sums(dtype: DType) -> DType:
    """What elements of this dtype are weighted and added in."""
    return dtype if dtype is dtypes.float64 else _F32


def _wide(x: Expr) -> Expr:
    return cast_scalar(x, _sums(x.dtype))
