"""Importers of control flow: If, Loop, Scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Function, GraphBuilder, Parameter, Value, walk_nodes
from tilewright.graph.ops import (
    Binary,
    BindSize,
    BroadcastTo,
    Cast,
    If,
    Loop,
    RefineShape,
    Reshape,
    Select,
    SizeValue,
    Slice,
    Transpose,
    Unary,
    constant,
)
from tilewright.graph.ops.control import merge_types
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, maximum
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import Shape, TensorType
from tilewright.support.errors import ModelError, UnsupportedOperatorError

ENDLESS = 1 << 31  # exporters write the largest int32 or int64 as the trip count of a `while`


def if_(ctx: NodeContext) -> Sequence[Value]:
    """A condition that is known at compile time picks its branch; else both branches become functions of what either captures."""
    then_graph, else_graph = ctx.require("then_branch"), ctx.require("else_branch")
    condition = ctx.input(0)
    known = ctx.state.contents.scalar(condition)
    if known is not None and known.is_const:
        return ctx.inlined(then_graph if known.value else else_graph)
    condition = ctx.number(condition)
    captures = tuple(dict.fromkeys((condition, *ctx.captured(then_graph), *ctx.captured(else_graph))))
    branches = [ctx.attempted(graph) for graph in (then_graph, else_graph)]
    then_branch, else_branch = (_completed(ctx, i, branches, (then_graph, else_graph), captures) for i in range(2))
    for a, b in zip(then_branch.results, else_branch.results):
        if a.type.rank != b.type.rank:
            if known is not None and known.op is Op.EQ and const(1) in known.args and a.type.rank < b.type.rank:
                return ctx.inlined(then_graph)  # the exporters' form of a squeeze, which asserts that the dim is 1
            raise UnsupportedOperatorError(
                f"If with branches of {a.type.rank} and {b.type.rank} axes is not supported",
                where=ctx.where,
                why="its condition is not known before run time" + ("" if known is None else f": {known!r}"),
                hint="fix or bound the dims that the condition depends on, so that one branch remains" if known is not None else None,
            )
    _, count = merge_types(then_branch, else_branch, ())
    fresh = tuple(ctx.state.fresh_size(f"{ctx.node.output[0]}_dim") for _ in range(count))
    return ctx.emit(If(then_branch, else_branch, fresh), condition, *captures)


def _completed(
    ctx: NodeContext,
    which: int,
    branches: Sequence[Function | ModelError],
    graphs: Sequence[onnx.GraphProto],
    captures: Sequence[Value],
) -> Function:
    """Branch `which` as a function of all `captures`, the first of which is the condition. A branch that is wrong for the shapes at hand
    is taken to be unreachable when the other is right: in its place stands one that fails when it runs."""
    branch, other = branches[which], branches[1 - which]
    if isinstance(branch, ModelError) and isinstance(other, ModelError):
        raise branch
    g = GraphBuilder(origin=ctx.g.origin)
    params = [g.one(Parameter(f"outer_{i}", c.type)) for i, c in enumerate(captures)]
    if isinstance(branch, Function):
        own = dict(zip(ctx.captured(graphs[which]), branch.params, strict=True))
        return Function(branch.name, tuple(own.get(c, p) for c, p in zip(captures, params, strict=True)), branch.results)
    name = ("then", "else")[which]
    taken = g.one(Cast(dtypes.int64), params[0] if which else g.one(Unary("not"), params[0]))
    witness = ctx.state.fresh_size(f"{ctx.node.output[0]}_{name}_branch_fits", 1, 2)
    g.emit(BindSize(witness), taken)
    inner = {v for node in walk_nodes(other.results) for v in node.op.defines} if isinstance(other, Function) else set()
    results = []
    for value in other.results if isinstance(other, Function) else ():
        zero = g.one(constant(np.zeros((), value.type.dtype.numpy)))
        one = g.one(RefineShape((const(1),)), g.one(BroadcastTo((witness,)), zero))
        shape = tuple(const(0) if inner.intersection(free_vars(dim)) else dim for dim in value.shape)
        results.append(g.one(BroadcastTo(shape), g.one(Reshape(()), one)))
    return Function(graphs[which].name or name, tuple(params), tuple(results))


@dataclass(frozen=True, slots=True)
class _Body:
    """An imported loop body: parameters for the carried values, and its results."""

    carried: tuple[Value, ...]
    captured: tuple[Value, ...]
    results: tuple[Value, ...]
    name: str


def loop(ctx: NodeContext) -> Sequence[Value]:
    """ONNX Loop. The carried values' dims that the body changes become sizes; what is found is fed back until nothing changes."""
    graph = ctx.require("body")
    initial = [ctx.input(i) for i in range(2, len(ctx.inputs))]
    counter = ctx.state.fresh_size(f"{ctx.node.name or ctx.node.output[0]}_step")
    captures = ctx.captured(graph)
    trip = _trip_count(ctx)
    fresh: list[Expr] = []
    types = [value.type for value in initial]
    while True:
        body = _loop_body(ctx, graph, counter, types)
        changed = _changed_dims(ctx, types, [r.type for r in body.results[1 : 1 + len(types)]], fresh)
        if changed == types:
            break
        types = changed
    going = ctx.state.contents.scalar(body.results[0])
    starts = ctx.optional(1)
    start_known = None if starts is None else ctx.state.contents.scalar(starts)
    always = going is not None and going.is_const and bool(going.value)
    always = always and (starts is None or (start_known is not None and start_known.is_const and bool(start_known.value)))
    results = body.results[1:] if always else body.results
    _check_stacked(ctx, body, (counter, *fresh), results[len(types) + int(not always) :])
    function = Function(body.name, (*body.carried, *body.captured), results)
    if trip is None and always:
        raise ModelError("Loop never ends: it has neither a trip count nor a condition", where=ctx.where)
    op = Loop(function, len(types), counter, trip, not always, tuple(fresh))
    if always:
        return ctx.emit(op, *initial, *captures)
    condition = ctx.constant(True) if starts is None else ctx.number(starts)
    return ctx.emit(op, condition, *initial, *captures)


