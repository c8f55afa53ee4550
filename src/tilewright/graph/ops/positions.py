"""Positions read from index tensors, and loop nests of opaque definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from tilewright.graph.node import Array
from tilewright.ir import dtypes
from tilewright.ir.bounds import bounds
from tilewright.ir.expr import Expr, ExprLike, all_of, cast, const, less, maximum, minimum, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import StmtBuilder, Tensor
from tilewright.support.errors import TypeRuleError


def expect_indices(name: str, type_: TensorType) -> None:
    """Check that an operand holds indices. Raises TypeRuleError."""
    if type_.dtype not in (dtypes.int32, dtypes.int64):
        raise TypeRuleError(f"{name}: the indices are {type_.dtype.name}", why="they must be int32 or int64")


def wrapped(index: Expr, dim: Expr) -> Expr:
    """The position as int64, counted from the end when negative; not clamped."""
    at = cast(dtypes.int64, index)
    return select(at < 0, at + dim, at) if index.dtype.is_signed else at


def clamped(position: Expr, dim: Expr) -> Expr:
    """The nearest position inside of an axis of `dim` elements."""
    return minimum(maximum(position, const(0)), dim - 1)


def element(x: Tensor, at: Sequence[Expr], dims: Sequence[Expr]) -> Expr:
    """x[at], where `at` holds positions clamped to the axes of extents `dims`; 0 where such an axis has no element."""
    empty = [dim for dim in dims if not _has_elements(dim)]
    return select(all_of(*(less(0, dim) for dim in empty)), x[tuple(at)], const(0, x.dtype)) if empty else x[tuple(at)]


def _has_elements(dim: Expr) -> bool:
    low = bounds(dim, {}).lo
    return low is not None and low >= 1


def inside(position: Expr, dim: Expr) -> Expr:
    """Whether the position exists."""
    return (position >= 0) & (position < dim)


def wrapped_array(indices: Array, dim: int) -> Array:
    at = indices.astype(np.int64)
    return np.where(at < 0, at + dim, at)


def clamped_array(indices: Array, dim: int) -> Array:
    return np.clip(wrapped_array(indices, dim), 0, max(dim - 1, 0))


@contextmanager
def nest(s: StmtBuilder, name: str, extents: Sequence[ExprLike]) -> Iterator[tuple[Expr, ...]]:
    """Nested loops over `extents`, outermost first."""
    with ExitStack() as stack:
        yield tuple([stack.enter_context(s.loop(name, extent)) for extent in extents])
