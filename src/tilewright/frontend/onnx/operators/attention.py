"""Importer of scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Attention, Iota
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr

PAST_KEY, PAST_VALUE, LENGTHS = 4, 5, 6  # inputs
PLAIN_ATTRIBUTES = frozenset({"is_causal", "q_num_heads", "kv_num_heads", "scale", "softcap", "qk_matmul_output_mode", "softmax_precision"})


def attention(ctx: NodeContext) -> Value | Sequence[Value | None]:
    """The plain form becomes one attention operator; caches, soft caps and inner results go by ONNX's own definition."""
    q, k, v = ctx.input(0), ctx.input(1), ctx.input(2)
    plain = not (ctx.has(PAST_KEY) or ctx.has(PAST_VALUE) or ctx.has(LENGTHS) or any(ctx.wants(index) for index in (1, 2, 3)))
    plain = plain and PLAIN_ATTRIBUTES.issuperset(ctx.attribute_names) and not ctx.attribute("softcap", 0.0)
    if not plain or not q.type.dtype is k.type.dtype is v.type.dtype:
        return ctx.definition()
    flat = q.type.rank == 3
    if flat:
        heads, shared = ctx.require("q_num_heads"), ctx.require("kv_num_heads")
        q, k, v = split_heads(ctx, q, heads), split_heads(ctx, k, shared), split_heads(ctx, v, shared)
    if not (q.shape[1].is_const and k.shape[1].is_const and q.shape[-1].is_const):
        return ctx.definition()
    groups = int(q.shape[1].value) // int(k.shape[1].value)
    k, v = (repeat_heads(ctx, value, groups) for value in (k, v))
    scale = ctx.attribute("scale") or 1.0 / sqrt(int(q.shape[-1].value))
    causal = bool(ctx.attribute("is_causal", 0))
    if not ctx.has(3):
        result = ctx.one(Attention(scale, causal), q, k, v)
        return join_heads(ctx, result) if flat else result
    mask = ctx.input(3)
    if not dims_equal(mask.shape[-1], k.shape[-2]):
        return ctx.definition()
    if mask.type.dtype is not dtypes.bool_:
        result = ctx.one(Attention(scale, causal), q, k, v, ctx.cast(mask, q.type.dtype))
        return join_heads(ctx, result) if flat else result
    result = _masked(ctx, scale, q, k, v, _causal(ctx, mask, q.shape[-2], k.shape[-2]) if causal else mask)
    return join_heads(ctx, result) if flat else result


def _causal(ctx: NodeContext, mask: Value, queries: Expr, keys: Expr) -> Value:
    """The mask without the keys after each query's own position."""
    row = ctx.reshape(ctx.one(Iota(queries, dtypes.int64)), (queries, 1))
    return ctx.binary("and", mask, ctx.binary("less_equal", ctx.one(Iota(keys, dtypes.int64)), row))


def _masked(ctx: NodeContext, scale: float, q: Value, k: Value, v: Value, mask: Value) -> Value:
    """Attention under a bool mask; queries that may see no key give 0, where the operator gives NaN."""
    seen = ctx.reduce("any", mask, (mask.type.rank - 1,))
    return ctx.select(seen, ctx.one(Attention(scale, False), q, k, v, mask), ctx.scalar_like(0, q))


def split_heads(ctx: NodeContext, x: Value, heads: int) -> Value:
    """[B, S, H*D] to [B, H, S, D]."""
    batch, steps, width = x.shape
    return ctx.transpose(ctx.reshape(x, (batch, steps, heads, canonical(width // heads))), (0, 2, 1, 3))


def join_heads(ctx: NodeContext, x: Value) -> Value:
    """[B, H, S, D] to [B, S, H*D]."""
    batch, heads, steps, width = x.shape
    return ctx.reshape(ctx.transpose(x, (0, 2, 1, 3)), (batch, steps, canonical(heads * width)))


def repeat_heads(ctx: NodeContext, x: Value, groups: int) -> Value:
    """[B, H, S, D] to [B, H*groups, S, D], each head repeated."""
    if groups == 1:
        return x
    batch, heads, steps, width = x.shape
    spread = ctx.broadcast(ctx.reshape(x, (batch, heads, 1, steps, width)), (batch, heads, groups, steps, width))
    return ctx.reshape(spread, (batch, canonical(heads * groups), steps, width))


IMPORTERS: Table = {
    ("", "Attention"): attention,
}
