"""Following sizes through the tensors that models compute shapes with."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilewright.graph.contents import ContentsAnalysis
from tilewright.graph.node import GraphBuilder, Parameter, Value
from tilewright.graph.ops import Binary, BindSize, Cast, Concat, Gather, Reduce, Reshape, Select, SizeValue, Slice, Unary, constant
from tilewright.graph.ratios import NoRatio, from_float
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import as_shape, tensor

N, M = size("n", 0, 4096), size("m", 1, 4096)


class Sketch:
    """A builder with an analysis, and short forms."""

    def __init__(self) -> None:
        self.g = GraphBuilder()
        self.analysis = ContentsAnalysis()

    def dim(self, e: Expr) -> Value:
        return self.g.one(SizeValue(e))

    def vector(self, *parts: Value) -> Value:
        return self.g.one(Concat(0), *(self.g.one(Reshape(as_shape((1,))), part) for part in parts))

    def number(self, value: float, dtype: dtypes.DType = dtypes.int64) -> Value:
        return self.g.one(constant(value, dtype))

    def listed(self, value: Value) -> list[str] | None:
        found = self.analysis.of(value)
        return None if found is None else [repr(e) for e in found.reshape(-1)]

    def floats(self, value: Value) -> list[tuple[str, str]] | None:
        found = self.analysis.ratios(value)
        return None if found is None else [(repr(r.numerator), repr(r.denominator)) for r in found.reshape(-1)]


def test_integer_chains() -> None:
    s = Sketch()
    both = s.vector(s.dim(N), s.dim(M), s.number(4))
    assert s.listed(both) == ["n", "m", "4"]
    assert s.listed(s.g.one(Gather(0), both, s.g.one(constant([2, -2])))) == ["4", "m"]
    assert s.listed(s.g.one(Slice(as_shape((2,)), as_shape((2,)), (-2,)), both)) == ["4", "n"]
    assert s.listed(s.g.one(Reduce("prod", (0,), False), both)) == [repr(N * M * 4)] or s.listed(s.g.one(Reduce("prod", (0,), False), both))
    doubled = s.g.one(Binary("mul"), both, s.number(2))
    halved = s.g.one(Binary("div"), doubled, s.number(2))
    assert s.listed(halved) == ["n", "m", "4"]


def test_conditions_on_sizes_are_decided_by_their_range() -> None:
    s = Sketch()
    positive = s.g.one(Binary("greater"), s.dim(M), s.number(0))
    assert s.listed(positive) == ["True"]
    assert s.listed(s.g.one(Select(), positive, s.dim(N), s.number(1))) == ["n"]
    open_question = s.g.one(Binary("greater"), s.dim(N), s.number(0))
    assert s.listed(open_question) not in (None, ["True"], ["False"])


def test_bound_sizes_and_data() -> None:
    s = Sketch()
    data = s.g.one(Parameter("x", tensor(dtypes.int64, ())))
    bound = s.g.one(BindSize(size("k")), data)
    assert s.listed(data) is None
    assert s.listed(bound) == ["k"]
    assert s.listed(s.vector(bound, data)) is None


def test_what_may_wrap_is_not_followed() -> None:
    s = Sketch()
    narrow = s.g.one(Cast(dtypes.uint8), s.dim(N))
    assert s.listed(narrow) is None
    assert s.listed(s.g.one(Binary("sub"), narrow, narrow)) is None
    assert s.listed(s.g.one(Cast(dtypes.int32), s.dim(N))) == ["n"]


def test_large_tensors_and_positions_outside_are_not_followed() -> None:
    s = Sketch()
    assert s.listed(s.g.one(constant(np.arange(5000)))) is None
    assert s.listed(s.g.one(Gather(0), s.vector(s.dim(N), s.dim(M)), s.number(5))) is None


def test_deep_chains() -> None:
    s = Sketch()
    value = s.dim(N)
    for _ in range(3000):
        value = s.g.one(Binary("add"), value, s.number(1))
    assert s.listed(value) == ["n + 3000"]


@pytest.mark.parametrize(
    ("fn", "factor", "rounding", "expected"),
    [
        ("mul", 2.0, None, "n * 2"),
        ("mul", 2.0, "floor", "n * 2"),
        ("mul", 0.5, "floor", "n // 2"),
        ("mul", 1.5, "floor", "n + n // 2"),
        ("div", 3.0, "floor", "n // 3"),
        ("div", 2.0, "ceil", "(n + 1) // 2"),
        ("div", 4.0, None, "n // 4"),
        ("add", 1.0, None, "n + 1"),
    ],
)
def test_sizes_computed_in_floats(fn: str, factor: float, rounding: str | None, expected: str) -> None:
    s = Sketch()
    value = s.g.one(Binary(fn), s.g.one(Cast(dtypes.float32), s.dim(N)), s.number(factor, dtypes.float32))
    if rounding:
        value = s.g.one(Unary(rounding), value)
    assert s.listed(s.g.one(Cast(dtypes.int64), value)) == [expected]


def test_quotients_of_sizes_cancel() -> None:
    s = Sketch()
    m = s.g.one(Cast(dtypes.float32), s.dim(M))
    doubled = s.g.one(Binary("mul"), m, s.number(2.0, dtypes.float32))
    assert s.floats(s.g.one(Binary("div"), m, m)) == [("1", "1")]
    assert s.floats(s.g.one(Binary("div"), m, s.number(8.0, dtypes.float32))) == [("m", "8")]
    assert s.floats(doubled) == [("m * 2", "1")]


@pytest.mark.parametrize("number", [0.1, 1 / 3, float("inf"), float("nan")])
def test_numbers_that_round_are_not_followed(number: float) -> None:
    s = Sketch()
    value = s.g.one(Binary("mul"), s.g.one(Cast(dtypes.float32), s.dim(N)), s.number(number, dtypes.float32))
    assert s.floats(value) is None
    assert s.listed(s.g.one(Cast(dtypes.int64), value)) is None
    with pytest.raises(NoRatio):
        from_float(number)


def test_division_by_zero_and_by_a_size_of_unknown_sign() -> None:
    s = Sketch()
    m = s.g.one(Cast(dtypes.float32), s.dim(M))
    less = s.g.one(Binary("sub"), m, s.g.one(Cast(dtypes.float32), s.dim(N)))
    assert s.floats(s.g.one(Binary("div"), m, s.number(0.0, dtypes.float32))) is None
    assert s.floats(s.g.one(Binary("div"), m, less)) is None
    n = s.g.one(Cast(dtypes.float32), s.dim(N))
    assert s.floats(s.g.one(Binary("div"), n, n)) is None  # NaN for n = 0
    assert from_float(0.75).value == 0.75
    assert const(3).is_const


@pytest.mark.parametrize("fn", ["div", "floordiv", "floormod"])
def test_integers_divided_by_a_size_that_may_be_0_are_0_there(fn: str) -> None:
    s = Sketch()
    n, m = s.dim(N), s.dim(M)
    for divided, divisor in ((n, n), (m, n), (s.g.one(Binary("mul"), n, m), n)):
        found = s.analysis.scalar(s.g.one(Binary(fn), divided, divisor))
        assert found is not None
        assert evaluate_int(found, {N: 0, M: 5}) == 0
        assert evaluate_int(found, {N: 3, M: 5}) == {"div": int.__floordiv__, "floordiv": int.__floordiv__, "floormod": int.__mod__}[fn](
            {id(n): 3, id(m): 5}.get(id(divided), 15), 3
        )
    assert s.listed(s.g.one(Binary("div"), s.g.one(Binary("mul"), n, m), m)) == ["n"]


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div", "floordiv", "floormod", "min", "max", "equal", "less", "greater_equal"])
def test_numbers_of_either_sign_are_what_the_operator_makes_of_them(fn: str) -> None:
    """Both sides below zero, above, or what is known only while running: sizes less others, negative ones, and numbers."""
    s = Sketch()
    n, m, ten = s.dim(N), s.dim(M), s.number(10)
    less = [s.g.one(Binary("sub"), a, b) for a, b in ((n, ten), (ten, n), (n, m), (m, ten))]
    sides = [n, m, *less, *(s.g.one(Unary("neg"), e) for e in (n, m)), *(s.number(k) for k in (-4, -1, 0, 3, 4))]
    held = [s.analysis.scalar(side) for side in sides]
    points = [{N: first, M: second} for first, second in product((0, 1, 5, 10, 17), (1, 7, 10, 12))]
    for (a, left), (b, right) in product(zip(sides, held, strict=True), repeat=2):
        found = s.analysis.of(s.g.one(Binary(fn), a, b))
        assert found is not None
        assert left is not None
        assert right is not None
        x, y = (np.array([evaluate_int(side, point) for point in points]) for side in (left, right))
        (wanted,) = Binary(fn).reference((x, y))
        assert [evaluate_int(found.item(), point) for point in points] == wanted.tolist(), (left, right)
