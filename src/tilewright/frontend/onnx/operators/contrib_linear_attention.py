"""Importers of onnxruntime's operators for linear attention and state space models (com.microsoft): LinearAttention, CausalConvWithState
and GatedRMSNorm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

import onnx

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Concat, RmsNorm
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.support.errors import ModelError, UnsupportedOperatorError

DOMAIN = "com.microsoft"
HEAD = f'<opset_import: ["" : 20], domain: "{DOMAIN}">'

# One token after the other (Yang et al., Gated Delta Networks, 2024, arXiv 2412.06464). state [B, H, K, V]; q [T, B, H, G, K] with G
# queries for each head, k [T, B, H, 1, K], v [T, B, H, 1, V], decay [T, B, H, K or 1, 1], beta [T, B, H, 1, 1]; result [T, B, H, G, V].
STEPS = """ (state{inputs}) => (last, result) {{
    last, result = Scan <num_scan_inputs = {count}, body = token (before{inner}) => (after, out) {{
        {decayed}
        kt = Transpose <perm = [0, 1, 3, 2]> (k_t)
        {change}
        added = MatMul (kt, change)
        after = Add (kept, added)
        out = MatMul (q_t, after)
    }}> (state{inputs})
}}"""
KEPT = {False: "kept = Identity (before)", True: "factor = Exp (decay_t)  kept = Mul (before, factor)"}
CHANGE = {False: "change = Identity (v_t)", True: "known = MatMul (k_t, kept)  new = Sub (v_t, known)  change = Mul (new, beta_t)"}
RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


def linear_attention(ctx: NodeContext) -> Sequence[Value]:
    """query [B, T, N*K], key [B, T, H*K], value [B, T, H*V], state [B, H, K, V], decay [B, T, H*K or H] (logarithms), beta [B, T, H or
    1]: the result [B, T, max(N, H)*V], and the state after the last token."""
    rule = ctx.attribute("update_rule", "gated_delta")
    if rule not in RULES:
        raise ModelError(f"LinearAttention has the rule '{rule}'", where=ctx.where, why=f"it is one of {', '.join(RULES)}")
    refuse_window(ctx)
    decays, corrects = RULES[rule]
    queries, heads = int(ctx.require("q_num_heads")), int(ctx.require("kv_num_heads"))
    if min(queries, heads) < 1 or max(queries, heads) % min(queries, heads):
        raise ModelError(f"LinearAttention with {queries} heads of queries for {heads} of keys", where=ctx.where)
    batch, steps, _ = ctx.input(0).shape
    q, k, v = (_by_token(ctx, index, n) for index, n in ((0, queries), (1, heads), (2, heads)))
    width, depth = k.shape[3], v.shape[3]
    if queries < heads:  # a query for several heads
        q = ctx.reshape(q, (steps, batch, queries, 1, width))
        q = ctx.broadcast(q, (steps, batch, queries, heads // queries, width))
    q = ctx.reshape(q, (steps, batch, heads, max(queries // heads, 1), width))
    scale = ctx.attribute("scale", 0.0)
    if not scale:
        if not width.is_const:
            raise ModelError("LinearAttention: the width of a head is not known", where=ctx.where)
        scale = 1 / sqrt(int(width.value))
    inputs = {
        "q": ctx.binary("mul", q, float(scale)),
        "k": ctx.reshape(k, (steps, batch, heads, 1, width)),
        "v": ctx.reshape(v, (steps, batch, heads, 1, depth)),
    }
    if decays:
        decay = _by_token(ctx, 4, heads)
        inputs["decay"] = ctx.reshape(decay, (*decay.shape, 1))
    if corrects:
        inputs["beta"] = _rates(ctx, heads)
    shape = (batch, heads, width, depth)
    past = ctx.optional(3)
    kind = past.type.dtype if past is not None else ctx.input(0).type.dtype
    zero = ctx.broadcast(ctx.constant(0, dtypes.float32), shape)
    state = zero if past is None else ctx.cast(ctx.refine(past, shape), dtypes.float32)
    last, result = ctx.expansion(_steps(rule), [state, *inputs.values()])
    if last is None or result is None:
        raise ModelError("LinearAttention has no result", where=ctx.where)
    out = ctx.reshape(ctx.transpose(result, (1, 0, 2, 3, 4)), (batch, steps, canonical(depth * max(queries, heads))))
    return ctx.cast(out, ctx.input(0).type.dtype), ctx.cast(last, kind)


def _by_token(ctx: NodeContext, index: int, heads: int) -> Value:
    """Input `index`, [B, T, heads * W], as float32 [T, B, heads, W]."""
    x, (batch, steps, _) = ctx.input(index), ctx.input(0).shape
    x = ctx.refine(x, (batch, steps, x.shape[-1]))
    split = ctx.reshape(x, (batch, steps, heads, canonical(x.shape[2] // heads)))
    return ctx.transpose(ctx.cast(split, dtypes.float32), (1, 0, 2, 3))


def _rates(ctx: NodeContext, heads: int) -> Value:
    """beta, [B, T, H] or [B, T, 1], as [T, B, H or 1, 1, 1]."""
    beta = ctx.input(5)
    count = 1 if beta.shape[-1] is const(1) else heads
    rates = _by_token(ctx, 5, count)
    return ctx.reshape(rates, (*rates.shape[:2], count, 1, 1))


@lru_cache
def _steps(rule: str) -> onnx.FunctionProto:
    decays, corrects = RULES[rule]
    names = ["q", "k", "v", *(["decay"] if decays else []), *(["beta"] if corrects else [])]
    text = STEPS.format(
        inputs="".join(f", {name}" for name in names),
        inner="".join(f", {name}_t" for name in names),
        count=len(names),
        decayed=KEPT[decays],
        change=CHANGE[corrects],
    )
    return onnx.parser.parse_function(f"{HEAD} {rule}{text}")


def causal_conv_with_state(ctx: NodeContext) -> Sequence[Value]:
    """x [B, C, L], weights [C, 1, k], bias [C], the (k - 1) * dilation positions before x [B, C, P]: a depthwise convolution of what is
    before a position and itself, and the positions for the next call. With `channels_last` x is [B, L, *C] and the state [B, P, *C]."""
    refuse_window(ctx)
    for name, neutral in {"ndim": 1, "state_length": 0, "input_channels": 0, "input_channel_offset": 0, "state_update_capacity": 0}.items():
        if ctx.attribute(name, neutral) != neutral:
            raise UnsupportedOperatorError(f"CausalConvWithState with '{name}' is not supported", where=ctx.where)
    last, dilation = bool(ctx.attribute("channels_last", 0)), int(ctx.attribute("dilation", 1))
    given, weights = ctx.input(0), ctx.input(1)
    channels, taps = weights.shape[0], weights.shape[2]
    if not (channels.is_const and taps.is_const):
        raise ModelError("CausalConvWithState: the size of its kernel is not known", where=ctx.where)
    length = (int(taps.value) - 1) * dilation

    def first(x: Value) -> Value:
        return ctx.transpose(ctx.reshape(x, (x.shape[0], x.shape[1], channels)), (0, 2, 1)) if last else x

    x = first(given)
    past = ctx.optional(3)
    start = ctx.broadcast(ctx.scalar_like(0, x), (x.shape[0], channels, length)) if past is None else first(past)
    start = ctx.refine(start, (x.shape[0], channels, length))
    whole = ctx.one(Concat(2), start, ctx.refine_axis(x, 1, channels))
    (y,) = ctx.expansion(_causal(dilation, int(channels.value), ctx.attribute("activation", "none")), [whole, weights, ctx.optional(2)])
    present = ctx.slice_axis(whole, 2, x.shape[2], length)
    if y is None:
        raise ModelError("CausalConvWithState has no result", where=ctx.where)
    if last:
        y, present = (ctx.transpose(part, (0, 2, 1)) for part in (y, present))
        present = ctx.reshape(present, (present.shape[0], length, *given.shape[2:]))
    return ctx.reshape(y, given.shape), present


@lru_cache
def _causal(dilation: int, channels: int, activation: str) -> onnx.FunctionProto:
    active = {
        "none": "y = Identity (c)",
        "silu": "open = Sigmoid (c)  y = Mul (c, open)",
        "swish": "open = Sigmoid (c)  y = Mul (c, open)",
    }
    if activation not in active:
        raise ModelError(f"CausalConvWithState has the activation '{activation}'", why="it is none, silu or swish")
    conv = f"Conv <group = {channels}, dilations = [{dilation}]> (x, w, b)"
    return onnx.parser.parse_function(f"{HEAD} causal (x, w, b) => (y) {{ c = {conv}  {active[activation]} }}")


def gated_rms_norm(ctx: NodeContext) -> Value:
    """x [..., G * C] with each C elements divided by the root of their mean square, times scale [C] and the activated gate [..., G * C];
    in float32."""
    x, scale = ctx.input(0), ctx.input(1)
    activation = ctx.attribute("activation", "silu")
    if activation not in ("silu", "swish", "sigmoid"):
        raise ModelError(f"GatedRMSNorm has the activation '{activation}'", where=ctx.where, why="it is silu, swish or sigmoid")
    count = scale.shape[0]
    groups = (*x.shape[:-1], canonical(x.shape[-1] // count), count)
    rows, gate = (ctx.reshape(ctx.cast(part, dtypes.float32), groups) for part in (x, ctx.refine(ctx.input(2), x.shape)))
    norm = RmsNorm(len(groups) - 1, float(ctx.attribute("epsilon", 1e-5)))
    normal = ctx.one(norm, rows, ctx.cast(scale, dtypes.float32))
    opened = ctx.unary("sigmoid", gate)
    opened = opened if activation == "sigmoid" else ctx.binary("mul", gate, opened)
    return ctx.cast(ctx.reshape(ctx.binary("mul", normal, opened), x.shape), x.type.dtype)


def refuse_window(ctx: NodeContext) -> None:
    if ctx.attribute("state_window", 0):
        raise UnsupportedOperatorError(f"{ctx.op_type} that keeps the states of several positions is not supported", where=ctx.where)


IMPORTERS: Table = {
    (DOMAIN, "CausalConvWithState"): causal_conv_with_state,
    (DOMAIN, "GatedRMSNorm"): gated_rms_norm,
    (DOMAIN, "LinearAttention"): linear_attention,
}
