"""Text form of scalar expressions and tensor types: Python's expression syntax with as few parentheses as its grammar allows.

`i0 * 8 + i1`, `x // 3`, `min(a, b)`, `select(c, a, b)`, `cast(float32, x)`, `x[i, j]` for loads, `exp(x)`, `a and not b`. Constants of
int64 and bool are plain; others name their dtype: `float32(1.5)`, `int32(3)`. `parser.parse_expr` reads it back to the same node.
"""

from __future__ import annotations

import keyword
import math
import struct
from collections.abc import Mapping
from typing import Any

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.ir.types import TensorType

# Python's precedence levels, loosest first.
_OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _PRODUCT, _UNARY, _ATOM = range(12)

_INFIX: dict[Op, tuple[str, int]] = {
    Op.ADD: ("+", _SUM),
    Op.SUB: ("-", _SUM),
    Op.MUL: ("*", _PRODUCT),
    Op.DIV: ("/", _PRODUCT),
    Op.FLOORDIV: ("//", _PRODUCT),
    Op.FLOORMOD: ("%", _PRODUCT),
    Op.EQ: ("==", _COMPARE),
    Op.NE: ("!=", _COMPARE),
    Op.LT: ("<", _COMPARE),
    Op.LE: ("<=", _COMPARE),
    Op.AND: ("&", _BIT_AND),
    Op.OR: ("|", _BIT_OR),
    Op.XOR: ("^", _BIT_XOR),
    Op.SHL: ("<<", _SHIFT),
    Op.SHR: (">>", _SHIFT),
}
_BOOL_INFIX: dict[Op, tuple[str, int]] = {Op.AND: ("and", _AND), Op.OR: ("or", _OR)}
PREFIX_NAMES: dict[Op, str] = {
    Op.SELECT: "select",
    Op.MIN: "min",
    Op.MAX: "max",
    Op.TRUNCDIV: "trunc_div",
    Op.TRUNCMOD: "trunc_mod",
}


def format_expr(e: Expr, names: Mapping[Any, str] | None = None) -> str:
    """The expression as text. `names` renames variables and buffers (for printers that must keep equal names apart)."""
    names = names or {}
    texts: dict[Expr, tuple[str, int]] = {}
    for node in walk(e):
        texts[node] = _format_node(node, texts, names)
    return texts[e][0]


def format_type(type_: TensorType, names: Mapping[Any, str] | None = None) -> str:
    """`float32[N, 8]`; a scalar is `float32[()]`."""
    return f"{type_.dtype.name}[{_indices(tuple(format_expr(dim, names) for dim in type_.shape))}]"


def format_name(name: str) -> str:
    """A variable or buffer name as the text form writes it: plain if it is an identifier, else `var("...")`."""
    if name.isidentifier() and not keyword.iskeyword(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
    return f'var("{escaped}")'


def format_const(value: Any, dtype: DType) -> str:
    """A constant; exact, also for infinities and NaNs with a sign or payload."""
    if dtype is dtypes.int64 or dtype is dtypes.bool_:
        return repr(value)
    return f"{dtype.name}({format_float(value, dtype) if dtype.is_float else value})"


def format_float(value: float, dtype: DType) -> str:
    """The shortest decimal that `const(..., dtype)` rounds to `value`."""
    if math.isnan(value):
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        quiet = struct.unpack("<Q", struct.pack("<d", math.nan))[0]
        if bits & ~(1 << 63) != quiet:
            return f"nan_bits(0x{bits:016x})"
        return "-nan" if bits >> 63 else "nan"
    if math.isinf(value) or dtype is dtypes.float64 or value == 0:  # the short form of some dtypes is `-0`, an int
        return repr(value)
    short = str(dtype.numpy.type(value))
    try:
        exact = const(float(short), dtype).value == value
    except ValueError:
        exact = False
    return short if exact else repr(value)


def _format_node(e: Expr, texts: Mapping[Expr, tuple[str, int]], names: Mapping[Any, str]) -> tuple[str, int]:
    op = e.op
    if op is Op.CONST:
        text = format_const(e.attr, e.dtype)
        return text, _UNARY if text.startswith("-") else _ATOM
    if op is Op.VAR:
        return format_name(names.get(e, e.name)), _ATOM
    if op is Op.LOAD:
        name = names.get(e.attr, e.attr.name)
        return f"{format_name(name)}[{_indices(tuple(texts[a][0] for a in e.args))}]", _ATOM
    if op is Op.NOT:
        word, level = ("not ", _NOT) if e.dtype.kind == "bool" else ("~", _UNARY)
        return word + _operand(texts[e.args[0]], level), level
    infix = _BOOL_INFIX.get(op) if e.dtype.kind == "bool" else None
    infix = infix or _INFIX.get(op)
    if infix is not None:
        sign, level = infix
        left, right = (texts[a] for a in e.args)
        # Comparisons do not associate: Python chains `a < b < c`.
        return f"{_operand(left, level + (level == _COMPARE))} {sign} {_operand(right, level + 1)}", level
    arguments = ", ".join(texts[a][0] for a in e.args)
    if op in (Op.CAST, Op.BITCAST):
        return f"{op.value}({e.dtype.name}, {arguments})", _ATOM
    return f"{PREFIX_NAMES.get(op) or e.attr}({arguments})", _ATOM


def _operand(text: tuple[str, int], level: int) -> str:
    return text[0] if text[1] >= level else f"({text[0]})"


def _indices(texts: tuple[str, ...]) -> str:
    return ", ".join(texts) or "()"
