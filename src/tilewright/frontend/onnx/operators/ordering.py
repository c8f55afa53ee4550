"""Importers of operators that order or select elements: TopK, Unique, NonZero, Compress, suppression, running sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.runtime_axes import runtime_axis
from tilewright.graph.node import Value
from tilewright.graph.ops import (
    BroadcastTo,
    Constant,
    CumulativeScan,
    Iota,
    ReverseSequence,
    TopK,
    compress,
    non_max_suppression,
    nonzero,
    unique,
)
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.expr import const, minimum
from tilewright.support.errors import ModelError


def top_k(ctx: NodeContext) -> Sequence[Value]:
    """Before opset 10, k is an attribute. Unsorted results may be in any order, so they are sorted too."""
    x = ctx.input(0)
    axis = ctx.axis(ctx.attribute("axis", -1), x.type.rank)
    k = const(ctx.require("k")) if ctx.version < 10 else ctx.as_size(ctx.input(1), f"{ctx.node.output[0]}_k")
    return ctx.emit(TopK(canonical(k), axis, bool(ctx.attribute("largest", 1))), ctx.at_least(x, axis, k))


def unique_elements(ctx: NodeContext) -> Sequence[Value]:
    x, axis = ctx.input(0), ctx.attribute("axis")
    at = None if axis is None else ctx.axis(axis, x.type.rank)
    return unique(ctx.g, x, at, bool(ctx.attribute("sorted", 1)), ctx.state.fresh_size, f"{ctx.node.output[0]}_count")


def non_zero(ctx: NodeContext) -> Value:
    """Exporters count with NonZero of a tensor of ones; such chains stay sizes."""
    x = ctx.input(0)
    known = ctx.constant_of(0)
    if known is not None:
        return ctx.constant(np.stack(np.nonzero(np.atleast_1d(known))).astype(np.int64)[: known.ndim])
    if isinstance(x.op, BroadcastTo) and x.type.rank == 1:
        filled = x.node.inputs[0].op
        if isinstance(filled, Constant) and np.all(filled.data.array != 0):
            return ctx.reshape(ctx.one(Iota(x.shape[0], dtypes.int64)), (1, x.shape[0]))
    return nonzero(ctx.g, x, ctx.state.fresh_size, f"{ctx.node.output[0]}_count")


def compressed(ctx: NodeContext) -> Value:
    """The condition may be shorter than the axis, not longer."""
    x, condition, axis = ctx.input(0), ctx.input(1), ctx.attribute("axis")
    condition = ctx.refine(condition, (ctx.dim(condition, 0),))
    if axis is None:
        x, at = ctx.reshape(x, (x.type.count,)), 0
    else:
        at = ctx.axis(axis, x.type.rank)
    return compress(ctx.g, ctx.at_least(x, at, condition.shape[0]), condition, at, ctx.state.fresh_size, f"{ctx.node.output[0]}_count")


def suppression(ctx: NodeContext) -> Value:
    """Without a limit per class nothing is selected; without a score threshold every box is a candidate."""
    if not ctx.input(0).type.rank == ctx.input(1).type.rank == 3:
        given = f"{ctx.input(0).type} and {ctx.input(1).type}"
        raise ModelError(f"NonMaxSuppression takes boxes and scores of three axes each, not {given}", where=ctx.where)
    boxes, scores = ctx.refine_axis(ctx.input(0), 2, 4), ctx.input(1)
    count = boxes.shape[1]
    if not ctx.has(2):
        return ctx.constant(np.zeros((0, 3), np.int64))
    known = ctx.constant_of(2)
    limit = count if known is None else minimum(const(int(known.reshape(-1)[0])), count)
    iou = ctx.number(ctx.input(3)) if ctx.has(3) else ctx.scalar_like(0, scores)
    least = ctx.number(ctx.input(4)) if ctx.has(4) else ctx.scalar_like(-np.inf, scores)
    per_class = ctx.cast(ctx.number(ctx.input(2)), dtypes.int64)
    scores = ctx.refine(scores, (boxes.shape[0], scores.shape[1], count))
    operands = (boxes, scores, per_class, iou, least)
    center = bool(ctx.attribute("center_point_box", 0))
    return non_max_suppression(ctx.g, operands, canonical(limit), center, ctx.state.fresh_size, f"{ctx.node.output[0]}_count")


def _running(ctx: NodeContext, fn: str) -> Value:
    """The axis is a tensor; when it is known only at run time, every axis is summed along and one result chosen. An axis that does not
    exist is refused then, as the scalar that chooses is bound to a range."""
    x = ctx.input(0)
    rank = x.type.rank
    exclusive, reverse = bool(ctx.attribute("exclusive", 0)), bool(ctx.attribute("reverse", 0))
    known = ctx.constant_of(1)
    if known is not None:
        return ctx.one(CumulativeScan(fn, ctx.axis(int(known.reshape(-1)[0]), rank), exclusive, reverse), x)
    axis = ctx.size_scalar(runtime_axis(ctx, 1, rank))
    result = x
    for a in range(rank):
        result = ctx.select(ctx.binary("equal", axis, a), ctx.one(CumulativeScan(fn, a, exclusive, reverse), x), result)
    return result


def cumulative_sum(ctx: NodeContext) -> Value:
    return _running(ctx, "sum")


def cumulative_product(ctx: NodeContext) -> Value:
    return _running(ctx, "prod")


def reverse_sequence(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    batch = ctx.axis(ctx.attribute("batch_axis", 1), x.type.rank)
    time = ctx.axis(ctx.attribute("time_axis", 0), x.type.rank)
    return ctx.one(ReverseSequence(batch, time), x, ctx.refine(ctx.input(1), (x.shape[batch],)))


IMPORTERS: Table = {
    ("", "Compress"): compressed,
    ("", "CumProd"): cumulative_product,
    ("", "CumSum"): cumulative_sum,
    ("", "NonMaxSuppression"): suppression,
    ("", "NonZero"): non_zero,
    ("", "ReverseSequence"): reverse_sequence,
    ("", "TopK"): top_k,
    ("", "Unique"): unique_elements,
}
