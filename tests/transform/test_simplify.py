"""The graph simplifier: golden texts by family of rules, and what must not be rewritten."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transform.rewrite_cases import before_and_after, text_of
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Array, Value, walk_nodes
from tilewright.graph.ops import Constant
from tilewright.graph.text_parser import parse_function
from tilewright.ir import dtypes
from tilewright.transform.rules.elementwise import is_power_of_two, keeps_values
from tilewright.transform.simplify import simplify_graph

Golden = Callable[[str, str], None]


def one(body: str, params: str = "x: float32[N, 4]") -> str:
    """A function whose result is the value `y` of its body."""
    return text_of(body, params)


def simplified(body: str, params: str = "x: float32[N, 4]") -> Value:
    return simplify_graph(parse_function(one(body, params))).results[0]


ARITHMETIC = {
    "constants go last": one('c = constant(3.0, float32[()])\ny = binary(c, x, fn="mul")'),
    "comparisons are mirrored": one('c = constant(3.0, float32[()])\ny = binary(c, x, fn="less")'),
    "a subtracted constant is added": one('c = constant(3.0, float32[()])\ny = binary(x, c, fn="sub")'),
    "dividing by a power of two": one('c = constant(8.0, float32[()])\ny = binary(x, c, fn="div")'),
    "clamps": one(
        """a = constant(6.0, float32[()])
        b = constant(0.0, float32[()])
        v = binary(x, a, fn="min")
        y = binary(v, b, fn="max")"""
    ),
    "integer constants merge": one(
        """a = constant(6, int64[()])
        v = binary(x, a, fn="add")
        y = binary(v, a, fn="add")""",
        "x: int64[N]",
    ),
    "signs": one(
        """v = unary(x, fn="neg")
        c = constant(3.0, float32[()])
        w = binary(v, c, fn="mul")
        y = binary(x, w, fn="sub")"""
    ),
    "repeated numbers are scalars": one('c = constant([2.0, 2.0, 2.0, 2.0], float32[4])\ny = binary(x, c, fn="mul")'),
    "broadcasts before arithmetic": one(
        """v = broadcast_to(x, shape=(3, N, 4))
        w = unary(v, fn="exp")
        b = broadcast_to(x, shape=(3, N, 4))
        y = binary(w, b, fn="add")"""
    ),
    "reciprocal roots": one(
        """c = constant(1.0, float32[()])
        v = unary(x, fn="sqrt")
        y = binary(c, v, fn="div")"""
    ),
}
MOVEMENT = {
    "reshapes merge": one("v = reshape(x, shape=(N * 4,))\ny = reshape(v, shape=(2, 2, N))"),
    "transposes cancel": one("v = transpose(x, perm=(1, 0))\ny = transpose(v, perm=(1, 0))"),
    "axes of size 1 are reshaped": one("y = transpose(x, perm=(0, 2, 1, 3))", "x: float32[N, 1, 4, 5]"),
    "broadcasts that repeat nothing": one("y = broadcast_to(x, shape=(1, N, 4))"),
    "slices merge": one(
        """v = slice(x, starts=(0, 1), sizes=(N, 3), steps=(1, 1))
        y = slice(v, starts=(0, 2), sizes=(N, 2), steps=(1, -1))"""
    ),
    "slices of concatenations": one(
        """v = concat(x, x, x, axis=1)
        y = slice(v, starts=(0, 5), sizes=(N, 3), steps=(1, 1))"""
    ),
    "slices that are joined again": one(
        """a = slice(x, starts=(0, 0), sizes=(N, 2), steps=(1, 1))
        b = slice(x, starts=(0, 2), sizes=(N, 2), steps=(1, 1))
        y = concat(a, b, axis=1)"""
    ),
    "concatenations nest": one("v = concat(x, x, axis=0)\ny = concat(v, x, axis=0)"),
    "pads merge": one(
        """c = constant(0.0, float32[()])
        v = pad(x, c, low=(1, 0), high=(0, 2), mode="constant")
        y = pad(v, c, low=(1, 1), high=(1, 0), mode="constant")"""
    ),
    "gathers at known places": one("i = constant(-1, int64[()])\ny = gather(x, i, axis=1)"),
    "gathers of every second": one("i = constant([0, 2], int64[2])\ny = gather(x, i, axis=1)"),
    "gathers of everything in order": one(
        "i = constant([0, 0, 0, 1, 1, 0, 1, 1], int64[1, 4, 2])\ny = gather_nd(x, i)", "x: float32[2, 2, 5]"
    ),
    "reductions over axes of size 1": one('y = reduce(x, fn="sum", axes=(1, 2), keepdims=False)', "x: float32[N, 1, 4]"),
    "padded convolutions": one(
        """z = constant(0.0, float32[()])
        p = pad(x, z, low=(0, 0, 1, 1), high=(0, 0, 1, 2), mode="constant")
        y = convolution(p, w, strides=(1, 1), dilations=(1, 1), low=(0, 0), high=(0, 0), groups=1, dtype=float32)""",
        "x: float32[N, 3, 8, 8], w: float32[2, 3, 3, 3]",
    ),
    "transposes around contractions": one(
        """a = transpose(x, perm=(1, 0))
        v = contract(a, w, spec="nk,km->nm", dtype=float32)
        y = transpose(v, perm=(1, 0))""",
        "x: float32[4, N], w: float32[4, 8]",
    ),
}
KNOWN = {
    "a chain of sizes": one(
        """n = size_value(size=N)
        a = reshape(n, shape=(1,))
        c = constant([4], int64[1])
        s = concat(a, c, axis=0)
        i = constant([0], int64[1])
        v = gather(s, i, axis=0)
        two = constant([2], int64[1])
        y = binary(v, two, fn="mul")"""
    ),
    "sizes with a known product": one(
        """n = size_value(size=7)
        c = constant(3, int64[()])
        y = binary(n, c, fn="mul")"""
    ),
}
CASTS = {
    "a detour that loses nothing": one("v = cast(x, dtype=float32)\ny = cast(v, dtype=float16)", "x: float16[N]"),
    "a detour that rounds": one("v = cast(x, dtype=float16)\ny = cast(v, dtype=float32)"),
}


@pytest.mark.parametrize(("name", "cases"), [("arithmetic", ARITHMETIC), ("movement", MOVEMENT), ("known_values", KNOWN), ("casts", CASTS)])
def test_golden(name: str, cases: dict[str, str], golden: Golden) -> None:
    golden(f"simplify_{name}", before_and_after(cases, simplify_graph))


AMOUNTS = st.lists(st.integers(-1, 2), min_size=4, max_size=4)  # below and above each of two axes


@settings(deadline=None)
@given(AMOUNTS, AMOUNTS, st.booleans())
def test_paddings_of_paddings_keep_results(inner: list[int], outer: list[int], one_value: bool) -> None:
    """Those that merge, and those that cannot: what is cropped does not come back."""
    text = f"""
