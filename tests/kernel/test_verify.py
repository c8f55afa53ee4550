"""The verifier: what it accepts, and the message of each thing that it refuses."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.kernel import script_examples
from tests.kernel.random_kernels import kernels
from tilewright.ir import dtypes
from tilewright.ir.expr import cast, const, less, load, make, maximum, select, size, var
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, If, Kernel, Let, Stmt, Store, buffers_written, seq, with_fields
from tilewright.kernel.script_parser import parse_kernel
from tilewright.kernel.verify import verify
from tilewright.support.errors import VerifyError

F32 = dtypes.float32
N = size("N")
I, J, V = var("i"), var("j"), var("v")  # noqa: E741
X, Y = Buffer("x", F32, (N, const(64))), Buffer("y", F32, (N,))
ONE = const(1.0, F32)


def of(body: Stmt, scratch: tuple[Buffer, ...] = ()) -> Kernel:
    return Kernel("f", (X,), (Y,), body, (N,), scratch)


def test_good_kernels_pass() -> None:
    verify(script_examples.scaled)
    verify(script_examples.matmul)
    k = KernelBuilder("softmax")
    x = k.input("x", F32, (N, 32))
    top = k.reduce("top", (N,), (32,), lambda i, r: x[i, r], "max")
    total = k.reduce("total", (N,), (32,), lambda i, r: x[i, r] - top[i], "sum")
    y = k.compute("y", (N, 32), lambda i, j: (x[i, j] - top[i]) / total[i])
    verify(k.finish((y,)))


def test_golden_message() -> None:
    k = parse_kernel(
        "def shift(x: float32[N], y: Out[float32[N]]):\n"
        "    for i in parallel(N):\n"
        '        with block("y", v=spatial(N, i)):\n'
        "            y[v] = x[v + 1]\n"
    )
    with pytest.raises(VerifyError) as raised:
        verify(k)
    assert str(raised.value) == (
        "load of x is out of bounds in axis 0\n"
        "  where: block 'y' of kernel 'shift'\n"
        "           for i in parallel(N):\n"
        '               with block("y", v=spatial(N, i)):\n'
        "         >         y[v] = x[v + 1]\n"
        "  why:   the index v + 1 reaches N; the axis has size N\n"
        "  docs:  docs/errors.md#verify-error"
    )


def block(extent: Any = N, binding: Any = I, **fields: Any) -> Block:
    made = Block("y", (BlockIter(V, extent),), (binding,), Store(Y, (V,), ONE))
    result: Block = with_fields(made, **fields)
    return result


REDUCTION = BlockIter(V, N, "reduction")
M = size("M")
T = Buffer("t", F32, (N,))
LOCAL = Buffer("acc", F32, (), "local")
COMPLAINTS: list[tuple[str, Kernel]] = [
    ("the variable i is not defined here", of(Store(Y, (I,), ONE))),
    ("the variable N is not defined here", with_fields(of(For(I, N, Store(Y, (I,), ONE))), sizes=())),
    ("the variable i is already defined in this scope", of(For(I, N, For(I, N, Store(Y, (I,), ONE))))),
    ("a variable and a buffer in scope are named y", of(For(var("y"), N, Store(Y, (var("y"),), ONE)))),
    ("two buffers in scope are named y", of(For(I, N, Store(Y, (I,), ONE)), (Buffer("y", F32, ()),))),
    ("the buffer acc is not declared", of(For(I, N, Store(Y, (I,), load(LOCAL, ()))))),
    ("the parameter acc has scope local", Kernel("f", (LOCAL,), (Y,), For(I, N, Store(Y, (I,), ONE)), (N,))),
    ("the shape of z: float32\\[M\\] depends on M|the variable M is not defined", of(Store(Y, (I,), ONE), (Buffer("z", F32, (M,)),))),
    ("store of y with 0 indices", of(Store(Y, (), ONE))),
    ("index 0 of y is float32, not an integer", of(Store(Y, (ONE,), ONE))),
    ("the store to y gives float64, the buffer holds float32", of(For(I, N, Store(Y, (I,), const(1.0, dtypes.float64))))),
    ("the condition i is int64, not bool", of(For(I, N, If(I, Store(Y, (I,), ONE))))),
    ("the condition of a select i is int64, not bool", of(For(I, N, Store(Y, (I,), make(Op.SELECT, F32, (I, ONE, ONE)))))),
    ("the extent of i is int32, the variable is int64", of(For(I, cast(dtypes.int32, N), Store(Y, (I,), ONE)))),
    ("the value of v is float32, the variable is int64", of(For(I, N, Let(V, ONE, Store(Y, (I,), ONE))))),
    ("1 block iters have 0 bindings", of(For(I, N, block(bindings=())))),
    ("two blocks are named y", of(seq(For(I, N, block()), For(J, N, block(binding=J))))),
    ("the block iter v leaves its domain \\[0, N\\)", of(For(I, N, block(binding=I + 1)))),
    ("the reduction iter v is bound to the parallel loop over i", of(For(I, N, block(iters=(REDUCTION,)), "parallel"))),
    ("the reduction iter v is bound to the vectorized loop over i", of(For(I, const(4), block(iters=(REDUCTION,)), "vectorized"))),
    ("the input x is stored to", of(For(I, N, seq(Store(X, (I, const(0)), ONE), Store(Y, (I,), ONE))))),
    ("the output y is never stored to", of(seq())),
    ("the scratch t is loaded but never stored to", of(For(I, N, Store(Y, (I,), load(T, (I,)))), (T,))),
    ("store of y is out of bounds in axis 0", of(For(I, N, Store(Y, (I - 1,), ONE)))),
    ("load of x is out of bounds in axis 1", of(For(I, N, Store(Y, (I,), load(X, (I, const(64))))))),
    ("iterations of the parallel loop over j store to the same element of y", of(For(I, N, For(J, N, Store(Y, (I,), ONE), "parallel")))),
]  # fmt: skip


def test_lanes_may_accumulate_into_one_element() -> None:
    total = Buffer("y", F32, ())
    sum_of = Store(total, (), load(total, ()) + load(T4, (V,)))
    verify(_reduced(Block("y", (BlockIter(V, const(4), "reduction"),), (I,), sum_of, Store(total, (), ONE)), total))
    with pytest.raises(VerifyError, match="store to the same element"):
        verify(_reduced(Store(total, (), load(T4, (I,))), total))


T4 = Buffer("t4", F32, (const(4),))


def _reduced(body: Any, total: Buffer) -> Kernel:
    return Kernel("f", (T4,), (total,), For(I, const(4), body, "vectorized"), ())


@pytest.mark.parametrize(("what", "kernel"), COMPLAINTS, ids=[what for what, _ in COMPLAINTS])
def test_refuses(what: str, kernel: Kernel) -> None:
    with pytest.raises(VerifyError, match=what) as raised:
        verify(kernel)
    assert "kernel 'f'" in (raised.value.where or "")
    assert ">" in (raised.value.where or "")


def test_guarded_accesses_are_left_to_the_interpreter() -> None:
    padded = select(less(0, I), load(X, (I - 1, const(0))), ONE)
    verify(of(For(I, N, Store(Y, (I,), padded))))
    verify(of(For(I, N + 8, If(less(I, N), Store(Y, (I,), ONE)))))
    verify(of(For(I, N + 8, block(predicate=less(I, N)))))


def test_a_loop_that_never_runs_and_a_size_with_the_name_of_a_loop() -> None:
    verify(of(seq(For(I, const(0), Store(Y, (const(-1),), ONE)), For(J, N, Store(Y, (J,), ONE)))))
    triangle = For(J, maximum(const(1) - I * N, 0), Store(Y, (I * 8,), ONE))
    verify(of(seq(For(V, N, Store(Y, (V,), ONE)), For(I, const(2), triangle))))
    verify(of(For(var("N"), N, Store(Y, (var("N"),), ONE))))


def test_scratch_private_to_a_parallel_iteration_does_not_collide() -> None:
    acc = Buffer("acc", F32, (), "local")
    body = seq(Store(acc, (), ONE), Store(Y, (I,), load(acc, ())))
    verify(of(For(I, N, body, "parallel"), (acc,)))


@given(kernels())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_kernel_is_accepted_or_refused_with_a_verify_error(k: Kernel) -> None:
    with suppress(VerifyError):
        verify(k)
        assert set(k.outputs) <= set(buffers_written(k.body))


@pytest.mark.parametrize("kernel", [script_examples.scaled, script_examples.matmul, script_examples.leaky_relu(0.1)], ids=lambda k: k.name)
def test_what_verifies_also_runs(kernel: Kernel) -> None:
    verify(kernel)
    shapes = {"x": (3, 8), "w": (8, 3)} if kernel.name != "made" else {"x": (5,)}
    inputs = [np.ones(shapes[b.name], np.float32) for b in kernel.inputs]
    assert all(np.isfinite(y).all() for y in interpret(kernel, inputs))
