"""Versions of kernels for a size of 1: same results, and no work for rows that are not there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled_graphs import check, f32, function, module
from tilewright.graph.ops import BlockedConvolution, Contract, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const, equal, size
from tilewright.ir.scalar_ops import Op
from tilewright.ir.types import TensorType, bind_shape
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.lower.specialise_sizes import tiled_sizes
from tilewright.kernel.nodes import For, If, Kernel, Prefetch, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

M, N = size("M"), size("N")
TILE = {"blocked_convolution.tile": (4, 4)}


def scheduled(rows: TensorType, spec: str) -> Schedule:
    def body(g, x, w):
        return [g.one(Unary("tanh"), g.one(Contract(spec, dtypes.float32), x, w))]

    (group,) = {value.node for value in fuse(function("p", [rows, f32(19, 37)], body)).results}
    return schedule_kernel(lower_group(group.op.body), frozenset(), named_machine("x86-64-v3"))


def versions(kernel: Kernel) -> list[If]:
    """The choices between a version for a size of 1 and the general one."""
    return [s for s in walk_stmts(kernel.body) if isinstance(s, If) and s.condition.op is Op.EQ and s.otherwise is not None]


@pytest.mark.parametrize("n", [0, 1, 2, 13])
@pytest.mark.parametrize("m", [1, 3])
def test_results_are_the_same(n: int, m: int) -> None:
    schedule = scheduled(f32(M, N, 19), "bmk,kn->bmn")
    rng = np.random.default_rng(0)
    sizes = {M: m, N: n}
    inputs = [rng.uniform(-1, 1, bind_shape(b.shape, sizes)).astype(np.float32) for b in schedule.kernel.inputs]
    (want,) = interpret(schedule.kernel, inputs, sizes)
    (got,) = interpret(lower(schedule.kernel), inputs, sizes)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_version_has_one_row() -> None:
    schedule = scheduled(f32(N, 19), "mk,kn->mn")
    assert tiled_sizes(schedule.kernel) == ((N,),)
    lowered = lower(schedule.kernel)
    (choice,) = versions(lowered)
    assert not any(N in stmt.extent.args or stmt.extent is N for stmt in walk_stmts(choice.then) if isinstance(stmt, For))
    variables = [[s.var for s in walk_stmts(side) if isinstance(s, For)] for side in (choice.then, choice.otherwise)]
    assert not set(variables[0]) & set(variables[1]), "what is known of a variable must hold in both"


@pytest.mark.parametrize("rows", [f32(12, 19), f32(size("L", 2), 19), f32(size("E", 0, None, 8), 19)])
def test_sizes_that_cannot_be_one_have_no_version(rows: TensorType) -> None:
    schedule = scheduled(rows, "mk,kn->mn")
    assert tiled_sizes(schedule.kernel) == ()
    assert versions(lower(schedule.kernel)) == []


def test_the_sides_of_strided_images_are_no_tiles() -> None:
    """They are divided like rows by the height of a tile, but one pixel is no case of its own."""
    side = (size("H", 1) + 3) // 4
    border = (const(1), const(1))
    op = BlockedConvolution((1, 1), (1, 1), border, border, False, 16)
    types = [f32(1, 2, side, side, 16), f32(64, 32, 3, 3)]
    (group,) = {value.node for value in fuse(function("p", types, lambda g, x, w: [g.one(op, x, w)])).results}
    schedule = schedule_kernel(lower_group(group.op.body), frozenset({1}), named_machine("x86-64-v4"), space=Space(TILE))
    assert any(isinstance(loop, For) and loop.kind == "unrolled" and loop.extent is const(4) for loop in walk_stmts(schedule.kernel.body))
    assert tiled_sizes(schedule.kernel) == ()


def test_compiled() -> None:
    weights = np.random.default_rng(2).normal(size=(40, 70)).astype(np.float32)
    m = module([f32(N, 40)], lambda g, x: [g.one(Unary("tanh"), g.one(Contract("ik,kj->ij", dtypes.float32), x, g.one(constant(weights))))])
    check(m, *[[np.random.default_rng(n).normal(size=(n, 40)).astype(np.float32)] for n in (0, 1, 2, 50)], rtol=1e-4)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 5), (3, 1), (4, 7), (0, 1)])
def test_a_product_of_sizes_has_a_version_where_all_of_them_are_one(m: int, n: int) -> None:
    schedule = scheduled(f32(M * N, 19), "mk,kn->mn")
    assert tiled_sizes(schedule.kernel) == ((M, N),)
    lowered = lower(schedule.kernel)
    choices = [s for s in walk_stmts(lowered.body) if isinstance(s, If) and s.condition.op is Op.AND and s.otherwise is not None]
    assert len(choices) == 1
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, bind_shape(b.shape, {M: m, N: n})).astype(np.float32) for b in schedule.kernel.inputs]
    (want,) = interpret(schedule.kernel, inputs, {M: m, N: n})
    (got,) = interpret(lowered, inputs, {M: m, N: n})
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(("rows", "asks"), [(1, False), (3, True)])
def test_weights_that_are_read_once_are_not_asked_for(rows: int, asks: bool) -> None:
    """Where nothing shares a panel, the hardware reads it ahead."""
    body = function("p", [f32(N, rows, 64), f32(64, 256)], lambda g, x, w: [g.one(Contract("mik,kn->min", dtypes.float32), x, w)])
    (group,) = {value.node for value in fuse(body).results}
    lowered = lower(schedule_kernel(lower_group(group.op.body), frozenset({1}), named_machine("x86-64-v4")).kernel)
    (choice,) = (choice for choice in versions(lowered) if choice.condition is equal(N, const(1)))
    assert any(isinstance(s, Prefetch) for s in walk_stmts(choice.then)) == asks
    assert any(isinstance(s, Prefetch) for s in walk_stmts(choice.otherwise))
