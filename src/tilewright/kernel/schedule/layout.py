"""Layouts: a buffer stored in tiles, so that the loops that read it walk through memory in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.expr import Expr, ceildiv, const, load
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import transform
from tilewright.ir.types import Shape
from tilewright.kernel.nodes import Block, Buffer, Kernel, Prefetch, Stmt, Store, map_stmt, walk_stmts, with_fields
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.nest import Nest, edit, refuse

Array = np.ndarray[Any, np.dtype[Any]]
Tiles = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How a dense array is repacked: dimension d is cut into tiles of `tiles[d]` (outermost first; none: kept whole), ragged ends padded
    with zeros, and the resulting axes are put in `order`.

    B[k, n] with tiles ((), (48,)) has axes (k, n outer, n inner); order (1, 0, 2) stores panels [n/48][k][48].
    """

    buffer: str
    tiles: Tiles
    order: tuple[int, ...]

    def axes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Sizes of the tiled axes, before `order`."""
        result: list[int] = []
        for size, factors in zip(shape, self.tiles, strict=True):
            result += [-(-size // prod(factors)), *factors]
        return tuple(result)

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        axes = self.axes(shape)
        return tuple(axes[axis] for axis in self.order)

    def pack(self, array: Array) -> Array:
        """The array in this layout, contiguous."""
        axes = self.axes(array.shape)
        padded = [-(-size // prod(factors)) * prod(factors) for size, factors in zip(array.shape, self.tiles, strict=True)]
        if tuple(padded) != array.shape:
            array = np.pad(array, [(0, full - size) for full, size in zip(padded, array.shape, strict=True)])
        return np.ascontiguousarray(array.reshape(axes).transpose(self.order))

    def unpack(self, packed: Array, shape: Sequence[int]) -> Array:
        """The array of `shape` that `pack` made this from."""
        dense = packed.transpose(np.argsort(self.order))
        full = [-(-size // prod(factors)) * prod(factors) for size, factors in zip(shape, self.tiles, strict=True)]
        return np.ascontiguousarray(dense.reshape(full)[tuple(slice(size) for size in shape)])

    def shape(self, shape: Shape) -> Shape:
        """The packed shape of symbolic dims."""
        axes: list[Expr] = []
        for size, factors in zip(shape, self.tiles, strict=True):
            axes += [ceildiv(size, const(prod(factors))), *(const(f) for f in factors)]
        return tuple(axes[axis] for axis in self.order)

    def indices(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where element `indices` of the dense array is."""
        axes: list[Expr] = []
        for index, factors in zip(indices, self.tiles, strict=True):
            rest = index
            parts: list[Expr] = []
            for factor in reversed(factors):
                parts.append(rest % factor)
                rest = rest // factor
            axes += [rest, *reversed(parts)]
        return tuple(axes[axis] for axis in self.order)


def pack(nest: Nest, buffer: str, tiles: Sequence[Sequence[int]], order: Sequence[int]) -> Change:
    """Store a buffer in tiles (TVM: transform_layout). `tiles` gives the tile sizes of each dimension, outermost first, and `order` puts
    the axes (of each dimension: number of tiles, then sizes) in their new order; ragged ends are padded.

        B: float32[k, n], tiles ((), (48,)), order (1, 0, 2):
        B[r, v]   ->   B: float32[ceildiv(n, 48), k, 48];  B[v // 48, r, v % 48]

    Of an input the caller must pass the packed array: `Schedule.layouts` tells how. Outputs keep their layout.
    """
    old = nest.buffer(buffer)
    if old in nest.kernel.outputs:
        refuse(f"{buffer} is an output, whose layout is given", "cache_write it and pack the copy")
    if any(isinstance(stmt, Prefetch) and stmt.buffer is old for stmt in walk_stmts(nest.kernel.body)):
        refuse(f"{buffer} is prefetched, from where it lies now", "pack before prefetching")
    layout = PackedLayout(buffer, tuple(tuple(int(f) for f in factors) for factors in tiles), tuple(order))
    if len(layout.tiles) != len(old.shape):
        refuse(f"{buffer} has {len(old.shape)} dimensions, tiles are given for {len(layout.tiles)}")
    if any(factor < 1 for factors in layout.tiles for factor in factors):
        refuse(f"tiles {layout.tiles} are not positive")
    count = sum(1 + len(factors) for factors in layout.tiles)
    if sorted(layout.order) != list(range(count)):
        refuse(f"order {layout.order} does not name each of the {count} axes once")
    new = Buffer(old.name, old.dtype, layout.shape(old.shape), old.scope)
    kernel = _transformed(nest, old, new, layout)
    return Change(kernel, (), layout if old in nest.kernel.inputs else None)


def _transformed(nest: Nest, old: Buffer, new: Buffer, layout: PackedLayout) -> Kernel:
    memo: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr | None:
        return load(new, layout.indices(e.args)) if e.op is Op.LOAD and e.attr is old else None

    def on_stmt(stmt: Stmt) -> Stmt:
        mapped = map_stmt(stmt, on_stmt, lambda e: transform(e, visit, memo))
        return Store(new, layout.indices(mapped.indices), mapped.value) if isinstance(mapped, Store) and mapped.buffer is old else mapped

    changes: dict[Stmt, Stmt | None] = {}
    for name in dict.fromkeys((*nest.readers(old), *nest.writers(old))):
        block: Block = nest.blocks[name].stmt
        init = None if block.init is None else on_stmt(block.init)
        changes[block] = with_fields(block, body=on_stmt(block.body), init=init)
    kernel = nest.kernel

    def each(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(new if b is old else b for b in buffers)

    body = edit(kernel.body, changes)
    return Kernel(
        kernel.name, each(kernel.inputs), kernel.outputs, kernel.body if body is None else body, kernel.sizes, each(kernel.scratch)
    )
