"""Steps that grow a graph by what models are made of: blocks of convolutional networks and of transformers, with variations."""

from __future__ import annotations

import numpy as np

from tilewright.fuzzing.growth import MOST_ELEMENTS, ONE, ZERO, Growth, elements_of, positive
from tilewright.graph.node import Operator, Value
from tilewright.graph.ops import (
    BatchNorm,
    Binary,
    Cast,
    Concat,
    Contract,
    Convolution,
    ConvolutionTranspose,
    Gelu,
    HardSwish,
    LayerNorm,
    Pad,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    Transpose,
    Unary,
    WindowReduce,
)
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const

F32 = dtypes.float32
OF_MODELS = (F32, F32, F32, F32, F32, F32, dtypes.float16, dtypes.bfloat16, dtypes.float64)
TINY = (
    dtypes.float8e4m3fn, dtypes.float8e5m2, dtypes.float8e4m3fnuz, dtypes.float8e5m2fnuz, dtypes.float4e2m1, dtypes.int4, dtypes.uint4,
    dtypes.int2, dtypes.uint2,
)  # fmt: skip
CHANNELS = (1, 3, 4, 8, 12, 16, 17, 24, 32, 40, 48, 64)


def weights(f: Growth, dtype: DType, *shape: int) -> Value:
    """A constant that keeps results small; now and then a parameter."""
    fan = max(int(np.prod(shape[1:])), 1)
    if f.chance(0.1):
        return f.parameter(dtype, shape, lambda rng, dims: rng.normal(0, 1 / np.sqrt(fan), dims))
    return f.s.constant(f.rng.normal(0, 1 / np.sqrt(fan), shape), dtype)


def vector(f: Growth, dtype: DType, n: int) -> Value:
    return f.s.constant(f.s.draw((n,), dtype), dtype)


def emit(f: Growth, op: Operator, *inputs: Value) -> Value:
    return f.put(op, inputs, 50.0, False)


def vision(f: Growth) -> None:
    """A chain of convolutions, depthwise ones, norms, activations, pools, residuals and concatenations, and sometimes a dense end."""
    size = f.among(const(5), const(8), const(14), *f.s.sizes)
    shape = (f.among(ONE, const(2), *f.s.sizes), const(f.among(*CHANNELS)), size, f.among(size, const(7)))
    if elements_of(shape) > MOST_ELEMENTS:
        return
    dtype = f.among(*OF_MODELS)
    x = f.parameter(dtype, shape)
    earlier = [x]
    for _ in range(f.whole(1, 5)):
        x = _vision_block(f, x, earlier)
        earlier.append(x)
    if f.chance(0.5):
        pooled = emit(f, Reduce("sum", (2, 3), f.chance(0.5)), x)
        flat = emit(f, Reshape(x.shape[:2]), pooled)
        channels, outs = int(x.shape[1].value), f.among(1, 5, 10, 33)
        emit(f, Contract("mk,kn->mn", dtype), flat, weights(f, dtype, channels, outs))


