"""Steps that grow a graph by elementwise operators over all dtypes, casts, and movement."""

from __future__ import annotations

import numpy as np

from tilewright.fuzzing.generator import MAX_RANK, Known
from tilewright.fuzzing.growth import FLOATS, INTEGERS, MOST_ELEMENTS, ZERO, Growth, elements, elements_of, full_range, never_empty
from tilewright.graph.node import Value
from tilewright.graph.ops import (
    Binary,
    Bitcast,
    BroadcastTo,
    Cast,
    Concat,
    Dequantize,
    DynamicQuantize,
    Gelu,
    HardSwish,
    Iota,
    Pad,
    Quantize,
    RandomNormal,
    RandomUniform,
    Reshape,
    Resize,
    Select,
    Slice,
    Softplus,
    Unary,
    constant,
)
from tilewright.graph.ops.resize_axis import COORDINATES, NEAREST
from tilewright.graph.shapes import broadcast_shapes, canonical
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, ceildiv, const
from tilewright.support.errors import TypeRuleError


def floating(value: Value, known: Known) -> bool:
    return value.type.dtype in FLOATS


def integral(value: Value, known: Known) -> bool:
    return value.type.dtype in INTEGERS


def new_parameter(f: Growth) -> None:
    dtype = f.among(*FLOATS, dtypes.float32, dtypes.float32, dtypes.float32, *INTEGERS, dtypes.bool_)
    rank = f.among(0, 1, 1, 2, 2, 3, 4)
    shape = f.s.shape(rank)
    if elements_of(shape) <= MOST_ELEMENTS:
        f.parameter(dtype, shape, full_range(dtype) if dtype.is_integer and f.chance(0.5) else None, 1e30 if dtype.is_integer else 4.0)


# Each with the transformation of its operand that keeps it inside of the function's domain.
UNARY_DOMAINS: dict[str, tuple[str, ...]] = {
    "any": ("sin", "cos", "atan", "tanh", "erf", "sigmoid", "asinh", "neg", "abs"),
    "small": ("exp", "exp2", "expm1", "sinh", "cosh"),
    "positive": ("log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"),
    "unit": ("asin", "acos", "atanh", "tan"),
    "above one": ("acosh",),
}


def math_function(f: Growth) -> None:
    x = f.pick(floating)
    if x is None:
        return
    dtype = x.type.dtype
    kind = f.among(*UNARY_DOMAINS)
    if kind == "small" and f.known(x).bound > 6:
        x = f.s.g.one(Unary("tanh"), x)
    elif kind in ("positive", "above one"):
        x = f.s.g.one(Binary("add"), f.s.g.one(Unary("abs"), x), f.number(0.5 if kind == "positive" else 1.5, dtype))
    elif kind == "unit":
        x = f.s.g.one(Binary("mul"), f.s.g.one(Unary("tanh"), x), f.number(0.75, dtype))
    f.put(Unary(f.among(*UNARY_DOMAINS[kind])), (x,), 404.0, False)


def activation(f: Growth) -> None:
    x = f.pick(lambda value, known: floating(value, known) and known.bound <= 50)
    if x is not None:
        f.put(f.among(Gelu(False), Gelu(True), HardSwish(), Softplus()), (x,), f.known(x).bound + 1, False)


def integer_function(f: Growth) -> None:
    x = f.pick(integral)
    if x is not None:
        f.put(Unary(f.among("neg", "abs", "sign", "bitwise_not")), (x,), 1e30, True)


def integer_arithmetic(f: Growth) -> None:
    x = f.pick(integral)
    other = None if x is None else partner(f, x)
    if x is None or other is None:
        return
    fn = f.among(
        "add", "sub", "mul", "div", "floordiv", "floormod", "fmod", "pow", "min", "max", "bitwise_and", "bitwise_or", "bitwise_xor", "shl",
        "shr", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    )  # fmt: skip
    a, b = (x, other) if f.chance(0.7) else (other, x)
    f.put(Binary(fn), (a, b), 1e30, True)


