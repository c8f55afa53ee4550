"""Convolution and its transpose over one to three spatial axes, channels second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.blocks import reduce_block, rounded
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.padding import pad_array, pad_block, padded_element, window_views, windowed_dim
from tilewright.graph.ops.scalars import arithmetic_dtype
from tilewright.graph.shapes import canonical, dims_equal, format_shape, is_one
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, all_of, cast, ceildiv, const, equal, less, select
from tilewright.ir.types import Shape, TensorType, bind_shape
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError


def _check_operands(name: str, op: Convolution | ConvolutionTranspose, inputs: tuple[TensorType, ...]) -> None:
    """Checks of ranks, attributes and dtypes. Raises TypeRuleError."""
    expect_inputs(name, inputs, 2)
    x, w = inputs
    spatial = x.rank - 2
    if not 1 <= spatial <= 3 or w.rank != x.rank:
        raise TypeRuleError(
            f"{name}: the input {format_shape(x.shape)} and the weights {format_shape(w.shape)} do not fit",
            why="both need a batch or output axis, a channel axis and one to three spatial axes",
        )
    if any(len(part) != spatial for part in (op.strides, op.dilations, op.low, op.high)):
        raise TypeRuleError(f"{name}: {spatial} spatial axes need as many strides, dilations and amounts of padding")
    if op.groups < 1 or any(n < 1 for n in (*op.strides, *op.dilations)):
        raise TypeRuleError(f"{name}: groups, strides and dilations must be positive")
    for t in (x, w, TensorType(op.dtype, ())):
        if not (t.dtype.is_float or t.dtype.is_integer):
            raise TypeRuleError(f"{name} is not defined for {t.dtype.name}")
    if op.dtype.is_integer and (x.dtype.is_float or w.dtype.is_float):
        raise TypeRuleError(f"{name}: products of floats do not accumulate in {op.dtype.name}")


def _check_sizes(name: str, shape: Shape, inputs: tuple[TensorType, ...]) -> None:
    for axis, dim in enumerate(shape):
        if dim.is_const and dim.value < 0:
            listed = " and ".join(format_shape(t.shape) for t in inputs)
            raise TypeRuleError(f"{name}: the kernel does not fit into the padded input on axis {axis} ({listed})")


def _grouped(outer: Expr, per_group: Expr) -> Expr:
    """The group of a channel; with one channel for each group no division is left."""
    return outer if is_one(per_group) else outer // per_group


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Operator):
    """out[n, o, s] = sum over c, k of x[n, group(o) + c, s*stride + k*dilation - low] * w[o, c, k], zero outside. x [N, C, *S],
    w [O, C/groups, *K]. Accumulates in `dtype`, or float32 for narrower floats."""

    name: ClassVar[str] = "convolution"
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    groups: int
    dtype: DType

    def _shape(self, x: Shape, w: Shape) -> Shape:
        own = zip(x[2:], self.low, self.high, w[2:], self.strides, self.dilations, strict=True)
        return (x[0], w[0], *(windowed_dim(*axis) for axis in own))

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        _check_operands("convolution", self, inputs)
        x, w = inputs
        if not dims_equal(x.shape[1], canonical(w.shape[1] * self.groups)):
            raise TypeRuleError(
                f"convolution: the input has {x.shape[1]!r} channels, the weights take {w.shape[1]!r} in each of {self.groups} groups"
            )
        if w.shape[0].is_const and w.shape[0].value % self.groups:
            raise TypeRuleError(f"convolution: {w.shape[0]!r} output channels do not divide into {self.groups} groups")
        shape = self._shape(x.shape, w.shape)
        _check_sizes("convolution", shape, inputs)
        return (TensorType(self.dtype, shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, w = inputs
        shape = bind_shape(self._shape(*(tuple(const(n) for n in a.shape) for a in inputs)), {})
        wide, exact = _compute_dtype(self.dtype, x, w, math.prod(w.shape[1:]))
        low, high = (bind_shape((const(0), const(0), *amounts), {}) for amounts in (self.low, self.high))
        padded = pad_array(x.astype(wide), low, high, "constant", np.zeros((), wide))
        windows = window_views(padded, w.shape[2:], self.strides, self.dilations, shape[2:])
        rank = x.ndim - 2
        channels, outs = w.shape[1], w.shape[0] // self.groups
        axes = [1, *range(2 + rank, 2 + 2 * rank)]
        parts = []
        with np.errstate(all="ignore"):
            for group in range(self.groups):
                own = windows[:, group * channels : (group + 1) * channels]
                kernel = w[group * outs : (group + 1) * outs].astype(wide)
                parts.append(np.moveaxis(np.tensordot(own, kernel, (axes, list(range(1, w.ndim)))), -1, 1))
        return (_narrowed(np.concatenate(parts, 1), self.dtype, exact),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, w = inputs
        accumulator = arithmetic_dtype(self.dtype)
        zero = const(0)
        low, high = (zero, zero, *self.low), (zero, zero, *self.high)
        shape = self._shape(x.shape, w.shape)
        depthwise = is_one(w.shape[1])
        padded = x if self.groups > 1 else pad_block(k, x, low, high, const(0, x.dtype))
        outs = canonical(w.shape[0] // self.groups)

        def value(n: Expr, o: Expr, *rest: Expr) -> Expr:
            spatial, taps = rest[: x.rank - 2], rest[x.rank - 2 :]
            c = zero if depthwise else taps[0]
            kernel = taps if depthwise else taps[1:]
            channel = c if self.groups == 1 else _grouped(o, outs) * w.shape[1] + c
            at = [s * stride + t * dilation for s, t, stride, dilation in zip(spatial, kernel, self.strides, self.dilations, strict=True)]
            if self.groups > 1:
                element = padded_element(x, (n, channel, *at), low, high, const(0, accumulator), widened)
            else:
                element = widened(padded[(n, channel, *at)])
            return element * widened(w[(o, c, *kernel)])

        def widened(element: Expr) -> Expr:
            return cast(accumulator, element)

        # One channel in each group: a reduction axis of extent 1 would only be in the way of schedules.
        extents = w.shape[2:] if depthwise else w.shape[1:]
        result = reduce_block(k, "convolution", shape, extents, value, "sum")
        return (rounded(k, "convolution_result", result, self.dtype),)


def _compute_dtype(dtype: DType, x: Array, w: Array, terms: int) -> tuple[np.dtype[np.generic], bool]:
    """The dtype of a reference's products, and whether it is float64 standing in for narrow integers, whose sums it holds exactly."""
    exact = dtype.is_integer and max(x.dtype.itemsize, w.dtype.itemsize) <= 2 and terms < 1 << 21
    return (np.dtype(np.float64) if exact else arithmetic_dtype(dtype).numpy), exact


