"""Importers of onnxruntime's mixtures of experts (com.microsoft): MoE, and QMoE with weights of 2, 4 or 8 bits.

Each token goes to the k experts that its router rates highest. A loop over the experts takes the rows of the tokens that chose one through
its two or three products, and adds what comes out to those tokens; experts that no token chose cost nothing. So the work is that of the
chosen experts, for any number of tokens (Shazeer et al., 2017, arXiv 1701.06538; Gale et al., MegaBlocks, 2023, arXiv 2211.15841, without
their padding).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf

import numpy as np
import onnx

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.contrib_quantized import CODES, codes_of
from tilewright.graph.node import Value
from tilewright.support.errors import ModelError, UnsupportedOperatorError

DOMAIN = "com.microsoft"
OTHERS = ("use_sparse_mixer", "swiglu_limit_after_activation")  # attributes that only mean something to other devices

# rows [T, H], router and, where others than its probabilities are the weights, mixing [T, E]; then per layer the parts of its weights
BODY = """ (rows, router, mixing{parameters}) => (result) {{
    axis = Constant <value_ints = [1]> ()
    flat = Constant <value_ints = [-1]> ()
    column = Constant <value_ints = [-1, 1]> ()
    none = Constant <value_float = 0.0> ()
    true = Constant <value = bool {{1}}> ()
    most = Constant <value_ints = [{k}]> ()
    rating = Cast <to = 1> (router)
    {choice}
    width = Shape <start = 1, end = 2> (router)
    experts = Squeeze (width)
    shape = Shape (rows)
    zero = ConstantOfShape (shape)
    start = CastLike (zero, rows)
    result = Loop (experts, true, start) <body = expert (expert, on, before) => (still, after) {{
        still = Identity (on)
        here = Equal (chosen, expert)
        counted = Cast <to = 7> (here)
        count = ReduceSum <keepdims = 0> (counted, axis)
        all = ReduceSum <keepdims = 0> (count)
        anybody = Cast <to = 9> (all)
        after = If (anybody) <then_branch = taken () => (added) {{
            places = NonZero (count)
            index = Reshape (places, flat)
            x = Gather (rows, index)
            {layers}
            given = Where (here, weights, none)
            own = ReduceSum <keepdims = 0> (given, axis)
            share = Gather (own, index)
            factor = Reshape (share, column)
            factor_like = CastLike (factor, rows)
            part = Mul (out, factor_like)
            where = Reshape (index, column)
            added = ScatterND <reduction = "add"> (before, where, part)
        }}, else_branch = left () => (same) {{ same = Identity (before) }}>
    }}>
}}"""
CHOICE = """probability = Softmax <axis = -1> (rating)
    {chosen} = TopK <axis = -1> (probability, most)"""
MIXED = """weights_mixed = Cast <to = 1> (mixing)
    gathered = GatherElements <axis = -1> (weights_mixed, chosen)"""
NORMAL = """total = ReduceSum <keepdims = 1> (gathered, axis)
    weights = Div (gathered, total)"""
ACTIVATIONS = {
    "relu": "{y} = Relu ({x})",
    "gelu": '{y} = Gelu <approximate = "tanh"> ({x})',
    "silu": "{y}_gate = Sigmoid ({x})  {y} = Mul ({x}, {y}_gate)",
    "identity": "{y} = Identity ({x})",
    "relu2": "{y}_part = Relu ({x})  {y} = Mul ({y}_part, {y}_part)",
}


def mixture(ctx: NodeContext) -> Value:
    """MoE: x [T, H] or [B, S, H], router [T, E]; for each of two layers, or three, weights [E, N, K] and a bias [E, N]."""
    layers = [(ctx.optional(2 + 2 * i), None, None, ctx.optional(3 + 2 * i)) for i in range(3)]
    return mixed(ctx, layers, None, 0, normalised=bool(ctx.attribute("normalize_routing_weights", 0)))


def quantized_mixture(ctx: NodeContext) -> Value:
    """QMoE: weights [E, N, K * bits / 8], scales [E, N] or [E, N, K / block], zero points packed likewise, 2 ** (bits - 1) without. Without
    mixing weights of their own the router's always add up to 1, as onnxruntime has it."""
    if (kind := ctx.attribute("quant_type", "int")) != "int":
        raise UnsupportedOperatorError(
            f"QMoE with weights of the kind '{kind}' is not supported", where=ctx.where, why="it is for int only"
        )
    if ctx.attribute("weights_prepacked", 0) == 1:
        raise UnsupportedOperatorError("QMoE with weights in the order of another device is not supported", where=ctx.where)
    layers: list[tuple[Value | None, ...]] = []
    for i in range(3):
        if not ctx.has(2 + 3 * i):
            layers.append((None, None, None, None))
            continue
        bits = ctx.attribute(f"fc{i + 1}_expert_weight_bits", ctx.attribute("expert_weight_bits", 4))
        if bits not in CODES:
            raise UnsupportedOperatorError(f"QMoE of {bits} bits is not supported", where=ctx.where, why="it is of 2, 4 and 8 bits")
        layers.append((*_codes(ctx, i, bits), ctx.optional(4 + 3 * i)))
    mixing = ctx.optional(14)
    normalised = mixing is None or bool(ctx.attribute("normalize_routing_weights", 0))
    return mixed(ctx, layers, mixing, int(ctx.attribute("block_size", 0)), normalised)


