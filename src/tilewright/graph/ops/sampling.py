"""Reading images at computed places: grid sampling, aligned regions of interest."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.casts import cast_scalar
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.resize_axis import cubic
from tilewright.graph.ops.roi_kernels import roi_align_block
from tilewright.graph.shapes import dims_equal, format_shape
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, all_of, call, cast, const, maximum, minimum, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

PADDING = ("zeros", "border", "reflection")
MODES = ("nearest", "linear", "cubic")
_CUBIC_A = -0.75


def work_dtype(dtype: DType) -> DType:
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


@dataclass(frozen=True, slots=True, eq=False)
class GridSample(Operator):
    """(x [N, C, *S], grid [N, *T, d]) -> [N, C, *T]: x interpolated at the places of the grid, whose coordinates in [-1, 1] run over the d
    spatial axes of x, last axis first. `mode` is one of MODES (cubic for d = 2), `padding` one of PADDING; with `align_corners` -1 and 1
    are the centers of the first and last element, else their outer edges."""

    name: ClassVar[str] = "grid_sample"
    mode: str
    padding: str
    align_corners: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("grid_sample", inputs, 2)
        x, grid = inputs
        d = x.rank - 2
        if self.mode not in MODES or self.padding not in PADDING:
            raise TypeRuleError(f"grid_sample: there is no mode {self.mode!r} with padding {self.padding!r}")
        if d < 1 or grid.rank != x.rank or grid.shape[-1] is not const(d) or not dims_equal(x.shape[0], grid.shape[0]):
            raise TypeRuleError(f"grid_sample: the grid {format_shape(grid.shape)} does not fit x {format_shape(x.shape)}")
        if not x.dtype.is_float or not grid.dtype.is_float:
            raise TypeRuleError(f"grid_sample of {x.dtype} by {grid.dtype} is not defined")
        return (TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, grid = inputs
        d = x.ndim - 2
        work = work_dtype(dtypes.from_numpy(x.dtype)).numpy
        places = [self._unnormalized_array(grid[..., d - 1 - a].astype(work), x.shape[2 + a]) for a in range(d)]
        result = np.zeros((*x.shape[:2], *grid.shape[1:-1]), work)
        taps: list[list[tuple[Array, Array]]] = [self._taps_array(p, n) for p, n in zip(places, x.shape[2:])]
        batch = np.arange(x.shape[0]).reshape(-1, *[1] * d)
        for corner in itertools.product(*taps):
            weight = np.prod([w for _, w in corner], axis=0)
            at = []
            for a, (index, _) in enumerate(corner):
                n = x.shape[2 + a]
                if self.padding == "zeros":
                    weight = np.where((index >= 0) & (index < n), weight, 0)
                index = self._reflected_array(index, n) if self.padding == "reflection" else index
                at.append(np.clip(index, 0, n - 1).astype(np.int64))
            values = np.moveaxis(np.moveaxis(x.astype(work), 1, -1)[(batch, *at)], -1, 1)
            result += values * weight[:, None]
        return (result.astype(x.dtype),)

    def _unnormalized_array(self, v: Array, n: int) -> Array:
        one, half = v.dtype.type(1), v.dtype.type(0.5)
        place = (v + one) * half * v.dtype.type(n - 1) if self.align_corners else ((v + one) * v.dtype.type(n) - one) * half
        if self.mode != "cubic" and self.padding == "border":
            return np.asarray(np.clip(place, 0, n - 1))
        if self.mode != "cubic" and self.padding == "reflection":
            return np.asarray(np.clip(self._reflected_array(place, n), 0, n - 1))
        return np.asarray(place)

    def _reflected_array(self, place: Array, n: int) -> Array:
        low, span = (0.0, n - 1.0) if self.align_corners else (-0.5, float(n))
        if span <= 0:
            return np.zeros_like(place)
        offset = np.abs(place - low)
        folds = np.floor(offset / span)
        rest = offset - folds * span
        return np.where(folds % 2 == 0, rest + low, span - rest + low)

    def _taps_array(self, place: Array, n: int) -> list[tuple[Array, Array]]:
        if self.mode == "nearest":
            return [(np.rint(place), np.ones_like(place))]
        base = np.floor(place)
        if self.mode == "linear":
            return [(base, 1 - (place - base)), (base + 1, place - base)]
        return [(base + t, cubic(place - base - t, _CUBIC_A, np.abs, np.where, 1.0)) for t in (-1, 0, 1, 2)]

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, grid = inputs
        d = x.rank - 2
        work = work_dtype(x.dtype)

        def value(n: Expr, c: Expr, *t: Expr) -> Expr:
            axes = []
            for a in range(d):
                coordinate = cast_scalar(grid[(n, *t, const(d - 1 - a))], work)
                axes.append(self._taps(self._unnormalized(coordinate, x.shape[2 + a]), x.shape[2 + a]))
            total = const(0, work)
            for corner in itertools.product(*axes):
                weight, inside, at = const(1, work), [], []
                for a, (index, share) in enumerate(corner):
                    weight = share if weight is const(1, work) else weight * share
                    at.append(self._position(index, x.shape[2 + a]))
                    inside += [index >= const(0, work), index < cast(work, x.shape[2 + a])] if self.padding == "zeros" else []
                element = cast_scalar(x[(n, c, *at)], work)
                total = total + (select(all_of(*inside), element, const(0, work)) if inside else element) * weight
            return cast_scalar(total, x.dtype, False)

        return (k.compute("grid_sample", (*x.shape[:2], *grid.shape[1:-1]), value),)

    def _unnormalized(self, v: Expr, n: Expr) -> Expr:
        one, half = const(1, v.dtype), const(0.5, v.dtype)
        place = (v + one) * half * cast(v.dtype, n - 1) if self.align_corners else ((v + one) * cast(v.dtype, n) - one) * half
        if self.mode == "cubic" or self.padding == "zeros":
            return place
        reflected = self._reflected(place, n) if self.padding == "reflection" else place
        return minimum(maximum(reflected, const(0, v.dtype)), cast(v.dtype, n - 1))

    def _reflected(self, place: Expr, n: Expr) -> Expr:
        zero, one = const(0, place.dtype), const(1, place.dtype)
        low = zero if self.align_corners else const(-0.5, place.dtype)
        span = cast(place.dtype, n - 1 if self.align_corners else n)
        safe = maximum(span, one) if self.align_corners else span
        offset = call("abs", place - low)
        folds = call("floor", offset / safe)
        rest = offset - folds * safe
        even = folds - call("floor", folds * const(0.5, place.dtype)) * const(2, place.dtype) < const(0.5, place.dtype)
        folded = select(even, rest + low, span - rest + low)
        return select(span > zero, folded, zero)

    def _position(self, index: Expr, n: Expr) -> Expr:
        """A whole coordinate as an index inside of the axis."""
        if self.padding == "reflection" and self.mode == "cubic":
            index = self._reflected(index, n)
        last = cast(index.dtype, n - 1)
        return cast(dtypes.int64, minimum(maximum(index, const(0, index.dtype)), last))

    def _taps(self, place: Expr, n: Expr) -> list[tuple[Expr, Expr]]:
        """(whole coordinate, weight) of the elements around a place."""
        one = const(1, place.dtype)
        if self.mode == "nearest":
            return [(call("round", place), one)]
        base = call("floor", place)
        if self.mode == "linear":
            return [(base, one - (place - base)), (base + one, place - base)]

        def absolute(e: Expr) -> Expr:
            return call("abs", e)

        steps = [const(t, place.dtype) for t in (-1, 0, 1, 2)]
        return [(base + t, cubic(place - base - t, _CUBIC_A, absolute, select, one)) for t in steps]


@dataclass(frozen=True, slots=True, eq=False)
class RoiAlign(Operator):
    """(x [N, C, H, W], rois [R, 4], batch int64 [R]) -> [R, C, *size]: each region (x1, y1, x2, y2, times `scale`) cut into
    size[0] x size[1] bins, each the mean or maximum (`maximum`) of samples interpolated linearly. `samples` per bin and axis, 0: as many
    as the bin has elements. `half_pixel` shifts coordinates by half an element and allows regions below one element (He et al.,
    "Mask R-CNN", 2017)."""

    name: ClassVar[str] = "roi_align"
    size: tuple[int, int]
    scale: float
    samples: int = 0
    maximum: bool = False
    half_pixel: bool = True

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("roi_align", inputs, 3)
        x, rois, batch = inputs
        fits = x.rank == 4 and rois.rank == 2 and rois.shape[1] is const(4) and batch.rank == 1
        if not fits or not dims_equal(batch.shape[0], rois.shape[0]):
            raise TypeRuleError(f"roi_align: x {x!r}, regions {rois!r} and batch {batch!r} do not fit")
        if x.dtype not in (dtypes.float32, dtypes.float64) or rois.dtype is not x.dtype or batch.dtype is not dtypes.int64:
            raise TypeRuleError(f"roi_align of {x.dtype} by {rois.dtype} with {batch.dtype} batch indices is not defined")
        return (TensorType(x.dtype, (rois.shape[0], x.shape[1], const(self.size[0]), const(self.size[1]))),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, rois, batch = inputs
        real = x.dtype.type
        out = np.zeros((len(rois), x.shape[1], *self.size), x.dtype)
        shift = real(0.5 if self.half_pixel else 0)
        for r, (x1, y1, x2, y2) in enumerate(rois * real(self.scale) - shift):
            image = x[batch[r]]
            extent = [y2 - y1, x2 - x1]
            extent = extent if self.half_pixel else [max(e, real(1)) for e in extent]
            bins = [e / real(n) for e, n in zip(extent, self.size)]
            counts = [self.samples or int(np.ceil(b)) for b in bins]
            counts = [max(c, 1) for c in counts] if self.maximum else counts
            for i, j in np.ndindex(*self.size):
                ys = [y1 + real(i) * bins[0] + (real(a) + real(0.5)) * bins[0] / real(counts[0]) for a in range(counts[0])]
                xs = [x1 + real(j) * bins[1] + (real(b) + real(0.5)) * bins[1] / real(counts[1]) for b in range(counts[1])]
                samples = [_bilinear_array(image, y, at, self.maximum) for y in ys for at in xs]
                if samples:
                    out[r, :, i, j] = np.max(samples, axis=0) if self.maximum else np.mean(samples, axis=0)
        return (out,)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, rois, batch = inputs
        return roi_align_block(k, x, rois, batch, self.size, self.scale, self.samples, self.maximum, self.half_pixel)


def _bilinear_array(image: Array, y: float, x: float, largest: bool) -> Array:
    """[C] sample of [C, H, W], 0 more than one element outside; `largest`: the greatest weighted neighbour, as ONNX defines it."""
    height, width = image.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return np.zeros(image.shape[0], image.dtype)
    real = image.dtype.type
    y, x = max(real(y), real(0)), max(real(x), real(0))
    y0, x0 = min(int(y), height - 1), min(int(x), width - 1)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    y, x = (real(y0) if y0 == height - 1 else y), (real(x0) if x0 == width - 1 else x)
    ly, lx = y - y0, x - x0
    parts = [image[:, y0, x0] * ((1 - ly) * (1 - lx)), image[:, y0, x1] * ((1 - ly) * lx)]
    parts += [image[:, y1, x0] * (ly * (1 - lx)), image[:, y1, x1] * (ly * lx)]
    return np.asarray(np.max(parts, axis=0) if largest else np.sum(parts, axis=0), image.dtype)
