"""`simplify`: the canonical form of expressions.

int64 sums become polynomials in one order, integer comparisons `terms < terms` divided by their common factor, everything else goes
through the rule tables of `rules`. Equal inputs give the same node in every process; simplifying twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from tilewright.ir import dtypes
from tilewright.ir.affine import (
    Linear,
    Monomial,
    add_scaled,
    common_factor,
    linear,
    multiply,
    number,
    order_key,
    ordered,
    parts,
    scale,
    shift,
    sorted_terms,
    split,
    times,
    to_expr,
)
from tilewright.ir.bounds import Interval, dtype_range
from tilewright.ir.division import divide
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import FALSE, TRUE, Expr, cast, const, floordiv, logical_and, logical_or, make
from tilewright.ir.facts import Facts
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import COMPILED
from tilewright.ir.scalar_ops import Op

_INT = dtypes.int64
_NOTHING: Mapping[Expr, Interval] = MappingProxyType({})
_NO_EXTENTS: Mapping[Expr, Expr] = MappingProxyType({})
_PARTS = frozenset({Op.FLOORDIV, Op.FLOORMOD})
# Results kept for one set of facts; a kernel needs a few thousand.
_MEMO_LIMIT = 50_000
# (bits of exponent, bits of mantissa with the hidden one)
_FLOAT_FORMAT = {"float16": (5, 11), "bfloat16": (8, 8), "float32": (8, 24), "float64": (11, 53)}


def simplify(
    e: Expr,
    env: Mapping[Expr, Interval] = _NOTHING,
    extents: Mapping[Expr, Expr] = _NO_EXTENTS,
    trace: list[str] | None = None,
) -> Expr:
    """The canonical form of `e`, given ranges of variables and symbolic extents (`0 <= v < extents[v]`, outer loops first).

    Results are remembered for equal `env` and `extents`. The names of the rules applied are appended to `trace` (remembered results
    apply none). Division by zero has no value, so a sub-expression that divides by zero may become anything.
    """
    return simplifier(env, extents, trace).rewrite(e)


def simplifier(
    env: Mapping[Expr, Interval] = _NOTHING, extents: Mapping[Expr, Expr] = _NO_EXTENTS, trace: list[str] | None = None
) -> Rewriter:
    """A run of the simplifier, for callers with many expressions under the same facts: `run.rewrite(e)`. One thread at a time."""
    facts, memo = _context(tuple(env.items()), tuple(extents.items()))
    if len(memo) > _MEMO_LIMIT:
        memo.clear()
        facts.ranges.clear()
    return Rewriter(COMPILED, facts, memo if trace is None else {}, trace, _WHOLE, _NORMAL)


@lru_cache(maxsize=64)
def _context(env: tuple[tuple[Expr, Interval], ...], extents: tuple[tuple[Expr, Expr], ...]) -> tuple[Facts, dict[Expr, Expr]]:
    plain = simplifier(dict(env)) if extents else None
    return Facts(dict(env), {v: plain.rewrite(extent) for v, extent in extents} if plain is not None else {}), {}


def polynomial(run: Rewriter, e: Expr) -> Expr | None:
    """int64 sums and products, with everything below them: one canonical sum."""
    if e.dtype is not _INT:
        return None
    form = linear(e)
    if (e,) in form.terms:
        # A product too large to expand.
        form = _product(tuple([run.rewrite(a) for a in e.args]))
        return to_expr(form) if (e,) not in form.terms else e
    return to_expr(_recombine(run, _with_simple_atoms(run, form)))


def point(run: Rewriter, e: Expr) -> Expr:
    """Variables that can have one value only."""
    if e.dtype is _INT:
        lo, hi = run.facts.bounds(e)
        if lo is not None and lo == hi:
            return const(lo)
    return e


def _with_simple_atoms(run: Rewriter, form: Linear) -> Linear:
    """The polynomial with its atoms rewritten, which may make them sums."""
    result: Linear | None = None
    terms: dict[Monomial, int] = {}
    for atoms, coefficient in form.terms.items():
        simple = tuple([run.rewrite(atom) for atom in atoms])
        if simple == atoms:
            terms[atoms] = coefficient
        else:
            product = scale(_product(simple), coefficient)
            result = product if result is None else add_scaled(result, product)
    if result is None:
        return form
    return add_scaled(Linear(form.constant, terms), result)


def _product(factors: Monomial) -> Linear:
    result = linear(factors[0])
    for factor in factors[1:]:
        product = multiply(result, linear(factor))
        result = linear(make(Op.MUL, _INT, (to_expr(result), factor))) if product is None else product
    return result


def _recombine(run: Rewriter, form: Linear) -> Linear:
    """`(x // c) * c + x % c` -> `x`, and `(x // c) * c` -> `x` where c divides x, with any common factor."""
    changed = any(atom.op is Op.FLOORDIV for atoms in form.terms for atom in atoms)
    while changed:
        changed = False
        for atom in sorted({atom for atoms in form.terms for atom in atoms if atom.op in _PARTS}, key=order_key):
            whole = _join(run, form, atom)
            if whole is not None:
                form, changed = whole, True
    return form


def _join(run: Rewriter, form: Linear, atom: Expr) -> Linear | None:
    """`form` with a remainder joined to its quotient, or a quotient that leaves no remainder multiplied out."""
    factor, rest = split(form, atom)
    if factor is None or (not factor.terms and not factor.constant):
        return None
    x, c = linear(atom.args[0]), linear(atom.args[1])
    if atom.op is Op.FLOORDIV:
        if c.terms or c.constant <= 0 or not run.facts.divides(c.constant, x):
            return None
        if factor.constant % c.constant or common_factor(factor) % c.constant:
            return None
        product = multiply(x, divide(factor, c)[0])
        return None if product is None else add_scaled(rest, product)
    quotient = multiply(linear(run.rewrite(floordiv(atom.args[0], atom.args[1]))), c)
    if quotient is None or not quotient.terms:
        return None
    # All of the factor, or, where the quotient stands beside some of it only, that part.
    for part in [factor, *parts(factor)]:
        needed, joined = multiply(quotient, part), multiply(x, part)
        if needed is not None and joined is not None and all(form.terms.get(atoms) == n for atoms, n in needed.terms.items()):
            remaining = times(add_scaled(factor, part, -1), (atom,))
            return add_scaled(add_scaled(add_scaled(rest, remaining), needed, -1), joined)
    return None


def inequality(run: Rewriter, e: Expr) -> Expr | None:
    """`a < b` and `a <= b` of int64: 0 <= polynomial, divided by what it can be, written with positive terms only."""
    a, b = e.args
    if a.dtype is not _INT:
        return None
    form = _tighten(run, shift(add_scaled(linear(b), linear(a), -1), -1 if e.op is Op.LT else 0))
    lo, hi = run.facts.interval(form)
    if lo is not None and lo >= 0:
        return TRUE
    if hi is not None and hi < 0:
        return FALSE
    if run.facts.nonnegative(form):
        return TRUE
    if run.facts.nonnegative(shift(scale(form, -1), -1)):
        return FALSE
    return _final(run, _write_inequality(form))


def _tighten(run: Rewriter, form: Linear) -> Linear:
    """A polynomial that is >= 0 exactly where `form` is: quotients multiplied out, common factors divided out."""
    while form.terms:
        smaller = _multiply_out(form)
        if smaller is None:
            smaller = _divide_out(run.facts, form)
        if smaller is None:
            return form
        form = _recombine(run, smaller)
    return form


def _multiply_out(form: Linear) -> Linear | None:
    """`0 <= x // c + r` -> `0 <= x + c * r`; `0 <= r - x // c` -> `0 <= c * r + c - 1 - x`."""
    for atoms, coefficient in ordered(t for t in form.terms.items() if len(t[0]) == 1 and t[0][0].op is Op.FLOORDIV):
        atom = atoms[0]
        if abs(coefficient) != 1 or not atom.args[1].is_const or atom.args[1].value <= 0:
            continue
        c = int(atom.args[1].value)
        rest = scale(add_scaled(form, Linear(0, {atoms: coefficient}), -1), c)
        return add_scaled(shift(rest, 0 if coefficient > 0 else c - 1), linear(atom.args[0]), coefficient)
    return None


def _divide_out(facts: Facts, form: Linear) -> Linear | None:
    """`0 <= g * a + b` -> `0 <= a + k` where b // g == k for certain."""
    for g in sorted({abs(n) for n in form.terms.values()} | {common_factor(form)}, reverse=True):
        if g <= 1:
            break
        rest = Linear(form.constant, {atoms: n for atoms, n in form.terms.items() if n % g})
        lo, hi = facts.interval(rest)
        if lo is not None and hi is not None and lo // g == hi // g:
            return Linear(lo // g, {atoms: n // g for atoms, n in form.terms.items() if n % g == 0})
    return None


def _write_inequality(form: Linear) -> Expr:
    right = Linear(0, {atoms: n for atoms, n in form.terms.items() if n > 0})
    left = Linear(0, {atoms: -n for atoms, n in form.terms.items() if n < 0})
    constant = form.constant
    if not left.terms:
        return make(Op.LE, dtypes.bool_, (number(-constant), to_expr(right)))
    if not right.terms:
        return make(Op.LT, dtypes.bool_, (to_expr(left), number(constant + 1)))
    if constant < 0:
        return make(Op.LT, dtypes.bool_, (to_expr(shift(left, -constant - 1)), to_expr(right)))
    return make(Op.LE, dtypes.bool_, (to_expr(left), to_expr(shift(right, constant))))


def _final(run: Rewriter, e: Expr) -> Expr:
    """A comparison as this file writes it: rewriting it again would change nothing."""
    run.memo[e] = e
    return e


def equality(run: Rewriter, e: Expr) -> Expr | None:
    """`a == b` and `a != b` of int64: decided where possible, divided by the common factor, written with positive terms only."""
    a, b = e.args
    if a.dtype is not _INT:
        return None
    same, different = (TRUE, FALSE) if e.op is Op.EQ else (FALSE, TRUE)
    form = _recombine(run, add_scaled(linear(a), linear(b), -1))
    if not form.terms:
        return same if form.constant == 0 else different
    g = common_factor(form)
    if form.constant % g:
        return different
    form = Linear(form.constant // g, {atoms: n // g for atoms, n in form.terms.items()})
    facts, negative = run.facts, scale(form, -1)
    if facts.nonnegative(shift(form, -1)) or facts.nonnegative(shift(negative, -1)):
        return different
    if facts.nonnegative(form) and facts.nonnegative(negative):
        return same
    if sorted_terms(form)[0][1] < 0:
        form = scale(form, -1)
    right = Linear(0, {atoms: -n for atoms, n in form.terms.items() if n < 0})
    left = Linear(0, {atoms: n for atoms, n in form.terms.items() if n > 0})
    return _final(run, make(e.op, dtypes.bool_, (to_expr(left), to_expr(shift(right, -form.constant)))))


def connective(run: Rewriter, e: Expr) -> Expr | None:
    """`and` and `or` chains of bools: operands that others imply are dropped; contradictions decide."""
    if e.dtype.kind != "bool":
        return None
    is_and = e.op is Op.AND
    operands = _flatten(e, e.op)
    kept: list[Expr] = []
    for operand in operands:
        new = _inequality_form(operand)
        if new is None:
            if operand not in kept:
                kept.append(operand)
            continue
        keep = []
        for other in kept:
            old = _inequality_form(other)
            if old is None:
                keep.append(other)
                continue
            gap = run.facts.interval(add_scaled(new, old, -1))
            total = run.facts.interval(add_scaled(new, old))
            if is_and and total.hi is not None and total.hi < 0:
                return FALSE
            if not is_and and total.lo is not None and total.lo >= -1:
                return TRUE
            # old <= new everywhere: old implies new.
            old_implies_new = gap.lo is not None and gap.lo >= 0
            new_implies_old = gap.hi is not None and gap.hi <= 0
            if old_implies_new if is_and else new_implies_old:
                new = None
                break
            if not (new_implies_old if is_and else old_implies_new):
                keep.append(other)
        if new is not None:
            kept = [*keep, operand]
    if len(kept) == len(operands):
        return None
    join = logical_and if is_and else logical_or
    result = kept[0]
    for operand in kept[1:]:
        result = join(result, operand)
    return result


def _flatten(e: Expr, op: Op) -> list[Expr]:
    return [e] if e.op is not op else [part for a in e.args for part in _flatten(a, op)]


def _inequality_form(e: Expr) -> Linear | None:
    """The polynomial that is >= 0 where the comparison holds."""
    if e.op not in (Op.LT, Op.LE) or e.args[0].dtype is not _INT:
        return None
    return shift(add_scaled(linear(e.args[1]), linear(e.args[0]), -1), -1 if e.op is Op.LT else 0)


def sorted_operands(run: Rewriter, e: Expr) -> Expr | None:
    """Operands of commutative integer operators in one order, constants last."""
    a, b = e.args
    if not e.dtype.is_integer or (not a.is_const and (b.is_const or order_key(a) <= order_key(b))):
        return None
    return make(e.op, e.dtype, (b, a))


def conjunction_or_bits(run: Rewriter, e: Expr) -> Expr | None:
    return connective(run, e) if e.dtype.kind == "bool" else sorted_operands(run, e)


def conversion(run: Rewriter, e: Expr) -> Expr | None:
    """A cast of a cast that loses nothing is one cast from the source."""
    inner = e.args[0]
    if inner.op is not Op.CAST:
        return None
    source = inner.args[0]
    return cast(e.dtype, source) if _keeps_values(run.facts, source, inner.dtype) else None


def _keeps_values(facts: Facts, e: Expr, dtype: DType) -> bool:
    """Whether every value of `e` is one of `dtype`."""
    target = _FLOAT_FORMAT.get(dtype.name)
    if e.dtype.is_float:
        own = _FLOAT_FORMAT.get(e.dtype.name)
        return own is not None and target is not None and own[0] <= target[0] and own[1] <= target[1]
    if e.dtype.kind not in ("int", "uint", "bool"):
        return False
    if dtype is _INT and e.dtype is not dtypes.uint64:
        return True
    lo, hi = facts.bounds(e)
    if lo is None or hi is None:
        return False
    if target is not None:
        return -lo <= 1 << target[1] and hi <= 1 << target[1] and target[1] <= 1 << (target[0] - 1)
    full = dtype_range(dtype)
    return dtype.is_integer and full.lo is not None and lo in full and hi in full


_WHOLE: dict[Op, Callable[[Rewriter, Expr], Expr | None]] = {Op.ADD: polynomial, Op.SUB: polynomial, Op.MUL: polynomial, Op.VAR: point}
_NORMAL: dict[Op, Callable[[Rewriter, Expr], Expr | None]] = {
    Op.LT: inequality,
    Op.LE: inequality,
    Op.EQ: equality,
    Op.NE: equality,
    Op.AND: conjunction_or_bits,
    Op.OR: conjunction_or_bits,
    Op.XOR: sorted_operands,
    Op.MIN: sorted_operands,
    Op.MAX: sorted_operands,
    Op.CAST: conversion,
}
