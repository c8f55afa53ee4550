"""Python text of one scalar operation, with the rounding or wrapping of its dtype; the interpreter's expressions are made of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import COMPARISONS, Op
from tilewright.kernel import scalars

_VARIABLE_BITS = 40  # sizes and loop variables are below 2**40 in anything that can be interpreted
_SYMBOLS: dict[Op, str] = {
    Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.FLOORDIV: "//", Op.FLOORMOD: "%", Op.EQ: "==", Op.NE: "!=", Op.LT: "<", Op.LE: "<=",
    Op.AND: "&", Op.OR: "|", Op.XOR: "^", Op.SHL: "<<", Op.SHR: ">>",
}  # fmt: skip
_BOOL_WORDS: dict[Op, str] = {Op.MIN: "{a} and {b}", Op.MAX: "{a} or {b}"}
_FLOAT_DIVISIONS: dict[Op, Callable[[Any, Any], Any]] = {
    Op.DIV: scalars.divide,
    Op.FLOORDIV: scalars.floor_divide,
    Op.FLOORMOD: scalars.floor_mod,
    Op.TRUNCMOD: scalars.float_mod,
}


@dataclass(slots=True)
class Formulas:
    """Makes formulas; `constants` are the functions and values that their names stand for."""

    constants: dict[str, Any] = field(default_factory=dict)
    widths: dict[Expr, int] = field(default_factory=dict)

    def literal(self, e: Expr) -> str:
        value = e.attr
        if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
            name = "nan" if value != value else ("inf" if value > 0 else "minus_inf")
            self.constants[name] = value
            return name
        return f"({value!r})" if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0 else repr(value)

    def formula(self, e: Expr, args: list[str], is_small: Callable[[Expr], bool]) -> str:
        """Python text of a node over its arguments, rounded or wrapped to its dtype. `is_small` tells the variables below 2**40."""
        op, dtype = e.op, e.dtype
        a = args[0]
        if op is Op.CALL:
            return self._call(e, args)
        if op is Op.CAST:
            source = e.args[0].dtype
            return f"{self._global(f'cast_{source}_{dtype}', scalars.caster(source, dtype))}({a})"
        if op is Op.BITCAST:
            source = e.args[0].dtype
            return f"{self._global(f'bitcast_{source}_{dtype}', scalars.bitcaster(source, dtype))}({a})"
        if op is Op.NOT:
            return f"not {a}" if dtype.kind == "bool" else self._wrap(f"~{a}", dtype)
        b = args[1]
        if op in COMPARISONS:
            return f"{a} {_SYMBOLS[op]} {b}"
        if dtype.kind in ("float", "complex"):
            return self._float_formula(op, dtype, a, b)
        if dtype.kind == "bool":
            return f"bool({a} {_SYMBOLS[op]} {b})" if op in _SYMBOLS else f"{_BOOL_WORDS[op]}".format(a=a, b=b)
        if op in (Op.MIN, Op.MAX):
            return f"{a} if {a} {'<=' if op is Op.MIN else '>='} {b} else {b}"
        if op in (Op.TRUNCDIV, Op.TRUNCMOD):
            return self._wrap(f"{self._trunc_division(op)}({a}, {b})", dtype)
        text = f"{a} {_SYMBOLS[op]} {b}"
        return text if self._width(e, is_small) < dtype.bits else self._wrap(text, dtype)

    def _trunc_division(self, op: Op) -> str:
        function = scalars.trunc_divide if op is Op.TRUNCDIV else scalars.trunc_remainder
        return self._global(function.__name__, function)

    def _float_formula(self, op: Op, dtype: DType, a: str, b: str) -> str:
        if op in (Op.MIN, Op.MAX):
            function = scalars.float_min if op is Op.MIN else scalars.float_max
            return f"{self._global(function.__name__, function)}({a}, {b})"
        if op in (Op.ADD, Op.SUB, Op.MUL):
            text = f"{a} {_SYMBOLS[op]} {b}"
        else:
            functions = _FLOAT_DIVISIONS
            text = f"{self._global(functions[op].__name__, functions[op])}({a}, {b})"
        return self._round(text, dtype)

    def _call(self, e: Expr, args: list[str]) -> str:
        name, dtype = str(e.attr), e.args[0].dtype
        if name == "popcount":
            return f"{self._global('popcount', scalars.popcount)}({args[0]}, {dtype.bits})"
        text = f"{self._global('call_' + name, scalars.INTRINSIC_VALUES[name])}({', '.join(args)})"
        if e.dtype.kind == "bool":
            return text
        return self._round(text, dtype) if dtype.is_float else self._wrap(text, dtype)

    def _round(self, text: str, dtype: DType) -> str:
        return text if dtype.bits == 64 and dtype.is_float else f"{self._global(f'round_{dtype}', scalars.rounder(dtype))}({text})"

    def _wrap(self, text: str, dtype: DType) -> str:
        mask = (1 << dtype.bits) - 1
        if dtype.kind == "uint":
            return f"({text}) & {mask}"
        half = 1 << (dtype.bits - 1)
        return f"(({text}) + {half} & {mask}) - {half}"

    def _width(self, e: Expr, is_small: Callable[[Expr], bool]) -> int:
        """Bits that the magnitude of an integer expression needs, if it does not wrap: where they fit, wrapping is left out."""
        found = self.widths.get(e)
        if found is not None:
            return found
        bits = e.dtype.bits
        match e.op:
            case Op.CONST:
                width = int(e.attr).bit_length()
            case Op.VAR if is_small(e):
                width = _VARIABLE_BITS
            case Op.ADD | Op.SUB if e.dtype.kind == "int" or e.op is Op.ADD:
                width = max(self._width(e.args[0], is_small), self._width(e.args[1], is_small)) + 1
            case Op.MUL:
                width = self._width(e.args[0], is_small) + self._width(e.args[1], is_small)
            case Op.FLOORDIV if e.args[1].is_const and e.args[1].attr > 0:
                width = self._width(e.args[0], is_small)
            case Op.FLOORMOD if e.args[1].is_const and e.args[1].attr > 0:
                width = self._width(e.args[1], is_small)
            case Op.MIN | Op.MAX | Op.SELECT:
                width = max(self._width(a, is_small) for a in e.args[-2:])
            case Op.SHR:
                width = self._width(e.args[0], is_small)
            case Op.AND | Op.OR | Op.XOR:
                width = bits - 1  # of values in range: never wraps
            case _:
                width = bits
        self.widths[e] = width = min(width, bits)
        return width

    def _global(self, name: str, value: Any) -> str:
        self.constants[name] = value
        return name