def main(x: float32[2, 3]):
    c = constant(7.0, float32[()])
    d = constant({7.0 if one_value else 8.0}, float32[()])
    v = pad(x, c, low=({inner[0]}, {inner[1]}), high=({inner[2]}, {inner[3]}), mode="constant")
    y = pad(v, d, low=({outer[0]}, {outer[1]}), high=({outer[2]}, {outer[3]}), mode="constant")
    return y
"""
    dims = [2, 3]
    for amounts in (inner, outer):
        dims = [n + amounts[i] + amounts[2 + i] for i, n in enumerate(dims)]
        if min(dims) < 0:
            return
    before = parse_function(text)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(interpret(simplify_graph(before), [x])[0], interpret(before, [x])[0])


NEUTRAL = [
    ("add", "0.0", "float32"), ("sub", "0.0", "float32"), ("mul", "1.0", "float32"), ("div", "1.0", "float32"), ("pow", "1.0", "float32"),
    ("max", "-inf", "float32"), ("add", "0", "int32"), ("mul", "1", "int32"), ("bitwise_and", "-1", "int32"),
    ("bitwise_or", "0", "uint8"), ("bitwise_and", "255", "uint8"), ("min", "255", "uint8"), ("max", "0", "uint8"),
    ("and", "True", "bool"), ("or", "False", "bool"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "constant", "dtype"), NEUTRAL)
def test_neutral_elements_vanish(fn: str, constant: str, dtype: str) -> None:
    text = one(f'c = constant({constant}, {dtype}[()])\ny = binary(x, c, fn="{fn}")', f"x: {dtype}[N, 4]")
    function = parse_function(text)
    assert simplify_graph(function).results == function.params


@pytest.mark.parametrize(
    "body",
    [
        'c = constant(0.0, float32[()])\ny = binary(x, c, fn="mul")',  # NaN and infinity stay
        'y = binary(x, x, fn="sub")',
        'c = constant(3.0, float32[()])\ny = binary(x, c, fn="div")',  # 1/3 is rounded
        'c = constant(0.1, float32[()])\nv = binary(x, c, fn="mul")\ny = binary(v, c, fn="mul")',
        'c = constant(0.1, float32[()])\nv = binary(x, c, fn="add")\ny = binary(v, c, fn="add")',
        "v = cast(x, dtype=float16)\ny = cast(v, dtype=float32)",
        'v = unary(x, fn="exp")\ny = unary(v, fn="log")',
    ],
)
def test_floats_are_not_rounded_otherwise(body: str) -> None:
    function = parse_function(one(body))
    assert simplify_graph(function) is function


def test_integer_times_zero_is_zero() -> None:
    y = simplified('c = constant(0, int32[()])\ny = binary(x, c, fn="mul")', "x: int32[3]")
    assert isinstance(y.op, Constant) or isinstance(y.node.inputs[0].op, Constant)
    assert not any(node.op.name == "binary" for node in walk_nodes([y]))


def test_gather_with_an_index_that_may_be_outside_stays() -> None:
    # An axis that may have no element: the gather clamps, a slice would read outside.
    function = parse_function("def main(x: float32[N, 4]):\n    i = constant(0, int64[()])\n    v = gather(x, i, axis=0)\n    return v\n")
    assert simplify_graph(function) is function


@pytest.mark.parametrize("condition", ["True", "False"])
def test_known_branches_are_taken(condition: str) -> None:
    text = f"""
