"""Scalar expressions: one small set of immutable, interned nodes for dims, indices, predicates and kernel bodies.

Equality is identity (`a is b`); build nodes with the functions here, which fold constants and drop neutral elements, and with
Python operators. `simplify` (in `simplify.py`) brings an expression to canonical form.

Integer division is explicit: `//` and `%` floor (indices), `trunc_div` and `trunc_mod` follow C, `/` divides floats.
Comparisons build bool expressions; `==` stays identity, `equal(a, b)` builds the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.interning import InternTable, bits_key
from tilewright.ir.scalar_ops import (
    BINARY,
    BOOL_INTRINSICS,
    COMMUTATIVE,
    COMPARISONS,
    DOTS,
    INTRINSICS,
    Op,
    evaluate,
    integer_of,
    wrap_integer,
)

Attr = Any
Number: TypeAlias = bool | int | float


class VarInfo:
    """What is known of a variable: `name`; for sizes also the inclusive range [`lo`, `hi`] (None: unbounded) and a `multiple` that
    divides it. Loop variables carry no range: their loop says it."""

    __slots__ = ("hi", "lo", "multiple", "name")

    def __init__(self, name: str, lo: int | None = None, hi: int | None = None, multiple: int = 1) -> None:
        self.name, self.lo, self.hi, self.multiple = name, lo, hi, multiple

    def key(self) -> tuple[str, int | None, int | None, int]:
        return (self.name, self.lo, self.hi, self.multiple)

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VarInfo) and self.key() == other.key()

    def __repr__(self) -> str:
        return f"VarInfo{self.key()}"


class Expr:
    """One node: `op`, `dtype`, `args` (expressions), `attr`. Immutable; make it through the functions of this module."""

    __slots__ = ("__weakref__", "args", "attr", "dtype", "linear_form", "marks", "op", "order", "variables")
    op: Op
    dtype: DType
    args: tuple[Expr, ...]
    attr: Attr
    linear_form: Any  # kept by affine.linear
    order: str  # kept by affine.order_key
    marks: tuple[Expr, ...] | None  # of the arguments; kept by marked
    variables: frozenset[Expr] | None  # kept by variables_in; None for variables, which would keep themselves alive

    def __repr__(self) -> str:
        from tilewright.ir.printer import format_expr

        return format_expr(self)

    @property
    def is_const(self) -> bool:
        return self.op is Op.CONST

    @property
    def value(self) -> Any:
        """The number of a constant."""
        return self.attr

    @property
    def name(self) -> str:
        """The name of a variable or intrinsic."""
        return self.attr.name if self.op is Op.VAR else str(self.attr)

    def __add__(self, other: ExprLike) -> Expr:
        return add(self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return add(other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return sub(self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return sub(other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return mul(other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return div(self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return div(other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floordiv(self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return floordiv(other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return floormod(self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return floormod(other, self)

    def __neg__(self) -> Expr:
        return neg(self)

    def __lt__(self, other: ExprLike) -> Expr:
        return less(self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return less_equal(self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return less(other, self)

    def __ge__(self, other: ExprLike) -> Expr:
        return less_equal(other, self)

    def __and__(self, other: ExprLike) -> Expr:
        return logical_and(self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return logical_or(self, other)

    def __invert__(self) -> Expr:
        return logical_not(self)

    def __bool__(self) -> bool:
        """Only constants have a truth value; `a < b` of unknowns raises, so that it is not taken for an answer."""
        if self.op is Op.CONST:
            return bool(self.attr)
        raise TypeError(f"the truth of `{self!r}` is not known; tilewright.ir.prove.prove(...) says whether it always holds")


ExprLike: TypeAlias = Expr | bool | int | float

_TABLE = InternTable()


def make(op: Op, dtype: DType, args: tuple[Expr, ...] = (), attr: Attr = None) -> Expr:
    """The node with exactly these fields, no folding."""
    key = (op, dtype.name, args, bits_key(attr) if op is Op.CONST else attr)
    found: Expr | None = _TABLE.get(key)
    if found is not None:
        return found
    made = object.__new__(Expr)
    made.op, made.dtype, made.args, made.attr = op, dtype, args, attr
    made.linear_form, made.marks, made.order, made.variables = None, None, "", None
    result: Expr = _TABLE.add(key, made)
    return result


_COMMON = 4096
_COMMON_INTS: dict[int, Expr] = {}  # small index constants, which most expressions hold


def const(value: Number, dtype: DType = dtypes.int64) -> Expr:
    """A constant; integers wrap, floats are rounded to `dtype`."""
    if dtype is dtypes.int64 and type(value) is int and -_COMMON <= value <= _COMMON:
        found = _COMMON_INTS.get(value)
        if found is None:
            found = _COMMON_INTS[value] = make(Op.CONST, dtype, (), value)
        return found
    if dtype.kind == "float":
        value = float(np.asarray(value, dtype.numpy)) if dtype is not dtypes.float64 else float(value)
    elif dtype.kind == "bool":
        value = bool(value)
    else:
        value = wrap_integer(int(value), dtype)
    return make(Op.CONST, dtype, (), value)


TRUE = const(True, dtypes.bool_)
FALSE = const(False, dtypes.bool_)


def var(name: str, dtype: DType = dtypes.int64) -> Expr:
    """A loop or scalar variable."""
    return make(Op.VAR, dtype, (), VarInfo(name))


def size(name: str, lo: int | None = 0, hi: int | None = None, multiple: int = 1) -> Expr:
    """A named run-time size: an int64 in [lo, hi] that `multiple` divides."""
    return make(Op.VAR, dtypes.int64, (), VarInfo(name, lo, hi, multiple))


def as_expr(value: ExprLike, dtype: DType = dtypes.int64) -> Expr:
    return value if isinstance(value, Expr) else const(value, dtype)


def _pair(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        b = b if isinstance(b, Expr) else const(b, a.dtype)
    elif isinstance(b, Expr):
        a = const(a, b.dtype)
    else:
        dtype = dtypes.float32 if isinstance(a, float) or isinstance(b, float) else dtypes.int64
        a, b = const(a, dtype), const(b, dtype)
    if a.dtype is not b.dtype:
        raise TypeError(f"operands of one expression have two dtypes: {a!r} is {a.dtype}, {b!r} is {b.dtype}")
    return a, b


def binary(op: Op, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b` with constants folded and neutral elements dropped. Integers: x+0, x*1, x*0, x//1, x%1; bools: and/or with a constant.
    Floats keep IEEE meaning: only x*1.0, x/1.0 and what a minimum or maximum with NaN compares it with are dropped."""
    x, y = _pair(a, b)
    dtype = x.dtype
    result = dtypes.bool_ if op in COMPARISONS else dtype
    if x.op is Op.CONST:
        if y.op is Op.CONST:
            value = evaluate(op, dtype, x.attr, y.attr)
            if value is not None:
                return const(value) if result is dtypes.int64 else make(Op.CONST, result, (), value)
        elif op in COMMUTATIVE:
            x, y = y, x
    if y.op is Op.CONST:
        value = y.attr
        if dtype.is_integer:
            if value == 0:
                if op in (Op.ADD, Op.SUB, Op.OR, Op.XOR, Op.SHL, Op.SHR):
                    return x
                if op in (Op.MUL, Op.AND):
                    return y
            elif value == 1:
                if op in (Op.MUL, Op.FLOORDIV, Op.TRUNCDIV):
                    return x
                if op in (Op.FLOORMOD, Op.TRUNCMOD):
                    return const(0, dtype)
        elif dtype.kind == "bool":
            if op is Op.AND:
                return x if value else y
            if op is Op.OR:
                return y if value else x
        elif value == 1.0 and op in (Op.MUL, Op.DIV):
            return x
        elif value != value and op in (Op.MIN, Op.MAX):
            return y
    if x is y and not dtype.is_float:
        if op in (Op.MIN, Op.MAX, Op.AND, Op.OR):
            return x
        if op in (Op.SUB, Op.XOR):
            return const(0, dtype)
        if op in (Op.EQ, Op.LE):
            return TRUE
        if op in (Op.NE, Op.LT):
            return FALSE
    return make(op, result, (x, y))


