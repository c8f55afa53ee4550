"""Importers of gather and scatter operators."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Gather, GatherElements, GatherNd, Iota, ScatterElements, ScatterNd
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.support.errors import ModelError


def gather(ctx: NodeContext) -> Value:
    x, indices = ctx.input(0), ctx.input(1)
    return ctx.one(Gather(ctx.axis(ctx.attribute("axis", 0), x.type.rank)), x, indices)


def gather_elements(ctx: NodeContext) -> Value:
    x, indices = ctx.input(0), ctx.input(1)
    return ctx.one(GatherElements(ctx.axis(ctx.attribute("axis", 0), x.type.rank)), x, indices)


def gather_nd(ctx: NodeContext) -> Value:
    x, indices = ctx.input(0), ctx.input(1)
    batch = ctx.attribute("batch_dims", 0)
    return ctx.one(GatherNd(batch), x, ctx.refine(indices, (*x.shape[:batch], *indices.shape[batch:])))


def scatter_elements(ctx: NodeContext) -> Value:
    x, indices, updates = ctx.input(0), ctx.input(1), ctx.input(2)
    axis = ctx.axis(ctx.attribute("axis", 0), x.type.rank)
    return ctx.one(ScatterElements(axis, ctx.attribute("reduction", "none")), x, indices, ctx.refine(updates, indices.shape))


def scatter_nd(ctx: NodeContext) -> Value:
    x, indices, updates = ctx.input(0), ctx.input(1), ctx.input(2)
    depth = int(indices.shape[-1].value) if indices.type.rank and indices.shape[-1].is_const else 0
    target = (*indices.shape[:-1], *x.shape[depth:])
    updates = ctx.refine(updates, target) if len(target) == updates.type.rank else updates
    return ctx.one(ScatterNd(ctx.attribute("reduction", "none")), x, indices, updates)


def one_hot(ctx: NodeContext) -> Value:
    """`values` is (off, on); indices that are negative count from the end, those outside are off everywhere."""
    indices, values = ctx.cast(ctx.input(0), dtypes.int64), ctx.input(2)
    depth = ctx.as_size(ctx.input(1), f"{ctx.node.output[0]}_depth", lo=1)
    if depth.is_const and depth.value < 1:
        raise ModelError(f"OneHot with a depth of {depth!r}", where=ctx.where, why="it must be at least 1")
    axis = ctx.axis(ctx.attribute("axis", -1), indices.type.rank + 1)
    wrapped = ctx.select(ctx.binary("less", indices, 0), ctx.binary("add", indices, ctx.size_number(depth, dtypes.int64)), indices)
    spread: tuple[Expr, ...] = (*indices.shape[:axis], const(1), *indices.shape[axis:])
    steps = ctx.reshape(ctx.one(Iota(depth, dtypes.int64)), [depth if a == axis else 1 for a in range(len(spread))])
    hot = ctx.binary("equal", ctx.reshape(wrapped, spread), steps)
    off, on = (ctx.number(ctx.slice_axis(values, 0, i, 1)) for i in range(2))
    return ctx.select(hot, on, off)


def array_feature_extractor(ctx: NodeContext) -> Value:
    """Columns of the last axis."""
    x, indices = ctx.input(0), ctx.input(1)
    picked = ctx.one(Gather(x.type.rank - 1), x, ctx.reshape(indices, (indices.type.count,)))
    return picked if x.type.rank > 1 else ctx.reshape(picked, (1, *picked.shape))


def tensor_scatter(ctx: NodeContext) -> Value:
    """Rows of a cache replaced from a position on: past_cache, update, write_indices [batch] (0 when left out)."""
    cache, update = ctx.input(0), ctx.input(1)
    axis = ctx.axis(ctx.attribute("axis", -2), cache.type.rank)
    update = ctx.refine(update, (*cache.shape[:axis], update.shape[axis], *cache.shape[axis + 1 :]))
    batch, length = update.shape[0], update.shape[axis]
    start = ctx.optional(2)
    first = ctx.constant(np.zeros(1, np.int64)) if start is None else ctx.cast(ctx.refine(start, (batch,)), dtypes.int64)
    rows = ctx.binary("add", ctx.reshape(first, (first.shape[0], 1)), ctx.reshape(ctx.one(Iota(length, dtypes.int64)), (1, length)))
    if ctx.attribute("mode", "linear") == "circular":
        rows = ctx.binary("floormod", rows, ctx.size_number(cache.shape[axis], dtypes.int64))
    spread = ctx.reshape(rows, [rows.shape[0] if a == 0 else length if a == axis else 1 for a in range(cache.type.rank)])
    indices = ctx.broadcast(spread, (batch, *update.shape[1:]))
    return ctx.one(ScatterElements(axis), cache, indices, update)


IMPORTERS: Table = {
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "OneHot"): one_hot,
    ("", "Scatter"): scatter_elements,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
    ("", "TensorScatter"): tensor_scatter,
    ("ai.onnx.ml", "ArrayFeatureExtractor"): array_feature_extractor,
}
