"""Between which numbers the elements of values lie: what is said holds for all bytes, both ends are reached; and what rests on it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.transform.rewrite_cases import function
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import walk_nodes
from tilewright.graph.ops import Cast
from tilewright.transform.intervals import Interval, interval_of
from tilewright.transform.simplify import simplify_graph

BYTES = {"uint8": np.arange(256, dtype=np.uint8), "int8": np.arange(-128, 128).astype(np.int8)}

BODIES = {
    "widened": "y = cast(x, dtype=int32)",
    "centred": "w = cast(x, dtype=int32)\nc = constant(-121, int32[()])\ny = binary(w, c, fn='add')",
    "scaled": "w = cast(x, dtype=float32)\nc = constant(-1.3, float32[()])\ny = binary(w, c, fn='mul')",
    "of both signs": "w = cast(x, dtype=float32)\nc = constant([-1.5, 2.5], float32[2, 1])\ny = binary(w, c, fn='mul')",
    "subtracted": "w = cast(x, dtype=float32)\nc = constant([-7.0, 9.0], float32[2, 1])\ny = binary(c, w, fn='sub')",
    "clamped": "w = cast(x, dtype=float32)\na = constant(-5.5, float32[()])\nb = constant(99.5, float32[()])\n"
    "v = binary(w, a, fn='max')\nu = binary(v, b, fn='min')\nr = unary(u, fn='round')\ny = cast(r, dtype=int32)",
    "cut off": "w = cast(x, dtype=float32)\na = constant(0.37, float32[()])\nv = binary(w, a, fn='mul')\ny = cast(v, dtype=int32)",
    "wrapped": "y = cast(x, dtype=int8)",
    "wrapped around": "c = constant(100, uint8[()])\nw = cast(x, dtype=uint8)\ny = binary(w, c, fn='add')",
    "wrapped products": "w = cast(x, dtype=int32)\nc = constant(2147483647, int32[()])\ny = binary(w, c, fn='mul')",
}


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("body", BODIES)
def test_elements_lie_between_the_ends(body: str, dtype: str) -> None:
    x = BYTES[dtype]
    program = function(BODIES[body].replace("'", '"'), f"x: {dtype}[256]")
    (got,) = interpret(program, [x])
    found = interval_of(program.results[0])
    assert found is not None
    assert found.low <= float(got.min()) <= float(got.max()) <= found.high
    if "wrapped" not in body:
        slack = 1.0 + 1e-3 * max(abs(found.low), abs(found.high))  # rounding of floats, and to whole numbers
        assert float(got.min()) - found.low <= slack
        assert found.high - float(got.max()) <= slack


@pytest.mark.parametrize(
    "body",
    [
        "y = unary(x, fn='neg')",
        "c = constant(0.0, float32[()])\ny = binary(x, c, fn='max')",  # NaN stays NaN
        "w = cast(n, dtype=float32)\nc = constant(inf, float32[()])\ny = binary(w, c, fn='mul')",
        "w = cast(n, dtype=float32)\nc = constant(1e36, float32[()])\ny = binary(w, c, fn='mul')",
        "w = cast(n, dtype=float32)\nc = constant(0.0, float32[()])\ny = binary(w, c, fn='div')",
        "y = cast(n, dtype=int64)",
    ],
)
def test_nothing_is_said_of_what_may_be_no_number(body: str) -> None:
    assert interval_of(function(body.replace("'", '"'), "x: float32[4], n: uint8[4]").results[0]) is None


def test_deep_values_are_not_followed_for_ever() -> None:
    steps = "\n".join(f'v{i + 1} = binary(v{i}, c, fn="add")' for i in range(40))
    program = function(f"c = constant(1, int32[()])\nv0 = cast(x, dtype=int32)\n{steps}\ny = cast(v40, dtype=int32)", "x: uint8[4]")
    assert interval_of(program.results[0]) == Interval(-(2.0**31), 2.0**31 - 1)


def test_operands_that_are_shared_are_followed_once() -> None:
    """And a number that underflows lies in its interval."""
    doubled = "\n".join(f'v{i + 1} = binary(v{i}, v{i}, fn="add")' for i in range(14))
    program = function(f"v0 = cast(x, dtype=int32)\n{doubled}\ny = cast(v14, dtype=int32)", "x: uint8[4]")
    assert interval_of(program.results[0]) == Interval(0.0, 255.0 * 2**14)
    small = "w = cast(x, dtype=float32)\na = constant(1e-30, float32[()])\nc = constant(1e30, float32[()])\nm = constant(1.0, float32[()])"
    body = f'{small}\nv = binary(w, m, fn="max")\nu = binary(v, a, fn="mul")\nt = binary(u, a, fn="mul")\n'
    found = interval_of(function(body + 's = binary(t, c, fn="mul")\ny = binary(s, c, fn="mul")', "x: uint8[4]").results[0])
    assert found is None or found.low <= 0.0


QUANTIZED = """
a = constant({low}, float32[()])
b = constant({high}, float32[()])
s = constant(0.4, float32[()])
w = cast(x, dtype=float32)
m = binary(w, s, fn="mul")
v = binary(m, a, fn="max")
u = binary(v, b, fn="min")
r = unary(u, fn="round")
i = cast(r, dtype=int32)
z = constant(121, int32[()])
p = binary(i, z, fn="add")
q = cast(p, dtype=uint8)
wide = cast(q, dtype=int32)
n = constant(-121, int32[()])
y = binary(wide, n, fn="add")
"""


@pytest.mark.parametrize(
    ("low", "high", "fits"), [(-121.0, 134.0, True), (-122.0, 134.0, False), (-121.0, 135.0, False), (-5.0, 5.0, True)]
)
def test_a_quantization_that_is_read_at_once_is_no_byte_in_between(low: float, high: float, fits: bool) -> None:
    x = np.arange(-1000, 1000, 7).astype(np.int32)
    program = function(QUANTIZED.format(low=low, high=high), f"x: int32[{x.size}]")
    simple = simplify_graph(program)
    np.testing.assert_array_equal(interpret(simple, [x])[0], interpret(program, [x])[0])
    bytes_ = [node for node in walk_nodes(simple.results) if isinstance(node.op, Cast) and node.types[0].dtype.bits == 8]
    assert bool(bytes_) is not fits


def test_a_byte_that_somebody_else_reads_stays() -> None:
    """Its numbers would be stored twice, or four times as wide."""
    body = QUANTIZED.format(low=-121.0, high=134.0)
    simple = simplify_graph(function(f'{body}\ny2 = unary(q, fn="bitwise_not")', "x: int32[8]", results="y, y2"))
    assert simple.results[0].node.inputs[0].node.inputs[0].type.dtype.bits == 8
