"""Steps that grow a graph by contractions, convolutions, pooling, reductions, normalisations and recurrent layers."""

from __future__ import annotations

import numpy as np

from tilewright.fuzzing.elementwise_steps import floating
from tilewright.fuzzing.generator import Known
from tilewright.fuzzing.growth import MOST_ELEMENTS, ONE, ZERO, Draw, Growth, elements, elements_of, full_range, never_empty, positive
from tilewright.fuzzing.mask_steps import length, mask_numbers, seen
from tilewright.graph.node import Value
from tilewright.graph.ops import (
    ArgReduce,
    Attention,
    BatchNorm,
    Binary,
    Contract,
    Convolution,
    ConvolutionTranspose,
    GroupNorm,
    Gru,
    InstanceNorm,
    LayerNorm,
    LogSoftmax,
    Lrn,
    Lstm,
    MaxPoolIndices,
    Reduce,
    RmsNorm,
    Rnn,
    Softmax,
    WindowReduce,
    activation,
)
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const
from tilewright.support.errors import TypeRuleError

SPECS = (
    "mk,kn->mn", "mk,kn->mn", "mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->nm", "bmk,bkn->bmn", "bmk,kn->bmn", "bmk,bnk->bmn", "k,kn->n",
    "mk,k->m", "k,k->", "m,n->mn", "m,n->nm", "abmk,abkn->abmn", "bhmd,bhnd->bhmn", "bmhd,bnhd->bhmn", "amk,bkn->abmn", "mab,abn->mn",
    "bkm,bkn->bmn", "bmk,bk->bm", "mk,mk->m", "mn,mn->mn", "mk,n->mn", "bmn,bn->mn", "mak,kn->man", "k,bk->b",
)  # fmt: skip
NARROW_FACTORS = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
WIDE = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 128, 200, 257)


def contraction(f: Growth) -> None:
    spec = f.among(*SPECS)
    left, right = spec.split("->")[0].split(",")
    letters = dict.fromkeys(left + right)
    dims: dict[str, Expr] = {}
    for letter in letters:
        wide = f.among(*WIDE[1:]) if f.chance(0.97) else 0
        dims[letter] = f.s.sizes[f.whole(0, len(f.s.sizes) - 1)] if f.s.sizes and f.chance(0.2) else const(wide)
        if letter in "abh" and dims[letter].is_const:
            dims[letter] = const(f.whole(1, 4))
    dtypes_in, result = _product_dtypes(f)
    if f.chance(0.5):  # take an operand that there is, and make the dims fit
        side = f.among(left, right)
        own = dtypes_in[0] if side is left else dtypes_in[1]
        found = f.pick(lambda value, known: value.type.dtype is own and value.type.rank == len(side) and bounded(value, known))
        if found is not None:
            dims.update(zip(side, found.shape, strict=True))
    shapes = [[dims[letter] for letter in part] for part in (left, right)]
    if max(elements_of(shape) for shape in (*shapes, [dims[c] for c in spec.split("->")[1]])) > 4 * MOST_ELEMENTS:
        return
    if elements_of(list(dims.values())) > 1 << 22:
        return
    operands = [f.picked(dtype, shape, factor_range(f, dtype)) for dtype, shape in zip(dtypes_in, shapes, strict=True)]
    depth = elements_of([dims[c] for c in letters if c not in spec.split("->")[1]])
    bound = f.known(operands[0]).bound * f.known(operands[1]).bound * max(depth, 1)
    y = f.put(Contract(spec, result), operands, bound, all(f.known(v).exact for v in operands) and (bound < 1e5 or result.is_integer))
    epilogue(f, y, -1)


def bounded(value: Value, known: Known) -> bool:
    """Whether products of it with small numbers stay numbers: integers wrap."""
    return known.bound <= 100 or not value.type.dtype.is_float


def factor_range(f: Growth, dtype: DType) -> Draw | None:
    """How the factors of products are drawn: integers mostly over their full range."""
    return full_range(dtype) if dtype.is_integer and f.chance(0.7) else None


def _product_dtypes(f: Growth) -> tuple[tuple[DType, DType], DType]:
    """Dtypes of two operands and the result of a product."""
    if f.chance(0.55):
        return (dtypes.float32, dtypes.float32), dtypes.float32
    if f.chance(0.5):
        return (f.among(*NARROW_FACTORS), f.among(*NARROW_FACTORS)), f.among(dtypes.int32, dtypes.int32, dtypes.int32, dtypes.int64)
    return f.among(
        ((dtypes.float16, dtypes.float16), dtypes.float16),
        ((dtypes.float16, dtypes.float16), dtypes.float32),
        ((dtypes.bfloat16, dtypes.bfloat16), dtypes.bfloat16),
        ((dtypes.float64, dtypes.float64), dtypes.float64),
        ((dtypes.int32, dtypes.int32), dtypes.int32),
        ((dtypes.int64, dtypes.int64), dtypes.int64),
    )


