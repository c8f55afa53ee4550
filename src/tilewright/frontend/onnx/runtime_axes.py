"""Axes that are known only while the model runs: one set of reshapes whose dims depend on them serves every choice.

An axis of size n that may be chosen is seen as two axes [r, q] with r * q = n: [n, 1] if it is chosen and [1, n] if not. What is done
along chosen axes then is done along all the r, and the q are what stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.sizes import from_end
from tilewright.graph.node import Value
from tilewright.graph.shapes import canonical
from tilewright.ir import expr as ex
from tilewright.ir.expr import FALSE, Expr, const
from tilewright.ir.types import product


def runtime_axes(ctx: NodeContext, index: int, rank: int) -> tuple[Expr, ...]:
    """The axes in a tensor of known length, counted from the front; numbers outside of [-rank, rank) fail when the model runs."""
    given = ctx.as_sizes(ctx.input(index), f"{ctx.node.output[0]}_axis", lo=-rank, hi=rank - 1)
    return tuple(from_end(axis, const(rank)) for axis in given)


def runtime_axis(ctx: NodeContext, index: int, rank: int) -> Expr:
    """The same of a scalar, or of a tensor of one element."""
    return from_end(ctx.as_size(ctx.input(index), f"{ctx.node.output[0]}_axis", lo=-rank, hi=rank - 1), const(rank))


def chosen(axes: Sequence[Expr], rank: int) -> tuple[Expr, ...]:
    """For each axis of a tensor whether it is among `axes`."""
    return tuple(_any([ex.equal(axis, i) for axis in axes]) for i in range(rank))


def _any(conditions: Sequence[Expr]) -> Expr:
    result = FALSE
    for condition in conditions:
        result = ex.logical_or(result, condition)
    return canonical(result)


def picked(axes: Sequence[Expr], values: Sequence[Expr], position: int, default: Expr) -> Expr:
    """Of `values`, which go with `axes`, that of axis `position`; `default` if it is not among them."""
    result = default
    for axis, value in zip(axes, values, strict=True):
        result = ex.select(ex.equal(axis, position), value, result)
    return canonical(result)


def places(marks: Sequence[Expr]) -> tuple[Expr, ...]:
    """For each axis, how many before it are not marked."""
    found, count = [], const(0)
    for mark in marks:
        found.append(canonical(count))
        count = count + ex.select(mark, 0, 1)
    return tuple(found)


def without(shape: Sequence[Expr], marks: Sequence[Expr], count: int) -> tuple[Expr, ...]:
    """The dims that are not marked, in order, where `count` are not. Where more are not, as an axis is named twice, a dim of -1 says so: a
    shape that nothing can be reshaped to."""
    terms = list(zip(shape, marks, places(marks), strict=True))
    total = canonical(sum((ex.select(mark, 0, 1) for mark in marks), const(0)))
    dims = []
    for at in range(count):
        dim = const(0)
        for size, mark, place in terms:
            dim = ex.select(ex.logical_and(ex.logical_not(mark), ex.equal(place, at)), size, dim)
        dims.append(canonical(ex.select(ex.equal(total, count), dim, -1)))
    return tuple(dims)


def with_ones(shape: Sequence[Expr], marks: Sequence[Expr]) -> tuple[Expr, ...]:
    """The dims of `shape` in order where `marks` is false, and 1 where it is true; past the last of them -1, as `without` has it."""
    dims = []
    for mark, place in zip(marks, places(marks), strict=True):
        dim = const(-1)
        for at, size in enumerate(shape):
            dim = ex.select(ex.equal(place, at), size, dim)
        dims.append(canonical(ex.select(mark, 1, dim)))
    return tuple(dims)


def split_by(shape: Sequence[Expr], marks: Sequence[Expr]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The r and the q of each axis."""
    r = tuple(canonical(ex.select(mark, dim, 1)) for dim, mark in zip(shape, marks, strict=True))
    q = tuple(canonical(ex.select(mark, 1, dim)) for dim, mark in zip(shape, marks, strict=True))
    return r, q


@dataclass(frozen=True, slots=True)
class AroundAxis:
    """A tensor seen as [outer, n, inner] around an axis that is known at run time only."""

    view: Value
    shape: tuple[Expr, ...]
    axis: Expr

    def restored(self, ctx: NodeContext, result: Value) -> Value:
        """[outer, m, inner] as a tensor of the original rank, with m at the axis."""
        size = result.shape[1]
        return ctx.reshape(result, [canonical(ex.select(ex.equal(self.axis, i), size, dim)) for i, dim in enumerate(self.shape)])


def around_axis(ctx: NodeContext, x: Value, axis: Expr) -> AroundAxis:
    """`x` as [outer, n, inner] with n the size of `axis`."""
    before, size, after = [], const(1), []
    for i, dim in enumerate(x.shape):
        before.append(canonical(ex.select(ex.less(i, axis), dim, 1)))
        size = ex.select(ex.equal(axis, i), dim, size)
        after.append(canonical(ex.select(ex.less(axis, i), dim, 1)))
    view = ctx.reshape(x, (canonical(product(before)), canonical(size), canonical(product(after))))
    return AroundAxis(view, x.shape, axis)