def _trip_count(ctx: NodeContext) -> Expr | None:
    given = ctx.optional(0)
    if given is None:
        return None
    known = ctx.state.contents.scalar(given)
    if known is not None:
        trip = canonical(maximum(known, 0))
    else:  # fewer than 0 are none
        trip = ctx.as_size(ctx.binary("max", ctx.number(given), 0), f"{ctx.node.name or ctx.node.output[0]}_trip")
    return None if trip.is_const and trip.value >= ENDLESS else trip


def _loop_body(ctx: NodeContext, graph: onnx.GraphProto, counter: Expr, types: Sequence[TensorType]) -> _Body:
    g = GraphBuilder(origin=ctx.g.origin)
    params = tuple(g.one(Parameter(f"carried_{i}_{graph.name}", type_)) for i, type_ in enumerate(types))
    step, going = g.one(SizeValue(counter)), ctx.constant(True)
    function = ctx.import_graph(graph, (step, going, *params))
    results = list(function.results)
    for i, (value, info) in enumerate(zip(results, graph.output)):
        if i > 0:
            results[i] = _as_declared(g, value, info, types[i - 1].shape if i <= len(types) else None)
    return _Body(params, function.params[2 + len(params) :], tuple(results), function.name)


def _as_declared(g: GraphBuilder, value: Value, info: onnx.ValueInfoProto, before: Shape | None) -> Value:
    """A result with dims that are not known taken from its declaration: for a carried value, where it had that size before."""
    declared = info.type.tensor_type.shape.dim
    if len(declared) != value.type.rank or (before is not None and len(before) != value.type.rank):
        return value
    shape = list(value.shape)
    for axis, dim in enumerate(declared):
        if dim.HasField("dim_value") and not shape[axis].is_const and (before is None or before[axis] is const(dim.dim_value)):
            shape[axis] = const(dim.dim_value)
    return value if tuple(shape) == value.shape else g.one(RefineShape(tuple(shape)), value)


