"""A random legal schedule never changes a result: random primitives on random kernels; those that do not apply must refuse."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernel.schedule.kernels import KINDS, check_same, elementwise, matmul, pointwise, scaled_product, softmax, stencil
from tilewright.fuzzing import primitives
from tilewright.ir.expr import size
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule import Schedule, Trace, replay

M, N, EMPTY = size("m", 1), size("n", 1), size("e", 0)
SYMBOLIC = {
    "elementwise": (lambda: elementwise(M, N), {"m": 3, "n": 7}),
    "matmul": (lambda: matmul(M, 4, N), {"m": 5, "n": 6}),
    "softmax": (lambda: softmax(M, N), {"m": 3, "n": 5}),
    "stencil": (lambda: stencil(N + 2), {"n": 9}),
    "pointwise": (lambda: pointwise((M + 1) // 2, N), {"m": 5, "n": 2}),
    "scaled_product": (lambda: scaled_product(M, 4, N), {"m": 2, "n": 3}),
    "elementwise, empty": (lambda: elementwise(M, EMPTY), {"m": 3, "e": 0}),
    "matmul, empty sums": (lambda: matmul(M, EMPTY, N), {"m": 3, "e": 0, "n": 5}),
    "scaled_product, empty sums": (lambda: scaled_product(M, EMPTY, N), {"m": 3, "e": 0, "n": 4}),
}


class Searched:
    """Choices that Hypothesis makes, and makes smaller."""

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw

    def pick(self, choices):  # type: ignore[no-untyped-def]
        return self.draw.draw(st.sampled_from(choices))

    def order(self, items):  # type: ignore[no-untyped-def]
        return self.draw.draw(st.permutations(items))


def step(s: Schedule, draw: st.DataObject) -> Schedule:
    """One random primitive; the schedule as it was when the primitive refuses."""
    return primitives.step(s, Searched(draw))[0]


def cost(s: Schedule, sizes: dict[str, int]) -> int:
    """How many points the blocks run, recomputation included."""
    return primitives.cost(s, {v: sizes[v.name] for v in s.kernel.sizes})


def scheduled(kernel: Kernel, sizes: dict[str, int], draw: st.DataObject) -> Schedule:
    """A random schedule, without steps after which the interpreter would take long."""
    s = Schedule.of(kernel)
    for _ in range(draw.draw(st.integers(1, 14))):
        following = step(s, draw)
        s = following if cost(following, sizes) < 4000 else s
    return s


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_random_schedules_keep_results(kind: str, draw: st.DataObject) -> None:
    kernel = KINDS[kind]()
    s = scheduled(kernel, {}, draw)
    check_same(kernel, s)
    assert replay(Trace.from_json(s.trace.to_json()), kernel).kernel is s.kernel


@pytest.mark.parametrize("kind", SYMBOLIC)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_random_schedules_of_symbolic_kernels_keep_results(kind: str, draw: st.DataObject) -> None:
    make, sizes = SYMBOLIC[kind]
    kernel = make()
    check_same(kernel, scheduled(kernel, sizes, draw), sizes)
