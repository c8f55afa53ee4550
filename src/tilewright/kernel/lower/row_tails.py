"""Register tiles of rows whose number is known only while running: a version of the body for each height of the last tile.

A tile computes several rows at once, in unrolled loops. Where their number is no multiple of the tile's height, rows beyond the end are
computed from clamped addresses and not stored: up to a whole tile of work for one row. The rows that are left are known when a tile is
begun, so the body is chosen there: one for full tiles, without clamps and conditions, and one for each number of rows below.

    for t in (n + 5) // 6:                            for t in (n + 5) // 6:
      unrolled i in 6: acc[i] = 0                       if n - t*6 >= 6: the body with 6 rows, without conditions and clamps
      for k in 64:                                ->    else: if n - t*6 == 1: the body with 1 row
        unrolled i in 6: acc[i] += x[min(t*6 + i, n - 1), k]        ..
      unrolled i in 6:                                        else: the body with 5 rows
        if t*6 + i < n: y[t*6 + i] = acc[i]

Legal where the rows beyond the end matter to nobody: all that such a loop writes is either under the condition, or a row of a local buffer
of which each loop reads its own row only. Steps of a reduction that the body carries out without a branch are a loop in the versions for
fewer rows: these run once for each panel, and need not be long. Taps of a window that may lie past the border are carried out there too:
which of them do so follows from the number of rows (`decide_borders`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir.expr import TRUE, Expr, const, equal, less_equal
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.simplify import simplifier
from tilewright.ir.traverse import depends_on, free_vars, walk
from tilewright.kernel.lower.partition_loops import clamps_in, conditions_in, holds_until, size_of
from tilewright.kernel.nodes import (
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Stmt,
    Store,
    children,
    loads,
    map_stmt,
    own_exprs,
    substitute_stmt,
    walk_stmts,
    with_fields,
)
from tilewright.kernel.regions import conjuncts

MOST_STORES = 800  # in all versions of a body, as code generators repeat them in unrolled loops
WORTH = 8  # stores of a body from which on rows in vain cost more than choosing among versions


def split_row_tails(kernel: Kernel) -> Kernel:
    """The kernel (no blocks, simplified) with versions of its tiles of rows; see the module's docstring."""
    sizes = frozenset(kernel.sizes)
    if not sizes:
        return kernel
    result: Kernel = with_fields(kernel, body=_split(kernel.body, kernel, {}))
    return result


def _split(stmt: Stmt, kernel: Kernel, extents: dict[Expr, Expr]) -> Stmt:
    if not isinstance(stmt, For):
        return map_stmt(stmt, lambda inner: _split(inner, kernel, extents))
    if stmt.kind in ("vectorized", "unrolled", "matrix"):
        return stmt
    inside = {**extents, stmt.var: stmt.extent}
    run = simplifier(extents=inside)
    for rows in _tiles(stmt.body, frozenset(kernel.sizes), run):
        loops = _shrinkable(stmt.body, rows, kernel)
        if loops:
            return For(stmt.var, stmt.extent, _versions(stmt.body, rows, loops), stmt.kind)
    return For(stmt.var, stmt.extent, _split(stmt.body, kernel, inside), stmt.kind)


@dataclass(slots=True)
class _Rows:
    """Rows of one tile: `left` of them exist, `height` or more where the tile is full. `tests` hold for these alone; `clamped` indices are
    equal to the plain ones there."""

    left: Expr
    height: int
    tests: set[Expr]
    clamped: dict[Expr, Expr]


def _tiles(body: Stmt, sizes: frozenset[Expr], run: Rewriter) -> list[_Rows]:
    """The tiles of rows in a body, those with conditions of their own, by their size."""
    bound = {stmt.var for stmt in walk_stmts(body) if isinstance(stmt, (For, Let))}
    found: dict[tuple[Expr, int], _Rows] = {}
    for loop in walk_stmts(body):
        if not isinstance(loop, For) or loop.kind != "unrolled" or not loop.extent.is_const or loop.extent.value < 2:
            continue
        others = bound - {loop.var}
        tests = conditions_in(loop.body)
        clamps = {test: (clamp, plain) for clamp, plain, test in clamps_in(loop.body)}
        for test in (*tests, *clamps):
            end = holds_until(test, loop.var, others)
            if end is None or sizes.isdisjoint(free_vars(end)):
                continue
            left = run.rewrite(end)
            rows = found.setdefault((left, int(loop.extent.value)), _Rows(left, int(loop.extent.value), set(), {}))
            if test in tests:
                rows.tests.add(test)
            if test in clamps:
                clamp, plain = clamps[test]
                rows.clamped[clamp] = plain
    return sorted((rows for rows in found.values() if rows.tests), key=lambda rows: -rows.height)