def _changed_dims(ctx: NodeContext, types: Sequence[TensorType], after: Sequence[TensorType], fresh: list[Expr]) -> list[TensorType]:
    """The carried types with dims that one iteration changes replaced by fresh sizes."""
    result = []
    for i, (before, then) in enumerate(zip(types, after, strict=True)):
        if before.dtype is not then.dtype or before.rank != then.rank:
            raise UnsupportedOperatorError(
                f"Loop whose carried value {i} changes from {before!r} to {then!r} is not supported", where=ctx.where
            )
        shape = list(before.shape)
        for axis, (old, new) in enumerate(zip(before.shape, then.shape, strict=True)):
            if old not in fresh and not dims_equal(old, new):
                shape[axis] = ctx.state.fresh_size(f"{ctx.node.name or ctx.node.output[0]}_carried_{i}_{axis}")
                fresh.append(shape[axis])
        result.append(TensorType(before.dtype, tuple(shape)))
    return result


def _check_stacked(ctx: NodeContext, body: _Body, changing: Sequence[Expr], outputs: Sequence[Value]) -> None:
    """Stacked outputs must have one shape in every iteration. changing: sizes of the loop that do not."""
    inner = {size for node in walk_nodes(body.results) for size in node.op.defines} | set(changing)
    for i, value in enumerate(outputs):
        if any(size in inner for size in free_vars(*value.shape)):
            raise UnsupportedOperatorError(
                f"Loop whose output {i} of type {value.type!r} changes its shape with the iterations is not supported", where=ctx.where
            )


def scan(ctx: NodeContext) -> Sequence[Value]:
    """ONNX Scan as a loop over the length of its sequences."""
    if ctx.version < 9:
        return _scan_of_batches(ctx)
    graph = ctx.require("body")
    count = ctx.require("num_scan_inputs")
    states = len(ctx.inputs) - count
    outputs = len(graph.output) - states
    initial = [ctx.input(i) for i in range(states)]
    in_axes = ctx.attribute("scan_input_axes") or [0] * count
    out_axes = ctx.attribute("scan_output_axes") or [0] * outputs
    in_back = ctx.attribute("scan_input_directions") or [0] * count
    out_back = ctx.attribute("scan_output_directions") or [0] * outputs
    sequences = []
    for i in range(count):
        x = ctx.input(states + i)
        axis = ctx.axis(in_axes[i], x.type.rank)
        sequences.append(ctx.transpose(x, (axis, *(a for a in range(x.type.rank) if a != axis))))
    length = sequences[0].shape[0]
    sequences = [ctx.refine_axis(x, 0, length) for x in sequences]
    counter = ctx.state.fresh_size(f"{ctx.node.name or ctx.node.output[0]}_step")
    g = GraphBuilder(origin=ctx.g.origin)
    rows = tuple(g.one(Parameter(f"sequence_{i}_{graph.name}", v.type)) for i, v in enumerate(sequences))
    items = tuple(_item(g, row, length - 1 - counter if back else counter) for row, back in zip(rows, in_back, strict=True))
    outer = {size for value in (*initial, *sequences, *ctx.captured(graph)) for size in free_vars(*value.shape)}
    while True:
        carried = tuple(g.one(Parameter(f"carried_{i}_{graph.name}", v.type)) for i, v in enumerate(initial))
        imported = ctx.import_graph(graph, (*carried, *items))
        kept = [_as_after(ctx, value, after, outer) for value, after in zip(initial, imported.results)]
        if kept == initial:
            break
        initial = kept
    function = Function(imported.name, (*carried, *rows, *imported.params[states + count :]), imported.results)
    results = ctx.emit(Loop(function, states, counter, length), *initial, *sequences, *ctx.captured(graph))
    stacked = [_placed(ctx, v, axis, back) for v, axis, back in zip(results[states:], out_axes, out_back, strict=True)]
    return (*results[:states], *stacked)


