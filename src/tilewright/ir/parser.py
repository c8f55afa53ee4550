"""Reads the text form of scalar expressions (see `printer`) through Python's `ast`, without folding anything.

The kernel script and the graph text reuse it on the ast nodes of whole files. What the printer never writes but people do is read as
well: `a > b`, `-x`, chained comparisons, `min` of many, and plain number literals beside an operand of another dtype, whose dtype
they take.
"""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, is_dot, make
from tilewright.ir.printer import PREFIX_NAMES
from tilewright.ir.scalar_ops import BOOL_INTRINSICS, COMPARISONS, DOTS, INTRINSICS, Op
from tilewright.ir.types import TensorType
from tilewright.support.errors import ParseError

_BINARY: dict[type[ast.operator], Op] = {
    ast.Add: Op.ADD,
    ast.Sub: Op.SUB,
    ast.Mult: Op.MUL,
    ast.Div: Op.DIV,
    ast.FloorDiv: Op.FLOORDIV,
    ast.Mod: Op.FLOORMOD,
    ast.BitAnd: Op.AND,
    ast.BitOr: Op.OR,
    ast.BitXor: Op.XOR,
    ast.LShift: Op.SHL,
    ast.RShift: Op.SHR,
}
# Comparison -> (operator, whether the operands swap places)
_COMPARE: dict[type[ast.cmpop], tuple[Op, bool]] = {
    ast.Eq: (Op.EQ, False),
    ast.NotEq: (Op.NE, False),
    ast.Lt: (Op.LT, False),
    ast.LtE: (Op.LE, False),
    ast.Gt: (Op.LT, True),
    ast.GtE: (Op.LE, True),
}
_BY_PREFIX_NAME: dict[str, Op] = {name: op for op, name in PREFIX_NAMES.items()}


def parse_expr(source: str | ast.expr, names: Mapping[str, Any], dtype: DType | None = None) -> Expr:
    """The expression written in `source`, text or an ast node of a file that is being read.

    `names` gives the expression (usually a variable) or buffer of each name. `dtype` is what plain number literals take when the whole
    of `source` is one, and what the result must have. Raises ParseError with line and column.
    """
    node = _parse_text(source) if isinstance(source, str) else source
    try:
        result = _Reader(names).expr(node, dtype)
    except RecursionError:
        raise parse_error(node, "the expression is nested too deeply") from None
    if dtype is not None and result.dtype is not dtype:
        raise parse_error(node, f"`{_text(node)}` is {result.dtype}, where {dtype} is needed")
    return result


def parse_type(source: str | ast.expr, names: Mapping[str, Any]) -> TensorType:
    """The tensor type written in `source`, such as `float32[N, 8]`; dims are expressions over `names`. Raises ParseError."""
    node = _parse_text(source) if isinstance(source, str) else source
    if not isinstance(node, ast.Subscript):
        raise parse_error(
            node, f"`{_text(node)}` is not a tensor type", hint="write dtype and dims: float32[2, 3]; a scalar is float32[()]"
        )
    return TensorType(parse_dtype(node.value), tuple(parse_expr(dim, names, dtypes.int64) for dim in index_nodes(node)))


def parse_dtype(node: ast.expr) -> DType:
    """The dtype that the node names; ParseError if there is none."""
    found = dtypes.BY_NAME.get(node.id) if isinstance(node, ast.Name) else None
    if found is None:
        raise parse_error(node, f"`{_text(node)}` is not a dtype", hint="one of " + ", ".join(dtypes.BY_NAME))
    return found


def index_nodes(node: ast.Subscript) -> list[ast.expr]:
    """The parts between the brackets: `x[i, j]` gives two, `x[()]` none."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def parse_error(node: ast.AST, what: str, *, why: str | None = None, hint: str | None = None) -> ParseError:
    """A ParseError that points at the node's line and column (both from 1)."""
    line, column = getattr(node, "lineno", None), getattr(node, "col_offset", 0)
    return ParseError(what, where=None if line is None else f"line {line}, column {column + 1}", why=why, hint=hint)