def epilogue(f: Growth, y: Value, channel: int) -> None:
    """Often what follows a product in models: a bias, an activation, a residual."""
    if y.type.rank and f.chance(0.5) and y.type.dtype.is_float:
        shape = [dim if axis == channel % y.type.rank else ONE for axis, dim in enumerate(y.shape)]
        bias = f.operand(y.type.dtype, shape[channel % y.type.rank :])
        y = f.put(Binary("add"), (y, bias), f.known(y).bound + 4, f.known(y).exact)
    if f.chance(0.3) and y.type.dtype.is_float:
        y = f.put(Binary("max"), (y, f.number(0, y.type.dtype)), f.known(y).bound, f.known(y).exact)
    if f.chance(0.2) and y.type.dtype.is_float:
        other = f.picked(y.type.dtype, y.shape)
        f.put(Binary("add"), (y, other), f.known(y).bound + f.known(other).bound, f.known(y).exact and f.known(other).exact)


def convolutions(f: Growth) -> None:
    """One to three spatial axes, groups, depthwise, strides, dilations, padding that differs on both sides."""
    rank = f.among(1, 2, 2, 2, 3)
    (left, right), result = _product_dtypes(f)
    x = f.pick(
        lambda value, known: value.type.dtype is left and value.type.rank == rank + 2 and value.shape[1].is_const and bounded(value, known)
    )
    if x is None or not never_empty(x) or f.chance(0.4):
        spatial = [f.s.dim() if f.chance(0.3) else const(f.among(1, 3, 5, 7, 8, 12, 14, 17)) for _ in range(rank)]
        shape = (f.s.dim(), const(f.among(1, 2, 3, 4, 6, 8, 16, 24, 32, 64)), *spatial)
        if elements_of(shape) > MOST_ELEMENTS // 2:
            return
        x = f.parameter(left, shape, factor_range(f, left))
    if not never_empty(x) or elements(x) > MOST_ELEMENTS // 2:
        return
    channels = int(x.shape[1].value)
    groups = f.among(1, 1, 1, channels, *(g for g in (2, 3, 4) if channels % g == 0))
    per_group = channels // groups
    outs = groups * f.among(1, 1, 2, 3, 5, 8) if groups > 1 else f.among(1, 2, 3, 5, 8, 16, 17, 32, 48, 64)
    kernel, strides, dilations, low, high = [], [], [], [], []
    for dim in x.shape[2:]:
        taps, stride, dilation = f.among(1, 1, 2, 3, 3, 5), f.among(1, 1, 2, 3), f.among(1, 1, 1, 2)
        before, after = f.among(0, 1, 1, 2), f.among(0, 1, 1, 2)
        least = int(dim.value) if dim.is_const else 1
        if least + before + after < (taps - 1) * dilation + 1:
            taps = 1
        kernel.append(const(taps))
        strides.append(stride)
        dilations.append(dilation)
        low.append(const(before))
        high.append(const(after))
    # More output channels or taps than this only take time.
    if outs * per_group * elements_of(kernel) * elements(x) // channels > 1 << 21:
        return
    amounts = (tuple(strides), tuple(dilations), tuple(low), tuple(high))
    terms = per_group * elements_of(kernel)
    if f.chance(0.2):
        shape = (const(channels), const(outs // groups), *kernel)
        weights = f.operand(right, shape, factor_range(f, right))
        extra = tuple(f.whole(0, stride - 1) for stride in strides)
        op: Convolution | ConvolutionTranspose = ConvolutionTranspose(*amounts, extra, groups, result)
        terms = channels * elements_of(kernel)
    else:
        weights = f.operand(right, (const(outs), const(per_group), *kernel), factor_range(f, right))
        op = Convolution(*amounts, groups, result)
    try:
        op.infer((x.type, weights.type))
    except TypeRuleError:
        return
    bound = f.known(x).bound * f.known(weights).bound * terms
    direct = max(strides) > 1 or all(dim is ONE for dim in kernel) or result is not dtypes.float32  # else Winograd's algorithm may round
    exact = direct and f.known(x).exact and f.known(weights).exact and (bound < 1e5 or result.is_integer)
    y = f.put(op, (x, weights), bound, exact)
    if result is dtypes.float32 and f.chance(0.4) and y.type.rank >= 2:
        y = _batch_norm(f, y)
    epilogue(f, y, 1)


def _batch_norm(f: Growth, x: Value) -> Value:
    shape = (x.shape[1],)
    dtype = x.type.dtype
    parameters = [f.operand(dtype, shape), f.operand(dtype, shape), f.operand(dtype, shape), f.operand(dtype, shape, positive)]
    return f.put(BatchNorm(1e-3), (x, *parameters), f.known(x).bound * 8 + 8, False)


def pooling(f: Growth) -> None:
    rank = f.among(1, 2, 2, 3)
    x = f.pick(lambda value, known: value.type.dtype.kind != "bool" and value.type.rank >= rank and never_empty(value))
    if x is None:
        return
    window, strides, dilations, low, high = [], [], [], [], []
    for dim in x.shape[x.type.rank - rank :]:
        taps, dilation = f.among(1, 2, 2, 3), f.among(1, 1, 1, 2)
        before, after = f.among(0, 1, 1, 2), f.among(0, 1, 1, 2)
        least = int(dim.value) if dim.is_const else 1
        dilation = dilation if dilation <= least else 1  # else a window may lie in the padding alone, whose maximum is infinite
        if least + before + after < (taps - 1) * dilation + 1:
            taps = 1
        window.append(taps)
        strides.append(f.among(1, 2, 3))
        dilations.append(dilation)
        low.append(const(min(before, taps - 1)))
        high.append(const(min(after, taps - 1)))
    parts = (tuple(window), tuple(strides), tuple(dilations), tuple(low), tuple(high))
    known = f.known(x)
    if f.chance(0.2) and known.exact:
        f.put_all(MaxPoolIndices(*parts, f.chance(0.3)), (x,), known, Known(1e30, True))
        return
    fn = f.among("max", "max", "sum", "min")
    taps = int(np.prod(window))
    f.put(WindowReduce(fn, *parts), (x,), known.bound * (taps if fn == "sum" else 1), known.exact and known.bound * taps < 1e4)


def reduction(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1)
    if x is None:
        return
    axes = tuple(axis for axis in range(x.type.rank) if f.chance(0.5)) or (f.whole(0, x.type.rank - 1),)
    dtype, known = x.type.dtype, f.known(x)
    count = float(elements_of([x.shape[a] for a in axes]))
    if dtype.kind == "bool":
        f.put(Reduce(f.among("any", "all"), axes, f.chance(0.5)), (x,), 1.0, True)
        return
    fn = f.among("sum", "sum", "max", "min", "prod")
    if fn != "sum" and not never_empty(x):
        return
    if fn == "prod" and dtype.is_float and min(known.bound, 1e4) ** min(count, 50.0) > 1e4:
        return
    small = known.bound * count <= (100 if dtype.is_float and dtype.bits < 32 else 1e4)
    exact = known.exact and (small or dtype.is_integer) and (fn != "prod" or dtype.is_integer)
    f.put(Reduce(fn, axes, f.chance(0.5)), (x,), known.bound * (count if fn == "sum" else 1) if fn != "prod" else 1e4, exact)


def position_of_extreme(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1 and known.exact and value.type.dtype.kind != "bool" and never_empty(value))
    if x is not None:
        f.put(ArgReduce(f.among("max", "min"), f.whole(0, x.type.rank - 1), f.chance(0.5), f.chance(0.5)), (x,), 64.0, True)


def normalized(f: Growth) -> None:
    x = f.pick(lambda value, known: floating(value, known) and value.type.rank >= 1 and never_empty(value) and known.bound <= 1e3)
    if x is None:
        return
    rank, dtype = x.type.rank, x.type.dtype
    kinds = ["softmax", "log_softmax", "layer", "rms"]
    if rank >= 2:
        kinds += ["batch", "lrn"]
    if rank >= 3:
        kinds.append("instance")
    if rank >= 2 and x.shape[1].is_const:
        kinds.append("group")
    kind = f.among(*kinds)
    axis, epsilon = f.whole(0, rank - 1), f.among(0.5, 0.5, 1e-2, 1e-5)
    trailing = [dim if f.chance(0.8) else ONE for dim in x.shape[axis:]]
    if kind == "softmax":
        f.put(Softmax(axis), (x,), 1.0, False)
    elif kind == "log_softmax":
        f.put(LogSoftmax(axis), (x,), 2e3, False)
    elif kind == "layer":
        f.put(LayerNorm(axis, epsilon), (x, f.operand(dtype, trailing), f.operand(dtype, trailing)), 64.0, False)
    elif kind == "rms":
        f.put(RmsNorm(axis, epsilon), (x, f.operand(dtype, trailing)), 64.0, False)
    elif kind == "batch":
        _batch_norm(f, x)
    elif kind == "lrn":
        f.put(Lrn(f.among(1, 2, 3, 5), f.among(0.5, 1e-4), f.among(0.75, 0.5, 1.0), f.among(1.0, 2.0)), (x,), f.known(x).bound, False)
    elif kind == "instance":
        f.put(InstanceNorm(epsilon), (x, f.operand(dtype, x.shape[1:2]), f.operand(dtype, x.shape[1:2])), 64.0, False)
    else:
        channels = int(x.shape[1].value)
        groups = f.among(*(g for g in range(1, channels + 1) if channels % g == 0))
        f.put(GroupNorm(groups, epsilon), (x, f.operand(dtype, x.shape[1:2]), f.operand(dtype, x.shape[1:2])), 64.0, False)


def attention(f: Growth) -> None:
    dtype = f.among(dtypes.float32, dtypes.float32, dtypes.float16, dtypes.bfloat16)
    batch = [const(f.whole(1, 3)) for _ in range(f.whole(0, 2))]
    queries, keys = (length(f), length(f)) if f.chance(0.4) else (f.s.dim(), f.s.dim())
    if elements_of((*batch, queries, keys)) > 4 * MOST_ELEMENTS or any(dim.is_const and dim.value == 0 for dim in (queries, keys)):
        return
    depth, width = const(f.among(1, 4, 8, 16, 20)), const(f.among(1, 4, 8, 17))
    q = f.picked(dtype, (*batch, queries, depth))
    k = f.picked(dtype, (*batch, keys, depth))
    v = f.picked(dtype, (*batch, keys, width))
    if not all(never_empty(x) for x in (q, k, v)):
        return
    shape = f.among((queries, keys), (ONE, keys), ())
    mask = []
    if f.chance(0.4):
        # Every query sees the first key: one that may see nothing gives NaN.
        kept = f.operand(dtypes.bool_, shape, seen)
        mask = [f.among(kept, mask_numbers(f, kept, dtype, f.among(-1e4, -np.inf)), f.operand(dtype, shape))]
    past = f.among(ZERO, ZERO, const(3), *f.s.sizes)
    op = Attention(f.among(0.25, 0.25, 1.0), f.chance(0.3), f.among(0.0, 0.0, 2.0), past)
    f.put(op, (q, k, v, *mask), f.known(v).bound, False)


# What gates and states may be computed by, so that states stay small: all where what enters is clipped.
GATES, STATES = ("sigmoid", "sigmoid", "hardsigmoid"), ("tanh", "tanh", "scaledtanh", "softsign", "hardsigmoid")
UNBOUNDED = ("relu", "affine", "leakyrelu", "elu", "softplus")


def recurrent(f: Growth) -> None:
    kind = f.among("lstm", "gru", "rnn")
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    direction = f.among("forward", "reverse", "bidirectional")
    d = 2 if direction == "bidirectional" else 1
    hidden = f.among(1, 2, 3, 5, 8, 16)
    steps, batch, width = f.s.dim(), f.s.dim(), f.among(1, 2, 3, 8)
    if (steps.is_const and steps.value > 12) or (batch.is_const and batch.value > 12):
        return
    dtype = f.among(dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16)
    x = f.picked(dtype, (steps, batch, const(width)))
    if f.known(x).bound > 8 or not never_empty(x):
        return
    operands = [x, f.operand(dtype, (d, gates * hidden, width)), f.operand(dtype, (d, gates * hidden, hidden))]
    given = []
    if f.chance(0.7):
        given.append("bias")
        operands.append(f.operand(dtype, (d, 2 * gates * hidden)))
    if f.chance(0.3):
        given.append("lengths")
        # Lengths past the sequence mean its whole length in no definition, so they stay within.
        operands.append(f.operand(dtypes.int32, (batch,), lambda rng, shape: np.ones(shape)))
    for name, shape in (("initial_h", (d, batch, hidden)), ("initial_c", (d, batch, hidden)), ("peephole", (d, 3 * hidden))):
        if f.chance(0.4) and (kind == "lstm" or name == "initial_h"):
            given.append(name)
            operands.append(f.operand(dtype, shape))
    clip = f.among(None, None, 0.75, 2.0)
    states = STATES if clip is None else (*STATES, *UNBOUNDED)
    roles = {"lstm": (GATES, states, states), "gru": (GATES, states), "rnn": (states,)}[kind]
    acts = tuple(activation(f.among(*names)) for _ in range(d) for names in roles)
    known = Known(4.0 if clip is None else 1e3, False)
    if kind == "lstm":
        f.put_all(Lstm(hidden, direction, acts, clip, f.chance(0.2), tuple(given)), operands, known, known, known)
    elif kind == "gru":
        f.put_all(Gru(hidden, direction, acts, clip, f.chance(0.5), tuple(given)), operands, known, known)
    else:
        f.put_all(Rnn(hidden, direction, acts, clip, tuple(given)), operands, known, known)
