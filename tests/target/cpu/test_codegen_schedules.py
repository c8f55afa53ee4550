"""Random schedules of several kernels, lowered, compiled and run: results are those of the kernel as it was written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernel.schedule.kernels import KINDS, random_inputs
from tests.kernel.schedule.test_properties import SYMBOLIC, step
from tests.target.cpu.kernel_runner import run
from tilewright.kernel.interpreter import bind_sizes, interpret
from tilewright.kernel.lower import lower
from tilewright.kernel.nodes import Kernel, with_fields
from tilewright.kernel.schedule import Schedule
from tilewright.target.cpu.math.expand import expand_math_in

MANY = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


def check(kernel: Kernel, s: Schedule, sizes: dict[str, int], draw: st.DataObject) -> None:
    inputs = random_inputs(kernel, sizes)
    layouts = {layout.buffer: layout for layout in s.layouts}
    packed = [layouts[b.name].pack(a) if b.name in layouts else a for b, a in zip(kernel.inputs, inputs, strict=True)]
    lowered = lower(s.kernel)
    lowered = with_fields(lowered, body=expand_math_in(lowered.body))
    bound = bind_sizes(kernel, inputs, {})
    got = run(lowered, packed, bound, pool=draw.draw(st.booleans()))
    for expected, value in zip(interpret(kernel, inputs), got, strict=True):
        np.testing.assert_allclose(value.reshape(expected.shape), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@MANY
@given(draw=st.data())
def test_static_kernels(kind: str, draw: st.DataObject) -> None:
    kernel = KINDS[kind]()
    s = Schedule.of(kernel)
    for _ in range(draw.draw(st.integers(0, 14))):
        s = step(s, draw)
    check(kernel, s, {}, draw)


@pytest.mark.parametrize("kind", SYMBOLIC)
@MANY
@given(draw=st.data())
def test_symbolic_kernels(kind: str, draw: st.DataObject) -> None:
    make, sizes = SYMBOLIC[kind]
    kernel = make()
    s = Schedule.of(kernel)
    for _ in range(draw.draw(st.integers(0, 14))):
        s = step(s, draw)
    check(kernel, s, sizes, draw)


def test_lanes_do_not_ask_for_lines_of_their_own() -> None:
    kernel = KINDS["softmax"]()
    s = Schedule.of(kernel)
    loops = next(s.loops_of(name) for name in s.blocks() if len(s.loops_of(name)) > 1)
    s = s.prefetch(loops[1], kernel.inputs[0].name, 0, [(loops[0], 1, 0)]).vectorize(loops[0])
    (got,) = run(lowered_for_tests(s), random_inputs(kernel, {}), {})
    (want,) = interpret(kernel, random_inputs(kernel, {}))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def lowered_for_tests(s: Schedule) -> Kernel:
    lowered = lower(s.kernel)
    result: Kernel = with_fields(lowered, body=expand_math_in(lowered.body))
    return result


def test_scratch_that_is_empty_at_some_sizes_has_its_place_among_the_arguments() -> None:
    make, sizes = SYMBOLIC["scaled_product, empty sums"]
    kernel = make()
    s, _ = Schedule.of(kernel).rfactor("k", 1)
    (got,) = run(lowered_for_tests(s), random_inputs(kernel, sizes), {v: sizes[v.name] for v in kernel.sizes})
    np.testing.assert_array_equal(got, np.ones((3, 4), np.float32))
