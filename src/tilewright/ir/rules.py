"""The simplifier's rewrite rules, as tables. The tests prove each with Z3 and fuzz all together against evaluation.

int64 sums and comparisons are normalised in `simplify`; the division rules see sums through the binders of `division`.
Float rules are exact in IEEE arithmetic, signed zeros and NaN included.
"""

from __future__ import annotations

import math

from tilewright.ir import dtypes
from tilewright.ir.division import (
    A,
    B,
    C,
    D,
    G,
    K,
    X,
    Y,
    bind_common,
    bind_divisible,
    bind_inner_modulo,
    bind_modulo,
    bind_multiple,
    bind_nested,
    bind_quotient,
)
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Expr,
    all_of,
    call,
    const,
    div,
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    make,
    maximum,
    minimum,
    mul,
    not_equal,
    select,
    sub,
    trunc_div,
    trunc_mod,
)
from tilewright.ir.facts import Facts
from tilewright.ir.rewrite import Bindings, Rule, any_of, compile_rules, constant
from tilewright.ir.scalar_ops import Op as _Op

_BOOL = dtypes.bool_
_FLOAT = dtypes.float32
Z = any_of("z")
_C, _D = constant("c"), constant("d")
P, Q = any_of("p", _BOOL), any_of("q", _BOOL)
F = any_of("f", _FLOAT)
_FC, _FD = constant("c", _FLOAT), constant("d", _FLOAT)
# Powers of two whose reciprocal is a normal number, by exponent: floats below or above may be flushed or overflow.
_RECIPROCAL_REACH = {"float16": 14, "bfloat16": 126, "float32": 126, "float64": 1022}


def bind_power_of_two(e: Expr, facts: Facts) -> Bindings | None:
    """f, c, d of `f / c` where d == 1 / c exactly."""
    dividend, divisor = e.args
    if not divisor.is_const or divisor.value == 0 or not math.isfinite(divisor.value):
        return None
    mantissa, exponent = math.frexp(divisor.value)
    if abs(mantissa) != 0.5 or abs(exponent - 1) > _RECIPROCAL_REACH.get(e.dtype.name, -1):
        return None
    return {F: dividend, _FC: divisor, _FD: const(1 / divisor.value, e.dtype)}


_ONE_QUOTIENT = all_of(K * C <= B, B < (K + 1) * C, less(0, C))
_COMMON = all_of(K * G <= B, B < (K + 1) * G, less(0, G), less(0, C))

