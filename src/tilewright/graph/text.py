"""Text form of graphs: Python syntax, one line for each node.

    N = size(lo=1, hi=64)

    def main(x: float32[N, 8], w: float32[8, 4]):
        v0 = contract(x, w, spec="nk,km->nm")  # float32[N, 4]
        v1 = constant([0.5], float32[1])  # float32[1]
        v2 = binary(v0, v1, fn="add")  # float32[N, 4]
        return v2

    module(input_names=("x",), output_names=("y",))

* Operators are called by name: inputs first, then the fields that differ from their defaults. `binders=(v3,)` is written where they
  do not follow from the sizes that the operator mentions.
* Comments give the result types, which the parser checks, and after `--` the origin, when asked for.
* Constants of up to eight elements are written in place, larger ones by digest: `constant("sha256:1b2c...", float32[64, 3])`;
  `constants_of` collects those.
* Functions that an operator holds are local functions above it.
* Sizes of any value need no declaration; others stand in the header. A name that is no free identifier is written under another, with
  `name="..."` for sizes, `In[type, "..."]` for parameters and `@name("...")` for functions.

`text_parser.parse_module` reads it back to the same nodes.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np

from tilewright.graph.node import Array, Function, Module, Node, Operator, Parameter, Value, operator_sizes, walk_nodes
from tilewright.graph.ops.source import Constant, ConstantData
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.interning import field_key
from tilewright.ir.printer import format_expr, format_float, format_type
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import TensorType, tensor
from tilewright.kernel.script import identifier, is_free_name, quote

INLINE_ELEMENTS = 8
_WIDTH = 120
_DIGEST_DIGITS = 24


def format_function(function: Function, origins: bool = False) -> str:
    """The function, with the declarations of its sizes above and the functions that it holds inside."""
    printer = _Printer(origins)
    printer.sizes([function])
    printer.function(function, function.name)
    return "\n".join(printer.lines) + "\n"


def format_module(module: Module, origins: bool = False) -> str:
    """All functions of the module, and a last line with its entry and the names of the model's inputs and outputs."""
    printer = _Printer(origins)
    printer.sizes(list(module.functions.values()))
    keys = {}
    for key, function in module.functions.items():
        if printer.lines and printer.lines[-1]:
            printer.line("")
        keys[key] = printer.function(function, key)
    arguments = []
    if any(key != name for key, name in keys.items()):
        arguments.append("{" + ", ".join(f"{quote(key)}: {name}" for key, name in keys.items()) + "}")
    if module.entry != "main":
        arguments.append(f"entry={quote(module.entry)}")
    for what in ("input_names", "output_names"):
        names = getattr(module, what)
        if names:
            arguments.append(f"{what}={_tuple([quote(name) for name in names])}")
    if arguments:
        printer.line("")
        printer.line(f"module({', '.join(arguments)})")
    return "\n".join(printer.lines) + "\n"


def constants_of(functions: Iterable[Function]) -> dict[str, Array]:
    """The constants that the text names by digest, as `parse_module` wants them."""
    found: dict[str, Array] = {}
    for function in functions:
        for node in _all_nodes(function):
            for f in fields(node.op):
                value = getattr(node.op, f.name)
                if isinstance(value, ConstantData) and inline_elements(value) is None:
                    found[digest_name(value)] = value.array
    return found


def digest_name(data: ConstantData) -> str:
    """The name of a constant's contents: `sha256:` and the first digits of the digest."""
    return f"sha256:{data.digest[:_DIGEST_DIGITS]}"


def inline_elements(data: ConstantData) -> list[str] | None:
    """The elements as literals when they are few and come back exactly, else None."""
    array = data.array
    if array.size > INLINE_ELEMENTS:
        return None
    values = [_plain(element) for element in array.reshape(-1).tolist()]
    texts = [_literal(value, data.dtype) for value in values]
    return texts if ConstantData(array_of(values, data.dtype, array.shape)) == data else None


def array_of(values: list[Any], dtype: DType, shape: tuple[int, ...]) -> Array:
    """An array from Python scalars in row-major order."""
    if dtype is dtypes.string:
        result = np.empty(len(values), object)
        result[:] = values
        return result.reshape(shape)
    return np.array(values, np.int64 if dtype.is_integer and dtype.bits < 8 else None).astype(dtype.numpy).reshape(shape)


