"""Importers of operators that onnxruntime's optimizer writes (com.microsoft): fused products, normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators import convolution, matmul
from tilewright.graph.node import Value
from tilewright.graph.ops import Gather, Gelu, LayerNorm, RmsNorm, Softmax
from tilewright.ir import dtypes
from tilewright.support.errors import ModelError, UnsupportedOperatorError

DOMAIN = "com.microsoft"

# ---- products and activations


def fused_matmul(ctx: NodeContext) -> Value:
    """alpha * op(a) @ op(b), with the last two axes, or the batch axes and the last but one, of an operand exchanged."""
    operands = []
    for index, side in enumerate("AB"):
        x = ctx.input(index)
        rank = x.type.rank
        if ctx.attribute(f"transBatch{side}", 0):
            x = ctx.transpose(x, (*range(1, rank - 1), 0, rank - 1))
        if ctx.attribute(f"trans{side}", 0) and rank > 1:
            x = ctx.transpose(x, (*range(rank - 2), rank - 1, rank - 2))
        operands.append(x)
    return matmul.scaled(ctx, matmul.matrix_product(ctx, operands[0], operands[1]), ctx.attribute("alpha", 1.0))


def fused_gemm(ctx: NodeContext) -> Value:
    return _activated(ctx, matmul.gemm(ctx))


def fused_matmul_activation(ctx: NodeContext) -> Value:
    return _activated(ctx, fused_matmul(ctx))


def fused_conv(ctx: NodeContext) -> Value:
    """Convolution, bias, an optional sum with a fourth input, activation."""
    result = convolution.conv(ctx)
    if ctx.has(3):
        result = ctx.binary("add", result, ctx.input(3))
    return _activated(ctx, result)


def _activated(ctx: NodeContext, x: Value) -> Value:
    name = ctx.attribute("activation", "")
    params = ctx.attribute("activation_params") or []
    alpha = ctx.attribute("activation_alpha", params[0] if params else None)
    beta = ctx.attribute("activation_beta", params[1] if len(params) > 1 else None)
    match name:
        case "":
            return x
        case "Relu":
            return ctx.binary("max", x, 0.0)
        case "Tanh" | "Sigmoid":
            return ctx.unary(name.lower(), x)
        case "LeakyRelu":
            return ctx.select(ctx.binary("less", x, 0.0), ctx.binary("mul", x, 0.01 if alpha is None else alpha), x)
        case "Clip":
            bounds = (-np.inf if alpha is None else alpha, np.inf if beta is None else beta)
            return ctx.binary("min", ctx.binary("max", x, bounds[0]), bounds[1])
        case "HardSigmoid":
            line = ctx.binary("add", ctx.binary("mul", x, 0.2 if alpha is None else alpha), 0.5 if beta is None else beta)
            return ctx.binary("min", ctx.binary("max", line, 0.0), 1.0)
    raise UnsupportedOperatorError(f"{ctx.op_type} with the activation '{name}' is not supported", where=ctx.where)


def gelu(ctx: NodeContext) -> Value:
    """Also BiasGelu and FastGelu, which add a bias first."""
    x = ctx.binary("add", ctx.input(0), ctx.input(1)) if ctx.has(1) else ctx.input(0)
    return ctx.one(Gelu(ctx.op_type == "FastGelu"), x)


def quick_gelu(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return ctx.binary("mul", x, ctx.unary("sigmoid", ctx.binary("mul", x, ctx.attribute("alpha", 1.702))))


def bias_softmax(ctx: NodeContext) -> Value:
    x = ctx.binary("add", ctx.input(0), ctx.input(1))
    axis = ctx.axis(ctx.attribute("axis", 1), x.type.rank)
    if axis != x.type.rank - 1:
        raise UnsupportedOperatorError("BiasSoftmax over several axes is not supported", where=ctx.where)
    return ctx.one(Softmax(axis), x)


# ---- normalisation


def skip_layer_normalization(ctx: NodeContext) -> Sequence[Value | None]:
    """input, skip, gamma, beta, bias -> normalised, None, None, their sum. The simplified form has no beta and no mean."""
    simplified = ctx.op_type.startswith("SkipSimplified")
    total = ctx.binary("add", ctx.input(0), ctx.input(1))
    bias = ctx.optional(3 if simplified else 4)
    if bias is not None:
        total = ctx.binary("add", total, bias)
    axis, epsilon, gamma = total.type.rank - 1, ctx.attribute("epsilon", 1e-12), ctx.input(2)
    if simplified:
        return ctx.one(RmsNorm(axis, epsilon), total, gamma), None, None, total
    beta = ctx.optional(3)
    beta = ctx.broadcast(ctx.scalar_like(0, gamma), gamma.shape) if beta is None else beta
    return ctx.one(LayerNorm(axis, epsilon), total, gamma, beta), None, None, total


def simplified_layer_normalization(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return ctx.one(RmsNorm(ctx.axis(ctx.attribute("axis", -1), x.type.rank), ctx.attribute("epsilon", 1e-5)), x, ctx.input(1))


def embed_layer_normalization(ctx: NodeContext) -> Sequence[Value | None]:
    """Word, position and segment embeddings, summed and normalised; the mask's sums are the second result."""
    tables = [ctx.input(2), ctx.input(3), ctx.optional(4)]
    return embedded(ctx, tables, ctx.input(5), ctx.input(6), ctx.optional(8))


