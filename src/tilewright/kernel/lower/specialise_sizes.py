"""A second version of a kernel for sizes of 1.

Register tiles compute several rows at once. Where the number of rows is a size that is 1 in many inferences (a batch, the one new token of
a decoder, one step of a recurrent layer), or a product of such sizes, a tile of six rows would do six times the work. With the sizes known
to be 1, the other rows of the tile are stored nowhere, and their computation falls away.

    for t in range((n + 5) // 6): tile           if n == 1: tile with rows 1 to 5 gone
                                          ->     else: for t in range((n + 5) // 6): tile

Requests for what is then read once are gone as well: which part of the next panel a tile asks for is worked out for several tiles that
share one, and an operand that is read once, from beginning to end, is one that the hardware by itself reads ahead.
"""

from __future__ import annotations

import math

from tilewright.ir.expr import Expr, all_of, const, equal, load, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int, free_vars, transform, walk
from tilewright.ir.types import static_shape
from tilewright.ir.typical import sides
from tilewright.kernel.lower.simplify_statements import simplify_statements
from tilewright.kernel.nodes import (
    NOTHING,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Stmt,
    Store,
    While,
    children,
    loads,
    map_stmt,
    own_exprs,
    walk_stmts,
    with_fields,
)

PROBES = (1, 2, 3, 5, 7, 8, 12, 30, 31, 100)


def tiled_sizes(kernel: Kernel) -> tuple[tuple[Expr, ...], ...]:
    """The sizes, not bounded away from 1, over which loops run in unrolled tiles; together, where they run over a product of sizes."""
    unrolled = {loop.extent.value for loop in _loops(kernel) if loop.kind == "unrolled" and loop.extent.is_const}
    tiles = sorted(int(extent) for extent in unrolled if extent > 1)
    found: dict[tuple[Expr, ...], None] = {}
    images = {v for buffer in kernel.params for dim in buffer.shape for v in sides(dim)}  # strides divide them like tiles, and 1 is rare
    for part in walk(*(loop.extent for loop in _loops(kernel))):  # extents of fused loops are products
        used = free_vars(part)
        if (
            part.op is Op.FLOORDIV
            and images.isdisjoint(used)
            and 1 <= len(used) <= 3
            and all(v in kernel.sizes and _may_be_one(v) for v in used)
        ):
            points = [PROBES[i:] + PROBES[:i] for i in range(len(used))]
            counts = [math.prod(point) for point in zip(*points, strict=True)]
            values = [evaluate_int(part, dict(zip(used, point, strict=True))) for point in zip(*points, strict=True)]
            if any(values == [-(-n // tile) for n in counts] for tile in tiles):
                found[used] = None
    return tuple(found)


def _may_be_one(bound: Expr) -> bool:
    info = bound.attr
    return bool((info.lo is None or info.lo <= 1) and (info.hi is None or info.hi > 1) and info.multiple == 1)


def _loops(kernel: Kernel) -> list[For]:
    return [stmt for stmt in walk_stmts(kernel.body) if isinstance(stmt, For)]


def specialise_sizes(kernel: Kernel, sizes: tuple[tuple[Expr, ...], ...]) -> Kernel:
    """The kernel (lowered) with a version for each group of `sizes` being 1; buffers and layouts are those of the general version."""
    scratch = list(kernel.scratch)
    body = kernel.body
    for group in sizes:
        version, own = _version(kernel, group)
        scratch.extend(own)
        body = If(all_of(*(equal(bound, const(1)) for bound in group)), version, body)
    result: Kernel = with_fields(kernel, body=body, scratch=tuple(scratch))
    return result


def _version(kernel: Kernel, group: tuple[Expr, ...]) -> tuple[Stmt, list[Buffer]]:
    """The body for sizes of 1, with variables and local buffers of its own."""
    ending = "".join(f"_{bound.name}1" for bound in group)
    locals_ = {b: Buffer(b.name + ending, b.dtype, b.shape, b.scope) for b in kernel.scratch if b.scope == "local"}
    names: dict[Expr, Expr] = dict.fromkeys(group, const(1))
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, (For, Let)):
            names[stmt.var] = var(stmt.var.name + ending, stmt.var.dtype)
    memo: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr | None:
        if e.op is Op.LOAD and e.attr in locals_:
            return load(locals_[e.attr], e.args)
        return names.get(e)

    def on_stmt(stmt: Stmt) -> Stmt:
        mapped = map_stmt(stmt, on_stmt, lambda e: transform(e, visit, memo))
        if isinstance(mapped, (For, Let)):
            renamed: Stmt = with_fields(mapped, var=names[mapped.var])
            return renamed
        if isinstance(mapped, Store) and mapped.buffer in locals_:
            return Store(locals_[mapped.buffer], mapped.indices, mapped.value)
        return mapped

    specialised = simplify_statements(with_fields(kernel, body=on_stmt(kernel.body)))
    reads: dict[Buffer, float] = {}
    _count_reads(specialised.body, 1, reads)
    once = frozenset(buffer for buffer, times in reads.items() if times <= math.prod(static_shape(buffer.shape) or (0,)))
    return _without_requests(specialised.body, once), list(locals_.values())


def _count_reads(stmt: Stmt, times: float, found: dict[Buffer, float]) -> None:
    """Adds up how many elements of each buffer a statement reads that runs so many times; infinity where that is not known."""
    for read in loads(*own_exprs(stmt)):
        found[read.attr] = found.get(read.attr, 0) + times
    inside = times
    if isinstance(stmt, While) or (isinstance(stmt, For) and not stmt.extent.is_const):
        inside = math.inf
    elif isinstance(stmt, For):
        inside = times * int(stmt.extent.value)
    for child in children(stmt):
        _count_reads(child, inside, found)


def _without_requests(stmt: Stmt, buffers: frozenset[Buffer]) -> Stmt:
    """The statement without prefetches of these buffers."""
    if isinstance(stmt, Prefetch):
        return NOTHING if stmt.buffer in buffers else stmt
    return map_stmt(stmt, lambda child: _without_requests(child, buffers))
