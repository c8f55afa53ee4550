"""Importers of quantization: to and from integers, and products and convolutions of integers.

Products keep their narrow operands: sum((a - za) * (b - zb)) is the plain product minus terms of row and column sums, and sums of weights
are constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.convolution import padding, spatial, with_bias
from tilewright.frontend.onnx.operators.matmul import matrix_product
from tilewright.frontend.onnx.sizes import ceil_quotient
from tilewright.graph.node import Value
from tilewright.graph.ops import Convolution, Dequantize, DynamicQuantize, Pad, Quantize
from tilewright.graph.ops.source import Constant
from tilewright.graph.shapes import canonical, is_one
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import const
from tilewright.support.errors import ModelError


def is_zero(value: Value | None) -> bool:
    """Whether a zero point is left out or known to be 0."""
    return value is None or (isinstance(value.op, Constant) and not np.any(value.op.data.array.astype(np.float32)))


def _parameters(scale: Value, zero: Value | None, ctx: NodeContext) -> list[Value]:
    """Scale and zero point; a zero point that is known to be 0 is left out. Exporters mix shapes () and (1,)."""
    if zero is None or is_zero(zero):
        return [scale]
    single = zero.shape in ((), (const(1),)) and scale.shape in ((), (const(1),))
    return [scale, ctx.reshape(zero, scale.shape) if single else ctx.refine(zero, scale.shape)]


def _matched(ctx: NodeContext, x: Value, scale: Value) -> tuple[Value, Value]:
    """The tensor and its scales with dims asserted to fit: one scale in all, one for each index of the axis, or one for each block."""
    axis, block = ctx.attribute("axis", 1), ctx.attribute("block_size", 0)
    if scale.type.rank == 0 or (scale.type.rank == 1 and is_one(scale.shape[0])):
        return x, scale
    axis = ctx.axis(axis, x.type.rank)
    if not block and scale.type.rank == 1:
        x = ctx.refine_axis(x, axis, scale.shape[0]) if scale.shape[0].is_const else x
        return x, ctx.refine(scale, (x.shape[axis],))
    if block and scale.type.rank == x.type.rank:
        return x, ctx.refine(scale, (*x.shape[:axis], ceil_quotient(x.shape[axis], block), *x.shape[axis + 1 :]))
    return x, scale


def quantize(ctx: NodeContext) -> Value:
    """The result's dtype is that of the zero point, `output_dtype`, or uint8."""
    (x, scale), zero = _matched(ctx, ctx.input(0), ctx.input(1)), ctx.optional(2)
    default = zero.type.dtype if zero is not None else dtypes.uint8
    dtype = default if not ctx.attribute("output_dtype") else ctx.dtype_attribute("output_dtype")
    op = Quantize(ctx.attribute("axis", 1), ctx.attribute("block_size", 0), dtype, bool(ctx.attribute("saturate", 1)))
    return ctx.one(op, x, *_parameters(scale, zero, ctx))


def dequantize(ctx: NodeContext) -> Value:
    (q, scale), zero = _matched(ctx, ctx.input(0), ctx.input(1)), ctx.optional(2)
    dtype = scale.type.dtype if not ctx.attribute("output_dtype") else ctx.dtype_attribute("output_dtype")
    op = Dequantize(ctx.attribute("axis", 1), ctx.attribute("block_size", 0), dtype)
    return ctx.one(op, q, *_parameters(scale, zero, ctx))


def dynamic_quantize(ctx: NodeContext) -> Sequence[Value]:
    return ctx.emit(DynamicQuantize(), ctx.input(0))


def _int32(ctx: NodeContext, value: Value) -> Value:
    return ctx.cast(value, dtypes.int32)


def _trailing(ctx: NodeContext, zero: Value, rank: int, axis: int) -> Value:
    """A zero point or scale, scalar or one for each index of `axis` of a tensor of `rank` axes (or already of that rank), to broadcast."""
    if zero.type.rank == 0 or zero.shape == (const(1),):
        return ctx.number(zero)
    if zero.type.rank == 1:
        return ctx.reshape(zero, [zero.shape[0] if a == axis else 1 for a in range(rank)])
    return zero


