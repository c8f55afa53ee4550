"""Stores to scratch buffers that nothing reads, and requests for memory that nothing reads, dropped; what is computed only for them goes
with them.

for i in 8: t[i] = x[i]            ->     for i in 8: y[i] = 1
for i in 8: y[i] = 1                      (after t[i] == t[i] was simplified, say)
"""

from __future__ import annotations

from tilewright.kernel.nodes import NOTHING, Buffer, For, Kernel, Prefetch, Stmt, Store, loads, map_stmt, own_exprs, walk_stmts, with_fields


def drop_unread(kernel: Kernel) -> Kernel:
    """The lowered kernel (no blocks) without scratch buffers that only stores to themselves read."""
    unread = frozenset(kernel.scratch) - _read(kernel.body)
    while unread:
        scratch = tuple(buffer for buffer in kernel.scratch if buffer not in unread)
        kernel = with_fields(kernel, body=_without(kernel.body, unread), scratch=scratch)
        unread = frozenset(kernel.scratch) - _read(kernel.body)
    return kernel


def drop_idle_prefetches(kernel: Kernel) -> Kernel:
    """The lowered kernel without prefetches of buffers that nothing reads: simplification may have found that it all is padding."""
    asked = {stmt.buffer for stmt in walk_stmts(kernel.body) if isinstance(stmt, Prefetch)}
    idle = frozenset(asked - _read(kernel.body))
    return with_fields(kernel, body=_without(kernel.body, idle)) if idle else kernel


def _read(body: Stmt) -> frozenset[Buffer]:
    """Buffers that are read for anything but their own elements."""
    found: set[Buffer] = set()
    for stmt in walk_stmts(body):
        own = stmt.buffer if isinstance(stmt, Store) else None
        found.update(load.attr for load in loads(*own_exprs(stmt)) if load.attr is not own)
    return frozenset(found)


def _without(stmt: Stmt, unread: frozenset[Buffer]) -> Stmt:
    if isinstance(stmt, (Store, Prefetch)) and stmt.buffer in unread:
        return NOTHING
    result = map_stmt(stmt, lambda child: _without(child, unread))
    return NOTHING if isinstance(result, For) and result.body is NOTHING else result