def add(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.ADD, a, b)


def sub(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.SUB, a, b)


def mul(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.MUL, a, b)


def div(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.DIV, a, b)


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.FLOORDIV, a, b)


def floormod(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.FLOORMOD, a, b)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """Smallest integer not below a/b, for b > 0."""
    x, y = _pair(a, b)
    return floordiv(x + (y - 1), y)


def trunc_div(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.TRUNCDIV, a, b)


def trunc_mod(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.TRUNCMOD, a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.MIN, a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.MAX, a, b)


def equal(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.EQ, a, b)


def not_equal(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.NE, a, b)


def less(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.LT, a, b)


def less_equal(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.LE, a, b)


def logical_and(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.AND, a, b)


def logical_or(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.OR, a, b)


def logical_xor(a: ExprLike, b: ExprLike) -> Expr:
    return binary(Op.XOR, a, b)


def logical_not(a: Expr) -> Expr:
    """Logical not of a bool, bitwise not of an integer."""
    if a.op is Op.CONST:
        return const(not a.attr if a.dtype.kind == "bool" else ~a.attr, a.dtype)
    if a.op is Op.NOT:
        return a.args[0]
    return make(Op.NOT, a.dtype, (a,))


def neg(a: Expr) -> Expr:
    """0 - a for integers; for floats -1 * a, which keeps the sign of zero and NaN."""
    return mul(a, const(-1, a.dtype)) if a.dtype.is_float else sub(const(0, a.dtype), a)