def _vision_block(f: Growth, x: Value, earlier: list[Value]) -> Value:
    channels, dtype = int(x.shape[1].value), x.type.dtype
    kind = f.among("conv", "conv", "conv", "depthwise", "grouped", "pool", "add", "concat", "up", "shuffle", "gate", "crop")
    if kind in ("conv", "depthwise", "grouped"):
        groups = {"conv": 1, "depthwise": channels, "grouped": f.among(*(g for g in (1, 2, 3, 4, 8) if channels % g == 0))}[kind]
        outs = channels if kind == "depthwise" else groups * (f.among(*CHANNELS) // groups or 1)
        taps, stride, dilation = f.among(1, 1, 3, 3, 5), f.among(1, 1, 1, 2), f.among(1, 1, 1, 2)
        margin = const((taps - 1) * dilation // 2)
        high = margin if f.chance(0.8) else const(margin.value + 1)
        op = Convolution((stride,) * 2, (dilation,) * 2, (margin,) * 2, (high,) * 2, groups, dtype)
        return _after_convolution(f, emit(f, op, x, weights(f, dtype, outs, channels // groups, taps, taps)), earlier)
    if kind == "up":
        if f.chance(0.5):
            outs = f.among(1, 4, 8, 16)
            doubled = ConvolutionTranspose((2, 2), (1, 1), (ZERO,) * 2, (ZERO,) * 2, (0, 0), 1, dtype)
            return _after_convolution(f, emit(f, doubled, x, weights(f, dtype, channels, outs, 2, 2)), earlier)
        if elements_of(x.shape) * 4 > MOST_ELEMENTS:
            return x
        sizes = (*x.shape[:2], *(canonical(dim * 2) for dim in x.shape[2:]))
        return emit(f, Resize(sizes, (None,) * 4, f.among("nearest", "linear"), "asymmetric", nearest="floor"), x)
    if kind == "pool":
        fn, taps = f.among("max", "sum"), f.among(2, 3)
        around = (const(taps // 2),) * 2
        return emit(f, WindowReduce(fn, (taps,) * 2, (f.among(1, 2),) * 2, (1, 1), around, around), x)
    others = [v for v in earlier if v.shape == x.shape]
    if kind == "add" and others:
        return emit(f, Binary("add"), x, f.among(*others))
    if kind == "concat":
        fitting = [v for v in earlier if v.shape[0] is x.shape[0] and v.shape[2:] == x.shape[2:]]
        if fitting and elements_of(x.shape) * 2 < MOST_ELEMENTS:
            return emit(f, Concat(1), x, f.among(*fitting))
    if kind == "shuffle" and channels % 2 == 0:
        split = emit(f, Reshape((x.shape[0], const(2), const(channels // 2), *x.shape[2:])), x)
        return emit(f, Reshape(x.shape), emit(f, Transpose((0, 2, 1, 3, 4)), split))
    if kind == "gate":
        pooled = emit(f, Reduce("sum", (2, 3), True), x)
        scaled = emit(
            f,
            Unary("tanh"),
            emit(f, Convolution((1, 1), (1, 1), (ZERO,) * 2, (ZERO,) * 2, 1, dtype), pooled, weights(f, dtype, channels, channels, 1, 1)),
        )
        return emit(f, Binary("mul"), x, scaled)
    if kind == "crop" and channels >= 4:
        part = const(f.whole(1, channels - 1))
        start = const(f.whole(0, channels - int(part.value)))
        return emit(f, Slice((ZERO, start, ZERO, ZERO), (x.shape[0], part, *x.shape[2:]), (1,) * 4), x)
    if f.chance(0.3):
        return emit(f, Pad((ZERO, ZERO, ONE, ZERO), (ZERO, ZERO, ONE, const(2)), "constant"), x, f.number(0, dtype))
    return x


def _after_convolution(f: Growth, y: Value, earlier: list[Value]) -> Value:
    channels, dtype = int(y.shape[1].value), y.type.dtype
    if f.chance(0.4):
        y = emit(f, Binary("add"), y, f.s.constant(f.s.draw((channels, 1, 1), dtype), dtype))
    if f.chance(0.5):
        variance = f.s.constant(positive(f.rng, (channels,)), dtype)
        y = emit(f, BatchNorm(1e-3), y, vector(f, dtype, channels), vector(f, dtype, channels), vector(f, dtype, channels), variance)
    others = [v for v in earlier if v.shape == y.shape]
    if others and f.chance(0.5):
        y = emit(f, Binary("add"), y, f.among(*others))
    kind = f.among("relu", "relu", "clip", "swish", "hard swish", "leaky", "none")
    if kind == "relu":
        return emit(f, Binary("max"), y, f.number(0, dtype))
    if kind == "clip":
        return emit(f, Binary("min"), emit(f, Binary("max"), y, f.number(0, dtype)), f.number(6, dtype))
    if kind == "swish":
        return emit(f, Binary("mul"), y, emit(f, Unary("sigmoid"), y))
    if kind == "hard swish":
        return emit(f, HardSwish(), y)
    if kind == "leaky":
        return emit(f, Binary("max"), y, emit(f, Binary("mul"), y, f.number(0.25, dtype)))
    return y


def transformer(f: Growth) -> None:
    """Self-attention as exporters write it, and the dense layers after it."""
    heads, depth = f.among(1, 2, 3, 4), f.among(1, 4, 8, 16)
    width = heads * depth
    batch, length = f.among(ONE, const(2), *f.s.sizes), f.among(ONE, const(5), const(9), const(16), *f.s.sizes)
    if elements_of((batch, const(heads), length, length)) > 2 * MOST_ELEMENTS:
        return
    dtype = f.among(*OF_MODELS)
    x = f.parameter(dtype, (batch, length, const(width)))
    for _ in range(f.whole(1, 2)):
        y = _norm(f, x, width) if f.chance(0.5) else x
        q, k, v = (_heads(f, y, batch, length, heads, depth) for _ in range(3))
        if f.chance(0.6):
            scores = emit(f, Contract("abmk,abnk->abmn", dtype), q, k)
        else:
            scores = emit(f, Contract("abmk,abkn->abmn", dtype), q, emit(f, Transpose((0, 1, 3, 2)), k))
        scores = emit(f, Binary(f.among("mul", "div")), scores, f.number(f.among(0.5, 2.0), dtype))
        if f.chance(0.5):
            scores = emit(
                f, Binary("add"), scores, f.operand(dtype, f.among((length, length), (batch, ONE, ONE, length), (ONE, ONE, length, length)))
            )
        shares = emit(f, Softmax(-1), scores)
        mixed = emit(f, Contract("abmk,abkn->abmn", dtype), shares, v)
        joined = emit(f, Reshape((batch, length, const(width))), emit(f, Transpose((0, 2, 1, 3)), mixed))
        x = emit(f, Binary("add"), x, _dense(f, joined, width, width))
        inner = f.among(width, 2 * width, 33)
        hidden = _dense(f, _norm(f, x, width), width, inner)
        hidden = emit(f, f.among(Gelu(False), Gelu(True), Unary("tanh")), hidden)
        x = emit(f, Binary("add"), x, _dense(f, hidden, inner, width))
    if f.chance(0.4):
        emit(f, Reduce("sum", (1,), False), x)
    if f.chance(0.3):
        emit(f, Slice((ZERO, canonical(length - 1), ZERO), (batch, ONE, const(width)), (1, 1, 1)), x)


def _dense(f: Growth, x: Value, inner: int, outer: int) -> Value:
    dtype = x.type.dtype
    y = emit(f, Contract("abk,kn->abn", dtype), x, weights(f, dtype, inner, outer))
    return emit(f, Binary("add"), y, vector(f, dtype, outer)) if f.chance(0.7) else y


def _norm(f: Growth, x: Value, width: int) -> Value:
    dtype = x.type.dtype
    return emit(f, LayerNorm(2, 1e-2), x, vector(f, dtype, width), vector(f, dtype, width))


def _heads(f: Growth, x: Value, batch: Expr, length: Expr, heads: int, depth: int) -> Value:
    y = _dense(f, x, heads * depth, heads * depth)
    return emit(f, Transpose((0, 2, 1, 3)), emit(f, Reshape((batch, length, const(heads), const(depth))), y))


def narrow_round_trip(f: Growth) -> None:
    """To a dtype of at most 8 bits and back."""
    x = f.pick(lambda value, known: value.type.dtype is F32 and known.exact and known.bound <= 7)
    if x is not None:
        dtype = f.among(*TINY)
        if dtype.kind == "uint":
            x = emit(f, Unary("abs"), x)
        narrow = f.put(Cast(dtype, f.chance(0.7)), (x,), 8.0, True)
        f.put(Cast(F32), (narrow,), 8.0, True)
