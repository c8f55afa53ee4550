"""Kernels of several kinds and the check that a schedule keeps their results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.ir.dtypes import DType, float32, int8, int32, uint8
from tilewright.ir.expr import Expr, ExprLike, call, cast, const, less, maximum, select
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.interpreter import bind_sizes, interpret, shaped
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule import Schedule

Dim = ExprLike


def elementwise(rows: Dim = 6, columns: Dim = 10) -> Kernel:
    """B = (x + 1) * y, C = B * B + x, with y a row."""
    b = KernelBuilder("elementwise")
    x, y = b.input("x", float32, (rows, columns)), b.input("y", float32, (columns,))
    a = b.compute("A", (rows, columns), lambda i, j: x[i, j] + 1.0)
    p = b.compute("B", (rows, columns), lambda i, j: a[i, j] * y[j])
    c = b.compute("C", (rows, columns), lambda i, j: p[i, j] * p[i, j] + x[i, j])
    return b.finish((c,))


def matmul(m: Dim = 6, k: Dim = 5, n: Dim = 10) -> Kernel:
    """E = max(a @ b + bias, 0) in three blocks C, D, E."""
    b = KernelBuilder("matmul")
    x, w, bias = b.input("A", float32, (m, k)), b.input("B", float32, (k, n)), b.input("bias", float32, (n,))
    c = b.reduce("C", (m, n), (k,), lambda i, j, r: x[i, r] * w[r, j], "sum")
    d = b.compute("D", (m, n), lambda i, j: c[i, j] + bias[j])
    e = b.compute("E", (m, n), lambda i, j: maximum(d[i, j], const(0.0, float32)))
    return b.finish((e,))


def scaled_product(m: Dim = 3, k: Dim = 10, n: Dim = 5) -> Kernel:
    """D = a @ (b * s) + 1 with a scale for each four rows and each column of b."""
    b = KernelBuilder("scaled_product")
    x, w, s = b.input("A", float32, (m, k)), b.input("B", float32, (k, n)), b.input("S", float32, ((k + 3) // 4, n))
    c = b.reduce("C", (m, n), (k,), lambda i, j, r: x[i, r] * (w[r, j] * s[r // 4, j]), "sum")
    return b.finish((b.compute("D", (m, n), lambda i, j: c[i, j] + 1.0),))


def byte_product(m: Dim = 3, k: Dim = 10, n: Dim = 5) -> Kernel:
    """C = a @ b of bytes, in int32."""
    b = KernelBuilder("byte_product")
    x, w = b.input("A", uint8, (m, k)), b.input("B", int8, (k, n))
    return b.finish((b.reduce("C", (m, n), (k,), lambda i, j, r: cast(int32, x[i, r]) * cast(int32, w[r, j]), "sum"),))


def short_product(m: Dim = 3, blocks: int = 2, lanes: int = 4, inside: int = 6, dtype: DType = float32) -> Kernel:
    """D = a @ b, reduced over blocks of lanes, of which only the first `inside` count, times 2. Bytes are summed in int32."""
    b = KernelBuilder("short_product")
    sums, narrow = (float32, float32) if dtype is float32 else (int32, int8)
    x, w = b.input("A", dtype, (m, blocks, lanes)), b.input("B", narrow, (blocks, lanes, 5))

    def term(i: Expr, j: Expr, r: Expr, q: Expr) -> Expr:
        return cast(sums, x[i, r, q]) * cast(sums, w[r, q, j])

    c = b.reduce("C", (m, 5), (blocks, lanes), term, "sum", lambda r, q: less(r * lanes + q, inside))
    return b.finish((b.compute("D", (m, 5), lambda i, j: c[i, j] * const(2, sums)),))


def softmax(rows: Dim = 4, columns: Dim = 11) -> Kernel:
    """Row-wise softmax in four blocks M, e, S, O."""
    b = KernelBuilder("softmax")
    x = b.input("x", float32, (rows, columns))
    m = b.reduce("M", (rows,), (columns,), lambda i, r: x[i, r], "max")
    e = b.compute("e", (rows, columns), lambda i, j: call("exp", x[i, j] - m[i]))
    s = b.reduce("S", (rows,), (columns,), lambda i, r: e[i, r], "sum")
    o = b.compute("O", (rows, columns), lambda i, j: e[i, j] / s[i])
    return b.finish((o,))


def convolution(batch: int = 1, channels: int = 2, side: int = 4, out: int = 5, window: int = 2, stride: int = 1, pad: int = 1) -> Kernel:
    """NCHW convolution: padding block P, reduction C, bias and relu D."""
    b = KernelBuilder("convolution")
    x, w = b.input("X", float32, (batch, channels, side, side)), b.input("W", float32, (out, channels, window, window))
    bias = b.input("bias", float32, (out,))
    full, end = side + 2 * pad, side + pad

    def padded(a, c, y, z):
        inside = (y >= pad) & (y < end) & (z >= pad) & (z < end)
        return select(inside, x[a, c, y - pad, z - pad], 0.0)

    p = b.compute("P", (batch, channels, full, full), padded)
    size = (full - window) // stride + 1
    c = b.reduce(
        "C",
        (batch, out, size, size),
        (channels, window, window),
        lambda a, o, y, z, ci, i, j: p[a, ci, y * stride + i, z * stride + j] * w[o, ci, i, j],
        "sum",
    )
    d = b.compute("D", (batch, out, size, size), lambda a, o, y, z: maximum(c[a, o, y, z] + bias[o], const(0.0, float32)))
    return b.finish((d,))


def stencil(n: Dim = 20) -> Kernel:
    """P = 2x; C = P[i] + P[i+1] + P[i+2], two elements shorter."""
    b = KernelBuilder("stencil")
    x = b.input("x", float32, (n,))
    p = b.compute("P", (n,), lambda i: x[i] * 2.0)
    c = b.compute("C", (n - 2,), lambda i: p[i] + p[i + 1] + p[i + 2])
    return b.finish((c,))


def pointwise(rows: Dim = 3, columns: Dim = 4) -> Kernel:
    """E = max(x @ w + bias, y): a product over the channels of each pixel, with a bias of each channel and an image beside it."""
    b = KernelBuilder("pointwise")
    x, w, bias = b.input("x", float32, (2, rows, columns, 3)), b.input("w", float32, (3, 5)), b.input("bias", float32, (5,))
    y = b.input("y", float32, (2, rows, columns, 5))
    c = b.reduce("C", (2, rows, columns, 5), (3, 1), lambda n, i, j, o, r, q: x[n, i + q, j, r] * w[r, o], "sum")
    d = b.compute("D", (2, rows, columns, 5), lambda n, i, j, o: c[n, i, j, o] + bias[o])
    e = b.compute("E", (2, rows, columns, 5), lambda n, i, j, o: maximum(d[n, i, j, o], y[n, i, j, o]))
    return b.finish((e,))


def random_inputs(kernel: Kernel, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Small numbers for each input; `sizes` by name."""
    from tilewright.ir.types import bind_shape

    rng = np.random.default_rng(seed)
    env = {size: sizes[size.name] for size in kernel.sizes}
    low = {b: 0 if b.dtype.kind == "uint" else -3 for b in kernel.inputs}
    return [rng.integers(low[b], 4, bind_shape(b.shape, env)).astype(b.dtype.numpy) for b in kernel.inputs]


def check_same(kernel: Kernel, s: Schedule, sizes: dict[str, int] | None = None) -> None:
    """The scheduled kernel gives what the kernel gives, without an access out of bounds, a race or a read of the unwritten."""
    inputs = random_inputs(kernel, sizes or {})
    bound = bind_sizes(kernel, inputs, {})
    layouts = {layout.buffer: layout for layout in s.layouts}
    packed = [layouts[b.name].pack(a) if b.name in layouts else a for b, a in zip(kernel.inputs, inputs, strict=True)]
    for expected, got in zip(interpret(kernel, inputs), interpret(s.kernel, shaped(s.kernel, packed, bound), bound), strict=True):
        np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


KINDS: dict[str, Callable[[], Kernel]] = {
    "elementwise": elementwise,
    "matmul": matmul,
    "softmax": softmax,
    "convolution": convolution,
    "stencil": stencil,
    "pointwise": pointwise,
}
