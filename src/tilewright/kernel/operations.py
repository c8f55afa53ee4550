"""How much arithmetic a kernel does, counted from its definition."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.expr import Expr, Op, const, floordiv, free_vars, maximum, substitute, walk
from tilewright.kernel.nodes import Block, For, If, Kernel, Let, Prefetch, Seq, Stmt, Store, While, blocks

ASSUMED_TRIPS = 16  # of a loop whose length is read from memory
ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD, Op.MIN, Op.MAX})


def operations(kernel: Kernel) -> Expr:
    """Scalar operations on data in one run, as an expression of the sizes: a multiply-add counts as two, a function such as exp as one,
    computing an index not at all. Loops of unknown length count as ASSUMED_TRIPS, `while` as one iteration."""
    return sum_over(kernel.body, operations_of)


def sum_over(stmt: Stmt, count: Callable[[Expr], int]) -> Expr:
    """The sum of `count` over all expressions evaluated in one run of a statement, as an expression of the sizes; loops count as in
    `operations`, and of two branches the larger."""
    match stmt:
        case Block():
            each = sum_over(stmt.body, count)
            for iter_ in stmt.iters:
                each = _repeated(each, iter_.var, iter_.extent)
            return each
        case For(var, extent, body, _):
            # loops around blocks only enumerate the blocks' own domains
            return sum_over(body, count) if blocks(body) else _repeated(sum_over(body, count), var, extent)
        case Seq(stmts):
            summed = const(0)
            for child in stmts:
                summed = summed + sum_over(child, count)
            return summed
        case If(condition, then, otherwise):
            taken = sum_over(then, count) if otherwise is None else maximum(sum_over(then, count), sum_over(otherwise, count))
            return taken + count(condition)
        case Let(var, value, body):
            inner = sum_over(body, count)
            if var in free_vars(inner):
                inner = substitute(inner, {var: _known(value)})
            return inner + count(value)
        case While(condition, body):
            return sum_over(body, count) + count(condition)
        case Store(_, _, value):
            return const(count(value))
        case Prefetch():
            return const(0)


def _repeated(each: Expr, var: Expr, extent: Expr) -> Expr:
    """The work of all iterations; one whose work depends on the iteration counts as the middle one."""
    extent = _known(extent)
    if not each.is_const and var in free_vars(each):
        each = substitute(each, {var: floordiv(extent, 2)})
    return each * extent


def _known(extent: Expr) -> Expr:
    return const(ASSUMED_TRIPS) if any(e.op is Op.LOAD for e in walk(extent)) else extent


def operations_of(value: Expr) -> int:
    """Operations on data in one expression, each distinct one once."""
    counted: dict[Expr, bool] = {}  # whether a node holds data: something loaded, or a float
    total = 0
    stack: list[tuple[Expr, bool]] = [(value, False)]
    while stack:
        node, ready = stack.pop()
        if node in counted:
            continue
        if node.op is Op.LOAD:  # its indices are no work on data
            counted[node] = True
        elif not ready:
            stack.append((node, True))
            stack.extend((arg, False) for arg in node.args)
        else:
            counted[node] = node.dtype.is_float or any(counted[arg] for arg in node.args)
            if counted[node]:
                total += 2 if node.op is Op.CALL and node.name == "fma" else int(node.op in ARITHMETIC or node.op is Op.CALL)
    return total
