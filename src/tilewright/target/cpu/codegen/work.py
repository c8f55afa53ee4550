"""An estimate of the work in a statement, for the grain of parallel loops."""

from __future__ import annotations

from tilewright.ir.expr import Expr, add, ceildiv, const, floordiv, maximum, mul
from tilewright.ir.traverse import substitute, walk
from tilewright.kernel.nodes import For, If, Let, Seq, Stmt, Store, While
from tilewright.machine.description import ASSUMED_FORK_US, Machine, fork_us
from tilewright.target.cpu.codegen.facts import Facts

OPERATIONS_PER_LANE_US = 6_000  # scalar operations, as counted here, that a lane of a vector does in a microsecond: two in a cycle at 3 GHz
ASSUMED_TRIPS = 16  # of a `while`, and of a loop whose extent is loaded


def work(stmt: Stmt, facts: Facts) -> Expr:
    """Scalar operations in one run of `stmt`, as an expression of the sizes and variables in scope around it."""
    match stmt:
        case Store(_, indices, value):
            return const(1 + facts.cost(value) + len(indices))
        case Seq(stmts):
            total = const(0)
            for child in stmts:
                total = add(total, work(child, facts))
            return total
        case For(var, extent, body, _):
            # A body whose work depends on the iteration counts as its middle iteration.
            each = work(body, facts)
            if not each.is_const and any(e is var for e in walk(each)):
                each = substitute(each, {var: floordiv(extent, 2)})
            return mul(const(ASSUMED_TRIPS) if facts.reads(extent) else extent, add(each, 1))
        case If(condition, then, otherwise):
            sides = work(then, facts) if otherwise is None else maximum(work(then, facts), work(otherwise, facts))
            return add(sides, facts.cost(condition))
        case Let(var, value, body):
            return add(substitute(work(body, facts), {var: const(ASSUMED_TRIPS, value.dtype)}), facts.cost(value))
        case While(_, body):
            return mul(work(body, facts), ASSUMED_TRIPS)
        case _:  # a prefetch; lowering leaves no blocks
            return const(1)


def task_operations(machine: Machine) -> int:
    """Scalar operations that are worth handing to another thread: what one does in the time that a parallel loop costs."""
    return max(1, round((fork_us(machine) or ASSUMED_FORK_US) * machine.lanes(32) * OPERATIONS_PER_LANE_US))


def grain(loop: For, facts: Facts, machine: Machine) -> Expr:
    """Iterations of a parallel loop that make a task on a machine."""
    each = work(loop.body, facts)
    if not each.is_const and any(e is loop.var for e in walk(each)):
        each = substitute(each, {loop.var: floordiv(loop.extent, 2)})
    return ceildiv(const(task_operations(machine)), maximum(each, 1))