def _as_after(ctx: NodeContext, value: Value, after: Value, known: set[Expr]) -> Value:
    """A state of Scan, which keeps its shape, with its dims refined to those after one step, where these are known before."""
    if value.type.rank != after.type.rank:
        return value
    pairs = zip(value.shape, after.shape, strict=True)
    shape = [new if not dims_equal(old, new) and not old.is_const and known.issuperset(free_vars(new)) else old for old, new in pairs]
    return ctx.refine(value, shape)


def _scan_of_batches(ctx: NodeContext) -> Sequence[Value]:
    """Scan of opset 8: lengths [batch] or nothing, states [batch, ...], sequences [batch, time, ...]. A loop over the batch around one over
    the time; past the length of a sequence its states stay and its outputs are zeros."""
    graph, count = ctx.require("body"), ctx.require("num_scan_inputs")
    given = [ctx.input(i) for i in range(1, len(ctx.inputs))]
    states = len(given) - count
    back = ctx.attribute("directions") or [0] * count
    lengths = ctx.optional(0)
    if lengths is not None and any(back):
        raise UnsupportedOperatorError("Scan from the end of sequences that have lengths of their own is not supported", where=ctx.where)
    batch, time = given[states].shape[:2]
    given = [ctx.refine(v, (batch, *([time] if i >= states else []), *v.shape[1 + (i >= states) :])) for i, v in enumerate(given)]
    name = ctx.node.name or ctx.node.output[0]
    place, step = ctx.state.fresh_size(f"{name}_batch"), ctx.state.fresh_size(f"{name}_step")
    g = GraphBuilder(origin=ctx.g.origin)
    inside = [g.one(Parameter(f"item_{i}_{graph.name}", TensorType(v.type.dtype, v.shape[1:]))) for i, v in enumerate(given)]
    end = [] if lengths is None else [g.one(Parameter("length", TensorType(lengths.type.dtype, ())))]
    items = [_item(g, v, time - 1 - step if reverse else step) for v, reverse in zip(inside[states:], back, strict=True)]
    imported = ctx.import_graph(graph, (*inside[:states], *items))
    results = list(imported.results)
    if end:
        lasts = g.one(Binary("less"), g.one(SizeValue(step)), g.one(Cast(dtypes.int64), end[0]))
        before = [*inside[:states], *(g.one(constant(np.zeros((), v.type.dtype.numpy))) for v in results[states:])]
        results = [g.one(Select(), lasts, new, old) for new, old in zip(results, before, strict=True)]
    inner = Function(imported.name, (*inside, *end, *imported.params[len(given) :]), tuple(results))
    g = GraphBuilder(origin=ctx.g.origin)
    whole = [*given, *([] if lengths is None else [ctx.refine(lengths, (batch,))]), *ctx.captured(graph)]
    own = len(inside) + len(end)
    params = [g.one(Parameter(f"whole_{i}_{graph.name}", v.type)) for i, v in enumerate(whole)]
    found = g.emit(Loop(inner, states, step, time), *(_item(g, v, place) for v in params[:own]), *params[own:])
    return ctx.emit(Loop(Function(f"{graph.name}_of_batch", tuple(params), tuple(found)), 0, place, batch), *whole)


def _item(g: GraphBuilder, sequence: Value, position: Expr) -> Value:
    """Element `position` of a sequence on the leading axis."""
    rank = sequence.type.rank
    starts = (position, *[const(0)] * (rank - 1))
    return g.one(Reshape(sequence.shape[1:]), g.one(Slice(starts, (const(1), *sequence.shape[1:]), (1,) * rank), sequence))


def _placed(ctx: NodeContext, value: Value, axis: int, backwards: int) -> Value:
    """A stacked output with its leading axis reversed if wanted, and moved to `axis`."""
    if backwards:
        value = ctx.slice_axis(value, 0, value.shape[0] - 1, value.shape[0], -1)
    rank = value.type.rank
    axis = ctx.axis(axis, rank)
    perm = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    return value if axis == 0 else ctx.one(Transpose(tuple(perm)), value)


IMPORTERS: Table = {
    ("", "If"): if_,
    ("", "Loop"): loop,
    ("", "Scan"): scan,
}
