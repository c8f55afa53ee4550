"""Importers of Slice and Split, whose bounds may be computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.onnx.context import FARTHEST, NodeContext, Table
from tilewright.frontend.onnx.runtime_axes import chosen, picked, runtime_axes
from tilewright.frontend.onnx.sizes import ceil_quotient, open_slice_bounds, quotient, slice_bounds
from tilewright.graph.node import Value
from tilewright.graph.ops import Gather, Iota, Slice
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir import dtypes
from tilewright.ir import expr as ex
from tilewright.ir.expr import Expr, const
from tilewright.support.errors import ModelError


def split(ctx: NodeContext) -> list[Value]:
    """Sizes are an attribute before opset 13, then an input; without sizes the axis is cut evenly, the last part taking what is left. As in
    ONNX Runtime that is an error where the parts before it are more than all there is: 5 elements are no 2 + 2 + 2 and -1."""
    x = ctx.input(0)
    axis = ctx.axis(ctx.attribute("axis", 0), x.type.rank)
    given = ctx.attribute("split") if ctx.version < 13 else None
    if given is not None:
        sizes = [const(n) for n in given]
    elif ctx.has(1):
        sizes = list(ctx.as_sizes(ctx.input(1), count=ctx.output_count))
    else:
        count = ctx.output_count
        if ctx.attribute("num_outputs", count) != count:
            raise ModelError(f"Split has {count} results and num_outputs {ctx.attribute('num_outputs')}", where=ctx.where)
        dim = ctx.dim(x, axis)
        each = ceil_quotient(dim, count)
        sizes = [each] * (count - 1) + [canonical(dim - each * (count - 1))]
        if sizes[-1].is_const and sizes[-1].value < 0:
            raise ModelError(
                f"Split: axis {axis} has {dim!r} elements, which are not enough for {count} parts",
                where=ctx.where,
                why=f"all but the last have {dim!r} / {count} elements rounded up, and {count - 1} * {each!r} is {each * (count - 1)!r}",
                hint="give Split the sizes of its parts as second input, or fewer outputs",
            )
        if not dim.is_const:
            exact, divides = quotient([dim], [const(count)])
            if divides or ctx.version < 18:
                sizes = [exact] * count
    if len(sizes) < ctx.output_count:
        raise ModelError(f"Split has {len(sizes)} sizes for {ctx.output_count} results", where=ctx.where)
    negative = next((size for size in sizes if size.is_const and size.value < 0), None)
    if negative is not None:
        raise ModelError(f"Split has a part of {negative!r} elements: its sizes are {sizes}", where=ctx.where)
    starts = [const(0)]
    for size in sizes:
        starts.append(canonical(starts[-1] + size))
    # A computed size that is negative makes this more than the axis, which is checked while running.
    total, dim = canonical(sum((ex.maximum(size, 0) for size in sizes), const(0))), ctx.dim(x, axis)
    if total.is_const and dim.is_const and total is not dim:
        raise ModelError(f"Split has sizes of {total!r} in all for an axis of {dim!r}", where=ctx.where)
    x = ctx.refine_axis(x, axis, total)
    return [ctx.slice_axis(x, axis, start, size) for start, size in zip(starts, sizes, strict=False)]


def slice_(ctx: NodeContext) -> Value:
    """Attributes before opset 10, then inputs, which may be computed."""
    x = ctx.input(0)
    rank = x.type.rank
    if ctx.version < 10:
        starts = [const(n) for n in ctx.require("starts")]
        ends = [const(n) for n in ctx.require("ends")]
        axes: Sequence[int] = ctx.attribute("axes") or range(len(starts))
        steps = [1] * len(starts)
    else:
        lengths = [ctx.dim(ctx.input(i), 0) for i in range(1, 5) if ctx.has(i)]
        count = next((int(length.value) for length in lengths if length.is_const), None)
        starts, ends = (list(ctx.as_positions(ctx.input(i), count=count)) for i in (1, 2))
        known_axes, known_steps = ctx.integers_of(3), ctx.integers_of(4)
        if (ctx.has(3) and known_axes is None) or (ctx.has(4) and known_steps is None):
            return _slice_open(ctx, x, starts, ends)
        axes = range(len(starts)) if known_axes is None else known_axes
        steps = [1] * len(starts) if known_steps is None else known_steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        counts = f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps"
        raise ModelError(f"Slice has {counts}", where=ctx.where, why="it takes as many of each")
    first, sizes, strides = [const(0)] * rank, list(x.shape), [1] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = ctx.axis(axis, rank)
        if step == 0:
            raise ModelError("Slice with a step of 0", where=ctx.where)
        step = max(-FARTHEST, min(step, FARTHEST))
        first[axis], sizes[axis] = slice_bounds(start, end, step, x.shape[axis])
        strides[axis] = step
    if all(dims_equal(a, b) for a, b in zip(sizes, x.shape, strict=True)) and all(step == 1 for step in strides):
        return x
    return ctx.one(Slice(tuple(first), tuple(sizes), tuple(strides)), x)


def _slice_open(ctx: NodeContext, x: Value, starts: Sequence[Expr], ends: Sequence[Expr]) -> Value:
    """Axes or steps that are known at run time only: the positions along each axis are computed, and its elements gathered."""
    rank = x.type.rank
    known = ctx.integers_of(3)
    if ctx.has(3) and known is None:
        axes = runtime_axes(ctx, 3, rank)
    else:
        axes = tuple(const(ctx.axis(axis, rank)) for axis in (range(len(starts)) if known is None else known))
    steps, sizes = [const(1)] * len(axes), [const(1)] * len(axes)
    if ctx.has(4):
        name = f"{ctx.node.output[0]}_step"
        ctx.expect_integers(ctx.input(4))
        farthest = min(FARTHEST, int(np.iinfo(ctx.input(4).type.dtype.numpy).max))
        given = ctx.binary("min", ctx.binary("max", ctx.input(4), -farthest), farthest)
        steps = list(ctx.as_positions(given, name))
        sizes = list(ctx.as_sizes(ctx.unary("abs", given), f"{name}_size", lo=1, position=True))
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError("Slice has different numbers of starts, ends, axes and steps", where=ctx.where)
    for i, (mark, dim) in enumerate(zip(chosen(axes, rank), x.shape, strict=True)):
        if mark is ex.FALSE:
            continue
        start, end = picked(axes, starts, i, const(0)), picked(axes, ends, i, dim)
        step, size = picked(axes, steps, i, const(1)), picked(axes, sizes, i, const(1))
        first, count = open_slice_bounds(start, end, step, size, dim)
        offsets = ctx.binary("mul", ctx.one(Iota(count, dtypes.int64)), ctx.size_scalar(step))
        x = ctx.one(Gather(i), x, ctx.binary("add", offsets, ctx.size_scalar(first)))
    return x


IMPORTERS: Table = {("", "Split"): split, ("", "Slice"): slice_}
