"""Products by instructions that multiply whole tiles of two matrices."""

from __future__ import annotations

from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import DOTS, Op
from tilewright.kernel.nodes import Block, For, Stmt, Store
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.nest import Nest, edit, refuse, with_body

ROWS = 16  # of one tile, at most; and steps of a reduction
LANES = 16


def matrix(nest: Nest, loop: str) -> Change:
    """Let tile instructions carry out a loop over rows, where the machine has them (TVM: tensorize; here the form is checked, not matched
    against a pattern). Nothing changes for machines that have none, but for the order of sums of floats.

        for i in 16: for k in 16: vectorized j in 16: C: c[i, j] = dot4(c[i, j], a[i, k*4], .., b[k, j*4], ..)
        ->
        matrix i in 16: for k in 16: vectorized j in 16: C: ..

    The loop must be around one block alone: one that adds dot products (`dot`), with a loop over steps of the reduction and vectorised
    lanes inside, or one that stores a constant 0, with lanes alone. Rows, steps and lanes are at most 16.
    """
    placed = nest.loop(loop)
    old = placed.stmt
    if old.kind != "serial":
        refuse(f"'{placed.name}' is {old.kind}", "change how a loop runs after its structure is final")
    inner: Stmt = old.body
    steps = inner if isinstance(inner, For) and inner.kind == "serial" else None
    lanes = steps.body if steps is not None else inner
    if not (isinstance(lanes, For) and lanes.kind == "vectorized" and isinstance(lanes.body, Block)):
        refuse(f"'{placed.name}' is not around steps of a reduction and vectorized lanes of one block alone")
    for part, most in ((old, ROWS), (steps, ROWS), (lanes, LANES)):
        if part is not None and not (part.extent.is_const and part.extent.value <= most):
            refuse(f"the extent {part.extent!r} of '{part.var.name}' is over {most}", "split the loop first")
    body = lanes.body.body
    if not isinstance(body, Store) or not (_is_zero(body.value) if steps is None else is_dot_sum(body)):
        refuse(f"block '{lanes.body.name}' does not add dot products to what it stores", "apply dot first, and decompose_reduction")
    if lanes.body.init is not None:
        refuse(f"the init of block '{lanes.body.name}' is inside", "apply decompose_reduction first")
    changes: dict[Stmt, Stmt | None] = {old: For(old.var, old.extent, old.body, "matrix")}
    return Change(with_body(nest.kernel, edit(nest.kernel.body, changes)))


def is_dot_sum(store: Store) -> bool:
    """c[..] = dot(c[..], ..)"""
    value = store.value
    if value.op is not Op.CALL or value.attr not in DOTS:
        return False
    total = value.args[0]
    return total.op is Op.LOAD and total.attr is store.buffer and total.args == store.indices


def _is_zero(value: Expr) -> bool:
    return value.op is Op.CONST and value.attr == 0