def _codes(ctx: NodeContext, layer: int, bits: int) -> tuple[Value, Value, Value]:
    """Weights [E, N, K] in `bits` bits, scales [E, N, blocks], zero points of that shape."""
    packed = ctx.require_constant(2 + 3 * layer, "weight")
    if packed.ndim != 3:
        raise ModelError(f"QMoE has weights of shape {list(packed.shape)}", where=ctx.where, why="they are [experts, outputs, bytes]")
    experts, rows, _ = packed.shape
    codes = codes_of(packed.reshape(experts * rows, -1), bits).reshape(experts, rows, -1)
    scales = ctx.input(3 + 3 * layer)
    blocked = scales.type.rank == 3
    scales = ctx.refine(scales, (experts, rows, scales.shape[2]) if blocked else (experts, rows))
    scales = ctx.reshape(scales, (experts, rows, scales.shape[2] if blocked else 1))
    count = scales.shape[2]
    if not count.is_const:
        raise ModelError("QMoE: the number of blocks is not known", where=ctx.where)
    zeros = np.full((experts, rows, int(count.value)), 1 << (bits - 1), np.uint8)
    if ctx.has(11 + layer):
        given = ctx.require_constant(11 + layer, "zero point")
        flat = codes_of(given.reshape(experts * rows if blocked else experts, -1), bits)
        zeros = flat[:, : zeros.size // flat.shape[0]].reshape(zeros.shape)
    return ctx.constant(codes, CODES[bits]), scales, ctx.constant(zeros, CODES[bits])


def mixed(ctx: NodeContext, layers: Sequence[tuple[Value | None, ...]], mixing: Value | None, block: int, normalised: bool) -> Value:
    """layers: weights, scales and zero points (or None), bias. mixing: weights of the experts in place of the router's. block: of the
    scales. normalised: the weights of a token's experts add up to 1."""
    for name in OTHERS:
        if ctx.attribute(name, 0):
            raise UnsupportedOperatorError(f"{ctx.op_type} with '{name}' is not supported", where=ctx.where)
    x, router = ctx.input(0), ctx.input(1)
    if x.type.rank not in (2, 3) or router.type.rank != 2:
        raise ModelError(
            f"{ctx.op_type} of {x.type!r} with the router {router.type!r}", where=ctx.where, why="they have 2 or 3, and 2 axes"
        )
    rows = ctx.reshape(x, (router.shape[0], x.shape[-1])) if x.type.rank == 3 else ctx.refine_axis(x, 0, router.shape[0])
    present = tuple(tuple(part is not None for part in layer) for layer in layers)
    if not (present[0][0] and present[1][0]):
        raise ModelError(f"{ctx.op_type} lacks the weights of a layer", where=ctx.where)
    function = _function(
        k=int(ctx.attribute("k", 1)),
        normalised=normalised,
        other=mixing is not None,
        block=block,
        parts=present,
        activation=ctx.attribute("activation_type", "relu"),
        fusion=int(ctx.attribute("swiglu_fusion", 0)),
        alpha=float(ctx.attribute("activation_alpha", 1.0)),
        beta=float(ctx.attribute("activation_beta", 0.0)),
        limit=float(ctx.attribute("swiglu_limit", inf)),
        where=ctx.where,
    )
    (result,) = ctx.expansion(function, [rows, router, mixing, *(part for layer in layers for part in layer if part is not None)])
    if result is None:
        raise ModelError(f"{ctx.op_type} has no result", where=ctx.where)
    return ctx.reshape(result, x.shape)


@lru_cache(maxsize=64)
def _function(
    *,
    k: int,
    normalised: bool,
    other: bool,
    block: int,
    parts: tuple[tuple[bool, ...], ...],
    activation: str,
    fusion: int,
    alpha: float,
    beta: float,
    limit: float,
    where: str,
) -> onnx.FunctionProto:
    """The operator as a function of ai.onnx 21."""
    weighed = "gathered" if normalised or other else "weights"
    choice = CHOICE.format(chosen="rated, chosen" if other else f"{weighed}, chosen")
    if other:
        choice += "\n    " + MIXED
    if normalised:
        choice += "\n    " + NORMAL
    elif other:
        choice += "\n    weights = Identity (gathered)"
    separate = parts[2][0]
    lines = [_product("x", "first", 1, parts[0], block)]
    match activation:
        case "swiglu" | "geglu":
            if not (fusion in (1, 2)) ^ separate:
                raise ModelError(f"a mixture of experts has swiglu_fusion={fusion}", where=where, why="1 or 2, or 0 with a third layer")
            lines.append(_product("x", "line", 3, parts[2], block) + " gate = Identity (first)" if separate else _halves(fusion))
            lines.append(_gated(activation, alpha, beta, limit))
        case name if name in ACTIVATIONS:
            lines.append(ACTIVATIONS[name].format(x="first", y="active" if separate else "hidden"))
            if separate:
                lines += [_product("x", "line", 3, parts[2], block), "hidden = Mul (active, line)"]
        case _:
            raise UnsupportedOperatorError(f"a mixture of experts with the activation '{activation}' is not supported", where=where)
    lines.append(_product("hidden", "out", 2, parts[1], block))
    names = [f"{name}{i}" for i, layer in enumerate(parts, 1) for name, given in zip("wszb", layer, strict=True) if given]
    text = BODY.format(parameters="".join(f", {name}" for name in names), k=k, choice=choice, layers="\n            ".join(lines))
    return onnx.parser.parse_function(f'<opset_import: ["" : 21], domain: "{DOMAIN}"> mixture{text}')


def _product(x: str, y: str, layer: int, parts: tuple[bool, ...], block: int) -> str:
    """y = x @ w[expert].T + b[expert], with weights [E, N, K]."""
    w, bias = f"w{layer}", f"b{layer}"
    lines = [f"{w}_own = Gather <axis = 0> ({w}, expert)"]
    if parts[1]:
        lines += [f"{name}{layer}_own = Gather <axis = 0> ({name}{layer}, expert)" for name in "sz"]
        real = f"DequantizeLinear <axis = 1, block_size = {block}>" if block else "DequantizeLinear <axis = 0>"
        operands = [f"{name}{layer}_own" for name in "sz"]
        if not block:
            lines += [f"{name}{layer}_row = Reshape ({name}{layer}_own, flat)" for name in "sz"]
            operands = [f"{name}{layer}_row" for name in "sz"]
        lines.append(f"{w}_real = {real} ({w}_own, {', '.join(operands)})")
    else:
        lines.append(f"{w}_real = Identity ({w}_own)")
    lines.append(f"{w}_turned = Transpose <perm = [1, 0]> ({w}_real)")
    product = f"{y}_product" if parts[3] else y
    lines.append(f"{product} = MatMul ({x}, {w}_turned)")
    if parts[3]:
        lines += [f"{bias}_own = Gather <axis = 0> ({bias}, expert)", f"{y} = Add ({product}, {bias}_own)"]
    return " ".join(lines)


def _halves(fusion: int) -> str:
    """Gate and line from one product: in turn (1), or one after the other (2)."""
    if fusion == 2:
        return "gate, line = Split <axis = -1, num_outputs = 2> (first)"
    return (
        "pair = Constant <value_ints = [0, -1, 2]> () pairs = Reshape (first, pair) last = Constant <value_ints = [-1]> () "
        "gate_c, line_c = Split <axis = -1, num_outputs = 2> (pairs) gate = Squeeze (gate_c, last) line = Squeeze (line_c, last)"
    )


def _gated(activation: str, alpha: float, beta: float, limit: float) -> str:
    if activation == "geglu":
        return 'active = Gelu <approximate = "tanh"> (gate) hidden = Mul (active, line)'
    lines = []
    gate, line = "gate", "line"
    if limit != inf:
        lines.append(f"top = Constant <value_float = {limit!r}> () bottom = Constant <value_float = {-limit!r}> ()")
        lines.append("top_like = CastLike (top, gate) bottom_like = CastLike (bottom, gate)")
        lines.append("gate_most = Min (gate, top_like) line_less = Min (line, top_like) line_most = Max (line_less, bottom_like)")
        gate, line = "gate_most", "line_most"
    lines.append(f"alpha = Constant <value_float = {alpha!r}> () alpha_like = CastLike (alpha, gate)")
    lines.append(f"beta = Constant <value_float = {beta!r}> () beta_like = CastLike (beta, gate)")
    lines.append(f"scaled = Mul ({gate}, alpha_like) open = Sigmoid (scaled) active = Mul ({gate}, open)")
    lines.append(f"moved = Add ({line}, beta_like) hidden = Mul (active, moved)")
    return " ".join(lines)


IMPORTERS: Table = {
    (DOMAIN, "MoE"): mixture,
    (DOMAIN, "QMoE"): quantized_mixture,
}
