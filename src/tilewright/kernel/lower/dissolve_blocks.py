"""Blocks to plain statements.

    for i in n:                                      for i in n:
      for k in m:                                      y[i] = 0
        block: v = i, r = k where k < p       ->       for k in m:
          init y[v] = 0                                  if k < p:
          y[v] = y[v] + x[v, r]                            y[i] = y[i] + x[i, k]

The init moves in front of the outermost loop of the reduction, under copies of the spatial loops in between. It then also runs when the
reduction is empty. Where it cannot move (something else in the reduction loop touches the buffer, or a loop mixes spatial and reduction
iters), it stays, under the condition that all reduction iters are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import TRUE, Expr, all_of, const, equal
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, substitute, walk
from tilewright.kernel.nodes import (
    Block,
    Buffer,
    For,
    If,
    Kernel,
    Seq,
    Stmt,
    Store,
    buffers_written,
    children,
    map_stmt,
    own_exprs,
    seq,
    substitute_stmt,
    walk_stmts,
    with_fields,
)
from tilewright.kernel.regions import conjuncts


def dissolve_blocks(kernel: Kernel) -> Kernel:
    """The kernel without blocks; their scratch becomes scratch of the kernel."""
    scratch = dict.fromkeys(kernel.scratch)
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, Block):
            scratch.update(dict.fromkeys(stmt.scratch))
    body, pending = _dissolve(kernel.body, ())
    result: Kernel = with_fields(kernel, body=seq(*(p.stmt for p in pending), body), scratch=tuple(scratch))
    return result


@dataclass(frozen=True, slots=True)
class _Init:
    """An init on its way out of the loops in `remaining`; `stmt` does not depend on them."""

    stmt: Stmt
    remaining: frozenset[Expr]


def _dissolve(stmt: Stmt, path: tuple[Stmt, ...]) -> tuple[Stmt, list[_Init]]:
    """The statement without blocks, and the inits that must run in front of an enclosing reduction loop. path: what encloses it."""
    match stmt:
        case Block():
            return _dissolve_block(stmt, path)
        case For():
            body, inits = _dissolve(stmt.body, (*path, stmt))
            result: Stmt = For(stmt.var, stmt.extent, body, stmt.kind)
            moving, before = [], []
            for init in inits:
                if stmt.var not in init.remaining:
                    moving.append(_Init(For(stmt.var, stmt.extent, init.stmt, stmt.kind), init.remaining))
                elif len(init.remaining) > 1:
                    moving.append(_Init(init.stmt, init.remaining - {stmt.var}))
                else:
                    before.append(init.stmt)
            return seq(*before, result), moving
        case Seq(stmts):
            parts = []
            pending: list[_Init] = []
            for child in stmts:
                part, inits = _dissolve(child, (*path, stmt))
                parts.append(part)
                pending.extend(inits)
            return seq(*parts), pending
        case _:
            # An init never moves through anything but loops and sequences, so nothing is pending below.
            return map_stmt(stmt, lambda s: _dissolve(s, (*path, stmt))[0]), []


def _dissolve_block(block: Block, path: tuple[Stmt, ...]) -> tuple[Stmt, list[_Init]]:
    bindings = {it.var: binding for it, binding in zip(block.iters, block.bindings, strict=True)}
    # Blocks inside see the values of this block's iters.
    body, _ = _dissolve(substitute_stmt(block.body, bindings), (*path, block))
    predicate = substitute(block.predicate, bindings)
    guarded = _guarded(predicate, body)
    if block.init is None:
        return guarded, []
    init, _ = _dissolve(substitute_stmt(block.init, bindings), (*path, block))
    reductions = [b for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == "reduction"]
    loops = _loops_to_leave(block, path, reductions)
    if loops is None:
        at_zero = all_of(*(equal(binding, const(0)) for binding in reductions))
        first = _guarded(at_zero, init)
        return _guarded(predicate, seq(first, body)), []
    zero = {loop: const(0) for loop in loops}
    spatial = {v for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == "spatial" for v in free_vars(b)}
    kept = [c for c in conjuncts(predicate) if not loops or not _only_of(c, loops, spatial)]
    ready = _guarded(substitute(all_of(*kept), zero), substitute_stmt(init, zero))
    if not loops:
        return seq(ready, guarded), []
    return guarded, [_Init(ready, loops)]


def _only_of(condition: Expr, loops: frozenset[Expr], spatial: set[Expr]) -> bool:
    """Whether a condition limits the reduction alone."""
    used = set(free_vars(condition))
    return bool(used & loops) and not used & spatial


def _guarded(condition: Expr, stmt: Stmt) -> Stmt:
    return stmt if condition is TRUE else If(condition, stmt)


def _loops_to_leave(block: Block, path: tuple[Stmt, ...], reductions: list[Expr]) -> frozenset[Expr] | None:
    """The loops of the block's reduction iters, if the init may run in front of the outermost of them; None if it may not."""
    around = [loop for loop in path if isinstance(loop, For)]
    variables = {v for binding in reductions for v in free_vars(binding)}
    loops = frozenset(loop.var for loop in around if loop.var in variables)
    spatial = {v for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == "spatial" for v in free_vars(b)}
    if spatial & loops:
        return None
    zero = {loop: const(0) for loop in loops}
    if any(not _is_zero(substitute(binding, zero)) for binding in reductions):
        return None
    if not loops:
        return loops
    written = {buffer for part in children(block) for buffer in buffers_written(part)}
    outermost = next(position for position, stmt in enumerate(path) if isinstance(stmt, For) and stmt.var in loops)
    inside = path[outermost:]
    for position, stmt in enumerate(inside):
        if isinstance(stmt, For):
            if stmt.var not in loops and any(v in loops for v in free_vars(stmt.extent)):
                return None
        elif isinstance(stmt, Seq):
            own = inside[position + 1] if position + 1 < len(inside) else block
            if any(child is not own and _touches(child, written) for child in stmt.stmts):
                return None
        else:
            return None
    return loops


def _is_zero(e: Expr) -> bool:
    """Whether an index is 0. Quotients and remainders of 0, of fused loops, are, also by sizes that may be 0, where nobody asks."""
    if e.op in (Op.FLOORDIV, Op.FLOORMOD):
        return _is_zero(e.args[0])
    return e.op is Op.CONST and e.attr == 0


def _touches(stmt: Stmt, buffers: set[Buffer]) -> bool:
    return any(
        (isinstance(s, Store) and s.buffer in buffers) or any(e.op is Op.LOAD and e.attr in buffers for e in walk(*own_exprs(s)))
        for s in walk_stmts(stmt)
    )
