"""Importers of operators that make tensors from sizes, or sizes from tensors, and of constants."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import BindSize, Iota
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir import expr as ex
from tilewright.ir.expr import Expr
from tilewright.ir.types import product
from tilewright.support.errors import ModelError


def shape(ctx: NodeContext) -> Value:
    """The dims from `start` to `end` (opset 15), which count from the end when negative and are clamped."""
    dims = ctx.input(0).shape[slice(ctx.attribute("start", 0), ctx.attribute("end"))]
    return ctx.size_tensor(dims)


def size(ctx: NodeContext) -> Value:
    return ctx.size_scalar(canonical(product(ctx.input(0).shape)))


def constant_of_shape(ctx: NodeContext) -> Value:
    value = ctx.attribute("value")
    filling = ctx.constant(np.zeros((), np.float32) if value is None else np.asarray(value).reshape(()))
    return ctx.broadcast(filling, ctx.as_sizes(ctx.input(0)))


LONGEST = 1 << 48  # elements of a range


def range_(ctx: NodeContext) -> Value:
    """start, start + delta, ... before `limit`. The length is bound at run time when the limits are computed."""
    start, limit, delta = (ctx.number(ctx.input(index)) for index in range(3))
    dtype = start.type.dtype
    length = _range_length(ctx, start, limit, delta)
    steps = ctx.one(Iota(length, dtype))
    if ctx.constant_of(2) is None or ctx.constant_of(2) != 1:
        steps = ctx.binary("mul", steps, delta)
    first = ctx.constant_of(0)
    return steps if first is not None and first == 0 else ctx.binary("add", steps, start)


def _range_length(ctx: NodeContext, start: Value, limit: Value, delta: Value) -> Expr:
    numbers = [ctx.constant_of(index) for index in range(3)]
    if all(n is not None for n in numbers):
        first, last, step = (n.reshape(-1)[0].item() for n in numbers if n is not None)
        if step == 0:
            raise ModelError("Range with a step of 0", where=ctx.where)
        if not abs(last - first) <= LONGEST * abs(step):
            raise ModelError(f"Range from {first} to {last} by {step} has more elements than memory can hold", where=ctx.where)
        return ex.const(max(int(np.ceil((last - first) / step)) if isinstance(step, float) else -((first - last) // step), 0))
    known = [ctx.state.contents.scalar(value) for value in (start, limit, delta)]
    if known[0] is not None and known[1] is not None and known[2] is not None and known[2].is_const and known[2].value != 0:
        step = int(known[2].value)
        span = known[1] - known[0] if step > 0 else known[0] - known[1]
        return canonical(ex.maximum(ex.ceildiv(span, abs(step)), 0))
    if start.type.dtype.is_float:
        count = ctx.unary("ceil", ctx.binary("div", ctx.binary("sub", limit, start), delta))
        steps = ctx.binary("max", ctx.cast(count, dtypes.int64), 0)
        finite: Value | None = ctx.binary("less", ctx.unary("abs", count), np.inf)
    else:
        steps = _integer_steps(ctx, start, limit, delta)
        finite = ctx.binary("not_equal", delta, 0) if ctx.constant_of(2) is None else None
    length = ctx.state.fresh_size(f"{ctx.node.output[0]}_length")
    if finite is not None:  # a step of 0 has no length, nor have NaNs and infinities, which is what the size is checked for
        steps = ctx.select(finite, steps, ctx.scalar_like(-1, steps))
    ctx.emit(BindSize(length), steps)
    return length


def _integer_steps(ctx: NodeContext, start: Value, limit: Value, delta: Value) -> Value:
    """ceil((limit - start) / delta), at least 0: the distance of two numbers of int64 is one of uint64."""
    start, limit, delta = (ctx.cast(value, dtypes.int64) for value in (start, limit, delta))
    up = ctx.binary("less", ctx.scalar_like(0, delta), delta)
    first, last = ctx.select(up, start, limit), ctx.select(up, limit, start)
    distance = ctx.binary("sub", ctx.cast(last, dtypes.uint64), ctx.cast(first, dtypes.uint64))
    by = ctx.binary("max", ctx.cast(ctx.select(up, delta, ctx.unary("neg", delta)), dtypes.uint64), 1)
    steps = ctx.binary("add", ctx.binary("floordiv", ctx.binary("sub", distance, 1), by), 1)
    return ctx.select(ctx.binary("less", first, last), ctx.cast(steps, dtypes.int64), ctx.scalar_like(0, start))


def eye_like(ctx: NodeContext) -> Value:
    """Ones on the diagonal column - row == k."""
    x = ctx.input(0)
    if len(x.shape) != 2:
        raise ModelError(f"EyeLike takes a matrix, not {x.type}", where=ctx.where)
    rows, columns = x.shape
    row = ctx.reshape(ctx.one(Iota(rows, dtypes.int64)), (rows, 1))
    row = ctx.binary("add", row, ctx.attribute("k", 0))
    diagonal = ctx.binary("equal", ctx.one(Iota(columns, dtypes.int64)), row)
    return ctx.cast(diagonal, ctx.dtype_attribute("dtype", x.type.dtype))


def constant(ctx: NodeContext) -> Value:
    names = ("value", "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings", "sparse_value")
    for name in names:
        value = ctx.attribute(name)
        if value is None:
            continue
        if name == "sparse_value":
            return ctx.constant(ctx.state.model.dense(value))
        if name == "value":
            return ctx.constant(value)
        kind = np.float32 if "float" in name else np.int64 if "int" in name else np.object_
        return ctx.constant(np.array(value, kind))
    raise ModelError("Constant without a value", where=ctx.where)


IMPORTERS: Table = {
    ("", "Shape"): shape,
    ("", "Size"): size,
    ("", "ConstantOfShape"): constant_of_shape,
    ("", "Range"): range_,
    ("", "EyeLike"): eye_like,
    ("", "Constant"): constant,
}
