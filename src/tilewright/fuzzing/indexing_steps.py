"""Steps that grow a graph by indexing, ordering, control flow and results whose size depends on data."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.fuzzing.elementwise_steps import floating, integral
from tilewright.fuzzing.generator import MAX_RANK, Known
from tilewright.fuzzing.growth import ONE, ZERO, Growth, elements, elements_of, never_empty, whole_numbers
from tilewright.graph.node import Function, GraphBuilder, Parameter, Value
from tilewright.graph.ops import (
    Binary,
    Contract,
    CumulativeScan,
    Gather,
    GatherElements,
    GatherNd,
    Loop,
    Reduce,
    Reshape,
    ReverseSequence,
    ScatterElements,
    ScatterNd,
    Slice,
    Sort,
    TopK,
    Unary,
    branch,
    compress,
    constant,
    nonzero,
    scan,
    unique,
)
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import tensor

INDEX_DTYPES = (dtypes.int64, dtypes.int32)


def _indexed(f: Growth) -> Value | None:
    return f.pick(lambda value, known: value.type.rank >= 1 and never_empty(value))


def _least(value: Value, axis: int) -> int:
    dim = value.shape[axis]
    return int(dim.value) if dim.is_const else 1


def gather(f: Growth) -> None:
    x = _indexed(f)
    if x is None:
        return
    axis = f.whole(0, x.type.rank - 1)
    shape = f.s.shape(f.whole(0, min(2, MAX_RANK + 1 - x.type.rank)))
    n = _least(x, axis)
    indices = f.operand(f.among(*INDEX_DTYPES), shape, whole_numbers(-n - 1, n))
    if elements(x) // max(n, 1) * elements_of(shape) < 1 << 14:
        f.put(Gather(axis), (x, indices), f.known(x).bound, f.known(x).exact)


def gather_elements(f: Growth) -> None:
    x = _indexed(f)
    if x is None:
        return
    axis = f.whole(0, x.type.rank - 1)
    n = _least(x, axis)
    shape = [dim if not dim.is_const else const(f.whole(1, int(dim.value))) for dim in x.shape]
    shape[axis] = const(f.whole(1, 6))
    indices = f.operand(f.among(*INDEX_DTYPES), shape, whole_numbers(-n, n - 1))
    f.put(GatherElements(axis), (x, indices), f.known(x).bound, f.known(x).exact)


def gather_nd(f: Growth) -> None:
    x = _indexed(f)
    if x is None:
        return
    batch = f.among(0, 0, 1, 2) if x.type.rank > 2 else f.among(0, x.type.rank - 1)
    depth = f.whole(1, x.type.rank - batch)
    shape = (*x.shape[:batch], *f.s.shape(f.whole(0, 2)), const(depth))
    n = min(_least(x, axis) for axis in range(batch, batch + depth))
    indices = f.operand(f.among(*INDEX_DTYPES), shape, whole_numbers(-n, n - 1))
    if elements(x) * elements_of(shape) < 1 << 16:
        f.put(GatherNd(batch), (x, indices), f.known(x).bound, f.known(x).exact)


def _reduction(f: Growth, x: Value) -> tuple[str, float]:
    if x.type.dtype.kind == "bool":
        return "none", 1.0
    fn = f.among("none", "none", "add", "mul", "min", "max")
    known = f.known(x).bound
    return fn, {"add": known * 4 + 64, "mul": min(known * 4.0**5, 1e30)}.get(fn, max(known, 4.0))


def scatter_elements(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1 and never_empty(value) and elements(value) < 2000)
    if x is None:
        return
    axis = f.whole(0, x.type.rank - 1)
    n = _least(x, axis)
    shape = [dim if not dim.is_const else const(f.whole(1, int(dim.value))) for dim in x.shape]
    shape[axis] = const(f.whole(1, 5))
    indices = f.operand(f.among(*INDEX_DTYPES), shape, whole_numbers(-n, n))
    updates = f.picked(x.type.dtype, shape)
    fn, bound = _reduction(f, x)
    exact = f.known(x).exact and f.known(updates).exact and (fn not in ("mul", "add") or x.type.dtype.is_integer or bound < 1e3)
    f.put(ScatterElements(axis, fn), (x, indices, updates), bound if x.type.dtype.is_float else 1e30, exact and bound < 1e4)


def scatter_nd(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1 and never_empty(value) and elements(value) < 2000)
    if x is None:
        return
    depth = f.whole(1, x.type.rank)
    leading = tuple(const(f.whole(1, 5)) for _ in range(f.whole(0, 1)))
    n = min(_least(x, axis) for axis in range(depth))
    indices = f.operand(f.among(*INDEX_DTYPES), (*leading, const(depth)), whole_numbers(-n, n - 1))
    updates = f.picked(x.type.dtype, (*leading, *x.shape[depth:]))
    fn, bound = _reduction(f, x)
    exact = f.known(x).exact and f.known(updates).exact and bound < 1e3
    f.put(ScatterNd(fn), (x, indices, updates), bound if x.type.dtype.is_float else 1e30, exact)


def ordering(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1 and known.exact and value.type.dtype.kind != "bool" and never_empty(value))
    if x is None:
        return
    axis = f.whole(0, x.type.rank - 1)
    known, n = f.known(x), _least(x, axis)
    op = Sort(axis, f.chance(0.5)) if f.chance(0.4) else TopK(const(f.whole(0 if f.chance(0.05) else 1, n)), axis, f.chance(0.5))
    f.put_all(op, (x,), Known(known.bound, known.exact), Known(100.0, True))


def cumulative(f: Growth) -> None:
    x = f.pick(
        lambda value, known: (
            value.type.rank >= 1 and value.type.dtype.kind != "bool" and known.bound <= (20 if floating(value, known) else 1e30)
        )
    )
    if x is None:
        return
    fn = f.among("sum", "sum", "max", "min", "prod")
    known = f.known(x)
    if fn == "prod" and x.type.dtype.is_float and known.bound > 2:
        return
    if fn in ("max", "min") and x.type.dtype.is_float:
        # An exclusive scan begins with the identity, which is infinite.
        op = CumulativeScan(fn, f.whole(0, x.type.rank - 1), False, f.chance(0.5))
    else:
        op = CumulativeScan(fn, f.whole(0, x.type.rank - 1), f.chance(0.5), f.chance(0.5))
    narrow = x.type.dtype.is_float and x.type.dtype.bits < 32
    f.put(op, (x,), known.bound * 16, known.exact and fn != "prod" and (not narrow or known.bound * 16 < 100))


def reverse_sequence(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 2 and never_empty(value))
    if x is not None:
        batch, time = (int(axis) for axis in f.rng.permutation(x.type.rank)[:2])
        lengths = f.operand(dtypes.int64, (x.shape[batch],), whole_numbers(0, _least(x, time)))
        f.put(ReverseSequence(batch, time), (x, lengths), f.known(x).bound, f.known(x).exact)


# ---- sizes that depend on data


def positions(f: Growth) -> None:
    """Positions of non-zero elements, and something computed from them."""
    x = f.pick(lambda value, known: value.type.rank >= 1 and known.exact and value.type.dtype is not dtypes.bfloat16)
    if x is None:
        return
    found = nonzero(f.s.g, x, f.fresh_size)
    f.s.pool[found] = Known(100.0, True)
    if f.chance(0.5):
        f.put(Reduce("sum", (1,), False), (found,), 1e30, True)
    if f.chance(0.5):
        f.put(Binary("mul"), (found, f.number(3, dtypes.int64)), 300.0, True)


def compressed(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1)
    if x is None:
        return
    axis = f.whole(0, x.type.rank - 1)
    condition = f.operand(dtypes.bool_, (x.shape[axis],))
    y = compress(f.s.g, x, condition, axis, f.fresh_size)
    f.s.pool[y] = f.known(x)
    if x.type.dtype is dtypes.float32:
        f.put(Unary("neg"), (y,), f.known(x).bound, f.known(x).exact)
        if f.chance(0.5):
            f.put(Reduce("sum", (axis,), f.chance(0.5)), (y,), f.known(x).bound * 100, False)
        if f.chance(0.3) and y.type.rank == 2 and y.shape[1].is_const:
            w = f.operand(dtypes.float32, (y.shape[1], const(f.whole(1, 20))))
            f.put(Contract("mk,kn->mn", dtypes.float32), (y, w), f.known(x).bound * 400, False)


def distinct(f: Growth) -> None:
    x = f.pick(
        lambda value, known: (
            known.exact
            and value.type.rank >= 1
            and (integral(value, known) or value.type.dtype is dtypes.float32)
            and elements(value) < 500
        )
    )
    if x is None or not never_empty(x):
        return
    axis = None if f.chance(0.6) else f.whole(0, x.type.rank - 1)
    values = unique(f.s.g, x, axis, f.chance(0.6), f.fresh_size)
    f.s.pool.update(zip(values, (f.known(x), Known(1e3, True), Known(1e3, True), Known(1e3, True)), strict=True))


# ---- control flow


def condition(f: Growth) -> Value:
    found = f.pick(lambda value, known: value.type.dtype is dtypes.bool_ and value.type.rank == 0)
    if found is not None and f.chance(0.7):
        return found
    vector = f.pick(lambda value, known: value.type.dtype is dtypes.bool_ and value.type.rank >= 1)
    if vector is not None:
        return f.put(Reduce(f.among("any", "all"), tuple(range(vector.type.rank)), False), (vector,), 1.0, True)
    return f.parameter(dtypes.bool_, ())


def branching(f: Growth) -> None:
    """A branch, sometimes with results that differ in a dim."""
    x = f.pick(lambda value, known: value.type.dtype is dtypes.float32 and known.bound <= 100)
    if x is None:
        return
    chosen = condition(f)
    inner = GraphBuilder()
    p, q = (inner.one(Parameter(name, x.type)) for name in "pq")
    known = f.known(x)
    yes = [inner.one(Unary("neg"), p), inner.one(Binary("add"), p, q)]
    no = [p if f.chance(0.5) else inner.one(Unary("abs"), q), inner.one(Binary("mul"), p, p)]
    if x.type.rank and x.shape[0].is_const and x.shape[0].value > 1 and f.chance(0.5):
        shape = (canonical(x.shape[0] - 1), *x.shape[1:])
        yes.append(inner.one(Slice((ONE, *[ZERO] * (x.type.rank - 1)), shape, (1,) * x.type.rank), q))
        no.append(q)
    other = f.picked(dtypes.float32, x.shape)
    other = other if f.known(other).bound <= 100 else x  # products of products of results pass all bounds
    functions = Function("yes", (p, q), tuple(yes)), Function("no", (p, q), tuple(no))
    results = branch(f.s.g, chosen, (x, other), *functions, lambda: f.fresh_size("cut"))
    bound = known.bound + f.known(other).bound
    f.s.pool.update({v: Known(bound**2 if bound > 1 else bound, False) for v in results})


def looping(f: Growth) -> None:
    """A loop with carried values, captures and stacked outputs; with a trip count, a condition, or both."""
    x = f.pick(lambda value, known: value.type.dtype is dtypes.float32 and known.bound <= 100 and elements(value) < 2000)
    if x is None:
        return
    counter = f.fresh_size("i")
    conditional = f.chance(0.4)
    trip = f.among(const(0), const(1), const(3), const(5), *f.s.sizes)
    inner = GraphBuilder()
    carried, total, captured = (
        inner.one(Parameter("a", x.type)),
        inner.one(Parameter("n", tensor(dtypes.int64, ()))),
        inner.one(Parameter("c", x.type)),
    )
    half = inner.one(constant(0.5, dtypes.float32))
    after = inner.one(Binary("add"), inner.one(Binary("mul"), carried, half), captured)
    more = inner.one(Binary("add"), total, inner.one(constant(1, dtypes.int64)))
    outputs = [inner.one(Unary("neg"), after)] + ([more] if f.chance(0.5) else [])
    if f.chance(0.4):
        outputs.append(carried)
    going = [inner.one(Binary("less"), more, inner.one(constant(f.whole(0, 4), dtypes.int64)))] if conditional else []
    body = Function("body", (carried, total, captured), (*going, after, more, *outputs))
    capture = f.picked(dtypes.float32, x.shape)
    first = [condition(f)] if conditional else []
    start = f.s.g.one(constant(f.whole(0, 2), dtypes.int64))
    results = f.s.g.emit(Loop(body, 2, counter, trip, conditional), *first, x, start, capture)
    bound = f.known(x).bound + f.known(capture).bound * 2
    knowns = [Known(bound, False), Known(100.0, True), *(Known(max(bound, 100.0), False) for _ in outputs)]
    f.s.pool.update(zip(results, knowns, strict=True))


def scanning(f: Growth) -> None:
    x = f.pick(
        lambda value, known: value.type.dtype is dtypes.float32 and value.type.rank >= 1 and known.bound <= 50 and elements(value) < 2000
    )
    if x is None or x.shape[0] is const(0):
        return
    start = f.picked(dtypes.float32, x.shape[1:])
    name = f"t{f.whole(0, 1 << 30)}"

    def body(
        g: GraphBuilder, carried: Sequence[Value], items: Sequence[Value], captures: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        mixed = g.one(Binary("add"), g.one(Binary("mul"), carried[0], g.one(constant(0.5, dtypes.float32))), items[0])
        return [mixed], [g.one(Unary("tanh"), mixed), items[0]]

    finals, stacked = scan(f.s.g, name, x.shape[0], [start], [x], [], body, f.chance(0.5))
    bound = f.known(start).bound + 2 * f.known(x).bound
    f.s.pool.update({finals[0]: Known(bound, False), stacked[0]: Known(1.0, False), stacked[1]: f.known(x)})


def flattened(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 2)
    if x is not None:
        f.put(Reshape((canonical(x.type.count),)), (x,), f.known(x).bound, f.known(x).exact)
