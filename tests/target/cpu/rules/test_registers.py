"""What a register tile costs: orders that were measured (docs/decisions/029-cost-of-a-tile.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.target.cpu.rules.test_borders import plain
from tests.target.cpu.rules.test_lanes import WINDOWS, kernel_of
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import CacheLevel
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.target.cpu.rules.registers import ProductShape, block_cost, register_block

MACHINE = replace(named_machine("x86-64-v4"), l1d=CacheLevel(48 << 10), l2=CacheLevel(2 << 20))  # as of the core that was measured


@pytest.mark.parametrize(
    ("shape", "faster", "slower"),
    [
        (ProductShape(128, 49, 64), (3, 7), (8, 1)),  # a short panel stays in the first cache, and large tiles begin less often
        (ProductShape(128, 49, 64), (8, 2), (8, 1)),
        (ProductShape(64, 196, 64), (5, 4), (8, 2)),
        (ProductShape(128, 53, 64), (8, 3), (4, 6)),
        (ProductShape(131, 192, 770), (12, 2), (3, 7)),  # a long one comes from the second cache for each tile of rows
        (ProductShape(128, 192, 768), (8, 3), (6, 4)),
        (ProductShape(131, 4, 131), (6, 4), (12, 2)),  # one that is a little too long mostly stays, and rows are read once
        (ProductShape(512, 4, 256), (6, 4), (12, 2)),
        (ProductShape(1024, 64, 1024), (6, 4), (8, 3)),
        (ProductShape(196, 16, 128, turned=True), (7, 2), (6, 4)),  # results across lanes: fewer stores with fewer vectors
        (ProductShape(196, 16, 128, turned=True), (7, 2), (11, 2)),  # and with rows that fit half of one
        (ProductShape(784, 8, 64, turned=True), (8, 2), (3, 7)),
        (ProductShape(3249, 4, 64, turned=True), (8, 2), (6, 4)),
        (ProductShape(28, 7, 50, turned=True), (7, 2), (14, 1)),  # each multiply-add with a broadcast of its own
        (ProductShape(4096, 20, 312, any_rows=True), (6, 4), (12, 2)),  # few rows would leave most of a tall tile empty
    ],
)
def test_tiles_are_ranked_as_measured(shape: ProductShape, faster: tuple[int, int], slower: tuple[int, int]) -> None:
    assert block_cost(MACHINE, shape, faster) < block_cost(MACHINE, shape, slower)


def test_short_reductions_take_larger_tiles() -> None:
    short, long = (register_block(MACHINE, ProductShape(128, 49, depth)) for depth in (16, 64))
    assert short[0] * short[1] >= long[0] * long[1] >= 16


@pytest.mark.parametrize(("outputs", "vectors"), [(100, 1), (128, 2)])
def test_an_odd_number_of_vectors_is_not_filled_up(outputs: int, vectors: int) -> None:
    """Seven vectors in tiles of two would compute eight: 0.50 ms instead of 0.44."""
    kernel = kernel_of(plain(WINDOWS["3x3 by 2"], 50, outputs, (56, 56)))
    space = Space()
    schedule_kernel(kernel, frozenset({1}), MACHINE, space=space)
    (decision,) = [d for d in space.decisions if d.name.endswith(".tile")]
    assert decision.options[decision.taken][1] == vectors
