"""Conditions in unrolled loops decided by the conditions around them: how many rows a tile has says where the border of the image is.

A tile of rows has versions for full tiles and for each number of rows that may be left (`row_tails`). Taps of a window that may lie past
the border are under conditions on the size, one for each copy of the body. In a version for so many rows all but a few are known:

    if (w + 15) // 16 == t*8 + 6:                                 if (w + 15) // 16 == t*8 + 6:
      unrolled k in 3: unrolled i in 6:                   ->        unrolled k in 3: unrolled i in 6:
        if (t*8 + i + k)*16 <= w + 15: acc[i] += ..                   if i + k <= 6: acc[i] += ..

With the loops carried out these are constants. What depends on more than the number of rows, as the last tap of a stride of two does, is
tested in the copies for which it is not known. Loops around that are not carried out have their variables at least at 0: of the border at
which an image begins only the first rows of a tile know nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir import dtypes
from tilewright.ir.affine import Linear, Monomial, add_scaled, linear, to_expr
from tilewright.ir.expr import Expr, all_of, less_equal
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.kernel.nodes import For, If, Kernel, Stmt, Store, map_stmt, with_fields
from tilewright.kernel.regions import conjuncts


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a condition says of a size: size >= least, size <= most."""

    size: Expr
    least: Linear | None
    most: Linear | None


def decide_borders(kernel: Kernel) -> Kernel:
    """The kernel (no blocks, loops split) with conditions decided; see the module's docstring."""
    sizes = frozenset(kernel.sizes)
    result: Kernel = with_fields(kernel, body=_decide(kernel.body, sizes, (), _Loops({}, {}))) if sizes else kernel
    return result


@dataclass(frozen=True, slots=True)
class _Loops:
    """The loops around: the iterations of those that are carried out, and of others, as far as these are known."""

    copies: dict[Expr, int]
    others: dict[Expr, int | None]

    def inside(self, loop: For) -> _Loops:
        extent = int(loop.extent.value) if loop.extent.is_const else None
        if loop.kind == "unrolled" and extent is not None:
            return _Loops({**self.copies, loop.var: extent}, self.others)
        return _Loops(self.copies, {**self.others, loop.var: extent}) if loop.kind != "vectorized" else self


def _decide(stmt: Stmt, sizes: frozenset[Expr], known: tuple[_Bound, ...], loops: _Loops) -> Stmt:
    """The statement inside of `loops`."""
    if isinstance(stmt, For):
        return For(stmt.var, stmt.extent, _decide(stmt.body, sizes, known, loops.inside(stmt)), stmt.kind)
    if not isinstance(stmt, If):
        return map_stmt(stmt, lambda s: _decide(s, sizes, known, loops))
    if stmt.otherwise is None and loops.copies and isinstance(stmt.then, (Store, For)):
        return _decided(stmt, known, loops)
    bounds = tuple(bound for test in conjuncts(stmt.condition) if (bound := _bound(test, sizes)) is not None)
    then = _decide(stmt.then, sizes, (*known, *bounds), loops)
    otherwise = None if stmt.otherwise is None else _decide(stmt.otherwise, sizes, known, loops)
    return If(stmt.condition, then, otherwise)


def _decided(stmt: If, known: tuple[_Bound, ...], loops: _Loops) -> Stmt:
    """The statement under what is left of its condition: first what the copy alone decides."""
    copies = loops.copies
    rest: list[Expr] = []
    possible: list[Expr] = []
    unsure: list[tuple[Expr, Expr]] = []  # a condition, and one that implies it
    for test in conjuncts(stmt.condition):
        certain, may = _sides(test, known, loops)
        if certain is None or (may is None and not _holds(certain, copies)):
            rest.append(test)
        elif may is not None and _same(certain, may, copies):
            possible.append(certain)
        else:
            unsure.append((test, certain))
            possible += [] if may is None else [may]
    if len(rest) == len(conjuncts(stmt.condition)):
        return stmt
    body = _under([*possible, *rest], stmt.then)
    for test, certain in unsure:
        body = If(certain, body, _under([*possible, test], body) if _fails(certain, copies) else None)
    return body


def _under(tests: list[Expr], body: Stmt) -> Stmt:
    return If(all_of(*tests), body) if tests else body


