"""The simplifier, bounds and proofs against evaluation, and golden texts of typical index expressions."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.strategies import BOOL, FLAG, FLOAT, HUGE, NAMES, REAL, SMALL, VARIABLES, F, I, J, K, M, N, S, conditions, index_exprs
from tilewright.ir import dtypes
from tilewright.ir.affine import Linear, affine_in, coefficient, linear, to_expr
from tilewright.ir.bounds import Interval, bounds
from tilewright.ir.expr import TRUE, Expr, cast, const, make, maximum, minimum, select, size, var
from tilewright.ir.parser import parse_expr
from tilewright.ir.printer import format_expr
from tilewright.ir.prove import equal_dims, in_range, prove, prove_equal
from tilewright.ir.scalar_ops import BINARY, COMPARISONS, Op
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import evaluate_int, substitute, walk
from tilewright.ir.types import product

_FUZZ = settings(max_examples=200, deadline=None)
_LOOPS = (I, J, K, F)


@st.composite
def environments(draw: st.DrawFn) -> tuple[dict[Expr, Interval], dict[Expr, int]]:
    """Ranges of some loop variables, and values of all variables within them and within what sizes declare."""
    env: dict[Expr, Interval] = {}
    values: dict[Expr, int] = {
        N: draw(st.integers(1, 40)),
        M: draw(st.integers(0, 12)),
        S: 8 * draw(st.integers(0, 8)),
    }
    for v in _LOOPS:
        lo = draw(st.sampled_from([None, 0, 0, 0, -3, 5]))
        hi = draw(st.sampled_from([None, 0, 1, 3, 7, 7, 15]))
        if lo is not None and hi is not None and hi < lo:
            hi = lo
        if lo is not None or hi is not None:
            env[v] = Interval(lo, hi)
        low = lo if lo is not None else min(-30, hi if hi is not None else 0)
        values[v] = draw(st.integers(low, hi if hi is not None else low + 60))
    return env, values


def value_of(e: Expr, values: dict[Expr, int]) -> int | None:
    """None: the expression has no value, it divides by zero."""
    try:
        return evaluate_int(e, values)
    except ZeroDivisionError:
        return None


@_FUZZ
@given(index_exprs(), environments())
def test_simplified_expressions_keep_their_value(e: Expr, given_: tuple[dict[Expr, Interval], dict[Expr, int]]) -> None:
    env, values = given_
    expected = value_of(e, values)
    if expected is not None:
        assert evaluate_int(simplify(e, env), values) == expected


@_FUZZ
@given(conditions(), environments())
def test_simplified_conditions_keep_their_value(e: Expr, given_: tuple[dict[Expr, Interval], dict[Expr, int]]) -> None:
    env, values = given_
    expected = value_of(e, values)
    if expected is not None:
        assert evaluate_int(simplify(e, env), values) == expected


def overflows(e: Expr, values: dict[Expr, int]) -> bool:
    """Whether a sum or product in it leaves int64."""
    for node in walk(e):
        if node.op in (Op.ADD, Op.SUB, Op.MUL):
            a, b = (evaluate_int(a, values) for a in node.args)
            if not -(1 << 63) <= (a + b if node.op is Op.ADD else a - b if node.op is Op.SUB else a * b) < 1 << 63:
                return True
    return False


@_FUZZ
@given(index_exprs(8, HUGE | st.integers(-20, 20).map(const)), environments())
def test_numbers_at_the_ends_of_int64_keep_their_value(e: Expr, given_: tuple[dict[Expr, Interval], dict[Expr, int]]) -> None:
    env, values = given_
    expected = value_of(e, values)
    if expected is not None and not overflows(e, values):
        assert evaluate_int(simplify(e, env), values) == expected


@pytest.mark.parametrize("limit", [-(1 << 63), -(1 << 63) + 1, (1 << 63) - 2, (1 << 63) - 1])
@pytest.mark.parametrize("op", [Op.LT, Op.LE, Op.EQ, Op.NE])
def test_comparisons_with_the_ends_of_int64(op: Op, limit: int) -> None:
    for args in ((I, const(limit)), (const(limit), I)):
        e = make(op, BOOL, args)
        for value in (-(1 << 63), -(1 << 63) + 1, -1, 0, 5, (1 << 63) - 2, (1 << 63) - 1):
            assert evaluate_int(simplify(e), {I: value}) == evaluate_int(e, {I: value})


def test_what_one_model_makes_of_large_numbers_says_nothing_of_others() -> None:
    least = (1 << 63) - 1
    rounded = make(Op.ADD, dtypes.int64, (make(Op.FLOORDIV, dtypes.int64, (I + (least - 3), const(least))), const(15)))
    simplify(make(Op.FLOORDIV, dtypes.int64, (rounded, const(16))))
    simplify(make(Op.ADD, dtypes.int64, (I + (least - 3), const(least - 14))))
    assert linear(make(Op.SUB, dtypes.int64, (I, const(19)))) == Linear(-19, {(I,): 1})
    assert bounds(make(Op.SUB, dtypes.int64, (I, const(19))), {I: Interval(0, 4)}) == Interval(-19, -15)


@_FUZZ
@given(index_exprs() | conditions(5), environments())
def test_bounds_hold_every_value(e: Expr, given_: tuple[dict[Expr, Interval], dict[Expr, int]]) -> None:
    env, values = given_
    value = value_of(e, values)
    if value is not None:
        assert value in bounds(e, env)


@_FUZZ
@given(index_exprs() | conditions(5), environments())
def test_simplifying_twice_changes_nothing(e: Expr, given_: tuple[dict[Expr, Interval], dict[Expr, int]]) -> None:
    once = simplify(e, given_[0])
    # The trace keeps remembered results out.
    assert simplify(once, given_[0], trace=[]) is once


@_FUZZ
@given(conditions(5), st.data())
def test_proofs_under_symbolic_extents_hold(e: Expr, data: st.DataObject) -> None:
    extents = {I: data.draw(st.sampled_from([N, M, N // 4, (N + 7) // 8, M * N]), "extent of i"), J: const(8)}
    extents[K] = data.draw(st.sampled_from([minimum(8, N - I * 8), I + 1, M]), "extent of k")
    values: dict[Expr, int] = {N: data.draw(st.integers(1, 40)), M: data.draw(st.integers(0, 12)), S: 8 * data.draw(st.integers(0, 8))}
    values[F] = data.draw(st.integers(-20, 20))
    for v, extent in extents.items():
        limit = evaluate_int(extent, values)
        if limit <= 0:
            return  # an empty loop: anything may be said about its body
        values[v] = data.draw(st.integers(0, limit - 1))
    expected = value_of(e, values)
    if expected is not None:
        assert evaluate_int(simplify(e, {}, extents), values) == expected


@_FUZZ
@given(index_exprs(), index_exprs(), environments())
def test_polynomials_do_not_depend_on_how_they_are_written(a: Expr, b: Expr, given_: tuple[Any, dict[Expr, int]]) -> None:
    assert to_expr(linear(a + b)) is to_expr(linear(b + a))
    assert to_expr(linear((a + b) * 3 - a)) is to_expr(linear(b * 3 + a * 2))
    value = value_of(a, given_[1])
    if value is not None:
        assert evaluate_int(to_expr(linear(a)), given_[1]) == value


def run(text: str, env: dict[str, tuple[int | None, int | None]], extents: dict[str, str] | None = None) -> str:
    ranges = {NAMES[name]: Interval(*ends) for name, ends in env.items()}
    limits = {NAMES[name]: parse_expr(extent, NAMES) for name, extent in (extents or {}).items()}
    return format_expr(simplify(parse_expr(text, NAMES), ranges, limits))  # type: ignore[arg-type]


_TILE: dict[str, tuple[int | None, int | None]] = {"i": (0, 7), "j": (0, 7), "k": (0, 3)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # sums
        ("j + i * 8 - j + 3 + i", "i * 9 + 3"),
        ("(i + j) * N - j * N", "N * i"),
        ("i - 5 - i", "-5"),
        ("j - (i + 3)", "j - i - 3"),
        ("0 - i - 3", "-3 - i"),
        # mixed radix: a fused or split loop
        ("(i * 8 + j) // 8", "i"),
        ("(i * 8 + j) % 8", "j"),
        ("(i * 32 + j * 4 + k) // 4 % 8", "j"),
        ("f // 64 * 64 + f // 8 % 8 * 8 + f % 8", "f"),
        ("(f // 12 * 3 + f % 12 // 4) * 4 + f % 4", "f"),
        ("(f * 8 + j) % 64", "f % 8 * 8 + j"),
        ("(f * 8 + j) // 64", "f // 8"),
        ("f % 64 // 8", "f // 8 % 8"),
        ("f // 8 // 8", "f // 64"),
        ("(f // 8 + 3) // 8", "(f + 24) // 64"),
        ("f % 16 % 8", "f % 8"),
        ("(f % 16 + f) % 8", "f % 4 * 2"),
        ("(f + 9) % 8", "(f + 1) % 8"),
        ("(f - 1) // 8", "(f + 7) // 8 - 1"),
        ("f // -8", "(0 - f) // 8"),
        ("trunc_div(i, j + 1)", "i // (j + 1)"),
        # sizes
        ("8 * (S // 8)", "S"),
        ("S % 4", "0"),
        ("i * S // 8", "i * (S // 8)"),
        ("(N + 7) // 8 * 8 - N >= 0", "True"),
        ("(N - 1) // N", "0"),
        # min, max, select
        ("min(i, 8)", "i"),
        ("max(min(f, 3), 5)", "5"),
        ("max(min(f, 5), 3)", "min(max(f, 3), 5)"),
        ("min(f + 1, f + 3)", "f + 1"),
        ("select(i < 8, f, N)", "f"),
        ("select(not i < f, i, f)", "max(f, i)"),
        ("select(f < 3, select(f < 3, i, j), k)", "select(f < 3, i, k)"),
        # comparisons
        ("i * 8 + j < 64", "True"),
        ("i * 8 + j < 40", "i < 5"),
        ("i * 8 + j < 41", "i * 8 + j < 41"),
        ("(f + 7) // 8 <= N", "f <= N * 8"),
        ("f * 4 + 3 < N * 4", "f < N"),
        ("f * 2 == 7", "False"),
        ("4 * f == 8 * i", "i * 2 == f"),
        ("i == 9", "False"),
        ("f - 3 >= 0", "3 <= f"),
        ("i < 5 and i < 3", "i < 3"),
        ("f < 5 or f < 3", "f < 5"),
        ("f < 3 and 5 < f", "False"),
        ("f < 5 or 3 < f", "True"),
        ("not (f < 3 or f == N)", "3 <= f and N != f"),
        ("flag and not flag", "False"),
        ("flag == True", "flag"),
        # other dtypes
        ("small + int8(3) + int8(4)", "small + int8(7)"),
        ("small < int8(-128)", "False"),
        ("cast(int8, cast(int64, small))", "small"),
        ("cast(float32, cast(float64, real))", "real"),
        ("cast(int64, cast(int8, i))", "i"),
        ("cast(int64, cast(int8, f))", "cast(int64, cast(int8, f))"),
        ("cast(int64, cast(float32, i))", "i"),
        # floats stay as IEEE has them
        ("real - 0.0", "real"),
        ("real + 0.0", "real + float32(0.0)"),
        ("real * 0.0", "real * float32(0.0)"),
        ("real - real", "real - real"),
        ("real / 4.0", "real * float32(0.25)"),
        ("real / 3.0", "real / float32(3.0)"),
        ("-(-real)", "real"),
        ("not real < 0.0", "not real < float32(0.0)"),
        ("not real == 0.0", "real != float32(0.0)"),
        ("matrix[(i * 8 + j) // 8, j - j]", "matrix[i, 0]"),
    ],
)
def test_typical_expressions(text: str, expected: str) -> None:
    assert run(text, _TILE) == expected


@pytest.mark.parametrize(
    ("text", "extents", "expected"),
    [
        ("(i * N + j) // N", {"i": "M", "j": "N"}, "i"),
        ("(i * N + j) % N", {"i": "M", "j": "N"}, "j"),
        ("((i * M + j) * N + k) // N % M", {"i": "8", "j": "M", "k": "N"}, "j"),
        ("((i * M + j) * N + k) // (M * N)", {"i": "8", "j": "M", "k": "N"}, "i"),
        ("f // N * N + f % N", {"f": "M * N"}, "f"),
        ("f // (M * N) * M + f % (M * N) // N", {}, "f // N"),
        ("(i * (N + 2) + j) // (N + 2)", {"i": "M", "j": "N + 2"}, "i"),
        ("(i * (N + 2) + j) % (N + 2)", {"i": "M", "j": "N + 2"}, "j"),
        ("i * 8 + j < N", {"i": "N // 8", "j": "8"}, "True"),
        ("i * 8 + j < N", {"i": "(N + 7) // 8", "j": "8"}, "i * 8 + j < N"),
        ("i * 8 + j < N", {"i": "(N + 7) // 8", "j": "min(8, N - i * 8)"}, "True"),
        ("min(8, N - i * 8)", {"i": "N // 8"}, "8"),
        ("i * N + j < M * N", {"i": "M", "j": "N"}, "True"),
        ("max(i - 1, 0) < M", {"i": "M"}, "True"),
        ("max(i - 1, 0) < M - 3", {"i": "M - 3"}, "True"),
    ],
)
def test_symbolic_extents(text: str, extents: dict[str, str], expected: str) -> None:
    assert run(text, {}, extents) == expected


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([const(1), const(2), const(3), const(8), N, M, S, N + 2, N * 3]), min_size=2, max_size=4))
def test_flattened_indices_come_apart_again(dims: list[Expr]) -> None:
    """Division and modulo of a row-major index by the trailing extents give back each index; flattening those gives the flat one."""
    axes = [var(f"axis{n}") for n in range(len(dims))]
    extents = dict(zip(axes, dims, strict=True))
    strides = [simplify(product(dims[n + 1 :])) for n in range(len(dims))]
    flat: Expr = const(0)
    for axis, extent in extents.items():
        flat = flat * extent + axis
    for n, (axis, extent) in enumerate(extents.items()):
        quotient = flat // strides[n]
        expected = simplify(axis, {}, extents)
        assert simplify(quotient % extent, {}, extents) is expected
        assert n > 0 or simplify(quotient, {}, extents) is expected
    assert prove(flat < product(dims), {}, extents)
    parts = {F: product(dims)}
    rebuilt: Expr = const(0)
    for n, extent in enumerate(dims):
        rebuilt = rebuilt * extent + (F // strides[n]) % extent
    assert simplify(rebuilt, {}, parts) is simplify(F, {}, parts)


def test_the_trace_names_the_rules() -> None:
    trace: list[str] = []
    simplify((I * 8 + J) // 8, {J: Interval(0, 7)}, trace=trace)
    assert trace == ["div-multiple", "div-one-quotient"]


def test_variables_with_one_value_become_it() -> None:
    assert simplify(I * 8 + J, {I: Interval(0, 0)}) is J


def test_proofs() -> None:
    extents = {I: N // 8, J: const(8)}
    assert prove(I * 8 + J < N, {}, extents)
    assert not prove(I * 8 + J < N - 1, {}, extents)
    assert prove((I * N + J) * 4 + K < M * N * 4, {}, {I: M, J: N, K: const(4)})
    assert in_range(maximum(I + J - 1, 0), N, {}, {I: N - 2, J: const(3)})
    assert not in_range(I + J - 1, N, {}, {I: N - 2, J: const(3)})
    assert prove_equal((N + 1) * (N - 1), N * N - 1)
    assert not prove_equal(N, M)
    assert prove(TRUE)


def test_equal_dims() -> None:
    assert equal_dims((N, N * 2 + 2), (N, (N + 1) * 2))
    assert not equal_dims((N,), (N, 1))
    assert equal_dims(S // 8 * 8, S)
    assert not equal_dims(N // 8 * 8, N)


def test_affine_parts() -> None:
    parts = affine_in((I + 2) * N * 3 + J * 4 + M, (I, J, K))
    assert parts is not None
    coefficients, rest = parts
    assert coefficients[I] is to_expr(linear(N * 3))
    assert coefficients[J] is const(4)
    assert coefficients[K] is const(0)
    assert rest is to_expr(linear(N * 6 + M))
    assert affine_in(I // 2 + J, (I,)) is None
    assert affine_in(I * J, (I, J)) is None
    assert coefficient(I * J, I) is J
    assert coefficient(I // 2 * J, J) is I // 2


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (S % 16, Interval(0, 8)),
        ((S + 3) % 8, Interval(3, 3)),
        (I - I, Interval(0, 0)),
        (I * I, Interval(0, 49)),
        (F * F, Interval(0, None)),
        (cast(dtypes.int8, I), Interval(0, 7)),
        (cast(dtypes.int8, F), Interval(-128, 127)),
        (SMALL + SMALL, Interval(-128, 127)),
        (select(FLAG, I, 100), Interval(0, 100)),
        (cast(dtypes.int32, FLAG), Interval(0, 1)),
        ((M + 1) // 4, Interval(0, 3)),
        (REAL < 1.0, Interval(0, 1)),
    ],
)
def test_bounds_of_what_declares_ranges(e: Expr, expected: Interval) -> None:
    assert bounds(e, {I: Interval(0, 7)}) == expected


def test_equal_names_of_different_variables_stay_apart() -> None:
    other = size("N", 4)
    assert format_expr(simplify(N - other)) == format_expr(simplify(other - N)) == "N - N" or simplify(N - other) is not simplify(other - N)
    assert make(N.op, BOOL, (), N.attr) is not N
    assert substitute(N + 1, {N: other}) is other + 1
    assert var("real", FLOAT) is REAL
    assert len(VARIABLES) == 7


@pytest.mark.parametrize("op", [Op.AND, Op.OR])
def test_two_comparisons_of_one_variable_hold_where_they_held(op: Op) -> None:
    """On either side of a number, of two, of none, and with the same or another factor."""
    i = var("i")
    bounds = [const(bound) for bound in range(-3, 4)]
    tests = [
        make(how, dtypes.bool_, pair) for how in (Op.LT, Op.LE) for side in (i, i * 2) for b in bounds for pair in ((side, b), (b, side))
    ]
    for a, b in itertools.product(tests, repeat=2):
        both = make(op, dtypes.bool_, (a, b))
        simple = simplify(both)
        for value in range(-6, 7):
            assert evaluate_int(simple, {i: value}) == evaluate_int(both, {i: value}), f"{both!r} for {value}, as {simple!r}"


_INTERVALS = [Interval(lo, hi) for lo in (None, -3, 0, 2) for hi in (None, -3, 0, 2) if lo is None or hi is None or lo <= hi]


_OPERATORS = [
    *(make(op, BOOL if op in COMPARISONS else dtypes.int64, (F, K)) for op in BINARY if op is not Op.DIV),
    select(FLAG, F, K),
    make(Op.NOT, dtypes.int64, (F,)),
    *(cast(dtype, F) for dtype in (dtypes.bool_, dtypes.int2, dtypes.uint2, dtypes.uint8)),
]


@pytest.mark.parametrize("e", _OPERATORS, ids=format_expr)
def test_bounds_of_one_operator_hold_every_value(e: Expr) -> None:
    """Of operands that end on either side, on both or on none; values reach past the ends that others have."""
    values = {point: value_of(e, dict(zip((F, K, FLAG), point))) for point in itertools.product(range(-7, 8), range(-7, 8), (0, 1))}
    for a, b in itertools.product(_INTERVALS, repeat=2):
        found = bounds(e, {F: a, K: b})
        for (f, k, _), value in values.items():
            if f in a and k in b and value is not None:
                assert value in found, f"{value} for {f} in {a} and {k} in {b}"


@pytest.mark.parametrize("multiple", [2, 3, 4, 6, 8, 12])
def test_quotients_of_sizes_of_which_a_multiple_is_declared(multiple: int) -> None:
    """With factors and divisors that share some, all or none of it, alone and beside what is left over."""
    n = size("n", 0, None, multiple)
    for factor, divisor in itertools.product((1, 2, 3, 4, 6, 9, -2, -12), (2, 3, 4, 6, 8, 9, 12, 16, 24)):
        for dividend in (n * factor, n * factor + 5, n * F * factor + J):
            for op in (Op.FLOORDIV, Op.FLOORMOD):
                e = make(op, dtypes.int64, (dividend, const(divisor)))
                simple = simplify(e, {J: Interval(0, 7)})
                for times, f, j in ((0, 0, 0), (1, 1, 7), (2, -1, 3), (5, 3, 1)):
                    values = {n: times * multiple, F: f, J: j}
                    assert evaluate_int(simple, values) == evaluate_int(e, values), f"{e!r} as {simple!r}"
