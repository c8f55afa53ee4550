"""Padding as index arithmetic, shared by Pad, convolutions and windows.

Position `p` of the padded axis stands for position `p - low` of the input, whatever the signs of `low` and `high`: negative amounts crop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.graph.node import Array
from tilewright.graph.shapes import canonical, is_zero
from tilewright.ir.expr import Expr, all_of, const, less, less_equal, maximum, minimum, select
from tilewright.ir.types import Shape
from tilewright.kernel.builder import KernelBuilder, Tensor

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def padded_shape(shape: Shape, low: Sequence[Expr], high: Sequence[Expr]) -> Shape:
    return tuple([canonical(dim + a + b) for dim, a, b in zip(shape, low, high, strict=True)])


def windowed_dim(dim: Expr, low: Expr, high: Expr, window: Expr, stride: int, dilation: int) -> Expr:
    """Number of positions of a window of `window` taps, `dilation` apart, that moves by `stride` over the padded axis."""
    return canonical((dim + low + high - (window - 1) * dilation - 1) // stride + 1)


def window_views(padded: Array, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int], sizes: Sequence[int]) -> Array:
    """A view of shape [..., *sizes, *window] of the windows over the trailing axes of a padded array."""
    leading = padded.ndim - len(window)
    own = padded.strides[leading:]
    shape = (*padded.shape[:leading], *sizes, *window)
    steps = (
        *padded.strides[:leading],
        *(n * stride for n, stride in zip(own, strides)),
        *(n * dilation for n, dilation in zip(own, dilations)),
    )
    return np.lib.stride_tricks.as_strided(padded, shape, steps, writeable=False)


def _at_most_zero(amount: Expr) -> bool:
    return amount.is_const and bool(amount.value <= 0)


def _mirrored(position: Expr, dim: Expr) -> Expr:
    """`position` reflected into [0, dim) as often as needed: a triangle wave of period 2*(dim-1)."""
    period = maximum((dim - 1) * 2, const(1))
    phase = position % period
    return minimum(phase, period - phase) if not dim.is_const or dim.value > 1 else const(0)


def _source(position: Expr, dim: Expr, mode: str) -> Expr:
    if mode == "reflect":
        return minimum(_mirrored(position, dim), dim - 1)
    return minimum(maximum(position, const(0)), dim - 1) if mode == "edge" else position % dim


def pad_block(
    k: KernelBuilder,
    x: Tensor,
    low: Sequence[Expr],
    high: Sequence[Expr],
    value: Expr,
    mode: str = "constant",
    always: bool = False,
) -> Tensor:
    """A block that computes `x` padded, or `x` itself when nothing is padded (unless `always`)."""
    if not always and all(is_zero(a) for a in (*low, *high)):
        return x
    shape = padded_shape(x.shape, low, high)

    def element(*i: Expr) -> Expr:
        at: list[Expr] = []
        conditions: list[Expr] = []
        for index, dim, before, after in zip(i, x.shape, low, high, strict=True):
            position = index - before
            if mode == "constant":
                if not _at_most_zero(before):
                    conditions.append(less_equal(const(0), position))
                if not _at_most_zero(after):
                    conditions.append(less(position, dim))
            elif not (_at_most_zero(before) and _at_most_zero(after)):
                # said as a condition, so that loops are split where it holds and walk over memory there
                inside = all_of(less_equal(const(0), position), less(position, dim))
                position = select(inside, position, _source(position, dim, mode))
            at.append(position)
        return select(all_of(*conditions), x[tuple(at)], value)

    return k.compute("pad", shape, element)


def padded_element(
    x: Tensor, at: Sequence[Expr], low: Sequence[Expr], high: Sequence[Expr], value: Expr, taken: Callable[[Expr], Expr] = lambda e: e
) -> Expr:
    """taken(x[..]) at a position of `x` padded, or `value` where that is no element of `x`. Needs no padded copy; no conditions on
    axes without padding. In a sum or as a factor of its terms (value 0), or in a maximum (value -inf), padding is skipped in the end."""
    conditions: list[Expr] = []
    where: list[Expr] = []
    for position, dim, before, after in zip(at, x.shape, low, high, strict=True):
        index = position - before
        if not _at_most_zero(before):
            conditions.append(less_equal(const(0), index))
        if not _at_most_zero(after):
            conditions.append(less(index, dim))
        where.append(index)
    return select(all_of(*conditions), taken(x[tuple(where)]), value)


def pad_array(x: Array, low: Sequence[int], high: Sequence[int], mode: str, value: Array) -> Array:
    """NumPy padding that takes negative amounts as well."""
    widths = [(max(a, 0), max(b, 0)) for a, b in zip(low, high)]
    fill = x.dtype.type(value.item()) if x.dtype.kind != "O" else value.item()
    padded = np.pad(x, widths, constant_values=fill) if mode == "constant" else np.pad(x, widths, mode=mode)  # type: ignore[call-overload]
    crops = tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, padded.shape))
    return np.asarray(padded[crops])
