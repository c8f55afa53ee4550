"""Importers of onnxruntime's attention operators (com.microsoft), with caches of keys and values, groups of heads and rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TypeAlias

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table, kept_ones
from tilewright.frontend.onnx.operators import matmul
from tilewright.frontend.onnx.operators.attention import join_heads, split_heads
from tilewright.graph.node import Value
from tilewright.graph.ops import Attention, Concat, Gather, GatherNd, Iota, Pad, Slice
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, maximum
from tilewright.support.errors import ModelError, UnsupportedOperatorError

DOMAIN = "com.microsoft"
NONE = const(0)

# ---- attention with as many heads of keys as of queries


def attention(ctx: NodeContext) -> Sequence[Value | None]:
    """input [B, S, I], weights [I, 3*H], bias, mask, past [2, B, N, P, D], bias of the scores: projection, heads, softmax, values."""
    refuse(ctx, {6: "a buffer that past and present share"}, ("do_rotary", "past_present_share_buffer"))
    projected = matmul.matrix_product(ctx, ctx.input(0), ctx.input(1))
    if ctx.has(2):
        projected = ctx.binary("add", projected, ctx.input(2))
    return projected_attention(ctx, projected, ctx.optional(3), ctx.optional(4), ctx.optional(5))


def projected_attention(
    ctx: NodeContext, projected: Value, mask: Value | None, cache: Value | None, bias: Value | None
) -> Sequence[Value | None]:
    """Attention of queries, keys and values that lie side by side in [B, S, 3*H]."""
    heads = ctx.require("num_heads")
    widths = ctx.attribute("qkv_hidden_sizes")
    if not widths:
        if not projected.shape[2].is_const:
            raise ModelError(f"{ctx.op_type}: the width of its weights is not known", where=ctx.where)
        widths = [int(projected.shape[2].value) // 3] * 3
    offsets = [0, widths[0], widths[0] + widths[1]]
    q, k, v = (split_heads(ctx, ctx.slice_axis(projected, 2, o, w), heads) for o, w in zip(offsets, widths, strict=True))
    past: Expr = const(0)
    if cache is not None:
        past = cache.shape[3]
        k, v = (_joined(ctx, ctx.reshape(ctx.slice_axis(cache, 0, i, 1), cache.shape[1:]), new) for i, new in enumerate((k, v)))
    present = None
    if ctx.wants(1):
        present = ctx.one(Concat(0), *(ctx.reshape(part, (1, *part.shape)) for part in (k, v)))
    causal = bool(ctx.attribute("unidirectional", 0))
    return _attended(ctx, q, k, v, mask, causal, bias, past), present


def multi_head_attention(ctx: NodeContext) -> Sequence[Value | None]:
    """query, key, value [B, S, H], or heads of keys [B, N, T, D], or all in one; bias, mask of keys, bias of the scores, past keys and
    values [B, N, P, D]."""
    refuse(ctx, {8: "a buffer that past and present share", 9: "beams"}, ())
    if ctx.wants(3):
        raise UnsupportedOperatorError("MultiHeadAttention with its scores as a result is not supported", where=ctx.where)
    q, k, v = _projections(ctx, ctx.require("num_heads"))
    past: Expr = const(0)
    if ctx.has(6):
        past = ctx.input(6).shape[2]
        k, v = _joined(ctx, ctx.input(6), k), _joined(ctx, ctx.input(7), v)
    result = _attended(ctx, q, k, v, ctx.optional(4), bool(ctx.attribute("unidirectional", 0)), ctx.optional(5), past)
    return result, k, v


def _projections(ctx: NodeContext, heads: int) -> tuple[Value, Value, Value]:
    """Heads of queries, keys and values [B, N, S, D], with the bias."""
    first = ctx.input(0)
    if first.type.rank == 5:  # [B, S, N, 3, D]
        parts = [_part_of(ctx, first, i) for i in range(3)]
    elif ctx.has(1) and ctx.input(1).type.rank == 5:  # [B, T, N, 2, D]
        parts = [split_heads(ctx, first, heads), *(_part_of(ctx, ctx.input(1), i) for i in range(2))]
    else:
        parts = [x if x.type.rank == 4 else split_heads(ctx, x, heads) for x in (ctx.input(i) for i in range(3))]
    if ctx.has(3):
        at = 0
        for i, part in enumerate(parts):
            width = heads * int(part.shape[3].value)
            bias = ctx.reshape(ctx.slice_axis(ctx.input(3), 0, at, width), (heads, 1, part.shape[3]))
            parts[i] = ctx.binary("add", part, bias)
            at += width
    q, k, v = parts
    return q, k, v


def _part_of(ctx: NodeContext, packed: Value, index: int) -> Value:
    """[B, S, N, parts, D] to [B, N, S, D]."""
    part = ctx.slice_axis(packed, 3, index, 1)
    return ctx.transpose(ctx.reshape(part, (*packed.shape[:3], packed.shape[4])), (0, 2, 1, 3))


def _joined(ctx: NodeContext, past: Value, new: Value) -> Value:
    return ctx.one(Concat(2), ctx.refine(past, (*new.shape[:2], past.shape[2], new.shape[3])), new)


def _attended(
    ctx: NodeContext, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, bias: Value | None = None, past: Expr = NONE
) -> Value:
    """Heads joined again after attention; `mask` is 0 where a key is padding (int [B, T] or [B, S, T]) or counts the keys (int [B]);
    `bias` is added to the scores."""
    if not q.shape[3].is_const:
        raise ModelError(f"{ctx.op_type}: the width of a head is not known", where=ctx.where)
    scale = ctx.attribute("scale", 0.0) or 1.0 / sqrt(int(q.shape[3].value))
    if mask is not None:
        filter_value = ctx.attribute("mask_filter_value", -10000.0)
        added = ctx.select(_padding(ctx, mask, q, k), ctx.scalar_like(filter_value, q), ctx.scalar_like(0, q))
        bias = added if bias is None else ctx.binary("add", bias, added)
    operands = [q, k, v]
    if bias is not None:
        operands.append(ctx.refine(bias, kept_ones(bias.shape, (*q.shape[:3], k.shape[2]))))
    return join_heads(ctx, ctx.one(Attention(float(scale), causal, past=past), *operands))


def _padding(ctx: NodeContext, mask: Value, q: Value, k: Value) -> Value:
    """Which keys are padding, as a bool that broadcasts to [B, N, S, T]."""
    batch, keys = q.shape[0], k.shape[2]
    if mask.type.rank == 1 and dims_equal(mask.shape[0], batch):
        counts = ctx.cast(ctx.reshape(mask, (batch, 1, 1, 1)), dtypes.int64)
        return ctx.binary("less_equal", counts, ctx.one(Iota(keys, dtypes.int64)))
    if mask.type.rank not in (2, 3):
        raise UnsupportedOperatorError(f"{ctx.op_type} with a mask of type {mask.type!r} is not supported", where=ctx.where)
    mask = ctx.refine(mask, (batch, *mask.shape[1:-1], keys))
    shape = (batch, 1, 1, keys) if mask.type.rank == 2 else (batch, 1, q.shape[2], keys)
    return ctx.binary("equal", ctx.reshape(mask, shape), 0)


def refuse(ctx: NodeContext, inputs: dict[int, str], attributes: Sequence[str]) -> None:
    """UnsupportedOperatorError for inputs that are there and attributes that are set."""
    found = [what for index, what in inputs.items() if ctx.has(index)] + [name for name in attributes if ctx.attribute(name, 0)]
    if found:
        raise UnsupportedOperatorError(f"{ctx.op_type} with {found[0]} is not supported", where=ctx.where)


# ---- attention with fewer heads of keys, which grow with each step

UNSUPPORTED_GROUPS = {11: "a sink", 12: "a quantized cache", 13: "a quantized cache", 14: "a norm of heads", 16: "padded chunks"}


def group_query_attention(ctx: NodeContext) -> Sequence[Value | None]:
    """query [B, S, N*D], key, value [B, S, K*D], or all in query; past keys and values [B, K, P, D]; seqlens_k [B], the number of keys
    after this step less one; their greatest number; cosines and sines [M, R/2]; positions [B, S]; bias of the scores.

    New keys follow what a sequence has, seqlens_k + 1 - S of the cache; query s sees the keys up to its own position."""
    refuse(ctx, UNSUPPORTED_GROUPS, ("sliding_window_cache", "smooth_softmax", "qk_output"))
    heads, shared = ctx.require("num_heads"), ctx.require("kv_num_heads")
    q, k, v = _grouped(ctx, heads, shared)
    batch, steps, _, width = q.shape
    lengths = ctx.cast(ctx.refine(ctx.reshape(ctx.input(5), (batch,)), (batch,)), dtypes.int64)
    before = ctx.binary("max", ctx.binary("sub", ctx.binary("add", lengths, 1), ctx.size_scalar(steps)), 0)
    first = ctx.reshape(before, (batch, 1))
    positions = ctx.binary("add", first, ctx.one(Iota(steps, dtypes.int64)))  # [B, S]
    if ctx.attribute("do_rotary", 0):
        at = ctx.cast(ctx.input(9), dtypes.int64) if ctx.has(9) else positions
        interleaved = bool(ctx.attribute("rotary_interleaved", 0))
        q, k = (_rotated(ctx, x, *_angles(ctx, at, x.shape[0], x.shape[1], ctx.input(7), ctx.input(8)), interleaved) for x in (q, k))
    keys, values = ctx.transpose(k, (0, 2, 1, 3)), ctx.transpose(v, (0, 2, 1, 3))
    if ctx.has(3):
        total = ctx.as_size(ctx.input(6), "total_sequence_length")
        room = canonical(maximum(ctx.input(3).shape[2], total))
        keys = _grown(ctx, ctx.input(3), k, before, room)
        values = _grown(ctx, ctx.input(4), v, before, room)
    count = keys.shape[2]
    scale = ctx.attribute("scale", 0.0) or 1.0 / sqrt(int(width.value))
    own = ctx.reshape(positions, (batch, 1, steps, 1))
    place = ctx.one(Iota(count, dtypes.int64))
    seen = ctx.binary("less_equal", place, own)
    if not ctx.attribute("causal", 1):
        seen = ctx.binary("less_equal", place, ctx.reshape(lengths, (batch, 1, 1, 1)))
    window = ctx.attribute("local_window_size", -1)
    if window > 0:
        seen = ctx.binary("and", seen, ctx.binary("less", ctx.binary("sub", own, window), place))
    if ctx.has(10):
        bias = ctx.refine_axis(ctx.input(10), 3, count)
        mask = ctx.select(seen, ctx.cast(bias, q.type.dtype), ctx.scalar_like(-float("inf"), q))
    else:
        mask = seen
    attended = Attention(float(scale), False, float(ctx.attribute("softcap", 0.0)))
    result = ctx.one(attended, ctx.transpose(q, (0, 2, 1, 3)), keys, values, mask)
    return join_heads(ctx, result), keys, values


def _grouped(ctx: NodeContext, heads: int, shared: int) -> tuple[Value, Value, Value]:
    """Queries [B, S, N, D], keys and values [B, S, K, D]."""
    first = ctx.input(0)
    if not first.shape[2].is_const:
        raise ModelError(f"{ctx.op_type}: the width of a head is not known", where=ctx.where)
    if ctx.has(1):
        parts = [first, ctx.input(1), ctx.input(2)]
    else:
        size = int(first.shape[2].value) // (heads + 2 * shared)
        widths = [heads * size, shared * size, shared * size]
        parts = [ctx.slice_axis(first, 2, at, w) for at, w in zip((0, widths[0], widths[0] + widths[1]), widths, strict=True)]
    counts = (heads, shared, shared)
    q, k, v = (ctx.reshape(x, (*x.shape[:2], n, canonical(x.shape[2] // n))) for x, n in zip(parts, counts, strict=True))
    k, v = (ctx.refine(x, (q.shape[0], q.shape[1], *x.shape[2:])) for x in (k, v))
    return q, k, v


def _grown(ctx: NodeContext, past: Value, new: Value, before: Value, room: Expr) -> Value:
    """The cache [B, K, room, D] with the new ones [B, S, K, D] at `before` [B] and after, and zeros where there is nothing: weights of 0
    must not meet numbers that somebody left there."""
    batch, steps, heads, width = new.shape
    past = ctx.refine(past, (batch, heads, past.shape[2], width))
    place = ctx.one(Iota(room, dtypes.int64))
    first = ctx.reshape(before, (batch, 1))
    at = ctx.binary("sub", place, first)
    at = ctx.binary("max", ctx.binary("min", at, ctx.binary("sub", ctx.size_scalar(steps), 1)), 0)
    rows = ctx.reshape(new, (batch, steps, canonical(heads * width)))
    moved = ctx.one(GatherNd(1), rows, ctx.reshape(at, (batch, room, 1)))
    moved = ctx.transpose(ctx.reshape(moved, (batch, room, heads, width)), (0, 2, 1, 3))
    none = (const(0),) * 4
    longer = (const(0), const(0), canonical(room - past.shape[2]), const(0))
    kept = ctx.refine(ctx.one(Pad(none, longer, "constant"), past, ctx.scalar_like(0, past)), moved.shape)
    place, old = ctx.reshape(place, (room, 1)), ctx.reshape(before, (batch, 1, 1, 1))
    moved = ctx.select(ctx.binary("less", place, ctx.binary("add", old, ctx.size_scalar(steps))), moved, ctx.scalar_like(0, new))
    return ctx.select(ctx.binary("less", place, old), kept, moved)


# ---- rotary positions


def rotary_embedding(ctx: NodeContext) -> Value:
    """x [B, S, N*D] or [B, N, S, D], positions [B, S] or the first one [1], cosines and sines [M, R/2]."""

    def angles(batch: Expr, steps: Expr) -> tuple[Value, Value]:
        positions = ctx.cast(ctx.input(1), dtypes.int64)
        if positions.type.rank == 1:
            places = ctx.reshape(ctx.one(Iota(steps, dtypes.int64)), (1, steps))
            positions = ctx.broadcast(ctx.binary("add", ctx.reshape(positions, (1, 1)), places), (batch, steps))
        return _angles(ctx, positions, batch, steps, ctx.input(2), ctx.input(3))

    return _embedded(ctx, angles)


def multimodal_rotary_embedding(ctx: NodeContext) -> Value:
    """MRotaryEmbedding: positions [3, B, S] in time, height and width; `mrope_section` says how many angles of a head each of them turns,
    one section after the other (mrope_layout 0), or those of height and width in every third place (1). Wang et al., Qwen2-VL, 2024."""
    sections, layout = [int(n) for n in ctx.require("mrope_section")], ctx.attribute("mrope_layout", 0)
    half = ctx.input(2).shape[1]
    if len(sections) != 3 or min(sections) < 0 or layout not in (0, 1) or not half.is_const or sum(sections) != int(half.value):
        why = "they are three, of 0 or more, that add up to the width of the cache; the layout is 0 or 1"
        raise ModelError(f"MRotaryEmbedding with the sections {sections} of {half} angles, layout {layout}", where=ctx.where, why=why)
    source = np.zeros(int(half.value), np.int64)
    if layout:
        for stream in (1, 2):
            source[stream : 3 * sections[stream] : 3] = stream
    else:
        source = np.repeat(np.arange(3), sections)

    def angles(batch: Expr, steps: Expr) -> tuple[Value, Value]:
        positions = ctx.refine(ctx.cast(ctx.input(1), dtypes.int64), (3, batch, steps))
        streams = [ctx.reshape(ctx.slice_axis(positions, 0, i, 1), (batch, steps)) for i in range(3)]
        turned = [_angles(ctx, stream, batch, steps, ctx.input(2), ctx.input(3)) for stream in streams]
        chosen = []
        for time, height, width in zip(*turned, strict=True):
            spatial = ctx.select(ctx.constant(source == 1), height, width)
            chosen.append(ctx.select(ctx.constant(source == 0), time, spatial))
        return chosen[0], chosen[1]

    return _embedded(ctx, angles)


Angles: TypeAlias = "Callable[[Expr, Expr], tuple[Value, Value]]"  # of the sizes B and S: cosines and sines, [B, S, 1, R/2]


def _embedded(ctx: NodeContext, angles: Angles) -> Value:
    refuse(ctx, {}, ("is_packed_batching",))
    x, cosines = ctx.input(0), ctx.input(2)
    heads, flat = ctx.attribute("num_heads", 0), x.type.rank == 3
    if flat:
        if not heads and not cosines.shape[1].is_const:
            raise ModelError(f"{ctx.op_type}: the number of its heads is not known", where=ctx.where)
        size = x.shape[2] // heads if heads else const(2 * int(cosines.shape[1].value))
        rows = ctx.reshape(x, (*x.shape[:2], canonical(x.shape[2] // size), canonical(size)))
    else:
        rows = ctx.transpose(x, (0, 2, 1, 3))
    turned = _rotated(ctx, rows, *angles(rows.shape[0], rows.shape[1]), bool(ctx.attribute("interleaved", 0)))
    scale = ctx.attribute("scale", 1.0)
    turned = turned if scale == 1.0 else ctx.binary("mul", turned, scale)
    return ctx.reshape(turned, x.shape) if flat else ctx.transpose(turned, (0, 2, 1, 3))


def _angles(ctx: NodeContext, positions: Value, batch: Expr, steps: Expr, cosines: Value, sines: Value) -> tuple[Value, Value]:
    """Cosines and sines [M, R/2] of the positions [B, S], as [B, S, 1, R/2] in the dtype of what they turn."""
    positions, dtype, half = ctx.refine(positions, (batch, steps)), ctx.input(0).type.dtype, cosines.shape[1]
    cos, sin = (ctx.reshape(ctx.one(Gather(0), ctx.cast(t, dtype), positions), (batch, steps, 1, half)) for t in (cosines, sines))
    return cos, sin


def _rotated(ctx: NodeContext, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """x [B, S, N, D] with pairs of elements turned by angles (Su et al., RoFormer, 2021): element i with element i + R/2, or neighbours.
    Elements from R on stay."""
    batch, steps, heads, width = x.shape
    half = cos.shape[3]
    if not (half.is_const and width.is_const):
        raise ModelError(f"{ctx.op_type}: the width of a head is not known", where=ctx.where)
    size = int(half.value)
    a, b = (_every(ctx, x, i, size, 2) if interleaved else _every(ctx, x, i * size, size, 1) for i in range(2))
    first = ctx.binary("sub", ctx.binary("mul", a, cos), ctx.binary("mul", b, sin))
    second = ctx.binary("add", ctx.binary("mul", b, cos), ctx.binary("mul", a, sin))
    if interleaved:
        pair = ctx.one(Concat(4), *(ctx.reshape(y, (*y.shape, 1)) for y in (first, second)))
        turned = ctx.reshape(pair, (batch, steps, heads, 2 * size))
    else:
        turned = ctx.one(Concat(3), first, second)
    rest = int(width.value) - 2 * size
    return ctx.one(Concat(3), turned, ctx.slice_axis(x, 3, 2 * size, rest)) if rest else turned


def _every(ctx: NodeContext, x: Value, start: int, count: int, step: int) -> Value:
    """x[..., start : start + count * step : step]."""
    starts = (*[const(0)] * 3, const(start))
    return ctx.one(Slice(starts, (*x.shape[:3], const(count)), (1, 1, 1, step)), x)


IMPORTERS: Table = {
    (DOMAIN, "Attention"): attention,
    (DOMAIN, "GroupQueryAttention"): group_query_attention,
    (DOMAIN, "MRotaryEmbedding"): multimodal_rotary_embedding,
    (DOMAIN, "MultiHeadAttention"): multi_head_attention,
    (DOMAIN, "RotaryEmbedding"): rotary_embedding,
}