def float_arithmetic(f: Growth) -> None:
    x = f.pick(floating)
    other = None if x is None else partner(f, x)
    if x is None or other is None:
        return
    fn = f.among("add", "sub", "mul", "div", "min", "max", "atan2", "pow", "remainder")
    a, b = (x, other) if f.chance(0.5) else (other, x)
    if fn == "remainder":  # which jumps where a quotient is whole
        if f.known(a).exact and f.known(b).exact and a.type.dtype is not dtypes.float64:  # of which nothing wider says what is exact
            divisor = f.s.g.one(Binary("add"), f.s.g.one(Unary("abs"), b), f.number(0.5, a.type.dtype))
            f.put(Binary(f.among("fmod", "floormod", "floordiv")), (a, divisor), f.known(a).bound * 2 + 1, f.known(a).bound < 16)
        return
    if fn == "pow":
        base = f.s.g.one(Binary("add"), f.s.g.one(Unary("abs"), a), f.number(0.5, a.type.dtype))
        f.put(Binary("pow"), (base, f.s.g.one(Unary("tanh"), b)), 2 * f.known(a).bound + 2, False)
        return
    known = f.known(a), f.known(b)
    if fn in ("div", "atan2"):
        dtype = a.type.dtype
        b = f.s.g.one(Binary("add"), f.s.g.one(Unary("abs"), b), f.number(0.5, dtype))
    bound = known[0].bound * known[1].bound if fn == "mul" else known[0].bound * 2 + known[1].bound
    narrow = a.type.dtype.bits < 32
    f.put(Binary(fn), (a, b), bound, all(k.exact for k in known) and fn not in ("div", "atan2") and bound < (16 if narrow else 1e4))


def jump(f: Growth) -> None:
    x = f.pick(lambda value, known: floating(value, known) and known.exact)
    if x is not None:
        f.put(Unary(f.among("floor", "ceil", "round", "trunc", "sign")), (x,), f.known(x).bound + 1, True)


def compare(f: Growth) -> None:
    x = f.pick(lambda value, known: known.exact and value.type.dtype.kind != "bool")
    other = None if x is None else partner(f, x, exact=True)
    if x is not None and other is not None:
        f.put(Binary(f.among("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")), (x, other), 1.0, True)


def unusual(f: Growth) -> None:
    """Where infinities and NaNs are, which only predicates see."""
    x = f.pick(floating)
    if x is not None:
        dtype = x.type.dtype
        odd = f.s.g.one(constant(np.asarray(f.among(np.inf, -np.inf, np.nan)), dtype))
        mixed = f.s.g.one(Select(), f.operand(dtypes.bool_, x.shape), x, odd)
        f.put(Unary(f.among("isnan", "isinf")), (mixed,), 1.0, True)


def partner(f: Growth, x: Value, exact: bool = False) -> Value | None:
    """Something that x can be combined with: a value that broadcasts, a number, or an operand along some axes."""
    dtype = x.type.dtype

    def fits(value: Value, known: Known) -> bool:
        if value.type.dtype is not dtype or (exact and not known.exact):
            return False
        try:
            joined = broadcast_shapes(x.shape, value.shape)
        except TypeRuleError:
            return False
        return len(joined) <= MAX_RANK and elements_of(joined) <= MOST_ELEMENTS

    chance = f.rng.random()
    if chance < 0.2:
        return f.s.number(dtype)
    if chance < 0.5:
        axes = [dim if f.chance(0.6) else const(1) for dim in x.shape]
        cut = f.whole(0, len(axes))
        return f.operand(dtype, axes[cut:] if f.chance(0.5) else axes, full_range(dtype) if dtype.is_integer and f.chance(0.5) else None)
    return f.pick(fits)


def choose(f: Growth) -> None:
    x = f.pick()
    other = None if x is None else partner(f, x) if x.type.dtype.kind != "bool" else x
    condition = f.pick(lambda value, known: value.type.dtype is dtypes.bool_)
    if x is None or other is None:
        return
    condition = condition or f.operand(dtypes.bool_, x.shape)
    try:
        joined = broadcast_shapes(condition.shape, x.shape, other.shape)
    except TypeRuleError:
        return
    if len(joined) <= MAX_RANK and elements_of(joined) <= MOST_ELEMENTS:
        f.put(Select(), (condition, x, other), max(f.known(x).bound, f.known(other).bound), f.known(x).exact and f.known(other).exact)


def convert(f: Growth) -> None:
    """Casts between all dtypes. Floats to integers only where they fit and are exact; to unsigned ones only from absolute values."""
    x = f.pick()
    if x is None:
        return
    target = f.among(*FLOATS, *INTEGERS, dtypes.bool_, dtypes.float32)
    source, known = x.type.dtype, f.known(x)
    if source.is_float and not target.is_float:
        if not known.exact or known.bound > 100:
            return
        if target.kind == "uint":
            x = f.s.g.one(Unary("abs"), x)
    if target.is_float and not source.is_float and source.kind != "bool":
        # Large integers are rounded; as floats they would be past all bounds.
        x = f.s.g.one(Binary("floormod"), x, f.number(7, source))
        known = Known(8.0, True)
    exact = known.exact and (target.bits >= 32 or known.bound < 16 or not target.is_float)
    f.put(Cast(target), (x,), known.bound if target.is_float else 1e30 if target.is_integer else 1.0, exact)