def select(condition: Expr, if_true: ExprLike, if_false: ExprLike) -> Expr:
    """`if_true` where `condition` holds, else `if_false`. Loads on the side not taken are not performed (they may be out of bounds)."""
    x, y = _pair(if_true, if_false)
    if condition.op is Op.CONST:
        return x if condition.attr else y
    return x if x is y else make(Op.SELECT, x.dtype, (condition, x, y))


def cast(dtype: DType, a: Expr) -> Expr:
    """Value conversion: floats to integers truncate towards zero (past their range: `integer_of`), integers wrap, anything to bool is
    `!= 0`."""
    if a.dtype is dtype:
        return a
    if a.op is Op.CONST and dtype.kind != "bool":
        return const(integer_of(a.attr, dtype) if a.dtype.is_float and dtype.is_integer else a.attr, dtype)
    if dtype.kind == "bool":
        return not_equal(a, const(0, a.dtype))
    return make(Op.CAST, dtype, (a,))


def bitcast(dtype: DType, a: Expr) -> Expr:
    """The same bits read as `dtype` of the same width."""
    if a.dtype.bits != dtype.bits:
        raise TypeError(f"bitcast from {a.dtype} to {dtype} changes the width")
    return a if a.dtype is dtype else make(Op.BITCAST, dtype, (a,))


def call(name: str, *args: Expr) -> Expr:
    """An intrinsic of INTRINSICS applied to floats (popcount and abs also take integers)."""
    if len(args) != INTRINSICS[name]:
        raise TypeError(f"{name} takes {INTRINSICS[name]} arguments, not {len(args)}")
    if any(a.dtype is not args[0].dtype for a in args):
        raise TypeError(f"{name} needs arguments of one dtype, got {', '.join(a.dtype.name for a in args)}")
    return make(Op.CALL, dtypes.bool_ if name in BOOL_INTRINSICS else args[0].dtype, args, name)


def dot(total: Expr, a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """total + a[0] * b[0] + a[1] * b[1] + ... in int32, wrapping: two or four factors of one integer dtype of 8 or 16 bits on each side.
    What `vpdpbusd`, `sdot` and `vpmaddwd` do. Or in float32, of two bfloat16 on each side, in any order: `vdpbf16ps`, `bfdot`."""
    name = f"dot{len(a)}"
    if name not in DOTS or len(a) != len(b):
        raise TypeError(f"there is no intrinsic for a sum of {len(a)} and {len(b)} factors")
    if not is_dot(total.dtype, [x.dtype for x in a], [x.dtype for x in b]):
        raise TypeError(f"{name} of {total.dtype}, {a[0].dtype} and {b[0].dtype} is not defined")
    return make(Op.CALL, total.dtype, (total, *a, *b), name)


def is_dot(total: DType, a: Sequence[DType], b: Sequence[DType]) -> bool:
    """Whether a sum of products of these dtypes is one of DOTS."""
    if total is dtypes.float32:
        return len(a) == 2 and {*a, *b} == {dtypes.bfloat16}
    narrow = all(len(set(side)) == 1 and side[0].is_integer and side[0].bits in (8, 16) for side in (a, b))
    return total is dtypes.int32 and narrow


def load(buffer: Any, indices: tuple[ExprLike, ...]) -> Expr:
    """The element of a kernel buffer (anything with `dtype` and `shape`) at `indices`."""
    if len(indices) != len(buffer.shape):
        raise TypeError(f"{buffer.name} has {len(buffer.shape)} dimensions, indexed with {len(indices)}")
    return make(Op.LOAD, buffer.dtype, tuple(as_expr(i) for i in indices), buffer)


def all_of(*conditions: Expr) -> Expr:
    result = TRUE
    for condition in conditions:
        result = condition if result is TRUE else logical_and(result, condition)
    return result


def rebuild(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """`e` with other arguments, constants folded."""
    op = e.op
    if op in BINARY:
        return binary(op, args[0], args[1])
    if op is Op.SELECT:
        return select(args[0], args[1], args[2])
    if op is Op.CAST:
        return cast(e.dtype, args[0])
    if op is Op.NOT:
        return logical_not(args[0])
    return make(op, e.dtype, args, e.attr)
