"""Importers of operators that onnxruntime's optimizer writes (com.microsoft): fused products, normalisations, attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators import convolution, matmul
from tilewright.frontend.onnx.operators.attention import join_heads, split_heads
from tilewright.graph.node import Value
from tilewright.graph.ops import Attention, Gather, Gelu, LayerNorm, RmsNorm, Softmax
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
    words, segments, word_table, place_table = ctx.input(0), ctx.optional(1), ctx.input(2), ctx.input(3)
    segment_table, gamma, beta, mask = ctx.optional(4), ctx.input(5), ctx.input(6), ctx.optional(7)
    total = ctx.one(Gather(0), word_table, words)
    if ctx.has(8):
        total = ctx.binary("add", total, ctx.one(Gather(0), place_table, ctx.input(8)))
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


# ---- attention


def attention(ctx: NodeContext) -> Value:
    """input [B, S, I], weights [I, 3*H], bias, mask [B, T]: projection, heads, softmax, values."""
    if any(ctx.has(i) for i in (4, 5, 6)) or any(ctx.wants(i) for i in (1, 2)):
        raise UnsupportedOperatorError("com.microsoft::Attention with a cache or a bias of its scores is not supported", where=ctx.where)
    x, weights, heads = ctx.input(0), ctx.input(1), ctx.require("num_heads")
    projected = matmul.matrix_product(ctx, x, weights)
    if ctx.has(2):
        projected = ctx.binary("add", projected, ctx.input(2))
    widths = ctx.attribute("qkv_hidden_sizes")
    if not widths:
        if not projected.shape[2].is_const:
            raise ModelError("Attention: the width of its weights is not known", where=ctx.where)
        widths = [int(projected.shape[2].value) // 3] * 3
    offsets = [0, widths[0], widths[0] + widths[1]]
    q, k, v = (split_heads(ctx, ctx.slice_axis(projected, 2, o, w), heads) for o, w in zip(offsets, widths, strict=True))
    return _attended(ctx, q, k, v, ctx.optional(3), bool(ctx.attribute("unidirectional", 0)))


def multi_head_attention(ctx: NodeContext) -> Value:
    """query, key, value [B, S, H], bias, key padding mask [B, T], bias of the scores."""
    if any(ctx.has(i) for i in (6, 7)) or any(ctx.wants(i) for i in (1, 2)) or not (ctx.has(1) and ctx.has(2)):
        raise UnsupportedOperatorError("MultiHeadAttention with a cache or packed operands is not supported", where=ctx.where)
    heads = ctx.require("num_heads")
    parts = [ctx.input(i) for i in range(3)]
    if any(p.type.rank != 3 for p in parts):
        raise UnsupportedOperatorError("MultiHeadAttention with operands of rank 4 or 5 is not supported", where=ctx.where)
    if ctx.has(3):
        at = 0
        for i, part in enumerate(parts):
            width = int(part.shape[2].value)
            parts[i] = ctx.binary("add", part, ctx.slice_axis(ctx.input(3), 0, at, width))
            at += width
    q, k, v = (split_heads(ctx, p, heads) for p in parts)
    return _attended(ctx, q, k, v, ctx.optional(4), bool(ctx.attribute("unidirectional", 0)), ctx.optional(5))


def _attended(ctx: NodeContext, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, bias: Value | None = None) -> Value:
    """Heads joined again after attention; `mask` int [B, T] is 0 where a key is padding, `bias` is added to the scores."""
    if not q.shape[3].is_const:
        raise ModelError(f"{ctx.op_type}: the width of a head is not known", where=ctx.where)
    scale = ctx.attribute("scale", 0.0) or 1.0 / sqrt(int(q.shape[3].value))
    if mask is not None:
        if mask.type.rank != 2:
            raise UnsupportedOperatorError(f"{ctx.op_type} with a mask of type {mask.type!r} is not supported", where=ctx.where)
        filter_value = ctx.attribute("mask_filter_value", -10000.0)
        padding = ctx.binary("equal", ctx.reshape(mask, (mask.shape[0], 1, 1, mask.shape[1])), 0)
        added = ctx.select(padding, ctx.scalar_like(filter_value, q), ctx.scalar_like(0, q))
        bias = added if bias is None else ctx.binary("add", bias, added)
    operands = (q, k, v) if bias is None else (q, k, v, bias)
    return join_heads(ctx, ctx.one(Attention(float(scale), causal), *operands))


IMPORTERS: Table = {
    ("", "SimplifiedLayerNormalization"): simplified_layer_normalization,
    (DOMAIN, "Attention"): attention,
    (DOMAIN, "BiasGelu"): gelu,
    (DOMAIN, "BiasSoftmax"): bias_softmax,
    (DOMAIN, "EmbedLayerNormalization"): embed_layer_normalization,
    (DOMAIN, "FastGelu"): gelu,
    (DOMAIN, "FusedConv"): fused_conv,
    (DOMAIN, "FusedGemm"): fused_gemm,
    (DOMAIN, "FusedMatMul"): fused_matmul,
    (DOMAIN, "Gelu"): gelu,
    (DOMAIN, "MultiHeadAttention"): multi_head_attention,
    (DOMAIN, "QuickGelu"): quick_gelu,
    (DOMAIN, "SimplifiedLayerNormalization"): simplified_layer_normalization,
    (DOMAIN, "SkipLayerNormalization"): skip_layer_normalization,
    (DOMAIN, "SkipSimplifiedLayerNormalization"): skip_layer_normalization,
}
