"""Importer of scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Attention, Concat, Iota
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.support.errors import ModelError

MASK, PAST_KEY, PAST_VALUE, LENGTHS = 3, 4, 5, 6  # inputs
SCORES = 3  # the output that gives inner results
PLAIN_ATTRIBUTES = frozenset({"is_causal", "q_num_heads", "kv_num_heads", "scale", "softcap", "qk_matmul_output_mode", "softmax_precision"})


def attention(ctx: NodeContext) -> Value | Sequence[Value | None]:
    """One attention operator, with caches that grow and heads of keys that several of the query share; inner results go by ONNX's own
    definition."""
    q, k, v = ctx.input(0), ctx.input(1), ctx.input(2)
    plain = not ctx.wants(SCORES) and PLAIN_ATTRIBUTES.issuperset(ctx.attribute_names)
    if not plain or not q.type.dtype is k.type.dtype is v.type.dtype:
        return ctx.definition()
    flat = q.type.rank == 3
    if flat:
        heads, shared = ctx.require("q_num_heads"), ctx.require("kv_num_heads")
        q, k, v = split_heads(ctx, q, heads), split_heads(ctx, k, shared), split_heads(ctx, v, shared)
    if not (q.shape[1].is_const and k.shape[1].is_const and q.shape[-1].is_const):
        return ctx.definition()
    past: Expr = const(0)
    if ctx.has(PAST_KEY) and ctx.has(PAST_VALUE):
        past = ctx.input(PAST_KEY).shape[2]
        k, v = (ctx.one(Concat(2), ctx.refine_axis(ctx.input(at), 2, past), new) for at, new in ((PAST_KEY, k), (PAST_VALUE, v)))
    mask = ctx.optional(MASK)
    if mask is not None and not dims_equal(mask.shape[-1], k.shape[-2]):
        return ctx.definition()
    scale = float(ctx.attribute("scale") or 1.0 / sqrt(int(q.shape[-1].value)))
    causal, cap = bool(ctx.attribute("is_causal", 0)), float(ctx.attribute("softcap", 0.0))
    keep = _kept(ctx, mask, q, k, past, causal)
    if keep is None:
        operands = (q, k, v) if mask is None else (q, k, v, ctx.cast(mask, q.type.dtype))
        result = ctx.one(Attention(scale, causal, cap, past), *operands)
    else:
        added = keep
        if mask is not None and mask.type.dtype is not dtypes.bool_:
            added = ctx.select(keep, ctx.cast(mask, q.type.dtype), ctx.scalar_like(-float("inf"), q))
        seen = ctx.reduce("any", keep, (keep.type.rank - 1,))
        # queries that may see no key give 0, where the operator gives NaN
        result = ctx.select(seen, ctx.one(Attention(scale, False, cap), q, k, v, added), ctx.scalar_like(0, q))
    return join_heads(ctx, result) if flat else result, k, v


def _kept(ctx: NodeContext, mask: Value | None, q: Value, k: Value, past: Expr, causal: bool) -> Value | None:
    """The keys that each query may see, as a bool, where some query may see none; None where the operator itself says it."""
    keep = mask if mask is not None and mask.type.dtype is dtypes.bool_ else None
    rows = ctx.reshape(ctx.one(Iota(q.shape[-2], dtypes.int64)), (q.shape[-2], 1))
    place = ctx.one(Iota(k.shape[-2], dtypes.int64))
    last: Value | None = None
    if ctx.has(LENGTHS):
        counts = ctx.cast(ctx.reshape(ctx.input(LENGTHS), (q.shape[0], 1, 1, 1)), dtypes.int64)
        last = ctx.binary("sub", counts, 1)
        if causal:
            last = ctx.binary("add", ctx.binary("sub", counts, ctx.size_scalar(q.shape[-2])), rows)
    elif causal and keep is not None:
        last = ctx.binary("add", rows, ctx.size_scalar(past))
    if last is None:
        return keep
    within = ctx.binary("less_equal", place, last)
    return within if keep is None else ctx.binary("and", keep, within)


def split_heads(ctx: NodeContext, x: Value, heads: int) -> Value:
    """[B, S, H*D] to [B, H, S, D]."""
    if x.type.rank != 3:
        raise ModelError(f"queries of three axes and keys or values of type {x.type}", where=ctx.where)
    batch, steps, width = x.shape
    return ctx.transpose(ctx.reshape(x, (batch, steps, heads, canonical(width // heads))), (0, 2, 1, 3))


def join_heads(ctx: NodeContext, x: Value) -> Value:
    """[B, H, S, D] to [B, S, H*D]."""
    batch, heads, steps, width = x.shape
    return ctx.reshape(ctx.transpose(x, (0, 2, 1, 3)), (batch, steps, canonical(heads * width)))


IMPORTERS: Table = {
    ("", "Attention"): attention,
}
