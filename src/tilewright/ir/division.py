"""How sums split for division: the binders of the floor division and modulo rules (see `rules`).

Each finds, in the polynomial of the dividend, the parts that its rule's pattern names. Divisors may be symbolic: `(i * N + j) // N`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.ir.affine import ZERO, Linear, Monomial, add_scaled, linear, monomial, multiply, order_key, ordered, times, to_expr, without
from tilewright.ir.expr import Expr, VarInfo, const, make
from tilewright.ir.facts import Facts
from tilewright.ir.rewrite import Bindings, any_of, constant
from tilewright.ir.scalar_ops import Op

# The pattern variables of the division rules; `c` and `g` are divisors.
A, B, X, Y = any_of("a"), any_of("b"), any_of("x"), any_of("y")
C, D, G = any_of("c"), any_of("d"), any_of("g")
K = constant("k")
# Steps of one polynomial division; each removes a term, so only pathological divisors need more.
_DIVISION_STEPS = 32


def bind_quotient(e: Expr, facts: Facts) -> Bindings | None:
    """b and c of `b // c` or `b % c`, and the k with b // c == k, if that is certain."""
    k = facts.quotient(linear(e.args[0]), e.args[1])
    return None if k is None else {B: e.args[0], C: e.args[1], K: const(k)}


def bind_multiple(e: Expr, facts: Facts) -> Bindings | None:
    """a, b, c with the dividend == a * c + b and a != 0, b being what the divisor c does not go into."""
    dividend, divisor = linear(e.args[0]), linear(e.args[1])
    if not divisor.terms:
        parts = _divide_by_constant(dividend, divisor.constant) if divisor.constant > 0 else None
    else:
        parts = divide(dividend, divisor)
    if parts is None or parts[0] == ZERO or parts[1] == dividend:
        return None
    quotient = to_expr(parts[0])
    # A size that its divisor divides, `N // 8`, is the whole quotient: nothing to split off.
    return None if quotient is e else {A: quotient, B: to_expr(parts[1]), C: e.args[1]}


def bind_common(e: Expr, facts: Facts) -> Bindings | None:
    """a, b, c, g, k with dividend == g * a + b, divisor == g * c and b // g == k, for the largest g that there is."""
    dividend, divisor = linear(e.args[0]), linear(e.args[1])
    for g in _common_divisors(dividend, divisor):
        reduced = to_expr(divide(divisor, g)[0])
        if not facts.is_positive_divisor(reduced):
            continue
        multiple, rest = ZERO, Linear(dividend.constant, {})
        for atoms, coefficient in dividend.terms.items():
            term = Linear(0, {atoms: coefficient})
            quotient, remainder = divide(term, g)
            if remainder == ZERO:
                multiple = add_scaled(multiple, quotient)
            else:
                rest = add_scaled(rest, term)
        factor = to_expr(g)
        k = facts.quotient(rest, factor) if multiple.terms else None
        if k is not None:
            return {A: to_expr(multiple), B: to_expr(rest), C: reduced, G: factor, K: const(k)}
    return None


def bind_inner_modulo(e: Expr, facts: Facts) -> Bindings | None:
    """k, x, g, y, c with dividend == k * (x % g) + y and k * g a multiple of c."""
    dividend, divisor = linear(e.args[0]), linear(e.args[1])
    for atoms, coefficient in ordered(t for t in dividend.terms.items() if any(a.op is Op.FLOORMOD for a in t[0])):
        for atom in atoms:
            if atom.op is not Op.FLOORMOD:
                continue
            others = without(atoms, (atom,)) or ()
            period = divide(times(linear(atom.args[1]), others, coefficient), divisor)
            if period[1] == ZERO:
                rest = add_scaled(dividend, Linear(0, {atoms: coefficient}), -1)
                return {A: to_expr(Linear(0, {others: coefficient}) if others else Linear(coefficient, {})),
                        X: atom.args[0], G: atom.args[1], Y: to_expr(rest), C: e.args[1], D: to_expr(period[0])}  # fmt: skip
    return None


def bind_divisible(e: Expr, facts: Facts) -> Bindings | None:
    """b, y, c with dividend == y + b, where c divides y by what is known of sizes, y != 0."""
    dividend, divisor = linear(e.args[0]), e.args[1]
    if divisor.op is not Op.CONST or divisor.attr <= 0:
        return None
    terms = {t: n for t, n in dividend.terms.items() if facts.divides(divisor.attr, Linear(0, {t: n}))}
    if not terms:
        return None
    rest = {t: n for t, n in dividend.terms.items() if t not in terms}
    return {Y: to_expr(Linear(0, terms)), B: to_expr(Linear(dividend.constant, rest)), C: divisor}


