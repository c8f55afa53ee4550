"""Each lowering pass on small kernels, by the text of what comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.schedule.kernels import elementwise, matmul, softmax, stencil
from tilewright.ir.dtypes import float32
from tilewright.ir.expr import Expr, binary, const, load, logical_and, select, size, var
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower import lower
from tilewright.kernel.lower.compact_buffers import compact_buffers
from tilewright.kernel.lower.dissolve_blocks import dissolve_blocks
from tilewright.kernel.lower.partition_loops import MOST_SYMBOLIC, partition_loops, size_of
from tilewright.kernel.lower.simplify_statements import simplify_statements
from tilewright.kernel.nodes import Buffer, For, If, Kernel, Prefetch, Scope, Stmt, Store, seq, walk_stmts
from tilewright.kernel.schedule import Schedule


def body(kernel: Kernel) -> str:
    """The statements of the kernel as text, without its signature and declarations."""
    lines = repr(kernel).splitlines()
    start = next(n for n, line in enumerate(lines) if line.endswith("):"))
    kept = [line[4:] for line in lines[start + 1 :] if " = scratch(" not in line and " = local(" not in line and " = size(" not in line]
    return "\n".join(kept).strip()


def test_init_moves_in_front_of_the_reduction() -> None:
    s = Schedule.of(matmul(6, 5, 10))
    s = s.reorder("i", "k", "i_1")
    text = body(dissolve_blocks(s.kernel))
    assert text.startswith(
        "for i in range(6):\n"
        "    for i_1 in range(10):\n"
        "        C[i, i_1] = float32(0.0)\n"
        "    for k, i_1 in grid(5, 10):\n"
        "        C[i, i_1] = C[i, i_1] + A[i, k] * B[k, i_1]"
    ), text


def test_init_of_an_empty_reduction_runs() -> None:
    n = size("n")
    b = KernelBuilder("total")
    x = b.input("x", float32, (3, n))
    kernel = lower(b.finish((b.reduce("y", (3,), (n,), lambda i, r: x[i, r], "sum"),)))
    np.testing.assert_array_equal(interpret(kernel, [np.zeros((3, 0), np.float32)], {n: 0})[0], np.zeros(3))


def test_init_stays_where_a_loop_mixes_spatial_and_reduction_iters() -> None:
    s = Schedule.of(matmul(6, 5, 10))
    s, _ = s.fuse("i_1", "k")
    kernel = dissolve_blocks(s.kernel)
    assert any(isinstance(stmt, If) for stmt in walk_stmts(kernel.body))


def test_predicates_become_conditions() -> None:
    s = Schedule.of(stencil(20))
    s, (outer, inner) = s.split("i", 8)
    assert body(dissolve_blocks(s.kernel)).startswith(
        "for i_o, i_i in grid(3, 8):\n    if i_o * 8 + i_i < 20:\n        P[i_o * 8 + i_i] = x[i_o * 8 + i_i] * float32(2.0)"
    )
    assert outer
    assert inner


def test_scratch_shrinks_to_the_tile_and_becomes_local() -> None:
    s = Schedule.of(stencil(34))
    s, (outer, _) = s.split("i_1", 8)
    s, _ = s.compute_at("P", outer)
    kernel = compact_buffers(dissolve_blocks(s.kernel))
    assert repr(kernel.scratch) == "(P: float32[10],)"
    assert kernel.scratch[0].scope == "local"


def test_scratch_between_two_parallel_nests_is_global() -> None:
    s = Schedule.of(softmax(4, 11)).parallel("i").parallel("i_1")
    kernel = lower(s.kernel)
    assert {b.name: b.scope for b in kernel.scratch}["M"] == "global"


def test_scratch_of_run_time_size_in_a_parallel_loop_is_one_per_iteration() -> None:
    n = size("n", 1)
    s = Schedule.of(elementwise(6, n))
    s, _ = s.compute_at("B", "i_4")
    s, _ = s.compute_at("A", "i_4")
    kernel = lower(s.parallel("i_4").kernel)
    assert sorted(map(repr, kernel.scratch)) == ["A: float32[6, 1, n]", "B: float32[6, 1, n]"]
    assert {b.scope for b in kernel.scratch} == {"global"}


@pytest.mark.parametrize(("columns", "scope"), [(10, "local"), (20_000, "global")])
@pytest.mark.parametrize("wish", ["local", "global"])
def test_tasks_share_no_scratch_whatever_scope_was_wished_for(wish: Scope, columns: int, scope: Scope) -> None:
    """What is too large for a stack has a place for each task."""
    s = Schedule.of(elementwise(6, columns)).set_scope("B", wish)
    s, _ = s.compute_at("B", "i_4")
    (made,) = [b for b in lower(s.parallel("i_4").kernel).scratch if b.name == "B"]
    assert made.scope == scope
    assert made.shape[-1] is const(columns)
    assert (made.shape[0] is const(6)) == (scope == "global")


def test_scratch_under_a_vectorized_loop_has_an_element_for_each_lane() -> None:
    s = Schedule.of(elementwise(6, 16))
    s, _ = s.compute_at("B", "i_5")
    kernel = lower(s.vectorize("i_5").kernel)
    assert next(b for b in kernel.scratch if b.name == "B").shape[-1] is const(16)


def carried(first: Stmt, value: Buffer) -> Kernel:
    i, k = var("i"), var("k")
    x, y = Buffer("x", float32, (const(4), const(5))), Buffer("y", float32, (const(5),))
    update = Store(value, (i,), load(value, (i,)) + load(x, (k, i)))
    last = If(binary(Op.EQ, k, const(3)), Store(y, (i,), load(value, (i,))))

    return Kernel("carried", (x,), (y,), For(k, const(4), For(i, const(5), seq(first, update, last))), (), (value,))


def test_scratch_that_carries_values_between_iterations_keeps_its_size() -> None:
    i, k = var("i"), var("k")
    value = Buffer("value", float32, (const(5),))
    kernel = carried(If(binary(Op.EQ, k, const(0)), Store(value, (i,), const(0.0, float32))), value)
    lowered = lower(kernel)
    assert lowered.scratch[0].shape == (const(5),)
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_array_equal(interpret(lowered, [x])[0], x.sum(0))


def test_conditions_leave_loops_that_they_do_not_depend_on() -> None:
    n = size("n", 1)
    i, j = var("i"), var("j")
    y = Buffer("y", float32, (n, const(4)))
    inner = If(binary(Op.AND, i * 8 < n, j < 3), Store(y, (i, j), const(1.0, float32)))
    kernel = simplify_statements(Kernel("k", (), (y,), For(i, const(8), For(j, const(4), inner)), (n,)))
    expected = (
        "for i in range(8):\n    if i * 8 < n:\n        for j in range(4):\n            if j < 3:\n                y[i, j] = float32(1.0)"
    )
    assert body(kernel) == expected


def test_loops_of_one_iteration_and_proved_conditions_go() -> None:
    i, j = var("i"), var("j")
    y = Buffer("y", float32, (const(8),))
    store = If(i * 8 + j < 8, Store(y, (i * 8 + j,), const(1.0, float32)))
    kernel = simplify_statements(Kernel("k", (), (y,), For(i, const(1), For(j, const(8), store))))
    assert body(kernel) == "for j in range(8):\n    y[j] = float32(1.0)"


def tail(extent: int | None, kind: str = "serial") -> Kernel:
    n = size("n", 1) if extent is None else const(extent)
    i, j = var("i"), var("j")
    y = Buffer("y", float32, (n,))
    store = If(i * 16 + j < n, Store(y, (i * 16 + j,), const(1.0, float32)))
    loop = For(i, (n + 15) // 16, For(j, const(16), store, "vectorized"), kind)  # type: ignore[arg-type]
    return Kernel("tail", (), (y,), loop, () if extent is not None else (n,))


def test_a_tail_is_split_off() -> None:
    kernel = simplify_statements(partition_loops(simplify_statements(tail(100))))
    assert body(kernel) == (
        "for i in range(6):\n"
        "    for j in vectorized(16):\n"
        "        y[i * 16 + j] = float32(1.0)\n"
        "for j in vectorized(16):\n"
        "    if j < 4:\n"
        "        y[j + 96] = float32(1.0)"
    )


def test_a_tail_of_run_time_size_is_split_off_without_a_loop() -> None:
    kernel = lower(tail(None))
    text = body(kernel)
    assert text.startswith("for i in range(n // 16):\n    for j in vectorized(16):\n        y[i * 16 + j] = float32(1.0)\nif "), text
    assert text.count("for ") == 3


def test_a_parallel_loop_stays_one_loop() -> None:
    loops = [s for s in walk_stmts(lower(tail(100, "parallel")).body) if isinstance(s, For) and s.kind == "parallel"]
    assert len(loops) == 1
    assert isinstance(loops[0].body, If)


@pytest.mark.parametrize("stride", [1, 2])
def test_padding_leaves_the_middle_of_a_row_without_conditions(stride: int) -> None:
    i, r = var("i"), var("r")
    x, y = Buffer("x", float32, (const(20),)), Buffer("y", float32, (const(20 // stride), const(3)))
    at = i * stride + r - 1
    value = select(binary(Op.AND, const(0) <= at, at < 20), load(x, (at,)), const(0.0, float32))
    kernel = Kernel("pad", (x,), (y,), For(i, const(20 // stride), For(r, const(3), Store(y, (i, r), value), "unrolled")))
    lowered = lower(kernel)
    middle = max((s for s in walk_stmts(lowered.body) if isinstance(s, For) and s.kind == "serial"), key=lambda s: s.extent.value)
    assert middle.extent.value == (18 if stride == 1 else 9)
    assert "select" not in repr(middle)
    data = np.arange(1, 21, dtype=np.float32)
    np.testing.assert_array_equal(interpret(lowered, [data])[0], interpret(kernel, [data])[0])


def large(n: Expr, i: Expr) -> tuple[Buffer, Stmt]:
    y = Buffer("y", float32, (n, const(500)))
    return y, seq(*(Store(y, (i, const(c)), const(1.0, float32)) for c in range(500)))


def test_large_bodies_are_not_copied() -> None:
    n, i = size("n", 1), var("i")
    y, stores = large(n, i)
    kernel = Kernel("large", (), (y,), For(i, (n + 3) // 4 * 4, seq(If(i < n, stores), If(i < n, stores))), (n,))
    assert partition_loops(kernel) is kernel


def test_a_loop_with_nothing_but_a_condition_is_shortened_however_large() -> None:
    n, i = size("n", 1), var("i")
    y, stores = large(n, i)
    (loop,) = [
        s for s in walk_stmts(partition_loops(Kernel("k", (), (y,), For(i, n * 4, If(i < n, stores)), (n,))).body) if isinstance(s, For)
    ]
    assert loop.extent is n
    assert loop.body is stores


@pytest.mark.parametrize("conditional", [False, True])
def test_prefetches_keep_no_loop_from_being_shortened(conditional: bool) -> None:
    n, i = size("n", 1), var("i")
    y, stores = large(n, i)
    asked = seq(Prefetch(y, i), Prefetch(y, i + 16))
    body = seq(If(const(64) < n, asked) if conditional else asked, If(i < n, stores))
    (loop,) = [s for s in walk_stmts(partition_loops(Kernel("k", (), (y,), For(i, n * 4, body), (n,))).body) if isinstance(s, For)]
    assert loop.extent is n
    assert [s.condition for s in walk_stmts(loop) if isinstance(s, If)] == ([const(64) < n] if conditional else [])


def test_conditions_that_shorten_a_loop_leave_the_copies_to_other_ones() -> None:
    """A parallel loop does not get two bodies for them where the loop inside, which is then split, would be too large."""
    i, j, k = var("i"), var("j"), var("k")
    x, y = Buffer("x", float32, (const(64),)), Buffer("y", float32, (const(64), const(32)))
    at = i + k - 2
    step = Store(y, (i, j), load(y, (i, j)) + load(x, (at,)))
    taps = For(k, const(5), If(const(0) <= at, For(var("u"), const(200), If(j < 30, step), "unrolled")))
    kernel = Kernel("window", (x,), (y,), For(i, const(60), For(j, const(32), taps), "parallel"))
    lowered = partition_loops(kernel)
    assert isinstance(lowered.body, For)
    assert not isinstance(lowered.body.body, If)
    assert [s.extent.value for s in walk_stmts(lowered.body) if isinstance(s, For) and s.var is j] == [30, 1, 1]


def test_short_loops_of_steps_are_not_split_where_nobody_knows_where() -> None:
    n, i, k, u = size("n", 1), var("i"), var("k"), var("u")
    x, y = Buffer("x", float32, (n,)), Buffer("y", float32, (const(2),))
    step = Store(y, (i,), load(y, (i,)) + select(k * 4 + i < n, load(x, (k * 4 + i,)), const(0.0, float32)))
    kernel = Kernel("k", (x,), (y,), For(k, const(3), For(i, const(2), step, "unrolled")), (n,))
    assert partition_loops(kernel) is kernel
    longer = Kernel("k", (x,), (y,), For(k, const(40), For(i, const(2), step, "unrolled")), (n,))
    assert len([s for s in walk_stmts(partition_loops(longer).body) if isinstance(s, For) and s.var is k]) == 2
    # tiles of results, not steps: those that are not there fall away with the rest of the loop
    z = Buffer("z", float32, (const(3), const(2)))
    tiles = For(k, const(3), For(u, const(2), If(k * 4 < n, Store(z, (k, u), const(1.0, float32))), "unrolled"))
    lowered = simplify_statements(partition_loops(Kernel("k", (), (z,), tiles, (n,))))
    assert not any(isinstance(s, If) for s in walk_stmts(lowered.body))


def test_large_kernels_of_unknown_sizes_have_one_body_for_all_borders() -> None:
    n, m, i, j, u = size("n", 1), size("m", 1), var("i"), var("j"), var("u")

    def rows(count: int) -> Kernel:
        y = Buffer("y", float32, (n, m, const(count)))
        inside = logical_and(const(1) <= i, i + 1 < n), logical_and(const(1) <= j, j + 1 < m)
        value = select(inside[0], const(1.0, float32), const(2.0, float32)) + select(inside[1], const(1.0, float32), const(2.0, float32))
        return Kernel("k", (), (y,), For(i, n, For(j, m, For(u, const(count), Store(y, (i, j, u), value), "unrolled"))), (n, m))

    def loops(kernel: Kernel) -> list[For]:
        return [s for s in walk_stmts(partition_loops(kernel).body) if isinstance(s, For) and s.var is i]

    assert len(loops(rows(16))) == 3
    assert len(loops(rows(80))) == 1
    for count in (16, 80):
        assert size_of(partition_loops(rows(count)).body) <= MOST_SYMBOLIC
        for sizes in ({n: 1, m: 1}, {n: 2, m: 5}, {n: 7, m: 3}):
            kernel = rows(count)
            np.testing.assert_array_equal(interpret(partition_loops(kernel), [], sizes)[0], interpret(kernel, [], sizes)[0])


def test_what_begins_at_a_border_holds_after_the_next_one() -> None:
    n, i, j = size("n", 1), var("i"), var("j")
    x, y = Buffer("x", float32, (n,)), Buffer("y", float32, (n,))
    first = select(const(2) <= i, load(x, (i,)), const(0.0, float32))
    both = Store(y, (i,), first + select(i + j + 3 < n, load(x, (i,)), const(0.5, float32)))
    kernel = Kernel("k", (x,), (y,), For(i, n, For(j, const(2), both)), (n,))
    lowered = lower(kernel)
    before, middle, after = (repr(s).count("select") for s in walk_stmts(lowered.body) if isinstance(s, For) and s.var is i)
    assert (before, middle, after) == (1, 0, 1), "the first two iterations have constant numbers"
    for count in (1, 2, 3, 5, 6, 9):
        data = np.arange(1, count + 1, dtype=np.float32)
        np.testing.assert_array_equal(interpret(lowered, [data], {n: count})[0], interpret(kernel, [data], {n: count})[0])


def test_a_body_with_versions_for_fewer_rows_is_split_at_its_borders() -> None:
    """The versions have loops of different length over the same variable."""
    n, i, j, k = size("n", 1), var("i"), var("j"), var("k")
    y = Buffer("y", float32, (n,))

    def rows(count: int) -> Stmt:
        return For(j, const(count), If(const(1) <= i * 8 + j, Store(y, (i * 8 + j,), const(1.0, float32))), "unrolled")

    zeros = For(k, n, Store(y, (k,), const(0.0, float32)))
    kernel = Kernel("k", (), (y,), seq(zeros, For(i, (n + 7) // 8, If(i * 8 + 8 <= n, rows(8), rows(3)))), (n,))
    lowered = simplify_statements(partition_loops(kernel))
    tiles = [s for s in walk_stmts(lowered.body) if isinstance(s, For) and s.var is i]
    assert any(not any(isinstance(s, If) for s in walk_stmts(tile)) for tile in tiles)
    for rows_in_all in (3, 8, 19, 32):
        np.testing.assert_array_equal(interpret(lowered, [], {n: rows_in_all})[0], [0.0, *[1.0] * (rows_in_all - 1)])


def test_taps_on_padding_bound_their_loop() -> None:
    h, k = var("h"), var("k")
    x, y = Buffer("x", float32, (const(20),)), Buffer("y", float32, (const(20),))
    at = h + k - 2
    step = load(y, (h,)) + load(x, (at,))
    taps = For(k, const(5), If(binary(Op.AND, const(0) <= at, at < 20), Store(y, (h,), step)))
    kernel = Kernel("window", (x,), (y,), For(h, const(20), seq(Store(y, (h,), const(0.0, float32)), taps), "parallel"))
    lowered = lower(kernel)
    data = np.arange(1, 21, dtype=np.float32)
    np.testing.assert_array_equal(interpret(lowered, [data])[0], interpret(kernel, [data])[0])
    loops = [s for s in walk_stmts(lowered.body) if isinstance(s, For) and s.kind == "serial"]
    assert len(loops) == 2  # of the iterations where all taps count, and of the others
    assert all(isinstance(loop.body, Store) for loop in loops)


@pytest.mark.parametrize("above", [True, False])
def test_a_clamp_stays_where_the_loop_is_split_on_its_other_side(above: bool) -> None:
    """The condition holds from 4 on and the clamp does something from 4 on: one number, opposite sides. On the same side it goes."""
    x, y = Buffer("x", float32, (const(8),)), Buffer("y", float32, (const(8),))
    i = var("i")
    clamped = load(x, (binary(Op.MIN, i, const(3)),))
    holds = binary(Op.LE, const(4), i) if above else binary(Op.LT, i, const(4))
    kernel = Kernel("k", (x,), (y,), For(i, const(8), Store(y, (i,), select(holds, clamped, const(0.0, float32)))))
    lowered = simplify_statements(partition_loops(kernel))
    values = np.arange(1, 9, dtype=np.float32)
    wanted = np.where(np.arange(8) >= 4, 4.0, 0.0) if above else np.where(np.arange(8) < 4, values, 0.0)
    np.testing.assert_array_equal(interpret(lowered, [values], {})[0], wanted)
    assert above or "min(" not in repr(lowered)


@st.composite
def limits(draw: st.DrawFn) -> Expr:
    """A comparison of the loop's variable, perhaps with that of the loop inside, with a bound."""
    at = var("i") * draw(st.sampled_from((1, 1, 2, -1))) + var("j") * draw(st.sampled_from((0, 0, 1)))
    bound = const(draw(st.integers(-2, 14)))
    return draw(st.sampled_from((at < bound, at <= bound, bound < at, bound <= at)))


