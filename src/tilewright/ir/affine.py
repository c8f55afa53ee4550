"""Integer expressions as polynomials over atoms: constant + sum of coefficient * product of atoms.

An atom is any int64 node that is no sum or product: a variable, a size, `x // 3`, `min(a, b)`, a load. Sums and products are taken as
exact integers: index arithmetic does not overflow 64 bits. `linear` is canonical, so equal polynomials are recognised whatever the
order they were written in, and `to_expr` gives each its one text: highest degree first, then largest coefficient, then by name. A
polynomial whose numbers int64 does not have is `Unrepresentable`: what was written would be read as another one.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, make
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import depends_on

Monomial: TypeAlias = tuple[Expr, ...]  # atoms in order of `order_key`
_INT = dtypes.int64
SUMS = frozenset({Op.ADD, Op.SUB, Op.MUL})
# Products of two sums with more terms than this stay a product: expanding them explodes.
_EXPAND_LIMIT = 64
_ORDER_LENGTH = 96
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


class Unrepresentable(ArithmeticError):
    """A number of a polynomial is none of int64. Rewriting leaves the expression as it is."""


class Linear(NamedTuple):
    """`constant` + sum over `terms` of coefficient * product of atoms. No coefficient is 0; do not change `terms`."""

    constant: int
    terms: dict[Monomial, int]

    @property
    def is_const(self) -> bool:
        return not self.terms


_EMITTED: weakref.WeakValueDictionary[tuple[int, frozenset[tuple[Monomial, int]]], Expr] = weakref.WeakValueDictionary()
ZERO = Linear(0, {})


def linear(e: Expr) -> Linear:
    """The polynomial of an int64 expression; sub-expressions that are no sums or products are atoms, taken as they are."""
    if e.op is Op.CONST:
        return Linear(int(e.attr), {})
    if e.op not in SUMS or e.dtype is not _INT:
        return Linear(0, {(e,): 1})
    form: Linear | None = e.linear_form
    if form is None:
        a, b = linear(e.args[0]), linear(e.args[1])
        if e.op is Op.MUL:
            product = multiply(a, b)
            if product is None:
                return Linear(0, {(e,): 1})
            form = product
        else:
            form = add_scaled(a, b, 1 if e.op is Op.ADD else -1)
        if form.terms.get((e,)) is None:  # a form that held its own node would never be freed
            e.linear_form = form
    return form


def to_expr(form: Linear) -> Expr:
    """The canonical expression of a polynomial: `i * 64 + j * 8 - k + 3`. Raises Unrepresentable."""
    if len(form.terms) <= 1:
        return _emit(form)  # may be an atom, which as a key would keep itself alive
    key = (form.constant, frozenset(form.terms.items()))
    result = _EMITTED.get(key)
    if result is None:
        result = _EMITTED[key] = _emit(form)
    return result


def _emit(form: Linear) -> Expr:
    terms = sorted_terms(form)
    head = next((n for n, (_, coefficient) in enumerate(terms) if coefficient > 0), None)
    constant = form.constant
    if head is None:
        result, constant = number(constant), 0
    else:
        result = _scaled(*terms.pop(head))
    for atoms, coefficient in terms:
        result = make(Op.ADD if coefficient > 0 else Op.SUB, _INT, (result, _scaled(atoms, abs(coefficient))))
    if constant:
        result = make(Op.ADD if constant > 0 else Op.SUB, _INT, (result, number(abs(constant))))
    if result.op in SUMS and (result,) not in form.terms:
        result.linear_form = form
    return result


def number(n: int) -> Expr:
    """The constant of int64. Raises Unrepresentable where it has no such number."""
    if not _LEAST <= n <= _GREATEST:
        raise Unrepresentable(f"{n} is no number of int64")
    return const(n)


def expect_exact(e: Expr) -> None:
    """Check that the numbers of an expression are those of int64 when sums and products are written out. Raises Unrepresentable."""
    form = linear(e)
    for n in (form.constant, *form.terms.values()):
        number(n)


def sorted_terms(form: Linear) -> list[tuple[Monomial, int]]:
    """The terms in canonical order: highest degree first, then largest coefficient, then by name."""
    return ordered(form.terms.items())


def ordered(terms: Iterable[tuple[Monomial, int]]) -> list[tuple[Monomial, int]]:
    """Terms in canonical order. What picks one of several must pick in this order: that of a dict depends on how it came about."""
    found = list(terms)
    return sorted(found, key=_term_order) if len(found) > 1 else found


def add_scaled(a: Linear, b: Linear, factor: int = 1) -> Linear:
    """a + factor * b"""
    if not b.terms:
        return Linear(a.constant + factor * b.constant, a.terms)
    terms = dict(a.terms)
    for atoms, coefficient in b.terms.items():
        total = terms.get(atoms, 0) + factor * coefficient
        if total:
            terms[atoms] = total
        else:
            terms.pop(atoms, None)
    return Linear(a.constant + factor * b.constant, terms)


def scale(a: Linear, factor: int) -> Linear:
    """factor * a"""
    if factor == 0:
        return ZERO
    return Linear(a.constant * factor, {atoms: c * factor for atoms, c in a.terms.items()})


def shift(a: Linear, amount: int) -> Linear:
    """a + amount"""
    return Linear(a.constant + amount, a.terms)


def multiply(a: Linear, b: Linear) -> Linear | None:
    """a * b expanded, or None when that has too many terms."""
    if not b.terms:
        return scale(a, b.constant)
    if not a.terms:
        return scale(b, a.constant)
    if len(a.terms) * len(b.terms) > _EXPAND_LIMIT:
        return None
    terms: dict[Monomial, int] = {}
    for left, x in _all_terms(a):
        for right, y in _all_terms(b):
            atoms = monomial(left + right) if left and right else left or right
            terms[atoms] = terms.get(atoms, 0) + x * y
    constant = terms.pop((), 0)
    return Linear(constant, {atoms: c for atoms, c in terms.items() if c})


def times(a: Linear, atoms: Monomial, factor: int = 1) -> Linear:
    """a * factor * product of atoms"""
    if not atoms:
        return scale(a, factor)
    terms = {monomial(atoms + other): c * factor for other, c in a.terms.items()}
    if a.constant:
        terms[atoms] = terms.get(atoms, 0) + a.constant * factor
        if not terms[atoms]:
            del terms[atoms]
    return Linear(0, terms)


def monomial(atoms: Iterable[Expr]) -> Monomial:
    return tuple(sorted(atoms, key=order_key))


def without(atoms: Monomial, divisor: Monomial) -> Monomial | None:
    """atoms / divisor, or None if it does not divide."""
    if len(divisor) == 1 and len(atoms) <= 1:
        return () if atoms == divisor else None
    rest = list(atoms)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def split(form: Linear, atom: Expr) -> tuple[Linear | None, Linear]:
    """(factor, rest) with form = factor * atom + rest, or (None, ...) when the atom also occurs in another way."""
    factor: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for atoms, coefficient in form.terms.items():
        other = without(atoms, (atom,))
        if other is None:
            rest[atoms] = coefficient
        elif atom in other:
            return None, form
        else:
            factor[other] = coefficient
    return Linear(factor.pop((), 0), factor), Linear(form.constant, rest)


def parts(form: Linear) -> list[Linear]:
    """The terms of a polynomial with several, each alone."""
    terms = _all_terms(form)
    return [Linear(0, {atoms: n}) if atoms else Linear(n, {}) for atoms, n in terms] if len(terms) > 1 else []


def common_factor(form: Linear) -> int:
    """The greatest integer that divides every coefficient (not the constant); 0 for a constant."""
    return math.gcd(*form.terms.values())


def known_divisor(form: Linear) -> int:
    """An integer that divides every term's value (not the constant), by coefficients and by the `multiple` of sizes; 0 for a constant."""
    return math.gcd(*(coefficient * _multiple(atoms) for atoms, coefficient in form.terms.items()))


