"""Kernel scripts: what they look like, that text and kernel say the same, what people may write, and what the parser complains about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.kernel import script_examples
from tests.kernel.random_kernels import kernels
from tilewright.ir import dtypes
from tilewright.ir.expr import cast, const, less, load, select, size, var
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, If, Kernel, Let, Seq, Store, seq, with_fields
from tilewright.kernel.script import excerpt, format_kernel
from tilewright.kernel.script_parser import parse_kernel
from tilewright.kernel.verify import verify
from tilewright.support.errors import ParseError

F32 = dtypes.float32


@given(kernels())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_parsing_gives_the_same_kernel_back(k: Kernel) -> None:
    assert parse_kernel(format_kernel(k)) is k


def test_golden_script() -> None:
    n = size("N", 1, 512, 8)
    x, y = Buffer("x", F32, (n, const(64))), Buffer("y", F32, (n,))
    t = Buffer("t", F32, (n,))
    acc = Buffer("acc", F32, (const(4),), "local")
    io, ii, k, v, r, j = var("io"), var("ii"), var("k"), var("v"), var("r"), var("j", dtypes.int32)
    block = Block(
        "t", (BlockIter(v, n), BlockIter(r, const(64), "reduction")), (io * 8 + ii, k), Store(t, (v,), load(t, (v,)) + load(x, (v, r))),
        Store(t, (v,), const(0.0, F32)), less(io * 8 + ii, n), (acc,),
    )  # fmt: skip
    first = For(io, n // 8, For(ii, const(8), For(k, const(64), block), "vectorized"), "parallel")
    scaled = Let(var("s", F32), load(t, (cast(dtypes.int64, j),)) * 2.0, Store(y, (cast(dtypes.int64, j),), var("s", F32)))
    second = For(j, n, If(less(j, const(3, dtypes.int32)), seq(scaled, Seq(())), Seq(())))
    made = Kernel("row sums", (x,), (y,), seq(first, second), (n,), (t,))
    assert format_kernel(made) == (
        '@kernel(name="row sums")\n'
        "def row_sums(x: float32[N, 64], y: Out[float32[N]]):\n"
        "    N = size(lo=1, hi=512, multiple=8)\n"
        "    t = scratch(float32[N])\n"
        "    for io in parallel(N // 8):\n"
        "        for ii in vectorized(8):\n"
        "            for k in range(64):\n"
        '                with block("t", v=spatial(N, io * 8 + ii), r=reduction(64, k)):\n'
        "                    where(io * 8 + ii < N)\n"
        "                    acc = local(float32[4])\n"
        "                    with init():\n"
        "                        t[v] = float32(0.0)\n"
        "                    t[v] = t[v] + x[v, r]\n"
        "    for j in range(N, dtype=int32):\n"
        "        if j < int32(3):\n"
        "            s = t[cast(int64, j)] * float32(2.0)\n"
        "            y[cast(int64, j)] = s\n"
        "        else:\n"
        "            pass\n"
    )
    assert parse_kernel(format_kernel(made)) is made
    assert repr(made) == format_kernel(made)


def test_a_builders_kernel_round_trips() -> None:
    n = size("n")
    k = KernelBuilder("softmax")
    x = k.input("x", F32, (n, 32))
    top = k.reduce("top", (n,), (32,), lambda i, r: x[i, r], "max")
    y = k.compute("y", (n, 32), lambda i, j: x[i, j] - top[i])
    made = k.finish((y,))
    assert parse_kernel(format_kernel(made)) is made


def test_excerpt_marks_the_statement() -> None:
    i = var("i")
    y = Buffer("y", F32, (const(8),))
    store = Store(y, (i,), const(1.0, F32))
    made = Kernel("f", (), (y,), For(i, const(8), store))
    assert excerpt(made, store, around=1) == "  for i in range(8):\n>     y[i] = float32(1.0)"


def test_hand_written_loops() -> None:
    assert format_kernel(script_examples.scaled) == (
        "@kernel\n"
        "def scaled(x: float32[M, 8], y: Out[float32[M]]):\n"
        "    M = size(lo=1)\n"
        "    total = local(float32[()])\n"
        "    for i in parallel(M):\n"
        "        total[()] = float32(0.0)\n"
        "        for k in range(8):\n"
        "            total[()] = total[()] + x[i, k] * float32(2.0)\n"
        "        y[i] = total[()]\n"
    )
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.testing.assert_array_equal(interpret(script_examples.scaled, [x])[0], 2 * x.sum(1))


def test_blocks_without_bindings_get_loops() -> None:
    matmul = script_examples.matmul
    assert matmul.name == "matrix product"
    assert "for i_0, j_0, k_0 in grid(M, 3, K):" in format_kernel(matmul)
    x, w = np.arange(8, dtype=np.float32).reshape(2, 4), np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(interpret(matmul, [x, w])[0], x @ w)


def test_names_of_the_scope_around() -> None:
    (y,) = interpret(script_examples.leaky_relu(-0.5), [np.array([-2.0, 3.0], np.float32)])
    np.testing.assert_array_equal(y, [1.0, 3.0])


def test_shared_parts_are_written_once() -> None:
    x, y, i = Buffer("x", F32, (const(8),)), Buffer("y", F32, (const(8),)), var("i")
    power = load(x, (i,))
    for bit in range(40):
        power = select(less(i, const(bit)), power * power, power)
    made = Kernel("f", (x,), (y,), For(i, const(8), If(less(power, 3.0), Store(y, (i,), power))))
    text = format_kernel(made)
    assert "t_1 = inline(select(i < 1, t * t, t))" in text
    assert len(text) < 8000
    assert parse_kernel(text) is made
    again = seq(For(i, const(8), seq(Store(y, (i,), power), Store(y, (i,), power * power))), For(i, const(8), Store(y, (i,), power)))
    assert parse_kernel(format_kernel(with_fields(made, body=again))).body is again
    looped = Kernel("f", (x,), (y,), For(i, const(8), Store(y, (i,), power)))
    verify(looped)
    values = np.array([1.0, 1.5, -1.0, 0.5, 1.0, 1.0, 1.0, -1.0], np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(interpret(looped, [values])[0], [v ** np.float32(2.0**39) if abs(v) != 1 else 1.0 for v in values])


HEAD = "def f(x: float32[N, 64], y: Out[float32[N]]):\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "    for i in rang(N):\n        y[i] = 0.0\n",
            (
                "`rang(N)` is not a loop\n"
                "  where: line 2, column 14\n"
                "         for i in rang(N):\n"
                "                  ^\n"
                "  try:   one of range, parallel, vectorized, unrolled, matrix, grid over an extent\n"
                "  docs:  docs/errors.md#parse-error"
            ),
        ),
        (
            "    for i in range(N):\n        y[i] = x[i, 0] + foo\n",
            (
                "`foo` is not defined here\n"
                "  where: line 3, column 26\n"
                "         y[i] = x[i, 0] + foo\n"
                "                          ^\n"
                "  try:   known names: N, i, x, y\n"
                "  docs:  docs/errors.md#parse-error"
            ),
        ),
        (
            "    for i in range(N):\n        t = x[i, 0]\n        t = t + 1.0\n",
            (
                "`t` is already defined here\n"
                "  where: line 4, column 9\n"
                "         t = t + 1.0\n"
                "         ^\n"
                "  why:   names are bound once\n"
                "  try:   keep what changes in a buffer: t = local(float32[()]), then t[()] = ...\n"
                "  docs:  docs/errors.md#parse-error"
            ),
        ),
    ],
)
def test_errors_show_the_line(body: str, message: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse_kernel(HEAD + body)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def f(x: float32[4]:\n    pass", "not valid Python syntax"),
        ("x = 1", "a kernel script is one function"),
        ("def f(x):\n    pass", "parameter x has no type"),
        (HEAD + "    y[0] = x[0]\n", "x has 2 dimensions, indexed with 1"),
        (HEAD + "    y[0] = float64(1.0)\n", "is float64, where float32 is needed"),
        (HEAD + "    for i in range(4):\n        y += 1.0\n", r"`y` cannot change"),
        (HEAD + "    return y\n", "`return y` has no meaning in a kernel"),
        (HEAD + "    N[0] = 1.0\n", "`N` is not a buffer"),
        (HEAD + "    for i in range(0, N):\n        pass\n", "1 loop variables have 2 extents"),
        (HEAD + "    for i in range(1.5):\n        pass\n", "is float32, where an integer is needed"),
        (HEAD + "    for exp in range(N):\n        pass\n", "`exp` is a word of the language"),
        (HEAD + '    with block("b", i=spatial(N, 0), j=spatial(N)):\n        pass\n', "1 of 2 block iters have a binding"),
        (HEAD + '    with block("b", i=parallel(N)):\n        pass\n', "`parallel(N)` is not a block iter"),
        (HEAD + "    t = local(float32[4], scope=1)\n", "`scope` is not an option here"),
        (HEAD + "    if N:\n        pass\n", "is int64, where bool is needed"),
    ],
)
def test_errors_name_what_is_wrong(text: str, what: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse_kernel(text)
    assert what in raised.value.what
    assert (raised.value.where or "").startswith("line ")


def test_errors_of_decorated_functions_name_the_file() -> None:
    with pytest.raises(ParseError) as raised:
        script_examples.broken()
    assert "script_examples.py, line" in (raised.value.where or "")
    assert "y[0] = missing" in (raised.value.where or "")
