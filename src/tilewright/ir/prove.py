"""Proofs about expressions, for schedule legality and guard removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tilewright.ir.affine import Linear, Unrepresentable, add_scaled, linear, to_expr
from tilewright.ir.bounds import Interval
from tilewright.ir.expr import TRUE, Expr, ExprLike, equal, less, less_equal, maximum, minimum
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier, simplify

_NOTHING: Mapping[Expr, Interval] = MappingProxyType({})
_NO_EXTENTS: Mapping[Expr, Expr] = MappingProxyType({})


def prove(condition: Expr, env: Mapping[Expr, Interval] = _NOTHING, extents: Mapping[Expr, Expr] = _NO_EXTENTS) -> bool:
    """True only if `condition` certainly holds for all values of its variables; False says nothing.

    env: intervals of variables. extents: `0 <= v < extents[v]` with an extent that may be symbolic, outer loops first:
    `prove(i * 8 + j < N, {}, {i: N // 8, j: const(8)})`.
    """
    return simplify(condition, env, extents) is TRUE


def prove_equal(a: ExprLike, b: ExprLike, env: Mapping[Expr, Interval] = _NOTHING, extents: Mapping[Expr, Expr] = _NO_EXTENTS) -> bool:
    """Whether two expressions certainly have one value."""
    return a is b or prove(equal(a, b), env, extents)


def nonnegative(form: Linear, extents: Mapping[Expr, Expr] = _NO_EXTENTS) -> bool:
    """Whether the polynomial is certainly >= 0 inside loops of these extents."""
    if not form.terms:
        return form.constant >= 0
    run = simplifier(extents=extents)
    if run.facts.nonnegative(form):
        return True
    if not any(atom.op is Op.FLOORDIV for atoms in form.terms for atom in atoms):
        return False
    try:
        simple = linear(run.rewrite(to_expr(form)))  # remainders joined to quotients, multiples taken out of divisions
    except Unrepresentable:
        return False
    return simple != form and run.facts.nonnegative(simple)


def at_most(a: Expr, b: Expr, extents: Mapping[Expr, Expr] = _NO_EXTENTS) -> bool:
    """Whether the int64 a is certainly <= b inside loops of these extents."""
    return nonnegative(add_scaled(linear(b), linear(a), -1), extents)


def smaller(a: Linear, b: Linear, extents: Mapping[Expr, Expr] = _NO_EXTENTS) -> Linear:
    """The lesser of two polynomials inside loops of these extents; a `min` atom when it is not known which."""
    if nonnegative(add_scaled(b, a, -1), extents):
        return a
    return b if nonnegative(add_scaled(a, b, -1), extents) else linear(minimum(to_expr(a), to_expr(b)))


def larger(a: Linear, b: Linear, extents: Mapping[Expr, Expr] = _NO_EXTENTS) -> Linear:
    """The greater of two polynomials inside loops of these extents; a `max` atom when it is not known which."""
    if nonnegative(add_scaled(a, b, -1), extents):
        return a
    return b if nonnegative(add_scaled(b, a, -1), extents) else linear(maximum(to_expr(a), to_expr(b)))


def in_range(index: Expr, extent: Expr, env: Mapping[Expr, Interval] = _NOTHING, extents: Mapping[Expr, Expr] = _NO_EXTENTS) -> bool:
    """Whether 0 <= index < extent certainly holds."""
    return prove(less_equal(0, index), env, extents) and prove(less(index, extent), env, extents)


def equal_dims(a: Sequence[ExprLike] | ExprLike, b: Sequence[ExprLike] | ExprLike) -> bool:
    """Whether two dims, or two whole shapes, are equal for all sizes."""
    if isinstance(a, Sequence) or isinstance(b, Sequence):
        if not (isinstance(a, Sequence) and isinstance(b, Sequence) and len(a) == len(b)):
            return False
        return all(prove_equal(x, y) for x, y in zip(a, b, strict=True))
    return prove_equal(a, b)
