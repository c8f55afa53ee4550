"""Importers of onnxruntime's operators (com.microsoft) on tensors in general: older names of what ONNX has today, and fusions of its
optimizer. What is a short formula of other operators is written in ONNX's own text form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import onnx

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.contrib import DOMAIN, fused_conv, fused_matmul
from tilewright.frontend.onnx.operators.convolution import conv
from tilewright.frontend.onnx.operators.pooling import max_pool
from tilewright.frontend.onnx.operators.shape import range_ as range_of_onnx
from tilewright.frontend.onnx.operators.vision import grid_sample
from tilewright.graph.node import Value
from tilewright.graph.ops import Gather, GroupNorm, Iota, ScatterElements
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.expr import const, maximum
from tilewright.support.errors import ModelError

# Operator: attributes, inputs, results and nodes, of ai.onnx 20. Inputs that are left out are left out of the nodes too.
DEFINITIONS = {
    "BiasAdd": " (X, bias, skip) => (Y) { added = Add (X, bias)  Y = Add (added, skip) }",
    "BiasDropout": """ (data, bias, residual, ratio, training) => (Y, mask) {
        added = Add (data, bias)
        dropped, mask = Dropout (added, ratio, training)
        Y = Sum (dropped, residual)
    }""",
    "BiasSplitGelu": """ (X, bias) => (Y) {
        added = Add (X, bias)
        left, right = Split <axis = -1, num_outputs = 2> (added)
        active = Gelu (right)
        Y = Mul (left, active)
    }""",
    "ComplexMul": """ (A, B) => (C) {
        a, b = Split <axis = -1, num_outputs = 2> (A)
        c, d = Split <axis = -1, num_outputs = 2> (B)
        ac = Mul (a, c)
        bd = Mul (b, d)
        ad = Mul (a, d)
        bc = Mul (b, c)
        real = Sub (ac, bd)
        imaginary = Add (ad, bc)
        C = Concat <axis = -1> (real, imaginary)
    }""",
    "ComplexMulConj": """ (A, B) => (C) {
        c, d = Split <axis = -1, num_outputs = 2> (B)
        minus = Neg (d)
        conjugate = Concat <axis = -1> (c, minus)
        C = com.microsoft.ComplexMul (A, conjugate)
    }""",
    "ExpandDims": """ (X, axis) => (Y) {
        wide = Cast <to = 7> (axis)
        one = Constant <value_ints = [1]> ()
        axes = Reshape (wide, one)
        Y = Unsqueeze (X, axes)
    }""",
    "GatedAdd": " (X, Y, gate) => (output) { scaled = Mul (Y, gate)  output = Add (X, scaled) }",
    "GatherND": " (data, indices) => (output) { output = GatherND (data, indices) }",
    "GemmFastGelu": """ (X, W, bias) => (Y) {
        product = MatMul (X, W)
        added = Sum (product, bias)
        Y = Gelu <approximate = "tanh"> (added)
    }""",
    "Pad": ' <mode: string = "constant"> (data, pads, value) => (output) { output = Pad <mode: string = @mode> (data, pads, value) }',
    "TorchEmbedding": " (weight, indices) => (Y) { Y = Gather (weight, indices) }",
    "Trilu": " <upper: int = 1> (X, k) => (Y) { Y = Trilu <upper: int = @upper> (X, k) }",
    "Unique": " (x) => (y, idx, counts) { y, first, idx, counts = Unique <sorted = 0> (x) }",
}


@lru_cache(maxsize=64)
def _function(op_type: str) -> onnx.FunctionProto:
    head = f'<opset_import: ["" : 20, "{DOMAIN}" : 1], domain: "{DOMAIN}">'
    return onnx.parser.parse_function(f"{head} {op_type}{DEFINITIONS[op_type]}")


def _defined(op_type: str) -> Callable[[NodeContext], Sequence[Value | None]]:
    return lambda ctx: ctx.expansion(_function(op_type), ctx.inputs)


# ---- channels last


def channels_last(ctx: NodeContext, run: Callable[[NodeContext], Value]) -> Value:
    """What `run` gives for input 0 with its channels second, channels last again."""
    x = ctx.input(0)
    rank = x.type.rank
    result = run(replace(ctx, inputs=(ctx.transpose(x, (0, rank - 1, *range(1, rank - 1))), *ctx.inputs[1:])))
    return ctx.transpose(result, (0, *range(2, rank), 1))


def nhwc_max_pool(ctx: NodeContext) -> Value:
    def pooled(inner: NodeContext) -> Value:
        result = max_pool(inner)
        return result if isinstance(result, Value) else result[0]

    return channels_last(ctx, pooled)


def nhwc_conv(ctx: NodeContext) -> Value:
    """x [N, *S, C], weights [O, *K, C / groups]."""
    w = ctx.input(1)
    rank = w.type.rank
    weights = ctx.transpose(w, (0, rank - 1, *range(1, rank - 1)))
    return channels_last(replace(ctx, inputs=(ctx.input(0), weights, *ctx.inputs[2:])), conv)


def nhwc_fused_conv(ctx: NodeContext) -> Value:
    """x [N, *S, C], weights [O, C / groups, *K], bias, and an addend [N, *S, O]."""
    added = ctx.optional(3)
    if added is None:
        return channels_last(ctx, fused_conv)
    rank = added.type.rank
    inner = ctx.transpose(added, (0, rank - 1, *range(1, rank - 1)))
    return channels_last(replace(ctx, inputs=(*ctx.inputs[:3], inner)), fused_conv)


def group_norm(ctx: NodeContext) -> Value:
    """x [N, *S, C] (or channels second), gamma, beta [C] in float32; SiLU after it with `activation`."""

    def normalised(inner: NodeContext) -> Value:
        x, gamma, beta = inner.input(0), inner.cast(inner.input(1), dtypes.float32), inner.cast(inner.input(2), dtypes.float32)
        op = GroupNorm(inner.require("groups"), inner.attribute("epsilon", 1e-5))
        result = inner.one(op, inner.cast(x, dtypes.float32), gamma, beta)
        result = inner.binary("mul", result, inner.unary("sigmoid", result)) if inner.attribute("activation", 0) else result
        return inner.cast(result, x.type.dtype)

    return channels_last(ctx, normalised) if ctx.attribute("channels_last", 1) else normalised(ctx)


def skip_group_norm(ctx: NodeContext) -> Sequence[Value]:
    """x, gamma, beta, skip, bias: GroupNorm of x + skip + bias, and that sum."""
    x, skip = ctx.input(0), ctx.input(3)
    if skip.type.rank == 2:
        skip = ctx.reshape(skip, (skip.shape[0], *[1] * (x.type.rank - 2), skip.shape[1]))
    total = ctx.binary("add", x, skip)
    total = ctx.binary("add", total, ctx.input(4)) if ctx.has(4) else total
    return group_norm(replace(ctx, inputs=(total, *ctx.inputs[1:3]))), total


# ---- others


def pair_distances(ctx: NodeContext) -> Value:
    """The distance, or its square, of each row of a [m, f] from each row of b [n, f]."""
    a, b = ctx.input(0), ctx.input(1)
    a = ctx.refine_axis(a, 1, b.shape[1])
    away = ctx.binary("sub", ctx.reshape(a, (a.shape[0], 1, a.shape[1])), b)
    squares = ctx.reduce("sum", ctx.binary("mul", away, away), (2,), keepdims=False)
    match ctx.attribute("metric", "sqeuclidean"):
        case "sqeuclidean":
            return squares
        case "euclidean":
            return ctx.unary("sqrt", squares)
    raise ModelError(f"CDist has the metric '{ctx.attribute('metric')}'", where=ctx.where, why="it is sqeuclidean or euclidean")


def range_(ctx: NodeContext) -> Value:
    """Like Range of ONNX, by 1 when the step is left out."""
    step = ctx.optional(2)
    return range_of_onnx(replace(ctx, inputs=(*ctx.inputs[:2], ctx.scalar_like(1, ctx.input(0)) if step is None else step)))


def is_all_finite(ctx: NodeContext) -> Value:
    """Whether no element of any input is infinite or NaN, or of one of these kinds."""
    bad: Value | None = None
    for index in range(len(ctx.inputs)):
        x = ctx.input(index)
        kinds = ["isnan"] * (not ctx.attribute("isinf_only", 0)) + ["isinf"] * (not ctx.attribute("isnan_only", 0))
        for kind in kinds:
            found = ctx.reduce("any", ctx.unary(kind, x), range(x.type.rank), keepdims=False)
            bad = found if bad is None else ctx.binary("or", bad, found)
    if bad is None:
        raise ModelError("IsAllFinite of nothing", where=ctx.where)
    return ctx.reshape(ctx.unary("not", bad), ())


def unfold(ctx: NodeContext) -> Value:
    """The windows of `size` elements, `step` apart, along an axis; a window is a new last axis."""
    x, size, step = ctx.input(0), ctx.require("size"), ctx.attribute("step", 1)
    axis = ctx.axis(ctx.attribute("dim", -1), x.type.rank)
    if size < 1 or step < 1:
        raise ModelError(f"UnfoldTensor of windows of {size} elements that are {step} apart", where=ctx.where)
    count = canonical(maximum((x.shape[axis] - size) // step + 1, 0))
    starts = ctx.binary("mul", ctx.reshape(ctx.one(Iota(count, dtypes.int64)), (count, 1)), step)
    windows = ctx.one(Gather(axis), x, ctx.binary("add", starts, ctx.one(Iota(const(size), dtypes.int64))))
    rank = windows.type.rank
    return ctx.transpose(windows, (*(a for a in range(rank) if a != axis + 1), axis + 1))


def without_repeats(ctx: NodeContext) -> Value:
    """NGramRepeatBlock: tokens [B, S], scores [B, V]: -inf for each token that would repeat a run of `ngram_size` tokens."""
    tokens, scores, size = ctx.cast(ctx.input(0), dtypes.int64), ctx.input(1), ctx.require("ngram_size")
    if size < 1:
        raise ModelError(f"NGramRepeatBlock of runs of {size} tokens", where=ctx.where)
    batch, length = tokens.shape
    count = canonical(maximum(length - size + 1, 0))
    same: Value = ctx.broadcast(ctx.constant(True), (batch, count))
    for i in range(size - 1):
        last = ctx.slice_axis(tokens, 1, canonical(maximum(length - size + 1 + i, 0)), 1)
        same = ctx.binary("and", same, ctx.binary("equal", ctx.slice_axis(tokens, 1, i, count), last))
    after = ctx.slice_axis(tokens, 1, size - 1, count)
    blocked = ctx.select(same, ctx.scalar_like(-float("inf"), scores), ctx.scalar_like(float("inf"), scores))
    return ctx.one(ScatterElements(1, "min"), ctx.refine(scores, (batch, scores.shape[1])), after, blocked)


IMPORTERS: Table = {
    **{(DOMAIN, name): _defined(name) for name in DEFINITIONS},
    (DOMAIN, "CDist"): pair_distances,
    (DOMAIN, "GridSample"): grid_sample,
    (DOMAIN, "GroupNorm"): group_norm,
    (DOMAIN, "IsAllFinite"): is_all_finite,
    (DOMAIN, "NGramRepeatBlock"): without_repeats,
    (DOMAIN, "NhwcConv"): nhwc_conv,
    (DOMAIN, "NhwcFusedConv"): nhwc_fused_conv,
    (DOMAIN, "NhwcMaxPool"): nhwc_max_pool,
    (DOMAIN, "Range"): range_,
    (DOMAIN, "SkipGroupNorm"): skip_group_norm,
    (DOMAIN, "TransposeMatMul"): fused_matmul,
    (DOMAIN, "UnfoldTensor"): unfold,
}
