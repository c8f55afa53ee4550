"""Symbolic dims: declared ranges, constraints that the graph demands, the memory formula held at run time, sizes that depend on data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.models import parse
from tilewright.runtime import executable as running
from tilewright.runtime.executable import Executable
from tilewright.support.errors import MemoryLimitError, ShapeError

F32 = np.float32


def compiled(text: str, **settings: Any) -> Executable:
    exe = tw.compile(parse(text), cache=False, progress="none", **settings)
    assert isinstance(exe, Executable)
    return exe


def zeros(*shape: int) -> Any:
    return np.zeros(shape, F32)


def test_what_a_call_breaks_is_said_with_its_node_and_where_its_sizes_come_from() -> None:
    exe = compiled("g (float[a, b] x, float[c] w) => (float[a, b] y) { y = Add (x, w) }")
    with pytest.raises(ShapeError) as caught:
        exe(zeros(2, 3), zeros(4))
    assert "Add node 'y'" in caught.value.what
    assert caught.value.why is not None
    assert "b is 3 (dim 1 of input 'x'), c is 4 (dim 0 of input 'w')" in caught.value.why


def test_a_multiple_that_a_reshape_demands() -> None:
    exe = compiled("g (float[s] x) => (float[n, 8] y) { shape = Constant <value_ints = [-1, 8]> () y = Reshape (x, shape) }")
    assert exe(zeros(24)).shape == (3, 8)
    with pytest.raises(ShapeError, match="Reshape node 'y'") as caught:
        exe(zeros(20))
    assert "s is 20 (dim 0 of input 'x')" in str(caught.value)


MEMORY = """g (float[a, 64] x, float[64, b] v, float[b, 10] w) => (float[a, 10] y) {
    hidden = MatMul (x, v)
    top = ReduceMax <keepdims = 1> (hidden)
    less = Sub (hidden, top)
    y = MatMul (less, w)
}"""


def test_what_a_call_allocates_is_what_the_formula_says(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def guarded(size: int) -> Any:
        """An arena with a pattern behind its end, which must be there after the call."""
        taken.append(size)
        room = np.full(size + 64 + 4096, 0xA5, np.uint8)
        start = -room.ctypes.data % 64
        guards.append(room[start + size :])
        return room[start : start + size]

    guards: list[Any] = []
    exe = compiled(MEMORY)
    monkeypatch.setattr(running, "aligned_empty", guarded)
    for a, b in ((3, 5), (1, 1), (17, 33), (64, 100)):
        exe._idle.clear()
        x, v, w = (np.random.default_rng(0).standard_normal(s).astype(F32) for s in ((a, 64), (64, b), (b, 10)))
        hidden = x @ v
        np.testing.assert_allclose(exe(x, v, w), (hidden - hidden.max()) @ w, rtol=1e-3, atol=1e-3)
        assert taken[-1] == exe.memory(a=a, b=b)["arena"] >= 4 * a * b
    assert all((guard == 0xA5).all() for guard in guards)


def test_a_limit_holds_at_the_sizes_of_a_call() -> None:
    exe = compiled(MEMORY, max_memory=10_000)
    assert exe(zeros(8, 64), zeros(64, 100), zeros(100, 10)).shape == (8, 10)
    with pytest.raises(MemoryLimitError):
        exe(zeros(8, 64), zeros(64, 1000), zeros(1000, 10))


DATA_DEPENDENT = {
    "NonZero": "g (float[n] x) => (int64[1, m] y) { y = NonZero (x) }",
    "Unique": "g (float[n] x) => (float[m] y) { y = Unique (x) }",
    "Compress": "g (float[n] x) => (float[m] y) { z = Constant <value = float {0}> () c = Greater (x, z) y = Compress (x, c) }",
    "Range": "g (float[n] x) => (int64[m] y) { i = Cast <to = 7> (x) k = ReduceSum <keepdims = 0> (i) z = Constant <value_int = 0> () "
    "o = Constant <value_int = 1> () y = Range (z, k, o) }",
    "TopK": "g (float[n] x) => (float[m] y) { i = Cast <to = 7> (x) k = ReduceMax <keepdims = 1> (i) y, at = TopK (x, k) }",
    "Loop": "g (float[n] x) => (float[m] y) { i = Cast <to = 7> (x) k = ReduceMax <keepdims = 0> (i) t = Constant <value = bool {1}> () "
    "e = Constant <value_floats = [0.0]> () "
    "y = Loop (k, t, e) <body = b (int64 s, bool c, float[p] a) => (bool d, float[q] r) { d = Identity (c) "
    "r = Concat <axis = 0> (a, x) }> }",
}


def wanted(name: str, x: Any) -> Any:
    match name:
        case "NonZero":
            return np.stack(np.nonzero(x))
        case "Unique":
            return np.unique(x)
        case "Compress":
            return x[x > 0]
        case "Range":
            return np.arange(int(x.sum()))
        case "TopK":
            return np.sort(x)[::-1][: int(x.max())]
    return np.concatenate([zeros(1), *[x] * int(x.max())])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_results_whose_size_depends_on_data_are_exact_and_leave_nothing_behind(name: str) -> None:
    exe = compiled(DATA_DEPENDENT[name])
    rng = np.random.default_rng(1)

    def once(n: int) -> None:
        x = rng.integers(0, 4, n).astype(F32)
        x[0] = min(n, 3)
        np.testing.assert_array_equal(exe(x), wanted(name, x))

    for n in (1, 7, 50, 3):
        once(n)
    for _ in range(30):
        once(20_000)
    before = resident() if os.path.exists("/proc/self/statm") else 0
    for i in range(200):
        once(20_000 - i)
    after = resident() if os.path.exists("/proc/self/statm") else 0
    assert after - before < 8 << 20  # 200 leaks of the smallest of these results would be 16 MiB or more
