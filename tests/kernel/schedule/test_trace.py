"""Traces replay to the identical kernel from JSON and from Python, with other decisions too."""

from __future__ import annotations

import pytest

from tests.kernel.schedule.kernels import check_same, convolution, elementwise, matmul, softmax
from tilewright.ir.expr import size
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule import Schedule, Trace, replay
from tilewright.support.errors import ParseError, ScheduleError

M, N = size("m", 1), size("n", 1)


def product_schedule(kernel: Kernel, rows: int = 4, vectors: int = 3, lanes: int = 4) -> Schedule:
    """A register-tiled product on packed panels, its epilogue computed at the tile, ragged ends clamped: the CPU's schedule."""
    s = Schedule.of(kernel).pack("B", ((), (vectors * lanes,)), (1, 0, 2)).inline("D")
    i, j, k = s.loops_of("C")
    s, (io, ii) = s.split(i, rows)
    s, (jo, jm, ji) = s.split(j, (None, vectors, lanes))
    s = s.reorder(io, jo, k, ii, jm, ji)
    s, tile = s.fuse(io, jo)
    s, (ei, ej) = s.reverse_compute_at("E", tile)
    s = s.set_scope("C", "local").clamp_reads("C", 0).clamp_reads("C", 1)
    s, (_, zi, zm, zj) = s.decompose_reduction("C", k)
    s = s.parallel(tile)
    s, (em, el) = s.split(ej, lanes)
    for loop in (ji, zj, el):
        s = s.vectorize(loop)
    for loop in (ii, jm, zi, zm, ei, em):
        s = s.unroll(loop)
    return s


def convolution_schedule(kernel: Kernel) -> Schedule:
    """Output tile of channels by width, padded rows computed at the output row, parallel over batch, channel tiles and rows."""
    s = Schedule.of(kernel).pack("W", ((4,), (), (), ()), (0, 2, 3, 4, 1))
    a, o, y, x, c, i, j = s.loops_of("C")
    s, (oo, om, oi) = s.split(o, (None, 2, 2))
    s, (xo, xi) = s.split(x, 2)
    s = s.reorder(a, oo, y, xo, c, i, j, xi, om, oi)
    s, _ = s.reverse_compute_at("D", xo)
    s, _ = s.compute_at("P", y)
    s = s.set_scope("C", "local").clamp_reads("C", 1).clamp_reads("C", 3)
    s, _ = s.decompose_reduction("C", c)
    s, rows = s.fuse(a, oo, y)
    return s.parallel(rows).vectorize(oi).unroll(om).unroll(xi)


def softmax_schedule(kernel: Kernel) -> Schedule:
    """All blocks computed at the row, reductions in lanes."""
    s = Schedule.of(kernel)
    row, column = s.loops_of("O")
    for block in ("S", "e", "M"):
        s, _ = s.compute_at(block, row)
    for block in ("S", "M"):
        s, (_, lanes) = s.split(s.loops_of(block)[-1], 4)
        s, _ = s.rfactor(lanes)
        s = s.vectorize(lanes)
    for loop in (column, s.loops_of("e")[-1]):
        s, (_, lanes) = s.split(loop, 4)
        s = s.vectorize(lanes)
    return s.parallel(row)


def flat_schedule(kernel: Kernel) -> Schedule:
    """One loop over all elements in lanes with a ragged end."""
    s = Schedule.of(kernel).inline("A").inline("B")
    s, flat = s.fuse(*s.loops_of("C"))
    s, (outer, _, lanes) = s.split(flat, (None, 2, 4))
    return s.vectorize(lanes).parallel(outer)


SCHEDULES = {
    "product": (lambda: matmul(M, 5, N), product_schedule, {"m": 6, "n": 14}),
    "static product": (lambda: matmul(9, 3, 13), product_schedule, {}),
    "convolution": (convolution, convolution_schedule, {}),
    "strided convolution": (lambda: convolution(2, 2, 5, 5, 3, 2, 1), convolution_schedule, {}),
    "softmax": (lambda: softmax(M, N), softmax_schedule, {"m": 3, "n": 10}),
    "flat": (lambda: elementwise(M, N), flat_schedule, {"m": 3, "n": 7}),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_rules_keep_results_and_replay(name: str) -> None:
    make, apply, sizes = SCHEDULES[name]
    kernel = make()
    s = apply(kernel)
    check_same(kernel, s, sizes)
    trace = Trace.from_json(s.trace.to_json())
    assert trace == s.trace
    again = replay(trace, kernel)
    assert again.kernel is s.kernel
    assert again.layouts == s.layouts
    namespace: dict[str, object] = {}
    exec(s.trace.to_python("rebuilt"), namespace)  # noqa: S102 (the source that is tested)
    assert namespace["rebuilt"](Schedule.of(kernel)).kernel is s.kernel  # type: ignore[operator]


def test_python_source() -> None:
    s, (outer, _) = Schedule.of(matmul()).split("i", 2)
    s = s.parallel(outer)
    s, _ = s.compute_at("C", "i_2")
    assert s.trace.to_python() == (
        "def schedule(s):\n"
        "    s, (i_o, i_i) = s.split('i', factors=2)\n"
        "    s = s.parallel(i_o)\n"
        "    s, (C_i0, C_i1, C_k2) = s.compute_at('C', 'i_2')\n"
        "    return s\n"
    )


def test_other_decisions_give_the_schedule_that_takes_them() -> None:
    kernel = matmul(M, 5, N)
    s = product_schedule(kernel)
    chosen = [(position, key, value) for position, key, value in s.trace.decisions() if key == "factors"]
    assert [value for _, _, value in chosen] == [4, (None, 3, 4), 4]
    changed = {
        chosen[0][0]: {"factors": 2},
        chosen[1][0]: {"factors": (None, 2, 8)},
        chosen[2][0]: {"factors": 8},
        0: {"tiles": ((), (16,))},
    }
    other = replay(s.trace, kernel, changed)
    assert other.kernel is product_schedule(kernel, 2, 2, 8).kernel
    check_same(kernel, other, {"m": 5, "n": 20})


def test_a_trace_follows_names_on_another_kernel() -> None:
    s, _ = Schedule.of(matmul(6, 5, 10)).split("i", 2)
    s = s.parallel("i_o")
    other = replay(s.trace, matmul(M, 5, 10))
    assert str(other).startswith("parallel i_o in (m + 1) // 2:")


def test_broken_traces() -> None:
    with pytest.raises(ParseError, match="no schedule trace"):
        Trace.from_json('[["split"]]')
    s, _ = Schedule.of(matmul()).split("i", 2)
    with pytest.raises(ScheduleError, match="made 3 loops and blocks, not 2"):
        replay(s.trace, matmul(), {0: {"factors": (None, 2, 1)}})