def name_of(node: ast.expr) -> str | None:
    """The name that a node spells: an identifier, or `var("any text")` for names that are no identifiers."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "var" and len(node.args) == 1:
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            return node.args[0].value
    return None


def number(node: ast.expr) -> int | float | None:
    """The number that a literal spells (`3`, `-1.5`, `inf`, `-nan`, `nan_bits(0x...)`), or None."""
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.UnaryOp):
        value = number(node.operand)
        return None if value is None or isinstance(value, bool) else -value
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "nan_bits" and len(node.args) == 1:
        bits = number(node.args[0])
        if isinstance(bits, int) and 0 <= bits < 1 << 64:
            value = struct.unpack("<d", struct.pack("<Q", bits))[0]
            return value if math.isnan(value) else None
    return None


def _parse_text(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        raise ParseError(
            f"`{_shorten(text.strip())}` is not an expression", where=f"line {line}, column {column}", why=getattr(error, "msg", str(error))
        ) from None


def _text(node: ast.AST) -> str:
    return _shorten(ast.unparse(node))


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


class _Reader:
    """Recursive descent over ast nodes with one table of names."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def expr(self, node: ast.expr, dtype: DType | None = None) -> Expr:
        """The node's expression; `dtype` is what a plain literal takes."""
        value = _literal(node)
        if value is not None:
            return self.constant(node, value, dtype or _default_dtype(value))
        match node:
            case ast.Name():
                return self.named(node, node.id)
            case ast.BinOp():
                return self.operators(node, dtype)
            case ast.UnaryOp():
                return self.unary(node, dtype)
            case ast.BoolOp(op, values):
                symbol = Op.AND if isinstance(op, ast.And) else Op.OR
                return self.fold(node, symbol, [self.expr(v, dtypes.bool_) for v in values], dtypes.bool_)
            case ast.Compare(left, ops, comparators):
                return self.comparison(node, [left, *comparators], ops)
            case ast.Subscript():
                return self.load(node)
            case ast.IfExp(test, body, orelse):
                return self.select(node, [test, body, orelse], dtype)
            case ast.Call():
                return self.call(node, dtype)
        raise parse_error(node, f"`{_text(node)}` has no meaning in an expression")

    def named(self, node: ast.expr, name: str) -> Expr:
        found = self.names.get(name)
        if found is None:
            hint = "known names: " + ", ".join(sorted(self.names)) if self.names else None
            raise parse_error(node, f"`{name}` is not defined here", hint=hint)
        if not isinstance(found, Expr):
            raise parse_error(node, f"`{name}` is a buffer and needs indices", hint=f"{name}[()] reads a scalar buffer")
        return found

    def constant(self, node: ast.expr, value: int | float, dtype: DType) -> Expr:
        if isinstance(value, bool) != (dtype.kind == "bool") or (isinstance(value, float) and not dtype.is_float):
            raise parse_error(node, f"`{_text(node)}` is not a value of {dtype}")
        if dtype.kind in ("complex", "string"):
            raise parse_error(node, f"there are no constants of {dtype}")
        if dtype.is_integer and not dtype.lowest <= value <= dtype.highest:
            raise parse_error(node, f"{value} does not fit in {dtype}")
        if dtype.is_float and value != value:
            return make(Op.CONST, dtype, (), value)  # rounding would lose sign and payload
        return const(value, dtype)

    def pair(self, left: ast.expr, right: ast.expr, dtype: DType | None) -> tuple[Expr, Expr]:
        """Two operands of one dtype; a plain literal takes that of the other."""
        if _literal(left) is not None and _literal(right) is None:
            second = self.expr(right, dtype)
            return self.expr(left, second.dtype), second
        first = self.expr(left, dtype)
        return first, self.expr(right, first.dtype if _literal(left) is None else dtype)

    def fold(self, node: ast.expr, op: Op, operands: Sequence[Expr], dtype: DType | None = None) -> Expr:
        result = operands[0]
        for operand in operands[1:]:
            result = self.binary(node, op, result, operand)
        if dtype is not None and result.dtype is not dtype:
            raise parse_error(node, f"`{_text(node)}` needs operands of {dtype}, not {result.dtype}")
        return result

    def binary(self, node: ast.expr, op: Op, a: Expr, b: Expr) -> Expr:
        if a.dtype is not b.dtype:
            raise parse_error(
                node,
                f"`{_text(node)}` mixes {a.dtype} and {b.dtype}",
                hint=f"convert one side: cast({a.dtype}, ...) or cast({b.dtype}, ...)",
            )
        if op is Op.DIV and not a.dtype.is_float:
            raise parse_error(node, f"`{_text(node)}`: / divides floats, not {a.dtype}", hint="// rounds down, trunc_div towards zero")
        return make(op, dtypes.bool_ if op in COMPARISONS else a.dtype, (a, b))

    def operators(self, node: ast.BinOp, dtype: DType | None) -> Expr:
        # The left spine is walked in a loop, so that long sums do not exhaust Python's stack.
        spine = [node]
        while isinstance(spine[-1].left, ast.BinOp):
            spine.append(spine[-1].left)
        result: Expr | None = None
        for level in reversed(spine):
            op = _BINARY.get(type(level.op))
            if op is None:
                raise parse_error(level, f"`{_text(level)}` uses an operator that expressions do not have")
            if result is None:
                left, right = self.pair(level.left, level.right, dtype)
            else:
                left, right = result, self.expr(level.right, result.dtype)
            result = self.binary(level, op, left, right)
        assert result is not None
        return result

    def unary(self, node: ast.UnaryOp, dtype: DType | None) -> Expr:
        a = self.expr(node.operand, dtype)
        is_bool = a.dtype.kind == "bool"
        match node.op:
            case ast.Not() if is_bool:
                return make(Op.NOT, a.dtype, (a,))
            case ast.Invert() if a.dtype.is_integer:
                return make(Op.NOT, a.dtype, (a,))
            case ast.USub() if a.dtype.is_integer:
                return make(Op.SUB, a.dtype, (const(0, a.dtype), a))
            case ast.USub() if a.dtype.is_float:
                return make(Op.MUL, a.dtype, (a, const(-1, a.dtype)))
            case ast.UAdd() if not is_bool:
                return a
        raise parse_error(node, f"`{_text(node)}`: the operator does not apply to {a.dtype}")

    def comparison(self, node: ast.expr, operands: Sequence[ast.expr], ops: Sequence[ast.cmpop]) -> Expr:
        """Chains mean the conjunction, as in Python."""
        parts: list[Expr] = []
        for left, right, symbol in zip(operands, operands[1:], ops, strict=False):
            if type(symbol) not in _COMPARE:
                raise parse_error(node, f"`{_text(node)}` uses a comparison that expressions do not have")
            op, swapped = _COMPARE[type(symbol)]
            a, b = self.pair(left, right, None)
            parts.append(self.binary(node, op, b, a) if swapped else self.binary(node, op, a, b))
        return self.fold(node, Op.AND, parts)

    def load(self, node: ast.Subscript) -> Expr:
        name = name_of(node.value)
        buffer = None if name is None else self.names.get(name)
        if buffer is None or isinstance(buffer, Expr):
            raise parse_error(node, f"`{_text(node.value)}` is not a buffer")
        indices = tuple(self.expr(i, dtypes.int64) for i in index_nodes(node))
        if len(indices) != len(buffer.shape):
            raise parse_error(node, f"{name} has {len(buffer.shape)} dimensions, indexed with {len(indices)}")
        for index in indices:
            if not index.dtype.is_integer:
                raise parse_error(node, f"`{_text(node)}`: an index is {index.dtype}, not an integer")
        return make(Op.LOAD, buffer.dtype, indices, buffer)

    def select(self, node: ast.expr, parts: Sequence[ast.expr], dtype: DType | None) -> Expr:
        condition = self.expr(parts[0], dtypes.bool_)
        if condition.dtype.kind != "bool":
            raise parse_error(parts[0], f"the condition `{_text(parts[0])}` is {condition.dtype}, not bool")
        a, b = self.pair(parts[1], parts[2], dtype)
        if a.dtype is not b.dtype:
            raise parse_error(node, f"`{_text(node)}` chooses between {a.dtype} and {b.dtype}")
        return make(Op.SELECT, a.dtype, (condition, a, b))

    def call(self, node: ast.Call, dtype: DType | None) -> Expr:
        name = name_of(node)
        if name is not None:
            return self.named(node, name)
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise parse_error(node, f"`{_text(node)}` is not a function of expressions")
        function, args = node.func.id, node.args
        op = _BY_PREFIX_NAME.get(function)
        if function in dtypes.BY_NAME:
            return self.conversion(node, dtypes.BY_NAME[function])
        if function in ("cast", "bitcast"):
            return self.cast(node)
        if op is not None:
            self.count(node, 3 if op is Op.SELECT else 2, at_least=op in (Op.MIN, Op.MAX))
            if op is Op.SELECT:
                return self.select(node, args, dtype)
            first, second = self.pair(args[0], args[1], dtype)
            return self.fold(node, op, [first, second, *(self.expr(a, first.dtype) for a in args[2:])])
        if function not in INTRINSICS:
            raise parse_error(node, f"there is no function `{function}`", hint="intrinsics: " + ", ".join(INTRINSICS))
        self.count(node, INTRINSICS[function])
        if function in DOTS:
            return self.dot(node, function)
        anchor = next((self.expr(a) for a in args if _literal(a) is None), None)
        operands = tuple(self.expr(a, dtype if anchor is None else anchor.dtype) for a in args)
        if any(a.dtype is not operands[0].dtype for a in operands):
            raise parse_error(node, f"{function} needs arguments of one dtype, got {', '.join(a.dtype.name for a in operands)}")
        return make(Op.CALL, dtypes.bool_ if function in BOOL_INTRINSICS else operands[0].dtype, operands, function)

    def dot(self, node: ast.Call, function: str) -> Expr:
        """A sum of products: the operands' dtypes may differ, so constants among them carry theirs."""
        total, *factors = (self.expr(a) for a in node.args)
        left, right = factors[: DOTS[function]], factors[DOTS[function] :]
        if not is_dot(total.dtype, [a.dtype for a in left], [b.dtype for b in right]):
            dtypes_ = ", ".join(a.dtype.name for a in (total, *factors))
            raise parse_error(node, f"{function} takes an int32 and two rows of integers of 8 or 16 bits, got {dtypes_}")
        return make(Op.CALL, total.dtype, (total, *left, *right), function)

    def count(self, node: ast.Call, wanted: int, at_least: bool = False) -> None:
        if len(node.args) != wanted and not (at_least and len(node.args) > wanted):
            raise parse_error(node, f"`{_text(node)}` has {len(node.args)} arguments, needs {wanted}")

    def conversion(self, node: ast.Call, dtype: DType) -> Expr:
        """`float32(1.5)` is a constant, `float32(x)` short for `cast(float32, x)`."""
        self.count(node, 1)
        value = number(node.args[0])
        if value is not None:
            return self.constant(node, value, dtype)
        return make(Op.CAST, dtype, (self.expr(node.args[0]),))

    def cast(self, node: ast.Call) -> Expr:
        assert isinstance(node.func, ast.Name)
        self.count(node, 2)
        dtype, operand = parse_dtype(node.args[0]), self.expr(node.args[1])
        if node.func.id == "cast":
            return make(Op.CAST, dtype, (operand,))
        if dtype.bits != operand.dtype.bits:
            raise parse_error(node, f"bitcast from {operand.dtype} to {dtype} changes the width")
        return make(Op.BITCAST, dtype, (operand,))


def _literal(node: ast.expr) -> int | float | None:
    """The number of a plain literal; `inf` and `nan` are names outside of typed constants."""
    if isinstance(node, (ast.Constant, ast.UnaryOp)) and not (isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant)):
        return number(node)
    return None


def _default_dtype(value: int | float) -> DType:
    if isinstance(value, bool):
        return dtypes.bool_
    return dtypes.int64 if isinstance(value, int) else dtypes.float32
