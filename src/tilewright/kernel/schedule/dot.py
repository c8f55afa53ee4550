"""Sums of products of narrow numbers by instructions that add several products to one 32-bit sum."""

from __future__ import annotations

from tilewright.ir import dtypes
from tilewright.ir.affine import linear
from tilewright.ir.expr import Expr, ceildiv, const, is_dot, less, load, select, sub
from tilewright.ir.expr import dot as dot_call
from tilewright.ir.prove import prove_equal
from tilewright.ir.scalar_ops import DOTS, Op
from tilewright.ir.simplify import simplifier
from tilewright.ir.traverse import depends_on, substitute, transform
from tilewright.kernel.nodes import Block, BlockIter, For, Stmt, Store
from tilewright.kernel.regions import conjuncts
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.nest import Nest, edit, fresh_iters, refuse, replaced
from tilewright.kernel.schedule.padding import iter_position
from tilewright.kernel.schedule.reduction import accumulation

SUMS = (dtypes.int32, dtypes.float32)


def dot(nest: Nest, block: str, iter: str | int, factors: int) -> Change:  # noqa: A002 (the term of the kernel form)
    """Take `factors` points of a reduction iter in one instruction, so that its loop runs so many times less (TVM: tensorize with a
    dot-product intrinsic; here the products are found, not matched against a pattern of the intrinsic).

        for k in 64: C: c[v] += int32(a[r]) * int32(b[r, v])
        ->
        for k in 32: C: c[v] = dot2(c[v], a[r*2], a[r*2 + 1], b[r*2, v], b[r*2 + 1, v])

    The block must add products of two integers of at most 16 bits to an int32 sum: integers wrap, so that the order of a sum does not
    matter. Or products of bfloat16 to a float32 sum, in pairs: products are exact, and sums of floats are added up in another order.
    Factors past the end of the iter are 0. The iter must be bound to one loop of its extent, around this block alone, and what the block's
    predicate says of it must be the same for all factors of an instruction.
    """
    placed = nest.block(block)
    old = placed.stmt
    position = iter_position(old, iter)
    it, binding = old.iters[position], old.bindings[position]
    if f"dot{factors}" not in DOTS:
        refuse(f"no instruction adds {factors} products", f"there are {', '.join(DOTS)}")
    if it.kind != "reduction":
        refuse(f"'{it.var.name}' of block '{block}' is no reduction iter")
    loop = next((lp for lp in placed.around if lp.var is binding), None)
    if loop is None or not prove_equal(loop.extent, it.extent):
        refuse(f"'{it.var.name}' of block '{block}' is not bound to one loop of its extent", "apply dot before splitting")
    if len(nest.under(loop)) != 1:
        refuse(f"'{loop.var.name}' is around other blocks as well", "apply dot before computing blocks together")
    predicate = substitute(old.predicate, {it.var: loop.var})
    if not all(_uniform(condition, loop.var, factors) for condition in conjuncts(predicate)):
        refuse(f"the predicate of block '{block}' tests '{it.var.name}'")
    found = accumulation(old)
    if found is None or found.combiner != "sum" or found.buffer.dtype not in SUMS or found.value.op is not Op.MUL:
        refuse(f"block '{block}' does not add products to an int32 or float32 sum")
    sides = [_narrow(side) for side in found.value.args]
    factor_dtypes = [[side.dtype] * factors for side in sides if side is not None]
    if len(factor_dtypes) < 2 or not is_dot(found.buffer.dtype, *factor_dtypes):
        refuse(f"block '{block}' multiplies {found.value!r}", "factors are integers of 8 or 16 bits, cast to int32, or bfloat16")
    extent = ceildiv(it.extent, const(factors))
    (step,) = fresh_iters(nest, [(extent, "reduction")])
    others = {other.var: other.extent for other in old.iters if other is not it} | {step.var: extent}
    whole = prove_equal(extent * factors, it.extent)
    points = [(step.var * factors + n, whole or n == 0) for n in range(factors)]
    left, right = ([_point(side, it, at, others, inside) for at, inside in points] for side in sides if side is not None)
    body = Store(found.buffer, found.indices, dot_call(load(found.buffer, found.indices), left, right))
    iters = (*old.iters[:position], step, *old.iters[position + 1 :])
    predicate = substitute(predicate, {loop.var: step.var * factors})
    new = Block(old.name, iters, old.bindings, body, old.init, predicate, old.scratch)
    return Change(replaced(nest, {loop: _shorter(loop, extent, {old: new})}))


def _uniform(condition: Expr, variable: Expr, factors: int) -> bool:
    """Whether a condition is the same for each `factors` neighbouring values of a variable: `rest + variable < size`, where the factors
    divide the size and every term of the rest."""
    if not depends_on(condition, (variable,)):
        return True
    if condition.op is not Op.LT or condition.args[0].dtype is not dtypes.int64:
        return False
    constant, terms = linear(sub(*condition.args))
    own = terms.get((variable,))
    return own == 1 and constant % factors == 0 and all(n % factors == 0 for atoms, n in terms.items() if atoms != (variable,))


def _narrow(side: Expr) -> Expr | None:
    """The factor of 8 or 16 bits that is cast to the dtype of the sum here."""
    inner = side.args[0] if side.op is Op.CAST else side
    return inner if inner.dtype.bits in (8, 16) else None


def _point(side: Expr, it: BlockIter, at: Expr, extents: dict[Expr, Expr], inside: bool) -> Expr:
    """The factor at one value of the iter; 0 past its end."""
    run = simplifier(extents=extents)

    def shortened(e: Expr) -> Expr | None:
        return load(e.attr, tuple(run.rewrite(index) for index in e.args)) if e.op is Op.LOAD else None

    value = transform(substitute(side, {it.var: at}), shortened)
    return value if inside else select(less(at, it.extent), value, const(0, side.dtype))


def _shorter(loop: For, extent: Expr, changes: dict[Stmt, Stmt | None]) -> For:
    body = edit(loop.body, changes)
    if body is None:
        refuse("the loop is empty")
    return For(loop.var, extent, body, loop.kind)
