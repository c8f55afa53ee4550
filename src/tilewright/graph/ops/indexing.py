"""Gathering elements from computed positions, and scattering elements to them.

Negative indices count from the end. A gather clamps positions that are still outside of the tensor; a scatter drops them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs, expect_one_dtype
from tilewright.graph.ops.positions import clamped, clamped_array, element, expect_indices, inside, nest, wrapped, wrapped_array
from tilewright.graph.ops.scalars import scalar_binary
from tilewright.graph.shapes import dims_equal, format_shape, normalize_axis
from tilewright.ir.expr import Expr, all_of, const
from tilewright.ir.types import Shape, TensorType
from tilewright.kernel.builder import KernelBuilder, StmtBuilder, Tensor
from tilewright.support.errors import TypeRuleError

REDUCTIONS: dict[str, Callable[[Array, Array], Any]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise TypeRuleError(f"{name}: there is no reduction {reduction!r}", why=f"it is one of {', '.join(REDUCTIONS)}")


def _combine(reduction: str, old: Expr, new: Expr) -> Expr:
    return new if reduction == "none" else scalar_binary(reduction, old, new)


@dataclass(frozen=True, slots=True, eq=False)
class Gather(Operator):
    """(x, indices) -> slices of x along `axis`: out[a..., i..., b...] = x[a..., indices[i...], b...]. Shape: that of x with `axis`
    replaced by the shape of the indices."""

    name: ClassVar[str] = "gather"
    axis: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("gather", inputs, 2)
        x, indices = inputs
        axis = normalize_axis(self.axis, x.rank, "gather")
        expect_indices("gather", indices)
        return (TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :]),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, indices = inputs
        if x.shape[self.axis] == 0:
            axis = self.axis % x.ndim
            return (np.zeros(x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype),)
        return (np.asarray(np.take(x, clamped_array(indices, x.shape[self.axis]), axis=self.axis)),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, indices = inputs
        axis, inner = self.axis % x.rank, indices.rank
        dim = x.shape[axis]

        def value(*i: Expr) -> Expr:
            at = clamped(wrapped(indices[i[axis : axis + inner]], dim), dim)
            return element(x, (*i[:axis], at, *i[axis + inner :]), (dim,))

        return (k.compute("gather", x.shape[:axis] + indices.shape + x.shape[axis + 1 :], value),)


@dataclass(frozen=True, slots=True, eq=False)
class GatherElements(Operator):
    """(x, indices) of one rank -> out[i...] = x[i... with i[axis] replaced by indices[i...]], in the shape of the indices."""

    name: ClassVar[str] = "gather_elements"
    axis: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("gather_elements", inputs, 2)
        x, indices = inputs
        normalize_axis(self.axis, x.rank, "gather_elements")
        expect_indices("gather_elements", indices)
        if x.rank != indices.rank:
            raise TypeRuleError(f"gather_elements: {format_shape(x.shape)} and the indices {format_shape(indices.shape)} differ in rank")
        return (TensorType(x.dtype, indices.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, indices = inputs
        axis = self.axis % x.ndim
        if x.shape[axis] == 0:
            return (np.zeros(indices.shape, x.dtype),)
        at: list[Array] = list(np.indices(indices.shape, sparse=True))
        at[axis] = clamped_array(indices, x.shape[axis])
        return (np.asarray(x[tuple(at)]),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, indices = inputs
        axis = self.axis % x.rank
        dim = x.shape[axis]

        def value(*i: Expr) -> Expr:
            return element(x, (*i[:axis], clamped(wrapped(indices[i], dim), dim), *i[axis + 1 :]), (dim,))

        return (k.compute("gather_elements", indices.shape, value),)


@dataclass(frozen=True, slots=True, eq=False)
class GatherNd(Operator):
    """(x, indices[..., m]) -> slices of x at the m-dimensional positions in the last axis of the indices. The first `batch_dims` axes are
    common to both. Shape: indices.shape[:-1] + x.shape[batch_dims + m:]."""

    name: ClassVar[str] = "gather_nd"
    batch_dims: int = 0

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("gather_nd", inputs, 2)
        x, indices = inputs
        expect_indices("gather_nd", indices)
        depth = index_depth("gather_nd", indices)
        batch = self.batch_dims
        if not 0 <= batch < indices.rank or batch + depth > x.rank:
            raise TypeRuleError(
                f"gather_nd: {depth} coordinates after {batch} batch axes do not index {format_shape(x.shape)}",
                why=f"it has {x.rank} axes",
            )
        for axis in range(batch):
            if not dims_equal(x.shape[axis], indices.shape[axis]):
                raise TypeRuleError(f"gather_nd: batch axis {axis} has sizes {x.shape[axis]!r} and {indices.shape[axis]!r}")
        return (TensorType(x.dtype, indices.shape[:-1] + x.shape[batch + depth :]),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, indices = inputs
        batch, depth = self.batch_dims, indices.shape[-1]
        if 0 in x.shape[batch : batch + depth]:
            return (np.zeros(indices.shape[:-1] + x.shape[batch + depth :], x.dtype),)
        grid = np.indices(indices.shape[:-1], sparse=True) if indices.ndim > 1 else ()
        own = [clamped_array(indices[..., j], x.shape[batch + j]) for j in range(depth)]
        at = (*grid[:batch], *own)
        if not at:
            return (np.broadcast_to(x, indices.shape[:-1] + x.shape).copy(),)
        picked = x[at]
        return (np.asarray(picked).reshape(indices.shape[:-1] + x.shape[batch + depth :]),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, indices = inputs
        batch, depth, outer = self.batch_dims, int(indices.shape[-1].value), indices.rank - 1

        def value(*i: Expr) -> Expr:
            dims = x.shape[batch : batch + depth]
            at = [clamped(wrapped(indices[(*i[:outer], const(j))], dim), dim) for j, dim in enumerate(dims)]
            return element(x, (*i[:batch], *at, *i[outer:]), dims)

        return (k.compute("gather_nd", indices.shape[:-1] + x.shape[batch + depth :], value),)


def index_depth(name: str, indices: TensorType) -> int:
    """The static length of the last axis of an n-dimensional index tensor. Raises TypeRuleError."""
    if indices.rank == 0 or not indices.shape[-1].is_const:
        raise TypeRuleError(f"{name}: the indices are {format_shape(indices.shape)}", why="their last axis must have a constant size")
    return int(indices.shape[-1].value)


@dataclass(frozen=True, slots=True, eq=False)
class ScatterElements(Operator):
    """(x, indices, updates) -> x with out[i... with i[axis] replaced by indices[i...]] combined with updates[i...], in row-major order.
    `reduction`: none (replace), add, mul, min, max."""

    name: ClassVar[str] = "scatter_elements"
    axis: int
    reduction: str = "none"

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("scatter_elements", inputs, 3)
        x, indices, updates = inputs
        _check_reduction("scatter_elements", self.reduction)
        normalize_axis(self.axis, x.rank, "scatter_elements")
        expect_indices("scatter_elements", indices)
        expect_one_dtype("scatter_elements", (x, updates))
        if x.rank != indices.rank or not _same(indices.shape, updates.shape):
            raise TypeRuleError(
                f"scatter_elements: {format_shape(x.shape)}, indices {format_shape(indices.shape)}, updates {format_shape(updates.shape)}",
                why="the updates must have the shape of the indices, and all one rank",
            )
        return (x,)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, indices, updates = inputs
        axis, combine = self.axis % x.ndim, REDUCTIONS[self.reduction]
        out = x.copy()
        positions = wrapped_array(indices, x.shape[axis])
        for point in np.ndindex(*indices.shape):
            if 0 <= positions[point] < x.shape[axis]:
                at = (*point[:axis], int(positions[point]), *point[axis + 1 :])
                out[at] = combine(out[at], updates[point])
        return (out,)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, indices, updates = inputs
        axis = self.axis % x.rank
        # Lines along `axis` are independent. When it is not the last axis, the last one is walked inside, next to each other in memory.
        walked = list(range(axis + 1, x.rank))[-1:]
        outer = [a for a in range(x.rank) if a != axis and a not in walked]

        def body(s: StmtBuilder, outs: tuple[Tensor, ...], *point: Expr) -> None:
            out = outs[0]
            at = [const(0)] * x.rank
            for a, e in zip(outer, point, strict=True):
                at[a] = e

            def place(line: Expr, inner: tuple[Expr, ...]) -> tuple[Expr, ...]:
                full = list(at)
                full[axis] = line
                for a, e in zip(walked, inner, strict=True):
                    full[a] = e
                return tuple(full)

            with nest(s, "c", [x.shape[axis], *(x.shape[a] for a in walked)]) as (line, *inner):
                s.store(out, place(line, tuple(inner)), x[place(line, tuple(inner))])
            with s.when(all_of(*(e < indices.shape[a] for a, e in zip(outer, point, strict=True)))):
                extents = [indices.shape[axis], *(indices.shape[a] for a in walked)]
                with nest(s, "u", extents) as (line, *inner):
                    source = place(line, tuple(inner))
                    target = s.let("at", wrapped(indices[source], x.shape[axis]))
                    with s.when(inside(target, x.shape[axis])):
                        spot = place(target, tuple(inner))
                        s.store(out, spot, _combine(self.reduction, out[spot], updates[source]))

        domain = [x.shape[a] for a in outer]
        return k.opaque("scatter_elements", [TensorType(x.dtype, x.shape)], domain, body)


def _same(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(dims_equal(p, q) for p, q in zip(a, b))


@dataclass(frozen=True, slots=True, eq=False)
class ScatterNd(Operator):
    """(x, indices[..., m], updates) -> x with the slices at the m-dimensional positions combined with the updates, in row-major order
    of the positions. updates.shape = indices.shape[:-1] + x.shape[m:]. `reduction` as in ScatterElements."""

    name: ClassVar[str] = "scatter_nd"
    reduction: str = "none"

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("scatter_nd", inputs, 3)
        x, indices, updates = inputs
        _check_reduction("scatter_nd", self.reduction)
        expect_indices("scatter_nd", indices)
        expect_one_dtype("scatter_nd", (x, updates))
        depth = index_depth("scatter_nd", indices)
        if depth > x.rank or not _same(updates.shape, indices.shape[:-1] + x.shape[depth:]):
            raise TypeRuleError(
                f"scatter_nd: x {format_shape(x.shape)}, indices {format_shape(indices.shape)}, updates {format_shape(updates.shape)}",
                why="the updates must have the shape indices.shape[:-1] + x.shape[indices.shape[-1]:]",
            )
        return (x,)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, indices, updates = inputs
        depth, combine = indices.shape[-1], REDUCTIONS[self.reduction]
        out = x.copy()
        for point in np.ndindex(*indices.shape[:-1]):
            at = tuple(int(wrapped_array(indices[(*point, j)], x.shape[j])) for j in range(depth))
            if all(0 <= p < x.shape[j] for j, p in enumerate(at)):
                out[at] = combine(out[at], updates[point])
        return (out,)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, indices, updates = inputs
        depth, batch = int(indices.shape[-1].value), indices.rank - 1
        # Points of the slices are independent; the last axis stays inside, so that memory is walked in order.
        outer = x.shape[depth:-1] if x.rank > depth else ()
        inner = x.shape[-1:] if x.rank > depth else ()

        def body(s: StmtBuilder, outs: tuple[Tensor, ...], *point: Expr) -> None:
            out = outs[0]
            with nest(s, "c", [*x.shape[:depth], *inner]) as at:
                spot = (*at[:depth], *point, *at[depth:])
                s.store(out, spot, x[spot])
            with nest(s, "u", indices.shape[:-1]) as row:
                position = [s.let("at", wrapped(indices[(*row, const(j))], x.shape[j])) for j in range(depth)]
                with s.when(all_of(*(inside(p, dim) for p, dim in zip(position, x.shape)))):
                    with nest(s, "w", inner) as last:
                        spot = (*position, *point, *last)
                        s.store(out, spot, _combine(self.reduction, out[spot], updates[(*row[:batch], *point, *last)]))

        return k.opaque("scatter_nd", [TensorType(x.dtype, x.shape)], list(outer), body)
