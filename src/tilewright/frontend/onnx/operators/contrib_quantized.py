"""Importers of operators that onnxruntime's quantizer writes (com.microsoft): products and layers of integers.

Elementwise operators on quantized tensors (QLinearAdd and the like) become dequantization, the float operator, and quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from string import ascii_letters

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators import matmul
from tilewright.frontend.onnx.operators.contrib import embedded
from tilewright.frontend.onnx.operators.contrib_attention import projected_attention, refuse
from tilewright.frontend.onnx.operators.contrib_tensors import channels_last
from tilewright.frontend.onnx.operators.pooling import average_pool
from tilewright.frontend.onnx.operators.quantization import integer_product, is_zero, qlinear_conv, requantized
from tilewright.frontend.onnx.operators.recurrent import activations, direction
from tilewright.frontend.onnx.operators.reduction import mean_over
from tilewright.graph.node import Array, Value
from tilewright.graph.ops import Concat, Dequantize, DynamicQuantize, Gather, Quantize, QuantizedLstm, Softmax, WidenWeights
from tilewright.graph.ops.narrow_weights import packed
from tilewright.graph.ops.recurrent import DIRECTIONS
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import const
from tilewright.support.errors import ModelError, UnsupportedOperatorError

DOMAIN = "com.microsoft"


def dynamic_quantize_matmul(ctx: NodeContext) -> Value:
    """a float, b, b_scale, b_zero, bias: a is quantized by its range, the product is that of integers."""
    q, scale, zero = ctx.emit(DynamicQuantize(), ctx.input(0))
    return _scaled_product(ctx, q, ctx.input(1), scale, ctx.input(2), zero, ctx.optional(3), ctx.optional(4))


def matmul_integer_to_float(ctx: NodeContext) -> Value:
    """a, b, a_scale, b_scale, a_zero, b_zero, bias."""
    a, b = ctx.input(0), ctx.input(1)
    return _scaled_product(ctx, a, b, ctx.input(2), ctx.input(3), ctx.optional(4), ctx.optional(5), ctx.optional(6))


def _scaled_product(
    ctx: NodeContext, a: Value, b: Value, a_scale: Value, b_scale: Value, a_zero: Value | None, b_zero: Value | None, bias: Value | None
) -> Value:
    acc = ctx.cast(integer_product(ctx, a, b, a_zero, b_zero), a_scale.type.dtype)
    single = b_scale.shape in ((), (const(1),))
    columns = ctx.number(b_scale) if single else b_scale
    result = ctx.binary("mul", acc, ctx.binary("mul", ctx.number(a_scale), columns))
    return result if bias is None else ctx.binary("add", result, bias)


def matmul_nbits(ctx: NodeContext) -> Value:
    """a @ b.T with b [n, k] of 2, 4 or 8 bits in blocks along k. b: uint8 [n, blocks, block * bits / 8], the first code in the lowest bits;
    scales [n * blocks]; zero points packed likewise for each n, or floats, 2 ** (bits - 1) when left out; group index [k]: the block of
    each column; bias [n]."""
    bits, block, n, k = (int(ctx.require(name)) for name in ("bits", "block_size", "N", "K"))
    if bits not in CODES:
        raise UnsupportedOperatorError(f"MatMulNBits of {bits} bits is not supported", where=ctx.where, why="it is of 2, 4 and 8 bits")
    a, blocks = ctx.input(0), -(-k // block)
    codes = codes_of(ctx.require_constant(1, "weight").reshape(n, -1), bits)[:, :k]
    scales = ctx.reshape(ctx.input(2), (n, blocks))
    zeros: Value | Array = np.full((n, blocks), 1 << (bits - 1), np.uint8)
    if ctx.has(3) and ctx.input(3).type.dtype.is_float:
        zeros = ctx.reshape(ctx.cast(ctx.input(3), dtypes.float32), (n, blocks))
    elif ctx.has(3):
        zeros = codes_of(ctx.require_constant(3, "zero point").reshape(n, -1), bits)[:, :blocks]
    if ctx.has(4):
        a, codes, scales, zeros, block = _regrouped(ctx, a, codes, scales, zeros, block)
    if isinstance(zeros, Value):
        weights = ctx.one(WidenWeights(bits, 1, k, block), ctx.constant(packed(codes, bits, 1)), scales, zeros)
    else:
        dtype = CODES[bits]
        weights = ctx.one(Dequantize(1, block, a.type.dtype), ctx.constant(codes, dtype), scales, ctx.constant(zeros, dtype))
    rows = ascii_letters[: a.type.rank - 1]
    product = matmul.contract(ctx, a, rows + "Y", weights, "ZY", rows + "Z")
    return product if not ctx.has(5) else ctx.binary("add", product, ctx.input(5))


CODES = {2: dtypes.uint2, 4: dtypes.uint4, 8: dtypes.uint8}


def codes_of(array: Array, bits: int) -> Array:
    """The codes in rows of bytes, the first in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (array[..., None] >> shifts & np.uint8((1 << bits) - 1)).reshape(array.shape[0], -1)


