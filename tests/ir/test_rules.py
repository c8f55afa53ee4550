"""Every rule of the simplifier, proved by Z3 from its own text: pattern == replacement where the condition holds and division has a value.

Floor division is written out by its definition. Products of two unknowns are beyond Z3's decision procedures, so that divisors and the
factors named in `_FIXED` also take each of a set of values, with everything else unknown; the general statement must not be refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import z3

from tilewright.ir.expr import Expr
from tilewright.ir.rewrite import Rule
from tilewright.ir.rules import ALL, BITS
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk

_FIXED = {"mod-inner-modulo": "acg", "divide-by-power-of-two": "cd"}
_DIVISORS = (1, 2, 3, 8, -1, -3)
_HALF = z3.FPSort(5, 11)
_ROUND = z3.RNE()
_DIVISIONS = (Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD)


class Integers:
    """Mathematical integers; int64 rules take index arithmetic as exact."""

    def __init__(self) -> None:
        self.axioms: list[Any] = []  # what the divisions' results satisfy
        self.quotients: dict[tuple[Any, Any], tuple[Any, Any]] = {}

    def variable(self, e: Expr) -> Any:
        return z3.Bool(e.name) if e.dtype.kind == "bool" else z3.Int(e.name)

    def constant(self, value: Any) -> Any:
        return z3.BoolVal(value) if isinstance(value, bool) else z3.IntVal(value)

    def divide(self, op: Op, a: Any, b: Any) -> Any:
        key = (a.sexpr(), b.sexpr(), op in (Op.FLOORDIV, Op.FLOORMOD))
        if key not in self.quotients:
            q, r = z3.FreshInt("q"), z3.FreshInt("r")
            self.quotients[key] = q, r  # type: ignore[index]
            floor = z3.Or(z3.And(b > 0, r >= 0, r < b), z3.And(b < 0, r <= 0, r > b))
            size = z3.If(b > 0, b, -b)
            trunc = z3.Or(z3.And(a >= 0, r >= 0, r < size), z3.And(a <= 0, r <= 0, r > -size))
            self.axioms += [z3.Implies(b != 0, a == q * b + r), z3.Implies(b != 0, floor if key[2] else trunc)]
        q, r = self.quotients[key]  # type: ignore[index]
        return q if op in (Op.FLOORDIV, Op.TRUNCDIV) else r

    def apply(self, op: Op, e: Expr, a: Any, b: Any) -> Any:
        if op in _DIVISIONS:
            return self.divide(op, a, b)
        return _ORDERED[op](a, b)


class Bits(Integers):
    """Machine integers of 8 bits that wrap, signed or unsigned."""

    def __init__(self, signed: bool) -> None:
        super().__init__()
        self.signed = signed

    def variable(self, e: Expr) -> Any:
        return z3.Bool(e.name) if e.dtype.kind == "bool" else z3.BitVec(e.name, 8)

    def constant(self, value: Any) -> Any:
        return z3.BoolVal(value) if isinstance(value, bool) else z3.BitVecVal(value, 8)

    def apply(self, op: Op, e: Expr, a: Any, b: Any) -> Any:
        less, less_equal = (lambda x, y: x < y, lambda x, y: x <= y) if self.signed else (z3.ULT, z3.ULE)
        special: dict[Op, Callable[[Any, Any], Any]] = {
            Op.LT: less,
            Op.LE: less_equal,
            Op.MIN: lambda x, y: z3.If(less_equal(x, y), x, y),
            Op.MAX: lambda x, y: z3.If(less_equal(x, y), y, x),
            Op.AND: lambda x, y: x & y,
            Op.OR: lambda x, y: x | y,
            Op.XOR: lambda x, y: x ^ y,
        }
        return special.get(op, _ORDERED[op])(a, b)


class Floats(Integers):
    """IEEE numbers of 16 bits; `==` of the solver tells zeros apart and takes NaN for equal to itself."""

    def variable(self, e: Expr) -> Any:
        return z3.Bool(e.name) if e.dtype.kind == "bool" else z3.FP(e.name, _HALF)

    def constant(self, value: Any) -> Any:
        return z3.BoolVal(value) if isinstance(value, bool) else z3.FPVal(value, _HALF)

    def apply(self, op: Op, e: Expr, a: Any, b: Any) -> Any:
        nan = z3.Or(z3.fpIsNaN(a), z3.fpIsNaN(b))
        table: dict[Op, Callable[[], Any]] = {
            Op.ADD: lambda: z3.fpAdd(_ROUND, a, b),
            Op.SUB: lambda: z3.fpSub(_ROUND, a, b),
            Op.MUL: lambda: z3.fpMul(_ROUND, a, b),
            Op.DIV: lambda: z3.fpDiv(_ROUND, a, b),
            Op.MIN: lambda: z3.If(nan, z3.fpNaN(_HALF), z3.If(z3.fpLEQ(a, b), a, b)),
            Op.MAX: lambda: z3.If(nan, z3.fpNaN(_HALF), z3.If(z3.fpGEQ(a, b), a, b)),
            Op.EQ: lambda: z3.fpEQ(a, b),
            Op.NE: lambda: z3.Not(z3.fpEQ(a, b)),
        }
        return table[op]()


_ORDERED: dict[Op, Callable[[Any, Any], Any]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.MIN: lambda a, b: z3.If(a <= b, a, b),
    Op.MAX: lambda a, b: z3.If(a >= b, a, b),
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.AND: z3.And,
    Op.OR: z3.Or,
    Op.XOR: z3.Xor,
}


def translate(e: Expr, theory: Integers, fixed: dict[str, Any]) -> Any:
    if e.op is Op.CONST:
        return theory.constant(e.value)
    if e.op is Op.VAR:
        return theory.constant(fixed[e.name]) if e.name in fixed and e.dtype.kind != "bool" else theory.variable(e)
    args = [translate(a, theory, fixed) for a in e.args]
    if e.op is Op.SELECT:
        return z3.If(args[0], args[1], args[2])
    if e.op is Op.NOT:
        return z3.Not(args[0])
    if e.op is Op.CALL:
        return {"abs": z3.fpAbs}[e.name](args[0])
    if all(a.sort() == z3.BoolSort() for a in args):
        return {Op.EQ: args[0] == args[1], Op.NE: args[0] != args[1]}.get(e.op) if e.op in (Op.EQ, Op.NE) else _ORDERED[e.op](*args)
    return theory.apply(e.op, e, args[0], args[1])


def divisors(e: Expr) -> list[Expr]:
    return [node.args[1] for node in walk(e) if node.op in _DIVISIONS]


def refute(rule: Rule, theory: Integers, fixed: dict[str, Any], timeout: int = 0) -> Any:
    """unsat: the rule is proved."""
    pattern, replacement = translate(rule.pattern, theory, fixed), translate(rule.replacement, theory, fixed)
    condition = translate(rule.condition, theory, fixed)
    defined = [translate(d, theory, fixed) != 0 for d in divisors(rule.pattern)]
    still_defined = [translate(d, theory, fixed) != 0 for d in divisors(rule.replacement)]
    solver = z3.Solver()
    if timeout:
        solver.set("timeout", timeout)
    solver.add(*theory.axioms, condition, *defined)
    solver.add(z3.Not(z3.And(pattern == replacement, *still_defined)))
    return solver.check()


def instances(rule: Rule) -> Iterator[dict[str, Any]]:
    if rule.name == "divide-by-power-of-two":
        yield from ({"c": c, "d": 1 / c} for c in (2.0, 0.25, -4.0))
        return
    names = _FIXED.get(rule.name)
    if names is None:
        inside = {v.name for d in divisors(rule.pattern) + divisors(rule.replacement) for v in walk(d) if v.op is Op.VAR}
        names = "".join(sorted(inside))
    for values in product(_DIVISORS, repeat=len(names)):
        yield dict(zip(names, values, strict=True))


def theories(rule: Rule) -> list[Callable[[], Integers]]:
    if rule.domain == "float":
        return [Floats]
    machine: list[Callable[[], Integers]] = [lambda: Bits(signed=True), lambda: Bits(signed=False)]
    if rule in BITS or rule.domain == "narrow":
        return machine
    if rule.domain == "integer":
        return [Integers, *machine]
    return [Integers, Floats] if rule.domain == "any" else [Integers]


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_rule_is_proved(rule: Rule) -> None:
    for theory in theories(rule):
        for fixed in instances(rule):
            assert refute(rule, theory(), fixed) == z3.unsat, f"with {fixed}"
        if rule.domain == "int64":
            assert refute(rule, theory(), {}, timeout=200) != z3.sat


def test_a_wrong_rule_is_refuted() -> None:
    right = next(rule for rule in ALL if rule.name == "div-common")
    wrong = Rule("wrong", right.pattern, right.replacement)
    assert any(refute(wrong, Integers(), fixed) == z3.sat for fixed in instances(wrong))
    ordered = next(rule for rule in ALL if rule.name == "clamp-order")
    assert refute(Rule("wrong", ordered.pattern, ordered.replacement, domain="integer"), Integers(), {}) == z3.sat


def test_names_are_unique() -> None:
    assert len({rule.name for rule in ALL}) == len(ALL)
