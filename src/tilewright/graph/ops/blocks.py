"""Pieces of kernel definitions that several operators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.graph.ops.scalars import arithmetic_dtype
from tilewright.graph.shapes import is_zero
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, cast, const
from tilewright.kernel.builder import COMBINERS, KernelBuilder, Tensor


def rounded(k: KernelBuilder, name: str, accumulated: Tensor, dtype: DType) -> Tensor:
    """The accumulator's values in the result's dtype: another block when that is narrower, else the accumulator itself."""
    if accumulated.dtype is dtype:
        return accumulated
    return k.compute(name, accumulated.shape, lambda *i: cast(dtype, accumulated[i]))


def reduce_block(
    k: KernelBuilder,
    name: str,
    shape: Sequence[Expr],
    extents: Sequence[Expr],
    value: Callable[..., Expr],
    combiner: str,
    where: Callable[..., Expr] | None = None,
) -> Tensor:
    """A reduction over the points `where` (None: all), or a plain block when there is no axis to reduce or one is known to be empty."""
    if not extents:
        return k.compute(name, shape, value)
    if any(is_zero(extent) for extent in extents):
        dtype = value(*(const(0) for _ in (*shape, *extents))).dtype
        return k.compute(name, shape, lambda *i: COMBINERS[combiner].identity(dtype))
    return k.reduce(name, shape, extents, value, combiner, where)


class AxisReader:
    """Reads a tensor from blocks that reduce some of its axes: maps the kept indices and the reduced ones to its own."""

    __slots__ = ("axes", "keepdims", "tensor")

    def __init__(self, tensor: Tensor, axes: Sequence[int], keepdims: bool) -> None:
        self.tensor, self.axes, self.keepdims = tensor, tuple(axes), keepdims

    @property
    def kept(self) -> tuple[Expr, ...]:
        """Shape of the result."""
        dims = enumerate(self.tensor.shape)
        if self.keepdims:
            return tuple(const(1) if axis in self.axes else dim for axis, dim in dims)
        return tuple(dim for axis, dim in dims if axis not in self.axes)

    @property
    def extents(self) -> tuple[Expr, ...]:
        return tuple(self.tensor.shape[axis] for axis in self.axes)

    def split(self, indices: Sequence[Expr]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """Indices of a reduction block as those of the result and those along the reduced axes."""
        cut = len(indices) - len(self.axes)
        return tuple(indices[:cut]), tuple(indices[cut:])

    def read(self, kept: Sequence[Expr], reduced: Sequence[Expr]) -> Expr:
        """The element, in its arithmetic dtype."""
        along = dict(zip(self.axes, reduced, strict=True))
        others = iter(index for axis, index in enumerate(kept) if not (self.keepdims and axis in self.axes))
        at = tuple(along[axis] if axis in along else next(others) for axis in range(self.tensor.rank))
        return cast(arithmetic_dtype(self.tensor.dtype), self.tensor[at])

    def project(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where the result holds the value that belongs to an element of the tensor."""
        if self.keepdims:
            return tuple(const(0) if axis in self.axes else index for axis, index in enumerate(indices))
        return tuple(index for axis, index in enumerate(indices) if axis not in self.axes)


def reduce_axes(k: KernelBuilder, name: str, x: AxisReader, combiner: str, value: Callable[[Expr], Expr] = lambda e: e) -> Tensor:
    """A reduction of value(x) over the reader's axes, in the arithmetic dtype."""
    return reduce_block(k, name, x.kept, x.extents, lambda *i: value(x.read(*x.split(i))), combiner)
