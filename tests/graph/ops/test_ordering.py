"""Selection of the best, sorting, running combinations: kernels against references, references against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled_graphs import check, f32, module
from tests.graph.ops.kernels import check_operator, run_definition, types_of
from tilewright.graph.interpreter import interpret
from tilewright.graph.ops.ordering import CumulativeScan, ReverseSequence, Sort, TopK
from tilewright.graph.ops.reduction import ArgReduce
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor
from tilewright.support.errors import TypeRuleError

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
FEW = settings(max_examples=30, deadline=None)


@FEW
@given(SHAPES, st.booleans(), st.data())
def test_top_k(shape: tuple[int, ...], largest: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    x = (
        np.random.default_rng(data.draw(st.integers(0, 99)))
        .integers(-3, 3, shape)
        .astype(data.draw(st.sampled_from(["float32", "int64", "uint8"])))
    )
    values, indices = check_operator(TopK(const(k), axis, largest), [x])
    ordered = np.sort(x, axis=axis)
    ordered = np.flip(ordered, axis) if largest else ordered
    np.testing.assert_array_equal(values, np.take(ordered, range(k), axis=axis))
    np.testing.assert_array_equal(np.take_along_axis(x, indices, axis), values)


def test_top_k_of_equals_takes_the_first() -> None:
    _, indices = check_operator(TopK(const(3), 0, True), [np.array([1, 2, 2, 1, 2, 1], np.float32)])
    assert indices.tolist() == [1, 2, 4]


def test_top_k_with_symbolic_k() -> None:
    n, k = size("n", 1), size("k", 0)
    x = np.array([[3, 1, 2], [0, 5, 4]], np.float32)
    from tilewright.kernel.builder import KernelBuilder
    from tilewright.kernel.interpreter import interpret

    b = KernelBuilder("top_k")
    results = TopK(k, 1, True).define(b, (b.input("x", dtypes.float32, (2, n)),))
    values, indices = interpret(b.finish(results), [x], {k: 2})
    np.testing.assert_array_equal(values, [[3, 2], [5, 4]])
    np.testing.assert_array_equal(indices, [[0, 2], [1, 2]])


def test_top_k_of_more_than_there_is() -> None:
    with pytest.raises(TypeRuleError, match="the 4 best of 3"):
        TopK(const(4), 0, True).infer(types_of([np.zeros(3, np.float32)]))


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(descending: bool) -> None:
    x = np.random.default_rng(0).integers(0, 5, (3, 40)).astype(np.float32)
    values, indices = check_operator(Sort(1, descending), [x])
    np.testing.assert_array_equal(indices, np.argsort(-x if descending else x, axis=1, kind="stable"))
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, 1))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_long_lines_are_sorted_by_their_digits(dtype: str, descending: bool) -> None:
    rng = np.random.default_rng(5)
    kind = dtypes.BY_NAME[dtype]
    if kind.is_float:
        x = np.where(rng.random((2, 90)) < 0.2, 0.0, rng.normal(size=(2, 90)) * 1000).astype(kind.numpy)
        x[0, :6] = np.array([0.0, -0.0, np.inf, -np.inf, -0.0, 0.0])
    else:
        x = rng.integers(0 if kind.kind == "uint" else -100, 100, (2, 90)).astype(kind.numpy)
        x[0, :2] = (kind.lowest, kind.highest)
    values, indices = check_operator(Sort(1, descending), [x])
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(np.signbit(values.astype(np.float64)), np.signbit(np.take_along_axis(wide, indices, 1)))
    check_operator(Sort(1, descending), [x], [tensor(kind, (size("n"), size("m")))])


@pytest.mark.parametrize("largest", [False, True])
def test_compiled_selections_of_long_lines(largest: bool) -> None:
    """Runs in which nothing is better, ties at their borders, and counts that a heap or digits are chosen for."""
    rng = np.random.default_rng(6)
    x = rng.integers(-40, 40, (3, 1500)).astype(np.float32)
    x[0] = 7
    x[1, 1499] = np.inf if largest else -np.inf
    for k in (1, 5, 400, 1500):
        check(module([f32(3, 1500)], lambda g, v, k=k: g.emit(TopK(const(k), 1, largest), v)), [x])
    n, m = size("n"), size("m")
    chosen = module([f32(n, m)], lambda g, v: (*g.emit(Sort(1, largest), v), *g.emit(Sort(0, largest), v)))
    check(chosen, [x], [x[:2, :64]], [x[:2, :65]], [x[:1, :1]], [x[:0]], [x[:, :0]])


def with_nans(shape: tuple[int, ...], dtype: str, share: float, seed: int) -> np.ndarray:
    """Few distinct numbers, infinities, zeros and NaNs of both signs."""
    kind, rng = dtypes.BY_NAME[dtype], np.random.default_rng(seed)
    x = rng.choice([-np.inf, -2.5, -0.0, 0.0, 1.0, np.inf], shape)
    x = np.where(rng.random(shape) < share, np.copysign(np.nan, rng.choice([-1.0, 1.0], shape)), x)
    with np.errstate(invalid="ignore"):
        return x.astype(kind.numpy)


def order_of(x: np.ndarray, descending: bool) -> np.ndarray:
    """Positions of a vector's elements in their order, by Python's sort, which is stable."""
    keys = [(bool(np.isnan(v)), 0.0 if np.isnan(v) else v) for v in x.astype(np.float64).tolist()]
    sign = -1 if descending else 1
    return np.array(sorted(range(len(keys)), key=lambda i: (sign * keys[i][0], sign * keys[i][1])), np.int64)


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8e4m3fn"])
def test_nans_are_the_greatest(dtype: str, descending: bool, share: float) -> None:
    """By heaps and by digits, for all of a line and for few of it, of known and of unknown length."""
    for n, count in ((1, 1), (9, 9), (9, 3), (90, 90), (90, 60), (90, 5)):
        x = with_nans((2, n), dtype, share, n + count)
        values, indices = check_operator(TopK(const(count), 1, descending), [x])
        np.testing.assert_array_equal(indices, [order_of(row, descending)[:count] for row in x])
        np.testing.assert_array_equal(values.view(np.uint8), np.take_along_axis(x, indices, 1).view(np.uint8))
        if n == count:
            check_operator(Sort(1, descending), [x], [tensor(dtypes.BY_NAME[dtype], (size("n"), size("m")))])
            check_operator(Sort(0, descending), [np.ascontiguousarray(x.T)])


@pytest.mark.parametrize("largest", [False, True])
def test_compiled_selections_of_long_lines_with_nans(largest: bool) -> None:
    """A NaN in a run that is looked through at once, among the first, at the end; lines of NaNs alone, and of few numbers between them."""
    x = np.random.default_rng(8).integers(-40, 40, (8, 1500)).astype(np.float32)
    x[0, 700] = x[1, 2] = x[2, 1499] = np.nan
    x[3] = np.nan
    x[4], x[4, 900] = np.nan, 3
    x[5, :500] = -np.nan
    x[6], x[6, 300:310] = np.inf, np.nan
    x[7], x[7, 1400] = np.nan, -np.inf
    for k in (1, 5, 400, 1500):
        compiled = module([f32(8, 1500)], lambda g, v, k=k: g.emit(TopK(const(k), 1, largest), v))
        check(compiled, [x])
        np.testing.assert_array_equal(interpret(compiled, [x])[1], [order_of(row, largest)[:k] for row in x])
    n, m = size("n"), size("m")
    sorts = module([f32(n, m)], lambda g, v: (*g.emit(Sort(1, largest), v), *g.emit(Sort(0, largest), v)))
    check(sorts, [x], [x[:, 290:320]], [x[:, 480:545]])


@pytest.mark.parametrize("fn", ["max", "min"])
@pytest.mark.parametrize("last", [False, True])
def test_compiled_positions_of_nans(fn: str, last: bool) -> None:
    x = with_nans((6, 300), "float32", 0.01, 9)
    x[0], x[1], x[2] = np.nan, np.inf, -np.inf
    positions = module([f32(6, 300)], lambda g, v: (g.one(ArgReduce(fn, 1, False, last), v), g.one(ArgReduce(fn, 0, True, last), v)))
    check(positions, [x])
    flipped = x[:, ::-1] if last else x
    found = np.argmax(flipped, axis=1) if fn == "max" else np.argmin(flipped, axis=1)
    np.testing.assert_array_equal(interpret(positions, [x])[0], 299 - found if last else found)


@pytest.mark.parametrize("columns", [1, 7, 16, 33, 513, 1100])
def test_compiled_scans_of_columns(columns: int) -> None:
    x = np.random.default_rng(7).integers(-9, 9, (2, 5, columns)).astype(np.float32)
    for scan in (CumulativeScan("sum", 1), CumulativeScan("max", 1, True, True), CumulativeScan("sum", 0)):
        check(module([f32(2, 5, columns)], lambda g, v, scan=scan: (g.one(scan, v),)), [x])
        n = size("n")
        check(module([f32(2, 5, n)], lambda g, v, scan=scan: (g.one(scan, v),)), [x], [x[:, :, :0]])


@FEW
@given(SHAPES, st.sampled_from(["sum", "prod", "max", "min"]), st.booleans(), st.booleans(), st.data())
def test_cumulative_scan(shape: tuple[int, ...], fn: str, exclusive: bool, reverse: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from(["float32", "int64", "float16"]))
    x = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-3, 4, shape).astype(dtype)
    (y,) = check_operator(CumulativeScan(fn, axis, exclusive, reverse), [x])
    if fn == "sum" and not exclusive and not reverse:
        np.testing.assert_array_equal(y, np.cumsum(x, axis=axis, dtype=x.dtype))


def test_exclusive_reverse_sum() -> None:
    (y,) = check_operator(CumulativeScan("sum", 0, True, True), [np.array([1, 2, 3], np.float32)])
    assert y.tolist() == [5, 3, 0]


def test_half_sums_do_not_stall() -> None:
    (y,) = check_operator(CumulativeScan("sum", 0), [np.ones(4096, np.float16)])
    assert y[-1] == 4096


@pytest.mark.parametrize(("batch", "time"), [(1, 0), (0, 1)])
def test_reverse_sequence(batch: int, time: int) -> None:
    x = np.arange(24, dtype=np.float32).reshape((3, 4, 2) if batch == 0 else (4, 3, 2))
    (y,) = check_operator(ReverseSequence(batch, time), [x, np.array([1, 4, 2])])
    rows = np.moveaxis(y, batch, 0)
    source = np.moveaxis(x, batch, 0)
    np.testing.assert_array_equal(rows[1], source[1][::-1])
    np.testing.assert_array_equal(rows[2], source[2][[1, 0, 2, 3]])


def test_symbolic_dims() -> None:
    n, m = size("n"), size("m")
    x = np.random.default_rng(3).standard_normal((3, 5)).astype(np.float32)
    check_operator(Sort(0, False), [x], [tensor(dtypes.float32, (n, m))])
    (y,) = run_definition(CumulativeScan("max", 1, False, True), [x], [tensor(dtypes.float32, (n, m))])
    np.testing.assert_array_equal(y, np.maximum.accumulate(x[:, ::-1], axis=1)[:, ::-1])
