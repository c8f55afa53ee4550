"""Factors that all terms of a sum have in common."""

from __future__ import annotations

from functools import reduce

from tilewright.ir.expr import Expr, load, mul
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier
from tilewright.ir.traverse import free_vars, substitute, transform, walk
from tilewright.kernel.nodes import Stmt, Store, map_stmt, with_fields
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.legality import check_inputs_ready
from tilewright.kernel.schedule.nest import Nest, edit, refuse, with_body
from tilewright.kernel.schedule.reduction import accumulation


def factor_out(nest: Nest, block: str) -> Change:
    """Multiply a sum by the factors that all of its terms have in common where it is read, instead of each term.

        for k in 64: C: c[v] += a[v, r] * b[r] * s[v]         for k in 64: C: c[v] += a[v, r] * b[r]
        for i in 8: D: d[w] = c[w] + 1                   ->   for i in 8: D: d[w] = c[w] * s[w] + 1

    The block must be a sum of floats into scratch that it alone writes, with its init, indexed by plain iters. Factors that read scratch
    must be complete where the sum is read. Sums are rounded otherwise than before.
    """
    placed = nest.block(block)
    old = placed.stmt
    found = accumulation(old)
    if found is None or found.combiner != "sum" or old.init is None or not found.buffer.dtype.is_float:
        refuse(f"block '{block}' is not a sum of floats with its init")
    if found.buffer not in nest.kernel.scratch or nest.writers(found.buffer) != [block]:
        refuse(f"block '{block}' does not write scratch of its own", "cache_write it first")
    own = {it.var for it in old.iters if it.kind == "spatial"}
    if len(set(found.indices)) != len(found.indices) or not own.issuperset(found.indices):
        refuse(f"block '{block}' stores at {', '.join(map(repr, found.indices))}", "it must index by its iters")
    run = simplifier(extents={it.var: it.extent for it in old.iters})

    def shortened(e: Expr) -> Expr | None:
        return load(e.attr, tuple(run.rewrite(index) for index in e.args)) if e.op is Op.LOAD else None

    factors = _factors(transform(found.value, shortened))
    common = [f for f in factors if _moves(f, nest, found.indices)]
    if not common or len(common) == len(factors):
        refuse(f"the terms of block '{block}' have no factor in common", "split and rfactor the reduction where factors change")
    value = _product([f for f in factors if f not in common])
    body = Store(found.buffer, found.indices, load(found.buffer, found.indices) + value)
    changes: dict[Stmt, Stmt | None] = {old: with_fields(old, body=body)}
    factor = _product(common)

    def scaled(e: Expr) -> Expr | None:
        if e.op is not Op.LOAD or e.attr is not found.buffer:
            return None
        return e * substitute(factor, dict(zip(found.indices, e.args, strict=True)))

    def on_stmt(stmt: Stmt) -> Stmt:
        return map_stmt(stmt, on_stmt, lambda e: transform(e, scaled))

    for name in nest.readers(found.buffer):
        if name != block:
            reader = nest.blocks[name].stmt
            changes[reader] = with_fields(reader, body=on_stmt(reader.body))
    kernel = with_body(nest.kernel, edit(nest.kernel.body, changes))
    after = Nest(kernel)
    for name in nest.readers(found.buffer):
        check_inputs_ready(after, name)
    return Change(kernel)


def _factors(e: Expr) -> list[Expr]:
    return [f for a in e.args for f in _factors(a)] if e.op is Op.MUL else [e]


def _product(factors: list[Expr]) -> Expr:
    return reduce(mul, factors)


def _moves(factor: Expr, nest: Nest, indices: tuple[Expr, ...]) -> bool:
    """The factor is the same in all terms, and where the sum is read."""
    known = all(e.attr in nest.kernel.inputs or e.attr in nest.kernel.scratch for e in walk(factor) if e.op is Op.LOAD)
    return known and all(v in indices or v in nest.kernel.sizes for v in free_vars(factor))
