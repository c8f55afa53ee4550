"""The schedule of pairs and threes of convolutions: results stay at every point of its space, and what is between them is a strip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.compiled_graphs import f32, function
from tilewright.graph.node import GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import Binary, BlockedConvolution, Fused, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, size
from tilewright.ir.types import as_shape, bind_shape
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import For, Kernel, walk_stmts
from tilewright.kernel.schedule.space import Space
from tilewright.kernel.verify import verify
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group
from tilewright.transform.pair_convolutions import Chain, pair_convolutions

N, H, W = size("N"), size("H", 1), size("W", 1)
LANES = 4
KINDS = ("dense first", "depthwise first", "three")


class Always:
    def apart(self, chain: Chain) -> float:
        return 9.0

    def together(self, chain: Chain) -> float:
        return 4.0 - len(chain.stages)


def kernel_of(kind: str, height: Expr | int = 6, width: Expr | int = 7, taps: int = 3, stride: int = 1, blocks: int = 2) -> Kernel:
    """The convolutions with a bias, in one kernel; images are of a symbolic batch. `three` adds what it reads to what it writes, where
    sizes allow."""

    def one(g: GraphBuilder, x: Value, outputs: int, depthwise: bool) -> Value:
        channels = int(x.shape[1].value) * LANES
        step, own = (stride, taps) if depthwise else (1, 1)
        w = g.one(
            constant(np.random.default_rng(outputs).uniform(-1, 1, (outputs, 1 if depthwise else channels, own, own)).astype(np.float32))
        )
        pad = as_shape((own // 2,) * 2)
        y = g.one(BlockedConvolution((step, step), (1, 1), pad, pad, depthwise, LANES, dtypes.float32), x, w)
        bias = g.one(constant(np.random.default_rng(1).uniform(-1, 1, (outputs // LANES, 1, 1, LANES)).astype(np.float32)))
        return g.one(Binary("add"), y, bias)

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        if kind == "depthwise first":
            return (one(g, one(g, x, blocks * LANES, True), 3 * LANES, False),)
        wide = blocks if kind == "dense first" else 2 * blocks
        y = one(g, one(g, x, wide * LANES, False), wide * LANES, True)
        if kind == "dense first":
            return (y,)
        z = one(g, y, blocks * LANES, False)
        return (g.one(Binary("add"), z, x) if stride == 1 else z,)

    f = pair_convolutions(fuse(function("p", [f32(N, blocks, height, width, LANES)], body)), Always())
    (group,) = [node for node in walk_nodes(f.results) if isinstance(node.op, Fused)]
    return lower_group(group.op.body)


def weights(kernel: Kernel) -> frozenset[int]:
    """Those of the convolutions: every second input."""
    return frozenset(range(1, len(kernel.inputs), 2))


def machine() -> Any:
    return named_machine("x86-64-v2")  # vectors of four


def check(kernel: Kernel, given_: dict[str, Any] | None = None, images: Sequence[tuple[int, int]] = ((0, 0),), runs: bool = False) -> Space:
    """`images`: heights and widths where they are symbolic; `runs`: the lowered kernel as well."""
    space = Space(given_ or {})
    schedule = schedule_kernel(kernel, weights(kernel), machine(), space=space)
    assert any(decision.name.endswith(".strip") for decision in space.decisions)
    verify(schedule.kernel)
    rng = np.random.default_rng(5)
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    for height, width in images:
        sizes = {N: 2, H: height, W: width}
        inputs = [rng.uniform(-1, 1, bind_shape(b.shape, sizes)).astype(b.dtype.numpy) for b in kernel.inputs]
        packed = [layouts[b.name].pack(x) if b.name in layouts else x for b, x in zip(kernel.inputs, inputs, strict=True)]
        for made in (schedule.kernel, *([lower(schedule.kernel)] if runs else [])):
            for want, got in zip(interpret(kernel, inputs, sizes), interpret(made, packed, sizes), strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    return space


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_schedules_keep_results(kind: str, taps: int, stride: int) -> None:
    check(kernel_of(kind, taps=taps, stride=stride))


@hypothesis_settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    height=st.integers(3, 7),
    width=st.integers(3, 9),
    stride=st.sampled_from([1, 2]),
    pick=st.integers(0, 99),
)
def test_every_strip_and_tile_keeps_results(kind: str, height: int, width: int, stride: int, pick: int) -> None:
    kernel = kernel_of(kind, height, width, 3, stride)
    point = {}
    for decision in check(kernel).decisions:
        if decision.name.endswith((".strip", ".tile")):
            point[decision.name] = decision.options[pick % len(decision.options)]
    check(kernel, point)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("taps", "stride", "strip"), [(3, 1, 3), (3, 2, 2), (5, 1, 4), (5, 2, 1)])
def test_images_of_any_size(kind: str, taps: int, stride: int, strip: int) -> None:
    """Strips that are longer than the image, and tiles that are wider, are right as well."""
    kernel = kernel_of(kind, H, W, taps, stride)
    (name,) = (d.name for d in check(kernel, None, ((2, 9),), runs=True).decisions if d.name.endswith(".strip"))
    check(kernel, {name: strip}, ((1, 1), (7, 10)), runs=True)


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_strip_is_between_them(kind: str) -> None:
    kernel = kernel_of(kind, height=12, width=8)
    space = Space()
    schedule_kernel(kernel, weights(kernel), machine(), space=space)
    (strip,) = [decision for decision in space.decisions if decision.name.endswith(".strip")]
    schedule = schedule_kernel(kernel, weights(kernel), machine(), space=Space({strip.name: 3}))
    lowered = lower(schedule.kernel)
    rows = {int(dim.value) for buffer in lowered.scratch for dim in buffer.shape if dim.is_const}
    assert (3 if kind == "depthwise first" else 5) in rows
    assert 12 not in rows
    if kind == "three":  # between the second and the third, a row
        assert {1, 5} <= rows
    assert [stmt.kind for stmt in walk_stmts(lowered.body) if isinstance(stmt, For)].count("parallel") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_sums_stay_in_registers_where_the_number_of_rows_is_unknown(kind: str) -> None:
    """A strip of rows ends at the border of the image, which its loops ask beside one-iteration loops that are left of other axes."""
    kernel = kernel_of(kind, height=H, width=W)
    lowered = lower(schedule_kernel(kernel, weights(kernel), machine()).kernel)
    sums = [buffer for buffer in lowered.scratch if buffer.name.startswith("blocked_convolution")]
    assert len(sums) >= 2
    assert {buffer.scope for buffer in sums} == {"local"}
