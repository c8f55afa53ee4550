"""Contractions against einsum, and their accumulators."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.operator_checks import check, draw, function_of, kernel_of, types_of
from tilewright.graph.ops import Contract
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.types import tensor
from tilewright.kernel import interpreter as kernel_interpreter
from tilewright.support.errors import TypeRuleError

SIZES = dict(zip("abcdefk", (2, 3, 4, 2, 3, 1, 5)))
SPECS = [
    "ak,kb->ab", "ak,bk->ab", "ka,kb->ba", "dak,dkb->dab", "dak,kb->adb", "k,k->", "a,b->ab", "ab,ab->ab", "abk,ab->b", "ab,c->bc",
    "abcd,cdef->efab", "ak,k->a", ",ab->ba", "abf,f->ab",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_contractions_are_einsum(spec, dtype):
    rng = np.random.default_rng(0)
    left, right = spec.split("->")[0].split(",")
    a, b = (draw(rng, [SIZES[c] for c in part], dtype) for part in (left, right))
    (y,) = check(Contract(spec, dtypes.BY_NAME[dtype]), a, b)
    expected = np.einsum(spec, a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(
        y.astype(np.float64), expected, rtol=5e-3 if dtype == "float16" else 1e-5, atol=1e-2 if dtype == "float16" else 1e-5
    )


@pytest.mark.parametrize(("spec", "expected"), [
    ("a,b->ab", lambda a, b: a[:, None] * b), ("a,b->ba", lambda a, b: a * b[:, None]), ("ab,a->ab", lambda a, b: a * b[:, None]),
    ("ab,b->ba", lambda a, b: (a * b).T), ("a,->a", lambda a, b: a * b),
])  # fmt: skip
def test_zeros_have_the_signs_of_products_where_nothing_is_summed(spec, expected):
    left, right = spec.split("->")[0].split(",")
    numbers = np.array([0.0, -0.0, 2.0, -2.0, -0.0], np.float32)
    a, b = (np.resize(numbers if part is left else -numbers[1:], [{"a": 4, "b": 3}[c] for c in part]) for part in (left, right))
    op = Contract(spec, dtypes.float32)
    (y,) = check(op, a, b)
    (defined,) = kernel_interpreter.interpret(kernel_of(op, types_of((a, b))), [a, b])
    assert np.array_equal(np.signbit(y), np.signbit(expected(a, b)))
    assert np.array_equal(np.signbit(defined), np.signbit(y))
    assert {False, True} <= set(np.signbit(y[y == 0]).tolist())


@pytest.mark.parametrize(("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_bytes_accumulate_in_int32(left, right):
    rng = np.random.default_rng(1)
    a, b = draw(rng, (3, 300), left, -128, 255), draw(rng, (300, 2), right, -128, 255)
    (y,) = check(Contract("ak,kb->ab", dtypes.int32), a, b)
    np.testing.assert_array_equal(y, a.astype(np.int64) @ b.astype(np.int64))


def test_integers_wrap():
    a = np.full((1, 4), 2**30, np.int32)
    (y,) = check(Contract("ak,ka->a", dtypes.int32), a, a.T.copy())
    assert y.tolist() == [0]


def test_halves_accumulate_in_float32():
    a = np.concatenate([np.full((1, 1), 2048), np.ones((1, 64))], 1).astype(np.float16)
    (y,) = check(Contract("ak,ka->a", dtypes.float16), a, np.ones((65, 1), np.float16), tolerance=0)
    assert y.tolist() == [2112]


def test_symbolic_dims():
    n, k = size("n", 0), size("k", 0)
    rng = np.random.default_rng(2)
    types = [tensor(dtypes.float32, (n, k)), tensor(dtypes.float32, (k, 3))]
    (y,) = check(Contract("nk,km->nm", dtypes.float32), draw(rng, (2, 5)), draw(rng, (5, 3)), types=types)
    assert y.shape == (2, 3)
    (zero,) = check(Contract("nk,km->nm", dtypes.float32), draw(rng, (2, 0)), draw(rng, (0, 3)))
    assert not zero.any()
    with pytest.raises(TypeRuleError, match="the axis 'k' has sizes k and n"):
        function_of(Contract("nk,km->nm", dtypes.float32), [types[0], tensor(dtypes.float32, (n, 3))])


@pytest.mark.parametrize(
    ("spec", "text"),
    [("aa,ab->b", "repeats a letter"), ("ab,bc->ad", "'d' of the result"), ("ab->a", "not of the form"), ("abc,cd->abd", "names 3 axes")],
)
def test_specs_are_checked(spec, text):
    x = tensor(dtypes.float32, (2, 2))
    with pytest.raises(TypeRuleError, match=text):
        function_of(Contract(spec, dtypes.float32), [x, x])


def test_floats_do_not_accumulate_in_integers():
    x = tensor(dtypes.float32, (2, 2))
    with pytest.raises(TypeRuleError, match="do not accumulate in int32"):
        function_of(Contract("ab,bc->ac", dtypes.int32), [x, x])
