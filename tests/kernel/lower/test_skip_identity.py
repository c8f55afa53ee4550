"""Accumulations leave out the steps that would combine with the identity, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir.dtypes import float32
from tilewright.ir.expr import Expr, all_of, const, load, maximum, select, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower.skip_identity import skip_identity
from tilewright.kernel.nodes import Buffer, For, If, Kernel, LoopKind, Store, own_exprs, seq, walk_stmts

N = 12
H, K = var("h"), var("k")
X, Y = Buffer("x", float32, (const(N),)), Buffer("y", float32, (const(N),))
AT = H + K - 1
INSIDE = all_of(const(0) <= AT, AT < N)


def window(
    kind: LoopKind, step: Callable[[Expr, Expr], Expr], identity: float, other: float | None = None, condition: Expr = INSIDE
) -> Kernel:
    """y[h] = step over k of x[h + k - 1], and `other` outside of x, from `identity`."""
    outside = const(identity if other is None else other, float32)
    update = Store(Y, (H,), step(load(Y, (H,)), select(condition, load(X, (AT,)), outside)))
    points = For(H, const(N), update, kind)
    start = For(H, const(N), Store(Y, (H,), const(identity, float32)))
    return Kernel("window", (X,), (Y,), seq(start, For(K, const(3), points)))


def add(a: Expr, b: Expr) -> Expr:
    return a + b


def counts(kernel: Kernel) -> tuple[int, int]:
    """Branches and selects."""
    stmts = list(walk_stmts(kernel.body))
    return sum(isinstance(s, If) for s in stmts), sum(e.op is Op.SELECT for s in stmts for e in walk(*own_exprs(s)))


def weighted(a: Expr, b: Expr) -> Expr:
    return a + b * const(0.5, float32)


@pytest.mark.parametrize(("step", "identity"), [(add, 0.0), (weighted, 0.0), (maximum, float32.lowest)])
def test_padding_becomes_a_branch(step: Callable[[Expr, Expr], Expr], identity: float) -> None:
    kernel = window("serial", step, identity)
    skipped = skip_identity(kernel)
    assert counts(skipped) == (1, 0)
    data = np.linspace(-3, 3, N, dtype=np.float32)
    np.testing.assert_array_equal(interpret(skipped, [data])[0], interpret(kernel, [data])[0])


@pytest.mark.parametrize(
    "kernel",
    [
        window("serial", add, 0.0, other=1.0),
        window("serial", maximum, float32.lowest, other=0.0),
        window("vectorized", add, 0.0),
        window("serial", add, 0.0, condition=load(X, (H,)) < 0.5),
    ],
    ids=["another value is added", "zero is no identity of max", "lanes cannot branch", "conditions on data"],
)
def test_what_counts_or_cannot_branch_stays(kernel: Kernel) -> None:
    assert skip_identity(kernel) is kernel


def test_of_a_condition_only_what_differs_between_lanes_stays() -> None:
    skipped = skip_identity(window("vectorized", add, 0.0, condition=all_of(const(1) <= K, INSIDE)))
    (branch,) = [s for s in walk_stmts(skipped.body) if isinstance(s, If)]
    assert branch.condition is (const(1) <= K)
    assert counts(skipped) == (1, 1)
