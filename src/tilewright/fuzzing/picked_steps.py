"""Steps that grow a graph by slices that an index known only while running picks, and by products that read them.

Such a slice is read where it lies, of a constant in a layout of its own. What it is picked of is read otherwise as well, stored over,
carried around a loop, or a slice itself.
"""

from __future__ import annotations

from tilewright.fuzzing.elementwise_steps import floating
from tilewright.fuzzing.growth import ONE, Growth, elements, never_empty, whole_numbers
from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, Cast, Contract, Dequantize, Gather, GatherNd, Reduce, Reshape, Transpose, Unary
from tilewright.graph.shapes import is_one
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const

INDEX_DTYPES = (dtypes.int64, dtypes.int32)


def picked_slices(f: Growth) -> None:
    """A product by one or two slices, of one index or two, of one stack or two."""
    index = _index(f)
    stack, slices = _stack(f)
    x = None
    for _ in range(f.whole(1, 3)):
        if f.chance(0.3):
            index = _index(f)
        if f.chance(0.3):
            stack, slices = _stack(f)
        own = _slice(f, stack, slices, index)
        x = _read(f, own, index, x)
    if f.chance(0.3) and never_empty(stack):  # the whole of it is read as well
        f.put(Reduce("max", (0,), f.chance(0.5)), (stack,), f.known(stack).bound, f.known(stack).exact)
    if f.chance(0.2) and floating(stack, f.known(stack)):  # after something that may be stored over it
        f.put(Unary(f.among("neg", "tanh")), (stack,), max(1.0, f.known(stack).bound), False)


def _index(f: Growth) -> Value:
    """One integer, as a tensor of any rank, of a call or computed; often outside of what it is to be an index of."""
    found = f.pick(lambda value, known: known.exact and value.type.dtype in INDEX_DTYPES and all(map(is_one, value.shape)))
    if found is not None and f.chance(0.6):
        return f.put(Binary("add"), (found, f.s.number(found.type.dtype)), 16.0, True) if f.chance(0.3) else found
    return f.parameter(f.among(*INDEX_DTYPES), f.among((), (), (1,), (1, 1)), whole_numbers(-6, 6))


def _stack(f: Growth) -> tuple[Value, int]:
    """Slices one after the other, and the axis that counts them: a constant, an operand of a call, or what the graph computes."""
    value = f.pick(lambda value, known: floating(value, known) and value.type.rank >= 2 and never_empty(value) and known.bound <= 20)
    if value is not None and f.chance(0.4):
        if f.chance(0.5):
            value = f.put(Unary("neg"), (value,), f.known(value).bound, f.known(value).exact)
        return value, f.among(0, 0, next((axis for axis, dim in enumerate(value.shape) if not is_one(dim)), 0), value.type.rank - 1)
    count, (k, n) = const(f.among(1, 2, 3, 5)), (f.among(f.s.dim(), const(f.whole(1, 40))) for _ in range(2))
    axis = f.among(0, 0, 0, 1)
    shape: tuple[Expr, ...] = (count, k, n) if axis == 0 else f.among((ONE, count, k, n), (k, count, n))
    dtype = f.among(dtypes.float32, dtypes.float32, dtypes.float32, dtypes.float16, dtypes.float64, dtypes.int8, dtypes.uint8, dtypes.int4)
    return f.operand(dtype, shape), axis


def _slice(f: Growth, stack: Value, axis: int, index: Value) -> Value:
    known = f.known(stack)
    if axis == 0 and index.type.rank and f.chance(0.2):
        return f.put(GatherNd(), (stack, index), known.bound, known.exact)
    return f.put(Gather(axis), (stack, index), known.bound, known.exact)


def _read(f: Growth, own: Value, index: Value, x: Value | None) -> Value | None:
    """What a product computes of x and a slice, or of the slice alone."""
    known = f.known(own)
    dims = [dim for dim in own.shape if not is_one(dim)]
    if len(dims) != 2 or elements(own) > 4000:
        if floating(own, known) and f.chance(0.5):
            f.put(Unary("abs"), (own,), known.bound, known.exact)
        return None
    w = f.s.g.one(Reshape(tuple(dims)), own)
    dtype = w.type.dtype
    if dtype.is_integer:
        w, bound = _dequantized(f, w, index), known.bound * 8
    elif f.chance(0.2):
        w, bound = f.s.g.one(Cast(f.among(dtypes.float32, dtypes.float64)), w), known.bound
    else:
        bound = known.bound
    if f.chance(0.3):
        w, dims = f.s.g.one(Transpose((1, 0)), w), dims[::-1]
    wanted = w.type.dtype
    if x is None or x.type.dtype is not wanted or x.type.rank != 2 or x.shape[1] is not dims[0]:
        x = f.picked(wanted, (f.among(ONE, const(2), const(7), f.s.dim()), dims[0]))
    length = int(dims[0].value) if dims[0].is_const else 64
    y = f.put(Contract("mk,kn->mn", wanted), (x, w), f.known(x).bound * bound * length, False)
    return y if y.type.dtype is wanted else None


def _dequantized(f: Growth, codes: Value, index: Value) -> Value:
    """A matrix of codes times scales, picked too or the same for every slice: one, one for each column, or one for each block."""
    rows, columns = codes.shape
    kind = f.among("one", "columns", "blocks") if rows.is_const else f.among("one", "columns")
    block = f.whole(2, 9) if kind == "blocks" else 0
    shape: tuple[Expr, ...] = () if kind == "one" else (columns,) if kind == "columns" else (const(-(-int(rows.value) // block)), columns)
    scale = f.operand(dtypes.float32, (const(f.among(1, 2, 3, 5)), *shape)) if f.chance(0.6) else f.operand(dtypes.float32, shape)
    if scale.type.rank > len(shape):
        scale = f.s.g.one(Reshape(shape), f.s.g.one(Gather(0), scale, index))
    return f.s.g.one(Dequantize(0 if block else 1, block, dtypes.float32), codes, scale)