def coefficient(e: Expr, variable: Expr) -> Expr | None:
    """What multiplies `variable` in `e`, or None when `e` is not affine in it."""
    parts = affine_in(e, (variable,))
    return None if parts is None else parts[0][variable]


def affine_in(e: Expr, variables: Collection[Expr]) -> tuple[dict[Expr, Expr], Expr] | None:
    """(coefficients, rest) with e = sum of coefficients[v] * v + rest, all of them free of `variables`; None when `e` is not affine.

    Coefficients may be symbolic: in `i * N + j` that of `i` is `N`. Every variable has a coefficient, 0 if it does not occur.
    """
    wanted = frozenset(variables)
    parts: dict[Expr | None, dict[Monomial, int]] = {v: {} for v in variables}
    parts[None] = {}
    form = linear(e)
    for atoms, c in form.terms.items():
        own = [a for a in atoms if a in wanted]
        if len(own) > 1 or any(a not in wanted and depends_on(a, wanted) for a in atoms):
            return None
        owner = own[0] if own else None
        parts[owner][atoms if owner is None else without(atoms, (owner,)) or ()] = c
    rest = to_expr(Linear(form.constant, parts.pop(None)))
    return {v: to_expr(Linear(terms.pop((), 0), terms)) for v, terms in parts.items() if v is not None}, rest


def order_key(e: Expr) -> str:
    """A total order of expressions by structure, the same in every process: variables by name, then the rest."""
    if not e.order:
        e.order = _order(e)
    return e.order


def _order(e: Expr) -> str:
    if e.op is Op.VAR:
        name, *known = e.attr.key()
        kind = "" if e.dtype is _INT else e.dtype.name
        return name if known == [None, None, 1] and not kind else f"{name}|{kind}{known}"
    attr = "" if e.attr is None else e.attr if isinstance(e.attr, str) else getattr(e.attr, "name", None) or repr(e.attr)
    text = f"~{e.op.value}:{e.dtype.name}:{attr}({','.join(order_key(a) for a in e.args)})"
    if len(text) > _ORDER_LENGTH:
        # Long keys end in a digest: nodes are shared, so full texts could grow exponentially.
        text = text[: _ORDER_LENGTH - 32] + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return text


def _term_order(term: tuple[Monomial, int]) -> tuple[int, int, list[str]]:
    atoms, coefficient = term
    return -len(atoms), -abs(coefficient), [order_key(a) for a in atoms]


def _scaled(atoms: Monomial, coefficient: int) -> Expr:
    result = atoms[0]
    for atom in atoms[1:]:
        result = make(Op.MUL, _INT, (result, atom))
    return result if coefficient == 1 else make(Op.MUL, _INT, (result, number(coefficient)))


def _all_terms(form: Linear) -> list[tuple[Monomial, int]]:
    terms = list(form.terms.items())
    if form.constant:
        terms.append(((), form.constant))
    return terms


def _multiple(atoms: Monomial) -> int:
    result = 1
    for atom in atoms:
        if atom.op is Op.VAR:
            result *= atom.attr.multiple
    return result
