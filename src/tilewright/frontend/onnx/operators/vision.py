"""Importers of image operators: Resize, Upsample, sampling and cropping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.convolution import spatial, with_bias
from tilewright.frontend.onnx.operators.matmul import contract
from tilewright.graph.node import Value
from tilewright.graph.ops import Concat, DeformableColumns, Gather, GridSample, Iota, Resize, RoiAlign
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, floordiv, maximum
from tilewright.support.errors import ModelError, UnsupportedOperatorError

MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}
LIMIT = 1 << 16  # scales are rationals with a denominator up to this


@dataclass(frozen=True, slots=True)
class Target:
    """The shape of the result; the scales by which it is reached, None where they are quotients of dims; or the scales as a float32 tensor
    for all axes, when they are known only at run time."""

    sizes: tuple[Expr, ...]
    scales: tuple[float | None, ...]
    tensor: Value | None = None


def resize(ctx: NodeContext) -> Value:
    """Opset 10 takes (x, scales), and its nearest element is the next one along axes that shrink; from 11 on (x, roi, scales, sizes), one
    of the last two given; from 18 on for `axes` only."""
    x = ctx.input(0)
    mode = _mode(ctx)
    rank = x.type.rank
    if ctx.version < 11:
        return _resized(ctx, x, _by_scales(ctx, x, 1, list(range(rank))), mode, "asymmetric", "ceil_where_smaller")
    axes = [ctx.axis(a, rank) for a in ctx.attribute("axes") or range(rank)]
    given = ctx.optional(3)
    by_sizes = given is not None and given.shape != (const(0),)
    target = _by_sizes(ctx, x, ctx.input(3), axes) if by_sizes else _by_scales(ctx, x, 2, axes)
    coordinate = ctx.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = ctx.attribute("nearest_mode", "round_prefer_floor")
    return _resized(ctx, x, target, mode, coordinate, nearest, axes)


def _resized(ctx: NodeContext, x: Value, target: Target, mode: str, coordinate: str, nearest: str, axes: Sequence[int] = ()) -> Value:
    roi, roi_tensor = _roi(ctx, x.type.rank, axes) if coordinate == "tf_crop_and_resize" else ((), None)
    operands = {"scales": target.tensor, "roi": roi_tensor}
    present = {name: value for name, value in operands.items() if value is not None}
    op = Resize(
        target.sizes,
        target.scales,
        mode,
        coordinate,
        nearest,
        float(ctx.attribute("cubic_coeff_a", -0.75)),
        bool(ctx.attribute("exclude_outside", 0)),
        bool(ctx.attribute("antialias", 0)),
        float(ctx.attribute("extrapolation_value", 0.0)),
        roi,
        tuple(present),
    )
    return ctx.one(op, x, *present.values())


def _mode(ctx: NodeContext, default: str = "nearest") -> str:
    mode = ctx.attribute("mode", default)
    if mode not in MODES:
        raise ModelError(f"{ctx.op_type} has the mode '{mode}'", where=ctx.where, why=f"it is one of {', '.join(MODES)}")
    return MODES[mode]


def _roi(ctx: NodeContext, rank: int, axes: Sequence[int]) -> tuple[tuple[float, ...], Value | None]:
    """The region as numbers, or as a tensor for all axes."""
    known = ctx.constant_of(1)
    if known is None:
        given = ctx.cast(ctx.input(1), dtypes.float32)
        starts = _for_all_axes(ctx, given, 0, axes, rank, 0.0)
        return (), ctx.one(Concat(0), starts, _for_all_axes(ctx, given, len(axes), axes, rank, 1.0))
    if known.size != 2 * len(axes):
        raise ModelError(f"Resize has a region of {known.size} numbers for {len(axes)} axes", where=ctx.where)
    known = known.reshape(-1)
    first, last = [0.0] * rank, [1.0] * rank
    for i, axis in enumerate(axes):
        first[axis], last[axis] = float(known[i]), float(known[len(axes) + i])
    return (*first, *last), None


def _for_all_axes(ctx: NodeContext, given: Value, begin: int, axes: Sequence[int], rank: int, default: float) -> Value:
    """Elements begin.. of a vector at the places of `axes`, a default at those of the other axes."""
    if given.type.rank != 1 or (given.shape[0].is_const and given.shape[0].value < begin + len(axes)):
        raise ModelError(f"{ctx.op_type} has a tensor of type {given.type} for {len(axes)} axes", where=ctx.where)
    rest = ctx.constant(np.full(1, default, np.float32))
    parts = [ctx.slice_axis(given, 0, begin + axes.index(a), 1) if a in axes else rest for a in range(rank)]
    return ctx.one(Concat(0), *parts)


def _by_sizes(ctx: NodeContext, x: Value, given: Value, axes: Sequence[int]) -> Target:
    """By a tensor of sizes, perhaps with one scale for all axes that keeps the aspect ratio."""
    rank = x.type.rank
    if ctx.contents(given) is None and given.type.rank == 1:
        given = ctx.refine(given, (len(axes),))
    if ctx.contents(given) is None and not isinstance(given.op, Concat) and given.shape == (const(len(axes)),):
        lost = ctx.binary("less", given, ctx.binary("min", ctx.size_tensor([x.shape[axis] for axis in axes]), 1))
        given = ctx.select(lost, ctx.scalar_like(-1, given), given)  # no size of 0, unless that is what there is
    wanted = [canonical(e) for e in ctx.as_sizes(given, f"{ctx.node.output[0]}_size")]
    if len(wanted) != len(axes):
        raise ModelError(f"Resize of {len(axes)} axes is given {len(wanted)} sizes", where=ctx.where)
    for axis, size in zip(axes, wanted, strict=True):
        if size.is_const and x.shape[axis].is_const and size.value < min(x.shape[axis].value, 1):
            raise ModelError(f"Resize of an axis of {x.shape[axis]!r} elements to {size!r}", where=ctx.where)
    sizes = list(x.shape)
    policy = ctx.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        for axis, size in zip(axes, wanted, strict=True):
            sizes[axis] = size
        return Target(tuple(sizes), (None,) * rank)
    if policy not in ("not_larger", "not_smaller"):
        raise ModelError(f"Resize has the keep_aspect_ratio_policy '{policy}'", where=ctx.where)
    dims = [x.shape[axis] for axis in axes]
    if all(e.is_const for e in (*dims, *wanted)):
        ratios = [size.value / dim.value for size, dim in zip(wanted, dims, strict=True)]
        ratio = float(min(ratios) if policy == "not_larger" else max(ratios))
        scales: list[float | None] = [None] * rank
        for axis, dim in zip(axes, dims, strict=True):
            sizes[axis], scales[axis] = const(int(np.floor(ratio * dim.value + 0.5))), ratio
        return Target(tuple(sizes), tuple(scales))
    lengths = ctx.cast(ctx.size_tensor(dims), dtypes.float32)
    quotients = ctx.binary("div", ctx.cast(ctx.size_tensor(wanted), dtypes.float32), lengths)
    one = ctx.reduce("min" if policy == "not_larger" else "max", quotients, (0,))
    rounded = ctx.unary("floor", ctx.binary("add", ctx.binary("mul", lengths, one), 0.5))
    found = _bound(ctx, rounded, x, axes)
    return Target(found, (None,) * rank, _for_all_axes(ctx, ctx.broadcast(one, (len(axes),)), 0, axes, rank, 1.0))


def _bound(ctx: NodeContext, numbers: Value, x: Value, axes: Sequence[int]) -> tuple[Expr, ...]:
    """The shape of x with the sizes of `axes` read from a float tensor at run time."""
    whole = ctx.cast(numbers, dtypes.int64)
    sizes = list(x.shape)
    for i, axis in enumerate(axes):
        sizes[axis] = ctx.as_size(ctx.slice_axis(whole, 0, i, 1), f"{ctx.node.output[0]}_size_{i}")
    return tuple(sizes)


def _by_scales(ctx: NodeContext, x: Value, index: int, axes: Sequence[int]) -> Target:
    """By a tensor of scales: sizes are floor(dim * scale). A scale must be a positive number, for Upsample at least 1."""
    known = ctx.constant_of(index)
    if known is not None:
        return scaled_shape(ctx, x, [float(s) for s in known.reshape(-1)], axes)
    given = ctx.cast(ctx.input(index), dtypes.float32)
    dims = ctx.cast(ctx.size_tensor([x.shape[a] for a in axes]), dtypes.float32)
    rank = x.type.rank
    positive = ctx.binary("greater_equal", given, 1.0) if ctx.op_type == "Upsample" else ctx.binary("greater", given, 0.0)
    scaled = ctx.unary("floor", ctx.binary("mul", dims, given))
    sizes = _bound(ctx, ctx.select(positive, scaled, ctx.scalar_like(-1, scaled)), x, axes)
    return Target(sizes, (None,) * rank, _for_all_axes(ctx, given, 0, axes, rank, 1.0))


def scaled_shape(ctx: NodeContext, x: Value, factors: Sequence[float], axes: Sequence[int]) -> Target:
    """The shape of x after `axes` are scaled by known factors."""
    if len(factors) != len(axes):
        raise ModelError(f"{ctx.op_type} of {len(axes)} axes is given {len(factors)} scales", where=ctx.where)
    wrong = next((factor for factor in factors if not (1 if ctx.op_type == "Upsample" else 0) <= factor < np.inf or factor == 0), None)
    if wrong is not None:
        raise ModelError(f"{ctx.op_type} by {wrong}", where=ctx.where, why="a scale is a positive number, for Upsample at least 1")
    sizes = list(x.shape)
    scales: list[float | None] = [None] * x.type.rank
    for axis, factor in zip(axes, factors, strict=True):
        sizes[axis] = scaled_dim(x.shape[axis], factor)
        scales[axis] = float(factor)
    return Target(tuple(sizes), tuple(scales))


def scaled_dim(dim: Expr, factor: float) -> Expr:
    """floor(dim * factor), for a float32 factor. Symbolic dims multiply by the simplest fraction that is the factor in float32."""
    if dim.is_const:
        return const(int(np.floor(np.float32(dim.value) * np.float32(factor))))
    numerator, denominator = _fraction(factor)
    return canonical(floordiv(dim * numerator, const(denominator)))


def _fraction(factor: float) -> tuple[int, int]:
    single = np.float32(factor)
    for limit in (1, 16, 1024, LIMIT):
        simple = Fraction(float(single)).limit_denominator(limit)
        if np.float32(float(simple)) == single:
            return simple.numerator, simple.denominator
    exact = Fraction(float(single))
    return exact.numerator, exact.denominator


def upsample(ctx: NodeContext) -> Value:
    """Upsample (opsets 7 to 9): scales by attribute, then by input."""
    x = ctx.input(0)
    axes = list(range(x.type.rank))
    target = scaled_shape(ctx, x, ctx.require("scales"), axes) if ctx.version < 9 else _by_scales(ctx, x, 1, axes)
    return _resized(ctx, x, target, _mode(ctx), "asymmetric", "floor")


def grid_sample(ctx: NodeContext) -> Value:
    x, grid = ctx.input(0), ctx.input(1)
    padding = ctx.attribute("padding_mode", "zeros")
    if grid.type.rank == x.type.rank:
        grid = ctx.refine(grid, (x.shape[0], *grid.shape[1:-1], x.type.rank - 2))
    return ctx.one(GridSample(_mode(ctx, "linear"), padding, bool(ctx.attribute("align_corners", 0))), x, grid)


def roi_align(ctx: NodeContext) -> Value:
    """Before opset 16 coordinates are not shifted by half an element."""
    x, rois, batch = ctx.input(0), ctx.refine_axis(ctx.input(1), 1, 4), ctx.input(2)
    default = "half_pixel" if ctx.version >= 16 else "output_half_pixel"
    size = (ctx.attribute("output_height", 1), ctx.attribute("output_width", 1))
    op = RoiAlign(
        size,
        float(ctx.attribute("spatial_scale", 1.0)),
        ctx.attribute("sampling_ratio", 0),
        ctx.attribute("mode", "avg") == "max",
        ctx.attribute("coordinate_transformation_mode", default) == "half_pixel",
    )
    work = dtypes.float64 if x.type.dtype is dtypes.float64 else dtypes.float32
    batch = ctx.refine(ctx.cast(batch, dtypes.int64), (rois.shape[0],))
    return ctx.cast(ctx.one(op, ctx.cast(x, work), ctx.cast(rois, work), batch), x.type.dtype)


def max_roi_pool(ctx: NodeContext) -> Value:
    """x [N, C, H, W], regions [R, 5] of (image, x1, y1, x2, y2) -> [R, C, *pooled_shape]: each region, its corners rounded to elements,
    cut into bins that may overlap by one, and the greatest element of each, 0 for a bin outside of the image (Girshick, "Fast R-CNN",
    2015). The maximum along columns of what the rows leave."""
    x, regions = ctx.input(0), ctx.refine_axis(ctx.input(1), 1, 5)
    pooled = ctx.require("pooled_shape")
    if x.type.rank != 4 or len(pooled) != 2:
        raise ModelError(f"MaxRoiPool of {x.type!r} to {pooled}", where=ctx.where, why="it takes images [N, C, H, W] and two sizes")
    count = regions.shape[0]
    image = ctx.cast(ctx.reshape(ctx.slice_axis(regions, 1, 0, 1), (count,)), dtypes.int64)
    corners = ctx.binary("mul", ctx.slice_axis(regions, 1, 1, 4), ctx.attribute("spatial_scale", 1.0))
    away = ctx.unary("floor", ctx.binary("add", ctx.unary("abs", corners), 0.5))  # half an element goes away from zero
    corners = ctx.binary("mul", ctx.unary("sign", corners), away)
    least = ctx.scalar_like(-np.inf if x.type.dtype.is_float else 0, x)
    result, empty = ctx.one(Gather(0), x, image), None
    for axis, first in ((2, 1), (3, 0)):  # rows by y, then columns by x
        bins, size = const(pooled[axis - 2]), x.shape[axis]
        inside = _bins(ctx, corners, first, pooled[axis - 2], size)  # [R, bins, size]
        none = ctx.unary("not", ctx.reduce("any", inside, (2,), keepdims=False))
        none = ctx.reshape(none, [count, 1, bins, 1] if axis == 2 else [count, 1, 1, bins])
        empty = none if empty is None else ctx.binary("or", empty, none)
        spread = ctx.reshape(inside, [count, 1, bins, size, 1] if axis == 2 else [count, 1, 1, bins, size])
        kept = ctx.select(spread, ctx.reshape(result, (*result.shape[:axis], const(1), *result.shape[axis:])), least)
        result = ctx.reduce("max", kept, (axis + 1,), keepdims=False)
    assert empty is not None
    return ctx.select(empty, ctx.scalar_like(0, x), result)


def _bins(ctx: NodeContext, corners: Value, first: int, bins: int, size: Expr) -> Value:
    """Which elements of an axis are in which bin of which region: [R, bins, size], for corners [R, 4]."""
    low, high = (ctx.reshape(ctx.slice_axis(corners, 1, i, 1), (corners.shape[0], 1, 1)) for i in (first, first + 2))
    length = ctx.binary("max", ctx.binary("add", ctx.binary("sub", high, low), 1.0), 1.0)
    each = ctx.binary("div", length, float(bins))
    place = ctx.constant(np.arange(bins).reshape(bins, 1), corners.type.dtype)
    start = ctx.binary("add", ctx.unary("floor", ctx.binary("mul", place, each)), low)
    end = ctx.binary("add", ctx.unary("ceil", ctx.binary("mul", ctx.binary("add", place, 1.0), each)), low)
    at = ctx.one(Iota(size, corners.type.dtype))
    return ctx.binary("and", ctx.binary("greater_equal", at, start), ctx.binary("less", at, end))


def affine_grid(ctx: NodeContext) -> Value:
    """theta [N, d, d + 1] applied to the coordinates of an image of `size` (N, C, *S): [N, *S, d], last spatial axis first."""
    theta = ctx.input(0)
    axes = ctx.dim(theta, 1)  # those of space
    size = ctx.as_sizes(ctx.input(1), f"{ctx.node.output[0]}_size", count=int(axes.value) + 2 if axes.is_const else None)
    dims, dtype = size[2:], theta.type.dtype
    d = len(dims)
    theta = ctx.refine(theta, (size[0], const(d), const(d + 1)))
    result: Value | None = None
    for i in range(d + 1):  # coordinate i of the grid runs over spatial axis d - 1 - i; the last column is the shift
        column = ctx.reshape(ctx.slice_axis(theta, 2, i, 1), (size[0], *[1] * d, d))
        if i < d:
            axis = d - 1 - i
            line = _coordinates(ctx, dims[axis], bool(ctx.attribute("align_corners", 0)), dtype)
            column = ctx.binary("mul", column, ctx.reshape(line, [dims[axis] if a == axis else 1 for a in range(d)] + [1]))
        result = column if result is None else ctx.binary("add", result, column)
    if result is None:
        raise ModelError("AffineGrid of an image without spatial axes", where=ctx.where)
    return result


def _coordinates(ctx: NodeContext, dim: Expr, align: bool, dtype: DType) -> Value:
    """The places in [-1, 1] of the elements of an axis: from end to end, or the centers of equal cells."""
    steps = ctx.cast(ctx.one(Iota(dim, dtypes.int64)), dtype)
    if align:
        last = ctx.size_number(canonical(maximum(dim - 1, 1)), dtype)
        return ctx.binary("sub", ctx.binary("div", ctx.binary("mul", steps, 2.0), last), 1.0)
    cells = ctx.size_number(dim, dtype)
    return ctx.binary("sub", ctx.binary("div", ctx.binary("add", ctx.binary("mul", steps, 2.0), 1.0), cells), 1.0)


def deformable_convolution(ctx: NodeContext) -> Value:
    """x, weights [O, C/groups, kh, kw], offsets, bias, mask: the displaced samples, then a product over channels and taps."""
    x, w, offsets = ctx.input(0), ctx.input(1), ctx.input(2)
    kernel = [int(dim.value) for dim in w.shape[2:] if dim.is_const]
    if x.type.rank != 4 or len(kernel) != 2 or not w.shape[0].is_const:
        raise UnsupportedOperatorError(f"DeformConv of {x.type!r} with weights {w.type!r} is not supported", where=ctx.where)
    pads = ctx.attribute("pads") or [0] * 4
    (down, across), (tall, wide) = spatial(ctx, "strides", 2), spatial(ctx, "dilations", 2)
    groups = ctx.attribute("group", 1)
    low = (int(pads[0]), int(pads[1]))
    op = DeformableColumns((kernel[0], kernel[1]), (down, across), (tall, wide), low, ctx.attribute("offset_group", 1))
    columns = ctx.one(op, x, offsets, *([ctx.input(4)] if ctx.has(4) else []))
    batch, channels, taps, *out = columns.shape
    shared = canonical(channels // groups)
    left = ctx.reshape(columns, (batch, groups, canonical(shared * taps), *out))
    right = ctx.reshape(w, (groups, canonical(w.shape[0] // groups), canonical(shared * taps)))
    product = contract(ctx, left, "ngkhw", right, "gok", "ngohw")
    return with_bias(ctx, ctx.reshape(product, (batch, w.shape[0], *out)), ctx.optional(3))


IMPORTERS: Table = {
    ("", "AffineGrid"): affine_grid,
    ("", "DeformConv"): deformable_convolution,
    ("", "GridSample"): grid_sample,
    ("", "MaxRoiPool"): max_roi_pool,
    ("", "Resize"): resize,
    ("", "RoiAlign"): roi_align,
    ("", "Upsample"): upsample,
}