@settings(max_examples=300)
@given(st.lists(limits(), min_size=1, max_size=4), st.sampled_from(("serial", "parallel")), st.sampled_from(("apart", "nested", "select")))
def test_loops_split_by_several_conditions_do_what_they_did(tests: list[Expr], kind: str, form: str) -> None:
    """Each condition has an end of its own."""
    i, j = var("i"), var("j")
    x = Buffer("x", float32, (const(12), const(3)))
    outputs = tuple(Buffer(f"y{n}", float32, (const(12), const(3))) for n in range(len(tests)))
    stores: list[Stmt] = [Store(y, (i, j), load(x, (i, j)) + float(n)) for n, y in enumerate(outputs)]
    if form == "select":
        stores = [Store(y, (i, j), select(test, load(x, (i, j)), const(0.0, float32))) for test, y in zip(tests, outputs, strict=True)]
    elif form == "apart":
        stores = [If(test, store) for test, store in zip(tests, stores, strict=True)]
    else:
        inner: Stmt = stores[0]
        for test, store in zip(tests, stores, strict=True):
            inner = If(test, seq(store, inner))
        stores = [inner]
    zeros = For(i, const(12), For(j, const(3), seq(*(Store(y, (i, j), const(0.0, float32)) for y in outputs))))
    kernel = Kernel("k", (x,), outputs, seq(zeros, For(i, const(12), For(j, const(3), seq(*stores)), kind)))
    data = np.arange(1, 37, dtype=np.float32).reshape(12, 3)
    split = simplify_statements(partition_loops(simplify_statements(kernel)))
    for got, want in zip(interpret(split, [data]), interpret(kernel, [data]), strict=True):
        np.testing.assert_array_equal(got, want)
