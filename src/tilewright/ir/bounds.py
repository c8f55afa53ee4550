"""Integer intervals of expressions: interval arithmetic over the polynomial form, so that `i - i` is 0 and `i * 8 + j` exact.

int64 is taken as exact integers (index arithmetic does not overflow); results of narrower and unsigned dtypes that may wrap get the
whole range of the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tilewright.ir import dtypes
from tilewright.ir.affine import Linear, Monomial, add_scaled, known_divisor, linear
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import COMPARISONS, Op


class Interval(NamedTuple):
    """All integers from `lo` to `hi`, inclusive; None: no bound on that side."""

    lo: int | None
    hi: int | None

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and (self.lo is None or self.lo <= value) and (self.hi is None or value <= self.hi)

    @property
    def is_point(self) -> bool:
        return self.lo is not None and self.lo == self.hi


EVERYTHING = Interval(None, None)
_BOOL = Interval(0, 1)
_TRUE = Interval(1, 1)
_FALSE = Interval(0, 0)
Env = Mapping[Expr, Interval]


def bounds(e: Expr, env: Env, memo: dict[Expr, Interval] | None = None) -> Interval:
    """An interval that holds every value of an integer or bool expression.

    `env` gives the ranges of variables (or of any other node); other variables have the range of their VarInfo. Pass the same `memo`
    to share work between calls with the same `env`.
    """
    if e.op is Op.CONST:
        return Interval(int(e.attr), int(e.attr)) if not e.dtype.is_float else EVERYTHING
    memo = {} if memo is None else memo
    found = memo.get(e)
    if found is None:
        found = _bounds(e, env, memo)
        given = env.get(e)
        memo[e] = found = found if given is None else intersect(given, found)
    return found


def linear_bounds(form: Linear, env: Env, memo: dict[Expr, Interval]) -> Interval:
    """The interval of a polynomial: exact when each atom occurs in one term."""
    lo: int | None = form.constant
    hi: int | None = form.constant
    for atoms, coefficient in form.terms.items():
        low, high = _monomial_bounds(atoms, env, memo)
        if coefficient < 0:
            low, high = high, low
        lo = None if lo is None or low is None else lo + coefficient * low
        hi = None if hi is None or high is None else hi + coefficient * high
    return Interval(lo, hi)


def dtype_range(dtype: DType) -> Interval:
    """Every value of an integer or bool dtype; int64 counts as unbounded."""
    if dtype is dtypes.int64 or dtype.kind not in ("int", "uint", "bool"):
        return EVERYTHING
    return Interval(int(dtype.lowest), int(dtype.highest))


def intersect(a: Interval, b: Interval) -> Interval:
    lo = b.lo if a.lo is None else a.lo if b.lo is None else max(a.lo, b.lo)
    hi = b.hi if a.hi is None else a.hi if b.hi is None else min(a.hi, b.hi)
    return Interval(lo, hi)


def union(a: Interval, b: Interval) -> Interval:
    lo = None if a.lo is None or b.lo is None else min(a.lo, b.lo)
    hi = None if a.hi is None or b.hi is None else max(a.hi, b.hi)
    return Interval(lo, hi)


def _bounds(e: Expr, env: Env, memo: dict[Expr, Interval]) -> Interval:
    op, dtype, args = e.op, e.dtype, e.args
    if op is Op.VAR:
        return intersect(Interval(e.attr.lo, e.attr.hi), dtype_range(dtype))
    if dtype is dtypes.int64 and op in (Op.ADD, Op.SUB, Op.MUL):
        form = linear(e)
        # A product too large to expand is its own atom.
        return linear_bounds(form, env, memo) if (e,) not in form.terms else mul(bounds(args[0], env, memo), bounds(args[1], env, memo))
    if op in COMPARISONS:
        return _compare(op, args[0], args[1], env, memo)
    if dtype.is_float:
        return EVERYTHING
    if op is Op.FLOORMOD:
        return _fit(_floormod(args[0], bounds(args[0], env, memo), bounds(args[1], env, memo)), dtype)
    if op is Op.SELECT:
        condition = bounds(args[0], env, memo)
        if condition.is_point:
            return bounds(args[1] if condition.lo else args[2], env, memo)
        return union(bounds(args[1], env, memo), bounds(args[2], env, memo))
    if op is Op.CAST and not args[0].dtype.is_float:
        return _fit(bounds(args[0], env, memo), dtype)
    if op is Op.NOT:
        lo, hi = bounds(args[0], env, memo)
        return _fit(Interval(_negate(hi, -1 if dtype.kind != "bool" else 1), _negate(lo, -1 if dtype.kind != "bool" else 1)), dtype)
    if op is Op.CALL and e.attr == "popcount":
        return Interval(0, args[0].dtype.bits)
    if op is Op.CALL and e.attr == "abs":
        a = bounds(args[0], env, memo)
        return _fit(maximum(a, Interval(_negate(a.hi), _negate(a.lo))), dtype)
    rule = _BINARY.get(op)
    if rule is None:
        return dtype_range(dtype)
    return _fit(rule(bounds(args[0], env, memo), bounds(args[1], env, memo)), dtype)


def _fit(a: Interval, dtype: DType) -> Interval:
    """The interval if it fits the dtype, else all of the dtype, since values may have wrapped."""
    full = dtype_range(dtype)
    if full is EVERYTHING or (a.lo is not None and a.hi is not None and a.lo in full and a.hi in full):
        return a
    return full


def _monomial_bounds(atoms: Monomial, env: Env, memo: dict[Expr, Interval]) -> Interval:
    if len(atoms) == 1:
        return bounds(atoms[0], env, memo)
    if len(atoms) == 2 and atoms[0] is atoms[1]:
        return _square(bounds(atoms[0], env, memo))
    result = bounds(atoms[0], env, memo)
    for atom in atoms[1:]:
        result = mul(result, bounds(atom, env, memo))
    return result


def _square(a: Interval) -> Interval:
    lo, hi = mul(a, a)
    return Interval(max(lo, 0) if lo is not None else 0, hi)


def _compare(op: Op, x: Expr, y: Expr, env: Env, memo: dict[Expr, Interval]) -> Interval:
    if x.dtype.is_float:
        return _BOOL
    if x.dtype is dtypes.int64:
        lo, hi = linear_bounds(add_scaled(linear(y), linear(x), -1), env, memo)
    else:
        lo, hi = sub(bounds(y, env, memo), bounds(x, env, memo))
    positive, negative = lo is not None and lo > 0, hi is not None and hi < 0
    if op is Op.LT or op is Op.LE:
        least = 1 if op is Op.LT else 0
        return _TRUE if lo is not None and lo >= least else _FALSE if hi is not None and hi < least else _BOOL
    if positive or negative:
        return _FALSE if op is Op.EQ else _TRUE
    if lo == 0 and hi == 0:
        return _TRUE if op is Op.EQ else _FALSE
    return _BOOL


def _negate(value: int | None, base: int = 0) -> int | None:
    return None if value is None else base - value


def add(a: Interval, b: Interval) -> Interval:
    return Interval(
        None if a.lo is None or b.lo is None else a.lo + b.lo,
        None if a.hi is None or b.hi is None else a.hi + b.hi,
    )


def sub(a: Interval, b: Interval) -> Interval:
    return add(a, Interval(_negate(b.hi), _negate(b.lo)))


def mul(a: Interval, b: Interval) -> Interval:
    products = [_product(x, y) for x in _ends(a) for y in _ends(b)]
    lo, hi = min(products), max(products)
    return Interval(None if lo == -math.inf else int(lo), None if hi == math.inf else int(hi))


def _ends(a: Interval) -> tuple[float, float]:
    return -math.inf if a.lo is None else a.lo, math.inf if a.hi is None else a.hi


def _product(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def minimum(a: Interval, b: Interval) -> Interval:
    lo = None if a.lo is None or b.lo is None else min(a.lo, b.lo)
    return Interval(lo, b.hi if a.hi is None else a.hi if b.hi is None else min(a.hi, b.hi))


def maximum(a: Interval, b: Interval) -> Interval:
    hi = None if a.hi is None or b.hi is None else max(a.hi, b.hi)
    return Interval(b.lo if a.lo is None else a.lo if b.lo is None else max(a.lo, b.lo), hi)


def _magnitude(a: Interval) -> int | None:
    return None if a.lo is None or a.hi is None else max(abs(a.lo), abs(a.hi))


def _symmetric(limit: int | None) -> Interval:
    return Interval(_negate(limit), limit)


def _divisor(b: Interval) -> Interval:
    """Division by zero has no value, so that an end at 0 is one further in."""
    return Interval(1 if b.lo == 0 else b.lo, -1 if b.hi == 0 else b.hi)


def floordiv(a: Interval, b: Interval) -> Interval:
    b = _divisor(b)
    if b.hi is not None and b.hi < 0:
        a, b = Interval(_negate(a.hi), _negate(a.lo)), Interval(_negate(b.hi), _negate(b.lo))
    if b.lo is None or b.lo <= 0:
        return _symmetric(_magnitude(a))  # no quotient is larger than its dividend
    lo, hi = a
    if lo is not None:
        lo = lo // b.lo if lo < 0 else 0 if b.hi is None else lo // b.hi
    if hi is not None:
        hi = hi // b.lo if hi >= 0 else -1 if b.hi is None else hi // b.hi
    return Interval(lo, hi)


def _floormod(dividend: Expr, a: Interval, b: Interval) -> Interval:
    b = _divisor(b)
    if b.lo is None:
        return EVERYTHING
    if b.lo <= 0:
        return Interval(min(b.lo + 1, 0), None if b.hi is None else max(b.hi - 1, 0))
    if a.lo is not None and a.hi is not None:
        if a.lo >= 0 and a.hi < b.lo:
            return a
        if b.lo == b.hi and a.lo // b.lo == a.hi // b.lo:
            return Interval(a.lo % b.lo, a.hi % b.lo)
    lo, hi = 0, None if b.hi is None else b.hi - 1
    if b.lo == b.hi and dividend.dtype is dtypes.int64:
        form = linear(dividend)
        step = math.gcd(known_divisor(form), b.lo)
        lo, hi = form.constant % step, b.lo - step + form.constant % step
    if a.lo is not None and a.lo >= 0 and a.hi is not None:
        hi = a.hi if hi is None else min(hi, a.hi)
    return Interval(lo, hi)


def truncdiv(a: Interval, b: Interval) -> Interval:
    b = _divisor(b)
    if b.lo is None or b.lo <= 0:
        return _symmetric(_magnitude(a))
    lo, hi = a
    if lo is not None:
        lo = -(-lo // b.lo) if lo < 0 else 0 if b.hi is None else lo // b.hi
    if hi is not None:
        hi = hi // b.lo if hi >= 0 else 0 if b.hi is None else -(-hi // b.hi)
    return Interval(lo, hi)


def truncmod(a: Interval, b: Interval) -> Interval:
    """The sign of the dividend, smaller than the divisor, and never larger than the dividend."""
    reach = _magnitude(b)
    limit = EVERYTHING if reach is None else _symmetric(max(reach - 1, 0))
    own = Interval(None if a.lo is None else min(a.lo, 0), None if a.hi is None else max(a.hi, 0))
    return intersect(limit, own)


def shl(a: Interval, b: Interval) -> Interval:
    if b.lo is None or b.hi is None or b.lo < 0 or b.hi > 63:
        return EVERYTHING
    return mul(a, Interval(1 << b.lo, 1 << b.hi))


def shr(a: Interval, b: Interval) -> Interval:
    if b.lo is None or b.hi is None or b.lo < 0 or b.hi > 63:
        return EVERYTHING
    return floordiv(a, Interval(1 << b.lo, 1 << b.hi))


def bit_and(a: Interval, b: Interval) -> Interval:
    if a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0:
        return Interval(a.lo & b.lo if a.is_point and b.is_point else 0, minimum(a, b).hi)
    masks = [x for x in (a, b) if x.lo is not None and x.lo >= 0]
    return Interval(0, masks[0].hi) if masks else EVERYTHING


def bit_or(a: Interval, b: Interval) -> Interval:
    if a.lo is None or b.lo is None or a.lo < 0 or b.lo < 0:
        return EVERYTHING
    top = maximum(a, b).hi
    return Interval(max(a.lo, b.lo), None if top is None else (1 << top.bit_length()) - 1)


def bit_xor(a: Interval, b: Interval) -> Interval:
    if a.lo is None or b.lo is None or a.lo < 0 or b.lo < 0:
        return EVERYTHING
    if a.is_point and b.is_point:
        return Interval(a.lo ^ b.lo, a.lo ^ b.lo)
    return Interval(0, bit_or(a, b).hi)


_BINARY: dict[Op, Callable[[Interval, Interval], Interval]] = {
    Op.ADD: add,
    Op.SUB: sub,
    Op.MUL: mul,
    Op.FLOORDIV: floordiv,
    Op.TRUNCDIV: truncdiv,
    Op.TRUNCMOD: truncmod,
    Op.MIN: minimum,
    Op.MAX: maximum,
    Op.SHL: shl,
    Op.SHR: shr,
    Op.AND: bit_and,
    Op.OR: bit_or,
    Op.XOR: bit_xor,
}
