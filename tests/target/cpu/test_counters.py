"""Quotients and remainders of a parallel loop's variable, counted instead of divided."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.target.cpu.kernel_runner import build, host, run
from tilewright.ir.dtypes import float32, int64
from tilewright.ir.expr import Expr, const, load, size, var
from tilewright.kernel.nodes import Buffer, For, If, Kernel, Let, Stmt, Store
from tilewright.target.cpu.codegen import generate

P, Q, T = var("p"), var("q"), var("t")
M, N, ANY = size("m", 1), size("n", 1), size("any", 0)


def counted(*values: Expr, sizes: tuple[Expr, ...] = (M, N), extent: Expr = 12 * M * N, kind: str = "parallel") -> Kernel:
    """Stores the sum of values, the i-th times 1000**i, for each iteration."""
    y = Buffer("y", int64, (extent,))
    total: Expr = const(0)
    for power, value in enumerate(values):
        total = total + value * 1000**power
    return Kernel("k", (), (y,), For(P, extent, Store(y, (P,), total), kind), sizes)


def divisions_in_loops(kernel: Kernel) -> int:
    """Divisions by other than constants in the loops of the kernel's code: after the label of a loop, before that of its exit."""
    text = generate(kernel, host())
    loops = re.findall(r"^loop\.\d+:\n(.*?)^exit\.\d+:", text, flags=re.M | re.S)
    assert loops
    return sum(len(re.findall(r"[us](?:div|rem) i64 [^,]+, %", loop)) for loop in loops)


H = (M + 1) // 2
CASES = {
    "two loops": (P // N, P % N),
    "the quotient alone": (P // N,),
    "the remainder alone": (P % N,),
    "three loops": (P // (M * N), P // N % M, P % N),
    "a constant outside": (P // (N * 12), P // N % 12, P % N),
    "a constant between": (P // (12 * N), P // 12 % N, P % 12),
    "a size that is divided": (P // (H * H), P // H % H, P % H),
    "a quotient divided twice": (P // N // M, P // N % M),
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_nothing_is_divided_in_the_loop(values: tuple[Expr, ...]) -> None:
    assert divisions_in_loops(counted(*values)) == 0


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_counters_are_quotients_and_remainders(values: tuple[Expr, ...], pool: bool) -> None:
    kernel = counted(*values)
    code = build(kernel)
    for m, n in ((1, 1), (1, 5), (4, 1), (3, 7), (8, 4)):
        (y,) = run(kernel, [], {M: m, N: n}, pool=pool, code=code)
        (want,) = run(counted(*values, kind="serial"), [], {M: m, N: n})
        np.testing.assert_array_equal(y, want, err_msg=f"m={m}, n={n}")
        h = (m + 1) // 2
        if values is CASES["a size that is divided"]:
            p = np.arange(12 * m * n)
            np.testing.assert_array_equal(y, p // (h * h) + 1000 * (p // h % h) + 1000**2 * (p % h))


def test_a_divisor_of_zero_that_no_iteration_needs() -> None:
    y = Buffer("y", int64, (N,))
    body = If(const(0) < ANY, Store(y, (P,), P // ANY), Store(y, (P,), const(-1)))
    kernel = Kernel("k", (), (y,), For(P, N, body, "parallel"), (N, ANY))
    code = build(kernel)
    for any_, want in ((0, [-1] * 5), (2, [0, 0, 1, 1, 2])):
        (found,) = run(kernel, [], {N: 5, ANY: any_}, code=code)
        np.testing.assert_array_equal(found, want)


Y = Buffer("y", int64, (16 * N,))
INSIDE = {
    "a loop inside": (For(Q, N, Store(Y, (P,), P // (Q + 1))), np.arange(48) // 3),
    "what is bound inside": (Let(T, P % 5 + 1, Store(Y, (P,), P // T)), np.arange(48) // (np.arange(48) % 5 + 1)),
}


@pytest.mark.parametrize(("body", "want"), INSIDE.values(), ids=INSIDE)
def test_what_the_body_divides_by_numbers_of_its_own_is_divided_there(body: Stmt, want: np.ndarray) -> None:
    (found,) = run(Kernel("k", (), (Y,), For(P, 16 * N, body, "parallel"), (N,)), [], {N: 3})
    np.testing.assert_array_equal(found, want)


def test_what_is_the_same_in_all_iterations_is_divided_in_front() -> None:
    """Also under a condition, where LLVM would leave it."""
    y = Buffer("y", int64, (16 * N,))
    body = If(const(3) < P, Store(y, (P,), P + 1000 // N + 77 % (M * N)), Store(y, (P,), const(-1)))
    kernel = Kernel("k", (), (y,), For(P, 16 * N, body, "parallel"), (M, N))
    assert divisions_in_loops(kernel) == 0
    (found,) = run(kernel, [], {M: 2, N: 3})
    np.testing.assert_array_equal(found, np.where(np.arange(48) > 3, np.arange(48) + 333 + 77 % 6, -1))


def test_a_divisor_of_zero_is_divided_by_where_it_is_needed() -> None:
    y = Buffer("y", int64, (N,))
    body = If(const(0) < ANY, Store(y, (P,), 12 // ANY), Store(y, (P,), const(-1)))
    kernel = Kernel("k", (), (y,), For(P, N, body, "parallel"), (N, ANY))
    code = build(kernel)
    for any_, want in ((0, -1), (5, 2)):
        (found,) = run(kernel, [], {N: 3, ANY: any_}, code=code)
        np.testing.assert_array_equal(found, [want] * 3)


def test_a_divisor_that_is_loaded_is_divided_by_in_the_loop() -> None:
    x = Buffer("x", int64, (N,))
    kernel = Kernel("k", (x,), (Y,), For(P, 16 * N, Store(Y, (P,), P // load(x, (const(1),))), "parallel"), (N,))
    (found,) = run(kernel, [np.array([1, 7, 1])], {N: 3})
    np.testing.assert_array_equal(found, np.arange(48) // 7)


def test_addresses_of_a_blocked_image_divide_nothing() -> None:
    """Also where the terms of an address are divided in another way than its indices."""
    side = (size("image", 1) + 1) // 2
    shape = (N, const(2), side, side, const(16))
    x, w, y = Buffer("x", float32, shape), Buffer("w", float32, (N, const(2), const(16))), Buffer("y", float32, shape)
    at = (P // (side * side * 2), P // (side * side) % 2, P // side % side, P % side, Q)
    store = Store(y, at, load(x, at) * load(w, (at[0], at[1], Q)))
    (image,) = [v for v in side.args[0].args if not v.is_const]
    kernel = Kernel("k", (x, w), (y,), For(P, N * 2 * side * side, For(Q, const(16), store, "vectorized"), "parallel"), (N, image))
    assert divisions_in_loops(kernel) == 0
    rng = np.random.default_rng(0)
    for n, size_ in ((1, 9), (3, 2)):
        h = (size_ + 1) // 2
        a, b = rng.standard_normal((n, 2, h, h, 16)).astype(np.float32), rng.standard_normal((n, 2, 16)).astype(np.float32)
        for pool in (False, True):
            (found,) = run(kernel, [a, b], {N: n, image: size_}, pool=pool)
            np.testing.assert_array_equal(found, a * b[:, :, None, None])
