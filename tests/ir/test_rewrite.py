"""The rewrite engine: matching, dtypes, conditions, the trace, and loops."""

import pytest

from tests.ir.strategies import FLAG, REAL, SMALL, I, J, K
from tilewright.ir import dtypes
from tilewright.ir.bounds import Interval
from tilewright.ir.expr import Expr, const, logical_and, maximum, minimum, select, var
from tilewright.ir.facts import Facts
from tilewright.ir.rewrite import Bindings, Rule, any_of, compile_rules, constant, rewrite
from tilewright.support.errors import InternalError

X, Y, C, D = any_of("x"), any_of("y"), constant("c"), constant("d")
ABSORB = Rule("absorb", minimum(maximum(X, Y), X), X, domain="integer")
LEFT = Rule("left", minimum(X, Y), X, X <= Y, "integer")


def test_commutative_operators_match_in_both_orders() -> None:
    for e in (minimum(maximum(I, J), I), minimum(maximum(J, I), I), minimum(I, maximum(I, J)), minimum(I, maximum(J, I))):
        assert rewrite(e, [ABSORB], {}) is I
    untouched = minimum(maximum(I, J), K)
    assert rewrite(untouched, [ABSORB], {}) is untouched


def test_conditions_are_proved_from_ranges() -> None:
    e = minimum(I, J)
    assert rewrite(e, [LEFT], {}) is e
    assert rewrite(e, [LEFT], {I: Interval(0, 3), J: Interval(3, None)}) is I
    assert rewrite(e, [LEFT], {J: Interval(0, 3), I: Interval(3, None)}) is J


def test_a_rule_serves_its_domain_only() -> None:
    other = var("other", dtypes.int8)
    assert rewrite(minimum(maximum(SMALL, other), SMALL), [ABSORB], {}) is SMALL
    real = minimum(maximum(REAL, var("r", dtypes.float32)), REAL)
    assert rewrite(real, [ABSORB], {}) is real
    narrow = Rule("add-constants", (X + C) + D, X + (C + D), domain="narrow")
    assert rewrite((SMALL + 100) + 100, [narrow], {}) is SMALL + const(-56, dtypes.int8)
    wide = (I + 100) + 100
    assert rewrite(wide, [narrow], {}) is wide


def test_constant_variables_match_constants_only() -> None:
    rule = Rule("clamp", minimum(maximum(X, C), D), D, D <= C)
    assert rewrite(minimum(maximum(I, 5), 3), [rule], {}) is const(3)
    for e in (minimum(maximum(I, 3), 5), minimum(maximum(I, J), 3)):
        assert rewrite(e, [rule], {}) is e


def test_bottom_up_to_a_fixpoint_with_a_trace() -> None:
    inner = minimum(maximum(I, J), I)
    trace: list[str] = []
    assert rewrite(select(FLAG, minimum(maximum(inner, K), I), K), [ABSORB], {}, trace) is select(FLAG, I, K)
    assert trace == ["absorb", "absorb"]


def test_shared_nodes_are_rewritten_once() -> None:
    e: Expr = minimum(maximum(I, J), I)
    for _ in range(60):
        e = logical_and(e, e + 1)
    trace: list[str] = []
    rewrite(e, [ABSORB], {}, trace)
    assert trace == ["absorb"]


def test_loops_name_the_rules() -> None:
    there = Rule("there", minimum(X, Y), maximum(X, Y))
    back = Rule("back", maximum(X, Y), minimum(X, Y))
    with pytest.raises(InternalError, match="rewrite rules do not terminate: there, back") as raised:
        rewrite(minimum(I, J) + 1, [there, back], {})
    assert "lead from" in str(raised.value.why)


def test_endless_growth_names_the_rule() -> None:
    grow = Rule("grow", minimum(X, C), minimum(X, C + 1))
    with pytest.raises(InternalError, match="rewrite rules do not terminate: grow") as raised:
        rewrite(minimum(I, 0), [grow], {})
    assert "steps long" in str(raised.value.why)


def test_binders_find_what_patterns_cannot_see() -> None:
    def bind_even(e: Expr, facts: Facts) -> Bindings | None:
        return {X: e.args[0], C: e.args[1]} if e.args[1].is_const and e.args[1].value % 2 == 0 else None

    table = compile_rules([Rule("halve", X % C, X % 2, bind=bind_even)])
    assert rewrite(I % 4, table, {}) is I % 2
    assert rewrite(I % 3, table, {}) is I % 3