def embedded(ctx: NodeContext, tables: Sequence[Value | None], gamma: Value, beta: Value, places: Value | None) -> Sequence[Value | None]:
    """Rows of `tables` (words, positions, segments) for words, segments and mask at inputs 0, 1 and 7."""
    words, segments, mask = ctx.input(0), ctx.optional(1), ctx.optional(7)
    word_table, place_table, segment_table = tables
    if word_table is None or place_table is None:
        raise ModelError(f"{ctx.op_type} lacks a table", where=ctx.where)
    total = ctx.one(Gather(0), word_table, words)
    if places is not None:
        total = ctx.binary("add", total, ctx.one(Gather(0), place_table, places))
    else:
        total = ctx.binary("add", total, ctx.slice_axis(place_table, 0, 0, words.shape[1]))
    if segments is not None and segment_table is not None:
        total = ctx.binary("add", total, ctx.one(Gather(0), segment_table, segments))
    normal = ctx.one(LayerNorm(2, ctx.attribute("epsilon", 1e-12)), total, gamma, beta)
    if mask is None:
        count: Value = ctx.broadcast(ctx.constant(np.int32(0)), words.shape[:1])
    else:
        count = ctx.reduce("sum", ctx.cast(mask, dtypes.int32), (1,), keepdims=False)
    return normal, count, total


IMPORTERS: Table = {
    ("", "SimplifiedLayerNormalization"): simplified_layer_normalization,
    (DOMAIN, "BiasGelu"): gelu,
    (DOMAIN, "BiasSoftmax"): bias_softmax,
    (DOMAIN, "EmbedLayerNormalization"): embed_layer_normalization,
    (DOMAIN, "FastGelu"): gelu,
    (DOMAIN, "FusedConv"): fused_conv,
    (DOMAIN, "FusedGemm"): fused_gemm,
    (DOMAIN, "FusedMatMul"): fused_matmul,
    (DOMAIN, "FusedMatMulActivation"): fused_matmul_activation,
    (DOMAIN, "Gelu"): gelu,
    (DOMAIN, "QuickGelu"): quick_gelu,
    (DOMAIN, "SimplifiedLayerNormalization"): simplified_layer_normalization,
    (DOMAIN, "SkipLayerNormalization"): skip_layer_normalization,
    (DOMAIN, "SkipSimplifiedLayerNormalization"): skip_layer_normalization,
}