def _narrowed(result: Array, dtype: DType, exact: bool) -> Array:
    return np.ascontiguousarray((result.astype(np.int64) if exact else result).astype(arithmetic_dtype(dtype).numpy).astype(dtype.numpy))


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionTranspose(Operator):
    """The gradient of a convolution towards its input, as an operator: x[n, c, s] adds x * w[c, o, k] to out[n, o, s*stride + k*dilation
    - low]. x [N, C, *S], w [C, O/groups, *K]; `output_padding` lengthens the end."""

    name: ClassVar[str] = "convolution_transpose"
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    output_padding: tuple[int, ...]
    groups: int
    dtype: DType

    def _shape(self, x: Shape, w: Shape) -> Shape:
        own = zip(x[2:], w[2:], self.strides, self.dilations, self.low, self.high, self.output_padding, strict=True)
        spatial = [
            canonical((dim - 1) * stride + (taps - 1) * dilation + (1 + extra) - low - high)
            for dim, taps, stride, dilation, low, high, extra in own
        ]
        return (x[0], canonical(w[1] * self.groups), *spatial)

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        _check_operands("convolution_transpose", self, inputs)
        x, w = inputs
        if len(self.output_padding) != x.rank - 2:
            raise TypeRuleError(f"convolution_transpose: {x.rank - 2} spatial axes need as many amounts of output padding")
        if not dims_equal(x.shape[1], w.shape[0]):
            raise TypeRuleError(f"convolution_transpose: the input has {x.shape[1]!r} channels, the weights take {w.shape[0]!r}")
        if w.shape[0].is_const and w.shape[0].value % self.groups:
            raise TypeRuleError(f"convolution_transpose: {w.shape[0]!r} input channels do not divide into {self.groups} groups")
        shape = self._shape(x.shape, w.shape)
        _check_sizes("convolution_transpose", shape, inputs)
        return (TensorType(self.dtype, shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, w = inputs
        low = bind_shape(self.low, {})
        shape = bind_shape(self._shape(*(tuple(const(n) for n in a.shape) for a in inputs)), {})
        wide = arithmetic_dtype(self.dtype).numpy
        channels = x.shape[1] // self.groups
        outs = w.shape[1]
        # Scatter into a result that also holds what `low` and `high` cut off.
        full = [
            max((n - 1) * stride + (taps - 1) * dilation + 1, cut + size)
            for n, taps, stride, dilation, cut, size in zip(x.shape[2:], w.shape[2:], self.strides, self.dilations, low, shape[2:])
        ]
        offset = [max(-cut, 0) for cut in low]
        result = np.zeros((*shape[:2], *(n + before for n, before in zip(full, offset))), wide)
        with np.errstate(all="ignore"):
            for group in range(self.groups):
                own = x[:, group * channels : (group + 1) * channels].astype(wide)
                kernel = w[group * channels : (group + 1) * channels].astype(wide)
                for tap in np.ndindex(*w.shape[2:]):
                    first = [t * dilation + before for t, dilation, before in zip(tap, self.dilations, offset)]
                    place = tuple(
                        slice(begin, begin + (n - 1) * stride + 1, stride) for begin, n, stride in zip(first, x.shape[2:], self.strides)
                    )
                    product = np.moveaxis(np.tensordot(own, kernel[(slice(None), slice(None), *tap)], ([1], [0])), -1, 1)
                    result[(slice(None), slice(group * outs, (group + 1) * outs), *place)] += product
        cut_out = tuple(slice(cut + before, cut + before + size) for cut, before, size in zip(low, offset, shape[2:]))
        return (_narrowed(result[(slice(None), slice(None), *cut_out)], self.dtype, False),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """By residue class (phase) of the output position modulo the stride, so that no inserted zero is multiplied: positions
        s*a + r - low take the taps r, r + s, r + 2s ... from the inputs a, a - 1, a - 2 ... Weights are first arranged by phase."""
        x, w = inputs
        rank = x.rank - 2
        zero = const(0)
        accumulator = arithmetic_dtype(self.dtype)
        shape = self._shape(x.shape, w.shape)
        phased = any(stride > 1 for stride in self.strides)
        taps = tuple(
            canonical(ceildiv((dim - 1) * dilation + 1, stride)) if stride > 1 else dim
            for dim, stride, dilation in zip(w.shape[2:], self.strides, self.dilations)
        )
        steps = [1 if stride > 1 else dilation for stride, dilation in zip(self.strides, self.dilations)]
        reach = [canonical((count - 1) * step) for count, step in zip(taps, steps)]
        first = [canonical(low // stride) for low, stride in zip(self.low, self.strides)]
        blocks = [
            canonical((size + low - 1) // stride - start + 1) for size, low, stride, start in zip(shape[2:], self.low, self.strides, first)
        ]
        before = [canonical(r - start) for r, start in zip(reach, first)]
        after = [canonical(start + count - dim) for start, count, dim in zip(first, blocks, x.shape[2:])]
        padded = pad_block(k, x, (zero, zero, *before), (zero, zero, *after), const(0, x.dtype))
        kernel = self._phases(k, w, taps) if phased else w
        channels, outs = canonical(x.shape[1] // self.groups), w.shape[1]

        def value(n: Expr, o: Expr, *rest: Expr) -> Expr:
            at, rest = rest[:rank], rest[rank:]
            phase, rest = (rest[:rank], rest[rank:]) if phased else ((), rest)
            c, tap = rest[0], rest[1:]
            channel = c if self.groups == 1 else _grouped(o, outs) * channels + c
            own = o if self.groups == 1 else (zero if is_one(outs) else o % outs)
            source = [a + r - t * step for a, r, t, step in zip(at, reach, tap, steps, strict=True)]
            return cast(accumulator, padded[(n, channel, *source)]) * cast(accumulator, kernel[(channel, own, *phase, *tap)])

        phases = tuple(const(stride) for stride in self.strides) if phased else ()
        result = reduce_block(k, "convolution_transpose", (*shape[:2], *blocks, *phases), (channels, *taps), value, "sum")
        if phased:
            result = self._interleaved(k, result, shape, first)
        return (rounded(k, "convolution_result", result, self.dtype),)

    def _phases(self, k: KernelBuilder, w: Tensor, taps: Sequence[Expr]) -> Tensor:
        """w as [C, O/groups, *phase, *tap]: the tap at distance phase + stride * tap, zero where dilation or the end leave none."""
        rank = w.rank - 2

        def value(c: Expr, o: Expr, *rest: Expr) -> Expr:
            conditions: list[Expr] = []
            at: list[Expr] = []
            for axis, (phase, tap) in enumerate(zip(rest[:rank], rest[rank:], strict=True)):
                stride, dilation, dim = self.strides[axis], self.dilations[axis], w.shape[2 + axis]
                if stride == 1:
                    at.append(tap)
                    continue
                distance = phase + tap * stride
                at.append(distance // dilation)
                conditions.append(less(distance, (dim - 1) * dilation + 1))
                if dilation > 1:
                    conditions.append(equal(distance % dilation, const(0)))
            return select(all_of(*conditions), w[(c, o, *at)], const(0, w.dtype))

        return k.compute("phases", (*w.shape[:2], *self.strides, *taps), value)

    def _interleaved(self, k: KernelBuilder, phases: Tensor, shape: Shape, first: Sequence[Expr]) -> Tensor:
        def value(n: Expr, o: Expr, *position: Expr) -> Expr:
            shifted = [p + low for p, low in zip(position, self.low)]
            block = [p // stride - start for p, stride, start in zip(shifted, self.strides, first)]
            phase = [p % stride for p, stride in zip(shifted, self.strides)]
            return phases[(n, o, *block, *phase)]

        return k.compute("interleaved", shape, value)
