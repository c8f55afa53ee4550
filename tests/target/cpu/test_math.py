"""The elementary functions as expressions: accuracy, special values, narrow floats, constants, sharing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.target.cpu.expression_values import evaluate
from tests.target.cpu.math_references import ARGUMENTS, EXACT, IN_FLOAT64, Array, arguments, error_in_float64, errors_in_float32
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, call, const, load, var
from tilewright.ir.scalar_ops import INTRINSICS, Op
from tilewright.ir.traverse import walk
from tilewright.kernel.nodes import Buffer, For, Store, own_exprs, walk_stmts
from tilewright.target.cpu.math import EXPANSIONS, expand_math, expand_math_in
from tilewright.target.cpu.math.accuracy import MAX_ULP, PERIODIC_LIMITS

NATIVE = {
    "abs", "sqrt", "floor", "ceil", "round", "trunc", "isnan", "isinf", "copysign", "fma", "popcount", "dot2", "dot4", "reciprocal_normal",
    "may_flush",
}  # fmt: skip
PERIODIC = ("sin", "cos", "tan")


def values_of(name: str, dtype: DType, args: tuple[Array, ...]) -> Array:
    variables = [var(f"x{i}", dtype) for i in range(len(args))]
    return evaluate(expand_math(call(name, *variables)), dict(zip(variables, args)))


def within_limits(name: str, args: tuple[Array, ...], which: int) -> tuple[Array, ...]:
    if name not in PERIODIC:
        return args
    return tuple(np.where(np.abs(a) > PERIODIC_LIMITS[which], a.dtype.type(0.5), a) for a in args)


def test_every_intrinsic_is_native_or_expanded_and_has_a_bound() -> None:
    assert set(EXPANSIONS) == set(INTRINSICS) - NATIVE
    assert set(MAX_ULP) == set(EXPANSIONS) == set(EXACT)


@pytest.mark.parametrize("name", MAX_ULP)
def test_float32_is_within_its_bound(name: str) -> None:
    args = within_limits(name, arguments(name, np.float32, 20_000), 0)
    values = values_of(name, dtypes.float32, args)
    assert values.dtype == np.float32
    with np.errstate(all="ignore"):
        exact = IN_FLOAT64[name](*(a.astype(np.float64) for a in args))
    error = errors_in_float32(values, exact)
    if name == "sigmoid":
        tiny = exact < 2.0**-126
        assert (values[tiny] <= np.float32(2.0**-126)).all()
        error = np.where(tiny, 0.0, error)
    worst = int(np.argmax(error))
    assert error[worst] <= MAX_ULP[name][0], (error[worst], [a[worst] for a in args], values[worst], exact[worst])


@pytest.mark.parametrize("name", MAX_ULP)
def test_float64_is_within_its_bound(name: str) -> None:
    args = within_limits(name, arguments(name, np.float64, 800), 1)
    values = values_of(name, dtypes.float64, args)
    with np.errstate(all="ignore"):
        rough = IN_FLOAT64[name](*args)
    special = ~np.isfinite(rough)
    assert (np.isnan(values) == np.isnan(rough)).all()
    for i in np.flatnonzero(np.all([np.isfinite(a) for a in args], axis=0) & ~np.isnan(rough)):
        at = tuple(float(a[i]) for a in args)
        if special[i] and at[0] in (0.0, 1.0, -1.0):
            assert values[i] == rough[i], at
        elif not (name == "sigmoid" and rough[i] < 2.0**-1022) and not (name == "atan2" and abs(rough[i]) < 2.0**-1022):
            error = error_in_float64(name, float(values[i]), at)
            assert error <= MAX_ULP[name][1], (error, at, values[i])


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("name", MAX_ULP)
def test_special_values_are_those_of_numpy_with_their_signs(name: str, dtype: DType) -> None:
    """Zeros, infinities, NaN, subnormals, the ends of the domains; for two arguments all pairs of them."""
    numbers = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -2.5, 1e-42, -1e-42, 1e30, -1e30]
    host = dtype.numpy.type
    points = np.array([*numbers, np.finfo(host).max, np.finfo(host).min], host)
    if name in PERIODIC:
        points = points[~(np.abs(points) > 1e6) | np.isinf(points)]
    if name == "exp_nonpositive":
        points = points[~(points > 0)]
    grids: tuple[Array, ...] = (points,) if name not in ARGUMENTS else tuple(g.ravel() for g in np.meshgrid(points, points))
    values = values_of(name, dtype, grids)
    with np.errstate(all="ignore"):
        expected = IN_FLOAT64[name](*(g.astype(np.float64) for g in grids)).astype(host)
    if name == "sigmoid":
        expected = np.where(expected < np.finfo(host).tiny, host(0), expected)
    tolerance = 8 * np.finfo(host).eps
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=2 * float(np.finfo(host).smallest_subnormal))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(values[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("name", PERIODIC)
def test_periodic_functions_of_huge_arguments_are_bounded_or_at_least_no_nan(name: str, dtype: DType) -> None:
    huge = np.geomspace(1.0, float(np.finfo(dtype.numpy).max), 3000).astype(dtype.numpy)
    values = values_of(name, dtype, (np.concatenate([huge, -huge]),))
    assert not np.isnan(values).any()
    if name != "tan":
        assert (np.abs(values) <= 1.0).all()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_exponentials_of_what_is_not_positive_are_0_or_normal(dtype: DType) -> None:
    low = float(np.log(np.finfo(dtype.numpy).tiny))
    points = np.linspace(1.2 * low, 0.9 * low, 2000).astype(dtype.numpy)
    values = values_of("exp_nonpositive", dtype, (points,))
    assert ((values == 0) | (values >= np.finfo(dtype.numpy).tiny)).all()
    assert (values[points < low] == 0).all()
    assert (values[points > low + 2] > 0).all()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_nan_stays_nan_whatever_its_payload(dtype: DType) -> None:
    word = np.uint32 if dtype is dtypes.float32 else np.uint64
    bits = np.random.default_rng(0).integers(0, np.iinfo(word).max, 500, dtype=word)
    mantissa = np.finfo(dtype.numpy).nmant
    quiet = word(((1 << (dtype.bits - mantissa - 1)) - 1) << mantissa | 1 << (mantissa - 1))
    payloads = (bits | quiet).view(dtype.numpy)
    for name in MAX_ULP:
        assert np.isnan(values_of(name, dtype, (payloads,) * ARGUMENTS.get(name, 1))).all(), name


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_powers_that_the_format_holds_are_exact(dtype: DType) -> None:
    limit = 2 ** (np.finfo(dtype.numpy).nmant + 1)
    cases = [(base, power) for base in range(-40, 41) for power in range(12) if abs(base**power) <= limit]
    bases, powers = (np.array(column, dtype.numpy) for column in zip(*cases))
    assert [int(v) for v in values_of("pow", dtype, (bases, powers))] == [base**power for base, power in cases]


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
@example(x=-0.0, y=0.5)
@example(x=-np.inf, y=0.5)
@example(x=-0.0, y=-1.0)
def test_pow_follows_c(x: float, y: float) -> None:
    values = values_of("pow", dtypes.float32, (np.array([x], np.float32), np.array([y], np.float32)))
    with np.errstate(all="ignore"):
        (expected,) = np.power(np.array([x]), np.array([y])).astype(np.float32)  # of two scalars it is a root where y is 0.5
    np.testing.assert_allclose(values[0], expected, rtol=2e-7, atol=1.5e-45)
    assert np.isnan(expected) or np.signbit(values[0]) == np.signbit(expected)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAX_ULP)
def test_narrow_floats_are_rounded_from_float32(name: str, dtype: DType) -> None:
    everything = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    if name == "exp_nonpositive":
        everything = everything[~(everything > 0)]
    args = (everything,) if name not in ARGUMENTS else (everything, np.random.default_rng(1).permutation(everything))
    narrow = values_of(name, dtype, args)
    assert narrow.dtype == dtype.numpy
    with np.errstate(all="ignore"):
        expected = values_of(name, dtypes.float32, tuple(a.astype(np.float32) for a in args)).astype(dtype.numpy)
    np.testing.assert_array_equal(narrow.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("name", MAX_ULP)
def test_constants_are_folded_to_the_nearest_value(name: str) -> None:
    value = {"acosh": 1.5, "exp_nonpositive": -0.7}.get(name, 0.7)
    folded = expand_math(call(name, *(const(value, dtypes.float32) for _ in range(INTRINSICS[name]))))
    exact = EXACT[name](*(float(np.float32(value)) for _ in range(INTRINSICS[name])))
    assert folded.is_const
    assert folded.value == float(np.float32(float(exact)))


def test_constants_at_the_edges_are_folded() -> None:
    for name, value, expected in (("log", 0.0, -math.inf), ("exp", 1000.0, math.inf), ("rsqrt", 0.0, math.inf), ("log", -1.0, math.nan)):
        folded: Any = expand_math(call(name, const(value, dtypes.float32))).value
        assert folded == expected or (math.isnan(expected) and math.isnan(folded))


def test_equal_calls_share_one_expansion() -> None:
    """sin and cos of one argument share the reduction; a statement's expressions share all of it."""
    x = var("x", dtypes.float32)
    alone = len(list(walk(expand_math(call("sin", x)))))
    both = len(list(walk(expand_math(call("sin", x) + call("cos", x)))))
    assert both < alone + 12