def _regrouped(
    ctx: NodeContext, a: Value, codes: Array, scales: Value, zeros: Value | Array, block: int
) -> tuple[Value, Array, Value, Value | Array, int]:
    """Operands without a group index: columns in the order of their groups where each group is a block, else a scale for each column."""
    groups = ctx.require_constant(4, "group index")[: codes.shape[1]].astype(np.int64)
    order = np.argsort(groups, kind="stable")
    if not np.array_equal(groups[order], np.arange(codes.shape[1]) // block):
        index = ctx.constant(groups)
        scales = ctx.one(Gather(1), scales, index)
        zeros = ctx.one(Gather(1), zeros, index) if isinstance(zeros, Value) else zeros[:, groups]
        return a, codes, scales, zeros, 1
    if not np.array_equal(order, np.arange(order.size)):
        a = ctx.one(Gather(a.type.rank - 1), a, ctx.constant(order))
    return a, codes[:, order], scales, zeros, block


def _real(ctx: NodeContext, index: int) -> Value:
    """The quantized tensor, scale and zero point at inputs index.. as floats."""
    zero = ctx.optional(index + 2)
    operands = [ctx.input(index), ctx.number(ctx.input(index + 1))]
    operands += [] if zero is None or is_zero(zero) else [ctx.number(zero)]
    return ctx.one(Dequantize(0, 0, dtypes.float32), *operands)


def _quantized(ctx: NodeContext, x: Value, index: int, dtype: DType) -> Value:
    """x quantized by the scale and zero point at inputs index.."""
    zero = ctx.optional(index + 1)
    operands = [ctx.number(ctx.input(index)), *([] if zero is None or is_zero(zero) else [ctx.number(zero)])]
    return ctx.one(Quantize(0, 0, dtype), x, *operands)


def _qlinear_binary(fn: str) -> Callable[[NodeContext], Value]:
    return lambda ctx: _quantized(ctx, ctx.binary(fn, _real(ctx, 0), _real(ctx, 3)), 6, ctx.input(0).type.dtype)


def _qlinear_unary(fn: Callable[[NodeContext, Value], Value]) -> Callable[[NodeContext], Value]:
    return lambda ctx: _quantized(ctx, fn(ctx, _real(ctx, 0)), 3, ctx.input(0).type.dtype)


def _leaky(ctx: NodeContext, x: Value) -> Value:
    return ctx.select(ctx.binary("less", x, 0.0), ctx.binary("mul", x, ctx.attribute("alpha", 0.01)), x)


def _softmax(ctx: NodeContext, x: Value) -> Value:
    axis = ctx.axis(ctx.attribute("axis", -1), x.type.rank)
    if ctx.attribute("opset", 13) < 13 and axis != x.type.rank - 1:
        raise UnsupportedOperatorError("QLinearSoftmax over several axes is not supported", where=ctx.where)
    return ctx.one(Softmax(axis), x)


def _global_mean(ctx: NodeContext, x: Value) -> Value:
    return mean_over(ctx, x, range(1, x.type.rank - 1) if ctx.attribute("channels_last", 0) else range(2, x.type.rank))


def qlinear_concat(ctx: NodeContext) -> Value:
    """y_scale, y_zero, then (tensor, scale, zero) of each part."""
    parts = [_real(ctx, i) for i in range(2, len(ctx.inputs), 3)]
    axis = ctx.axis(ctx.require("axis"), parts[0].type.rank)
    return _quantized(ctx, ctx.one(Concat(axis), *parts), 0, ctx.input(2).type.dtype)


def qlinear_average_pool(ctx: NodeContext) -> Value:
    real = replace(ctx, inputs=(_real(ctx, 0),))
    pooled = channels_last(real, average_pool) if ctx.attribute("channels_last", 0) else average_pool(real)
    return _quantized(ctx, pooled, 3, ctx.input(0).type.dtype)


def qlinear_convolution(ctx: NodeContext) -> Value:
    """QLinearConv of ONNX, with `channels_last` of x and result."""
    return channels_last(ctx, qlinear_conv) if ctx.attribute("channels_last", 0) else qlinear_conv(ctx)


def qlinear_where(ctx: NodeContext) -> Value:
    """condition, then (x, scale, zero), (y, scale, zero), scale and zero of the result."""
    chosen = ctx.select(ctx.input(0), _real(ctx, 1), _real(ctx, 4))
    return _quantized(ctx, chosen, 7, ctx.input(1).type.dtype)


def _mean(ctx: NodeContext, x: Value) -> Value:
    axes = [ctx.axis(a, x.type.rank) for a in ctx.attribute("axes") or range(x.type.rank)]
    mean = mean_over(ctx, x, axes)
    return mean if ctx.attribute("keepdims", 1) else ctx.reshape(mean, [dim for a, dim in enumerate(x.shape) if a not in axes])


def qgemm(ctx: NodeContext) -> Value:
    """a, a_scale, a_zero, b, b_scale, b_zero, bias int32, y_scale, y_zero: alpha * op(a) @ op(b) + bias, in float32 without y_scale."""
    a, b = ctx.input(0), ctx.input(3)
    a = ctx.transpose(a, (1, 0)) if ctx.attribute("transA", 0) else a
    b = ctx.transpose(b, (1, 0)) if ctx.attribute("transB", 0) else b
    acc = integer_product(ctx, a, b, ctx.optional(2), ctx.optional(5))
    acc = ctx.binary("add", acc, ctx.input(6)) if ctx.has(6) else acc
    columns = ctx.input(4)
    scale = ctx.binary("mul", ctx.number(ctx.input(1)), ctx.number(columns) if columns.shape in ((), (const(1),)) else columns)
    scale = matmul.scaled(ctx, scale, ctx.attribute("alpha", 1.0))
    if not ctx.has(7):
        return ctx.binary("mul", ctx.cast(acc, dtypes.float32), scale)
    zero = ctx.optional(8)
    dtype = zero.type.dtype if zero is not None else ctx.input(0).type.dtype
    return requantized(ctx, acc, ctx.binary("div", scale, ctx.number(ctx.input(7))), zero, dtype)


def qattention(ctx: NodeContext) -> Sequence[Value | None]:
    """input, weights, bias, their scales, mask, their zero points, past."""
    refuse(ctx, {}, ("do_rotary", "past_present_share_buffer"))
    operands = ctx.input(0), ctx.input(1), ctx.input(3), ctx.input(4), ctx.optional(6), ctx.optional(7), ctx.input(2)
    return projected_attention(ctx, _scaled_product(ctx, *operands), ctx.optional(5), ctx.optional(8), None)


def qembed_layer_normalization(ctx: NodeContext) -> Sequence[Value | None]:
    """EmbedLayerNormalization with its tables, gamma and beta in bytes: scales at 8.., zero points at 13.. ."""
    real: list[Value | None] = []
    for i in range(5):
        table, zero = ctx.optional(2 + i), ctx.optional(13 + i)
        if table is None:
            real.append(None)
            continue
        operands = [table, ctx.number(ctx.input(8 + i)), *([] if zero is None or is_zero(zero) else [ctx.number(zero)])]
        real.append(ctx.one(Dequantize(0, 0, dtypes.float32), *operands))
    tables, gamma, beta = real[:3], real[3], real[4]
    if gamma is None or beta is None:
        raise ModelError("QEmbedLayerNormalization lacks gamma or beta", where=ctx.where)
    return embedded(ctx, tables, gamma, beta, None)


def gather_block_quantized(ctx: NodeContext) -> Value:
    """Rows of a constant in blocks of few bits, as floats: data, indices, scales, zero points (for bytes the middle of the range, else
    0)."""
    data, scales = ctx.input(0), ctx.input(2)
    bits, block = ctx.attribute("bits", 4), ctx.attribute("block_size", 128)
    zeros = ctx.constant_of(3) if ctx.has(3) else None
    codes, dtype = ctx.require_constant(0, "table"), data.type.dtype
    if dtype is dtypes.uint8:
        if bits not in CODES:
            raise UnsupportedOperatorError(f"GatherBlockQuantized of {bits} bits is not supported", where=ctx.where)
        codes, dtype = _last_unpacked(codes, bits), CODES[bits]
        if ctx.has(3):
            zeros = _last_unpacked(ctx.require_constant(3, "zero point"), bits)[..., : int(scales.shape[-1].value)]
        else:
            zeros = np.full([int(dim.value) for dim in scales.shape], 1 << (bits - 1), np.uint8)
    rank = data.type.rank
    axis, picked = ctx.axis(ctx.attribute("quantize_axis", 1), rank), ctx.axis(ctx.attribute("gather_axis", 0), rank)
    if axis == picked:
        raise UnsupportedOperatorError("GatherBlockQuantized along the axis of its blocks is not supported", where=ctx.where)
    indices = ctx.input(1)
    parts = [ctx.one(Gather(picked), ctx.constant(codes, dtype), indices), ctx.one(Gather(picked), scales, indices)]
    if zeros is not None:
        parts.append(ctx.one(Gather(picked), ctx.constant(zeros, dtype), indices))
    return ctx.one(Dequantize(axis if axis < picked else axis + indices.type.rank - 1, block, scales.type.dtype), *parts)


def _last_unpacked(array: Array, bits: int) -> Array:
    return codes_of(array.reshape(-1, array.shape[-1]), bits).reshape(*array.shape[:-1], array.shape[-1] * 8 // bits)


# Values of the 4-bit codes of bitsandbytes: FP4 (a sign, two bits of exponent, one of mantissa, over the greatest), and NF4, quantiles of
# the normal distribution (Dettmers et al., "QLoRA", 2023, appendix E).
FP4 = np.array([0, 0.0052083333, 0.6666667, 1, 0.3333333, 0.5, 0.1666667, 0.25] * 2, np.float32) * np.repeat([1, -1], 8).astype(np.float32)
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip


def matmul_bnb4(ctx: NodeContext) -> Value:
    """a @ b.T with b [N, K] of 4-bit codes, two in a byte, the first in the upper bits, and a scale for each block of the flattened b. The
    codes stand for values without order, so b is widened when it is compiled."""
    n, k, block = (int(ctx.require(name)) for name in ("N", "K", "block_size"))
    values = (FP4, NF4)[int(ctx.require("quant_type"))]
    packed_codes, scales = ctx.require_constant(1, "weight").reshape(-1), ctx.require_constant(2, "scale").reshape(-1)
    codes = np.stack([packed_codes >> 4, packed_codes & 15], axis=1).reshape(-1)[: n * k]
    wide = values[codes] * np.repeat(scales.astype(np.float32), block)[: n * k]
    weights = ctx.constant(wide.reshape(n, k), ctx.input(0).type.dtype)
    return matmul.matrix_product(ctx, ctx.input(0), ctx.transpose(weights, (1, 0)) if ctx.attribute("transB", 1) else weights)


def matmul_integer_16(ctx: NodeContext) -> Value:
    return matmul.matrix_product(ctx, ctx.input(0), ctx.input(1), dtypes.int32)


def mul_integer(ctx: NodeContext) -> Value:
    """(a - a_zero) * (b - b_zero) in int32, of a, a_zero, b, b_zero."""
    sides = []
    for at in (0, 2):
        x, zero = ctx.cast(ctx.input(at), dtypes.int32), ctx.optional(at + 1)
        sides.append(x if zero is None else ctx.binary("sub", x, ctx.cast(ctx.number(zero), dtypes.int32)))
    return ctx.binary("mul", *sides)


def reduce_sum_integer(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    wide = ctx.cast(x, dtypes.int32 if x.type.dtype.is_signed else dtypes.uint32)
    return ctx.reduce("sum", wide, [ctx.axis(a, x.type.rank) for a in ctx.require("axes")], bool(ctx.attribute("keepdims", 1)))


def dynamic_quantize_lstm(ctx: NodeContext) -> list[Value]:
    """x, w [D, I, 4H], r [D, H, 4H], bias, lengths, initial_h, initial_c, peephole, w_scale, w_zero, r_scale, r_zero."""
    way = direction(ctx)
    x = ctx.input(0)
    batch = x.shape[1]
    weights = [_integer_weights(ctx, i, zero) for i, zero in ((1, 9), (2, 11))]
    given, values = [], []
    for index, name in ((3, "bias"), (4, "lengths"), (5, "initial_h"), (6, "initial_c"), (7, "peephole")):
        value = ctx.optional(index)
        if value is not None:
            value = ctx.refine_axis(value, 1, batch) if name.startswith("initial") else value
            given.append(name)
            values.append(ctx.cast(value, dtypes.int32) if name == "lengths" else value)
    for index, name in ((8, "w_scale"), (10, "r_scale")):
        scale = ctx.input(index)
        given.append(name)
        values.append(ctx.reshape(scale, (*scale.shape, 1)) if scale.type.rank == 1 else scale)
    hidden = weights[1].shape[2]
    if not hidden.is_const:
        raise ModelError("DynamicQuantizeLSTM: the number of hidden units is not known", where=ctx.where)
    chosen = activations(ctx, ("Sigmoid", "Tanh", "Tanh"), DIRECTIONS[way])
    coupled = bool(ctx.attribute("input_forget", 0))
    op = QuantizedLstm(int(hidden.value), way, chosen, ctx.attribute("clip"), coupled, tuple(given))
    return list(ctx.emit(op, x, *weights, *values))


def _integer_weights(ctx: NodeContext, index: int, zero_index: int) -> Value:
    """[D, I, 4H] as [D, 4H, I], with a zero point that is not 0 subtracted in int32."""
    weights, zero = ctx.input(index), ctx.optional(zero_index)
    if zero is not None and not is_zero(zero):
        shape = (zero.shape[0], 1, 1) if zero.type.rank == 1 else (zero.shape[0], 1, zero.shape[1])
        weights = ctx.binary("sub", ctx.cast(weights, dtypes.int32), ctx.cast(ctx.reshape(zero, shape), dtypes.int32))
    return ctx.transpose(weights, (0, 2, 1))


IMPORTERS: Table = {
    (DOMAIN, "DynamicQuantizeLSTM"): dynamic_quantize_lstm,
    (DOMAIN, "DynamicQuantizeMatMul"): dynamic_quantize_matmul,
    (DOMAIN, "GatherBlockQuantized"): gather_block_quantized,
    (DOMAIN, "MatMulBnb4"): matmul_bnb4,
    (DOMAIN, "MatMulInteger16"): matmul_integer_16,
    (DOMAIN, "MatMulIntegerToFloat"): matmul_integer_to_float,
    (DOMAIN, "MatMulNBits"): matmul_nbits,
    (DOMAIN, "MulInteger"): mul_integer,
    (DOMAIN, "QAttention"): qattention,
    (DOMAIN, "QEmbedLayerNormalization"): qembed_layer_normalization,
    (DOMAIN, "QGemm"): qgemm,
    (DOMAIN, "QLinearAdd"): _qlinear_binary("add"),
    (DOMAIN, "QLinearAveragePool"): qlinear_average_pool,
    (DOMAIN, "QLinearConcat"): qlinear_concat,
    (DOMAIN, "QLinearConv"): qlinear_convolution,
    (DOMAIN, "QLinearGlobalAveragePool"): _qlinear_unary(_global_mean),
    (DOMAIN, "QLinearLeakyRelu"): _qlinear_unary(_leaky),
    (DOMAIN, "QLinearMul"): _qlinear_binary("mul"),
    (DOMAIN, "QLinearReduceMean"): _qlinear_unary(_mean),
    (DOMAIN, "QLinearSigmoid"): _qlinear_unary(lambda ctx, x: ctx.unary("sigmoid", x)),
    (DOMAIN, "QLinearSoftmax"): _qlinear_unary(_softmax),
    (DOMAIN, "QLinearWhere"): qlinear_where,
    (DOMAIN, "ReduceSumInteger"): reduce_sum_integer,
}
