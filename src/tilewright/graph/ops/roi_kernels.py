"""Kernels over regions of interest, whose extent depends on data."""

from __future__ import annotations

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, call, cast, const, logical_or, maximum, minimum
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, StmtBuilder, Tensor


def roi_align_block(
    k: KernelBuilder,
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    size: tuple[int, int],
    scale: float,
    samples: int,
    largest: bool,
    half_pixel: bool,
) -> tuple[Tensor, ...]:
    """See `RoiAlign`."""
    real = x.dtype

    def number(v: float) -> Expr:
        return const(v, real)

    def body(s: StmtBuilder, outs: tuple[Tensor, ...], r: Expr, c: Expr, i: Expr, j: Expr) -> None:
        shift = number(0.5 if half_pixel else 0.0)
        x1, y1, x2, y2 = (s.let("corner", rois[r, const(q)] * number(scale) - shift) for q in range(4))
        image = s.let("image", minimum(maximum(batch[r], const(0)), x.shape[0] - 1))
        steps, counts, starts = [], [], []
        for low, high, n, at in ((y1, y2, size[0], i), (x1, x2, size[1], j)):
            extent = high - low if half_pixel else maximum(high - low, number(1))
            step = s.let("step", extent / number(n))
            count = const(samples) if samples else cast(dtypes.int64, call("ceil", step))
            steps.append(step)
            counts.append(s.let("count", maximum(count, const(1)) if largest else count))
            starts.append(s.let("start", low + cast(real, at) * step))
        total = s.local("total", real, (), 0)
        first = s.local("first", dtypes.bool_, (), True)
        with s.loop("a", counts[0]) as a, s.loop("b", counts[1]) as b:
            y = s.let("y", starts[0] + (cast(real, a) + number(0.5)) * steps[0] / cast(real, counts[0]))
            across = s.let("x", starts[1] + (cast(real, b) + number(0.5)) * steps[1] / cast(real, counts[1]))
            sample = s.local("sample", real, (), 0)
            _bilinear(s, x, image, c, y, across, sample, largest)
            if largest:
                with s.when(logical_or(first[()], sample[()] > total[()])):
                    s.store(total, (), sample[()])
                s.store(first, (), False)
            else:
                s.store(total, (), total[()] + sample[()])
        if largest:
            s.store(outs[0], (r, c, i, j), total[()])
        else:
            points = maximum(counts[0] * counts[1], const(1))
            s.store(outs[0], (r, c, i, j), total[()] / cast(real, points))

    shape = (rois.shape[0], x.shape[1], const(size[0]), const(size[1]))
    return k.opaque("roi_align", [TensorType(real, shape)], shape, body)


def _bilinear(s: StmtBuilder, x: Tensor, image: Expr, c: Expr, y: Expr, across: Expr, sample: Tensor, largest: bool) -> None:
    """Store the interpolated element in `sample`, which keeps its 0 more than one element outside."""
    real = x.dtype
    zero, one = const(0, real), const(1, real)
    outside = const(False, dtypes.bool_)
    for place, dim in ((y, x.shape[2]), (across, x.shape[3])):
        outside = logical_or(outside, logical_or(place < const(-1, real), place > cast(real, dim)))
    with s.when(~outside):
        bases, nexts, fractions = [], [], []
        for place, dim in ((y, x.shape[2]), (across, x.shape[3])):
            inside = s.let("inside", minimum(maximum(place, zero), cast(real, dim - 1)))
            base = s.let("base", minimum(cast(dtypes.int64, inside), dim - 1))
            bases.append(base)
            nexts.append(s.let("next", minimum(base + 1, dim - 1)))
            fractions.append(s.let("fraction", inside - cast(real, base)))
        ly, lx = fractions
        parts = [
            x[image, c, bases[0], bases[1]] * ((one - ly) * (one - lx)),
            x[image, c, bases[0], nexts[1]] * ((one - ly) * lx),
            x[image, c, nexts[0], bases[1]] * (ly * (one - lx)),
            x[image, c, nexts[0], nexts[1]] * (ly * lx),
        ]
        result = parts[0]
        for part in parts[1:]:
            result = maximum(result, part) if largest else result + part
        s.store(sample, (), result)