def reinterpret(f: Growth) -> None:
    pairs = {
        8: (dtypes.int8, dtypes.uint8),
        16: (dtypes.int16, dtypes.uint16),
        32: (dtypes.int32, dtypes.uint32),
        64: (dtypes.int64, dtypes.uint64),
    }
    x = f.pick(lambda value, known: known.exact and (integral(value, known) or value.type.dtype is dtypes.float32))
    if x is not None:
        f.put(Bitcast(f.among(*pairs[x.type.dtype.bits])), (x,), 1e30, True)


def source(f: Growth) -> None:
    shape = f.s.shape(f.among(0, 1, 2, 3))
    if f.chance(0.5):
        dtype = f.among(dtypes.int64, dtypes.int32, dtypes.float32, dtypes.uint8)
        f.put(Iota(f.s.dim(), dtype), (), 32.0, True)
    elif f.chance(0.5):
        f.put(RandomUniform(shape, f.among(dtypes.float32, dtypes.float64, dtypes.float16), -1.0, 2.0, f.whole(0, 99)), (), 2.0, False)
    else:
        f.put(RandomNormal(shape, f.among(dtypes.float32, dtypes.float64), 0.5, 1.5, f.whole(0, 99)), (), 10.0, False)


def slice_with_steps(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1)
    if x is None:
        return
    parts = []
    for dim in x.shape:
        if f.chance(0.4) or (dim.is_const and dim.value == 0):
            parts.append((ZERO, dim, 1))
        elif not dim.is_const:
            parts.append(f.among((canonical(dim - 1), dim, -1), (ZERO, canonical((dim + 1) // 2), 2), (ZERO, dim, 1)))
        else:
            n, step = int(dim.value), f.among(1, 2, 3, -1, -1, -2, -3)
            start = f.whole(0, n - 1)
            most = (n - 1 - start) // step + 1 if step > 0 else start // -step + 1
            parts.append((const(start), const(f.whole(0 if f.chance(0.1) else 1, most)), step))
    starts, sizes, steps = zip(*parts, strict=True)
    f.put(Slice(starts, sizes, steps), (x,), f.known(x).bound, f.known(x).exact)


def pad_any(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1 and elements(value) < 2000)
    if x is None:
        return
    mode = f.among("constant", "constant", "reflect", "edge", "wrap")
    if mode != "constant" and not never_empty(x):
        return
    low, high = [], []
    for dim in x.shape:
        n = int(dim.value) if dim.is_const else 0
        amounts = [f.among(0, 0, 1, 2, 3, 5), f.among(0, 0, 1, 2, 4)]
        if mode == "constant" and n >= 3 and f.chance(0.2):
            amounts = [-1, f.among(-1, 2)]
        low.append(const(amounts[0]))
        high.append(const(amounts[1]))
    dtype = x.type.dtype
    value = f.number(f.among(0, 1, 3), dtype) if f.chance(0.8) else f.operand(dtype, ())
    f.put(Pad(tuple(low), tuple(high), mode), (x, value), max(f.known(x).bound, 4.0), f.known(x).exact)


def join(f: Growth) -> None:
    """Concatenation of a value with itself, its parts and fresh operands; many at once now and then."""
    x = f.pick(lambda value, known: value.type.rank >= 1 and elements(value) < 2000)
    if x is None:
        return
    axis = f.whole(0, x.type.rank - 1)
    values = [x]
    for _ in range(f.among(1, 2, 3, 5)):
        dim = f.among(const(1), const(2), x.shape[axis], const(0))
        values.append(f.picked(x.type.dtype, (*x.shape[:axis], dim, *x.shape[axis + 1 :])))
    order = [values[int(i)] for i in f.rng.permutation(len(values))]
    f.put(Concat(axis), order, max(f.known(v).bound for v in values), all(f.known(v).exact for v in values))


def regroup(f: Growth) -> None:
    """Reshapes that split and join static axes."""
    x = f.pick(lambda value, known: value.type.rank >= 1)
    if x is None:
        return
    dims = list(x.shape)
    for _ in range(f.whole(1, 3)):
        at = f.whole(0, len(dims) - 1)
        if f.chance(0.5) and dims[at].is_const and len(dims) < MAX_RANK:
            n = int(dims[at].value)
            divisors = [d for d in range(1, n + 1) if n % d == 0] or [1]
            d = f.among(*divisors)
            dims[at : at + 1] = [const(d), const(n // d)]
        elif at + 1 < len(dims):
            dims[at : at + 2] = [canonical(dims[at] * dims[at + 1])]
    f.put(Reshape(tuple(dims)), (x,), f.known(x).bound, f.known(x).exact)


def spread(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank <= 3 and elements(value) < 1000)
    if x is not None:
        dims = tuple(f.s.dim() if dim is const(1) and f.chance(0.6) else dim for dim in x.shape)
        shape = (*f.s.shape(f.whole(0, MAX_RANK - x.type.rank)), *dims)
        if elements_of(shape) <= MOST_ELEMENTS:
            f.put(BroadcastTo(shape), (x,), f.known(x).bound, f.known(x).exact)


NARROW = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int4, dtypes.uint4)

# Interpolation is in float32, whatever the dtype: float64 has nothing to be compared with.
RESIZED = (dtypes.float32, dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.uint8, dtypes.int8)


def quantization(f: Growth) -> None:
    """Scales for all, along an axis, or for blocks of it."""
    x = f.pick(lambda value, known: value.type.dtype is dtypes.float32 and known.exact and known.bound <= 64 and value.type.rank >= 1)
    if x is None:
        return
    if f.chance(0.2):
        if never_empty(x):
            x = f.s.g.one(Binary("add"), x, f.number(0.11, dtypes.float32))  # ranges about 0 have zero points between two integers
            f.put_all(DynamicQuantize(), (x,), Known(255.0, False), Known(4.0, False), Known(255.0, False))
        return
    axis, block = f.whole(0, x.type.rank - 1), 0
    shape: tuple[Expr, ...] = f.among((), (), (x.shape[axis],))
    if f.chance(0.25) and x.type.rank > 1:
        block = f.whole(1, 4)
        shape = (*x.shape[:axis], canonical(ceildiv(x.shape[axis], const(block))), *x.shape[axis + 1 :])
    scale = f.operand(dtypes.float32, shape, lambda rng, dims: np.asarray(rng.choice([0.25, 0.5, 1.0, 2.0], dims)))
    if f.chance(0.15):
        tiny = f.among(dtypes.float8e4m3fn, dtypes.float8e5m2)
        q, zero = f.put(Quantize(axis, block, tiny, f.chance(0.5)), (x, scale), 255.0, True), []
    else:
        dtype = f.among(*NARROW)
        zero = [f.operand(dtype, shape)] if f.chance(0.7) else []
        q = f.put(Quantize(axis, block, dtype), (x, scale, *zero), 255.0, True)
    if f.chance(0.7):
        wide = f.among(dtypes.float32, dtypes.float32, dtypes.float16)
        f.put(Dequantize(axis, block, wide), (q, scale, *zero), 600.0, wide is dtypes.float32)


def resize(f: Growth) -> None:
    """Larger and smaller, by the ratio of the sizes or by scales that are given."""
    x = f.pick(
        lambda value, known: (
            value.type.dtype in RESIZED
            and value.type.rank in (3, 4)
            and elements(value) < 2000
            and never_empty(value)
            and known.bound < 1e6
        )
    )
    if x is None:
        return
    spatial = 2 if x.type.rank == 4 else 1
    before, dims = x.shape[:-spatial], x.shape[-spatial:]
    untouched = (None,) * len(before)
    if not x.type.dtype.is_float or f.chance(0.3):
        # Nearest neighbours of ratios that are not dyadic hang on the last bit of a division.
        sizes = (*before, *(canonical(dim * f.among(1, 2, 4)) for dim in dims))
        op = Resize(sizes, (None,) * x.type.rank, "nearest", f.among("asymmetric", "half_pixel"), f.among(*NEAREST))
    else:
        scale = f.among(1, 2, 2, 3)
        sizes = (*before, *(canonical(dim * scale) for dim in dims))
        scales: tuple[float | None, ...] = (None,) * x.type.rank
        if f.chance(0.4) and all(dim.is_const for dim in dims):
            ratio = f.among(0.4, 0.75, 1.3, 2.5)
            sizes = (*before, *(const(int(dim.value * ratio) or 1) for dim in dims))
            scales = (*untouched, *[ratio] * spatial) if f.chance(0.5) else scales
        mode, coordinate = f.among("linear", "linear", "cubic"), f.among(*(c for c in COORDINATES if c != "tf_crop_and_resize"))
        roi: tuple[float, ...] = ()
        if f.chance(0.2):
            # No place lies exactly on the border, past which the value for what is outside begins.
            coordinate = "tf_crop_and_resize"
            roi = (*[0.0] * len(before), *[f.among(0.13, -0.21)] * spatial, *[1.0] * len(before), *[f.among(0.87, 1.19)] * spatial)
        op = Resize(sizes, scales, mode, coordinate, "floor", f.among(-0.75, -0.5), f.chance(0.2), f.chance(0.3), f.among(0.0, 1.5), roi)
    f.put(op, (x,), f.known(x).bound * 3 + 2, op.mode == "nearest" and f.known(x).exact)
