"""The interpreter: values with exact dtype semantics, and what it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir import dtypes, expr
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, call, cast, const, load, select, size, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.types import tensor
from tilewright.kernel.builder import KernelBuilder, StmtBuilder, Tensor
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower import lower
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, If, Kernel, Let, LoopKind, Stmt, Store, seq
from tilewright.kernel.schedule import Schedule
from tilewright.support.errors import VerifyError

N = size("N")
F32 = dtypes.float32


def reduction(kind_outer: LoopKind = "serial", kind_inner: LoopKind = "serial") -> Kernel:
    """y[i] = sum over k of x[i, k], loops of the given kinds."""
    x, y = Buffer("x", F32, (N, const(4))), Buffer("y", F32, (N,))
    i, k, vi, vk = var("i"), var("k"), var("vi"), var("vk")
    iters = (BlockIter(vi, N), BlockIter(vk, const(4), "reduction"))
    update = Store(y, (vi,), load(y, (vi,)) + load(x, (vi, vk)))
    block = Block("y", iters, (i, k), update, Store(y, (vi,), const(0.0, F32)))
    return Kernel("total", (x,), (y,), For(i, N, For(k, const(4), block, kind_inner), kind_outer), (N,))


def elementwise(value: Expr, inputs: tuple[Buffer, ...]) -> Kernel:
    """y = value over inputs of shape ()."""
    y = Buffer("y", value.dtype, ())
    return Kernel("scalar", inputs, (y,), Store(y, (), value))


@pytest.mark.parametrize("check", [True, False])
def test_reduction_with_derived_size(check: bool) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (y,) = interpret(reduction(), [x], check=check)
    np.testing.assert_array_equal(y, x.sum(1))
    assert y.dtype == np.float32


def test_an_empty_reduction_gives_its_identity() -> None:
    """In the form with blocks, in whatever order their loops are, as after lowering."""
    k = size("K", 0)
    b = KernelBuilder("total")
    x = b.input("x", F32, (3, k))
    kernel = b.finish((b.reduce("y", (3,), (k,), lambda i, r: x[i, r], "max"),))
    for s in (Schedule.of(kernel), Schedule.of(kernel).reorder("k", "i")):
        np.testing.assert_array_equal(interpret(s.kernel, [np.zeros((3, 0), np.float32)], {k: 0})[0], np.full(3, -np.inf))


ORDERS: dict[str, Callable[[Schedule], Schedule]] = {
    "as defined": lambda s: s,
    "split": lambda s: s.split("k", 4)[0],
    "around the results": lambda s: s.reorder("k", "i"),
    "both around the results": lambda s: s.reorder("k_1", "k", "i"),
    "in tiles": lambda s: s.split("i", 2)[0].split("k_1", 4)[0].reorder("i_o", "k_1_o", "i_i"),
    "fused": lambda s: s.fuse("k", "k_1")[0],
    "parallel": lambda s: s.parallel("i"),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", [(0, 2), (2, 0), (0, 0), (3, 2)])
def test_reductions_over_two_axes_of_which_one_is_empty(order: str, sizes: tuple[int, int]) -> None:
    k, m = size("K", 0), size("M", 0)
    b = KernelBuilder("total")
    x = b.input("x", F32, (5, k, m))
    s = ORDERS[order](Schedule.of(b.finish((b.reduce("y", (5,), (k, m), lambda i, r, q: x[i, r, q], "max"),))))
    given = np.arange(5 * sizes[0] * sizes[1], dtype=np.float32).reshape(5, *sizes)
    expected = given.max((1, 2), initial=-np.inf)
    np.testing.assert_array_equal(interpret(s.kernel, [given], {k: sizes[0], m: sizes[1]})[0], expected)
    np.testing.assert_array_equal(interpret(lower(s.kernel), [given], {k: sizes[0], m: sizes[1]})[0], expected)


def test_parallel_spatial_and_vectorized_reduction_are_no_races() -> None:
    x = np.ones((5, 4), np.float32)
    (y,) = interpret(reduction("parallel", "vectorized"), [x])
    np.testing.assert_array_equal(y, np.full(5, 4.0))


def test_parallel_reduction_is_a_race() -> None:
    with pytest.raises(VerifyError) as raised:
        interpret(reduction("serial", "parallel"), [np.ones((2, 4), np.float32)])
    assert raised.value.what == "race: load of y[0] in one iteration of a parallel loop"
    assert raised.value.where == "block 'y' of kernel 'total', at i=0, k=1, vi=0, vk=1"
    assert raised.value.why == "iteration 0 of the same loop also touched it"


def plain(body: Stmt, extra: tuple[Buffer, ...] = (), inputs: tuple[Buffer, ...] = (), extent: int = 8) -> Kernel:
    y = Buffer("y", F32, (const(extent),))
    return Kernel("plain", inputs, (y,), body, (), extra)


Y = Buffer("y", F32, (const(8),))
I, J = var("i"), var("j")  # noqa: E741


@pytest.mark.parametrize("kind", ["parallel", "vectorized"])
def test_two_iterations_that_write_one_element_race(kind: LoopKind) -> None:
    body = For(I, const(8), Store(Y, (I // 2,), const(1.0, F32)), kind)
    with pytest.raises(VerifyError, match=r"race: store of y\[0\]"):
        interpret(plain(body), [])


def test_an_iteration_that_reads_what_another_wrote_races() -> None:
    s = Buffer("s", F32, (const(9),))
    first = For(I, const(9), Store(s, (I,), const(1.0, F32)))
    j = var("j")
    second = For(j, const(8), seq(Store(s, (j + 1,), const(2.0, F32)), Store(Y, (j,), load(s, (j,)))), "parallel")
    with pytest.raises(VerifyError, match=r"race: load of s\[1\]"):
        interpret(plain(seq(first, second), (s,)), [])


def test_runs_of_an_inner_parallel_loop_do_not_race_with_each_other() -> None:
    j = var("j")
    body = For(j, const(3), For(I, const(8), Store(Y, (I,), cast(F32, j)), "parallel"))
    (y,) = interpret(plain(body), [])
    np.testing.assert_array_equal(y, np.full(8, 2.0))


@pytest.mark.parametrize("scope", ["local", "global"])
def test_scratch_of_one_parallel_loop_is_private_to_an_iteration(scope: Any) -> None:
    s = Buffer("s", F32, (const(1),), scope)
    body = For(I, const(8), seq(Store(s, (const(0),), cast(F32, I)), Store(Y, (I,), load(s, (const(0),)))), "parallel")
    (y,) = interpret(plain(body, (s,)), [])
    np.testing.assert_array_equal(y, np.arange(8))


def test_local_scratch_of_two_parallel_loops_is_private_in_each() -> None:
    s = Buffer("s", F32, (), "local")

    def half(buffer: Buffer, index: Expr, start: int) -> Stmt:
        body = seq(Store(buffer, (), cast(F32, index)), Store(Y, (index + start,), load(buffer, ())))
        return For(index, const(4), body, "parallel")

    (y,) = interpret(plain(seq(half(s, I, 0), half(s, J, 4)), (s,)), [])
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 0, 1, 2, 3])
    shared = Buffer("s", F32, ())
    with pytest.raises(VerifyError, match="race: store of s"):
        interpret(plain(seq(half(shared, I, 0), half(shared, J, 4)), (shared,)), [])


def test_scratch_does_not_carry_over_to_another_iteration_of_a_parallel_loop() -> None:
    s = Buffer("s", F32, (const(1),))
    set_first = If(expr.equal(I, 0), Store(s, (const(0),), const(1.0, F32)))
    body = For(I, const(8), seq(set_first, Store(Y, (I,), load(s, (const(0),)))), "parallel")
    with pytest.raises(VerifyError, match=r"load of s\[0\] before anything stored it"):
        interpret(plain(body, (s,)), [])


def test_out_of_bounds_names_buffer_index_and_loops() -> None:
    with pytest.raises(VerifyError) as raised:
        interpret(plain(For(I, const(9), Store(Y, (I,), const(0.0, F32)))), [])
    assert str(raised.value) == (
        "store of y[8] is out of bounds\n"
        "  where: kernel 'plain', at i=8\n"
        "  why:   axis 0 of y: float32[8] has size 8\n"
        "  docs:  docs/errors.md#verify-error"
    )


def test_negative_index_is_out_of_bounds() -> None:
    x = Buffer("x", F32, (const(8),))
    with pytest.raises(VerifyError, match=r"load of x\[-1\] is out of bounds"):
        interpret(plain(For(I, const(8), Store(Y, (I,), load(x, (I - 1,)))), inputs=(x,)), [np.zeros(8, np.float32)])


def test_the_side_of_a_select_not_taken_loads_nothing() -> None:
    x = Buffer("x", F32, (const(8),))
    padded = select(expr.less(0, I), load(x, (I - 1,)), const(7.0, F32))
    (y,) = interpret(plain(For(I, const(8), Store(Y, (I,), padded)), inputs=(x,)), [np.arange(8, dtype=np.float32)])
    np.testing.assert_array_equal(y, [7, 0, 1, 2, 3, 4, 5, 6])


def test_output_not_written_in_full() -> None:
    with pytest.raises(VerifyError, match="output y is not written in full") as raised:
        interpret(plain(For(I, const(5), Store(Y, (I,), const(0.0, F32)))), [])
    assert raised.value.why == "nothing stores y[5]"


def test_block_iter_outside_its_domain_and_predicate() -> None:
    v, j = var("v"), var("j")
    store = Store(Y, (v,), cast(F32, v))
    iters = (BlockIter(v, const(8)),)

    def nest(predicate: Expr) -> Kernel:
        return plain(For(I, const(2), For(j, const(5), Block("y", iters, (I * 5 + j,), store, predicate=predicate))))

    (y,) = interpret(nest(expr.less(I * 5 + j, 8)), [])
    np.testing.assert_array_equal(y, np.arange(8))
    with pytest.raises(VerifyError, match=r"block iter v is 8, outside its domain \[0, 8\)") as raised:
        interpret(nest(expr.TRUE), [])
    assert raised.value.where == "block 'y' of kernel 'plain', at i=1, j=3, v=8"


def test_one_variable_bound_twice_in_a_sequence() -> None:
    v = var("v")
    halves = [Let(v, const(start), For(I, const(4), Store(Y, (v * 4 + I,), cast(F32, v * 3)))) for start in (0, 1)]
    (y,) = interpret(plain(seq(*halves)), [])
    np.testing.assert_array_equal(y, [0, 0, 0, 0, 3, 3, 3, 3])


def test_more_loops_than_one_python_function_may_nest() -> None:
    y = Buffer("y", F32, (const(1),) * 30)
    loop_vars = [var(f"i{n}") for n in range(30)]
    body: Stmt = Store(y, tuple(loop_vars), const(1.0, F32))
    for v in reversed(loop_vars):
        body = For(v, const(1), body, "parallel")
    (result,) = interpret(Kernel("deep", (), (y,), body), [])
    assert result.shape == (1,) * 30
    assert result.item() == 1.0


def test_opaque_block_with_while_and_locals() -> None:
    k = KernelBuilder("collatz")
    x = k.input("x", dtypes.int64, (N,))

    def body(s: StmtBuilder, outs: tuple[Tensor, ...], i: Expr) -> None:
        value = s.local("value", dtypes.int64, (), x[i])
        steps = s.local("steps", dtypes.int64, (), 0)
        with s.repeat_while(expr.not_equal(value[()], 1)):
            current = s.let("current", value[()])
            s.store(value, (), select(expr.equal(current % 2, 0), current // 2, current * 3 + 1))
            s.store(steps, (), steps[()] + 1)
        s.store(outs[0], (i,), steps[()])

    (out,) = k.opaque("y", [tensor(dtypes.int64, (N,))], (N,), body)
    (y,) = interpret(k.finish((out,)), [np.array([1, 2, 3, 27])])
    np.testing.assert_array_equal(y, [0, 1, 7, 111])


def test_sizes_are_solved_from_compound_dims_and_checked() -> None:
    m = size("M", 2, 100, 2)
    x, y = Buffer("x", F32, (m * 3 + 1,)), Buffer("y", F32, (m,))
    kernel = Kernel("third", (x,), (y,), For(I, m, Store(y, (I,), load(x, (I * 3,)))), (m,))
    (result,) = interpret(kernel, [np.arange(13, dtype=np.float32)])
    np.testing.assert_array_equal(result, [0, 3, 6, 9])
    with pytest.raises(VerifyError, match="the size M does not follow from the inputs' shapes"):
        interpret(kernel, [np.zeros(12, np.float32)])
    with pytest.raises(VerifyError) as raised:
        interpret(kernel, [np.zeros(10, np.float32)])
    assert raised.value.why == "its declared range is [2, 100] in multiples of 2"


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.kind in ("int", "uint")], ids=repr)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_integer_arithmetic_wraps(dtype: DType, data: st.DataObject) -> None:
    values = st.integers(int(dtype.lowest), int(dtype.highest))
    a, b = data.draw(values), data.draw(values)
    x, z = Buffer("x", dtype, ()), Buffer("z", dtype, ())
    for op in (Op.ADD, Op.SUB, Op.MUL, Op.MIN, Op.MAX, Op.AND, Op.OR, Op.XOR, Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD):
        expected = expr.evaluate(op, dtype, a, b)
        if expected is None:
            continue
        kernel = elementwise(expr.binary(op, load(x, ()), load(z, ())), (x, z))
        (y,) = interpret(kernel, [np.asarray(a, dtype.numpy), np.asarray(b, dtype.numpy)])
        assert int(y) == expected, (op, a, b)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.kind == "float" and d.bits >= 8 and d is not dtypes.float8e8m0], ids=repr)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_float_arithmetic_rounds_as_numpy_does(dtype: DType, data: st.DataObject) -> None:
    values = st.one_of(st.floats(-500, 500), st.sampled_from([0.0, -0.0, float("inf"), float("nan")]))
    a, b = (np.asarray(data.draw(values)).astype(dtype.numpy) for _ in range(2))
    x, z = Buffer("x", dtype, ()), Buffer("z", dtype, ())
    lx, lz = load(x, ()), load(z, ())
    with np.errstate(all="ignore"):
        cases = [(lx + lz, a + b), (lx - lz, a - b), (lx * lz, a * b), (lx / lz, a / b), (call("abs", lx), np.abs(a))]
    for value, expected in cases:
        (y,) = interpret(elementwise(value, (x, z)), [a, b])
        np.testing.assert_array_equal(y.astype(np.float64), np.asarray(expected).astype(np.float64))


def test_casts() -> None:
    x = Buffer("x", F32, ())
    lx = load(x, ())

    def converted(dtype: DType, value: float) -> Any:
        return interpret(elementwise(cast(dtype, lx), (x,)), [np.asarray(value, np.float32)])[0].item()

    assert converted(dtypes.int32, -2.7) == -2
    assert converted(dtypes.uint8, 258.9) == 2
    assert converted(dtypes.int8, float("nan")) == 0
    assert converted(dtypes.int8, 300.0) == 44
    assert converted(dtypes.uint16, 3e9) == 65535
    assert converted(dtypes.int32, float("inf")) == 2**31 - 1
    assert converted(dtypes.bool_, float("nan")) is True
    big = Buffer("b", dtypes.int64, ())
    (y,) = interpret(elementwise(cast(F32, load(big, ())), (big,)), [np.asarray((1 << 60) + (1 << 36) + 1)])
    assert float(y) == float(np.asarray((1 << 60) + (1 << 36) + 1).astype(np.float32))
    bits = interpret(elementwise(expr.bitcast(dtypes.int32, lx), (x,)), [np.asarray(1.0, np.float32)])[0]
    assert int(bits) == 0x3F800000


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("log", 0.0, -np.inf), ("log", -1.0, np.nan), ("exp", 1000.0, np.inf), ("sqrt", -1.0, np.nan), ("rsqrt", 0.0, np.inf),
        ("round", 2.5, 2.0), ("floor", np.inf, np.inf), ("sigmoid", -1000.0, 0.0), ("atanh", 1.0, np.inf), ("erf", 0.5, 0.5204999),
    ],
)  # fmt: skip
def test_intrinsics_at_their_edges(name: str, value: float, expected: float) -> None:
    x = Buffer("x", F32, ())
    (y,) = interpret(elementwise(call(name, load(x, ())), (x,)), [np.asarray(value, np.float32)])
    np.testing.assert_allclose(y, np.float32(expected), rtol=1e-6)


def test_small_floats_and_nibbles_come_back_in_their_dtype() -> None:
    x = Buffer("x", dtypes.int4, (const(3),))
    y = Buffer("y", dtypes.bfloat16, (const(3),))
    body = For(I, const(3), Store(y, (I,), cast(dtypes.bfloat16, load(x, (I,)))))
    (result,) = interpret(Kernel("widen", (x,), (y,), body), [np.array([-8, 0, 7], ml_dtypes.int4)])
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.astype(np.float32), [-8, 0, 7])


def test_division_by_zero_is_named() -> None:
    x = Buffer("x", dtypes.int32, ())
    with pytest.raises(VerifyError, match="division by zero has no value"):
        interpret(elementwise(const(1, dtypes.int32) // load(x, ()), (x,)), [np.asarray(0, np.int32)])


def test_undefined_variable_and_undeclared_buffer() -> None:
    with pytest.raises(VerifyError, match="variable i is used but not defined"):
        interpret(plain(Store(Y, (I,), const(0.0, F32))), [])
    with pytest.raises(VerifyError, match="buffer s is used but not declared"):
        interpret(plain(Store(Buffer("s", F32, ()), (), const(0.0, F32))), [])
