"""Transposes and reshapes move towards results, cancel, and end in contractions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.transform.rewrite_cases import before_and_after
from tests.transform.test_simplify import one
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, walk_nodes
from tilewright.graph.text_parser import parse_function
from tilewright.transform.push_movement import push_movement

TO_FIRST, TO_LAST = "perm=(0, 3, 1, 2)", "perm=(0, 2, 3, 1)"
CONVOLUTION = "strides=(1, 1), dilations=(1, 1), low=(0, 0), high=(0, 0), groups=1, dtype=float32"
CASES = {
    "elementwise between two transposes": one(
        f"""a = transpose(x, {TO_LAST})
        c = constant([1.0, 2.0, 3.0, 4.0], float32[4])
        b = binary(a, c, fn="add")
        z = constant(0.0, float32[()])
        d = binary(b, z, fn="max")
        y = transpose(d, {TO_FIRST})""",
        "x: float32[N, 4, 5, 6]",
    ),
    "a sum of two": one(
        f"""a = transpose(x, {TO_LAST})
        b = transpose(w, {TO_LAST})
        c = binary(a, b, fn="add")
        y = transpose(c, {TO_FIRST})""",
        "x: float32[N, 4, 5, 6], w: float32[N, 4, 5, 6]",
    ),
    "a mean over space": one(
        f"""a = transpose(x, {TO_LAST})
        y = reduce(a, fn="sum", axes=(1, 2), keepdims=False)""",
        "x: float32[N, 4, 5, 6]",
    ),
    "slices, pads and concatenations": one(
        """a = transpose(x, perm=(1, 0))
        b = slice(a, starts=(1, 0), sizes=(2, N), steps=(1, 1))
        c = constant(0.0, float32[()])
        d = pad(b, c, low=(0, 1), high=(3, 0), mode="constant")
        e = concat(d, d, axis=0)
        y = transpose(e, perm=(1, 0))"""
    ),
    "softmax": one("a = transpose(x, perm=(1, 0))\nb = softmax(a, axis=0)\ny = transpose(b, perm=(1, 0))"),
    "padding before a transpose before a convolution": one(
        f"""z = constant(0.0, float32[()])
        p = pad(x, z, low=(0, 1, 1, 0), high=(0, 1, 1, 0), mode="constant")
        a = transpose(p, {TO_FIRST})
        y = convolution(a, w, {CONVOLUTION})""",
        "x: float32[N, 8, 8, 3], w: float32[2, 3, 3, 3]",
    ),
    "reshapes around an activation": one(
        """a = reshape(x, shape=(N, 2, 2))
        c = constant([1.0, 2.0, 3.0, 4.0], float32[2, 2])
        b = binary(a, c, fn="add")
        d = unary(b, fn="tanh")
        y = reshape(d, shape=(N, 4))"""
    ),
    "a constant that repeats within a group of axes stays": one(
        """a = reshape(x, shape=(N, 2, 2))
        c = constant([1.0, 2.0], float32[2])
        y = binary(a, c, fn="add")"""
    ),
    "leading axes": one('a = reshape(w, shape=(1, 1, 4))\ny = binary(x, a, fn="mul")', "x: float32[N, 3, 4], w: float32[4]"),
    "another operand in another order stays": one(
        'a = transpose(x, perm=(1, 0))\ny = binary(a, w, fn="mul")', "x: float32[N, 4], w: float32[4, N]"
    ),
}


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("push_movement", before_and_after(CASES, push_movement))


AFTER_A_TRANSPOSE = {
    "pad": """z = constant(0.0, float32[()])
        y = pad(a, z, low=(1, 0, 2), high=(0, 3, 1), mode="constant")""",
    "slice": "y = slice(a, starts=(1, 0, 0), sizes=(1, 2, 1), steps=(1, 1, 2))",
    "reversed slice": "y = slice(a, starts=(1, 0, 1), sizes=(2, 1, 1), steps=(-1, 1, 1))",
    "concat": "y = concat(a, a, axis=1)",
    "softmax": "y = softmax(a, axis=1)",
    "reduce": 'y = reduce(a, fn="sum", axes=(1,), keepdims=False)',
    "reduce, axes kept": 'y = reduce(a, fn="max", axes=(0, 2), keepdims=True)',
    "constants": """c = constant([1.0, 2.0], float32[2, 1, 1])
        d = slice(a, starts=(0, 0, 0), sizes=(2, 2, 2), steps=(1, 1, 1))
        y = binary(d, c, fn="mul")""",
}


@pytest.mark.parametrize("perm", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("case", AFTER_A_TRANSPOSE)
def test_axes_keep_their_place_in_every_order(case: str, perm: tuple[int, ...]) -> None:
    """Also where an order is not its own inverse."""
    function = parse_function(one(f"a = transpose(x, perm={perm})\n{AFTER_A_TRANSPOSE[case]}", "x: float32[2, 3, 4]"))
    pushed = push_movement(function)
    assert pushed.results[0].type is function.results[0].type
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(interpret(pushed, [x])[0], interpret(function, [x])[0], rtol=1e-6)
    # The transpose has moved behind the operator.
    assert all(node is pushed.results[0].node for node in walk_nodes(pushed.results) if node.op.name == "transpose")


def transposes(function: Function) -> int:
    return sum(node.op.name == "transpose" for node in walk_nodes(function.results))


def test_channels_last_network_has_one_transpose_left() -> None:
    """Two convolutions of a channels-last model, with bias, activation and a shortcut between them."""
    text = f"""
def main(x: float32[2, 5, 5, 3], w: float32[4, 3, 1, 1], u: float32[4, 4, 1, 1]):
    z = constant(0.0, float32[()])
    b = constant([0.5, 1.0, -1.0, 2.0], float32[4])
    a0 = transpose(x, {TO_FIRST})
    a1 = convolution(a0, w, {CONVOLUTION})
    a2 = transpose(a1, {TO_LAST})
    a3 = binary(a2, b, fn="add")
    a4 = binary(a3, z, fn="max")
    a5 = transpose(a4, {TO_FIRST})
    a6 = convolution(a5, u, {CONVOLUTION})
    a7 = transpose(a6, {TO_LAST})
    a8 = binary(a7, a4, fn="add")
    a9 = reduce(a8, fn="sum", axes=(1, 2), keepdims=False)
    return a9
"""
    function = parse_function(text)
    pushed = push_movement(function)
    assert transposes(function) == 4
    assert transposes(pushed) == 1
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([d.value for d in p.shape]).astype(np.float32) for p in function.params]
    np.testing.assert_allclose(interpret(pushed, inputs)[0], interpret(function, inputs)[0], rtol=1e-5, atol=1e-5)


def test_attention_heads_need_no_transposes() -> None:
    text = """
def main(q: float32[N, 4, 2, 8], k: float32[N, 4, 2, 8], v: float32[N, 4, 2, 8]):
    a = transpose(q, perm=(0, 2, 1, 3))
    b = transpose(k, perm=(0, 2, 3, 1))
    s = contract(a, b, spec="bhsd,bhdt->bhst", dtype=float32)
    p = softmax(s, axis=-1)
    c = transpose(v, perm=(0, 2, 1, 3))
    o = contract(p, c, spec="bhst,bhtd->bhsd", dtype=float32)
    y = transpose(o, perm=(0, 2, 1, 3))
    return y
"""
    assert transposes(push_movement(parse_function(text))) == 0
