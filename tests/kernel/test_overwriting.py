"""Which results may be stored over operands."""

from __future__ import annotations

import pytest

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, size
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.overwriting import overwriting
from tilewright.kernel.schedule import Schedule

N = size("N")


def kernel_of(value, shape=(N, 12), source=(N, 12)):
    k = KernelBuilder("k")
    x, y = k.input("x", dtypes.float32, source), k.input("y", dtypes.float32, (N, 12))
    return k.finish([k.compute("z", shape, lambda i, j: value(x, y, i, j))])


CASES = [
    ("both are read where the result is stored", lambda x, y, i, j: x[i, j] + y[i, j] * 2.0, ((0, 0), (1, 0))),
    ("one is read elsewhere too", lambda x, y, i, j: x[i, j] + x[i, 11 - j] + y[i, j], ((1, 0),)),
    ("nothing is read in place", lambda x, y, i, j: x[i, 11 - j] + y[i, 0], ()),
    ("read in place twice", lambda x, y, i, j: x[i, j] * x[i, j] + y[i, 0], ((0, 0),)),
]


@pytest.mark.parametrize(("about", "value", "want"), CASES, ids=[case[0] for case in CASES])
def test_elements_are_read_where_they_are_replaced(about: str, value, want) -> None:
    assert overwriting(lower(kernel_of(value))) == want


def test_an_operand_of_another_shape_is_none() -> None:
    assert overwriting(lower(kernel_of(lambda x, y, i, j: x[i, j], source=(N, 13)))) == ()


def test_taken_apart_loops_store_once() -> None:
    s = Schedule.of(kernel_of(lambda x, y, i, j: x[i, j] + y[i, 0]))
    s, fused = s.fuse(*s.loops_of("z"))
    assert overwriting(lower(s.kernel)) == ((0, 0),)
    s, _ = s.split(fused, (None, 4))
    assert overwriting(lower(s.kernel)) == ((0, 0),)


def test_a_sum_that_is_stored_step_by_step_replaces_nothing() -> None:
    k = KernelBuilder("k")
    x, w = k.input("x", dtypes.float32, (8, 8)), k.input("w", dtypes.float32, (8, 8))

    def term(i: Expr, j: Expr, r: Expr) -> Tensor:
        return x[i, j] * w[r, j]

    assert overwriting(lower(k.finish([k.reduce("z", (8, 8), (8,), term, "sum")]))) == ()


def test_sides_of_images_that_are_known_while_running_are_no_parts_of_a_loop() -> None:
    side = (size("image", 1) + 1) // 2
    k = KernelBuilder("k")
    x, y = k.input("x", dtypes.float32, (N, 2, side, side, 16)), k.input("y", dtypes.float32, (N, 2, 16))
    s = Schedule.of(k.finish([k.compute("z", (N, 2, side, side, 16), lambda n, c, h, w, v: x[n, c, h, w, v] * y[n, c, v])]))
    s, _ = s.fuse(*s.loops_of("z")[:-1])
    assert overwriting(lower(s.kernel)) == ((0, 0),)
