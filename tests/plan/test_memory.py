"""Placing storages: what is alive at the same time never overlaps, whatever the sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.expr import const, maximum, size
from tilewright.ir.traverse import evaluate_int
from tilewright.plan.memory import Interval, most_alive, place, place_static, typical_value
from tilewright.runtime.constants import ALIGNMENT

N, M = size("n", 0), size("m", 1, 1000)
lives = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
static = st.lists(st.tuples(st.integers(0, 5000), lives), max_size=25)
formulas = st.sampled_from([const(0), const(100), N * 4, M * 8, N * M, N + 64, maximum(N * 4, M), N // 2 * 3])
symbolic = st.lists(st.tuples(formulas, lives), max_size=25)


def check(placed: list[tuple[int, int, int, int]], total: int) -> None:
    """placed: (offset, bytes, first, last)."""
    for i, (offset, size_, first, last) in enumerate(placed):
        assert offset % ALIGNMENT == 0
        assert offset + size_ <= total
        for other, other_size, other_first, other_last in placed[:i]:
            alive_together = first <= other_last and other_first <= last
            assert not alive_together or offset + size_ <= other or other + other_size <= offset


@given(static)
def test_constant_sizes(storages: list) -> None:
    offsets, total = place_static([(bytes_, first, last) for bytes_, (first, last) in storages])
    check([(offset, bytes_, *life) for offset, (bytes_, life) in zip(offsets, storages, strict=True)], total)


@given(symbolic, st.integers(0, 300), st.integers(1, 1000))
def test_symbolic_sizes(storages: list, n: int, m: int) -> None:
    offsets, total = place([Interval(bytes_, *life) for bytes_, life in storages])
    sizes = {N: n, M: m}
    values = [(evaluate_int(o, sizes), evaluate_int(b, sizes), *life) for o, (b, life) in zip(offsets, storages, strict=True)]
    check(values, evaluate_int(total, sizes))


def test_memory_is_reused() -> None:
    chain = [(1000, i, i + 1) for i in range(20)]
    _, total = place_static(chain)
    assert total == 2 * 1024
    _, formula = place([Interval(N * 4, first, last) for _, first, last in chain])
    assert evaluate_int(formula, {N: 16}) == 2 * 64


def test_small_buffers_go_into_gaps() -> None:
    """A large buffer, then one that fits where it was while another is alive behind it."""
    offsets, total = place_static([(4096, 0, 1), (1024, 1, 5), (4096, 2, 3), (64, 4, 5)])
    assert total == 4096 + 1024
    assert offsets[2] == offsets[0]


def test_typical_values_take_declared_bounds() -> None:
    assert typical_value(M) == 1000
    assert typical_value(N * 2) == 128
    assert typical_value(size("k", 500)) == 500


@given(static)
def test_no_placement_needs_less_than_what_is_alive(storages: list) -> None:
    intervals = [(bytes_, first, last) for bytes_, (first, last) in storages]
    assert most_alive(intervals) <= place_static(intervals)[1]


def test_what_ended_highest_is_placed_first_the_next_time() -> None:
    """By size alone the third lies where the first was, and leaves no room below the second."""
    intervals = [(256, 0, 2), (128, 1, 4), (256, 5, 6), (192, 3, 6)]
    assert place_static(intervals)[1] == most_alive(intervals) == 448
