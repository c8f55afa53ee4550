"""LLVM IR as text: a module that collects functions, declarations and constants, and a function under construction.

Strings are put together directly, which costs a few hundred nanoseconds an instruction; building LLVM's objects from Python costs tens
of microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Operand = str | int  # the name of a value or a constant; plain ints are known constants of i64, folded as they meet

_REPEATABLE = frozenset(
    ["add", "and", "ashr", "bitcast", "freeze", "getelementptr", "icmp", "insertelement", "mul", "select", "sext", "shufflevector", "sub"]
    + ["trunc", "xor", "zext"]
)
_EXTREMES = ("call i64 @llvm.smax", "call i64 @llvm.smin")
_PLAIN_NAME = re.compile(r"[A-Za-z_.$][A-Za-z0-9_.$]*\Z")


def symbol(name: str) -> str:
    """The global `@name`, quoted when it holds other than letters, digits, `_`, `.` and `$`."""
    if _PLAIN_NAME.match(name):
        return "@" + name
    return '@"' + "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else f"\\{b:02X}" for c in name for b in c.encode()) + '"'


class Module:
    """The text of one LLVM module, piece by piece."""

    __slots__ = ("_declarations", "_functions", "_globals", "_plain_loops", "attributes", "contract")

    def __init__(self, attributes: str, contract: bool = True) -> None:
        """attributes: those of every function that is defined here, such as `nounwind`. contract: float products and sums may become
        multiply-adds."""
        self.attributes = attributes
        self.contract = contract
        self._declarations: dict[str, None] = {}
        self._globals: dict[str, str] = {}
        self._functions: list[str] = []
        self._plain_loops = 0

    def declare(self, line: str) -> None:
        """Adds a declaration, once."""
        self._declarations[line] = None

    def constant(self, name: str, definition: str) -> str:
        """A private constant `@name = ...`, defined once; gives its symbol."""
        self._globals[name] = definition
        return symbol(name)

    def add(self, function: Function) -> None:
        self._functions.append(function.text(self.attributes))

    def plain_loop(self) -> str:
        """What follows the branch that closes a loop which LLVM shall not unroll."""
        self._plain_loops += 1
        return f", !llvm.loop !{self._plain_loops}"

    def define(self, text: str) -> None:
        """Adds a function written out as text, once."""
        if text not in self._functions:
            self._functions.append(text)

    def text(self) -> str:
        globals_ = (f"{symbol(name)} = {definition}" for name, definition in self._globals.items())
        loops = [f"!{number} = distinct !{{!{number}, !0}}" for number in range(1, self._plain_loops + 1)]
        if loops:
            loops.insert(0, '!0 = !{!"llvm.loop.unroll.disable"}')
        return "\n".join((*self._declarations, *globals_, *self._functions, *loops, ""))


class Function:
    """One function under construction. Instructions go to the end of the current block; `block` is its label.

    values: where it is a table, an instruction without effects that is there already is not appended again. Whoever begins blocks takes
    entries out with the block that they are in: `log` has them in order, as (table, key).
    """

    __slots__ = ("_count", "_entry", "_header", "_lines", "block", "log", "module", "tiles", "values")

    def __init__(self, module: Module, name: str, params: Sequence[str], result: str = "void", linkage: str = "", extra: str = "") -> None:
        """params: as in the text, `ptr noalias %x`. linkage: `internal` or empty. extra: further attributes."""
        self.module = module
        self._header = f"define {linkage + ' ' if linkage else ''}{result} {symbol(name)}({', '.join(params)})"
        if extra:
            self._header += " " + extra
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self.block = "entry"
        self.values: dict[str, str] | None = None
        self.log: list[tuple[dict[Any, Any], Any]] = []
        self.tiles: Any = None  # what `matrix` keeps of a function's tile registers

    def op(self, text: str) -> str:
        """Appends an instruction that has a result; gives the result's name."""
        values = self.values
        repeatable = values is not None and (text[: text.index(" ")] in _REPEATABLE or text.startswith(_EXTREMES))
        if repeatable and values is not None and (found := values.get(text)) is not None:
            return found
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        if repeatable and values is not None:
            values[text] = name
            self.log.append((values, text))
        return name

    def do(self, text: str) -> None:
        """Appends an instruction without a result."""
        self._lines.append("  " + text)

    def alloca(self, text: str) -> str:
        """Appends to the entry block, where LLVM promotes stack slots to registers."""
        self._count += 1
        name = f"%a{self._count}"
        self._entry.append(f"  {name} = alloca {text}")
        return name

    def at_entry(self, text: str) -> None:
        """Appends an instruction without a result to the entry block, after the slots so far."""
        self._entry.append("  " + text)

    def label(self, hint: str) -> str:
        """A label not used before, for `start`."""
        self._count += 1
        return f"{hint}.{self._count}"

    def start(self, label: str) -> None:
        """Begins the block `label`; the one before must have ended in a branch."""
        self._lines.append(label + ":")
        self.block = label

    def jump(self, label: str) -> None:
        self._lines.append(f"  br label %{label}")

    def branch(self, condition: Operand, if_true: str, if_false: str, metadata: str = "") -> None:
        self._lines.append(f"  br i1 {condition}, label %{if_true}, label %{if_false}{metadata}")

    def phi_later(self) -> tuple[str, int]:
        """A name and a place for a phi whose incoming values are known only when its loop is closed; see `set_phi`."""
        self._count += 1
        self._lines.append("")
        return f"%i{self._count}", len(self._lines) - 1

    def set_phi(self, phi: tuple[str, int], type_: str, incoming: Sequence[tuple[Operand, str]]) -> None:
        name, place = phi
        self._lines[place] = f"  {name} = phi {type_} " + ", ".join(f"[ {value}, %{label} ]" for value, label in incoming)

    def text(self, attributes: str) -> str:
        return "\n".join((f"{self._header} {attributes} {{", "entry:", *self._entry, *self._lines, "}"))
