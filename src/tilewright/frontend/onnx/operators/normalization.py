"""Importers of normalisations and softmax."""

from __future__ import annotations

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.reduction import first_of_flattened, in_rows, mean_over
from tilewright.graph.node import Operator, Value
from tilewright.graph.ops import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, LogSoftmax, Lrn, RmsNorm, Softmax
from tilewright.graph.shapes import canonical, is_one
from tilewright.ir import dtypes
from tilewright.support.errors import ModelError, UnsupportedOperatorError


def softmax(ctx: NodeContext) -> Value:
    return _softmax(ctx, Softmax)


def log_softmax(ctx: NodeContext) -> Value:
    return _softmax(ctx, LogSoftmax)


def _softmax(ctx: NodeContext, operator: type[Softmax] | type[LogSoftmax]) -> Value:
    """Along one axis; before opset 13 over all axes from `axis` together."""
    x = ctx.input(0)
    rank = x.type.rank
    if ctx.version >= 13:
        return ctx.one(operator(ctx.axis(ctx.attribute("axis", -1), rank)), x)
    axis = first_of_flattened(ctx, rank)
    if axis < rank and all(is_one(dim) for dim in x.shape[axis + 1 :]):
        return ctx.one(operator(axis), x)
    return ctx.reshape(ctx.one(operator(1), in_rows(ctx, x, axis)), x.shape)


def batch_normalization(ctx: NodeContext) -> Value | list[Value]:
    """With the statistics given; in training mode with those of the batch, and the moving ones as further results."""
    x, scale, bias, mean, variance = (ctx.input(index) for index in range(5))
    epsilon = ctx.attribute("epsilon", 1e-5)
    if ctx.version < 9 and not ctx.attribute("spatial", 1):
        raise UnsupportedOperatorError("BatchNormalization with spatial=0 is not supported", where=ctx.where)
    x, (scale, bias, mean, variance) = _per_channel(ctx, x, scale, bias, mean, variance)
    training = ctx.attribute("training_mode", 0) if ctx.version >= 14 else any(ctx.wants(index) for index in range(1, 5))
    if not training:
        scale, bias, mean, variance = _in_wider(ctx, x, scale, bias, mean, variance)
        return ctx.one(BatchNorm(epsilon), x, scale, bias, mean, variance)
    axes = [axis for axis in range(x.type.rank) if axis != 1]
    wide = ctx.cast(x, mean.type.dtype)
    center = mean_over(ctx, wide, axes)
    away = ctx.binary("sub", wide, center)
    spread = mean_over(ctx, ctx.binary("mul", away, away), axes)
    channels = mean.shape
    batch_mean, batch_variance = ctx.reshape(center, channels), ctx.reshape(spread, channels)
    momentum = ctx.attribute("momentum", 0.9)

    def moved(old: Value, new: Value) -> Value:
        return ctx.binary("add", ctx.binary("mul", old, momentum), ctx.binary("mul", new, 1.0 - momentum))

    given = _in_wider(ctx, x, scale, bias, batch_mean, batch_variance)
    result = ctx.one(BatchNorm(epsilon), x, *given)
    moving = [result, moved(mean, batch_mean), moved(variance, batch_variance)]
    return moving if ctx.version >= 14 else [*moving, batch_mean, batch_variance]


def _per_channel(ctx: NodeContext, x: Value, *parameters: Value) -> tuple[Value, tuple[Value, ...]]:
    """The input and parameters of one number for each channel, asserted to be as many as axis 1 has elements."""
    if x.type.rank < 2 or any(p.type.rank != 1 for p in parameters):
        return x, parameters
    x = ctx.refine_axis(x, 1, parameters[0].shape[0])
    return x, tuple(ctx.refine(p, (x.shape[1],)) for p in parameters)


def _in_wider(ctx: NodeContext, x: Value, *parameters: Value) -> tuple[Value, ...]:
    """Parameters may have other float types than the input: they are read in the input's."""
    return tuple(ctx.cast(p, x.type.dtype) for p in parameters)


def instance_normalization(ctx: NodeContext) -> Value:
    x, scale, bias = ctx.input(0), ctx.input(1), ctx.input(2)
    x, (scale, bias) = _per_channel(ctx, x, scale, bias)
    return ctx.one(InstanceNorm(ctx.attribute("epsilon", 1e-5)), x, scale, bias)