def _shrinkable(body: Stmt, rows: _Rows, kernel: Kernel) -> frozenset[Expr]:
    """The variables of the loops over the rows of the tile, if they can have as many iterations as there are rows, and everything that the
    body does is in them; nothing otherwise."""
    accesses = list(_accesses(body, ()))
    inside = [access.buffer for access in accesses]
    everywhere = [access.buffer for access in _accesses(kernel.body, ())]
    local = {b for b in kernel.scratch if b.scope == "local" and inside.count(b) == everywhere.count(b)}
    own = {(buffer, axis) for buffer in local for axis in range(len(buffer.shape))}
    loops = {
        loop.var
        for loop in walk_stmts(body)
        if isinstance(loop, For) and loop.kind == "unrolled" and loop.extent.is_const and loop.extent.value == rows.height
    }
    while True:
        kept = {
            (buffer, axis) for buffer, axis in own if all(_reads_own(access, axis, loops) for access in accesses if access.buffer is buffer)
        }
        staying = {var for var in loops if all(_vanishes(access, var, rows, kept) for access in accesses if access.stores)}
        if kept == own and staying == loops:
            break
        own, loops = kept, staying
    whole = all(not loops.isdisjoint(access.around) for access in accesses if access.stores)
    return frozenset(loops) if whole else frozenset()


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or a store, with the variables of the loops and the conditions around it."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    stores: bool
    around: frozenset[Expr]
    conditions: frozenset[Expr]


def _accesses(stmt: Stmt, around: tuple[Expr, ...], conditions: frozenset[Expr] = frozenset()) -> Iterator[_Access]:
    for load in loads(*own_exprs(stmt)):
        yield _Access(load.attr, load.args, False, frozenset(around), conditions)
    if isinstance(stmt, Store):
        yield _Access(stmt.buffer, stmt.indices, True, frozenset(around), conditions)
    if isinstance(stmt, If):
        yield from _accesses(stmt.then, around, conditions | frozenset(conjuncts(stmt.condition)))
        if stmt.otherwise is not None:
            yield from _accesses(stmt.otherwise, around, conditions)
        return
    inner = (*around, stmt.var) if isinstance(stmt, For) else around
    for child in children(stmt):
        yield from _accesses(child, inner, conditions)


def _reads_own(access: _Access, axis: int, loops: set[Expr]) -> bool:
    index = access.indices[axis]
    return index in loops and index in access.around


def _guarded(store: _Access, var: Expr, rows: _Rows) -> bool:
    return any(var in free_vars(test) for test in store.conditions & rows.tests)


def _vanishes(store: _Access, var: Expr, rows: _Rows, own: set[tuple[Buffer, int]]) -> bool:
    """Whether nothing is lost with the store where the loop over `var` has only as many iterations as there are rows."""
    if var not in store.around or _guarded(store, var, rows):
        return True
    return any((store.buffer, axis) in own and index is var for axis, index in enumerate(store.indices))


def _versions(body: Stmt, rows: _Rows, loops: frozenset[Expr]) -> Stmt:
    """The body for full tiles, and for each number of rows below, as far as these are few stores: otherwise as it is."""
    main = substitute_stmt(body, dict.fromkeys(rows.tests, TRUE) | rows.clamped)
    size = size_of(body)
    heights = range(1, rows.height)
    shorter = {height: _shorter(body, rows, loops, height) for height in heights}
    most = size + sum(size_of(version) for version in shorter.values())
    if size < WORTH or most > MOST_STORES:
        return If(less_equal(rows.height, rows.left), main, body) if 2 * size <= MOST_STORES else body
    result: Stmt | None = None
    for height in reversed(heights):
        result = If(equal(rows.left, const(height)), shorter[height], result)
    return If(less_equal(rows.height, rows.left), main, result)


def _tested(steps: For, rows: frozenset[Expr]) -> bool:
    """Whether a condition looks at the step and the row alike: carried out, the loop has none for most of its copies."""
    return any(depends_on(test, {steps.var}) and depends_on(test, rows) for test in conditions_in(steps.body))


def _shorter(body: Stmt, rows: _Rows, loops: frozenset[Expr], height: int) -> Stmt:
    """The body for `height` rows. Only loops that are made shorter know that their rows exist."""
    holding = {test: TRUE for test in rows.tests if not loops.isdisjoint(free_vars(test))}
    known = holding | {clamp: plain for clamp, plain in rows.clamped.items() if not loops.isdisjoint(free_vars(clamp))}
    stored = {var for stmt in walk_stmts(body) if isinstance(stmt, Store) for index in stmt.indices for var in walk(index)}

    def on_stmt(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, For):
            return map_stmt(stmt, on_stmt)
        if stmt.var in loops:
            return For(stmt.var, const(height), substitute_stmt(map_stmt(stmt.body, on_stmt), known), stmt.kind)
        steps = stmt.kind == "unrolled" and stmt.var not in stored and not _tested(stmt, loops)
        return For(stmt.var, stmt.extent, on_stmt(stmt.body), "serial" if steps else stmt.kind)

    return on_stmt(body)
