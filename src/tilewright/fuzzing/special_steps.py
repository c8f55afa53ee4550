"""Steps that grow a graph by operators of special models (detection, sampling, tree ensembles, narrow weights) and by those that passes
otherwise make (blocked layouts, phases, Winograd's transforms)."""

from __future__ import annotations

import numpy as np

from tilewright.fuzzing.generator import Known
from tilewright.fuzzing.growth import (
    MOST_ELEMENTS,
    Array,
    Growth,
    elements,
    elements_of,
    full_range,
    never_empty,
    static_dims,
    whole_numbers,
)
from tilewright.graph.node import Value
from tilewright.graph.ops import (
    Binary,
    Block,
    BlockedConvolution,
    DeformableColumns,
    GridSample,
    Interleave,
    QuantizedLstm,
    RefineShape,
    Repeat,
    RoiAlign,
    Select,
    TreeEnsemble,
    Unary,
    Unblock,
    WidenWeights,
    WinogradConvolution,
    WinogradWeights,
    activation,
    non_max_suppression,
)
from tilewright.graph.ops.narrow_weights import WORD
from tilewright.graph.ops.tree import AGGREGATES
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import const

F32 = dtypes.float32
LANES = (2, 4, 8, 16)


def quarters(low: float, high: float, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Odd multiples of 1/8 between two numbers: no place that an interpolation jumps or bends at."""
    count = int((high - low) * 4)
    return low + (rng.integers(0, max(count, 1), shape) * 2 + 1) / 8


def image(f: Growth, dtype: DType, rank: int) -> Value | None:
    """A value [N, C, *S] of a floating dtype that is never empty, with channels that are known."""
    x = f.pick(
        lambda value, known: (
            value.type.dtype is dtype
            and value.type.rank == rank + 2
            and value.shape[1].is_const
            and never_empty(value)
            and elements(value) < 2000
            and known.bound <= 100
        )
    )
    if x is not None and f.chance(0.7):
        return x
    shape = (f.s.dim(), const(f.among(1, 2, 3, 4, 6, 8, 16)), *(f.among(const(4), const(5), const(8), *f.s.sizes) for _ in range(rank)))
    made = f.parameter(dtype, shape) if elements_of(shape) < 2000 else None
    return made if made is not None and never_empty(made) else None


def refined(f: Growth) -> None:
    """What asserts the shape that a value has."""
    x = f.pick(lambda value, known: value.type.rank >= 1)
    if x is not None:
        f.put(RefineShape(x.shape), (x,), f.known(x).bound, f.known(x).exact)


def repeated(f: Growth) -> None:
    x = f.pick(lambda value, known: value.type.rank >= 1 and elements(value) < 2000)
    if x is not None:
        f.put(Repeat(f.whole(0, x.type.rank - 1), f.whole(1, 4)), (x,), f.known(x).bound, f.known(x).exact)


def interleaved(f: Growth) -> None:
    """Phases in channels, put in place: all of them, or a part of the grid."""
    rank = f.among(1, 2, 2, 3)
    strides = tuple(f.among(1, 2, 2, 3) for _ in range(rank))
    phases = int(np.prod(strides))
    spatial = tuple(f.among(const(2), const(3), const(5), *f.s.sizes) for _ in range(rank))
    shape = (f.s.dim(), const(phases * f.among(1, 2, 3, 8)), *spatial)
    if elements_of(shape) > MOST_ELEMENTS // 2:
        return
    x = f.picked(f.among(F32, F32, dtypes.float16, dtypes.int8), shape)
    starts, sizes = [], []
    for dim, stride in zip(spatial, strides, strict=True):
        cut = f.whole(0, stride - 1) if dim.is_const else 0
        starts.append(const(cut))
        sizes.append(canonical(dim * stride - (cut + (f.whole(0, 1) if dim.is_const and stride > 1 else 0))))
    f.put(Interleave(strides, tuple(starts), tuple(sizes)), (x,), f.known(x).bound, f.known(x).exact)


def blocked(f: Growth) -> None:
    """Channels in blocks and back, with something elementwise between; lanes that do not divide the channels as well."""
    x = f.pick(lambda value, known: value.type.rank >= 2 and elements(value) < 4000)
    if x is None:
        return
    known, lanes = f.known(x), f.among(*LANES)
    y = f.put(Block(lanes), (x,), known.bound, known.exact)
    if x.type.dtype.is_float and f.chance(0.6):
        y = f.put(Unary(f.among("neg", "abs")), (y,), known.bound, known.exact)
    f.put(Unblock(x.shape[1]), (y,), known.bound, known.exact)


def blocked_convolution(f: Growth) -> None:
    """A convolution of whole blocks, dense or depthwise, direct or by Winograd's algorithm."""
    x = image(f, F32, 2)
    if x is None:
        return
    lanes = f.among(4, 8, 16)
    blocks = f.put(Block(lanes), (x,), f.known(x).bound, f.known(x).exact)
    channels = int(blocks.shape[1].value) * lanes
    outs = lanes * f.among(1, 2)
    taps = f.among(1, 3, 3)
    margin = (const(taps // 2),) * 2
    apart = f.among(1, 1, 2) if all(dim.is_const and dim.value > 2 for dim in blocks.shape[2:]) else 1  # else no window may fit

    def weights(shape: tuple[int, ...]) -> Value:
        # channels that fill up the last block are multiplied by zeros
        array = f.s.draw(shape).astype(np.float32)
        array[:, int(x.shape[1].value) :] = 0
        return f.s.constant(array, F32)

    bound = f.known(x).bound * 2 * channels * taps * taps
    if taps == 3 and f.chance(0.4):
        tile = (f.among(2, 4), f.among(2, 4))
        u = f.put(WinogradWeights(tile), (weights((outs, channels, 3, 3)),), 100.0, False)
        y = f.put(WinogradConvolution(tile, (3, 3), margin, margin, lanes), (blocks, u), bound, False)
    elif f.chance(0.3):
        outs = channels
        w = f.s.constant(f.s.draw((channels, 1, taps, taps)).astype(np.float32), F32)
        y = f.put(BlockedConvolution((f.among(1, 2),) * 2, (1, 1), margin, margin, True, lanes), (blocks, w), bound, False)
    else:
        op = BlockedConvolution((f.among(1, 2),) * 2, (apart,) * 2, margin, margin, False, lanes)
        y = f.put(op, (blocks, weights((outs, channels, taps, taps))), bound, False)
    if f.chance(0.5):
        y = f.put(Binary("max"), (y, f.number(0, F32)), f.known(y).bound, False)
    f.put(Unblock(const(f.whole((outs - lanes) + 1, outs))), (y,), f.known(y).bound, False)


def narrow_weights(f: Growth) -> None:
    """Codes of 2, 4 or 8 bits that are read as floats."""
    bits = f.among(2, 4, 4, 8)
    rank = f.among(1, 2, 2, 3)
    axis, extent = f.whole(0, rank - 1), f.among(1, 5, 8, 16, 32, 40, 64)
    shape = [f.among(1, 2, 3, 8, 17, 32) for _ in range(rank)]
    per = 1 if bits == 8 else WORD // bits
    shape[axis] = -(-extent // per)
    dtype = dtypes.uint32 if bits < 8 else f.among(dtypes.int8, dtypes.uint8)
    if int(np.prod(shape)) * per > MOST_ELEMENTS:
        return
    codes = f.operand(dtype, shape, full_range(dtype))
    block = f.among(extent, 1, 4, 16)
    parameters = [1 if f.chance(0.3) else dim for dim in shape]
    parameters[axis] = -(-extent // block)
    scale = f.operand(f.among(F32, F32, dtypes.float16), parameters, lambda rng, dims: np.asarray(rng.choice([0.25, 0.5, 1.0], dims)))
    zero = [f.operand(f.among(dtypes.uint8, F32), parameters, whole_numbers(0, 8))] if f.chance(0.6) else []
    f.put(WidenWeights(bits, axis, extent, block), (codes, scale, *zero), 300.0, False)


def suppressed(f: Growth) -> None:
    """Boxes of whole corners, so that overlaps are ratios of whole numbers, and scores that differ."""
    dtype = f.among(F32, F32, dtypes.float64)
    batches, classes, n = f.whole(1, 2), f.whole(1, 3), f.among(1, 3, 7, 16)
    scores = f.operand(dtype, (batches, classes, n), lambda rng, shape: rng.permutation(int(np.prod(shape))).reshape(shape) / 64)
    boxes = f.operand(dtype, (batches, n, 4), whole_numbers(0, 9))
    per_class = f.s.constant(np.asarray(f.whole(0, n + 1)), dtypes.int64)
    limits = [f.s.constant(np.asarray(value), dtype) for value in (f.among(0.3, 0.43, 0.71), f.among(0.0, 0.17))]
    kept = non_max_suppression(f.s.g, (boxes, scores, per_class, *limits), const(n), f.chance(0.3), f.fresh_size)
    f.s.pool[kept] = Known(100.0, True)


def trees(f: Growth) -> None:
    """A few trees over the rows of a matrix, with splits that no value meets, unless they are to be met."""
    dtype = f.among(F32, F32, dtypes.float64)
    features, targets, count = f.whole(1, 5), f.whole(1, 3), f.among(1, 2, 5, 17)
    x = f.picked(dtype, (f.s.dim(), const(features)))
    if not f.known(x).exact:
        return
    feature: list[int] = []
    split: list[float] = []
    children: list[list[int]] = []
    leaves = 0

    def grow(depth: int) -> int:
        """The number of a node, or of a leaf."""
        nonlocal leaves
        if depth == 0 or f.chance(0.2):
            leaves += 1
            return -leaves
        number = len(feature)
        feature.append(f.whole(0, features - 1))
        split.append(f.whole(-8, 8) / 4 + f.among(0.0, 0.125))
        children.append([0, 0])
        children[number] = [grow(depth - 1), grow(depth - 1)]
        return number

    roots = [grow(f.whole(1, 4)) for _ in range(count)]
    if not feature:
        return
    ends = np.cumsum([0, *(f.whole(0, 2) for _ in range(leaves))])
    entries = int(ends[-1])
    tables = (
        (roots, dtypes.int32), (feature, dtypes.int32), (split, dtype), ([c[0] for c in children], dtypes.int32),
        ([c[1] for c in children], dtypes.int32), (ends, dtypes.int32), (f.rng.integers(0, targets, entries), dtypes.int32),
        (f.rng.integers(-4, 5, entries) / 4, dtype),
    )  # fmt: skip
    values = [f.s.constant(np.asarray(table), table_dtype) for table, table_dtype in tables]
    mode, missing = f.among("leq", "lt", "gte", "gt", "eq", "neq"), f.chance(0.3)
    if missing:
        x = f.s.g.one(Select(), f.operand(dtypes.bool_, x.shape), x, f.number(np.nan, dtype))
        values.append(f.s.constant(f.rng.random(len(feature)) < 0.5, dtypes.bool_))
    f.put(TreeEnsemble(targets, f.among(*AGGREGATES), mode, missing), (x, *values), 64.0, False)


def sampled(f: Growth) -> None:
    """An image read at the places of a grid, inside and outside."""
    mode = f.among("linear", "linear", "nearest", "cubic")
    rank = 2 if mode == "cubic" else f.among(1, 2, 2, 3)
    x = image(f, f.among(F32, F32, dtypes.float64), rank)
    if x is None:
        return
    shape = (x.shape[0], *(const(f.whole(1, 5)) for _ in range(rank)), const(rank))
    # Nearest neighbours jump halfway between elements, and sizes may be any: places in the middle of the image are safe there
    low, high = (-1.5, 1.5) if mode != "nearest" and f.chance(0.5) else (-0.875, 0.875)
    if mode == "nearest" and not (static_dims(x) and all(int(dim.value) in (4, 8) for dim in x.shape[2:])):
        return
    grid = f.operand(x.type.dtype, shape, lambda rng, dims: quarters(low, high, rng, dims) + 1 / 64)
    op = GridSample(mode, f.among("zeros", "border", "reflection"), mode != "nearest" and f.chance(0.5))
    f.put(op, (x, grid), f.known(x).bound * 2, False)


def regions(f: Growth) -> None:
    """Aligned regions of an image."""
    x = image(f, f.among(F32, F32, dtypes.float64), 2)
    if x is None:
        return
    count = f.whole(1, 4)

    def rois(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        first, extent = quarters(0, 3, rng, (*shape[:-1], 2)), quarters(1, 4, rng, (*shape[:-1], 2))
        return np.concatenate([first, first + extent], -1)

    boxes = f.operand(x.type.dtype, (count, 4), rois)
    batch = f.operand(dtypes.int64, (count,), whole_numbers(0, 0))
    op = RoiAlign((f.whole(1, 3), f.whole(1, 3)), f.among(1.0, 0.5), f.among(0, 1, 2, 3), f.chance(0.3), f.chance(0.5))
    f.put(op, (x, boxes, batch), f.known(x).bound, False)


def deformed(f: Growth) -> None:
    """Samples of a deformable convolution."""
    x = image(f, f.among(F32, F32, dtypes.float64), 2)
    if x is None or elements(x) > 600:
        return
    channels = int(x.shape[1].value)
    groups = f.among(*(g for g in (1, 2, 3) if channels % g == 0))
    kernel = (f.among(1, 2, 3), f.among(1, 3))
    taps = kernel[0] * kernel[1]
    places = (const(f.whole(1, 4)), const(f.whole(1, 4)))
    offsets = f.operand(x.type.dtype, (x.shape[0], const(groups * taps * 2), *places), lambda rng, dims: quarters(-2, 2, rng, dims))
    mask = [f.operand(x.type.dtype, (x.shape[0], const(groups * taps), *places))] if f.chance(0.5) else []
    op = DeformableColumns(kernel, (f.among(1, 2),) * 2, (1, f.among(1, 2)), (f.whole(0, 1),) * 2, groups)
    f.put(op, (x, offsets, *mask), f.known(x).bound * 4, False)


def quantized_recurrent(f: Growth) -> None:
    """An LSTM with weights of bytes. Its states are quantized while it runs, which rounding errors decide."""
    hidden, width, steps = f.whole(1, 5), f.whole(1, 4), f.whole(1, 4)
    direction = f.among("forward", "reverse", "bidirectional")
    d = 2 if direction == "bidirectional" else 1
    x = f.picked(F32, (const(steps), f.s.dim(), const(width)))
    if f.known(x).bound > 8 or not never_empty(x):
        return
    dtype = f.among(dtypes.int8, dtypes.uint8)
    weights = [f.operand(dtype, (d, 4 * hidden, n)) for n in (width, hidden)]
    scales = [f.operand(F32, (d, f.among(1, 4 * hidden)), lambda rng, shape: np.full(shape, 0.25)) for _ in range(2)]
    acts = tuple(activation(name) for name in ("sigmoid", "tanh", "tanh")) * d
    f.put_all(QuantizedLstm(hidden, direction, acts), (x, *weights, *scales), *[Known(4.0, False)] * 3)
