"""Linear quantization: q = saturate(round(x / scale) + zero), x = (q - zero) * scale.

Scale and zero point are scalars (one for the tensor), vectors (one for each index of `axis`), or, with `block` > 0, of x's rank with one
for each run of `block` indices of `axis`. Arithmetic is in float32 (float64 for float64 tensors); rounding is half to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, GraphBuilder, Operator, Value
from tilewright.graph.ops.casts import cast_array
from tilewright.graph.ops.compose import binary, cast, reduce, reshape, scalar, select, unary
from tilewright.graph.ops.elementwise import Cast, expect_inputs
from tilewright.graph.ops.movement import BroadcastTo, Slice
from tilewright.graph.shapes import canonical, dims_equal, format_shape, is_one, normalize_axis
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import ceildiv, const
from tilewright.ir.types import Shape, TensorType
from tilewright.support.errors import TypeRuleError


def _check_parameters(name: str, x: TensorType, scale: TensorType, zero: TensorType | None, axis: int, block: int) -> None:
    """Raises TypeRuleError unless scale and zero point fit x."""
    if not scale.dtype.is_float:
        raise TypeRuleError(f"{name}: the scale is {scale.dtype}", why="it must be a float")
    if zero is not None and (zero.rank != scale.rank or not all(dims_equal(a, b) for a, b in zip(zero.shape, scale.shape))):
        raise TypeRuleError(f"{name}: scale {format_shape(scale.shape)} and zero point {format_shape(zero.shape)} differ in shape")
    if scale.rank == 0 or (scale.rank == 1 and is_one(scale.shape[0])):
        return
    axis = normalize_axis(axis, x.rank, name)
    wanted: Shape = (x.shape[axis],)
    if block:
        wanted = (*x.shape[:axis], canonical(ceildiv(x.shape[axis], block)), *x.shape[axis + 1 :])
    if len(wanted) != scale.rank or not all(dims_equal(canonical(a), b) for a, b in zip(scale.shape, wanted)):
        raise TypeRuleError(
            f"{name}: the scale is {format_shape(scale.shape)}", why=f"x {format_shape(x.shape)} needs {format_shape(wanted)}"
        )


def _spread(g: GraphBuilder, p: Value, x: TensorType, axis: int, block: int) -> Value:
    """A scale or zero point in a shape that broadcasts to x."""
    if p.type.rank == 0 or (p.type.rank == 1 and is_one(p.shape[0])):
        return reshape(g, p, ())
    axis = axis % x.rank
    if not block:
        return reshape(g, p, [dim if a == axis else const(1) for a, dim in enumerate(x.shape)])
    before, blocks, after = p.shape[:axis], p.shape[axis], p.shape[axis + 1 :]
    wide = g.one(BroadcastTo((*before, blocks, const(block), *after)), reshape(g, p, (*before, blocks, const(1), *after)))
    flat = reshape(g, wide, (*before, blocks * block, *after))
    return flat if dims_equal(flat.shape[axis], x.shape[axis]) else g.one(Slice((const(0),) * x.rank, x.shape, (1,) * x.rank), flat)


def _spread_array(p: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    if p.size == 1 and p.ndim <= 1:
        return p.reshape(())
    axis = axis % len(shape)
    if not block:
        return p.reshape([n if a == axis else 1 for a, n in enumerate(shape)])
    return np.take(np.repeat(p, block, axis=axis), range(shape[axis]), axis=axis)


def _work_dtype(*types: DType) -> DType:
    return dtypes.float64 if dtypes.float64 in types else dtypes.float32


@dataclass(frozen=True, slots=True, eq=False)
class Quantize(Operator):
    """(x, scale[, zero]) -> x quantized to `dtype`, an integer, or a float of at most 8 bits (then the zero point is 0 and `saturate` says
    whether overflow clamps)."""

    name: ClassVar[str] = "quantize"
    axis: int
    block: int
    dtype: DType
    saturate: bool = True

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("quantize", inputs, 2, 3)
        x, scale, *zero = inputs
        _check_parameters("quantize", x, scale, zero[0] if zero else None, self.axis, self.block)
        if zero and zero[0].dtype is not self.dtype:
            raise TypeRuleError(f"quantize: the zero point is {zero[0].dtype}, the result {self.dtype}")
        if not (self.dtype.is_integer or (self.dtype.is_float and self.dtype.bits <= 8)):
            raise TypeRuleError(f"quantize to {self.dtype} is not defined")
        return (TensorType(self.dtype, x.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, scale, *zero = inputs
        work = _work_dtype(dtypes.from_numpy(x.dtype), dtypes.from_numpy(scale.dtype)).numpy
        with np.errstate(all="ignore"):
            q = x.astype(work) / _spread_array(scale, x.shape, self.axis, self.block).astype(work)
        if self.dtype.is_float:
            return (cast_array(q, self.dtype, self.saturate),)
        shift = _spread_array(zero[0], x.shape, self.axis, self.block).astype(work) if zero else work.type(0)
        return (cast_array(np.clip(np.rint(q) + shift, self.dtype.lowest, self.dtype.highest).astype(work), self.dtype),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x, scale, *zero = inputs
        work = _work_dtype(x.type.dtype, scale.type.dtype)
        q = binary(g, "div", cast(g, x, work), cast(g, _spread(g, scale, x.type, self.axis, self.block), work))
        if self.dtype.is_float:
            return (g.one(Cast(self.dtype, self.saturate), q),)
        q = unary(g, "round", q)
        if zero:
            q = binary(g, "add", q, cast(g, _spread(g, zero[0], x.type, self.axis, self.block), work))
        return (_saturated(g, q, self.dtype),)


def _saturated(g: GraphBuilder, q: Value, dtype: DType) -> Value:
    """Whole floats clamped to the range of an integer dtype and converted."""
    return g.one(Cast(dtype), binary(g, "min", binary(g, "max", q, float(dtype.lowest)), float(dtype.highest)))


@dataclass(frozen=True, slots=True, eq=False)
class Dequantize(Operator):
    """(q, scale[, zero]) -> (q - zero) * scale as `dtype`."""

    name: ClassVar[str] = "dequantize"
    axis: int
    block: int
    dtype: DType

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("dequantize", inputs, 2, 3)
        q, scale, *zero = inputs
        _check_parameters("dequantize", q, scale, zero[0] if zero else None, self.axis, self.block)
        if zero and zero[0].dtype is not q.dtype:
            raise TypeRuleError(f"dequantize: the zero point is {zero[0].dtype}, the tensor {q.dtype}")
        if not self.dtype.is_float or q.dtype.kind not in ("int", "uint", "float"):
            raise TypeRuleError(f"dequantize from {q.dtype} to {self.dtype} is not defined")
        return (TensorType(self.dtype, q.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        q, scale, *zero = inputs
        work = _work_dtype(self.dtype, dtypes.from_numpy(scale.dtype)).numpy
        exact = np.dtype(np.int32) if dtypes.from_numpy(q.dtype).is_integer else work
        shift = _spread_array(zero[0], q.shape, self.axis, self.block).astype(exact) if zero else exact.type(0)
        plain = (q.astype(exact) - shift).astype(work)
        return (cast_array(plain * _spread_array(scale, q.shape, self.axis, self.block).astype(work), self.dtype, False),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        q, scale, *zero = inputs
        work = _work_dtype(self.dtype, scale.type.dtype)
        exact = dtypes.int32 if q.type.dtype.is_integer else work
        plain = cast(g, q, exact)
        if zero:
            plain = binary(g, "sub", plain, cast(g, _spread(g, zero[0], q.type, self.axis, self.block), exact))
        real = binary(g, "mul", cast(g, plain, work), cast(g, _spread(g, scale, q.type, self.axis, self.block), work))
        return (cast(g, real, self.dtype),)


@dataclass(frozen=True, slots=True, eq=False)
class DynamicQuantize(Operator):
    """(x float32) -> (q uint8, scale float32, zero uint8): the range of x with 0 in it, mapped to 0..255 for the whole tensor."""

    name: ClassVar[str] = "dynamic_quantize"

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("dynamic_quantize", inputs, 1)
        (x,) = inputs
        if x.dtype is not dtypes.float32:
            raise TypeRuleError(f"dynamic_quantize is not defined for {x.dtype}", why="it takes float32")
        return (TensorType(dtypes.uint8, x.shape), TensorType(dtypes.float32, ()), TensorType(dtypes.uint8, ()))

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        low, high = np.minimum(np.min(x, initial=0), np.float32(0)), np.maximum(np.max(x, initial=0), np.float32(0))
        scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
        zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        q = np.clip(np.rint(x / scale) + np.float32(zero), 0, 255).astype(np.uint8)
        return (q, np.asarray(scale), np.asarray(zero))

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        (x,) = inputs
        axes = tuple(range(x.type.rank))
        low = binary(g, "min", reshape(g, reduce(g, "min", x, axes), ()), 0.0)
        high = binary(g, "max", reshape(g, reduce(g, "max", x, axes), ()), 0.0)
        width = binary(g, "sub", high, low)
        one = scalar(g, 1.0, dtypes.float32)
        scale = select(g, binary(g, "greater", width, 0.0), binary(g, "div", width, 255.0), one)
        shift = unary(g, "round", binary(g, "div", unary(g, "neg", low), scale))
        shift = binary(g, "min", binary(g, "max", shift, 0.0), 255.0)
        q = _saturated(g, binary(g, "add", unary(g, "round", binary(g, "div", x, scale)), shift), dtypes.uint8)
        return (q, scale, g.one(Cast(dtypes.uint8), shift))