def main(x: float32[N]):
    def yes(p: float32[N]):
        a = unary(p, fn="neg")
        return a
    def no(p: float32[N]):
        a = unary(p, fn="abs")
        return a
    c = constant({condition}, bool[()])
    y = if_(c, x, then_branch=yes, else_branch=no)
    return y
"""
    (y,) = simplify_graph(parse_function(text)).results
    assert y.op.name == "unary"
    assert y.op.fn == ("neg" if condition == "True" else "abs")  # type: ignore[attr-defined]


def loop_text(trip: str) -> str:
    return f"""
def main(x: float32[3, 4], s: float32[4]):
    def body(carried: float32[4], sequence: float32[3, 4]):
        item = slice(sequence, starts=(t, 0), sizes=(1, 4), steps=(1, 1))
        row = reshape(item, shape=(4,))
        after = binary(carried, row, fn="add")
        twice = binary(after, after, fn="add")
        return after, twice
    last, all = loop(s, x, body=body, carried=1, counter=t, trip={trip})
    return last, all
"""


def test_a_loop_that_runs_once_is_its_body() -> None:
    function = parse_function(loop_text("1"))
    simple = simplify_graph(function)
    assert not any(node.op.name == "loop" for node in walk_nodes(simple.results))
    inputs = [np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(4, np.float32)]
    for a, b in zip(interpret(simple, inputs), interpret(function, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    twice = parse_function(loop_text("2"))
    assert simplify_graph(twice) is twice


@pytest.mark.parametrize("source", dtypes.ALL, ids=repr)
@pytest.mark.parametrize("target", dtypes.ALL, ids=repr)
def test_keeps_values_is_true_of_every_value(source: dtypes.DType, target: dtypes.DType) -> None:
    if not keeps_values(source, target) or source.kind in ("complex", "string"):
        return
    if source.kind == "bool":
        values = np.array([False, True])
    elif source.is_integer:
        ends = [int(source.lowest), int(source.highest)]
        values = np.array([*ends, *(ends[1] - k for k in range(1, 8)), 0, 1], object).astype(source.numpy)
    elif source.bits <= 16:
        values = np.arange(1 << min(source.bits, 16), dtype=f"u{source.bytes}").view(source.numpy)
        values = values[np.isfinite(values.astype(np.float32))]
    else:
        values = np.random.default_rng(0).integers(0, 1 << 32, 1000, np.uint32).view(np.float32)
        values = values[np.isfinite(values)].astype(source.numpy)
    wide = values.astype(np.int64) if source.is_integer else values  # NumPy's small integers have no casts between each other
    assert numbers(wide.astype(target.numpy), target) == numbers(values, source)  # what wraps comes back by wrapping once more


def numbers(array: Array, dtype: dtypes.DType) -> list[float]:
    """The elements as Python has them."""
    return [float(element) if dtype.is_float else int(element) for element in array]


@pytest.mark.parametrize(("value", "expected"), [(2.0, True), (-0.25, True), (3.0, False), (0.0, False), (np.inf, False), (2.0**20, False)])
def test_powers_of_two(value: float, expected: bool) -> None:
    assert is_power_of_two(np.float32(value)) is expected


CHAINED = ("add", "sub", "mul", "min", "max")
NUMBERS = (-1, 0, 1, 2)


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.float32], ids=str)
@pytest.mark.parametrize("outer", CHAINED)
@pytest.mark.parametrize("inner", CHAINED)
def test_two_operators_with_numbers_keep_their_results(inner: str, outer: str, dtype: dtypes.DType) -> None:
    """Whatever the numbers are, and on whichever side."""
    x = np.array([-5, -2, -1, 0, 1, 2, 3, 9], dtype.numpy)
    for a, b, first, second in itertools.product(NUMBERS, NUMBERS, (False, True), (False, True)):
        function = parse_function(
            one(
                f"""a = constant({a if dtype.is_integer else float(a)}, {dtype}[()])
                b = constant({b if dtype.is_integer else float(b)}, {dtype}[()])
                v = binary({"a, x" if first else "x, a"}, fn="{inner}")
                y = binary({"b, v" if second else "v, b"}, fn="{outer}")""",
                f"x: {dtype}[8]",
            )
        )
        np.testing.assert_array_equal(interpret(simplify_graph(function), [x])[0], interpret(function, [x])[0], str(function))


def test_slices_of_one_tensor_that_follow_each_other_keep_their_elements() -> None:
    """With steps of their own, in any order, with and without a gap."""
    cuts = [
        (start, size_, step)
        for start in (0, 2, 4, 5)
        for size_, step in ((1, 1), (2, 1), (2, 2), (3, 2), (2, -1), (2, 3))
        if 0 <= start + (size_ - 1) * step < 9
    ]
    x = np.arange(18).reshape(9, 2)
    for parts in (*itertools.product(cuts, repeat=2), *((a, b, a) for a, b in itertools.permutations(cuts[:9], 2))):
        slices = "\n".join(
            f"s{i} = slice(x, starts=({start}, 0), sizes=({size_}, 2), steps=({step}, 1))" for i, (start, size_, step) in enumerate(parts)
        )
        names = ", ".join(f"s{i}" for i in range(len(parts)))
        function = parse_function(one(f"{slices}\ny = concat({names}, axis=0)", "x: int64[9, 2]"))
        np.testing.assert_array_equal(interpret(simplify_graph(function), [x])[0], interpret(function, [x])[0], str(parts))


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_powers_are_roots_only_of_what_is_never_negative(exponent: float) -> None:
    """A power of -inf or -0 is no root of it."""
    power = f'c = constant({exponent}, float32[()])\ny = binary(v, c, fn="pow")'
    function = parse_function(one(f'v = unary(x, fn="neg")\n{power}'))
    x = np.array([[np.inf, 0.0, -0.0, -4.0]], np.float32)
    want = [[np.inf, 0.0, 0.0, 2.0]] if exponent > 0 else [[0.0, np.inf, np.inf, 0.5]]
    with np.errstate(all="ignore"):
        (got,) = interpret(simplify_graph(function), [x])
    np.testing.assert_array_equal(got, want)
    assert not np.signbit(got).any()
    root = "sqrt" if exponent > 0 else "rsqrt"
    relu = 'c0 = constant(0.0, float32[()])\nv = binary(x, c0, fn="max")'
    for nonnegative in ('v = binary(x, x, fn="mul")', 'v = unary(x, fn="exp")', relu):
        assert getattr(simplified(f"{nonnegative}\n{power}").op, "fn", "") == root, nonnegative
