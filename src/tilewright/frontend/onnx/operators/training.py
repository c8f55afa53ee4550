"""Importers of steps of training: the optimizers of ai.onnx.preview.training, each for any number of tensors at once."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontend.onnx.context import Importer, NodeContext, Table
from tilewright.graph.node import Value
from tilewright.support.errors import ModelError

Step = Callable[[NodeContext, Value, Value, tuple[Value, ...]], tuple[Value, ...]]
DOMAIN = "ai.onnx.preview.training"


def optimizer(states: int, step: Step) -> Importer:
    """Inputs: rate, count of updates, then all tensors, all gradients, and `states` lists of what is kept of each. Results: the new
    tensors, then the new states."""

    def importer(ctx: NodeContext) -> list[Value]:
        groups = 2 + states
        count, rest = divmod(len(ctx.inputs) - 2, groups)
        if rest or count < 1:
            why = f"it takes 2, and {groups} for each tensor"
            raise ModelError(f"{ctx.op_type} has {len(ctx.inputs)} inputs", where=ctx.where, why=why)
        updated = []
        for i in range(count):
            x, g, *kept = (ctx.input(2 + i + count * group) for group in range(groups))
            regularised = ctx.binary("add", ctx.binary("mul", x, ctx.attribute("norm_coefficient", 0.0)), g)
            updated.append(step(ctx, x, regularised, tuple(kept)))
        return [results[group] for group in range(1 + states) for results in updated]

    return importer


def _rate(ctx: NodeContext, x: Value) -> Value:
    return ctx.cast(ctx.number(ctx.input(0)), x.type.dtype)


def _count(ctx: NodeContext, x: Value) -> Value:
    return ctx.cast(ctx.number(ctx.input(1)), x.type.dtype)


def _is_first(ctx: NodeContext, x: Value) -> Value:
    return ctx.binary("less_equal", _count(ctx, x), 0.0)


def _blend(ctx: NodeContext, old: Value, new: Value, share: float) -> Value:
    """share * old + (1 - share) * new."""
    return ctx.binary("add", ctx.binary("mul", old, share), ctx.binary("mul", new, 1.0 - share))


def _step(ctx: NodeContext, x: Value, rate: Value, direction: Value) -> Value:
    return ctx.binary("sub", x, ctx.binary("mul", rate, direction))


def adagrad(ctx: NodeContext, x: Value, g: Value, kept: tuple[Value, ...]) -> tuple[Value, ...]:
    """Kept: the sum of squared gradients."""
    decay = ctx.binary("add", ctx.binary("mul", _count(ctx, x), ctx.attribute("decay_factor", 0.0)), 1.0)
    total = ctx.binary("add", kept[0], ctx.binary("mul", g, g))
    scale = ctx.binary("add", ctx.unary("sqrt", total), ctx.attribute("epsilon", 1e-6))
    return _step(ctx, x, ctx.binary("div", _rate(ctx, x), decay), ctx.binary("div", g, scale)), total


def adam(ctx: NodeContext, x: Value, g: Value, kept: tuple[Value, ...]) -> tuple[Value, ...]:
    """Kept: moving means of the gradient and of its square; the rate is corrected for their start at 0, but not in the first step."""
    alpha, beta = ctx.attribute("alpha", 0.9), ctx.attribute("beta", 0.999)
    mean = _blend(ctx, kept[0], g, alpha)
    square = _blend(ctx, kept[1], ctx.binary("mul", g, g), beta)
    scale = ctx.binary("add", ctx.unary("sqrt", square), ctx.attribute("epsilon", 1e-6))
    count, rate = _count(ctx, x), _rate(ctx, x)
    ahead = [ctx.binary("sub", ctx.scalar_like(1.0, x), ctx.binary("pow", ctx.scalar_like(base, x), count)) for base in (beta, alpha)]
    corrected = ctx.binary("div", ctx.binary("mul", rate, ctx.unary("sqrt", ahead[0])), ahead[1])
    rate = ctx.select(_is_first(ctx, x), rate, corrected)
    moved = _step(ctx, x, rate, ctx.binary("div", mean, scale))
    return ctx.binary("mul", moved, 1.0 - ctx.attribute("norm_coefficient_post", 0.0)), mean, square


def momentum(ctx: NodeContext, x: Value, g: Value, kept: tuple[Value, ...]) -> tuple[Value, ...]:
    """Kept: the velocity. The first step takes the gradient whole; Nesterov's form looks one step ahead."""
    alpha, beta = ctx.require("alpha"), ctx.require("beta")
    share = ctx.select(_is_first(ctx, x), ctx.scalar_like(1.0, x), ctx.scalar_like(beta, x))
    velocity = ctx.binary("add", ctx.binary("mul", kept[0], alpha), ctx.binary("mul", g, share))
    direction = ctx.binary("add", g, ctx.binary("mul", velocity, alpha)) if ctx.require("mode") == "nesterov" else velocity
    return _step(ctx, x, _rate(ctx, x), direction), velocity


IMPORTERS: Table = {
    (DOMAIN, "Adagrad"): optimizer(1, adagrad),
    (DOMAIN, "Adam"): optimizer(2, adam),
    (DOMAIN, "Momentum"): optimizer(1, momentum),
}
