"""Printer and parser: exact round trip, what people write, and errors with places."""

import struct

import pytest
from hypothesis import given, settings

from tests.ir.strategies import BOOL, FLAG, FLOAT, INT, MATRIX, NAMES, REAL, SCALAR, I, J, K, N, any_exprs
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, make, neg, select
from tilewright.ir.parser import parse_expr, parse_type
from tilewright.ir.printer import format_expr, format_type
from tilewright.ir.scalar_ops import Op
from tilewright.ir.types import tensor
from tilewright.support.errors import ParseError


@settings(max_examples=200, deadline=None)
@given(any_exprs())
def test_text_reads_back_to_the_same_node(e: Expr) -> None:
    assert parse_expr(format_expr(e), NAMES) is e


@pytest.mark.parametrize(
    "text",
    [
        "i * 8 + j",
        "(i + j) * N",
        "i - (j - k)",
        "i - j - k",
        "i // 3 % N",
        "-3 // i",
        "i - -3",
        "0 - i",
        "2 * 3 + 0",
        "min(i, max(j, 3))",
        "select(i < N and not flag, i, -1)",
        "(i < j) == (flag and True)",
        "(i < j) ^ flag",
        "flag and (flag or flag) or flag",
        "~(i | j & 3 << k)",
        "trunc_div(i, 3) + trunc_mod(i, 3)",
        "cast(int8, i) + int8(-3)",
        "matrix[i // 2, (j + 1) % N] * float32(0.1)",
        "exp(real - float32(-inf)) / float32(nan)",
        "fma(real, real, float32(-0.0))",
        'bitcast(float32, var("not an identifier")[()])',
        "float64(0.1) < float64(1e+300)",
    ],
)
def test_printed_with_the_fewest_parentheses(text: str) -> None:
    assert format_expr(parse_expr(text, NAMES)) == text


def test_nothing_is_folded_by_reading() -> None:
    e = parse_expr("i + 0 - (1 + 2)", NAMES)
    assert e is make(Op.SUB, INT, (make(Op.ADD, INT, (I, const(0))), make(Op.ADD, INT, (const(1), const(2)))))


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF])
def test_nan_keeps_sign_and_payload(bits: int) -> None:
    e = make(Op.CONST, dtypes.float64, (), struct.unpack("<d", struct.pack("<Q", bits))[0])
    assert parse_expr(format_expr(e), {}) is e


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.kind not in ("complex", "string")], ids=repr)
def test_extreme_constants_of_every_dtype(dtype: dtypes.DType) -> None:
    for value in (dtype.lowest, dtype.highest, 1):
        e = const(value, dtype)
        assert parse_expr(format_expr(e), {}) is e


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("i > j", "j < i"),
        ("0 <= i < N", "0 <= i and i < N"),
        ("max(i, j, 3)", "max(max(i, j), 3)"),
        ("real * 2 + 0.5", "real * float32(2.0) + float32(0.5)"),
        ("2 * real", "float32(2.0) * real"),
        ("max(0, real)", "max(float32(0.0), real)"),
        ("real / 2 if flag else 0", "select(flag, real / float32(2.0), float32(0.0))"),
        ("float32(i)", "cast(float32, i)"),
        ("pow(2, real)", "pow(float32(2.0), real)"),
        ("+i", "i"),
        ("var('not an identifier')[()] + 1", 'var("not an identifier")[()] + int32(1)'),
    ],
)
def test_what_people_write(text: str, same: str) -> None:
    assert format_expr(parse_expr(text, NAMES)) == same


def test_negation_reads_as_the_builders_make_it() -> None:
    assert parse_expr("-i", NAMES) is neg(I)
    assert parse_expr("-real", NAMES) is neg(REAL)


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("real + i", "mixes float32 and int64", "line 1, column 1"),
        ("i + q", "`q` is not defined here", "line 1, column 5"),
        ("i +", "is not an expression", "line 1"),
        ("i / j", "/ divides floats, not int64", "line 1, column 1"),
        ("i + f(j)", "there is no function `f`", "line 1, column 5"),
        ("3.5 + i", "`3.5` is not a value of int64", "line 1, column 1"),
        ("int8(300)", "300 does not fit in int8", "line 1, column 1"),
        ("min(i)", "has 1 arguments, needs 2", "line 1, column 1"),
        ("matrix[i]", "matrix has 2 dimensions, indexed with 1", "line 1, column 1"),
        ("i + matrix", "`matrix` is a buffer and needs indices", "line 1, column 5"),
        ("i[0]", "`i` is not a buffer", "line 1, column 1"),
        ("not i", "does not apply to int64", "line 1, column 1"),
        ("flag and i", "mixes bool and int64", "line 1, column 1"),
        ("i and j", "needs operands of bool, not int64", "line 1, column 1"),
        ("select(i, j, k)", "the condition `i` is int64, not bool", "line 1, column 8"),
        ("i ** 2", "uses an operator that expressions do not have", "line 1, column 1"),
        ("bitcast(int32, i)", "changes the width", "line 1, column 1"),
        ("cast(float33, i)", "`float33` is not a dtype", "line 1, column 6"),
        ("[i]", "has no meaning in an expression", "line 1, column 1"),
        ("i is j", "uses a comparison that expressions do not have", "line 1, column 1"),
        ("matrix[real, 0]", "an index is float32, not an integer", "line 1, column 1"),
    ],
)
def test_errors_say_what_and_where(text: str, what: str, where: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse_expr(text, NAMES)
    assert what in raised.value.what
    assert raised.value.where is not None
    assert where in raised.value.where


def test_the_wanted_dtype_is_checked_and_given_to_literals() -> None:
    assert parse_expr("2", NAMES, FLOAT) is const(2.0, FLOAT)
    with pytest.raises(ParseError, match="is int64, where float32 is needed"):
        parse_expr("i", NAMES, FLOAT)


def test_long_sums_and_deep_nests() -> None:
    long = " + ".join(["i"] * 900)
    assert format_expr(parse_expr(long, NAMES)) == long
    with pytest.raises(ParseError):
        parse_expr("(" * 5000 + "i" + ")" * 5000, NAMES)
    nested: Expr = I
    for _ in range(80):
        nested = select(FLAG, nested, J)
    assert parse_expr(format_expr(nested), NAMES) is nested


def test_renaming() -> None:
    e = parse_expr("matrix[i, j] + real", NAMES)
    assert format_expr(e, {I: "i_1", MATRIX: "a b"}) == 'var("a b")[i_1, j] + real'


def test_types() -> None:
    for type_ in (tensor(FLOAT, (N, 8)), tensor(BOOL, ()), tensor(dtypes.int4, (N * 2 + 1,))):
        assert parse_type(format_type(type_), NAMES) is type_
    assert format_type(tensor(FLOAT, (N, K))) == "float32[N, k]"
    with pytest.raises(ParseError, match="is not a tensor type"):
        parse_type("float32", NAMES)


def test_a_scalar_buffer_needs_its_brackets() -> None:
    e = make(Op.LOAD, dtypes.int32, (), SCALAR)
    assert format_expr(e) == 'var("not an identifier")[()]'
