"""Lowering keeps results: random schedules of several kernels, lowered, against the kernel as it was written."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernel.schedule.kernels import KINDS, check_same
from tests.kernel.schedule.test_properties import SYMBOLIC, step
from tilewright.kernel.lower import lower
from tilewright.kernel.nodes import Block, Kernel, walk_stmts
from tilewright.kernel.schedule import Schedule


class Lowered:
    """A schedule as `check_same` takes it, with the lowered kernel in the place of the scheduled one."""

    def __init__(self, schedule: Schedule) -> None:
        self.kernel: Kernel = lower(schedule.kernel)
        self.layouts = schedule.layouts


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_static_kernels(kind: str, draw: st.DataObject) -> None:
    kernel = KINDS[kind]()
    s = Schedule.of(kernel)
    for _ in range(draw.draw(st.integers(0, 14))):
        s = step(s, draw)
    check_same(kernel, s)
    lowered = Lowered(s)
    assert not any(isinstance(stmt, Block) for stmt in walk_stmts(lowered.kernel.body))
    check_same(kernel, lowered)


@pytest.mark.parametrize("kind", SYMBOLIC)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_symbolic_kernels(kind: str, draw: st.DataObject) -> None:
    make, sizes = SYMBOLIC[kind]
    kernel = make()
    s = Schedule.of(kernel)
    for _ in range(draw.draw(st.integers(0, 14))):
        s = step(s, draw)
    check_same(kernel, Lowered(s), sizes)
