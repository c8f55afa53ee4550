"""Importers of random operators. Each draws the same numbers in every run: seeds are part of the model."""

from __future__ import annotations

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import CumulativeScan, RandomNormal, RandomUniform, Softmax
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import const
from tilewright.ir.types import Shape, as_shape
from tilewright.support.errors import ModelError


def _uniform(ctx: NodeContext, shape: Shape, dtype: DType) -> Value:
    return ctx.one(RandomUniform(shape, dtype, ctx.attribute("low", 0.0), ctx.attribute("high", 1.0), ctx.seed()))


def _normal(ctx: NodeContext, shape: Shape, dtype: DType) -> Value:
    return ctx.one(RandomNormal(shape, dtype, ctx.attribute("mean", 0.0), ctx.attribute("scale", 1.0), ctx.seed()))


def random_uniform(ctx: NodeContext) -> Value:
    return _uniform(ctx, as_shape(ctx.require("shape")), ctx.dtype_attribute("dtype", dtypes.float32))


def random_normal(ctx: NodeContext) -> Value:
    return _normal(ctx, as_shape(ctx.require("shape")), ctx.dtype_attribute("dtype", dtypes.float32))


def random_uniform_like(ctx: NodeContext) -> Value:
    return _uniform(ctx, ctx.input(0).shape, ctx.dtype_attribute("dtype", ctx.input(0).type.dtype))


def random_normal_like(ctx: NodeContext) -> Value:
    return _normal(ctx, ctx.input(0).shape, ctx.dtype_attribute("dtype", ctx.input(0).type.dtype))


def bernoulli(ctx: NodeContext) -> Value:
    """1 with the probability that the input gives."""
    x = ctx.input(0)
    drawn = ctx.one(RandomUniform(x.shape, dtypes.float32, 0.0, 1.0, ctx.seed()))
    return ctx.cast(ctx.binary("less", drawn, ctx.cast(x, dtypes.float32)), ctx.dtype_attribute("dtype", x.type.dtype))


def multinomial(ctx: NodeContext) -> Value:
    """Class numbers drawn from unnormalised log-probabilities [batch, classes], by the inverse of the cumulative distribution."""
    logits = ctx.cast(ctx.input(0), dtypes.float32)
    if logits.type.rank != 2:
        raise ModelError(f"Multinomial of a tensor of rank {logits.type.rank}", where=ctx.where, why="it takes [batch, classes]")
    batch, classes = logits.shape
    samples = const(ctx.attribute("sample_size", 1))
    cumulative = ctx.one(CumulativeScan("sum", 1, False, False), ctx.one(Softmax(1), logits))
    below = ctx.slice_axis(cumulative, 1, 0, classes - 1)
    drawn = ctx.one(RandomUniform((batch, samples), dtypes.float32, 0.0, 1.0, ctx.seed()))
    passed = ctx.binary("greater_equal", ctx.reshape(drawn, (batch, samples, 1)), ctx.reshape(below, (batch, 1, classes - 1)))
    dtype = ctx.dtype_attribute("dtype", dtypes.int32)
    return ctx.reduce("sum", ctx.cast(passed, dtype), (2,), keepdims=False)


IMPORTERS: Table = {
    ("", "RandomUniform"): random_uniform,
    ("", "RandomNormal"): random_normal,
    ("", "RandomUniformLike"): random_uniform_like,
    ("", "RandomNormalLike"): random_normal_like,
    ("", "Bernoulli"): bernoulli,
    ("", "Multinomial"): multinomial,
}