def calls_left(*roots: Expr) -> list[Expr]:
    return [node for node in walk(*roots) if node.op is Op.CALL and node.attr in EXPANSIONS]


def test_statements_are_expanded_all_through() -> None:
    source, target = Buffer("x", dtypes.float16, (const(8),)), Buffer("y", dtypes.float16, (const(8),))
    i = var("i")
    stmt = For(i, const(8), Store(target, (i,), call("exp", call("tanh", load(source, (i,))))))
    expanded = expand_math_in(stmt)
    exprs = [e for inner in walk_stmts(expanded) for e in own_exprs(inner)]
    assert not calls_left(*exprs)
    assert calls_left(*(e for inner in walk_stmts(stmt) for e in own_exprs(inner)))


@pytest.mark.parametrize(("name", "most"), [("exp", 18), ("sigmoid", 20), ("tanh", 21), ("erf", 26), ("log", 29)])
def test_hot_functions_stay_cheap(name: str, most: int) -> None:
    """Operations of float32 that become instructions: a comparison with the selection it decides counts as one (minimum or maximum),
    negation as none."""
    nodes = list(walk(expand_math(call(name, var("x", dtypes.float32)))))
    free = (Op.CONST, Op.VAR, Op.BITCAST, Op.LT)
    negations = [node for node in nodes if node.op is Op.MUL and node.args[1].is_const and node.args[1].value == -1]
    assert len([node for node in nodes if node.op not in free]) - len(negations) <= most