@dataclass(slots=True)
class _Printer:
    origins: bool
    lines: list[str] = field(default_factory=list)
    indent: int = 0
    size_names: dict[Any, str] = field(default_factory=dict)
    functions: dict[Function, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def sizes(self, functions: list[Function]) -> None:
        """The header: names all sizes and declares those that are not plain `size(name)`."""
        used: dict[Expr, None] = {}
        for function in functions:
            for node in _all_nodes(function):
                types = (*node.types, *(param.type for param in function.params))
                used |= dict.fromkeys((*free_vars(*(d for t in types for d in t.shape)), *operator_sizes(node.op), *node.op.defines))
        for function in functions:
            used |= dict.fromkeys(free_vars(*(d for param in function.params for d in param.type.shape)))
        for size in used:
            info = size.attr
            name = self.fresh(info.name)
            self.size_names[size] = name
            options = [f"name={quote(info.name)}"] if name != info.name else []
            options += [f"lo={info.lo}"] if info.lo != 0 else []
            options += [f"hi={info.hi}"] if info.hi is not None else []
            options += [f"multiple={info.multiple}"] if info.multiple != 1 else []
            options += [f"dtype={size.dtype.name}"] if size.dtype is not dtypes.int64 else []
            if options:
                self.line(f"{name} = size({', '.join(options)})")
        if self.lines:
            self.line("")

    def function(self, function: Function, wanted: str) -> str:
        """Prints a function; returns the name that it has from here on."""
        name = self.fresh(wanted)
        if name != function.name:
            self.line(f"@name({quote(function.name)})")
        with self.scope():
            names: dict[Value, str] = {}
            params = []
            for param in function.params:
                op = param.op
                label = op.label if isinstance(op, Parameter) else "?"
                names[param] = self.fresh(label)
                text = self.type(param.type)
                params.append(f"{names[param]}: {text}" if names[param] == label else f"{names[param]}: In[{text}, {quote(label)}]")
            self.header(name, params)
            self.indent += 1
            self.nodes(function, names)
            self.line(f"return {', '.join(names[value] for value in function.results) or '()'}")
            self.indent -= 1
        self.functions[function] = name
        return name

    def header(self, name: str, params: list[str]) -> None:
        text = f"def {name}({', '.join(params)}):"
        if len(text) + 4 * self.indent <= _WIDTH:
            self.line(text)
            return
        self.line(f"def {name}(")
        for param in params:
            self.line(f"    {param},")
        self.line("):")

    def nodes(self, function: Function, names: dict[Value, str]) -> None:
        bound: dict[Expr, Value] = {}
        for node in walk_nodes(function.results):
            if all(value in names for value in node.values):
                continue
            for held in _held_functions(node.op):
                if held not in self.functions:
                    self.function(held, held.name)
            arguments = [names[value] for value in node.inputs]
            if isinstance(node.op, Constant):
                arguments += self.constant(node.op.data)
            else:
                arguments += self.fields(node.op)
            if node.binders != expected_binders(node.op, bound):
                arguments.append(f"binders={_tuple([names[value] for value in node.binders])}")
            for defined in node.op.defines:
                bound.setdefault(defined, Value(node, 0))
            for value in node.values:
                names[value] = self.fresh(f"v{len(names) - len(function.params)}")
            targets = ", ".join(names[value] for value in node.values)
            comment = ", ".join(self.type(type_) for type_ in node.types)
            if self.origins and node.origin is not None:
                where = f" ({node.origin.location})" if node.origin.location else ""
                comment += f" -- {node.origin}{where}".replace("\n", " ")
            self.line(f"{targets} = {operator_word(node.op.name)}({', '.join(arguments)})  # {comment}")

    def fields(self, op: Operator) -> list[str]:
        texts = []
        for f in fields(op):
            value = getattr(op, f.name)
            if f.default is MISSING or field_key(value) != field_key(f.default):
                texts.append(f"{f.name}={self.value(value)}")
        return texts

    def value(self, value: Any) -> str:
        match value:
            case None | bool() | int():
                return repr(value)
            case float():
                return format_float(value, dtypes.float64)
            case str():
                return quote(value)
            case DType():
                return value.name
            case Expr():
                return format_expr(value, self.size_names)
            case TensorType():
                return self.type(value)
            case Function():
                return self.functions[value]
            case ConstantData():
                return f"tensor({', '.join(self.constant(value))})"
            case tuple():
                return _tuple([self.value(item) for item in value])
        return repr(value)

    def constant(self, data: ConstantData) -> list[str]:
        elements = inline_elements(data)
        shown = self.type(tensor(data.dtype, data.array.shape))
        if elements is None:
            return [quote(digest_name(data)), shown]
        return [f"[{', '.join(elements)}]" if data.array.ndim else elements[0], shown]

    def type(self, type_: TensorType) -> str:
        return format_type(type_, self.size_names)

    def fresh(self, wanted: str) -> str:
        text = wanted if is_free_name(wanted) else identifier(wanted)
        candidate, serial = text, 0
        while candidate in self.taken:
            serial += 1
            candidate = f"{text}_{serial}"
        self.taken.add(candidate)
        return candidate

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Functions are closed: inside, only sizes and functions around are visible; names given inside are free again outside."""
        taken, functions = self.taken, self.functions
        self.taken, self.functions = {*self.size_names.values(), *functions.values()}, dict(functions)
        yield
        self.taken, self.functions = taken, functions

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text if text else "")


def operator_word(name: str) -> str:
    """An operator's name as it is called: `if_` for `if`."""
    return name + "_" if keyword.iskeyword(name) else name


def expected_binders(op: Operator, bound: dict[Expr, Value]) -> tuple[Value, ...]:
    """The binders that `GraphBuilder.emit` gives a node of `op` when `bound` are the sizes bound so far."""
    if not bound:
        return ()
    mine = op.defines
    return tuple(dict.fromkeys(bound[size] for size in operator_sizes(op) if size in bound and size not in mine))


def _held_functions(op: Operator) -> list[Function]:
    def visit(value: Any) -> Iterator[Function]:
        if isinstance(value, Function):
            yield value
        elif isinstance(value, tuple):
            for item in value:
                yield from visit(item)

    return list(dict.fromkeys(function for f in fields(op) for function in visit(getattr(op, f.name))))


def _all_nodes(function: Function) -> Iterator[Node]:
    """Nodes of the function, of its parameters, and of the functions that its operators hold."""
    for node in walk_nodes((*function.params, *function.results)):
        for held in _held_functions(node.op):
            yield from _all_nodes(held)
        yield node


def _plain(element: Any) -> Any:
    return element.item() if isinstance(element, np.generic) else element


def _literal(value: Any, dtype: DType) -> str:
    if isinstance(value, str):
        return quote(value)
    if dtype.is_float:
        return format_float(float(value), dtype)
    return repr(int(value)) if dtype.is_integer else repr(value)


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
