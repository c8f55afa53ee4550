"""Padded blocks whose loads stay in bounds by a condition on the padded iter."""

from __future__ import annotations

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.expr import all_of, const, less, less_equal, select
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.schedule.schedule import Schedule


def test_past_the_end_a_condition_and_the_load_that_it_guards_use_the_same_point() -> None:
    """Rows of three of a padded 2x3 image, by flat number: the first point past the end starts a row again, where no padding is."""
    k = KernelBuilder("rows")
    x = k.input("x", dtypes.float32, (4, 3))

    def value(t):  # type: ignore[no-untyped-def]
        row = t // 3 * 2 - 1
        inside = all_of(less_equal(const(0), row), less(row, const(4)))
        return select(inside, x[row, t % 3], const(0, dtypes.float32))

    padded = k.compute("padded", (9,), value)
    kernel = k.finish((k.compute("y", (9,), lambda t: padded[t] + 1.0),))
    s = Schedule.of(kernel).pad("padded", 0, 4)
    image = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(interpret(s.kernel, [image])[0], interpret(kernel, [image])[0])
