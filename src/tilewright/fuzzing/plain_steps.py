"""Steps that grow a graph by the core operators, for property tests and fuzzing; `random_function(seed)` is a graph of them alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.fuzzing.generator import MAGNITUDE, MAX_RANK, Generator, Known, M, N, draw
from tilewright.graph.node import Function, GraphBuilder, Operator, Parameter, Value
from tilewright.graph.ops import (
    BatchNorm,
    Binary,
    BroadcastTo,
    Cast,
    Concat,
    Contract,
    Convolution,
    Gather,
    Gelu,
    LayerNorm,
    Pad,
    Reduce,
    Reshape,
    Select,
    SizeValue,
    Slice,
    Softmax,
    Transpose,
    Unary,
    WindowReduce,
    constant,
)
from tilewright.graph.ops.control import If
from tilewright.graph.shapes import broadcast_shapes, canonical, is_one
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.ir.types import tensor
from tilewright.support.errors import TypeRuleError


def is_float(value: Value, known: Known) -> bool:
    return value.type.dtype is dtypes.float32


EXACT_UNARY = ("neg", "abs")
JUMPS = ("floor", "ceil", "round", "trunc", "sign")
SMOOTH = ("exp", "tanh", "erf", "sigmoid", "sin")


def unary(s: Generator) -> None:
    x = s.pick(is_float)
    if x is None:
        return
    known = s.pool[x]
    names = (*EXACT_UNARY, *(JUMPS if known.exact else ()), *(SMOOTH if known.bound <= 6 else ()))
    fn = str(s.rng.choice(names))
    s.put(Unary(fn), (x,), 404.0 if fn == "exp" else known.bound, known.exact and fn not in SMOOTH)


def partner(s: Generator, x: Value) -> Value | None:
    """Something that x can be combined with: a value that broadcasts, or a number."""

    def fits(value: Value, known: Known) -> bool:
        if value.type.dtype is not x.type.dtype:
            return False
        try:
            return len(broadcast_shapes(x.shape, value.shape)) <= MAX_RANK
        except TypeRuleError:
            return False

    chance = s.rng.random()
    if chance < 0.35:
        return s.number(x.type.dtype)
    if chance < 0.5 and (static := s.static(x.shape)) is not None:
        kept = [n if s.rng.random() < 0.6 else 1 for n in static]
        return s.constant(s.draw(kept, x.type.dtype), x.type.dtype)
    return s.pick(fits)


def binary(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.dtype.kind != "bool")
    other = None if x is None else partner(s, x)
    if x is None or other is None:
        return
    a, b = (x, other) if s.rng.random() < 0.7 else (other, x)
    exact = s.pool[a].exact and s.pool[b].exact
    bounds = s.pool[a].bound, s.pool[b].bound
    fn = str(s.rng.choice(("add", "sub", "mul", "min", "max", *(("less", "greater_equal", "equal") if exact else ()))))
    if fn in ("mul", "add", "sub") and not a.type.dtype.is_float and sum(bounds) > 1e3:
        return
    bound = bounds[0] * bounds[1] if fn == "mul" else sum(bounds) if fn in ("add", "sub") else max(bounds)
    s.put(Binary(fn), (a, b), bound, exact and bound < 1e4)


def division(s: Generator) -> None:
    x = s.pick(is_float)
    if x is not None:
        divisor = s.constant(np.asarray(s.rng.choice((2.0, 4.0, 3.0, -0.5, 1.0))), dtypes.float32)
        s.put(Binary("div"), (x, divisor), s.pool[x].bound * 2, s.pool[x].exact and s.pool[divisor].bound != 3)


def power(s: Generator) -> None:
    x = s.pick(lambda value, known: is_float(value, known) and known.bound <= 16)
    if x is not None:
        exponent = s.constant(np.asarray(s.rng.choice((0.0, 1.0, 2.0, 3.0))), dtypes.float32)
        s.put(Binary("pow"), (x, exponent), s.pool[x].bound ** 3 + 1, False)


def logical(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.dtype is dtypes.bool_)
    if x is None:
        return
    if s.rng.random() < 0.4:
        s.put(Unary("not"), (x,), 1.0, True)
    elif (other := partner(s, x)) is not None:
        s.put(Binary(str(s.rng.choice(("and", "or", "xor")))), (x, other), 1.0, True)


def select(s: Generator) -> None:
    condition = s.pick(lambda value, known: value.type.dtype is dtypes.bool_)
    a = s.pick()
    b = None if a is None else partner(s, a)
    if condition is None or a is None or b is None:
        return
    try:
        if len(broadcast_shapes(condition.shape, a.shape, b.shape)) <= MAX_RANK:
            s.put(Select(), (condition, a, b), max(s.pool[a].bound, s.pool[b].bound), s.pool[a].exact and s.pool[b].exact)
    except TypeRuleError:
        pass


def cast(s: Generator) -> None:
    x = s.pick(lambda value, known: known.exact and known.bound < 100)
    if x is not None:
        dtype = (dtypes.float32, dtypes.int32, dtypes.int64, dtypes.float16, dtypes.bool_, dtypes.float64)[int(s.rng.integers(6))]
        half = dtypes.float16 in (dtype, x.type.dtype)
        s.put(Cast(dtype), (x,), s.pool[x].bound, not half or s.pool[x].bound < 16)


def reshape(s: Generator) -> None:
    x = s.pick()
    if x is None:
        return
    dims = list(x.shape)
    for _ in range(int(s.rng.integers(1, 3))):
        choice = s.rng.random()
        at = int(s.rng.integers(len(dims) + 1))
        if choice < 0.4 and len(dims) < MAX_RANK:
            dims.insert(at, const(1))
        elif choice < 0.7 and any(map(is_one, dims)):
            dims.remove(const(1))
        elif len(dims) >= 2:
            at = min(at, len(dims) - 2)
            dims[at : at + 2] = [canonical(dims[at] * dims[at + 1])]
    moved(s, Reshape(tuple(dims)), x)


def moved(s: Generator, op: Operator, x: Value, *others: Value) -> None:
    known = s.pool[x]
    s.put(op, (x, *others), known.bound, known.exact)


def transpose(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.rank >= 2)
    if x is not None:
        moved(s, Transpose(tuple(int(axis) for axis in s.rng.permutation(x.type.rank))), x)


def broadcast(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.rank <= 3)
    if x is not None:
        dims = tuple(s.shape(1)[0] if is_one(dim) and s.rng.random() < 0.6 else dim for dim in x.shape)
        moved(s, BroadcastTo((*s.shape(int(s.rng.integers(0, MAX_RANK - x.type.rank))), *dims)), x)


def slice_(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.rank >= 1)
    if x is None:
        return
    parts: list[tuple[Expr, Expr, int]] = []
    for dim in x.shape:
        n = int(dim.value) if dim.is_const else 0
        if n < 1 or s.rng.random() < 0.4:
            parts.append((const(0), dim, 1))
        elif s.rng.random() < 0.2:
            parts.append((const(n - 1), const(n), -1))
        else:
            start = int(s.rng.integers(n))
            parts.append((const(start), const(int(s.rng.integers(1, n - start + 1))), 1))
    starts, sizes, steps = zip(*parts, strict=True)
    moved(s, Slice(starts, sizes, steps), x)


def pad(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.rank >= 1 and value.type.dtype.kind != "bool")
    if x is not None:
        low, high = (tuple(const(int(s.rng.choice((0, 0, 1, 2)))) for _ in x.shape) for _ in range(2))
        value = s.constant(np.zeros(()), x.type.dtype)
        moved(s, Pad(low, high, str(s.rng.choice(("constant", "constant", "edge")))), x, value)


def concat(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.rank >= 1)
    if x is None:
        return
    axis = int(s.rng.integers(x.type.rank))

    def joins(value: Value, known: Known) -> bool:
        pairs = list(zip(value.shape, x.shape))
        return (
            value.type.dtype is x.type.dtype
            and value.type.rank == x.type.rank
            and all(a is b for i, (a, b) in enumerate(pairs) if i != axis)
        )

    values = [x, *(v for _ in range(int(s.rng.integers(1, 3))) if (v := s.pick(joins)) is not None)]
    s.put(Concat(axis), values, max(s.pool[v].bound for v in values), all(s.pool[v].exact for v in values))


def gather(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.rank >= 1 and all(not d.is_const or d.value > 0 for d in value.shape))
    if x is None:
        return
    axis = int(s.rng.integers(x.type.rank))
    n = int(x.shape[axis].value) if x.shape[axis].is_const else 1
    shape = ((), (1,), (2,), (3,))[int(s.rng.integers(4))] if x.type.rank < MAX_RANK else (2,)
    indices = s.g.one(constant(s.rng.integers(-n, n, shape), dtypes.int64))
    moved(s, Gather(axis), x, indices)


def reduce(s: Generator) -> None:
    x = s.pick(lambda value, known: value.type.rank >= 1 and value.type.dtype.is_float)
    if x is None:
        return
    axes = tuple(axis for axis in range(x.type.rank) if s.rng.random() < 0.5) or (0,)
    fn = str(s.rng.choice(("sum", "max", "min")))
    if fn != "sum" and any(is_zero_sized(x.shape[axis]) for axis in axes):
        return
    known = s.pool[x]
    count = float(np.prod([int(x.shape[a].value) if x.shape[a].is_const else 8 for a in axes]))
    small = known.bound * count <= MAGNITUDE
    s.put(Reduce(fn, axes, bool(s.rng.random() < 0.5)), (x,), known.bound * (count if fn == "sum" else 1), known.exact and small)


def is_zero_sized(dim: Expr) -> bool:
    return dim.is_const and dim.value == 0


def softmax(s: Generator) -> None:
    x = s.pick(lambda value, known: is_float(value, known) and value.type.rank >= 1)
    if x is not None:
        s.put(Softmax(int(s.rng.integers(x.type.rank))), (x,), 1.0, False)


def written_softmax(s: Generator) -> None:
    """The softmax as exporters write it."""
    x = s.pick(lambda value, known: is_float(value, known) and value.type.rank >= 1 and known.bound <= 20)
    if x is not None and not any(is_zero_sized(dim) for dim in x.shape):
        axis = x.type.rank - 1
        shifted = s.g.one(Binary("sub"), x, s.g.one(Reduce("max", (axis,), True), x))
        powers = s.g.one(Unary("exp"), shifted)
        s.put(Binary("div"), (powers, s.g.one(Reduce("sum", (axis,), True), powers)), 1.0, False)


def layer_norm(s: Generator) -> None:
    x = s.pick(lambda value, known: is_float(value, known) and value.type.rank >= 1 and not any(map(is_zero_sized, value.shape)))
    if x is not None:
        one, zero = (s.constant(np.asarray(n), dtypes.float32) for n in (1.5, 0.5))
        s.put(LayerNorm(x.type.rank - 1, 0.5), (x, one, zero), 8.0, False)


def gelu(s: Generator) -> None:
    x = s.pick(lambda value, known: is_float(value, known) and known.bound <= 6)
    if x is not None:
        s.put(Gelu(bool(s.rng.random() < 0.5)), (x,), s.pool[x].bound, False)


def contract(s: Generator) -> None:
    x = s.pick(lambda value, known: is_float(value, known) and value.type.rank in (2, 3) and value.shape[-1].is_const)
    if x is None:
        return
    k = int(x.shape[-1].value)
    weights = s.constant(s.draw((k, int(s.rng.integers(1, 4)))), dtypes.float32)
    spec = "ak,kn->an" if x.type.rank == 2 else "bak,kn->ban"
    s.put(Contract(spec, dtypes.float32), (x, weights), s.pool[x].bound * 2 * max(k, 1), s.pool[x].exact)


def convolution(s: Generator) -> None:
    """A convolution, often with a bias and a batch norm after it."""
    x = s.pick(lambda value, known: is_float(value, known) and value.type.rank == 4 and all(d.is_const for d in value.shape[1:]))
    if x is None:
        return
    channels, height, width = (int(dim.value) for dim in x.shape[1:])
    if min(channels, height, width) < 1 or channels > 8:
        return
    outs = int(s.rng.integers(1, 4))
    weights = s.constant(s.draw((outs, channels, 3, 3)), dtypes.float32)
    one = const(1)
    op = Convolution((1, 1), (1, 1), (one, one), (one, one), 1, dtypes.float32)
    y = s.put(op, (x, weights), s.pool[x].bound * 2 * 9 * channels, False)
    if s.rng.random() < 0.5:
        bias = s.constant(s.draw((outs, 1, 1)), dtypes.float32)
        y = s.put(Binary("add"), (y, bias), s.pool[y].bound + 2, s.pool[y].exact)
    if s.rng.random() < 0.6:
        parameters = [s.constant(s.draw((outs,)), dtypes.float32) for _ in range(3)]
        variance = s.constant(np.abs(s.draw((outs,))) + 0.5, dtypes.float32)
        s.put(BatchNorm(1e-5), (y, *parameters, variance), s.pool[y].bound * 4 + 2, False)


def pool(s: Generator) -> None:
    x = s.pick(lambda value, known: is_float(value, known) and value.type.rank == 4 and not any(map(is_zero_sized, value.shape)))
    if x is not None:
        zero = const(0)
        op = WindowReduce(str(s.rng.choice(("max", "sum"))), (1, 1), (2, 1), (1, 1), (zero, zero), (zero, zero))
        moved(s, op, x)


def shape_chain(s: Generator) -> None:
    """Sizes as tensors, computed with as models do."""
    parts = [s.g.one(Reshape((const(1),)), s.g.one(SizeValue(dim))) for dim in s.shape(int(s.rng.integers(1, 4)))]
    joined = s.g.one(Concat(0), *parts)
    s.pool[joined] = Known(16.0, True)
    taken = s.g.one(Gather(0), joined, s.g.one(constant(0, dtypes.int64)))
    s.pool[s.g.one(Binary("mul"), taken, s.g.one(constant(2, dtypes.int64)))] = Known(32.0, True)


def branch(s: Generator) -> None:
    x = s.pick(is_float)
    if x is not None:
        inner = GraphBuilder()
        param = inner.one(Parameter("p", x.type))
        yes = Function("yes", (param,), (inner.one(Unary("neg"), param),))
        no = Function("no", (param,), (inner.one(Unary("abs"), param),))
        known = s.rng.random() < 0.5
        condition = s.g.one(constant(bool(s.rng.random() < 0.5), dtypes.bool_)) if known else s.pick(_is_condition)
        if condition is not None:
            moved_from = s.pool[x]
            s.put(If(yes, no), (condition, x), moved_from.bound, moved_from.exact)


def _is_condition(value: Value, known: Known) -> bool:
    return value.type.dtype is dtypes.bool_ and value.type.rank == 0


STEPS: tuple[Callable[[Generator], None], ...] = (
    unary, binary, binary, binary, division, power, logical, select, cast, reshape, reshape, transpose, transpose, broadcast, slice_,
    slice_, pad, concat, gather, reduce, reduce, softmax, written_softmax, layer_norm, gelu, contract, convolution, convolution, pool,
    shape_chain, branch,
)  # fmt: skip


def random_function(seed: int, steps: int = 24) -> Function:
    """A function of up to four parameters grown by `steps` random steps; the last few values and some others are its results."""
    s = Generator(np.random.default_rng(seed))
    for i in range(int(s.rng.integers(1, 4))):
        rank = int(s.rng.choice((4, 4, 3, 2, 1, 0)))
        dtype = (dtypes.float32, dtypes.float32, dtypes.float32, dtypes.int64, dtypes.bool_)[int(s.rng.integers(5))]
        param = s.g.one(Parameter(f"x{i}", tensor(dtype, s.shape(rank))))
        s.params.append(param)
        s.pool[param] = Known(4.0, True)
    for _ in range(steps):
        STEPS[int(s.rng.integers(len(STEPS)))](s)
    made = [value for value in s.pool if not isinstance(value.op, Parameter)]
    results = made[-3:] + [made[int(i)] for i in s.rng.integers(0, len(made), 2)] if made else list(s.params)
    return Function("main", tuple(s.params), tuple(dict.fromkeys(results)))


def random_inputs(function: Function, seed: int) -> list[np.ndarray]:
    """Inputs for a random function; sizes that no parameter determines cannot occur in them."""
    rng = np.random.default_rng(seed)
    sizes = random_sizes(seed)
    return [draw(rng, [evaluate_int(dim, sizes) for dim in param.shape], param.type.dtype) for param in function.params]


def random_sizes(seed: int) -> dict[Expr, int]:
    """Values of the named sizes, as `random_inputs` of the same seed has them."""
    rng = np.random.default_rng([seed, 1])
    return {N: int(rng.integers(1, 5)), M: int(rng.integers(2, 5))}


def uses_sizes(function: Function) -> bool:
    return bool(free_vars(*(dim for param in function.params for dim in param.shape)))
