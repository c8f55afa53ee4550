"""Convolutions by Winograd's minimal filtering, in channel-blocked layouts.

The image is cut into tiles of `tile` results (m along each axis, with windows of r taps); each tile reads n = m + r - 1 inputs along
an axis and becomes n products: transform the inputs, multiply each of the prod(n) points by the transformed weights and sum over
channels (a matrix product of tiles by channels for each point), transform the sums back. The transforms are those of
`winograd_transforms.py`; they are one block for each axis, which schedules inline into each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.blocked import Block, Unblock, blocked_count, inside
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.padding import pad_block, windowed_dim
from tilewright.graph.ops.winograd_transforms import Matrix, apply_along, chosen, products, transforms
from tilewright.graph.shapes import canonical, dims_equal, format_shape
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, ceildiv, const
from tilewright.ir.types import Shape, TensorType, product
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError


def points_of(tile: Sequence[int], window: Sequence[int]) -> tuple[int, ...]:
    """Points along each axis, which is also how many inputs a tile reads there."""
    return tuple(m + r - 1 for m, r in zip(tile, window, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class WinogradWeights(Operator):
    """[O, C, *K] -> [*n, C, O]: the weights at each point, for tiles of `tile` results. float32, computed in float64."""

    name: ClassVar[str] = "winograd_weights"
    tile: tuple[int, ...]

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("winograd_weights", inputs, 1)
        (w,) = inputs
        if w.rank != len(self.tile) + 2 or w.dtype is not dtypes.float32 or not all(dim.is_const for dim in w.shape[2:]):
            raise TypeRuleError(f"winograd_weights: {w!r} are no float32 weights for tiles {self.tile}")
        points = points_of(self.tile, [int(dim.value) for dim in w.shape[2:]])
        return (TensorType(w.dtype, (*map(const, points), w.shape[1], w.shape[0])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (w,) = inputs
        found = w.astype(np.float64)
        for axis, (m, r) in enumerate(zip(self.tile, w.shape[2:], strict=True), 2):
            found = apply_along(found, axis, transforms(m, r).weights)
        order = (*range(2, w.ndim), 1, 0)
        return (np.ascontiguousarray(found.astype(np.float32).transpose(order)),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (found,) = inputs
        rank = len(self.tile)
        for axis, (m, r) in enumerate(zip(self.tile, found.shape[2:], strict=True)):
            found = self._along(k, found, axis, transforms(m, int(r.value)).weights)
        shape = (*found.shape[2:], found.shape[1], found.shape[0])
        return (k.compute("winograd_weights", shape, lambda *at: found[(at[rank + 1], at[rank], *at[:rank])]),)

    def _along(self, k: KernelBuilder, w: Tensor, axis: int, matrix: Matrix) -> Tensor:
        def value(o: Expr, c: Expr, *at: Expr) -> Expr:
            taps = [w[(o, c, *at[:axis], const(i), *at[axis + 1 :])] for i in range(len(matrix[0]))]
            return chosen(at[axis], products(matrix, taps))

        shape = (*w.shape[: 2 + axis], const(len(matrix)), *w.shape[3 + axis :])
        return k.compute("winograd_taps", shape, value)


@dataclass(frozen=True, slots=True, eq=False)
class WinogradConvolution(Operator):
    """A dense convolution without stride and dilation: x [N, ceil(C/lanes), *S, lanes] and weights [*n, C, O] as `WinogradWeights` gives
    them for `tile` and `window`, to [N, O/lanes, *S', lanes]; O is a multiple of the lanes. `low`, `high`: zeros around the image. float32.
    """

    name: ClassVar[str] = "winograd_convolution"
    tile: tuple[int, ...]
    window: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    lanes: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("winograd_convolution", inputs, 2)
        x, u = inputs
        rank = len(self.tile)
        if x.rank != rank + 3 or x.shape[-1] is not const(self.lanes) or x.dtype is not dtypes.float32 or u.dtype is not dtypes.float32:
            raise TypeRuleError(f"winograd_convolution: {x!r} is not blocked float32 for tiles {self.tile}")
        if u.rank != rank + 2 or u.shape[:rank] != tuple(map(const, points_of(self.tile, self.window))):
            raise TypeRuleError(f"winograd_convolution: {format_shape(u.shape)} are no weights for tiles {self.tile} of {self.window}")
        c, o = u.shape[rank:]
        if not (o.is_const and o.value % self.lanes == 0 and dims_equal(x.shape[1], blocked_count(c, self.lanes))):
            raise TypeRuleError(f"winograd_convolution: the weights {format_shape(u.shape)} do not fit the input {format_shape(x.shape)}")
        return (TensorType(dtypes.float32, (x.shape[0], const(o.value // self.lanes), *self._space(x.shape), const(self.lanes))),)

    def _space(self, x: Shape) -> Shape:
        """The spatial shape of the result."""
        axes = zip(x[2:-1], self.low, self.high, self.window, strict=True)
        return tuple(windowed_dim(dim, low, high, const(r), 1, 1) for dim, low, high, r in axes)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, u = inputs
        rank = len(self.tile)
        plain = Unblock(const(u.shape[-2])).reference((x,))[0].astype(np.float64)
        sizes = [int(dim.value) for dim in self._space(tuple(map(const, x.shape)))]
        if 0 in sizes:  # an image that is smaller than the window, of which there is no tile to cut
            return (np.zeros((x.shape[0], u.shape[-1] // self.lanes, *sizes, self.lanes), np.float32),)
        tiles = [-(-size // m) for size, m in zip(sizes, self.tile, strict=True)]
        need = [count * m + r - 1 for count, m, r in zip(tiles, self.tile, self.window, strict=True)]
        low = [int(amount.value) for amount in self.low]
        widths = [(max(a, 0), max(n - a - dim, 0)) for a, n, dim in zip(low, need, plain.shape[2:], strict=True)]
        padded = np.pad(plain, [(0, 0), (0, 0), *widths])
        begin = [max(-a, 0) for a in low]
        padded = padded[(slice(None), slice(None), *(slice(a, a + n) for a, n in zip(begin, need, strict=True)))]
        points = points_of(self.tile, self.window)
        found = np.lib.stride_tricks.sliding_window_view(padded, points, axis=tuple(range(2, 2 + rank)))
        found = found[(slice(None), slice(None), *(slice(None, None, m) for m in self.tile))]  # [N, C, *tiles, *points]
        for axis, (m, r) in enumerate(zip(self.tile, self.window, strict=True), 2 + rank):
            found = apply_along(found, axis, transforms(m, r).inputs)
        flat, weights = found.reshape(x.shape[0], plain.shape[1], -1, u[..., 0, 0].size), u.astype(np.float64).reshape(-1, *u.shape[rank:])
        sums = np.einsum("nctp,pco->notp", flat, weights, optimize=True).reshape(x.shape[0], u.shape[-1], *tiles, *points)
        for axis, (m, r) in enumerate(zip(self.tile, self.window, strict=True), 2 + rank):
            sums = apply_along(sums, axis, transforms(m, r).outputs)
        order = [0, 1, *(axis for i in range(rank) for axis in (2 + i, 2 + rank + i))]
        joined = sums.transpose(order).reshape(x.shape[0], u.shape[-1], *(t * m for t, m in zip(tiles, self.tile, strict=True)))
        cut = joined[(slice(None), slice(None), *(slice(size) for size in sizes))]
        return Block(self.lanes).reference((cut.astype(np.float32),))

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, u = inputs
        rank, lanes = len(self.tile), const(self.lanes)
        tiles = tuple(ceildiv(size, const(m)) for size, m in zip(self._space(x.shape), self.tile, strict=True))
        images = self._images(k, x, tiles)

        def term(*at: Expr) -> Expr:
            p, (ob, t, o, cb, c) = at[:rank], at[rank:]
            return images[(*p, cb, t, c)] * u[(*p, cb * self.lanes + c, ob * self.lanes + o)]

        blocks = const(u.shape[-1].value // self.lanes)
        whole = dims_equal(canonical(x.shape[1] * lanes), u.shape[rank])
        ragged = None if whole else partial(inside, u.shape[rank], lanes)
        shape = (*u.shape[:rank], blocks, images.shape[-2], lanes)
        sums = k.reduce("winograd_product", shape, (x.shape[1], lanes), term, "sum", ragged)
        return (self._results(k, sums, (x.shape[0], blocks, *self._space(x.shape), lanes), tiles),)

    def _images(self, k: KernelBuilder, x: Tensor, tiles: Shape) -> Tensor:
        """[*n, C/lanes, tiles of all images, lanes]: the transformed inputs."""
        rank, zero = len(self.tile), const(0)
        covered = [tiles[i] * m + (r - 1) for i, (m, r) in enumerate(zip(self.tile, self.window, strict=True))]
        high = [canonical(size - low - dim) for size, low, dim in zip(covered, self.low, x.shape[2:-1], strict=True)]
        padded = pad_block(k, x, (zero, zero, *self.low, zero), (zero, zero, *high, zero), const(0, x.dtype))

        def source(n: Expr, cb: Expr, place: Sequence[Expr], at: Sequence[Expr], c: Expr) -> Expr:
            return padded[(n, cb, *(t * m + i for t, m, i in zip(place, self.tile, at, strict=True)), c)]

        found: Tensor | None = None
        points = tuple(map(const, points_of(self.tile, self.window)))
        for axis, (m, r) in enumerate(zip(self.tile, self.window, strict=True)):
            matrix, before = transforms(m, r).inputs, found

            def value(*at: Expr, axis: int = axis, matrix: Matrix = matrix, before: Tensor | None = before) -> Expr:
                cb, t, c = at[rank:]
                taps = [(*at[:axis], const(i), *at[axis + 1 : rank]) for i in range(len(matrix))]
                n, *place = _split(t, tiles)
                read = [before[(*tap, cb, t, c)] if before is not None else source(n, cb, place, tap, c) for tap in taps]
                return chosen(at[axis], products(matrix, read))

            found = k.compute("winograd_input", (*points, x.shape[1], product((x.shape[0], *tiles)), const(self.lanes)), value)
        return found if found is not None else x

    def _results(self, k: KernelBuilder, sums: Tensor, shape: Shape, tiles: Shape) -> Tensor:
        """The sums at each point transformed to results, at their places in the image."""
        rank = len(self.tile)
        for axis in range(rank - 1):
            matrix, before = transforms(self.tile[axis], self.window[axis]).outputs, sums

            def value(*at: Expr, axis: int = axis, matrix: Matrix = matrix, before: Tensor = before) -> Expr:
                return chosen(at[axis], products(matrix, [before[(*at[:axis], const(i), *at[axis + 1 :])] for i in range(len(matrix[0]))]))

            sums = k.compute("winograd_sums", (*sums.shape[:axis], const(len(matrix)), *sums.shape[axis + 1 :]), value)
        matrix = transforms(self.tile[-1], self.window[-1]).outputs

        def result(n: Expr, ob: Expr, *at: Expr) -> Expr:
            place, o = at[:-1], at[-1]
            t = _joined(n, [i // m for i, m in zip(place, self.tile, strict=True)], tiles)
            inside = [i % m for i, m in zip(place, self.tile, strict=True)]
            read = [sums[(*inside[:-1], const(i), ob, t, o)] for i in range(len(matrix[0]))]
            return chosen(inside[-1], products(matrix, read))

        return k.compute("winograd_output", shape, result)


def _joined(n: Expr, places: Sequence[Expr], tiles: Sequence[Expr]) -> Expr:
    """The number of a tile among those of all images."""
    found = n
    for place, count in zip(places, tiles, strict=True):
        found = found * count + place
    return found


def _split(t: Expr, tiles: Sequence[Expr]) -> list[Expr]:
    """The image and the tile's place in it."""
    places: list[Expr] = []
    for count in reversed(tiles):
        places.append(t % count)
        t = t // count
    return [t, *reversed(places)]
