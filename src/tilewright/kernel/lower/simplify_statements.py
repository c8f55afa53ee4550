"""Statements made shorter: indices and conditions simplified with what the loops around say of their variables, branches decided, loops
of one iteration dissolved, conditions moved out of loops that they do not depend on, unused lets dropped.

Values that are computed (floats, data) are left as they are written; only the indices of their loads and the conditions of their
selects are simplified.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir import dtypes
from tilewright.ir.expr import FALSE, TRUE, Expr, all_of, const, less, less_equal, make, rebuild
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier
from tilewright.ir.traverse import depends_on, variables_in
from tilewright.kernel.nodes import (
    NOTHING,
    For,
    If,
    Kernel,
    Let,
    Seq,
    Stmt,
    Store,
    While,
    loads,
    map_stmt,
    own_exprs,
    seq,
    substitute_stmt,
    walk_stmts,
    with_fields,
)
from tilewright.kernel.regions import conjuncts


def simplify_statements(kernel: Kernel) -> Kernel:
    """The kernel (no blocks) with each statement simplified; see the module's docstring."""
    result: Kernel = with_fields(kernel, body=_simplify(kernel.body, ValueSimplifier({})))
    return result


def _simplify(stmt: Stmt, scope: ValueSimplifier) -> Stmt:
    on_expr = scope.rewrite
    match stmt:
        case Store(buffer, indices, value):
            return Store(buffer, tuple([on_expr(i) for i in indices]), on_expr(value))
        case Seq(stmts):
            return seq(*(_simplify(s, scope) for s in stmts))
        case If(condition, then, otherwise):
            test = on_expr(condition)
            if test is TRUE:
                return _simplify(then, scope)
            if test is FALSE:
                return NOTHING if otherwise is None else _simplify(otherwise, scope)
            return _if(test, _simplify(then, scope), None if otherwise is None else _simplify(otherwise, scope))
        case For():
            return _simplify_for(stmt, on_expr(stmt.extent), scope)
        case Let(var, value, body):
            known = on_expr(value)
            if known.op in (Op.CONST, Op.VAR):
                return _simplify(substitute_stmt(body, {var: known}), scope)
            inner = _simplify(body, scope)
            return Let(var, known, inner) if _uses(inner, var) else inner
        case While(condition, body):
            return While(on_expr(condition), _simplify(body, scope))
        case _:
            return map_stmt(stmt, lambda s: _simplify(s, scope), on_expr)


def _if(condition: Expr, then: Stmt, otherwise: Stmt | None) -> Stmt:
    if otherwise is None and then is NOTHING:
        return NOTHING
    if otherwise is None and isinstance(then, If) and then.otherwise is None and not any(True for _ in loads(then.condition)):
        return If(all_of(condition, then.condition), then.then)
    return If(condition, then, otherwise)


def _simplify_for(loop: For, extent: Expr, scope: ValueSimplifier) -> Stmt:
    # Lanes and copies of a body are a constant number; a loop that is not cannot be more than a plain one.
    kind = "serial" if loop.kind in ("vectorized", "unrolled") and not extent.is_const else loop.kind
    if extent.is_const and extent.value <= 0:
        return NOTHING
    if extent.is_const and extent.value == 1 and kind != "matrix":
        return _simplify(substitute_stmt(loop.body, {loop.var: const(0)}), scope)
    if not extent.is_const and kind != "matrix" and scope.rewrite(less_equal(extent, 1)) is TRUE:
        return _simplify(If(less(0, extent), substitute_stmt(loop.body, {loop.var: const(0)})), scope)
    body = _simplify(loop.body, ValueSimplifier({**scope.extents, loop.var: extent}))
    if body is NOTHING:
        return NOTHING
    if not (isinstance(body, If) and body.otherwise is None):
        return For(loop.var, extent, body, kind)
    bound = {loop.var} | {s.var for s in walk_stmts(body) if isinstance(s, (For, Let))}
    own: list[Expr] = []
    outside: list[Expr] = []
    for condition in conjuncts(body.condition):
        moves = not depends_on(condition, bound) and not any(True for _ in loads(condition))
        (outside if moves else own).append(condition)
    inner = If(all_of(*own), body.then) if own else body.then
    result: Stmt = For(loop.var, extent, inner, kind)
    return If(all_of(*outside), result) if outside else result


def _uses(stmt: Stmt, variable: Expr) -> bool:
    return any(variable in variables_in(e) for s in walk_stmts(stmt) for e in own_exprs(s))


class ValueSimplifier:
    """Simplifies the index arithmetic and conditions in expressions under one set of loop extents."""

    __slots__ = ("_memo", "_run", "extents")

    def __init__(self, extents: Mapping[Expr, Expr]) -> None:
        self.extents = extents
        self._run = simplifier(extents=extents)
        self._memo: dict[Expr, Expr] = {}

    def rewrite(self, e: Expr) -> Expr:
        """`e`, equal in value for all values of the variables in their ranges."""
        if not e.args:
            return e
        found = self._memo.get(e)
        if found is not None:
            return found
        if self._is_index(e):
            result = self._run.rewrite(e)
        else:
            args = tuple([self.rewrite(a) for a in e.args])
            if args == e.args:
                result = e
            elif e.op is Op.LOAD:
                result = make(Op.LOAD, e.dtype, args, e.attr)
            else:
                result = rebuild(e, args)
        self._memo[e] = result
        return result

    def _is_index(self, e: Expr) -> bool:
        """int64 arithmetic and conditions on it, without loads."""
        if e.dtype is not dtypes.int64 and e.dtype.kind != "bool":
            return False
        return _plain(e)


def _plain(e: Expr) -> bool:
    stack = [e]
    seen = set()
    while stack:
        node = stack.pop()
        if node.op in (Op.LOAD, Op.CALL) or node.dtype.is_float:
            return False
        for a in node.args:
            if a not in seen:
                seen.add(a)
                stack.append(a)
    return True
