"""Random scalar expressions for property tests."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, make, size, var
from tilewright.ir.scalar_ops import INTRINSICS, Op


@dataclass(frozen=True)
class FakeBuffer:
    name: str
    dtype: DType
    shape: tuple[Expr, ...]


INT, BOOL, FLOAT = dtypes.int64, dtypes.bool_, dtypes.float32
I, J, K, F = var("i"), var("j"), var("k"), var("f")  # noqa: E741 - index notation
N, M, S = size("N", 1), size("M", 0, 12), size("S", 0, 64, 8)
VARIABLES = (I, J, K, F, N, M, S)
FLAG, REAL, SMALL = var("flag", BOOL), var("real", FLOAT), var("small", dtypes.int8)
MATRIX = FakeBuffer("matrix", FLOAT, (const(4), N))
SCALAR = FakeBuffer("not an identifier", dtypes.int32, ())
NAMES = {v.name: v for v in (*VARIABLES, FLAG, REAL, SMALL)} | {b.name: b for b in (MATRIX, SCALAR)}

_ARITHMETIC = (Op.ADD, Op.SUB, Op.MUL)
_ORDER = (Op.MIN, Op.MAX)
_COMPARE = (Op.EQ, Op.NE, Op.LT, Op.LE)
_FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 0.1, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan")])


def _nodes(ops: tuple[Op, ...], dtype: DType, a: st.SearchStrategy[Expr], b: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(lambda op, x, y: make(op, dtype, (x, y)), st.sampled_from(ops), a, b)


_SMALL_NUMBERS = st.integers(-20, 20).map(const)
_EXTREMES = [sign * (1 << 63 >> shift) + add for sign in (-1, 1) for shift in (0, 1, 2) for add in (-16, -2, -1, 0, 1, 2, 15)]
HUGE = st.sampled_from([n for n in _EXTREMES if -(1 << 63) <= n < 1 << 63]).map(const)


def index_exprs(max_leaves: int = 12, constants: st.SearchStrategy[Expr] = _SMALL_NUMBERS) -> st.SearchStrategy[Expr]:
    """int64 expressions over VARIABLES as people and schedules write them: all integer operators, divisors that are constants or sizes,
    nothing folded."""
    divisors = st.sampled_from([1, 2, 3, 4, 8, 12, 16, -1, -3, -8]).map(const) | st.sampled_from(
        [N, N, M, S, F, N * M, N * K, N * 8, S + 2]
    )
    leaves = st.sampled_from(VARIABLES) | constants

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        conditions = _nodes(_COMPARE, BOOL, inner, inner)
        return (
            _nodes(_ARITHMETIC, INT, inner, inner)
            | _nodes(_ARITHMETIC, INT, inner, constants)
            | _nodes((Op.FLOORDIV, Op.FLOORMOD), INT, inner, divisors)
            | _nodes((Op.FLOORDIV, Op.FLOORMOD), INT, inner, divisors)
            | _nodes((Op.TRUNCDIV, Op.TRUNCMOD), INT, inner, divisors)
            | _nodes(_ORDER, INT, inner, inner)
            | st.builds(lambda c, a, b: make(Op.SELECT, INT, (c, a, b)), conditions, inner, inner)
        )

    return st.recursive(leaves, extend, max_leaves=max_leaves)


def conditions(max_leaves: int = 10) -> st.SearchStrategy[Expr]:
    """Bool expressions over comparisons of index expressions."""
    leaves = _nodes(_COMPARE, BOOL, index_exprs(5), index_exprs(5))

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return _nodes((Op.AND, Op.OR, Op.XOR, Op.EQ), BOOL, inner, inner) | inner.map(lambda a: make(Op.NOT, BOOL, (a,)))

    return st.recursive(leaves, extend, max_leaves=max_leaves)


def any_exprs() -> st.SearchStrategy[Expr]:
    """Expressions of every operator and several dtypes, for the text form."""
    integers = index_exprs(6)
    bits = _nodes((Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR), INT, integers, integers) | integers.map(lambda a: make(Op.NOT, INT, (a,)))
    small = st.integers(-128, 127).map(lambda v: const(v, dtypes.int8)) | st.just(SMALL)
    small = small | _nodes((Op.ADD, Op.MUL, Op.AND), dtypes.int8, small, small)
    floats = (
        _FLOATS.map(lambda v: const(v, FLOAT))
        | st.just(REAL)
        | st.builds(lambda i, j: make(Op.LOAD, FLOAT, (i, j), MATRIX), integers, integers)
        | st.builds(lambda a: make(Op.CAST, FLOAT, (a,)), integers | bits | small)
        | st.just(make(Op.BITCAST, FLOAT, (make(Op.LOAD, dtypes.int32, (), SCALAR),)))
    )

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        unary = st.sampled_from([name for name, count in INTRINSICS.items() if count == 1 and not name.startswith("is")])
        calls = st.builds(lambda name, a: make(Op.CALL, FLOAT, (a,), name), unary, inner)
        fma = st.builds(lambda a, b, c: make(Op.CALL, FLOAT, (a, b, c), "fma"), inner, inner, inner)
        chosen = st.builds(lambda c, a, b: make(Op.SELECT, FLOAT, (c, a, b)), conditions(3) | st.just(FLAG), inner, inner)
        return _nodes((*_ARITHMETIC, Op.DIV, *_ORDER, Op.TRUNCMOD), FLOAT, inner, inner) | calls | fma | chosen

    floats = st.recursive(floats, extend, max_leaves=6)
    nan = floats.map(lambda a: make(Op.CALL, BOOL, (a,), "isnan"))
    wide = st.floats(width=64).map(lambda v: const(v, dtypes.float64)) | st.floats(width=16).map(lambda v: const(v, dtypes.bfloat16))
    return integers | bits | small | floats | nan | conditions() | wide | _nodes(_COMPARE, BOOL, floats, floats)
