"""Steps of an accumulation that would combine with the identity, left out: taps of a window that touch padding alone are not computed.

    y[i] = y[i] + (x[i + k - 1] if 0 <= i + k - 1 else 0) * w[k]   ->   if 0 <= i + k - 1: y[i] = y[i] + x[i + k - 1] * w[k]

As a condition of the statement it can be moved out of loops, bound the loop over the taps, or be decided where the loop over the points is
partitioned. What of it differs between vector lanes stays a `select`: lanes cannot branch. So do conditions on data. A factor of 0 makes a
product that adds nothing, whatever the other factor is: infinite weights do not meet padding.
"""

from __future__ import annotations

from tilewright.ir.expr import Expr, all_of, load, rebuild, select
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import depends_on, substitute, walk
from tilewright.kernel.builder import COMBINERS
from tilewright.kernel.nodes import For, If, Kernel, Stmt, Store, map_stmt, with_fields
from tilewright.kernel.regions import conjuncts

_COMBINER = {Op.ADD: "sum", Op.MUL: "prod", Op.MAX: "max", Op.MIN: "min"}


def skip_identity(kernel: Kernel) -> Kernel:
    """The lowered kernel (no blocks) with the conditions of its accumulations around them; see the module's docstring."""
    result: Kernel = with_fields(kernel, body=_skip(kernel.body, frozenset()))
    return result


def _skip(stmt: Stmt, lanes: frozenset[Expr]) -> Stmt:
    """The statement, inside of vectorised loops over `lanes`."""
    if isinstance(stmt, Store):
        return _guarded(stmt, lanes)
    inside = lanes | {stmt.var} if isinstance(stmt, For) and stmt.kind == "vectorized" else lanes
    return map_stmt(stmt, lambda child: _skip(child, inside))


def _guarded(stmt: Store, lanes: frozenset[Expr]) -> Stmt:
    value, combiner = stmt.value, _COMBINER.get(stmt.value.op)
    if combiner is None:
        return stmt
    own, step = value.args
    if own is not load(stmt.buffer, stmt.indices):
        own, step = step, own
    if own is not load(stmt.buffer, stmt.indices):
        return stmt
    found = _optional(step, COMBINERS[combiner].identity(stmt.buffer.dtype))
    if found is None:
        return stmt
    _, counts, other = found.args
    branches: list[Expr] = []
    kept: list[Expr] = []
    for test in conjuncts(found.args[0]):
        moves = not depends_on(test, lanes) and not any(e.op is Op.LOAD for e in walk(test))
        (branches if moves else kept).append(test)
    if not branches:
        return stmt
    rest = substitute(step, {found: select(all_of(*kept), counts, other) if kept else counts})
    args = (own, rest) if value.args[0] is own else (rest, own)
    return If(all_of(*branches), Store(stmt.buffer, stmt.indices, rebuild(value, args)))


def _optional(step: Expr, identity: Expr) -> Expr | None:
    """The `select` without which the step would be the identity."""
    if step.op is Op.SELECT and step.args[2] is identity:
        return step
    if step.op is Op.MUL and identity.op is Op.CONST and identity.attr == 0:
        return next((side for side in step.args if side.op is Op.SELECT and side.args[2] is identity), None)
    return None
