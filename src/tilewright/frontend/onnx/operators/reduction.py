"""Importers of reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilewright.frontend.onnx.context import Importer, NodeContext, Table
from tilewright.frontend.onnx.operators.movement import axes_argument, has_runtime_axes
from tilewright.frontend.onnx.runtime_axes import chosen, runtime_axes, split_by, without
from tilewright.graph.node import Value
from tilewright.graph.ops import ArgReduce, Iota
from tilewright.graph.shapes import canonical, is_zero
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import product

AXES_ARE_INPUTS_SINCE = {"ReduceSum": 13}  # the others: 18


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction of `x` along `axes`, whose result is given the shape `shape`."""

    x: Value
    axes: tuple[int, ...]
    shape: tuple[Expr, ...]


def reduction(ctx: NodeContext) -> Reduction:
    """What a node reduces: the axes given, all when none are (unless noop_with_empty_axes)."""
    x = ctx.input(0)
    rank, keepdims = x.type.rank, bool(ctx.attribute("keepdims", 1))
    since = AXES_ARE_INPUTS_SINCE.get(ctx.op_type, 18)
    if has_runtime_axes(ctx, 1, since):
        axes = runtime_axes(ctx, 1, rank)
        marks = chosen(axes, rank)
        r, q = split_by(x.shape, marks)
        apart = ctx.reshape(x, [dim for pair in zip(r, q, strict=True) for dim in pair])
        return Reduction(apart, tuple(range(0, 2 * rank, 2)), q if keepdims else without(x.shape, marks, rank - len(axes)))
    given = axes_argument(ctx, 1, since)
    if not given:
        given = [] if ctx.attribute("noop_with_empty_axes", 0) else list(range(rank))
    fixed = tuple(sorted({ctx.axis(axis, rank) for axis in given}))
    shape = [const(1) if axis in fixed else dim for axis, dim in enumerate(x.shape) if keepdims or axis not in fixed]
    return Reduction(x, fixed, tuple(shape))


def mean_over(ctx: NodeContext, x: Value, axes: Iterable[int], keepdims: bool = True) -> Value:
    """The mean along axes; halves are summed in float32, integers divide truncating."""
    chosen = tuple(axes)
    if not chosen:
        return x
    wide = _widened(ctx, x)
    count = ctx.size_number(canonical(product([x.shape[axis] for axis in chosen])), wide.type.dtype)
    return ctx.cast(ctx.binary("div", ctx.reduce("sum", wide, chosen, keepdims), count), x.type.dtype)


def _widened(ctx: NodeContext, x: Value) -> Value:
    """Halves as float32, in which what is made of them on the way to a result does not overflow."""
    dtype = x.type.dtype
    return ctx.cast(x, dtypes.float32) if dtype.is_float and dtype.bits < 32 else x


def _plain(fn: str) -> Importer:
    def importer(ctx: NodeContext) -> Value:
        r = reduction(ctx)
        chosen_fn = {"max": "any", "min": "all"}.get(fn, fn) if r.x.type.dtype is dtypes.bool_ else fn
        return ctx.reshape(ctx.reduce(chosen_fn, r.x, r.axes), r.shape)

    return importer


def _mapped(before: Callable[[NodeContext, Value], Value], after: str | None = None) -> Importer:
    """A sum of mapped elements, with a function of the sum."""

    def importer(ctx: NodeContext) -> Value:
        r = reduction(ctx)
        dtype = r.x.type.dtype
        total = ctx.reshape(ctx.reduce("sum", before(ctx, _widened(ctx, r.x)), r.axes), r.shape)
        if after is not None:
            total = ctx.unary(after, total if dtype.is_float else ctx.cast(total, dtypes.float64))
        return ctx.cast(total, dtype)

    return importer


def _square(ctx: NodeContext, x: Value) -> Value:
    return ctx.binary("mul", x, x)


def _magnitude(ctx: NodeContext, x: Value) -> Value:
    return x if x.type.dtype.kind == "uint" else ctx.unary("abs", x)