def centred_weights(ctx: NodeContext, w: Value, zero: Value | None, axis: int) -> Value | None:
    """Constant weights less their zero point, scalar or one for each index of `axis`: in int8 where they fit, which products of bytes take;
    else int16. None for what is no constant of bytes."""
    if not isinstance(w.op, Constant) or w.type.dtype not in (dtypes.int8, dtypes.uint8) or w.type.rank < 2:
        return None
    values = w.op.data.array.astype(np.int16)
    if zero is not None and not is_zero(zero):
        if not isinstance(zero.op, Constant) or zero.type.rank > 1:
            return None
        points = zero.op.data.array.astype(np.int16)
        values = values - points.reshape([points.size if a == axis % w.type.rank else 1 for a in range(w.type.rank)])
    fits = values.size == 0 or (values.min() >= -128 and values.max() <= 127)
    return ctx.constant(values.astype(np.int8) if fits else values, dtypes.int8 if fits else dtypes.int16)


def integer_product(ctx: NodeContext, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """int32 matmul of a - a_zero and b - b_zero. Zero points: scalars, one for each row of a, one for each column of b."""
    centred = centred_weights(ctx, b, b_zero, -1)
    if centred is not None and centred.type.dtype is dtypes.int8:
        b, b_zero = centred, None
    elif centred is not None and isinstance(b.op, Constant) and b.type.dtype is dtypes.uint8 and isinstance(b_zero, Value):
        # bytes and sums of the rows rather than weights of twice the size
        b = ctx.constant(b.op.data.array.astype(np.int16) - 128, dtypes.int8)
        b_zero = ctx.binary("sub", ctx.cast(b_zero, dtypes.int16), 128)
    acc = matrix_product(ctx, a, b, dtypes.int32)
    vector = a.type.rank == 1 or b.type.rank == 1
    if vector and not (is_zero(a_zero) and is_zero(b_zero)):
        a = _int32(ctx, a) if a_zero is None else ctx.binary("sub", _int32(ctx, a), _int32(ctx, _trailing(ctx, a_zero, a.type.rank, 0)))
        b = _int32(ctx, b) if b_zero is None else ctx.binary("sub", _int32(ctx, b), _int32(ctx, _trailing(ctx, b_zero, b.type.rank, 1)))
        return matrix_product(ctx, a, b, dtypes.int32)
    row_zero = None if a_zero is None or is_zero(a_zero) else _int32(ctx, _trailing(ctx, a_zero, a.type.rank, a.type.rank - 2))
    column_zero = None if b_zero is None or is_zero(b_zero) else _int32(ctx, _trailing(ctx, b_zero, b.type.rank, b.type.rank - 1))
    if row_zero is not None:
        columns = ctx.reduce("sum", _int32(ctx, b), (b.type.rank - 2,))
        acc = ctx.binary("sub", acc, ctx.binary("mul", row_zero, columns))
    if column_zero is not None:
        shifted = ctx.reduce("sum", _int32(ctx, a), (a.type.rank - 1,))
        if row_zero is not None:
            depth = ctx.size_number(a.shape[-1], dtypes.int32)
            shifted = ctx.binary("sub", shifted, ctx.binary("mul", row_zero, depth))
        acc = ctx.binary("sub", acc, ctx.binary("mul", shifted, column_zero))
    return acc


def matmul_integer(ctx: NodeContext) -> Value:
    return integer_product(ctx, ctx.input(0), ctx.input(1), ctx.optional(2), ctx.optional(3))


def integer_convolution(ctx: NodeContext, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None) -> Value:
    """int32 convolution of x - x_zero and w - w_zero by the node's attributes; the padding counts as x_zero."""
    count = x.type.rank - 2
    if count < 1 or w.type.rank != x.type.rank:
        raise ModelError(f"{ctx.op_type} of {x.type!r} with weights {w.type!r}", where=ctx.where)
    strides, dilations = spatial(ctx, "strides", count), spatial(ctx, "dilations", count)
    low, high = padding(ctx, x.shape[2:], w.shape[2:], strides, dilations)
    groups = ctx.attribute("group", 1)
    x = ctx.refine_axis(x, 1, canonical(w.shape[1] * groups))
    none = (const(0),) * count
    centred = centred_weights(ctx, w, w_zero, 0)
    if centred is not None:
        w = centred
    elif w_zero is not None and not is_zero(w_zero):
        w = ctx.binary("sub", _int32(ctx, w), _int32(ctx, _trailing(ctx, w_zero, w.type.rank, 0)))
    if x_zero is None or is_zero(x_zero):
        return ctx.one(Convolution(strides, dilations, low, high, groups, dtypes.int32), x, w)
    x_zero = ctx.number(x_zero)
    outside = (const(0), const(0))
    if any(e is not const(0) for e in (*low, *high)):
        x = ctx.one(Pad((*outside, *low), (*outside, *high), "constant"), x, x_zero)
    acc = ctx.one(Convolution(strides, dilations, none, none, groups, dtypes.int32), x, w)
    sums = ctx.reduce("sum", _int32(ctx, w), range(1, w.type.rank), keepdims=False)
    shift = ctx.binary("mul", _int32(ctx, x_zero), sums)
    return ctx.binary("sub", acc, ctx.reshape(shift, (*sums.shape, *[1] * count)))


def conv_integer(ctx: NodeContext) -> Value:
    return integer_convolution(ctx, ctx.input(0), ctx.input(1), ctx.optional(2), ctx.optional(3))


def requantized(ctx: NodeContext, acc: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    """saturate(round(acc * scale) + zero), in float32."""
    real = ctx.unary("round", ctx.binary("mul", ctx.cast(acc, dtypes.float32), scale))
    if zero is not None and not is_zero(zero):
        real = ctx.binary("add", real, ctx.cast(ctx.number(zero) if zero.type.rank <= 1 else zero, dtypes.float32))
    bounded = ctx.binary("min", ctx.binary("max", real, float(dtype.lowest)), float(dtype.highest))
    return ctx.cast(bounded, dtype)


def _scale(ctx: NodeContext, value: Value) -> Value:
    return ctx.cast(value, dtypes.float32)


def qlinear_conv(ctx: NodeContext) -> Value:
    """x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias int32."""
    x, w, y_zero = ctx.input(0), ctx.input(3), ctx.input(7)
    acc = with_bias(ctx, integer_convolution(ctx, x, w, ctx.input(2), ctx.input(5)), ctx.optional(8))
    scale = ctx.binary("mul", ctx.number(ctx.input(1)), _trailing(ctx, ctx.input(4), acc.type.rank, 1))
    scale = ctx.binary("div", scale, ctx.number(ctx.input(6)))
    return requantized(ctx, acc, scale, y_zero, y_zero.type.dtype)


def qlinear_matmul(ctx: NodeContext) -> Value:
    """a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero."""
    a, b, y_zero = ctx.input(0), ctx.input(3), ctx.input(7)
    acc = integer_product(ctx, a, b, ctx.input(2), ctx.input(5))
    left = _trailing(ctx, _scale(ctx, ctx.input(1)), acc.type.rank, acc.type.rank - 2)
    right = _trailing(ctx, _scale(ctx, ctx.input(4)), acc.type.rank, acc.type.rank - 1)
    scale = ctx.binary("div", ctx.binary("mul", left, right), _trailing(ctx, _scale(ctx, ctx.input(6)), acc.type.rank, acc.type.rank - 2))
    return requantized(ctx, acc, scale, y_zero, y_zero.type.dtype)


IMPORTERS: Table = {
    ("", "ConvInteger"): conv_integer,
    ("", "DequantizeLinear"): dequantize,
    ("", "DynamicQuantizeLinear"): dynamic_quantize,
    ("", "MatMulInteger"): matmul_integer,
    ("", "QLinearConv"): qlinear_conv,
    ("", "QLinearMatMul"): qlinear_matmul,
    ("", "QuantizeLinear"): quantize,
    ("com.microsoft", "DequantizeLinear"): dequantize,
    ("com.microsoft", "QuantizeLinear"): quantize,
}
