"""What sizes of unknown value count as."""

from __future__ import annotations

import pytest

from tilewright.ir.expr import Expr, const, size
from tilewright.ir.typical import IMAGE, IMAGES, TYPICAL, several_dims, typical_dim

N, H = size("N"), size("H", 1)


@pytest.mark.parametrize(
    ("dim", "value"),
    [
        (const(7), 7),
        (N, TYPICAL),
        (N * 2 + 1, 2 * TYPICAL + 1),
        (H, TYPICAL),
        ((H + 31) // 32, IMAGE // 32),
        ((H + 31) // 32 + 2, IMAGE // 32 + 2),
        (N * ((H + 31) // 32), TYPICAL * IMAGE // 32),
        ((size("h", 1, 100) + 1) // 2, 50),
        ((size("h", 640, 800) + 1) // 2, 320),
        ((size("h", 1, 4096) + 31) // 32, 7),
        (size("n", 0, 9), 9),
        (size("n", 100), 100),
    ],
)
def test_sizes_that_strides_divide_are_sides_of_images(dim: Expr, value: int) -> None:
    assert typical_dim(dim) == value


def test_several_sides_of_images() -> None:
    assert several_dims((H + 31) // 32) == tuple(n // 32 for n in IMAGES)
    assert several_dims((H - 256) // 32) == (1, 1, 1, 1, 1, 2, 4, 8), "at least one"
    for dim in (const(7), N, N * 2):
        assert several_dims(dim) == ()
