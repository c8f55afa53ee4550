"""What the fuzzer compares: results that rounding errors decide are left out, those that they cannot change are all compared."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.accuracy.rounding_noise import disagreement, expectations
from tilewright.graph.text_parser import parse_module

# Elements that are equal, halfway between integers, or at a threshold: the least error in an operand would make them jump.
EXACT = {
    "cast": "cast(x, dtype=int32, saturate=True)",
    "bitcast": "bitcast(x, dtype=uint32)",
    "sort": "sort(x, axis=0, descending=False)",
    "top_k": "top_k(x, k=3, axis=0, largest=True)",
    "arg_reduce": 'arg_reduce(top, fn="max", axis=0, keepdims=False, last=False)',
    "scan": 'cumulative_scan(x, fn="sum", axis=0, exclusive=False, reverse=False)',
    "quantize": "quantize(x, scale, axis=0, block=0, dtype=int8, saturate=True)",
    "choice": "select(below, x, scale)",
    "scatter": 'scatter_elements(x, i, x, axis=0, reduction="add")',
}


def stable(body: str, result: str) -> list[bool]:
    """For each element of a result, whether it is compared: `x` is [0.5, 1, 1, 1.5], `scale` 1, `i` [0, 1, 1, 3]."""
    head = "def main(x: float32[4], scale: float32[()], i: int64[4]):\n"
    below = '    below = binary(x, scale, fn="less_equal")\n    top = binary(x, scale, fn="min")\n'
    inputs = (np.array([0.5, 1, 1, 1.5], np.float32), np.array(1.0, np.float32), np.array([0, 1, 1, 3]))
    (expected,) = expectations(parse_module(f"{head}{below}{body}\n    return {result}\n").main, inputs, 0)
    assert expected is not None
    return np.atleast_1d(expected.compared & expected.finite & (expected.allowed < 1e-4)).tolist()


@pytest.mark.parametrize("operator", EXACT)
def test_what_no_rounding_error_decides_is_compared(operator: str) -> None:
    body = f"    {'v, w' if operator in ('sort', 'top_k') else 'v'} = {EXACT[operator]}"
    if operator in ("scan", "choice", "scatter"):
        body += "\n    w = cast(v, dtype=int32, saturate=True)"
    assert all(stable(body, "w" if "w = " in body else "v"))


def test_what_a_rounding_error_decides_is_not() -> None:
    body = '    a = constant(3.0, float32[()])\n    b = binary(x, a, fn="div")\n    c = binary(b, a, fn="mul")\n'
    assert stable(body + "    v = cast(c, dtype=int32, saturate=True)", "v") == [True, False, False, True]
    body += "    two = constant(2.0, float32[()])\n    v = quantize(c, two, axis=0, block=0, dtype=int8, saturate=True)"
    assert stable(body, "v") == [True, False, False, True]


def test_factors_of_bfloat16_explain_what_float32_does_not() -> None:
    """Only where a factor has more bits than bfloat16."""
    function = parse_module(
        'def main(x: float32[3, 8], w: float32[8, 2]):\n    v = contract(x, w, spec="mk,kn->mn", dtype=float32)\n    return v\n'
    ).main
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (8, 2)))
    exact = [np.round(array * 4) / 4 for array in (x, w)]
    fine, coarse, whole = (expectations(function, arrays, 0, bf16)[0] for arrays, bf16 in (((x, w), False), ((x, w), True), (exact, True)))
    assert fine is not None
    assert coarse is not None
    assert whole is not None
    narrow = (x.astype(ml_dtypes.bfloat16).astype(np.float32) @ w.astype(ml_dtypes.bfloat16).astype(np.float32)).astype(np.float32)
    assert disagreement(narrow, fine) is not None
    assert disagreement(narrow, coarse) is None
    assert disagreement(coarse.value * np.float32(1.5), coarse) is not None
    assert (whole.allowed < 1e-4).all()


def test_what_cancels_has_the_errors_of_what_it_is_made_of() -> None:
    """GELU of -5.86 is -1.3e-8, and 0 where 1 + erf(x / sqrt(2)) is computed in float32, as its definition has it."""
    function = parse_module("def main(x: float32[2]):\n    v = gelu(x, approximate=False)\n    return v\n").main
    (expected,) = expectations(function, [np.array([-5.8609805, -3.0], np.float32)], 0)
    assert expected is not None
    right = expected.value.copy()
    assert disagreement(right, expected) is None
    right[0] = 0
    assert disagreement(right, expected) is None
    for at, factor in ((0, 30000), (1, 1.1)):
        wrong = expected.value.copy()
        wrong[at] *= np.float32(factor)
        assert disagreement(wrong, expected) is not None, at


def test_the_logarithm_of_a_probability_near_one_has_the_errors_of_the_sum() -> None:
    """It is -9.3e-14 for 30 above the other number, and 0 where 1 + exp(-30) is computed in float32, as its definition has it."""
    lines = ["v = log_softmax(x, axis=0)", "least = constant(-4.0, float32[()])", 'r = binary(v, least, fn="max")', "return r"]
    function = parse_module("\n    ".join(["def main(x: float32[2]):", *lines]) + "\n").main
    (expected,) = expectations(function, [np.array([-11.125, 18.875], np.float32)], 0)
    assert expected is not None
    right = expected.value.copy()
    right[1] = 0
    assert disagreement(right, expected) is None
    for at, moved in ((0, 1e-3), (1, 1e-3)):
        wrong = expected.value.copy()
        wrong[at] -= np.float32(moved)
        assert disagreement(wrong, expected) is not None, at


def test_norms_of_numbers_whose_squares_overflow() -> None:
    """The variance is infinite in float32, so that only the shift is left; a definition in float64 gives 2 and -1."""
    lines = ["g = constant(1.5, float32[()])", "b = constant(0.5, float32[()])", "v = layer_norm(x, g, b, axis=1, epsilon=0.5)", "return v"]
    function = parse_module("\n    ".join(["def main(x: float32[1, 2]):", *lines]) + "\n").main
    for numbers, overflows in (([1.5e9, -3.3e19], True), ([1.5e9, -3.3e18], False)):
        (expected,) = expectations(function, [np.array([numbers], np.float32)], 0)
        assert expected is not None
        assert (disagreement(np.full((1, 2), 0.5, np.float32), expected) is None) == overflows


# Of -0, -0 and two other numbers: which zeros may have either sign, and may so make anything of what shows it.
ZEROS = {
    "sum": ('reduce(terms, fn="sum", axes=[0], keepdims=False)', False),
    "product of matrices": ('contract(x, terms, spec="k,kn->n", dtype=float32)', False),
    "product": ('contract(x, one, spec="m,->m", dtype=float32)', True),
    "outer product": ('contract(one, x, spec=",m->m", dtype=float32)', True),
    "scan": ('cumulative_scan(x, fn="sum", axis=0, exclusive=False, reverse=False)', False),
    "addition": ('binary(x, zero, fn="add")', False),
    "maximum": ('binary(x, zero, fn="max")', False),
    "multiplication": ('binary(x, one, fn="mul")', True),
    "negation": ('unary(x, fn="neg")', True),
    "rounding": ('unary(x, fn="ceil")', True),
    "movement": ("transpose(x, perm=(0,))", True),
}
SHOWN = {
    "bits": "bitcast(v, dtype=int32)",
    "quotient": 'binary(one, v, fn="div")',
    "angle": 'binary(v, less, fn="atan2")',
    "sum of two": "bitcast(twice, dtype=int32)",
}


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("operator", ZEROS)
def test_what_shows_the_sign_of_a_zero_is_compared_where_it_has_one(operator: str, shown: str) -> None:
    made, signed = ZEROS[operator]
    lines = [
        "def main(x: float32[4], terms: float32[4, 4]):", "    zero = constant(0.0, float32[()])", "    one = constant(1.0, float32[()])",
        "    less = constant(-1.0, float32[()])", f"    v = {made}", '    twice = binary(v, v, fn="add")', f"    w = {SHOWN[shown]}",
        "    return w",
    ]  # fmt: skip
    x, terms = np.array([-0.0, -0.0, -2.5, 3.0], np.float32), np.array([[0, 0, 1, 2]] * 4, np.float32)
    (expected,) = expectations(parse_module("\n".join(lines) + "\n").main, [x, terms], 0)
    assert expected is not None
    other = expected.value.copy()
    other[:2] = np.iinfo(np.int32).min - other[:2] if other.dtype == np.int32 else -other[:2]
    assert (disagreement(other, expected) is not None) is (signed and shown != "sum of two")
    other = expected.value.copy()
    other[3] += 1000
    assert disagreement(other, expected) is not None


def test_infinities_are_compared_where_no_rounding_error_makes_numbers_of_them() -> None:
    lines = ["def main(x: float32[3]):", "    zero = constant(0.0, float32[()])", '    v = binary(x, zero, fn="div")', "    return v"]
    (expected,) = expectations(parse_module("\n".join(lines) + "\n").main, [np.array([1, -1, 0], np.float32)], 0)
    assert expected is not None
    assert disagreement(np.array([np.inf, -np.inf, np.nan], np.float32), expected) is None
    for wrong in ([np.inf, np.inf, np.nan], [np.inf, 3, np.nan], [3e38, -np.inf, np.nan], [np.inf, -np.inf, np.inf]):
        assert disagreement(np.array(wrong, np.float32), expected) is not None, wrong
