"""How much arithmetic a kernel does, counted from its definition."""

from __future__ import annotations

from tilewright.ir.expr import Expr, Op, const, floordiv, free_vars, maximum, substitute, walk
from tilewright.kernel.nodes import Block, For, If, Kernel, Let, Seq, Stmt, Store, While, blocks

ASSUMED_TRIPS = 16  # of a loop whose length is read from memory
ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD, Op.MIN, Op.MAX})


def operations(kernel: Kernel) -> Expr:
    """Scalar operations on data in one run, as an expression of the sizes: a multiply-add counts as two, a function such as exp as one,
    computing an index not at all. Loops of unknown length count as ASSUMED_TRIPS, `while` as one iteration."""
    return _work(kernel.body)


def _work(stmt: Stmt) -> Expr:
    match stmt:
        case Block():
            total = _work(stmt.body)
            for iter_ in stmt.iters:
                total = _repeated(total, iter_.var, iter_.extent)
            return total
        case For(var, extent, body, _):
            # loops around blocks only enumerate the blocks' own domains
            return _work(body) if blocks(body) else _repeated(_work(body), var, extent)
        case Seq(stmts):
            total = const(0)
            for child in stmts:
                total = total + _work(child)
            return total
        case If(condition, then, otherwise):
            taken = _work(then) if otherwise is None else maximum(_work(then), _work(otherwise))
            return taken + operations_of(condition)
        case Let(var, value, body):
            inner = _work(body)
            if var in free_vars(inner):
                inner = substitute(inner, {var: _known(value)})
            return inner + operations_of(value)
        case While(condition, body):
            return _work(body) + operations_of(condition)
        case Store(_, _, value):
            return const(operations_of(value))


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
