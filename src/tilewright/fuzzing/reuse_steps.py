"""Steps that grow a graph by values that are read more than once: by operators of which some fuse and some do not, and by two names."""

from __future__ import annotations

from tilewright.fuzzing.elementwise_steps import floating
from tilewright.fuzzing.growth import ONE, ZERO, Growth, elements
from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, Concat, Contract, Reduce, Reshape, Slice, Softmax, Transpose, Unary
from tilewright.graph.shapes import canonical
from tilewright.ir.expr import const

READERS = ("unary", "binary", "reduce", "transpose", "concat", "part", "softmax", "product", "regrouped")


def made_here(f: Growth) -> Value | None:
    """A value that the graph computes, cheaply or not, for others to read."""
    x = f.pick(lambda value, known: floating(value, known) and value.type.rank >= 1 and known.bound <= 6 and elements(value) < 4000)
    if x is None:
        return None
    if f.chance(0.3):
        axis = f.whole(0, x.type.rank - 1)
        wide = f.picked(x.type.dtype, (*x.shape[:axis], f.among(ONE, const(3), const(5)), *x.shape[axis:]))
        bound = f.known(wide).bound * 5
        return f.put(Reduce("sum", (axis,), False), (wide,), bound, f.known(wide).exact and bound < 100)
    fn = f.among("neg", "abs", "tanh", "exp", "sigmoid")
    plain = fn in ("neg", "abs")
    return f.put(Unary(fn), (x,), 404.0 if fn == "exp" else f.known(x).bound, plain and f.known(x).exact)


def shared(f: Growth) -> None:
    """A value with several readers."""
    x = made_here(f)
    if x is None:
        return
    readers = [_read(f, x) for _ in range(f.whole(2, 4))]
    same = [value for value in readers if value is not None and value.type is x.type]
    if same and f.chance(0.6):  # which come together again
        known = [f.known(x), f.known(same[0])]
        f.put(Binary(f.among("add", "sub", "max")), (same[0], x), sum(k.bound for k in known), False)


def _read(f: Growth, x: Value) -> Value | None:
    """What one more operator computes of x."""
    kind, known, dtype = f.among(*READERS), f.known(x), x.type.dtype
    axis = f.whole(0, x.type.rank - 1)
    if kind == "unary":
        return f.put(Unary(f.among("neg", "abs", "tanh")), (x,), known.bound, False)
    if kind == "binary":
        return f.put(Binary(f.among("add", "mul")), (x, f.s.number(dtype)), known.bound * 4 + 4, False)
    if kind == "reduce":
        return f.put(Reduce(f.among("sum", "sum", "max"), (axis,), f.chance(0.5)), (x,), known.bound * 16, False) if _some(x) else None
    if kind == "transpose":
        return f.put(Transpose(tuple(int(a) for a in f.rng.permutation(x.type.rank))), (x,), known.bound, known.exact)
    if kind == "concat":
        return f.put(Concat(0), f.among((x, x), (x, f.picked(dtype, x.shape))), max(known.bound, 4.0), False)
    if kind == "part":
        first = x.shape[0]
        start = f.whole(0, int(first.value) - 1) if first.is_const and first.value > 1 else 0
        parts = ((const(start), *[ZERO] * (x.type.rank - 1)), (canonical(first - start), *x.shape[1:]), (1,) * x.type.rank)
        return f.put(Slice(*parts), (x,), known.bound, known.exact)
    if kind == "softmax":
        return f.put(Softmax(axis), (x,), 1.0, False)
    if kind == "product" and x.type.rank == 2:
        w = f.operand(dtype, (x.shape[1], const(f.whole(1, 9))))
        return f.put(Contract("mk,kn->mn", dtype), (x, w), known.bound * 64, False)
    return f.put(Reshape((canonical(x.type.count),)), (x,), known.bound, known.exact)


def _some(x: Value) -> bool:
    return all(not dim.is_const or dim.value > 0 for dim in x.shape)


def two_names(f: Growth) -> None:
    """A value and views of it, regrouped or cut, read together at different places by something that might be stored over it."""
    x = made_here(f)
    if x is None:
        return
    known = f.known(x)
    kind = f.among("regrouped", "regrouped", "reversed", "shifted")
    if kind == "regrouped" and x.type.rank >= 2:
        order = (x.type.rank - 1, *range(x.type.rank - 1))
        back = (*range(1, x.type.rank), 0)
        other = f.s.g.one(Transpose(back), f.s.g.one(Reshape(tuple(x.shape[axis] for axis in order)), x))
    elif kind == "reversed" or not (x.shape[0].is_const and x.shape[0].value > 1):
        flat = f.s.g.one(Reshape((canonical(x.type.count),)), x)
        last = canonical(x.type.count - 1)
        if not _some(x):
            return
        other = f.s.g.one(Reshape(x.shape), f.s.g.one(Slice((last,), flat.shape, (-1,)), flat))
    else:
        parts = [f.s.g.one(Slice((const(a), *[ZERO] * (x.type.rank - 1)), (n, *x.shape[1:]), (1,) * x.type.rank), x)
                 for a, n in ((1, canonical(x.shape[0] - 1)), (0, ONE))]  # fmt: skip
        other = f.s.g.one(Concat(0), *parts)
    y = f.put(Binary(f.among("add", "sub", "max")), f.among((x, other), (other, x)), known.bound * 2, known.exact and known.bound < 50)
    if f.chance(0.4):  # so that it is no result itself
        f.put(Reduce(f.among("sum", "max"), (0,), f.chance(0.5)), (y,), f.known(y).bound * 16, False) if _some(y) else None