def reduce_mean(ctx: NodeContext) -> Value:
    r = reduction(ctx)
    return ctx.reshape(mean_over(ctx, r.x, r.axes), r.shape)


def reduce_log_sum_exp(ctx: NodeContext) -> Value:
    """The greatest element is taken out before exponentiating, so that nothing overflows."""
    r = reduction(ctx)
    given, axes = r.x, r.axes
    x = _widened(ctx, given) if given.type.dtype.is_float else ctx.cast(given, dtypes.float64)
    greatest = ctx.reduce("max", x, axes)
    greatest = ctx.select(ctx.unary("isinf", greatest), ctx.scalar_like(0, x), greatest)
    total = ctx.reduce("sum", ctx.unary("exp", ctx.binary("sub", x, greatest)), axes)
    result = ctx.binary("add", ctx.unary("log", total), greatest)
    return ctx.cast(ctx.reshape(result, r.shape), given.type.dtype)


def _position(fn: str) -> Importer:
    def importer(ctx: NodeContext) -> Value:
        x = ctx.input(0)
        axis = ctx.axis(ctx.attribute("axis", 0), x.type.rank)
        op = ArgReduce(fn, axis, bool(ctx.attribute("keepdims", 1)), bool(ctx.attribute("select_last_index", 0)))
        return ctx.one(op, ctx.at_least(x, axis, const(1)))

    return importer


def hardmax(ctx: NodeContext) -> Value:
    """1 at the first greatest element along the axis, 0 elsewhere; before opset 13 over all axes from it."""
    x = ctx.input(0)
    if ctx.version < 13:
        rows = in_rows(ctx, x, first_of_flattened(ctx, x.type.rank))
        return ctx.reshape(_one_hot_of_greatest(ctx, rows, 1), x.shape)
    return _one_hot_of_greatest(ctx, x, ctx.axis(ctx.attribute("axis", -1), x.type.rank))


def first_of_flattened(ctx: NodeContext, rank: int) -> int:
    """The axis from which on Softmax and the like see one axis before opset 13. It may be the rank, as the default is for vectors: what
    is flattened are single elements then."""
    axis = ctx.attribute("axis", 1)
    return rank if axis == rank else ctx.axis(axis, rank)


def in_rows(ctx: NodeContext, x: Value, axis: int) -> Value:
    """[product of the dims before the axis, product of those from it on]."""
    return ctx.reshape(x, (canonical(product(x.shape[:axis])), canonical(product(x.shape[axis:]))))


def _one_hot_of_greatest(ctx: NodeContext, x: Value, axis: int) -> Value:
    if is_zero(x.shape[axis]):  # nothing is the greatest of nothing, and nothing is to be marked
        return x
    at = ctx.one(ArgReduce("max", axis, True, False), x)
    steps = ctx.one(Iota(x.shape[axis], dtypes.int64))
    placed = ctx.reshape(steps, [x.shape[axis] if i == axis else 1 for i in range(x.type.rank)])
    return ctx.cast(ctx.binary("equal", placed, at), x.type.dtype)


IMPORTERS: Table = {
    ("", "ReduceSum"): _plain("sum"),
    ("", "ReduceProd"): _plain("prod"),
    ("", "ReduceMax"): _plain("max"),
    ("", "ReduceMin"): _plain("min"),
    ("", "ReduceMean"): reduce_mean,
    ("", "ReduceL1"): _mapped(_magnitude),
    ("", "ReduceL2"): _mapped(_square, "sqrt"),
    ("", "ReduceSumSquare"): _mapped(_square),
    ("", "ReduceLogSum"): _mapped(lambda ctx, x: x, "log"),
    ("", "ReduceLogSumExp"): reduce_log_sum_exp,
    ("", "ArgMax"): _position("max"),
    ("", "ArgMin"): _position("min"),
    ("", "Hardmax"): hardmax,
}
