"""Elementwise kernels: walked flat, in parallel, also where dims are unknown, are formulas or are 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.compiled_graphs import check, f32, function, module
from tests.target.cpu.kernel_runner import build, run
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import Binary, Resize, Unary
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.types import as_shape, bind_shape
from tilewright.kernel.lower import lower
from tilewright.kernel.nodes import For, Kernel, walk_stmts
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.codegen import generate
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

W, H = size("w"), size("h")
UNKNOWN: dict[str, tuple[Expr | int, ...]] = {
    "inner": (1, 192, 16, (W + 4) // 5),
    "all": (W, H, 3, W + 1),
    "ones between": (1, 24, 1, W, 1, H),
    "constant": (1, 3, 1, 19, 1),
}


def scaled(g: GraphBuilder, x: Value, y: Value) -> Sequence[Value]:
    return (g.one(Unary("abs"), g.one(Binary("div"), x, y)),)


def scheduled(shape: Sequence[Expr | int], level: str) -> Kernel:
    fused = fuse(function("p", [f32(*shape), f32()], scaled))
    (group,) = {value.node for value in fused.results}
    return schedule_kernel(lower_group(group.op.body), frozenset(), named_machine(level)).kernel


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("shape", UNKNOWN.values(), ids=UNKNOWN)
def test_vectors_are_loaded_whole_and_loops_run_in_parallel(shape: Sequence[Expr | int], level: str) -> None:
    kernel = scheduled(shape, level)
    assert isinstance(kernel.body, For)
    assert kernel.body.kind == "parallel"
    assert any(isinstance(s, For) and s.kind == "vectorized" for s in walk_stmts(kernel.body))
    text = generate(lower(kernel), named_machine(level))
    assert "masked.gather" not in text
    assert "masked.scatter" not in text


@pytest.mark.parametrize("shape", UNKNOWN.values(), ids=UNKNOWN)
def test_results(shape: Sequence[Expr | int]) -> None:
    kernel = lower(scheduled(shape, "x86-64-v3"))
    code = build(kernel, named_machine("x86-64-v3"))
    for w, h in ((5, 4), (1, 1), (40, 3), (0, 2)):
        sizes = {W: w, H: h}
        x = np.random.default_rng(0).normal(size=bind_shape(as_shape(shape), sizes)).astype(np.float32)
        (got,) = run(kernel, [x, np.float32(0.3)], sizes, code=code)
        np.testing.assert_allclose(got, np.abs(x / np.float32(0.3)), rtol=1e-6)


def test_positions_of_a_resize_are_computed_once() -> None:
    """A table of them is a block of its own, not part of every element."""
    resize = Resize((const(1), const(8), const(60), const(60)), (None,) * 4, "linear", "align_corners")
    fused = fuse(function("p", [f32(1, 8, 25, 25)], lambda g, x: (g.one(resize, x),)))
    (group,) = {value.node for value in fused.results}
    kernel = schedule_kernel(lower_group(group.op.body), frozenset(), named_machine("x86-64-v3")).kernel
    assert len(kernel.scratch) == 2
    check(
        module([f32(1, 8, 25, 25)], lambda g, x: (g.one(resize, x),)),
        [np.random.default_rng(1).normal(size=(1, 8, 25, 25)).astype(np.float32)],
    )
