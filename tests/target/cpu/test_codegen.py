"""Statements, vector lanes, masks, parallel loops and local buffers, on hand-built lowered kernels."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.target.cpu.kernel_runner import build, host, llvm_target, run
from tilewright.ir.dtypes import DType, bfloat16, bool_, float32, float64, int8, int32, int64, uint8
from tilewright.ir.expr import TRUE, Expr, binary, cast, const, equal, load, maximum, minimum, select, size, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int
from tilewright.kernel.nodes import Block, Buffer, For, If, Kernel, Let, Stmt, Store, While, seq
from tilewright.machine.targets import named_machine
from tilewright.support.errors import InternalError
from tilewright.target.cpu.codegen import generate, workspace_bytes
from tilewright.target.cpu.codegen.work import task_operations
from tilewright.target.cpu.llvm import compile_to_assembly

V, J, K, U = var("v"), var("j"), var("k"), var("u")
N = size("n", 1)
RNG = np.random.default_rng(0)


def tensor(name: str, dtype: DType, *shape: int | Expr, scope: str = "global") -> Buffer:
    return Buffer(name, dtype, tuple(d if isinstance(d, Expr) else const(d) for d in shape), scope)  # type: ignore[arg-type]


def matmul_tile(m: int, k: int, n: int, rows: int = 8, columns: int = 48) -> Kernel:
    a, b = tensor("A", float32, m, k), tensor("B", float32, n // columns, k, columns)
    c, acc = tensor("C", float32, m, n), tensor("acc", float32, rows, columns, scope="local")
    io, jo = var("io"), var("jo")

    def tile(store: Stmt) -> Stmt:
        return For(V, const(rows), For(J, const(columns), store, "vectorized"), "unrolled")

    start = tile(Store(acc, (V, J), const(0.0, float32)))
    update = Store(acc, (V, J), load(acc, (V, J)) + load(a, (io * rows + V, K)) * load(b, (jo, K, J)))
    finish = tile(Store(c, (io * rows + V, jo * columns + J), load(acc, (V, J))))
    body = seq(start, For(K, const(k), tile(update)), finish)
    return Kernel("matmul", (a, b), (c,), For(jo, const(n // columns), For(io, const(m // rows), body), "parallel"), (), (acc,))


@pytest.mark.parametrize("pool", [False, True])
def test_matmul_tile(pool: bool) -> None:
    a, b = RNG.standard_normal((64, 50)).astype(np.float32), RNG.standard_normal((50, 192)).astype(np.float32)
    packed = np.ascontiguousarray(b.reshape(50, 4, 48).transpose(1, 0, 2))
    (c,) = run(matmul_tile(64, 50, 192), [a, packed], pool=pool)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def inner_loop(assembly: str) -> list[str]:
    """The instructions of the innermost loop with the most multiply-adds."""
    best: list[str] = []
    for block in re.split(r"^\.LBB\w+:", assembly, flags=re.M)[1:]:
        lines = [line.strip() for line in block.splitlines() if line.startswith("\t") and not line.startswith("\t.")]
        end = next((n for n, line in enumerate(lines) if line.startswith("j")), len(lines))
        lines = lines[: end + 1]
        if sum("vfmadd" in line for line in lines) > sum("vfmadd" in line for line in best):
            best = lines
    return best


@pytest.mark.parametrize(("machine", "rows", "columns", "register"), [("x86-64-v4", 8, 48, "zmm"), ("x86-64-v3", 6, 16, "ymm")])
def test_matmul_tile_lives_in_registers(machine: str, rows: int, columns: int, register: str) -> None:
    target = named_machine(machine)
    lines = inner_loop(compile_to_assembly(generate(matmul_tile(rows * 4, 100, columns * 2, rows, columns), target), llvm_target(target)))
    products = [line for line in lines if "vfmadd" in line]
    lanes = target.vector_bits // 32
    assert len(products) % (rows * columns // lanes) == 0
    assert products
    assert all(register in line for line in products)
    assert not [line for line in lines if "(%rsp)" in line or "(%rbp)" in line], "spills"
    assert len(lines) <= 2 * len(products)


def test_ragged_tails_are_masked() -> None:
    x, y = tensor("x", float32, N), tensor("y", float32, N)
    body = For(
        U, (N + 15) // 16, For(V, const(16), If(U * 16 + V < N, Store(y, (U * 16 + V,), load(x, (U * 16 + V,)) * 2.0)), "vectorized")
    )
    kernel = Kernel("tail", (x,), (y,), body, (N,))
    for n in (1, 15, 16, 17, 100):
        a = RNG.standard_normal(n).astype(np.float32)
        np.testing.assert_array_equal(run(kernel, [a], {N: n})[0], a * 2)


def test_symbolic_strides_and_both_sides_of_a_mask() -> None:
    m = size("m", 1)
    x, y = tensor("x", float32, m, N), tensor("y", float32, N, m)
    here, there = (J, U * 8 + V), (U * 8 + V, J)
    body = If(load(x, here) < 0.0, Store(y, there, load(x, here) * -1.0), Store(y, there, load(x, here) + 1.0))
    kernel = Kernel(
        "transpose",
        (x,),
        (y,),
        For(J, m, For(U, (N + 7) // 8, For(V, const(8), If(U * 8 + V < N, body), "vectorized")), "parallel"),
        (m, N),
    )
    a = RNG.standard_normal((5, 19)).astype(np.float32)
    (got,) = run(kernel, [a], {m: 5, N: 19}, pool=True)
    np.testing.assert_array_equal(got, np.where(a < 0, -a, a + 1).T)


@pytest.mark.parametrize("op", [Op.LT, Op.LE])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1 << 40])
def test_comparisons_of_the_lane_with_a_bound_known_while_running(op: Op, sign: int, step: int) -> None:
    """Both comparisons, with the lane or a multiple of it on either side, and bounds from before the first lane to past the last."""
    y = tensor("y", int32, N, 24)
    scale = max(step >> 5, 1)  # of the bounds
    bound = (U - 3) * scale
    sides = (V * step, bound) if sign > 0 else (bound, V * step)
    choice = select(binary(op, *sides), const(1, int32), const(0, int32))
    kernel = Kernel("compare", (), (y,), For(U, N, For(V, const(24), Store(y, (U, V), choice), "vectorized")), (N,))
    rows = 24 * step // scale + 12
    (got,) = run(kernel, [], {N: rows})
    lanes, bounds = np.arange(24)[None, :] * step, (np.arange(rows)[:, None] - 3) * scale
    a, b = (lanes, bounds) if sign > 0 else (bounds, lanes)
    np.testing.assert_array_equal(got, a < b if op is Op.LT else a <= b)
    if step == 7:
        assert not re.search(r"mul <\d+ x i64>", generate(kernel, host()))


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, -1, -2])
@pytest.mark.parametrize("dtype", [float32, uint8, float64, bfloat16], ids=str)
def test_strided_accesses(stride: int, dtype: DType) -> None:
    count = 40
    span = (count - 1) * abs(stride) + 1
    start = 0 if stride > 0 else span - 1
    x, y = tensor("x", dtype, span), tensor("y", dtype, count)
    z = tensor("z", dtype, span)
    read = For(V, const(count), Store(y, (V,), load(x, (V * stride + start,))), "vectorized")
    a = RNG.integers(0, 100, span).astype(dtype.numpy)
    (got,) = run(Kernel("read", (x,), (y,), read), [a])
    np.testing.assert_array_equal(got, a[::stride] if stride > 0 else a[::-1][::-stride])
    clear = For(J, const(span), Store(z, (J,), const(0, dtype)))
    write = For(V, const(count), Store(z, (V * stride + start,), load(y, (V,))), "vectorized")
    (back,) = run(Kernel("write", (y,), (z,), seq(clear, write)), [got])
    expected = np.zeros(span, dtype.numpy)
    expected[start::stride] = got
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize("dtype", [float32, int8, int64, bool_], ids=str)
def test_gather_and_scatter_under_masks(dtype: DType) -> None:
    x, at, y = tensor("x", dtype, 50), tensor("at", int64, 32), tensor("y", dtype, 50)
    where = load(at, (V,))
    inside = binary(Op.AND, const(0) <= where, where < 50)
    clear = For(J, const(50), Store(y, (J,), const(0, dtype)))
    move = For(V, const(32), If(inside, Store(y, (where,), load(x, (where,)))), "vectorized")
    index = RNG.permutation(60)[:32] - 5
    a = RNG.integers(0, 2 if dtype is bool_ else 100, 50).astype(dtype.numpy)
    expected = np.zeros(50, dtype.numpy)
    for n in index[(index >= 0) & (index < 50)]:
        expected[n] = a[n]
    (got,) = run(Kernel("move", (x, at), (y,), seq(clear, move)), [a, index.astype(np.int64)])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["serial", "vectorized", "unrolled"])
@pytest.mark.parametrize("shift", [-3, 5])
def test_select_does_not_load_on_the_side_not_taken(kind: str, shift: int) -> None:
    huge = 1 << 44  # elements: an address outside of the process
    x, y = tensor("x", float32, 20), tensor("y", float32, 20)
    at = V + shift
    inside = binary(Op.AND, const(0) <= at, at < 20)
    far = select(inside, at, at * huge)
    for other in (const(0.0, float32), const(7.0, float32)):
        value = select(inside, load(x, (far,)), other)
        kernel = Kernel("padded", (x,), (y,), For(V, const(20), Store(y, (V,), value), kind))  # type: ignore[arg-type]
        a = RNG.standard_normal(20).astype(np.float32)
        expected = [a[i + shift] if 0 <= i + shift < 20 else other.value for i in range(20)]
        np.testing.assert_array_equal(run(kernel, [a])[0], np.array(expected, np.float32))


def test_uniform_select_in_lanes_does_not_load_on_the_side_not_taken() -> None:
    x, y = tensor("x", float32, 4, 16), tensor("y", float32, 6, 16)
    row = J - 1
    inside = binary(Op.AND, const(0) <= row, row < 4)
    value = select(inside, load(x, (select(inside, row, row * (1 << 40)), V)) + load(x, (row, const(3))), const(9.0, float32))
    kernel = Kernel("rows", (x,), (y,), For(J, const(6), For(V, const(16), Store(y, (J, V), value), "vectorized")))
    a = RNG.standard_normal((4, 16)).astype(np.float32)
    expected = np.full((6, 16), 9, np.float32)
    expected[1:5] = a + a[:, 3:4]
    np.testing.assert_array_equal(run(kernel, [a])[0], expected)


@pytest.mark.parametrize(("op", "dtype"), [(Op.ADD, float32), (Op.MAX, float32), (Op.MIN, int32), (Op.MUL, float64), (Op.ADD, bfloat16),
                                           (Op.AND, bool_), (Op.OR, bool_), (Op.MAX, uint8), (Op.XOR, int64)], ids=str)  # fmt: skip
def test_reductions_over_lanes(op: Op, dtype: DType) -> None:
    x, y = tensor("x", dtype, 3, 40), tensor("y", dtype, 3)
    first = {Op.MUL: 1, Op.AND: True, Op.MIN: dtype.highest, Op.MAX: dtype.lowest}.get(op, 0)
    update = If(U * 20 + V < 33, Store(y, (J,), binary(op, load(y, (J,)), load(x, (J, U * 20 + V)))))
    body = seq(Store(y, (J,), const(first, dtype)), For(U, const(2), For(V, const(20), update, "vectorized")))
    a = RNG.integers(0, 2, (3, 40)).astype(dtype.numpy) if dtype is bool_ else RNG.integers(1, 3, (3, 40)).astype(dtype.numpy)
    how = {Op.ADD: np.add, Op.MAX: np.maximum, Op.MIN: np.minimum, Op.MUL: np.multiply, Op.AND: np.logical_and, Op.OR: np.logical_or,
           Op.XOR: np.bitwise_xor}[op]  # fmt: skip
    wide = a[:, :33].astype(np.float64) if dtype.is_float else a[:, :33]
    np.testing.assert_array_equal(
        run(Kernel("reduce", (x,), (y,), For(J, const(3), body)), [a])[0], how.reduce(wide, 1).astype(dtype.numpy)
    )


def test_lets_and_locals_in_lanes() -> None:
    x, y, t = tensor("x", float32, 24), tensor("y", float32, 24), tensor("t", float32, 24, scope="local")
    a, b = var("a", float32), var("b", float32)
    body = Let(a, load(x, (V,)), seq(Store(t, (V,), a * a), Let(b, load(t, (V,)) + a, Store(y, (V,), b * b))))
    v = RNG.standard_normal(24).astype(np.float32)
    (got,) = run(Kernel("lets", (x,), (y,), For(V, const(24), body, "vectorized"), (), (t,)), [v])
    np.testing.assert_allclose(got, (v * v + v) ** 2, rtol=1e-5, atol=1e-6)


def test_stores_are_seen_by_loads_after_them() -> None:
    x, y = tensor("x", int32, 1), tensor("y", int32, 4)
    s = tensor("s", int32, scope="local")
    value = load(s, ())
    body = seq(
        Store(s, (), load(x, (const(0),))), Store(y, (const(0),), value), Store(s, (), value + 1), Store(y, (const(1),), value),
        For(V, const(5), Store(s, (), value * 2)), Store(y, (const(2),), value),
        If(equal(load(x, (const(0),)), const(3, int32)), Store(s, (), value + 100)), Store(y, (const(3),), value),
    )  # fmt: skip
    (got,) = run(Kernel("order", (x,), (y,), body, (), (s,)), [np.array([3], np.int32)])
    np.testing.assert_array_equal(got, [3, 4, 128, 228])


@pytest.mark.parametrize("kind", ["serial", "parallel", "vectorized"])
def test_while_loops(kind: str) -> None:
    """Steps of the Collatz sequence."""
    x, y, value, steps = (
        tensor("x", int64, 30),
        tensor("y", int32, 30),
        tensor("v", int64, scope="local"),
        tensor("s", int32, scope="local"),
    )
    v = load(value, ())
    step = If(equal(v % 2, const(0)), Store(value, (), v // 2), Store(value, (), v * 3 + 1))
    loop = While(const(1) < v, seq(step, Store(steps, (), load(steps, ()) + 1)))
    body = seq(Store(value, (), load(x, (V,))), Store(steps, (), const(0, int32)), loop, Store(y, (V,), load(steps, ())))
    kernel = Kernel("collatz", (x,), (y,), For(V, const(30), body, kind), (), (value, steps))  # type: ignore[arg-type]

    def expected(n: int) -> int:
        return 0 if n == 1 else 1 + expected(n // 2 if n % 2 == 0 else 3 * n + 1)

    (got,) = run(kernel, [np.arange(1, 31)], pool=True)
    np.testing.assert_array_equal(got, [expected(n) for n in range(1, 31)])


@pytest.mark.parametrize("pool", [False, True])
def test_several_parallel_regions_with_captured_values_and_workspace(pool: bool) -> None:
    m = size("m", 1)
    x, y, t, total = tensor("x", float32, m, N), tensor("y", float32, m, N), tensor("t", float32, m, N), tensor("total", float32, m)
    scale = var("scale", float32)
    r = var("r")
    double = For(V, m, For(J, N, Store(t, (V, J), load(x, (V, J)) * scale)), "parallel")
    add = For(
        V, m, seq(Store(total, (V,), const(0.0, float32)), For(J, N, Store(total, (V,), load(total, (V,)) + load(t, (V, J))))), "parallel"
    )
    put = For(V, m, For(J, N, Store(y, (V, J), load(t, (V, J)) + load(total, (V,)) + cast(float32, r))), "parallel")
    rounds = For(r, const(3), put)
    kernel = Kernel("regions", (x,), (y,), Let(scale, cast(float32, N), seq(double, add, rounds)), (m, N), (t, total))
    a = RNG.standard_normal((7, 50)).astype(np.float32)
    (got,) = run(kernel, [a], {m: 7, N: 50}, pool=pool)
    np.testing.assert_allclose(got, a * 50 + (a * 50).sum(1, keepdims=True) + 2, rtol=1e-4, atol=1e-3)
    assert repr(workspace_bytes(kernel, host()))


def test_flat_index_taken_apart_is_contiguous_again() -> None:
    x, y = tensor("x", float32, 4, 12), tensor("y", float32, 48)
    flat = U * 16 + V
    kernel = Kernel(
        "flat", (x,), (y,), For(U, const(3), For(V, const(16), Store(y, (flat,), load(x, (flat // 12, flat % 12))), "vectorized"))
    )
    assert "gather" not in generate(kernel, host())
    a = RNG.standard_normal((4, 12)).astype(np.float32)
    np.testing.assert_array_equal(run(kernel, [a])[0], a.reshape(-1))


def test_relu_is_one_instruction() -> None:
    x, y = tensor("x", float32, 16), tensor("y", float32, 16)
    kernel = Kernel("relu", (x,), (y,), For(V, const(16), Store(y, (V,), maximum(load(x, (V,)), const(0.0, float32))), "vectorized"))
    target = named_machine("x86-64-v4")
    assembly = compile_to_assembly(generate(kernel, target), llvm_target(target))
    assert "vmaxps" in assembly
    assert "vcmp" not in assembly


def test_floor_division_of_negative_indices() -> None:
    y = tensor("y", int64, 20, 4)
    at = V - 10
    values = (at // 4, at % 4, at // 3, at % 3)
    body = seq(*(Store(y, (V, const(n)), minimum(v, const(100))) for n, v in enumerate(values)))
    for kind in ("serial", "vectorized"):
        (got,) = run(Kernel("floor", (), (y,), For(V, const(20), body, kind)), [])  # type: ignore[arg-type]
        i = np.arange(20) - 10
        np.testing.assert_array_equal(got, np.stack([i // 4, i % 4, i // 3, i % 3], 1))


def test_names_that_llvm_must_quote() -> None:
    y = tensor("y", int32, 1)
    kernel = Kernel('résumé "x" 1', (), (y,), For(V, const(2), Store(y, (const(0),), const(5, int32)), "parallel"))
    assert run(Kernel("plain.name", (), (y,), kernel.body), [])[0][0] == 5
    target = named_machine("x86-64-v3")
    assert compile_to_assembly(generate(kernel, target), llvm_target(target))


def test_blocks_are_refused() -> None:
    y = tensor("y", int32, 1)
    block = Block("b", (), (), Store(y, (const(0),), const(5, int32)), None, TRUE)
    with pytest.raises(InternalError, match="lower"):
        generate(Kernel("k", (), (y,), block), host())


@pytest.mark.parametrize("extent", [3, 7, 16, 29])
@pytest.mark.parametrize("machine", ["x86-64-v3", "host"])
@pytest.mark.parametrize("dtype", [float32, uint8, float64, int64], ids=str)
def test_extents_that_are_no_multiple_of_a_vector(extent: int, machine: str, dtype: DType) -> None:
    """Tiles in a local buffer, strided reads, gathers, scatters and reductions, with lanes that do not exist."""
    target = host() if machine == "host" else named_machine(machine)
    x, y, total = tensor("x", dtype, 2, extent * 3), tensor("y", dtype, 2, extent, 2), tensor("total", dtype, 2)
    at, t = tensor("at", int64, extent), tensor("t", dtype, 2, extent, scope="local")
    tile = For(K, const(2), For(V, const(extent), Store(t, (K, V), load(x, (K, V * 3))), "vectorized"), "unrolled")
    add = For(K, const(2), For(V, const(extent), Store(t, (K, V), load(t, (K, V)) + load(x, (K, V))), "vectorized"), "unrolled")
    where = load(at, (V,))
    out = seq(Store(y, (K, where, const(1)), load(x, (K, where))), Store(y, (K, V, const(0)), load(t, (K, V))))
    put = For(K, const(2), For(V, const(extent), out, "vectorized"))
    clear = For(K, const(2), Store(total, (K,), const(0, dtype)))
    reduce = For(K, const(2), For(V, const(extent), Store(total, (K,), load(total, (K,)) + load(t, (K, V))), "vectorized"))
    kernel = Kernel("odd", (x, at), (y, total), seq(tile, add, put, clear, reduce), (), (t,))
    a, order = RNG.integers(0, 9, (2, extent * 3)).astype(dtype.numpy), RNG.permutation(extent)
    got, sums = run(kernel, [a, order], code=build(kernel, target))
    expected = a[:, ::3] + a[:, :extent]
    np.testing.assert_array_equal(got[:, :, 0], expected)
    np.testing.assert_array_equal(got[:, :, 1], a[:, :extent])
    np.testing.assert_array_equal(sums, expected.sum(1).astype(dtype.numpy))


def test_masked_stores_to_a_register_tile_keep_it_in_registers() -> None:
    x, y, acc = tensor("x", float32, N, 16), tensor("y", float32, 16), tensor("acc", float32, 16, scope="local")
    start = For(V, const(16), Store(acc, (V,), const(0.0, float32)), "vectorized")
    update = Store(acc, (V,), load(acc, (V,)) + load(x, (K, V)) * load(x, (K, const(0))))
    add = For(K, N, For(V, const(16), If(V < K, update), "vectorized"))
    put = For(V, const(16), Store(y, (V,), load(acc, (V,))), "vectorized")
    kernel = Kernel("masked", (x,), (y,), seq(start, add, put), (N,), (acc,))
    target = named_machine("x86-64-v4")
    assert "(%rsp)" not in "".join(inner_loop(compile_to_assembly(generate(kernel, target), llvm_target(target))))
    a = RNG.standard_normal((30, 16)).astype(np.float32)
    on = np.arange(16) < np.arange(30)[:, None]
    np.testing.assert_allclose(run(kernel, [a], {N: 30})[0], (a * a[:, :1] * on).sum(0), rtol=1e-4, atol=1e-5)


def test_scratch_of_tasks_has_parts_for_the_cores_only() -> None:
    m = size("m", 1)
    x, y, t = tensor("x", float32, m, N), tensor("y", float32, m, N), tensor("t", float32, m, N)
    squares = For(J, N, Store(t, (V, J), load(x, (V, J)) * load(x, (V, J))))
    sums = For(J, N, Store(y, (V, J), load(t, (V, J)) + load(t, (V, const(0)))))
    kernel = Kernel("tasks", (x,), (y,), For(V, m, seq(squares, sums), "parallel"), (m, N), (t,))
    needed = workspace_bytes(kernel, replace(host(), cores=2))
    assert [evaluate_int(needed, {m: tasks, N: 16}) for tasks in (1, 3, 4, 100)] == [64, 192, 256, 256]
    a = RNG.standard_normal((100, 50)).astype(np.float32)
    for pool in (False, True):
        (got,) = run(kernel, [a], {m: 100, N: 50}, pool=pool)
        np.testing.assert_allclose(got, a * a + a[:, :1] ** 2, rtol=1e-5)


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_no_two_tasks_have_one_part_of_scratch(cores: int) -> None:
    """The pool cuts a loop into ceil(extent / grain) parts at most, the first ones longer by one."""
    for extent in range(1, 200):
        parts = min(extent, 2 * cores)
        grain = 1 if extent <= 2 * cores else -(-extent // cores)
        for tasks in range(1, -(-extent // grain) + 1):
            size_, longer = divmod(extent, tasks)
            begins = [i * size_ + min(i, longer) for i in range(tasks)]
            taken = [begin * parts // extent for begin in begins]
            assert len(set(taken)) == len(taken)
            assert max(taken) < parts


def test_tasks_are_worth_what_a_parallel_loop_costs_on_the_machine() -> None:
    quick, slow = (replace(named_machine("x86-64-v4"), cores=4, fork_us=cost) for cost in (0.5, 5.0))
    assert task_operations(slow) == 10 * task_operations(quick)
    assert task_operations(replace(slow, vector_bits=256)) < task_operations(slow)


def test_masks_of_unrolled_rows_are_computed_once() -> None:
    x, y = tensor("x", float32, 6, N), tensor("y", float32, 6, N)
    at = U * 16 + J
    row = For(J, const(16), If(at < N, Store(y, (V, at), load(x, (V, at)) + 1.0)), "vectorized")
    kernel = Kernel("rows", (x,), (y,), For(U, (N + 15) // 16, For(V, const(6), row, "unrolled")), (N,))
    assert generate(kernel, named_machine("x86-64-v4")).count("icmp ult <16 x i32>") == 1
    for n in (1, 16, 37):
        a = RNG.standard_normal((6, n)).astype(np.float32)
        np.testing.assert_array_equal(run(kernel, [a], {N: n})[0], a + 1)


def test_values_of_a_branch_are_not_used_after_it() -> None:
    """The same instructions in a branch, in its alternative, in a loop that may have no iterations and behind them."""
    m = size("m", 0)
    x, y = tensor("x", float32, N, N), tensor("y", float32, N, 4)
    value = load(x, (U * N // 2 // N, (U * 3 + N) % N))

    def store(column: int) -> Stmt:
        return Store(y, (U, const(column)), value + float(column))

    body = seq(*(Store(y, (U, const(c)), const(0.0, float32)) for c in range(4)))
    body = seq(body, If(U * 3 < N, store(0), store(1)), For(J, m, store(2)), store(3))
    kernel = Kernel("branches", (x,), (y,), For(U, N, body), (m, N))
    for n, count in ((1, 0), (7, 0), (7, 2)):
        a = RNG.standard_normal((n, n)).astype(np.float32)
        (got,) = run(kernel, [a], {N: n, m: count})
        for u in range(n):
            v = a[u // 2, (u * 3 + n) % n]
            want = [v if u * 3 < n else 0, 0 if u * 3 < n else v + np.float32(1), v + np.float32(2) if count else 0, v + np.float32(3)]
            np.testing.assert_array_equal(got[u], np.array(want, np.float32))