def group_normalization(ctx: NodeContext) -> Value:
    """Scale and bias are given for each group in opset 18, for each channel since 21."""
    x, scale, bias = ctx.input(0), ctx.input(1), ctx.input(2)
    groups = ctx.require("num_groups")
    if ctx.version >= 21:
        x, (scale, bias) = _per_channel(ctx, x, scale, bias)
    channels = x.shape[1]
    if ctx.version < 21:
        each = canonical(channels // groups)
        scale, bias = (ctx.reshape(ctx.broadcast(ctx.reshape(p, (groups, 1)), (groups, each)), (channels,)) for p in (scale, bias))
    return ctx.one(GroupNorm(groups, ctx.attribute("epsilon", 1e-5)), x, scale, bias)


def layer_normalization(ctx: NodeContext) -> Value | list[Value]:
    x, scale = ctx.input(0), ctx.input(1)
    rank = x.type.rank
    axis, epsilon = ctx.axis(ctx.attribute("axis", -1), rank), ctx.attribute("epsilon", 1e-5)
    x = ctx.align(scale, x)[1]
    bias = ctx.align(scale, ctx.input(2))[1] if ctx.has(2) else ctx.broadcast(ctx.scalar_like(0, x), scale.shape)
    scale, bias = ctx.cast(scale, x.type.dtype), ctx.cast(bias, x.type.dtype)
    result = ctx.one(LayerNorm(axis, epsilon), x, scale, bias)
    if not (ctx.wants(1) or ctx.wants(2)):
        return result
    stash = ctx.cast(x, dtypes.float32 if x.type.dtype.bits <= 32 else x.type.dtype)
    axes = range(axis, rank)
    mean = mean_over(ctx, stash, axes)
    away = ctx.binary("sub", stash, mean)
    variance = mean_over(ctx, ctx.binary("mul", away, away), axes)
    return [result, mean, ctx.unary("rsqrt", ctx.binary("add", variance, epsilon))]


def rms_normalization(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    axis = ctx.axis(ctx.attribute("axis", -1), x.type.rank)
    scale, x = ctx.align(ctx.input(1), x)
    if scale.type.dtype is not x.type.dtype:
        result = ctx.one(RmsNorm(axis, ctx.attribute("epsilon", 1e-5)), x, ctx.scalar_like(1, x))
        return ctx.binary("mul", ctx.cast(result, scale.type.dtype), scale)
    return ctx.one(RmsNorm(axis, ctx.attribute("epsilon", 1e-5)), x, scale)


def lrn(ctx: NodeContext) -> Value:
    operator: Operator = Lrn(
        ctx.require("size"), ctx.attribute("alpha", 1e-4), ctx.attribute("beta", 0.75), ctx.attribute("bias", 1.0)
    )  # fmt: skip
    return ctx.one(operator, ctx.input(0))


def lp_normalization(ctx: NodeContext) -> Value:
    """x divided by its 1- or 2-norm along an axis; where the norm is 0 the result is 0."""
    x, p = ctx.input(0), ctx.attribute("p", 2)
    axis = ctx.axis(ctx.attribute("axis", -1), x.type.rank)
    if p not in (1, 2):
        raise ModelError(f"LpNormalization with p={p}", where=ctx.where, why="p is 1 or 2")
    size = ctx.unary("abs", x) if p == 1 else ctx.binary("mul", x, x)
    norm = ctx.reduce("sum", size, (axis,))
    norm = norm if p == 1 else ctx.unary("sqrt", norm)
    zero = ctx.binary("equal", norm, 0.0)
    return ctx.binary("div", x, ctx.select(zero, ctx.scalar_like(1, norm), norm))


def mean_variance_normalization(ctx: NodeContext) -> Value:
    """(x - mean) / (deviation + 1e-9)."""
    x = ctx.input(0)
    axes = sorted(ctx.axis(axis, x.type.rank) for axis in ctx.attribute("axes") or [0, 2, 3])
    away = ctx.binary("sub", x, mean_over(ctx, x, axes))
    deviation = ctx.unary("sqrt", mean_over(ctx, ctx.binary("mul", away, away), axes))
    return ctx.binary("div", away, ctx.binary("add", deviation, 1e-9))


IMPORTERS: Table = {
    ("", "Softmax"): softmax,
    ("", "LogSoftmax"): log_softmax,
    ("", "BatchNormalization"): batch_normalization,
    ("", "InstanceNormalization"): instance_normalization,
    ("", "GroupNormalization"): group_normalization,
    ("", "LayerNormalization"): layer_normalization,
    ("", "RMSNormalization"): rms_normalization,
    ("", "LRN"): lrn,
    ("", "LpNormalization"): lp_normalization,
    ("", "MeanVarianceNormalization"): mean_variance_normalization,
}
