"""What a reduction without points leaves: the results of the inits.

    for i in n:                                      for i in n:
      for k in m:                                      if m == 0:
        block: v = i, r = k               ->             block: v = i
          init y[v] = 0                                    y[v] = 0
          y[v] = y[v] + x[v, r]                        for k in m:
                                                         block: v = i, r = k ...

The interpreter runs an init at the point where all reduction iters are 0. Where a loop of the reduction turns no times there is no such
point, and the init runs in the place of the loop instead: once for each point of the loops inside that are not the reduction's. Says
nothing about where compiled code has its inits (`lower/dissolve_blocks.py`), which is checked by this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.ir.expr import Expr, all_of, const, equal
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.kernel.nodes import (
    Block,
    For,
    If,
    IterKind,
    Kernel,
    Let,
    Stmt,
    While,
    children,
    map_stmt,
    seq,
    substitute_stmt,
    walk_stmts,
    with_fields,
)
from tilewright.kernel.regions import conjuncts

Path = tuple[Stmt, ...]


def initialise_empty(kernel: Kernel, sizes: Mapping[Expr, int]) -> Kernel:
    """The kernel with inits for reductions without points; itself where, for these sizes, all have some."""
    if not any(_reduces_nothing(stmt, sizes) for stmt in walk_stmts(kernel.body)):
        return kernel
    result: Kernel = with_fields(kernel, body=_initialised(kernel.body, frozenset(kernel.sizes)))
    return result


def _reduces_nothing(stmt: Stmt, sizes: Mapping[Expr, int]) -> bool:
    """Whether a block has an init and a reduction without points."""
    if not isinstance(stmt, Block) or stmt.init is None:
        return False
    extents = [it.extent for it in stmt.iters if it.kind == "reduction"]
    return any(evaluate_int(extent, sizes) == 0 for extent in extents if all(v in sizes for v in free_vars(extent)))


def _initialised(stmt: Stmt, sizes: frozenset[Expr]) -> Stmt:
    inner = map_stmt(stmt, lambda s: _initialised(s, sizes))
    if not isinstance(stmt, For) or (stmt.extent.is_const and stmt.extent.value):
        return inner
    inits = [init for path in _paths(stmt) for init in [_init(path, sizes)] if init is not None]
    return seq(If(equal(stmt.extent, const(0)), seq(*inits)), inner) if inits else inner


def _paths(stmt: Stmt, above: Path = ()) -> Iterator[Path]:
    """From the statement down to each block with an init in it."""
    here = (*above, stmt)
    if isinstance(stmt, Block) and stmt.init is not None:
        yield here
    for child in children(stmt):
        yield from _paths(child, here)


def _init(path: Path, sizes: frozenset[Expr]) -> Stmt | None:
    """What initialises the results of the block at the path's end when the loop at its start turns no times; None where that loop is not
    one of the reduction's, or where its turns are points of the results as well."""
    loop, block = path[0], path[-1]
    if not isinstance(loop, For) or not isinstance(block, Block) or block.init is None or any(isinstance(stmt, While) for stmt in path):
        return None
    reduced, kept = _behind(path, "reduction"), _behind(path, "spatial")
    if loop.var not in reduced or loop.var in kept:
        return None
    here = {stmt.var for stmt in path if isinstance(stmt, For)} | {it.var for stmt in path if isinstance(stmt, Block) for it in stmt.iters}
    inner = block.init
    below: Stmt | None = None
    for stmt in path[:0:-1]:
        match stmt:
            case Block():
                inner = _shell(stmt, inner, reduced, kept)
            case For() if stmt.var not in reduced:
                inner = For(stmt.var, stmt.extent, inner, stmt.kind)
            case If() if below is not stmt.then:
                return None
            case If():
                inner = If(stmt.condition, inner)
            case Let():
                inner = Let(stmt.var, stmt.value, inner)
        below = stmt
    inner = substitute_stmt(inner, {variable: const(0) for variable in reduced & here})
    outer = sorted(reduced - here - kept - sizes, key=lambda variable: variable.name)  # loops of the reduction further out
    return If(all_of(*(equal(variable, const(0)) for variable in outer)), inner) if outer else inner


def _behind(path: Path, kind: IterKind) -> frozenset[Expr]:
    """The variables that the iters of this kind of the block at the path's end depend on, those of blocks on the path included."""
    found: set[Expr] = set()
    for stmt in reversed(path):
        if isinstance(stmt, Let) and stmt.var in found:
            found.update(free_vars(stmt.value))
        if isinstance(stmt, Block):
            for it, binding in zip(stmt.iters, stmt.bindings, strict=True):
                if it.var in found or (stmt is path[-1] and it.kind == kind):
                    found.update((it.var, *free_vars(binding)))
    return frozenset(found)


def _shell(block: Block, body: Stmt, reduced: frozenset[Expr], kept: frozenset[Expr]) -> Block:
    """The block with this body and without the iters of the reduction, under its conditions that are not of the reduction alone."""
    pairs = [(it, binding) for it, binding in zip(block.iters, block.bindings, strict=True) if it.var not in reduced]
    conditions = [c for c in conjuncts(block.predicate) if not reduced.intersection(free_vars(c)) or kept.intersection(free_vars(c))]
    iters, bindings = tuple(it for it, _ in pairs), tuple(binding for _, binding in pairs)
    return Block(block.name, iters, bindings, body, None, all_of(*conditions), block.scratch)
