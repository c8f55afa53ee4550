"""How much arithmetic a kernel does, counted from its definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.expr import Expr, const, floordiv, maximum
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, substitute, walk
from tilewright.kernel.nodes import Block, For, If, Kernel, Let, Prefetch, Seq, Stmt, Store, While, walk_stmts

NOTHING: Mapping[Expr, Expr | None] = {}
ASSUMED_TRIPS = 16  # of a loop whose length is read from memory
ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD, Op.MIN, Op.MAX})


def operations(kernel: Kernel) -> Expr:
    """Scalar operations on data in one run, as an expression of the sizes: a multiply-add counts as two, a function such as exp as one,
    computing an index not at all. Loops of unknown length count as ASSUMED_TRIPS, `while` as one iteration."""
    return sums_over(kernel.body, lambda e: {"operations": operations_of(e)}).get("operations", const(0))


Counts = Callable[[Expr], Mapping[str, int]]
"""What is counted in one expression, by name; what is left out is 0."""


Lets = Mapping[Expr, Expr | None]
"""What variables are bound to around a statement; None where memory decides."""


def sums_over(stmt: Stmt, counts: Counts, lets: Lets = NOTHING) -> dict[str, Expr]:
    """The sums of `counts` over all expressions evaluated in one run of a statement, as expressions of the sizes, by name; what is left out
    is 0. Loops count as in `operations`, and of two branches the larger."""
    match stmt:
        case Block():
            each = sums_over(stmt.body, counts, lets)
            for iter_ in stmt.iters:
                each = repeated(each, iter_.var, iter_.extent, lets)
            return each
        case For(var, extent, body, _):
            # loops around blocks only enumerate the blocks' own domains
            each = sums_over(body, counts, lets)
            return each if any(isinstance(s, Block) for s in walk_stmts(body)) else repeated(each, var, extent, lets)
        case Seq(stmts):
            summed: dict[str, Expr] = {}
            for child in stmts:
                summed = _added(summed, sums_over(child, counts, lets))
            return summed
        case If(condition, then, otherwise):
            taken = sums_over(then, counts, lets)
            if otherwise is not None:
                other = sums_over(otherwise, counts, lets)
                taken = {name: maximum(taken.get(name, 0), other.get(name, 0)) for name in {**taken, **other}}
            return _added(taken, _constants(counts(condition)))
        case Let(var, value, body):
            return _added(sums_over(body, counts, {**lets, var: _known(value, lets)}), _constants(counts(value)))
        case While(condition, body):
            return _added(sums_over(body, counts, lets), _constants(counts(condition)))
        case Store(_, _, value):
            return _constants(counts(value))
        case Prefetch():
            return {}


def _constants(counted: Mapping[str, int]) -> dict[str, Expr]:
    return {name: const(count) for name, count in counted.items() if count}


def _added(a: dict[str, Expr], b: dict[str, Expr]) -> dict[str, Expr]:
    return {**a, **{name: a[name] + e if name in a else e for name, e in b.items()}} if a else b


def repeated(each: dict[str, Expr], var: Expr, extent: Expr, lets: Lets = NOTHING) -> dict[str, Expr]:
    """The work of all iterations; one whose work depends on the iteration counts as the middle one."""
    known = _known(extent, lets)
    extent = const(ASSUMED_TRIPS) if known is None else known
    middle = {var: floordiv(extent, 2)}
    return {name: (e if e.is_const or var not in free_vars(e) else substitute(e, middle)) * extent for name, e in each.items()}


def _known(value: Expr, lets: Lets) -> Expr | None:
    """The value in terms of loops and sizes; None where it is read from memory, or computed from what is."""
    used = [v for v in free_vars(value) if v in lets]
    bound = {v: e for v in used if (e := lets[v]) is not None}
    if len(bound) < len(used) or any(e.op is Op.LOAD for e in walk(value)):
        return None
    return substitute(value, bound) if bound else value


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
