"""Layouts for operands that a kernel reads again and again: in the order in which its loops walk, lanes innermost."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.affine import affine_in
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars
from tilewright.kernel.nodes import Block, BlockIter
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.target.cpu.rules.structure import block_of, reductions, spatial


def pack_operand(s: Schedule, name: str, load: Expr, buffer: str, vector: BlockIter, width: int) -> Schedule:
    """Store `buffer`, which block `name` reads by indices like those of `load`, in the layout that suits them; as it is where none does."""
    layout = operand_layout(block_of(s, name), load, vector, width)
    return s if layout is None else s.pack(buffer, *layout)


def operand_layout(block: Block, load: Expr, vector: BlockIter, width: int) -> tuple[list[tuple[int, ...]], list[int]] | None:
    """(tiles, order) to store what a block reads by `load` as [outer axes][vector / width][reduced axes][width].

    Each index must be an iter of the block, or `a * k + b` of two iters with 0 <= b < k, or `a // k` of a reduced one, or not move with the
    vector or what is reduced; else None.
    """
    order = [it.var for it in (*spatial(block), *reductions(block))]
    reduced = {it.var for it in reductions(block)}
    extents = {it.var: it.extent for it in block.iters}
    tiles: list[tuple[int, ...]] = []
    axes: list[tuple[tuple[int, int], int]] = []  # (group, position in loop order) to sort by, axis number
    for index in load.args:
        parts = parts_of(index, extents)
        if parts is not None and index.op is Op.FLOORDIV and parts[0] not in reduced:
            parts = None
        if parts is None and not any(v is vector.var or v in reduced for v in free_vars(index)):
            tiles.append(())  # a head that several others share, say
            axes.append(((0, min(order.index(v) for v in free_vars(index) if v in order)), len(axes)))
            continue
        if parts is None:
            return None
        if index is vector.var:
            tiles.append((width,))
            axes += [((1, 0), len(axes)), ((3, 0), len(axes) + 1)]
            continue
        tiles.append(tuple(int(extents[part].value) for part in parts[1:]))
        for part in parts:
            group = 3 if part is vector.var else 2 if part in reduced else 0
            axes.append(((group, order.index(part) if part in order else 0), len(axes)))
    return tiles, [axis for _, axis in sorted(axes)]


def parts_of(index: Expr, extents: dict[Expr, Expr]) -> Sequence[Expr] | None:
    """The iters that an index is made of, the slower one first: an iter, a constant, `a // k`, or `a * k + b` of two iters with
    0 <= b < k. None when it is of another form."""
    if index in extents:
        return (index,)
    if index.op is Op.FLOORDIV and index.args[0] in extents and index.args[1].is_const:
        return (index.args[0],)
    used = [v for v in free_vars(index) if v in extents]
    found = affine_in(index, used) if len(used) == 2 else None
    if found is None:
        return (index,) if index.is_const else None
    coefficients, rest = found
    if not (rest.is_const and rest.value == 0):
        return None
    for slow, fast in (used, reversed(used)):
        extent = extents[fast]
        if coefficients[fast].is_const and coefficients[fast].value == 1 and extent.is_const and coefficients[slow] is extent:
            return (slow, fast)
    return None
