"""Kernels written by hand in the script language, as users write them."""

# ruff: noqa: F821
# mypy: disable-error-code="name-defined,attr-defined,call-arg,operator,misc,valid-type,type-arg,no-untyped-def,index,used-before-def"

from __future__ import annotations

import tilewright.ir.dtypes as dt
from tilewright.ir.expr import size
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.script_parser import kernel

TILE = 4
LENGTH = size("length", lo=1)


@kernel
def scaled(x: float32[M, 2 * TILE], y: Out[float32[M]]):
    """Twice the row sums."""
    M = size(lo=1)
    for i in parallel(M):
        total = local(float32[()])
        total[()] = 0.0
        for k in range(TILE * 2):
            total[()] += x[i, k] * 2.0
        y[i] = total[()]


@kernel(name="matrix product")
def matmul(x: float32[M, K], w: float32[K, 3], y: Out[float32[M, 3]]):
    with block("y", i=spatial(M), j=spatial(3), k=reduction(K)):
        with init():
            y[i, j] = 0.0
        y[i, j] += x[i, k] * w[k, j]


def leaky_relu(slope: float) -> Kernel:
    @kernel
    def made(x: dt.float32[LENGTH], y: Out[dt.float32[LENGTH]]):
        for i in vectorized(LENGTH):
            y[i] = x[i] if x[i] > 0.0 else x[i] * slope

    return made


def broken() -> Kernel:
    @kernel
    def made(y: Out[float32[4]]):
        y[0] = missing

    return made
