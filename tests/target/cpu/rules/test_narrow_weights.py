"""Products by weights of few bits: where they are converted, in what order they are stored, and that the tiles hold on every machine."""

from __future__ import annotations

import pytest

from tests.compiled_graphs import function
from tilewright.graph.ops import Contract, Convolution, WidenWeights
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.types import tensor
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.lower_groups import lower_group

MACHINES = ("icelake-server", "x86-64-v3", "x86-64-v2")
ROWS = size("rows", 1)


def schedule(rows: Expr | int, bits: int, block: int, machine: str, transposed: bool = False) -> tuple[Schedule, Space]:
    """The schedule of rows x 512 by 512 x 256, and its decisions."""
    depth, columns, per = 512, 256, 1 if bits == 8 else 32 // bits
    codes, scales = (depth // per, columns), (depth // block, columns)
    if transposed:
        codes, scales = codes[::-1], scales[::-1]
    types = [
        tensor(dtypes.float32, (rows, depth)),
        tensor(dtypes.int8 if bits == 8 else dtypes.uint32, codes),
        tensor(dtypes.float32, scales),
        tensor(dtypes.uint8, scales),
    ]
    axis = 1 if transposed else 0

    def body(g, x, *weights):  # type: ignore[no-untyped-def]
        w = g.one(WidenWeights(bits, axis, depth, block), *weights)
        return (g.one(Contract("mk,nk->mn" if transposed else "mk,kn->mn", dtypes.float32), x, w),)

    space = Space()
    return schedule_kernel(lower_group(function("p", types, body)), frozenset({1, 2, 3}), named_machine(machine), space=space), space


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("bits", "block"), [(2, 16), (4, 32), (4, 512), (8, 64), (8, 512)])
@pytest.mark.parametrize(("rows", "where"), [(1, "tile"), (3, "tile"), (ROWS, "tile"), (128, "panel")])
def test_where_weights_are_converted(rows: Expr | int, where: str, bits: int, block: int, machine: str, transposed: bool) -> None:
    s, space = schedule(rows, bits, block, machine, transposed)
    assert space.point()["contract.weights"] == where
    if machine == "icelake-server" and rows == 1:
        assert space.point()["contract.scaled"] == "sums"
    assert {layout.buffer for layout in s.layouts} == {"x1", "x2", "x3"}
    assert ("widen_weights" in s.blocks()) == (where == "panel")
    lower(s.kernel)


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_padding_of_a_constant_image_is_no_conversion(machine: str, taps: int) -> None:
    """The image's index along the vectors is no iter but a sum, which conversions of panels have no place for."""
    types = [tensor(dtypes.float32, (2, 1, 64, 16)), tensor(dtypes.float32, (144, 1, taps, taps))]
    zero, one = const(0), const(1)
    op = Convolution((1, 1), (1, 1), (zero, zero), (one, zero), 1, dtypes.float32)
    space = Space()
    kernel = lower_group(function("p", types, lambda g, x, w: (g.one(op, x, w),)))
    s = schedule_kernel(kernel, frozenset({0, 1}), named_machine(machine), space=space)
    assert "convolution.weights" not in space.point()
    lower(s.kernel)
