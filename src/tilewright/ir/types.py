"""Tensor types: a dtype and a shape whose dims are integer expressions over named sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, ExprLike, as_expr, const
from tilewright.ir.interning import Interned
from tilewright.ir.traverse import evaluate_int, free_vars

Shape = tuple[Expr, ...]

LARGEST_DIM = 1 << 48
"""The largest dim, and the most bytes of a tensor: more than an address space holds, and so little that sums and products of two dims do
not wrap around."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorType(Interned):
    """The type of a tensor value: element `dtype` and `shape`, a tuple of int64 expressions (constants for static dims)."""

    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_possible(self) -> bool:
        """Whether a tensor of this type could lie in memory, as far as its fixed dims tell. One without elements as well: what a step along
        an axis is counts its other dims."""
        fixed = [int(dim.value) for dim in self.shape if dim.is_const]
        steps = math.prod(dim for dim in fixed if dim)
        return min(fixed, default=0) >= 0 and max(fixed, default=0) <= LARGEST_DIM and steps * self.dtype.bits <= 8 * LARGEST_DIM

    @property
    def is_static(self) -> bool:
        return all(dim.is_const for dim in self.shape)

    @property
    def count(self) -> Expr:
        """Number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> Expr:
        """Bytes in memory, unpacked."""
        return self.count * self.dtype.bytes

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(repr, self.shape))}]"


def tensor(dtype: DType, shape: Iterable[ExprLike]) -> TensorType:
    """TensorType from plain ints and expressions."""
    return TensorType(dtype, as_shape(shape))


def as_shape(shape: Iterable[ExprLike]) -> Shape:
    return tuple(as_expr(dim) for dim in shape)


def product(dims: Sequence[Expr]) -> Expr:
    result = const(1)
    for dim in dims:
        result = result * dim
    return result


def static_shape(shape: Shape) -> tuple[int, ...] | None:
    """The shape as ints, or None when a dim is symbolic."""
    return tuple(int(dim.value) for dim in shape) if all(dim.is_const for dim in shape) else None


def bind_shape(shape: Shape, sizes: Mapping[Expr, int]) -> tuple[int, ...]:
    """The shape as ints once the sizes are known."""
    return tuple(evaluate_int(dim, sizes) for dim in shape)


def sizes_of(types: Iterable[TensorType]) -> tuple[Expr, ...]:
    """The named sizes in the shapes, in order of first use."""
    return free_vars(*(dim for type_ in types for dim in type_.shape))
