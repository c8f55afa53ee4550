"""Steps of an accumulation that would combine with the identity, left out: taps of a window that touch padding alone are not computed.

    y[i] = y[i] + (x[i + k - 1] * w[k] if 0 <= i + k - 1 else 0)   ->   if 0 <= i + k - 1: y[i] = y[i] + x[i + k - 1] * w[k]

As a condition of the statement it can be moved out of loops, bound the loop over the taps, or be decided where the loop over the points is
partitioned. What of it differs between vector lanes stays a `select`: lanes cannot branch. So do conditions on data.
"""

from __future__ import annotations

from tilewright.ir.expr import Expr, Op, all_of, depends_on, load, rebuild, select, walk
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
    if own is not load(stmt.buffer, stmt.indices) or step.op is not Op.SELECT:
        return stmt
    condition, counts, other = step.args
    if other is not COMBINERS[combiner].identity(stmt.buffer.dtype):
        return stmt
    branches: list[Expr] = []
    kept: list[Expr] = []
    for test in conjuncts(condition):
        moves = not depends_on(test, lanes) and not any(e.op is Op.LOAD for e in walk(test))
        (branches if moves else kept).append(test)
    if not branches:
        return stmt
    rest = select(all_of(*kept), counts, other) if kept else counts
    args = (own, rest) if value.args[0] is own else (rest, own)
    return If(all_of(*branches), Store(stmt.buffer, stmt.indices, rebuild(value, args)))