def _sides(test: Expr, known: tuple[_Bound, ...], loops: _Loops) -> tuple[Expr | None, Expr | None]:
    """Conditions on the copy: one under which the test holds, one without which it does not."""
    if test.op not in (Op.LT, Op.LE) or test.args[0].dtype is not dtypes.int64:
        return None, None
    form = add_scaled(linear(test.args[0]), linear(test.args[1]), -1)
    if test.op is Op.LT:
        form = Linear(form.constant + 1, form.terms)
    found = [_extreme(form, loops, greatest) for greatest in (True, False)]
    for bound in known:
        factor = form.terms.get((bound.size,), 0)
        if not factor:
            continue
        rest = Linear(form.constant, {atoms: c for atoms, c in form.terms.items() if atoms != (bound.size,)})
        ends = (bound.least, bound.most) if factor < 0 else (bound.most, bound.least)
        for side, end in enumerate(ends):
            if end is not None and found[side] is None:
                found[side] = _extreme(add_scaled(rest, end, factor), loops, side == 0)
    return found[0], found[1]


def _extreme(form: Linear, loops: _Loops, greatest: bool) -> Expr | None:
    """Whether the greatest value that the form can have, or the least, is not above 0: a condition on the copy. None where it has no such
    value that is known."""
    constant = form.constant
    terms: dict[Monomial, int] = {}
    for atoms, factor in form.terms.items():
        if len(atoms) != 1:
            return None
        if atoms[0] in loops.copies:
            terms[atoms] = factor
        elif atoms[0] not in loops.others:
            return None
        elif (factor > 0) == greatest:
            extent = loops.others[atoms[0]]
            if extent is None:
                return None
            constant += factor * (extent - 1)
    return less_equal(to_expr(Linear(constant, terms)), 0)


def _points(test: Expr, other: Expr, copies: dict[Expr, int]) -> Iterator[dict[Expr, int]]:
    used = free_vars(test, other)
    return (dict(zip(used, at, strict=True)) for at in itertools.product(*(range(copies[v]) for v in used)))


def _same(test: Expr, other: Expr, copies: dict[Expr, int]) -> bool:
    """Whether two conditions hold for the same copies."""
    return all(bool(evaluate_int(test, at)) == bool(evaluate_int(other, at)) for at in _points(test, other, copies))


def _holds(test: Expr, copies: dict[Expr, int]) -> bool:
    """Whether a condition holds for some copy."""
    return any(evaluate_int(test, at) for at in _points(test, test, copies))


def _fails(test: Expr, copies: dict[Expr, int]) -> bool:
    """Whether a condition fails for some copy."""
    return not all(evaluate_int(test, at) for at in _points(test, test, copies))


def _bound(test: Expr, sizes: frozenset[Expr]) -> _Bound | None:
    """What a condition says of a size s, if it does: a comparison of s or (s + c) // d, with constants c and d. What it is
    compared with may have terms with s in them, such as the rest of a division: they count where they cancel."""
    if test.op not in (Op.LT, Op.LE, Op.EQ) or test.args[0].dtype is not dtypes.int64:
        return None
    form = add_scaled(linear(test.args[0]), linear(test.args[1]), -1)
    for atoms, factor in form.terms.items():
        found = _divided(atoms[0], sizes) if len(atoms) == 1 and abs(factor) == 1 else None
        rest = Linear(form.constant + (test.op is Op.LT), {others: c for others, c in form.terms.items() if others != atoms})
        if found is None:
            continue
        size, added, divisor = found
        least = add_scaled(Linear(-added, {}), rest, -factor * divisor)  # where (s + c) // d is what it is compared with
        most = Linear(least.constant + divisor - 1, least.terms)
        return _Bound(size, least if test.op is Op.EQ or factor < 0 else None, most if test.op is Op.EQ or factor > 0 else None)
    return None


def _divided(atom: Expr, sizes: frozenset[Expr]) -> tuple[Expr, int, int] | None:
    """The size, c and d of (size + c) // d."""
    divisor = 1
    if atom.op is Op.FLOORDIV and atom.args[1].is_const and int(atom.args[1].value) > 0:
        atom, divisor = atom.args[0], int(atom.args[1].value)
    form = linear(atom)
    ((own, factor),) = form.terms.items() if len(form.terms) == 1 else (((), 0),)
    return (own[0], form.constant, divisor) if factor == 1 and len(own) == 1 and own[0] in sizes else None