def bind_nested(e: Expr, facts: Facts) -> Bindings | None:
    """x, d, y, c with dividend == x // d + y; both divisors are positive."""
    dividend, divisor = linear(e.args[0]), e.args[1]
    for atoms, coefficient in ordered(t for t in dividend.terms.items() if len(t[0]) == 1 and t[0][0].op is Op.FLOORDIV):
        atom = atoms[0]
        if coefficient == 1:
            if facts.is_positive_divisor(atom.args[1]) and facts.is_positive_divisor(divisor):
                rest = add_scaled(dividend, Linear(0, {atoms: 1}), -1)
                if rest.is_const or (divisor.is_const and atom.args[1].is_const):
                    return {X: atom.args[0], D: atom.args[1], Y: to_expr(rest), C: divisor}
    return None


def bind_modulo(e: Expr, facts: Facts) -> Bindings | None:
    """x, g, d, c of `(x % g) // c` with g == c * d; c is positive."""
    inner, divisor = e.args
    if inner.op is not Op.FLOORMOD or not facts.is_positive_divisor(divisor):
        return None
    quotient, remainder = divide(linear(inner.args[1]), linear(divisor))
    if remainder != ZERO or not facts.is_positive_divisor(to_expr(quotient)):
        return None
    return {X: inner.args[0], C: divisor, D: to_expr(quotient)}


def divide(dividend: Linear, divisor: Linear) -> tuple[Linear, Linear]:
    """(q, r) with dividend == q * divisor + r, by the leading term of the divisor; a constant divisor takes the largest multiples
    that keep coefficients' signs, and leaves a constant in [0, divisor)."""
    if not divisor.terms:
        c = divisor.constant
        if c == 0:
            return ZERO, dividend
        terms = {atoms: _toward_zero(n, c) for atoms, n in dividend.terms.items()}
        quotient = Linear(dividend.constant // c, {atoms: n for atoms, n in terms.items() if n})
        return quotient, add_scaled(dividend, quotient, -c)
    lead, factor = max(divisor.terms.items(), key=lambda term: (len(term[0]), [order_key(atom) for atom in term[0]]))
    quotient, rest = ZERO, dividend
    for _ in range(_DIVISION_STEPS):
        step = next(_divisible_terms(rest, lead, factor), None)
        product = None if step is None else multiply(step, divisor)
        if step is None or product is None:
            break
        quotient, rest = add_scaled(quotient, step), add_scaled(rest, product, -1)
    return quotient, rest


def _divisible_terms(form: Linear, lead: Monomial, factor: int) -> Iterator[Linear]:
    for atoms, coefficient in ordered(t for t in form.terms.items() if without(t[0], lead) is not None):
        other, n = without(atoms, lead), _toward_zero(coefficient, factor)
        if n:
            yield Linear(0, {other: n}) if other else Linear(n, {})


def _divide_by_constant(dividend: Linear, c: int) -> tuple[Linear, Linear]:
    """`divide`, which also takes out terms that c divides because it divides a size: `i * N // 8` -> `i * (N // 8)`."""
    quotient, rest = divide(dividend, Linear(c, {}))
    for atoms, coefficient in rest.terms.items():
        needed = c // math.gcd(c, coefficient)
        size = next((a for a in atoms if a.op is Op.VAR and type(a.attr) is VarInfo and a.attr.multiple % needed == 0), None)
        if size is not None:
            part = make(Op.FLOORDIV, size.dtype, (size, const(needed)))
            others = monomial((*(without(atoms, (size,)) or ()), part))
            quotient = add_scaled(quotient, Linear(0, {others: coefficient * needed // c}))
            rest = add_scaled(rest, Linear(0, {atoms: coefficient}), -1)
    return quotient, rest


def _common_divisors(dividend: Linear, divisor: Linear) -> Iterator[Linear]:
    """Candidates for a common divisor > 1: integers, largest first, then atoms of a divisor that is a product."""
    if len(divisor.terms) > 1 or (divisor.terms and divisor.constant):
        return
    atoms, factor = next(iter(divisor.terms.items()), ((), divisor.constant))
    if factor <= 0:
        return
    shared = {math.gcd(factor, coefficient) for coefficient in dividend.terms.values()} - {1}
    for g in sorted(shared, reverse=True):
        if g != divisor.constant:
            yield Linear(g, {})
    if len(atoms) > 1 or factor > 1:
        for atom in dict.fromkeys(atoms):
            yield Linear(0, {(atom,): 1})


def _toward_zero(n: int, c: int) -> int:
    return n // c if (n < 0) == (c < 0) else -(-n // c)
