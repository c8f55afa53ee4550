"""Scalar expressions: one small set of immutable, interned nodes for dims, indices, predicates and kernel bodies.

Equality is identity (`a is b`); build nodes with the functions here, which fold constants and drop neutral elements, and with
Python operators. `simplify` (in `simplify.py`) brings an expression to canonical form.

Integer division is explicit: `//` and `%` floor (indices), `trunc_div` and `trunc_mod` follow C, `/` divides floats.
Comparisons build bool expressions; `==` stays identity, `equal(a, b)` builds the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.interning import InternTable, bits_key


class Op(StrEnum):
    """The kinds of scalar expression. `attr` of the node is given in brackets where it is used."""

    __hash__ = str.__hash__  # Enum's own is a Python function, and every node built or looked up hashes its operator

    CONST = "const"  # [bool | int | float]
    VAR = "var"  # [VarInfo]
    LOAD = "load"  # [buffer], args are indices
    CALL = "call"  # [name of an intrinsic in INTRINSICS]
    CAST = "cast"  # value conversion to the node's dtype: float to int truncates, saturating is spelled out
    BITCAST = "bitcast"
    SELECT = "select"  # condition, value if true, value if false; both sides may be evaluated
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # floats only
    FLOORDIV = "floordiv"
    FLOORMOD = "floormod"
    TRUNCDIV = "truncdiv"
    TRUNCMOD = "truncmod"  # sign of the dividend; for floats: fmod
    MIN = "min"  # of floats: NaN when either is NaN
    MAX = "max"
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    AND = "and"  # bool or bitwise by dtype
    OR = "or"
    XOR = "xor"
    NOT = "not"
    SHL = "shl"
    SHR = "shr"  # arithmetic for signed, logical for unsigned


COMPARISONS = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE})
COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.MIN, Op.MAX, Op.EQ, Op.NE, Op.AND, Op.OR, Op.XOR})

# name -> number of arguments; all take and give one float dtype, except the predicates (bool), `fma` and the sums of products of DOTS
INTRINSICS: dict[str, int] = {
    "abs": 1, "sqrt": 1, "rsqrt": 1, "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log1p": 1, "log2": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1,
    "exp_nonpositive": 1, "asinh": 1, "acosh": 1, "atanh": 1, "erf": 1, "sigmoid": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1,
    "isnan": 1, "isinf": 1, "pow": 2, "atan2": 2, "copysign": 2, "fma": 3, "popcount": 1,
    "dot2": 5, "dot4": 9,
}  # fmt: skip
BOOL_INTRINSICS = frozenset({"isnan", "isinf"})
DOTS: dict[str, int] = {"dot2": 2, "dot4": 4}  # name -> products n: dotn(sum, a_1 .. a_n, b_1 .. b_n) is sum + a_1 * b_1 + ... in int32

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

    __slots__ = ("__weakref__", "args", "attr", "dtype", "linear_form", "op", "order", "variables")
    op: Op
    dtype: DType
    args: tuple[Expr, ...]
    attr: Attr
    linear_form: Any  # kept by affine.linear
    order: str  # kept by affine.order_key
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
    made.linear_form, made.order, made.variables = None, "", None
    result: Expr = _TABLE.add(key, made)
    return result


def wrap_integer(value: int, dtype: DType) -> int:
    """`value` modulo 2**bits, as the two's complement number of `dtype`."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


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


def _round_to(value: float, dtype: DType) -> float:
    return value if dtype is dtypes.float64 else float(np.asarray(value).astype(dtype.numpy))


