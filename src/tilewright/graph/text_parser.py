"""Reads the text form of graphs (`text.py`) back to the same interned nodes.

What people may write beyond what the printer writes: nested calls, operators without a comment, default fields spelled out.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tilewright.graph.node import Array, Function, Module, Node, Operator, Parameter, Value
from tilewright.graph.ops import OPERATORS
from tilewright.graph.ops.source import Constant, ConstantData
from tilewright.graph.shapes import dims_equal
from tilewright.graph.text import array_of, digest_name, expected_binders, operator_word
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, VarInfo, make, size
from tilewright.ir.parser import index_nodes, number, parse_dtype, parse_error, parse_expr, parse_type
from tilewright.ir.scalar_ops import Op
from tilewright.ir.source_location import show_source
from tilewright.ir.types import TensorType, static_shape
from tilewright.kernel.script import RESERVED
from tilewright.support.errors import ModelError, ParseError

_TYPES = re.compile(r"#\s*((?:" + "|".join(dtypes.BY_NAME) + r")\[.*?)(?:\s--\s.*)?")
Table = Mapping[str, type[Operator]]


def parse_module(text: str, constants: Mapping[str, Array] | None = None, operators: Table = OPERATORS) -> Module:
    """The module that `format_module` wrote: functions made of the same nodes.

    `constants` gives the arrays of constants that are written by digest, by `sha256:...`. Raises ParseError with line and column, and a
    type rule's own error, located at its line.
    """
    return _guarded(text, constants, operators).module


def parse_function(text: str, constants: Mapping[str, Array] | None = None, operators: Table = OPERATORS) -> Function:
    """The last function that the text defines; `parse_function(format_function(f), constants_of([f])) is f`."""
    return list(_guarded(text, constants, operators).module.functions.values())[-1]


def _guarded(text: str, constants: Mapping[str, Array] | None, operators: Table) -> _Reader:
    reader = _Reader(
        constants or {}, {**{operator_word(name): operator for name, operator in operators.items()}, Parameter.name: Parameter}
    )
    try:
        reader.read(text)
    except ParseError as error:
        raise show_source(error, text) from None
    return reader


class _Sizes(Mapping[str, Expr]):
    """Sizes by name; an unknown name is a size of any value."""

    def __init__(self) -> None:
        self.declared: dict[str, Expr] = {}

    def __getitem__(self, name: str) -> Expr:
        if name in RESERVED:
            raise KeyError(name)
        return self.declared.setdefault(name, size(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)


@dataclass(slots=True)
class _Reader:
    constants: Mapping[str, Array]
    operators: Table
    module: Module = field(default_factory=lambda: Module({}))
    sizes: _Sizes = field(default_factory=_Sizes)
    functions: dict[str, Function] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    bound: dict[Expr, Value] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)

    def read(self, text: str) -> None:
        tree = _syntax_tree(text)
        self.comments = {
            token.start[0]: token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
        }
        for node in tree.body:
            match node:
                case ast.Assign([ast.Name(target)], ast.Call(ast.Name("size")) as call):
                    self.sizes.declared[target] = self.size(target, call)
                case ast.FunctionDef():
                    self.function(node)
                case ast.Expr(ast.Call(ast.Name("module")) as call):
                    self.finish(call)
                case _:
                    raise parse_error(node, f"`{_text(node)}` has no meaning in a module")
        if not self.module.functions:
            self.module = Module(dict(self.functions))

    def finish(self, call: ast.Call) -> None:
        functions = dict(self.functions)
        if call.args:
            table = call.args[0]
            if not isinstance(table, ast.Dict):
                raise parse_error(table, "module takes a dict of functions")
            functions = {
                str(self.field(key, str)): self.field(value, Function)
                for key, value in zip(table.keys, table.values, strict=True)
                if key is not None
            }
        hints = {"entry": str, "input_names": tuple[str, ...], "output_names": tuple[str, ...]}
        options = {}
        for keyword in call.keywords:
            if keyword.arg not in hints:
                raise parse_error(keyword.value, f"`{keyword.arg}` is no field of a module", hint="one of " + ", ".join(hints))
            options[keyword.arg] = self.field(keyword.value, hints[keyword.arg])
        self.module = Module(functions, **options)

    def size(self, target: str, call: ast.Call) -> Expr:
        options: dict[str, Any] = {"name": target, "lo": 0, "hi": None, "multiple": 1, "dtype": dtypes.int64}
        hints: dict[str, Any] = {"name": str, "lo": int | None, "hi": int | None, "multiple": int, "dtype": DType}
        for keyword in call.keywords:
            if keyword.arg not in hints:
                raise parse_error(keyword.value, f"`{keyword.arg}` is no option of a size", hint="one of " + ", ".join(hints))
            options[keyword.arg] = self.field(keyword.value, hints[keyword.arg])
        return make(Op.VAR, options["dtype"], (), VarInfo(options["name"], options["lo"], options["hi"], options["multiple"]))

    # Functions

    def function(self, node: ast.FunctionDef) -> Function:
        name = node.name
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(ast.Name("name"), [ast.Constant(str(given))]):
                    name = given
                case _:
                    raise parse_error(decorator, f"`{_text(decorator)}` is no decorator of functions")
        results: tuple[Value, ...] | None = None
        with self.scope():
            params = tuple([self.param(argument) for argument in node.args.args])
            for stmt in node.body:
                if results is not None:
                    raise parse_error(stmt, "nothing may follow the return")
                results = self.stmt(stmt)
        if results is None:
            raise parse_error(node, f"the function {node.name} does not return")
        made = self.functions[node.name] = Function(name, params, results)
        return made

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Functions are closed: values of the function around are not visible, its local functions are."""
        outer = (self.functions, self.values, self.bound)
        self.functions, self.values, self.bound = dict(self.functions), {}, {}
        yield
        self.functions, self.values, self.bound = outer

    def param(self, argument: ast.arg) -> Value:
        annotation, label = argument.annotation, argument.arg
        if annotation is None:
            raise parse_error(argument, f"parameter {argument.arg} has no type")
        if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name) and annotation.value.id == "In":
            annotation, given = index_nodes(annotation)
            label = str(self.field(given, str))
        type_ = parse_type(annotation, self.sizes)
        value = Node(Parameter(label, type_), (), (type_,))[0]
        self.define(argument, argument.arg, value)
        return value

    def stmt(self, node: ast.stmt) -> tuple[Value, ...] | None:
        """The results, when the statement is the return."""
        match node:
            case ast.FunctionDef():
                self.function(node)
                return None
            case ast.Assign([ast.Name(target)], ast.Call() as call):
                targets = [target]
            case ast.Assign([ast.Tuple(elements)], ast.Call() as call) if all(isinstance(e, ast.Name) for e in elements):
                targets = [element.id for element in elements if isinstance(element, ast.Name)]
            case ast.Return(ast.Tuple(elements)):
                return tuple(self.value(element) for element in elements)
            case ast.Return(ast.expr() as result):
                return (self.value(result),)
            case _:
                raise parse_error(node, f"`{_text(node)}` has no meaning in a function")
        values = self.call(call, self.annotation(node))
        if len(values) != len(targets):
            raise parse_error(node, f"the operator gives {len(values)} results, {len(targets)} are named")
        for target, value in zip(targets, values, strict=True):
            self.define(node, target, value)
        return None

    def define(self, node: ast.AST, name: str, value: Value) -> None:
        if name in self.values:
            raise parse_error(node, f"`{name}` is already defined here")
        self.values[name] = value

    def annotation(self, node: ast.stmt) -> tuple[TensorType, ...] | None:
        match = _TYPES.fullmatch(self.comments.get(node.end_lineno or 0, ""))
        if match is None:
            return None
        try:
            types = ast.parse(f"({match[1]},)", mode="eval").body
        except SyntaxError:
            raise parse_error(node, f"the comment `{match[1]}` does not read as types") from None
        ast.increment_lineno(types, node.lineno - 1)
        return tuple(parse_type(element, self.sizes) for element in types.elts) if isinstance(types, ast.Tuple) else None

    # Nodes

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Call):
            values = self.call(node, None)
            if len(values) != 1:
                raise parse_error(node, f"`{_text(node)}` gives {len(values)} results where one is needed")
            return values[0]
        found = self.values.get(node.id) if isinstance(node, ast.Name) else None
        if found is None:
            known = ", ".join(self.values)
            raise parse_error(node, f"`{_text(node)}` is not a value here", hint=f"values: {known}" if known else None)
        return found

    def call(self, node: ast.Call, annotated: tuple[TensorType, ...] | None) -> tuple[Value, ...]:
        operator = self.operators.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if operator is None:
            raise parse_error(node, f"there is no operator `{_text(node.func)}`")
        options = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        explicit = options.pop("binders", None)
        if operator is Constant:
            op: Operator = Constant(self.constant(node, node.args))
            inputs: tuple[Value, ...] = ()
        else:
            inputs = tuple([self.value(argument) for argument in node.args])
            op = self.operator(node, operator, options)
        try:
            types = op.infer(tuple([value.type for value in inputs]))
        except ModelError as error:
            raise error.located(f"line {node.lineno}: {_text(node)}") from None
        if annotated is not None:
            if len(annotated) != len(types) or not all(map(_agree, annotated, types)):
                shown, given = (", ".join(map(repr, some)) for some in (types, annotated))
                raise parse_error(node, f"the result of {op.name} is annotated {given}", why=f"its type rule gives {shown}")
            types = annotated
        binders = expected_binders(op, self.bound)
        if explicit is not None:
            if not isinstance(explicit, ast.Tuple):
                raise parse_error(explicit, "binders are a tuple of values")
            binders = tuple([self.value(element) for element in explicit.elts])
        made = Node(op, inputs, types, binders)
        for defined in op.defines:
            self.bound.setdefault(defined, Value(made, 0))
        return made.values

    def operator(self, node: ast.Call, operator: type[Operator], options: Mapping[str, ast.expr]) -> Operator:
        hints = _field_hints(operator)
        values = {}
        for name, given in options.items():
            if name not in hints:
                raise parse_error(given, f"{operator.name} has no field `{name}`", hint="fields: " + ", ".join(hints))
            values[name] = self.field(given, hints[name])
        missing = [f.name for f in fields(operator) if f.name not in values and f.default is MISSING and f.default_factory is MISSING]
        if missing:
            raise parse_error(node, f"{operator.name} needs {', '.join(missing)}")
        return operator(**values)

    def constant(self, node: ast.AST, arguments: list[ast.expr]) -> ConstantData:
        if len(arguments) != 2:
            raise parse_error(node, "a constant is written as its elements or digest, and its type")
        contents, type_ = arguments[0], parse_type(arguments[1], self.sizes)
        shape = static_shape(type_.shape)
        if shape is None:
            raise parse_error(arguments[1], "the shape of a constant is made of numbers")
        if isinstance(contents, ast.Constant) and isinstance(contents.value, str) and contents.value.startswith("sha256:"):
            array = self.constants.get(contents.value)
            if array is None:
                raise parse_error(contents, f"the constant {contents.value} is not among those given")
            data = ConstantData(array)
            if digest_name(data) != contents.value or data.dtype is not type_.dtype or array.shape != shape:
                raise parse_error(contents, f"the array given for {contents.value} is another one")
            return data
        elements = contents.elts if isinstance(contents, ast.List) else [contents]
        values = [_element(element) for element in elements]
        try:
            return ConstantData(array_of(values, type_.dtype, shape))
        except (ValueError, TypeError, OverflowError) as error:
            raise parse_error(contents, f"`{_text(contents)}` are not the elements of {type_!r}", why=str(error)) from None

    # Fields

    def field(self, node: ast.expr, hint: Any) -> Any:
        """The value of a field, as its type says."""
        origin = get_origin(hint)
        if hint is Expr:
            return parse_expr(node, self.sizes)
        if hint is DType:
            return parse_dtype(node)
        if hint is TensorType:
            return parse_type(node, self.sizes)
        if hint is ConstantData and isinstance(node, ast.Call):
            return self.constant(node, node.args)
        if hint is Function:
            found = self.functions.get(node.id) if isinstance(node, ast.Name) else None
            if found is None:
                raise parse_error(node, f"`{_text(node)}` is not a function here")
            return found
        if origin is tuple and isinstance(node, (ast.Tuple, ast.List)):
            return self.tuple_field(node, get_args(hint))
        if origin in (Union, UnionType):
            return self.union_field(node, get_args(hint))
        if hint in (bool, int, float):
            value = number(node)
            if value is not None and isinstance(value, bool) == (hint is bool) and not (hint is int and isinstance(value, float)):
                return value
        elif hint in (str, NoneType) or origin is Literal:
            if isinstance(node, ast.Constant) and (node.value in get_args(hint) if origin is Literal else isinstance(node.value, hint)):
                return node.value
        raise parse_error(node, f"`{_text(node)}` is no {getattr(hint, '__name__', hint)}")

    def tuple_field(self, node: ast.Tuple | ast.List, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        hints = [parts[0]] * len(node.elts) if len(parts) == 2 and parts[1] is Ellipsis else list(parts)
        if len(hints) != len(node.elts):
            raise parse_error(node, f"`{_text(node)}` has {len(node.elts)} items, not {len(hints)}")
        return tuple([self.field(element, hint) for element, hint in zip(node.elts, hints, strict=True)])

    def union_field(self, node: ast.expr, choices: tuple[Any, ...]) -> Any:
        fault: ParseError | None = None
        for choice in sorted(choices, key=lambda c: c is not NoneType):
            try:
                return self.field(node, choice)
            except ParseError as error:
                fault = error
        raise fault or parse_error(node, f"`{_text(node)}` fits no type")


def _syntax_tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        raise ParseError(
            "the graph text is not valid Python syntax", where=f"line {line}, column {column}", why=getattr(error, "msg", str(error))
        ) from None


@lru_cache(maxsize=512)
def _field_hints(operator: type[Operator]) -> dict[str, Any]:
    hints = get_type_hints(operator)
    return {f.name: hints[f.name] for f in fields(operator)}


def _agree(annotated: TensorType, inferred: TensorType) -> bool:
    if annotated.dtype is not inferred.dtype or annotated.rank != inferred.rank:
        return False
    return all(dims_equal(a, b) for a, b in zip(annotated.shape, inferred.shape, strict=True))


def _element(node: ast.expr) -> Any:
    value = number(node)
    if value is not None:
        return value
    try:
        return ast.literal_eval(node)  # strings and complex numbers
    except ValueError:
        raise parse_error(node, f"`{_text(node)}` is no element of a constant") from None


def _text(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 80 else text[:77] + "..."
