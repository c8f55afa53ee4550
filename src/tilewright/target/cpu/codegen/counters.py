"""Quotients and remainders of a loop's variable that are counted along with it, instead of divided in each iteration.

The variable of a parallel loop stands for those of several loops, which are found by division. Division by a constant is a multiplication;
by a size known only while running it takes as long as dozens of multiply-adds. From one iteration to the next a remainder grows by one, or
begins again and its quotient grows by one:

    for p in [begin, end):                 q, r = begin // n, begin % n
      x[p // n, p % n] = ..          ->    for p in [begin, end):
                                             x[q, r] = ..
                                             r = r + 1; if r == n: q, r = q + 1, 0

A quotient that is divided again, (p // n) % m, is counted where it grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir.expr import Expr, floordiv, floormod
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import depends_on, walk
from tilewright.kernel.nodes import For, Let, Stmt, Store, loads, own_exprs, walk_stmts
from tilewright.target.cpu.codegen.expressions import ExprEmitter, is_positive
from tilewright.target.cpu.codegen.text import Operand

_DIVISIONS = frozenset({Op.FLOORDIV, Op.FLOORMOD})
MOST = 8  # pairs of counters of one loop: each takes two registers, or places on the stack


@dataclass(frozen=True, slots=True)
class Counter:
    """The quotient and the remainder of `counted`, the loop's variable or the quotient of another counter, by `divisor`."""

    counted: Expr
    divisor: Expr

    @property
    def quotient(self) -> Expr:
        return floordiv(self.counted, self.divisor)

    @property
    def remainder(self) -> Expr:
        return floormod(self.counted, self.divisor)


def counters_of(loop: For, em: ExprEmitter) -> tuple[Counter, ...]:
    """The counters that spare the loop's body divisions by numbers known only while running, those that others count first. The divisors
    are what `em` can emit in front of the loop."""
    inside = {loop.var, *(stmt.var for stmt in walk_stmts(loop.body) if isinstance(stmt, (For, Let)))}
    found: dict[Counter, None] = {}

    def counter(e: Expr) -> Counter | None:
        """That of a quotient or a remainder, if there can be one."""
        if e.op not in _DIVISIONS or depends_on(e.args[1], inside) or em.facts.reads(e.args[1]):
            return None
        counted, divisor = e.args
        if not em.nonnegative(divisor) or not (counted is loop.var or (counted.op is Op.FLOORDIV and counter(counted))):
            return None
        return Counter(counted, divisor)

    def add(own: Counter) -> None:
        if own.counted is not loop.var:
            add(Counter(*own.counted.args))
        found.setdefault(own)

    for e in walk(*_indices(loop.body, em)):
        own = None if e.op not in _DIVISIONS or e.args[1].op is Op.CONST else counter(e)
        if own is not None:
            add(own)
    return tuple(found) if len(found) <= MOST else ()


def divided_once(loop: For, em: ExprEmitter) -> tuple[Expr, ...]:
    """What the loop's body divides by numbers known only while running and known not to be 0, where it is the same in all iterations.
    LLVM takes a division out of a loop only where each iteration comes by."""
    inside = {loop.var, *(stmt.var for stmt in walk_stmts(loop.body) if isinstance(stmt, (For, Let)))}

    def safe(e: Expr) -> bool:
        return all(e.args[1].op is Op.CONST or is_positive(e.args[1]) for e in walk(e) if e.op in _DIVISIONS)

    found = (e for e in walk(*_indices(loop.body, em)) if e.op in _DIVISIONS and e.args[1].op is not Op.CONST)
    return tuple(dict.fromkeys(e for e in found if not depends_on(e, inside) and not em.facts.reads(e) and safe(e)))


def _indices(body: Stmt, em: ExprEmitter) -> Iterator[Expr]:
    """Everything that the body works out, and the terms of addresses in it."""
    for stmt in walk_stmts(body):
        yield from own_exprs(stmt)
        if isinstance(stmt, Store):
            yield from (term for term, _ in em.offset(stmt.buffer, stmt.indices)[0])
        for e in loads(*own_exprs(stmt)):
            yield from (term for term, _ in em.offset(e.attr, e.args)[0])


@dataclass(slots=True)
class _Running:
    """A counter in the loop that is being emitted: its values before the loop, and its phis."""

    counter: Counter
    divisor: Operand
    first: tuple[Operand, Operand]
    phis: tuple[tuple[str, int], tuple[str, int]] = (("", 0), ("", 0))


class Counters:
    """The counters of one loop while it is emitted: `before` it, at its `head`, where they are bound, and at its end, where they `step`."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: list[_Running] = []

    def before(self, em: ExprEmitter, counters: tuple[Counter, ...], variable: Expr, begin: Operand) -> None:
        """Divide, once. A divisor of 0 is of a loop that runs only in iterations that there are not."""
        values: dict[Expr, Operand] = {variable: begin}
        for own in counters:
            divisor = em.scalar(own.divisor)
            if own.divisor.op is not Op.CONST:
                divisor = em.fn.op(f"call i64 @llvm.umax.i64(i64 {divisor}, i64 1)")
                em.fn.module.declare("declare i64 @llvm.umax.i64(i64, i64)")
            quotient = em.fn.op(f"udiv i64 {values[own.counted]}, {divisor}")
            product = em.fn.op(f"mul nuw nsw i64 {quotient}, {divisor}")
            remainder = em.fn.op(f"sub nuw nsw i64 {values[own.counted]}, {product}")
            values[own.quotient] = quotient
            self._running.append(_Running(own, divisor, (quotient, remainder)))

    def head(self, em: ExprEmitter) -> None:
        for own in self._running:
            own.phis = em.fn.phi_later(), em.fn.phi_later()

    def bind(self, em: ExprEmitter) -> None:
        """After the loop's variable has its value."""
        for own in self._running:
            em.keep_scalar(own.counter.quotient, own.phis[0][0])
            em.keep_scalar(own.counter.remainder, own.phis[1][0])

    def step(self, em: ExprEmitter, variable: Expr, before: str) -> None:
        """The values of the next iteration; `before`: the label of the block in front of the loop."""
        fn = em.fn
        growing: dict[Expr, str] = {}  # quotients, by the i1 that says whether they grow
        for own in self._running:
            (quotient, _), (remainder, _) = own.phis
            grown = growing.get(own.counter.counted)
            more = "1" if own.counter.counted is variable else fn.op(f"zext i1 {grown} to i64")
            moved = fn.op(f"add nuw nsw i64 {remainder}, {more}")
            full = fn.op(f"icmp eq i64 {moved}, {own.divisor}")
            following = fn.op(f"select i1 {full}, i64 0, i64 {moved}")
            carry = fn.op(f"zext i1 {full} to i64")
            next_quotient = fn.op(f"add nuw nsw i64 {quotient}, {carry}")
            growing[own.counter.quotient] = full
            for phi, first, value in zip(own.phis, own.first, (next_quotient, following), strict=True):
                fn.set_phi(phi, "i64", ((first, before), (value, fn.block)))