FLOOR_DIVISION: tuple[Rule, ...] = (
    Rule("div-one-quotient", B // C, K + 0 * B, _ONE_QUOTIENT, bind=bind_quotient),
    Rule("div-negative", X // _C, (0 - X) // (0 - _C), _C < 0),
    Rule("div-multiple", (A * C + B) // C, A + B // C, not_equal(C, 0), bind=bind_multiple),
    Rule("div-nested", (X // D + Y) // C, (X + D * Y) // (D * C), all_of(less(0, C), less(0, D)), bind=bind_nested),
    Rule("div-modulo", (X % G) // C, (X // C) % D, all_of(equal(G, C * D), less(0, C), less(0, D)), bind=bind_modulo),
    Rule("div-common", (G * A + B) // (G * C), (A + K) // C, _COMMON, bind=bind_common),
)

FLOOR_MODULO: tuple[Rule, ...] = (
    Rule("mod-one-quotient", B % C, B - K * C, _ONE_QUOTIENT, bind=bind_quotient),
    Rule("mod-negative", X % _C, 0 - (0 - X) % (0 - _C), _C < 0),
    Rule(
        "mod-inner-modulo",
        (A * (X % G) + Y) % C,
        (A * X + Y) % C,
        all_of(equal(A * G, C * D), not_equal(C, 0), not_equal(G, 0)),
        bind=bind_inner_modulo,
    ),
    Rule("mod-multiple", (A * C + B) % C, B % C, not_equal(C, 0), bind=bind_multiple),
    Rule("mod-divisible", (Y + B) % C, B % C, all_of(equal(Y % C, 0), less(0, C)), bind=bind_divisible),
    Rule("mod-common", (G * A + B) % (G * C), G * ((A + K) % C) + (B - K * G), _COMMON, bind=bind_common),
)

TRUNCATING: tuple[Rule, ...] = (
    Rule("trunc-div-floor", trunc_div(X, Y), X // Y, all_of(less_equal(0, X), less(0, Y))),
    Rule("trunc-mod-floor", trunc_mod(X, Y), X % Y, all_of(less_equal(0, X), less(0, Y))),
)

MIN_MAX: tuple[Rule, ...] = (
    Rule("min-left", minimum(X, Y), X, X <= Y, "integer"),
    Rule("max-left", maximum(X, Y), X, Y <= X, "integer"),
    Rule("min-min", minimum(minimum(X, Y), X), minimum(X, Y), domain="integer"),
    Rule("max-max", maximum(maximum(X, Y), X), maximum(X, Y), domain="integer"),
    Rule("min-of-max", minimum(maximum(X, Y), X), X, domain="integer"),
    Rule("max-of-min", maximum(minimum(X, Y), X), X, domain="integer"),
    Rule("min-constants", minimum(minimum(X, _C), _D), minimum(X, minimum(_C, _D)), domain="integer"),
    Rule("max-constants", maximum(maximum(X, _C), _D), maximum(X, maximum(_C, _D)), domain="integer"),
    Rule("clamp-empty-min", minimum(maximum(X, _C), _D), _D, _D <= _C, "integer"),
    Rule("clamp-empty-max", maximum(minimum(X, _C), _D), _D, _C <= _D, "integer"),
    Rule("clamp-order", maximum(minimum(X, _C), _D), minimum(maximum(X, _D), _C), _D < _C, "integer"),
    Rule("min-same", make(_Op.MIN, _FLOAT, (F, F)), F, domain="float"),
    Rule("max-same", make(_Op.MAX, _FLOAT, (F, F)), F, domain="float"),
)

COMPARISON: tuple[Rule, ...] = (
    Rule("less-true", X < Y, TRUE, X < Y, "narrow"),
    Rule("less-false", X < Y, FALSE, Y <= X, "narrow"),
    Rule("less-equal-true", X <= Y, TRUE, X <= Y, "narrow"),
    Rule("less-equal-false", X <= Y, FALSE, Y < X, "narrow"),
    Rule("equal-true", equal(X, Y), TRUE, equal(X, Y), "narrow"),
    Rule("equal-false", equal(X, Y), FALSE, not_equal(X, Y), "narrow"),
    Rule("not-equal-true", not_equal(X, Y), TRUE, not_equal(X, Y), "narrow"),
    Rule("not-equal-false", not_equal(X, Y), FALSE, equal(X, Y), "narrow"),
    Rule("bool-equal-true", equal(P, TRUE), P, domain="bool"),
    Rule("bool-equal-false", equal(P, FALSE), logical_not(P), domain="bool"),
    Rule("bool-not-equal-true", not_equal(P, TRUE), logical_not(P), domain="bool"),
    Rule("bool-not-equal-false", not_equal(P, FALSE), P, domain="bool"),
)

BOOLEAN: tuple[Rule, ...] = (
    Rule("not-less", logical_not(X < Y), Y <= X, domain="integer"),
    Rule("not-less-equal", logical_not(X <= Y), Y < X, domain="integer"),
    Rule("not-equal", logical_not(equal(X, Y)), not_equal(X, Y), domain="any"),
    Rule("not-not-equal", logical_not(not_equal(X, Y)), equal(X, Y), domain="any"),
    Rule("not-and", logical_not(logical_and(P, Q)), logical_or(logical_not(P), logical_not(Q)), domain="bool"),
    Rule("not-or", logical_not(logical_or(P, Q)), logical_and(logical_not(P), logical_not(Q)), domain="bool"),
    Rule("and-not", logical_and(P, logical_not(P)), FALSE, domain="bool"),
    Rule("or-not", logical_or(P, logical_not(P)), TRUE, domain="bool"),
    Rule("and-absorbs-or", logical_and(P, logical_or(P, Q)), P, domain="bool"),
    Rule("or-absorbs-and", logical_or(P, logical_and(P, Q)), P, domain="bool"),
    Rule("and-repeated", logical_and(P, logical_and(P, Q)), logical_and(P, Q), domain="bool"),
    Rule("or-repeated", logical_or(P, logical_or(P, Q)), logical_or(P, Q), domain="bool"),
    Rule("xor-true", make(_Op.XOR, _BOOL, (P, TRUE)), logical_not(P), domain="bool"),
    Rule("xor-false", make(_Op.XOR, _BOOL, (P, FALSE)), P, domain="bool"),
)

SELECTION: tuple[Rule, ...] = (
    Rule("select-not", select(logical_not(P), X, Y), select(P, Y, X), domain="any"),
    Rule("select-known-true", select(P, X, Y), X, P, "any"),
    Rule("select-known-false", select(P, X, Y), Y, logical_not(P), "any"),
    Rule("select-inner-true", select(P, select(P, X, Y), Z), select(P, X, Z), domain="any"),
    Rule("select-inner-false", select(P, X, select(P, Y, Z)), select(P, X, Z), domain="any"),
    Rule("select-condition", select(P, TRUE, FALSE), P, domain="bool"),
    Rule("select-negation", select(P, FALSE, TRUE), logical_not(P), domain="bool"),
    Rule("select-min", select(X < Y, X, Y), minimum(X, Y), domain="integer"),
    Rule("select-min-equal", select(X <= Y, X, Y), minimum(X, Y), domain="integer"),
    Rule("select-max", select(X < Y, Y, X), maximum(X, Y), domain="integer"),
    Rule("select-max-equal", select(X <= Y, Y, X), maximum(X, Y), domain="integer"),
)

BITS: tuple[Rule, ...] = (
    Rule("and-constants", logical_and(logical_and(X, _C), _D), logical_and(X, logical_and(_C, _D)), domain="integer"),
    Rule("or-constants", logical_or(logical_or(X, _C), _D), logical_or(X, logical_or(_C, _D)), domain="integer"),
    Rule("xor-constants", logical_xor(logical_xor(X, _C), _D), logical_xor(X, logical_xor(_C, _D)), domain="integer"),
    Rule("add-constants", (X + _C) + _D, X + (_C + _D), domain="narrow"),
)

FLOAT: tuple[Rule, ...] = (
    Rule("subtract-zero", sub(F, const(0.0, _FLOAT)), F, domain="float"),
    Rule("add-negative-zero", F + const(-0.0, _FLOAT), F, domain="float"),
    Rule("negate-twice", mul(mul(F, const(-1.0, _FLOAT)), const(-1.0, _FLOAT)), F, domain="float"),
    Rule("divide-by-power-of-two", div(F, _FC), F * _FD, equal(_FC * _FD, const(1.0, _FLOAT)), "float", bind_power_of_two),
    Rule("abs-abs", call("abs", call("abs", F)), call("abs", F), domain="float"),
    Rule("abs-negated", call("abs", mul(F, const(-1.0, _FLOAT))), call("abs", F), domain="float"),
)

ALL: tuple[Rule, ...] = (
    *FLOOR_DIVISION, *FLOOR_MODULO, *TRUNCATING, *MIN_MAX, *COMPARISON, *BOOLEAN, *SELECTION, *BITS, *FLOAT,
)  # fmt: skip
COMPILED = compile_rules(ALL)
