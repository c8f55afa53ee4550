"""Versions of register tiles by the rows that are left: same results at every number of rows, and no work for rows that are not there."""

# ruff: noqa: F821

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.compiled_graphs import check, f32, function, module
from tilewright.graph.ops import Binary, Contract, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.ir.types import bind_shape
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import For, If, Kernel, Stmt, Store, own_exprs, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

N = size("N", 0, None)
LONG = size("L", 2)  # has no version for one row


@tw.kernel
def carried(x: float32[R, 4], y: Out[float32[R, 4]]):
    """Rows read others of the tile, so that none may be left out."""
    R = size(lo=0)
    tile = local(float32[4, 4])
    for t in parallel((R + 3) // 4):
        for i in unrolled(4):
            for j in vectorized(4):
                tile[i, j] = x[min(t * 4 + i, R - 1), j] * 2.0
        for i2 in unrolled(4):
            if t * 4 + i2 < R:
                for j2 in vectorized(4):
                    y[t * 4 + i2, j2] = tile[3 - i2, j2]


def product(rows: object, columns: int) -> Schedule:
    def body(g, x, w):
        return [g.one(Unary("tanh"), g.one(Contract("mk,kn->mn", dtypes.float32), x, w))]

    (group,) = {value.node for value in fuse(function("p", [f32(rows, 24), f32(24, columns)], body)).results}
    return schedule_kernel(lower_group(group.op.body), frozenset(), named_machine("x86-64-v3"))


def heights(kernel: Kernel) -> list[tuple[int, Stmt]]:
    """The versions of the body for fewer rows than a tile has: how many each is for, and its statements."""
    full = next(s for s in walk_stmts(kernel.body) if isinstance(s, If) and s.condition.op is not Op.EQ and s.otherwise is not None)
    found, rest = [], full.otherwise
    while isinstance(rest, If):
        found.append((len(found) + 1, rest.then))
        rest = rest.otherwise
    return [(0, full.then), *found]


def clamped(stmt: Stmt) -> bool:
    return any(e.op is Op.MIN for s in walk_stmts(stmt) for e in walk(*own_exprs(s)))


@pytest.mark.parametrize("columns", [16, 37])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 24, 29])
def test_results_are_the_same(n: int, columns: int) -> None:
    schedule = product(N, columns)
    rng = np.random.default_rng(n)
    inputs = [rng.uniform(-1, 1, bind_shape(b.shape, {N: n})).astype(np.float32) for b in schedule.kernel.inputs]
    (want,) = interpret(schedule.kernel, inputs, {N: n})
    (got,) = interpret(lower(schedule.kernel), inputs, {N: n})
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_each_version_has_the_rows_that_are_left() -> None:
    schedule = product(LONG, 16)
    lowered = lower(schedule.kernel)
    (_, full), *shorter = heights(lowered)
    assert not clamped(full)
    assert [height for height, _ in shorter] == list(range(1, lowered.scratch[0].shape[0].value))
    for height, body in shorter:
        assert not clamped(body)
        # What is left to decide is whether rows are asked for ahead.
        conditions = [s for s in walk_stmts(body) if isinstance(s, If)]
        assert not any(isinstance(inner, Store) for s in conditions for inner in walk_stmts(s))
        rows = {s.extent.value for s in walk_stmts(body) if isinstance(s, For) and s.kind == "unrolled"} - {2}
        assert rows <= {height}


def test_rows_that_others_read_are_computed() -> None:
    for n in (0, 1, 3, 4, 9):
        x = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
        sizes = dict.fromkeys(carried.sizes, n)
        (want,) = interpret(carried, [x], sizes)
        (got,) = interpret(lower(carried), [x], sizes)
        np.testing.assert_array_equal(got, want)


def test_compiled() -> None:
    rng = np.random.default_rng(2)
    weights, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((40, 70), (70,)))

    def body(g, x):
        made = g.one(Contract("ik,kj->ij", dtypes.float32), x, g.one(constant(weights)))
        return [g.one(Binary("add"), made, g.one(constant(np.broadcast_to(bias, (1, 70)).copy())))]

    inputs = [[rng.normal(size=(n, 40)).astype(np.float32)] for n in (*range(18), 50)]
    check(module([f32(N, 40)], body), *inputs, rtol=1e-4)
