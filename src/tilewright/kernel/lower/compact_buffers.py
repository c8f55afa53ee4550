"""Scratch buffers shrunk to what is live of them, and given their place.

    for i_o in 8:                                for i_o in 8:
      for k in 10: t[i_o*8 + k - 1] = ..    ->     for k in 10: t[k] = ..                     (t: 10 elements, local)
      for j in 8: y[..] = t[i_o*8 + j] ..          for j in 8: y[..] = t[j + 1] ..

A buffer needs room for the box that is touched during one run of the smallest statement around all its accesses. It may shrink by a loop
around that statement only if no value is carried from one iteration to the next: what an iteration reads, it writes.

Places: of constant size, at most LOCAL_BYTES, and used inside one task: local (stack or registers). Otherwise global, in the workspace;
then each iteration of a parallel loop around has a part of its own. Under a vectorized loop each lane has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.expr import Expr, const, make, sub
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import free_vars, transform
from tilewright.ir.types import product, static_shape
from tilewright.kernel.nodes import Buffer, For, If, Kernel, Let, Scope, Seq, Stmt, Store, children, map_stmt, own_exprs, with_fields
from tilewright.kernel.nodes import loads as loads_in
from tilewright.kernel.regions import Region, covers, regions, union

LOCAL_BYTES = 64 << 10  # of stack, for one buffer


def compact_buffers(kernel: Kernel) -> Kernel:
    """The lowered kernel (no blocks) with every scratch buffer of its final shape and scope."""
    mapping: dict[Buffer, _Placement] = {}
    paths = _common_paths(kernel, frozenset(kernel.scratch))
    for buffer in kernel.scratch:
        if buffer in paths:
            mapping[buffer] = _place(buffer, paths[buffer])
    body = _rewrite(kernel.body, mapping) if mapping else kernel.body
    result: Kernel = with_fields(kernel, body=body, scratch=tuple(placement.buffer for placement in mapping.values()))
    return result


@dataclass(frozen=True, slots=True)
class _Placement:
    """The new buffer; `starts` are taken from its indices; `before` and `after` are the loops that index it first and last."""

    buffer: Buffer
    starts: tuple[Expr, ...]
    before: tuple[Expr, ...]
    after: tuple[Expr, ...]


def _common_paths(kernel: Kernel, scratch: frozenset[Buffer]) -> dict[Buffer, tuple[Stmt, ...]]:
    """For each buffer the statements around all its accesses, outermost first."""
    paths: dict[Buffer, tuple[Stmt, ...]] = {}

    def visit(stmt: Stmt, path: tuple[Stmt, ...]) -> None:
        path = (*path, stmt)
        used = {e.attr for e in loads_in(*own_exprs(stmt))}
        if isinstance(stmt, Store):
            used.add(stmt.buffer)
        for buffer in used & scratch:
            known = paths.get(buffer)
            if known is None:
                paths[buffer] = path
            else:
                same = next((n for n, (a, b) in enumerate(zip(known, path)) if a is not b), min(len(known), len(path)))
                paths[buffer] = known[:same]
        for child in children(stmt):
            visit(child, path)

    visit(kernel.body, ())
    return paths


def _place(buffer: Buffer, path: tuple[Stmt, ...]) -> _Placement:
    # A loop's own extent is evaluated outside of it, so that its body is what may be repeated.
    while True:
        loops = {stmt.var: stmt.extent for stmt in path[:-1] if isinstance(stmt, For)}
        region, carried = _region(buffer, path[-1], loops)
        if not carried:
            break
        path = path[: max(n for n, stmt in enumerate(path[:-1]) if isinstance(stmt, For) and stmt.var in carried) + 1]
    dims, starts = [], []
    for (start, extent), size in zip(region.dims, buffer.shape, strict=True):
        shorter = extent.is_const and not (size.is_const and extent.value >= size.value)
        dims.append(extent if shorter else size)
        starts.append(start if shorter else const(0))
    around = [stmt for stmt in path[:-1] if isinstance(stmt, For)]
    tasks = [loop for loop in around if loop.kind == "parallel"][:1]
    lanes = [loop for loop in around if loop.kind == "vectorized" and loop.extent.is_const]
    shape = (*dims, *(loop.extent for loop in lanes))
    scope = _scope(buffer, shape, path[-1])
    if scope == "local":
        tasks = []
    placed = Buffer(buffer.name, buffer.dtype, (*(loop.extent for loop in tasks), *shape), scope)
    return _Placement(placed, tuple(starts), tuple(loop.var for loop in tasks), tuple(loop.var for loop in lanes))


def _region(buffer: Buffer, stmt: Stmt, loops: Mapping[Expr, Expr]) -> tuple[Region, frozenset[Expr]]:
    """The box touched in one run of `stmt`, and the loops around through which values may be carried."""
    found = regions(stmt, dict(loops), buffer)
    read, written = found.reads.get(buffer), found.writes.get(buffer)
    if written is None or read is None:
        region = read or written
        if region is None:
            raise KeyError(buffer.name)
    else:
        region = union((read, written), dict(loops))
    moving = frozenset(v for start, _ in region.dims for v in free_vars(start) if v in loops)
    if read is not None and moving:
        if written is None or not covers(written, read, dict(loops)) or not _writes_first(stmt, buffer, moving, loops):
            return region, moving
    return region, frozenset()


def _writes_first(stmt: Stmt, buffer: Buffer, moving: frozenset[Expr], loops: Mapping[Expr, Expr]) -> bool:
    """Whether the first access to the buffer in one run of `stmt` writes, under no condition but one that cuts off the edge of a tile."""
    match stmt:
        case Store():
            return stmt.buffer is buffer and not any(e.attr is buffer for e in loads_in(*own_exprs(stmt)))
        case If(condition, then, None):
            edge = all(v in moving or loops[v] is const(1) for v in free_vars(condition) if v in loops)
            return edge and not _reads(condition, buffer) and _writes_first(then, buffer, moving, loops)
        case For() | Let():
            return not any(_reads(e, buffer) for e in own_exprs(stmt)) and _writes_first(stmt.body, buffer, moving, loops)
        case Seq(stmts):
            first = next(child for child in stmts if _touches(child, buffer))
            return _writes_first(first, buffer, moving, loops)
        case _:
            return False


def _reads(e: Expr, buffer: Buffer) -> bool:
    return any(load.attr is buffer for load in loads_in(e))


def _touches(stmt: Stmt, buffer: Buffer) -> bool:
    if isinstance(stmt, Store) and stmt.buffer is buffer:
        return True
    return any(_reads(e, buffer) for e in own_exprs(stmt)) or any(_touches(child, buffer) for child in children(stmt))


def _scope(buffer: Buffer, shape: tuple[Expr, ...], stmt: Stmt) -> Scope:
    """The scope asked for is a wish: what has no constant size, or a great one, is global."""
    size = static_shape(shape)
    if size is None or product(shape).value * buffer.dtype.bytes > LOCAL_BYTES:
        return "global"
    return "global" if buffer.scope == "global" and _has_parallel(stmt) else "local"


def _has_parallel(stmt: Stmt) -> bool:
    return (isinstance(stmt, For) and stmt.kind == "parallel") or any(_has_parallel(child) for child in children(stmt))


def _rewrite(body: Stmt, mapping: Mapping[Buffer, _Placement]) -> Stmt:
    memo: dict[Expr, Expr] = {}

    def indices(placement: _Placement, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        moved = [
            i if start.is_const and start.value == 0 else simplify(sub(i, start)) for i, start in zip(old, placement.starts, strict=True)
        ]
        return (*placement.before, *moved, *placement.after)

    def visit(e: Expr) -> Expr | None:
        placement = mapping.get(e.attr) if e.op is Op.LOAD else None
        return None if placement is None else make(Op.LOAD, e.dtype, indices(placement, e.args), placement.buffer)

    def on_expr(e: Expr) -> Expr:
        return transform(e, visit, memo)

    def on_stmt(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in mapping:
            placement = mapping[stmt.buffer]
            return Store(placement.buffer, indices(placement, tuple([on_expr(i) for i in stmt.indices])), on_expr(stmt.value))
        return map_stmt(stmt, on_stmt, on_expr)

    return on_stmt(body)
