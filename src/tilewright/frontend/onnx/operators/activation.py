"""Importers of activation functions, in terms of elementwise operators."""

from __future__ import annotations

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Gelu, HardSwish, Softplus
from tilewright.ir import dtypes


def relu(ctx: NodeContext) -> Value:
    return ctx.binary("max", ctx.input(0), 0.0)


def leaky_relu(ctx: NodeContext) -> Value:
    return _below_zero(ctx, ctx.input(0), ctx.binary("mul", ctx.input(0), ctx.attribute("alpha", 0.01)))


def prelu(ctx: NodeContext) -> Value:
    return _below_zero(ctx, ctx.input(0), ctx.binary("mul", ctx.input(0), ctx.input(1)))


def _below_zero(ctx: NodeContext, x: Value, negative: Value) -> Value:
    return ctx.select(ctx.binary("less", x, 0.0), negative, x)


def elu(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return _below_zero(ctx, x, ctx.binary("mul", ctx.unary("expm1", x), ctx.attribute("alpha", 1.0)))


def selu(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    alpha, gamma = ctx.attribute("alpha", 1.67326319217681884765625), ctx.attribute("gamma", 1.05070102214813232421875)
    return ctx.binary("mul", _below_zero(ctx, x, ctx.binary("mul", ctx.unary("expm1", x), alpha)), gamma)


def celu(ctx: NodeContext) -> Value:
    x, alpha = ctx.input(0), ctx.attribute("alpha", 1.0)
    scaled = x if alpha == 1.0 else ctx.binary("div", x, alpha)
    return _below_zero(ctx, x, ctx.binary("mul", ctx.unary("expm1", scaled), alpha))


def gelu(ctx: NodeContext) -> Value:
    return ctx.one(Gelu(ctx.attribute("approximate", "none") == "tanh"), ctx.input(0))


def hard_sigmoid(ctx: NodeContext) -> Value:
    line = ctx.binary("add", ctx.binary("mul", ctx.input(0), ctx.attribute("alpha", 0.2)), ctx.attribute("beta", 0.5))
    return ctx.binary("min", ctx.binary("max", line, 0.0), 1.0)


def hard_swish(ctx: NodeContext) -> Value:
    return ctx.one(HardSwish(), ctx.input(0))


def softplus(ctx: NodeContext) -> Value:
    return ctx.one(Softplus(), ctx.input(0))


def mish(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return ctx.binary("mul", x, ctx.unary("tanh", ctx.one(Softplus(), x)))


def softsign(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return ctx.binary("div", x, ctx.binary("add", ctx.unary("abs", x), 1.0))


def swish(ctx: NodeContext) -> Value:
    x, alpha = ctx.input(0), ctx.attribute("alpha", 1.0)
    return ctx.binary("mul", x, ctx.unary("sigmoid", x if alpha == 1.0 else ctx.binary("mul", x, alpha)))


def thresholded_relu(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return ctx.select(ctx.binary("greater", x, ctx.attribute("alpha", 1.0)), x, ctx.scalar_like(0, x))


def shrink(ctx: NodeContext) -> Value:
    """x + bias below -lambd, x - bias above lambd, 0 between. The two are floats: integers are computed in float64 and truncated."""
    given, bias, limit = ctx.input(0), ctx.attribute("bias", 0.0), ctx.attribute("lambd", 0.5)
    x = given if given.type.dtype.is_float else ctx.cast(given, dtypes.float64)
    above = ctx.select(ctx.binary("greater", x, limit), ctx.binary("sub", x, bias), ctx.scalar_like(0, x))
    return ctx.cast(ctx.select(ctx.binary("less", x, -limit), ctx.binary("add", x, bias), above), given.type.dtype)


IMPORTERS: Table = {
    ("", "Relu"): relu,
    ("", "LeakyRelu"): leaky_relu,
    ("", "PRelu"): prelu,
    ("", "Elu"): elu,
    ("", "Selu"): selu,
    ("", "Celu"): celu,
    ("", "Gelu"): gelu,
    ("", "HardSigmoid"): hard_sigmoid,
    ("", "HardSwish"): hard_swish,
    ("", "Softplus"): softplus,
    ("", "Mish"): mish,
    ("", "Softsign"): softsign,
    ("", "Swish"): swish,
    ("", "ThresholdedRelu"): thresholded_relu,
    ("", "Shrink"): shrink,
}