def _float_divide(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def _trunc_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _nan_aware(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        return math.nan if a != a or b != b else choose(a, b)

    return apply


_EVALUATE: dict[Op, Callable[[Any, Any], Any]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: _float_divide,
    Op.FLOORDIV: lambda a, b: a // b,
    Op.FLOORMOD: lambda a, b: a % b,
    Op.TRUNCDIV: _trunc_div,
    Op.TRUNCMOD: lambda a, b: math.fmod(a, b) if isinstance(a, float) else a - b * _trunc_div(a, b),
    Op.MIN: _nan_aware(min),
    Op.MAX: _nan_aware(max),
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.AND: lambda a, b: a & b,
    Op.OR: lambda a, b: a | b,
    Op.XOR: lambda a, b: a ^ b,
    Op.SHL: lambda a, b: a << b,
    Op.SHR: lambda a, b: a >> b,
}
_DIVISIONS = frozenset({Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD})


def evaluate(op: Op, dtype: DType, a: Any, b: Any) -> Any:
    """The value of a binary operator on two Python scalars of `dtype`, wrapped or rounded to the dtype. Division of an integer by
    zero gives None (no value)."""
    if op in _DIVISIONS and b == 0:
        return math.nan if dtype.is_float else None
    if op in (Op.SHL, Op.SHR) and not 0 <= b < dtype.bits:
        return None
    try:
        value = _EVALUATE[op](a, b)
    except (OverflowError, ValueError):
        return None
    if op in COMPARISONS:
        return bool(value)
    if dtype.is_float:
        return _round_to(value, dtype)
    return bool(value) if dtype.kind == "bool" else wrap_integer(int(value), dtype)


def binary(op: Op, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b` with constants folded and neutral elements dropped. Integers: x+0, x*1, x*0, x//1, x%1; bools: and/or with a constant.
    Floats keep IEEE meaning: only x*1.0 and x/1.0 are dropped."""
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
    """Value conversion: floats to integers truncate towards zero, integers wrap, anything to bool is `!= 0`."""
    if a.dtype is dtype:
        return a
    if a.op is Op.CONST and (dtype.kind != "bool" and not (a.dtype.is_float and dtype.is_integer and not math.isfinite(a.attr))):
        return const(a.attr, dtype)
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
    What `vpdpbusd`, `sdot` and `vpmaddwd` do."""
    name = f"dot{len(a)}"
    if name not in DOTS or len(a) != len(b):
        raise TypeError(f"there is no intrinsic for a sum of {len(a)} and {len(b)} factors")
    if not is_dot(total.dtype, [x.dtype for x in a], [x.dtype for x in b]):
        raise TypeError(f"{name} of {total.dtype}, {a[0].dtype} and {b[0].dtype} is not defined")
    return make(Op.CALL, total.dtype, (total, *a, *b), name)


def is_dot(total: DType, a: Sequence[DType], b: Sequence[DType]) -> bool:
    """Whether a sum of products of these dtypes is one of DOTS."""
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
    if op in _EVALUATE:
        return binary(op, args[0], args[1])
    if op is Op.SELECT:
        return select(args[0], args[1], args[2])
    if op is Op.CAST:
        return cast(e.dtype, args[0])
    if op is Op.NOT:
        return logical_not(args[0])
    return make(op, e.dtype, args, e.attr)


def transform(e: Expr, visit: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Bottom-up rewrite: each node, rebuilt over its rewritten arguments, is offered to `visit`, which answers a replacement or None.
    Shared nodes are visited once; pass the same `memo` to share work between calls with the same `visit`."""
    memo = {} if memo is None else memo
    done = memo.get(e)
    if done is not None:
        return done
    result = e
    if e.args:
        args = tuple([memo[a] if a in memo else transform(a, visit, memo) for a in e.args])
        if args != e.args:
            result = rebuild(e, args)
    replacement = visit(result)
    if replacement is not None:
        result = replacement
    memo[e] = result
    return result


def substitute(e: Expr, mapping: Mapping[Expr, Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with each node that is a key of `mapping` (usually variables) replaced; replaced nodes are not looked into again."""
    memo = {} if memo is None else memo
    done = memo.get(e)
    if done is not None:
        return done
    replacement = mapping.get(e)
    if replacement is None:
        replacement = e
        if e.args:
            args = tuple([substitute(a, mapping, memo) for a in e.args])
            if args != e.args:
                replacement = rebuild(e, args)
    memo[e] = replacement
    return replacement


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct node below the roots, arguments before users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            if node.args:
                stack.append((node, True))
                stack.extend([(a, False) for a in reversed(node.args)])
            else:
                yield node


_NONE: frozenset[Expr] = frozenset()


def variables_in(e: Expr) -> frozenset[Expr]:
    """The variables in `e`; kept at the node, for questions that are asked again and again. `free_vars` tells them in order."""
    if not e.args:
        return frozenset((e,)) if e.op is Op.VAR else _NONE
    found = e.variables
    if found is None:
        found = e.variables = _NONE.union(*[variables_in(a) for a in e.args])
    return found


def depends_on(e: Expr, variables: Collection[Expr]) -> bool:
    """Whether any of `variables` occurs in `e`."""
    return not variables_in(e).isdisjoint(variables) if e.args else e in variables


def free_vars(*roots: Expr) -> tuple[Expr, ...]:
    """The variables in the roots, in order of first use."""
    return tuple(node for node in walk(*roots) if node.op is Op.VAR)


def evaluate_int(e: Expr, env: Mapping[Expr, int], memo: dict[Expr, int] | None = None) -> int:
    """The value of an integer or bool expression without loads, given its variables; KeyError for an unknown variable. Shared nodes are
    evaluated once; pass the same `memo` to share work between calls with the same `env`."""
    if e.op is Op.CONST:
        return int(e.attr)
    if e.op is Op.VAR:
        return env[e]
    memo = {} if memo is None else memo
    found = memo.get(e)
    if found is None:
        found = memo[e] = _evaluate_int(e, env, memo)
    return found


def _evaluate_int(e: Expr, env: Mapping[Expr, int], memo: dict[Expr, int]) -> int:
    if e.op is Op.SELECT:
        return evaluate_int(e.args[1] if evaluate_int(e.args[0], env, memo) else e.args[2], env, memo)
    if e.op is Op.NOT:
        value = evaluate_int(e.args[0], env, memo)
        return int(not value) if e.dtype.kind == "bool" else wrap_integer(~value, e.dtype)
    if e.op is Op.CAST:
        value = evaluate_int(e.args[0], env, memo)
        return int(value != 0) if e.dtype.kind == "bool" else wrap_integer(value, e.dtype)
    result = evaluate(e.op, e.args[0].dtype, *[evaluate_int(a, env, memo) for a in e.args])
    if result is None:
        raise ZeroDivisionError(f"{e!r} divides by zero")
    return int(result)
