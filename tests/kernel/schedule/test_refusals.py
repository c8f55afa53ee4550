"""What would change a result is refused, with the reason and the loops."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from tests.kernel.schedule.kernels import byte_product, convolution, elementwise, matmul, pointwise, short_product, softmax, stencil
from tilewright.ir.dtypes import float32, uint8
from tilewright.ir.expr import cast, size
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule import Schedule
from tilewright.support.errors import ScheduleError

M, N = size("m", 1), size("n", 1)


def prefix_kernel() -> Kernel:
    """y[i] = x[i] written at i // 2: two iterations write one element."""
    b = KernelBuilder("collide")
    x = b.input("x", float32, (8,))
    (y,) = b.opaque("y", [_type()], (8,), lambda s, outs, i: s.store(outs[0], (i // 2,), x[i]))
    return b.finish((y,))


def read_afterwards() -> Kernel:
    """The same into scratch, which another block reads when all of it is written."""
    b = KernelBuilder("collide")
    x = b.input("x", float32, (8,))
    (y,) = b.opaque("y", [_type()], (8,), lambda s, outs, i: s.store(outs[0], (i // 2,), x[i]))
    return b.finish([b.compute("z", (4,), lambda i: y[i])])


def overlapping(s: Schedule) -> Schedule:
    """C for more columns than an iteration of i_5_o needs, some of them again and again: what guards their use is not looked at."""
    s = s.split("i_5", 1)[0].compute_at("D", "i_5_o")[0]
    return s.split("D_i1", (None, 2, 4))[0].compute_at("C", "i_5_o")[0]


def _type():
    from tilewright.ir.types import tensor

    return tensor(float32, (4,))


def position_sum() -> Kernel:
    """A = x[i, j] + i"""
    b = KernelBuilder("position_sum")
    x = b.input("x", float32, (M, N))
    return b.finish([b.compute("A", (M, N), lambda i, j: x[i, j] + cast(float32, i))])


def transposed() -> Kernel:
    """A = x, the other way round."""
    b = KernelBuilder("transposed")
    x = b.input("x", float32, (N, M))
    return b.finish([b.compute("A", (M, N), lambda i, j: x[j, i])])


def read_twice() -> Kernel:
    """B = the sum of a column of A = 2 x."""
    b = KernelBuilder("read_twice")
    x = b.input("x", float32, (M, N))
    a = b.compute("A", (M, N), lambda i, j: x[i, j] * 2.0)
    return b.finish([b.reduce("B", (N,), (M,), lambda j, r: a[r, j], "sum")])


def parallel_halo(s: Schedule) -> Schedule:
    """Producer under the loop of a consumer that reads its neighbours' elements."""
    s, (outer, _) = s.split("i", 4)
    s, _ = s.reverse_compute_at("C", outer)
    return s


def packed_then_split(s: Schedule) -> Schedule:
    """Loops over whole tiles of a packed layout; the last one is not full, which a predicate says."""
    return s.pack("S", [(2, 3)], [0, 1, 2]).split("i_3", (None, 2, 3))[0].cache_read("O", "S")[0]


def mixed_inside_of_an_empty_loop(s: Schedule) -> Schedule:
    s, (outer, inner) = s.split("k", (None, 2))
    return s.reorder(outer, "i_1", inner).fuse("i_1", inner)[0]


CASES: list[tuple[Callable[[], Kernel], Callable[[Schedule], object], str]] = [
    (matmul, lambda s: s.split("x", 4), "there is no loop 'x'"),
    (lambda: softmax(M, N), packed_then_split, "S is not written in full"),
    (matmul, lambda s: s.split("i", (2, 2)), "the factors give 4 iterations, the loop has 6"),
    (matmul, lambda s: s.split("i", (None, None)), "are no factors"),
    (matmul, lambda s: s.parallel("i").split("i", 2), "'i' is parallel"),
    (matmul, lambda s: s.fuse("i", "k"), "'k' is not the only thing in 'i'"),
    (lambda: matmul(6, size("e", 0), 5), lambda s: s.fuse("i_1", "k"), "would not initialise its results where 'k' has no iterations"),
    (lambda: matmul(6, size("e", 0), 5), mixed_inside_of_an_empty_loop, "would not initialise its results where 'k_o' has no iterations"),
    (matmul, lambda s: s.reorder("i", "i_2"), "'i_2' is not perfectly nested in 'i'"),
    (matmul, lambda s: s.parallel("k"), "block 'C' reduces over 'k'"),
    (matmul, lambda s: s.reorder("k", "i_1").vectorize("k"), "block 'C' reduces over 'k'"),
    (lambda: matmul(M, 4, N), lambda s: s.vectorize("i_1"), "the extent n of 'i_1' is not a constant"),
    (lambda: matmul(6, 4, 300), lambda s: s.vectorize("i_1"), "the extent 300 of 'i_1' is over 256"),
    (prefix_kernel, lambda s: s.parallel("i"), "iterations of 'i' may write the same elements of y"),
    (read_afterwards, lambda s: s.parallel("i"), "iterations of 'i' may write the same elements of y"),
    (matmul, lambda s: s.compute_at("E", "i"), "block 'E' writes the output E"),
    (matmul, lambda s: s.compute_at("C", "i_4"), "block 'D' reads what block 'C' writes and is outside 'i_4'"),
    (matmul, lambda s: s.reorder("k", "i", "i_1").reverse_compute_at("D", "i"), "block 'C' reduces over a loop around 'i'"),
    (matmul, lambda s: s.reverse_compute_at("E", "i"), "block 'E' reads nothing that is written under 'i'"),
    (stencil, parallel_halo, "block 'C' reads more of P in one iteration of 'i_o' than is written in it"),
    (matmul, lambda s: s.inline("C"), "block 'C' is not a single store at its own spatial iters"),
    (elementwise, lambda s: s.inline("C"), "C is an output"),
    (softmax, lambda s: s.reverse_inline("O"), "has no producer that only it reads"),
    (matmul, lambda s: s.reverse_inline("D"), "has no producer that only it reads and that is a single store"),
    (matmul, lambda s: s.cache_read("C", "bias"), "block 'C' does not read bias"),
    (matmul, lambda s: s.reverse_compute_at("D", "i")[0].cache_write("C"), "block 'D' reads C in the same nest"),
    (matmul, lambda s: s.set_scope("C", "local").parallel("i"), "local C is private to each iteration of the parallel loop 'i'"),
    (matmul, lambda s: s.parallel("i_2").cache_read("D", "bias"), "local bias_local is private to each iteration of the parallel loop"),
    (matmul, lambda s: s.set_scope("A", "local"), "A is a parameter"),
    (matmul, lambda s: s.pack("E", ((), ()), (1, 0)), "E is an output"),
    (matmul, lambda s: s.pack("B", ((), (4,)), (0, 1)), "does not name each of the 3 axes once"),
    (matmul, lambda s: s.flatten("D", 0), "block 'D' does not go through all of bias by 'v_2' and 'v_3'"),
    (matmul, lambda s: s.flatten("C", 1), "block 'C' has no two spatial iters at 1"),
    (convolution, lambda s: s.flatten("P", 2), "block 'P' does not go through all of X"),
    (pointwise, lambda s: s.flatten("C", 0)[0].flatten("C", 1), "block 'C' does not go through all of x"),
    (pointwise, lambda s: s.flatten("E", 2), "block 'D' does not go through all of bias"),
    (pointwise, lambda s: s.split("i_1", 2)[0].flatten("C", 1), "are not bound to two nested serial loops"),
    (pointwise, lambda s: s.parallel("i_9").flatten("C", 1), "are not bound to two nested serial loops"),
    (position_sum, lambda s: s.flatten("A", 0), "block 'A' computes with 'v' or the iter after it"),
    (transposed, lambda s: s.flatten("A", 0), "block 'A' does not go through all of x"),
    (read_twice, lambda s: s.flatten("A", 0), "block 'B' does not go through A by two neighbouring iters"),
    (matmul, lambda s: s.decompose_reduction("D", "i_2"), "block 'D' has no init"),
    (matmul, lambda s: s.reorder("k", "i", "i_1").decompose_reduction("C", "i"), "'k' outside 'i' reduces too"),
    (matmul, lambda s: overlapping(s).decompose_reduction("C", "i_4"), "iterations of 'i_5_o' may compute the same elements again"),
    (matmul, lambda s: s.rfactor("i"), "does not reduce over 'i'"),
    (matmul, lambda s: s.split("k", 2)[0].fuse("i_1", "k_o")[0].rfactor("k_i"), "'i_1_k_o' is both a reduction loop and a spatial loop"),
    (softmax, lambda s: s.fuse("i", "k")[0].split("i_k", 2)[0].reorder("i_k_i", "i_k_o"), "'i_k_o' is both a reduction loop and a spatial"),
    (matmul, lambda s: s.rfactor("i_2"), "block 'D' is not an accumulation"),
    (matmul, lambda s: s.factor_out("D"), "block 'D' is not a sum of floats with its init"),
    (matmul, lambda s: s.factor_out("C"), "the terms of block 'C' have no factor in common"),
    (byte_product, lambda s: s.factor_out("C"), "block 'C' is not a sum of floats with its init"),
    (softmax, lambda s: s.fuse("i", "k")[0].split("i_k", 2)[0].vectorize("i_k_i"), "block 'M' reduces over 'i_k_i'"),
    (matmul, lambda s: s.split("i_4", 4)[0].clamp_reads("E", 0), "block 'E' writes the parameter E"),
    (matmul, lambda s: s.split("k", 2)[0].clamp_reads("C", 2), "is a reduction iter"),
    (matmul, lambda s: s.prefetch("i", "C", 0, []), "C is scratch"),
    (matmul, lambda s: s.prefetch("i", "B", 0, [("k", 1, 0)]), "'k' is not around 'i'"),
    (matmul, lambda s: s.prefetch("i", "B", 0, [], only=("k", 2)), "'k' is not around 'i'"),
    (matmul, lambda s: s.prefetch("i", "B", 0, [], only=("i", 0)), "every 0 iterations of 'i' says nothing"),
    (matmul, lambda s: s.prefetch("i", "B", 0, []).pack("B", ((), (4,)), (1, 0, 2)), "B is prefetched"),
    (matmul, lambda s: s.split("i", 4)[0].pad("C", 0, 4), "is not bound to one loop of its extent"),
    (matmul, lambda s: s.pad("C", "w", 4), "has no iter 'w'"),
    (matmul, lambda s: s.decompose_reduction("C", "i")[0].pad("C", 0, 4), "block 'C' accumulates and its init is elsewhere"),
    (matmul, lambda s: s.dot("C", 2, 4), "block 'C' multiplies"),
    (lambda: short_product(dtype=uint8), lambda s: s.dot("C", 3, 4), "the predicate of block 'C' tests"),
    (byte_product, lambda s: s.dot("C", 2, 3), "no instruction adds 3 products"),
    (byte_product, lambda s: s.dot("C", 0, 4), "'v' of block 'C' is no reduction iter"),
    (byte_product, lambda s: s.split("k", 5)[0].dot("C", 2, 4), "is not bound to one loop of its extent"),
    (byte_product, lambda s: s.dot("C", 2, 4).dot("C", 2, 2), "block 'C' does not add products to an int32 or float32 sum"),
    (matmul, lambda s: s.decompose_reduction("C", "k")[0].compute_at("C", "i_2"), "block 'C' accumulates and its init is elsewhere"),
]


@pytest.mark.parametrize(("make", "apply", "why"), CASES, ids=[case[2][:40] for case in CASES])
def test_refusal(make: Callable[[], Kernel], apply: Callable[[Schedule], object], why: str) -> None:
    s = Schedule.of(make())
    with pytest.raises(ScheduleError) as caught:
        apply(s)
    assert why in (caught.value.why or "")


def test_the_whole_message() -> None:
    s = Schedule.of(stencil())
    with pytest.raises(ScheduleError) as caught:
        s.vectorize("i").split("i", (None, 4))
    assert str(caught.value) == "\n".join(
        [
            "cannot split('i', factors=(None, 4))",
            "  why:   'i' is vectorized",
            "  try:   change how a loop runs after its structure is final",
            "  loops:",
            "         vectorized i in 20:",
            "           P(v: i): P[v] = x[v] * float32(2.0)",
            "         i_1 in 18:",
            "           C(v_1: i_1): C[v_1] = P[v_1] + P[v_1 + 1] + P[v_1 + 2]",
            "  docs:  docs/errors.md#schedule-error",
        ]
    )


def test_loops_are_rendered_only_when_looked_at_and_travel_between_processes() -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule.of(matmul()).parallel("k")
    assert callable(caught.value._loop_nest)
    assert "k in 5:" in str(pickle.loads(pickle.dumps(caught.value)))


def test_unknown_primitive() -> None:
    with pytest.raises(ScheduleError, match="there is no primitive 'tensorise'"):
        Schedule.of(matmul()).apply("tensorise", (), {})


def test_a_refused_step_leaves_no_trace_in_names() -> None:
    s = Schedule.of(matmul())
    with pytest.raises(ScheduleError):
        s.decompose_reduction("C", "i_1")[0].decompose_reduction("C", "i")
    first, _ = s.split("i", 2)
    second, _ = s.split("i", 2)
    assert first.kernel is second.kernel
