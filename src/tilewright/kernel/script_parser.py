"""Reads kernels: `parse_kernel` from text, `@kernel` from a Python function's source. `script.py` describes the language.

    from __future__ import annotations

    @tw.kernel
    def scaled(x: float32[N, 64], y: Out[float32[N]]):
        for i in parallel(N):
            total = local(float32[()])
            total[()] = 0.0
            for k in range(64):
                total[()] += x[i, k] * 2.0
            y[i] = total[()]

The function is never run. What people write beyond what the printer writes: `+=`, blocks without bindings, which get loops of
their own, `local` in a loop, and, in decorated functions, the numbers, dtypes and expressions of the scope around.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import TRUE, Expr, VarInfo, make, size, var
from tilewright.ir.parser import index_nodes, name_of, number, parse_dtype, parse_error, parse_expr, parse_type
from tilewright.ir.scalar_ops import Op
from tilewright.ir.source_location import show_source
from tilewright.ir.traverse import free_vars
from tilewright.kernel.nodes import (
    Block,
    BlockIter,
    Buffer,
    For,
    If,
    IterKind,
    Kernel,
    Let,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    While,
    seq,
)
from tilewright.kernel.script import LOOP_WORDS, RESERVED, SCRATCH_WORDS
from tilewright.kernel.script_names import inline_constants
from tilewright.support.errors import ParseError

_LOOPS: dict[str, LoopKind] = {word: kind for kind, word in LOOP_WORDS.items()}
_SCOPES: dict[str, Scope] = {"scratch": "global", "local": "local"}
_ITER_KINDS: dict[str, IterKind] = {"spatial": "spatial", "reduction": "reduction"}


def parse_kernel(text: str) -> Kernel:
    """The kernel that a script defines; `parse_kernel(format_kernel(k)) is k`. Raises ParseError with line, column and the line itself."""
    return _read(text, {}, None)


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...
@overload
def kernel(*, name: str) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Decorator: the kernel that a Python function's source describes, named like the function unless `name` is given.

    Annotations are read, not evaluated: the module needs `from __future__ import annotations` (or Python 3.14). Raises ParseError
    that names file, line and column.
    """

    def read(f: Callable[..., Any]) -> Kernel:
        try:
            lines, first_line = inspect.getsourcelines(f)
            file = inspect.getsourcefile(f) or ""
        except (OSError, TypeError):
            raise ParseError(
                f"the source of {f!r} cannot be read", why="it was not defined in a file", hint="use parse_kernel(text)"
            ) from None
        return _read(textwrap.dedent("".join(lines)), _names_around(f), name, file, first_line)

    return read if function is None else read(function)


def _names_around(function: Callable[..., Any]) -> dict[str, Any]:
    """Globals of the function and what it closes over (annotations see globals only)."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closed = {}
    for name, cell in cells.items():
        try:
            closed[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return {**function.__globals__, **closed}


def _read(text: str, around: Mapping[str, Any], name: str | None, file: str = "", first_line: int = 1) -> Kernel:
    try:
        return _Reader().kernel(_function(text), around, name)
    except ParseError as error:
        raise show_source(error, text, file, first_line) from None


def _function(text: str) -> ast.FunctionDef:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        raise ParseError(
            "the kernel script is not valid Python syntax", where=f"line {line}, column {column}", why=getattr(error, "msg", str(error))
        ) from None
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1 or len(module.body) != 1:
        raise ParseError("a kernel script is one function", where="line 1, column 1", why=f"it has {len(module.body)} statements")
    return functions[0]


@dataclass(frozen=True, slots=True)
class _Open:
    """A `t = value` whose scope is the rest of the suite."""

    var: Expr
    value: Expr


@dataclass(slots=True)
class _Reader:
    names: dict[str, Any] = field(default_factory=dict)
    owners: list[list[Buffer]] = field(default_factory=lambda: [[]])

    def kernel(self, function: ast.FunctionDef, around: Mapping[str, Any], name: str | None) -> Kernel:
        self.names.update(inline_constants(function, around))
        declared: dict[str, Expr] = {}
        listed: list[ast.expr] | None = None
        body: list[ast.stmt] = []
        for node in function.body:
            match node:
                case ast.Assign([ast.Name(target)], ast.Call(ast.Name("size")) as call):
                    declared[target] = self.size(target, call)
                case ast.Expr(ast.Call(ast.Name("sizes"), args)):
                    listed = args
                case _:
                    body.append(node)
        self.names.update(declared)
        inputs, outputs = self.params(function.args)
        shape_sizes = free_vars(*(dim for buffer in (*inputs, *outputs) for dim in buffer.shape))
        sizes = tuple(dict.fromkeys((*shape_sizes, *declared.values())))
        if listed is not None:
            sizes = tuple(parse_expr(node, self.names) for node in listed)
        stmt = self.suite(body)
        return Kernel(name or self.title(function), inputs, outputs, stmt, sizes, tuple(self.owners[0]))

    def title(self, function: ast.FunctionDef) -> str:
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call):
                return str(_options(decorator, ("name",)).get("name", function.name))
        return function.name

    def size(self, target: str, node: ast.Call) -> Expr:
        options = _options(node, ("name", "lo", "hi", "multiple", "dtype"))
        info = VarInfo(options.get("name", target), options.get("lo", 0), options.get("hi"), options.get("multiple", 1))
        return make(Op.VAR, options.get("dtype", dtypes.int64), (), info)

    def params(self, arguments: ast.arguments) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
        inputs: list[Buffer] = []
        outputs: list[Buffer] = []
        for node in arguments.args:
            if node.annotation is None:
                raise parse_error(node, f"parameter {node.arg} has no type", hint=f"{node.arg}: float32[N, 64] or Out[float32[N, 64]]")
            annotation, name, is_output = node.annotation, node.arg, False
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                annotation = ast.parse(annotation.value, mode="eval").body
            if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name) and annotation.value.id in ("In", "Out"):
                is_output = annotation.value.id == "Out"
                parts = index_nodes(annotation)
                if len(parts) == 2 and isinstance(parts[1], ast.Constant):
                    name = str(parts[1].value)
                annotation = parts[0]
            self.implied_sizes(annotation)
            type_ = parse_type(annotation, self.names)
            buffer = Buffer(name, type_.dtype, type_.shape)
            self.define(node, node.arg, buffer)
            (outputs if is_output else inputs).append(buffer)
        return tuple(inputs), tuple(outputs)

    def implied_sizes(self, annotation: ast.expr) -> None:
        """Names in a shape that nothing defines are sizes of any value."""
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name) and node.id not in self.names and node.id not in RESERVED:
                self.names[node.id] = size(node.id)

    # Statements

    def suite(self, nodes: Sequence[ast.stmt]) -> Stmt:
        outer, self.names = self.names, dict(self.names)
        items = [self.stmt(node) for node in nodes]
        self.names = outer
        tail: list[Stmt] = []
        for item in reversed(items):
            if isinstance(item, _Open):
                tail = [Let(item.var, item.value, seq(*reversed(tail)))]
            elif item is not None:
                tail.append(item)
        return seq(*reversed(tail))

    def stmt(self, node: ast.stmt) -> Stmt | _Open | None:
        match node:
            case ast.Pass() | ast.Expr(ast.Constant(str())):
                return None
            case ast.Assign([ast.Subscript() as target], value):
                return self.store(target, value)
            case ast.Expr(ast.Call(ast.Name("prefetch")) as call):
                return self.prefetch(call)
            case ast.AugAssign(ast.Subscript() as target, op, value):
                combined = ast.copy_location(ast.BinOp(target, op, value), node)
                return self.store(target, combined)
            case ast.AugAssign(ast.Name(target)):
                raise parse_error(node, f"`{target}` cannot change", why="names are bound once", hint=changing(target))
            case ast.Assign([ast.Name(target)], ast.Call(ast.Name(word)) as call) if word in _SCOPES:
                buffer = self.scratch(node, target, call, _SCOPES[word])
                if buffer not in self.owners[-1]:
                    self.owners[-1].append(buffer)
                return None
            case ast.Assign([ast.Name(target)], ast.Call(ast.Name("inline"), [expanded])):
                self.define(node, target, parse_expr(expanded, self.names))
                return None
            case ast.Assign([ast.Name(target)], ast.Call(ast.Name("let")) as call):
                return self.open_let(node, target, *self.expr_and_options(call))
            case ast.Assign([ast.Name(target)], assigned):
                return self.open_let(node, target, parse_expr(assigned, self.names), {})
            case ast.AnnAssign(ast.Name(target), annotation, ast.expr() as assigned):
                return self.open_let(node, target, parse_expr(assigned, self.names, parse_dtype(annotation)), {})
            case ast.For():
                return self.loop(node)
            case ast.While(condition, body, []):
                return While(parse_expr(condition, self.names, dtypes.bool_), self.suite(body))
            case ast.If(condition, then, otherwise):
                test = parse_expr(condition, self.names, dtypes.bool_)
                return If(test, self.suite(then), self.suite(otherwise) if otherwise else None)
            case ast.With([ast.withitem(ast.Call(ast.Name("block")) as call, None)], body):
                return self.block(call, body)
            case ast.With([ast.withitem(ast.Call(ast.Name("let")) as call, ast.Name(target))], body):
                return self.closed_let(node, target, call, body)
        text = ast.unparse(node).splitlines()[0]
        raise parse_error(
            node,
            f"`{text}` has no meaning in a kernel",
            hint="statements are stores, `name = value`, for, while, if, prefetch(...), and with block(...), init() or let(...)",
        )

    def open_let(self, node: ast.AST, target: str, value: Expr, options: Mapping[str, Any]) -> _Open:
        return _Open(self.variable(node, target, value.dtype, options), value)

    def closed_let(self, node: ast.AST, target: str, call: ast.Call, body: Sequence[ast.stmt]) -> Stmt:
        value, options = self.expr_and_options(call)
        outer, self.names = self.names, dict(self.names)
        bound = self.variable(node, target, value.dtype, options)
        stmt = Let(bound, value, self.suite(body))
        self.names = outer
        return stmt

    def store(self, target: ast.Subscript, value: ast.expr) -> Stmt:
        name = name_of(target.value)
        buffer = self.names.get(name) if name is not None else None
        if not isinstance(buffer, Buffer):
            raise parse_error(target, f"`{ast.unparse(target.value)}` is not a buffer")
        element = parse_expr(target, self.names)  # as a load: checks the indices
        return Store(buffer, element.args, parse_expr(value, self.names, buffer.dtype))

    def prefetch(self, call: ast.Call) -> Stmt:
        if len(call.args) != 2 or call.keywords:
            raise parse_error(call, "prefetch takes a buffer and a flat position", hint="prefetch(b, 64 * i)")
        buffer = self.names.get(name_of(call.args[0]) or "")
        if not isinstance(buffer, Buffer):
            raise parse_error(call, f"`{ast.unparse(call.args[0])}` is not a buffer")
        return Prefetch(buffer, parse_expr(call.args[1], self.names, dtypes.int64))

    def scratch(self, node: ast.AST, target: str, call: ast.Call, scope: Scope) -> Buffer:
        if len(call.args) != 1:
            raise parse_error(call, f"{SCRATCH_WORDS[scope]} takes one type", hint=f"{SCRATCH_WORDS[scope]}(float32[8, 8])")
        type_ = parse_type(call.args[0], self.names)
        buffer = Buffer(_options(call, ("name",)).get("name", target), type_.dtype, type_.shape, scope)
        self.define(node, target, buffer)
        return buffer

    def loop(self, node: ast.For) -> Stmt:
        call = node.iter
        word = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        if not isinstance(call, ast.Call) or (word not in _LOOPS and word != "grid") or node.orelse:
            raise parse_error(
                call, f"`{ast.unparse(call)}` is not a loop", hint="one of " + ", ".join([*_LOOPS, "grid"]) + " over an extent"
            )
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        wanted = len(targets) if word == "grid" else 1
        if len(call.args) != wanted or len(targets) != wanted:
            raise parse_error(call, f"{len(targets)} loop variables have {len(call.args)} extents", hint="loops start at 0 and step by 1")
        options = _options(call, ("name", "dtype"))
        outer, self.names = self.names, dict(self.names)
        loops: list[tuple[Expr, Expr]] = []
        for target, extent_node in zip(targets, call.args, strict=True):
            extent = self.integer(extent_node)
            if not isinstance(target, ast.Name):
                raise parse_error(target, f"`{ast.unparse(target)}` is not a loop variable")
            loops.append((self.variable(target, target.id, extent.dtype, options), extent))
        stmt = self.suite(node.body)
        self.names = outer
        for index, extent in reversed(loops):
            stmt = For(index, extent, stmt, _LOOPS.get(word, "serial"))
        return stmt

    def block(self, call: ast.Call, body: Sequence[ast.stmt]) -> Stmt:
        title = call.args[0] if len(call.args) == 1 else None
        if not isinstance(title, ast.Constant) or not isinstance(title.value, str):
            raise parse_error(call, "a block has one name", hint='with block("y", i=spatial(N, i0)):')
        outer, self.names = self.names, dict(self.names)
        iters: list[BlockIter] = []
        bindings: list[Expr] = []
        for keyword in call.keywords:
            iter_, binding = self.block_iter(keyword, outer)
            iters.append(iter_)
            bindings += binding
        if bindings and len(bindings) != len(iters):
            raise parse_error(call, f"{len(bindings)} of {len(iters)} block iters have a binding", hint="bind all, or none to get loops")
        predicate, init = TRUE, None
        scratch: list[Buffer] = []
        rest: list[ast.stmt] = []
        self.owners.append(scratch)
        for node in body:
            match node:
                case ast.Expr(ast.Call(ast.Name("where"), [condition])) if not rest:
                    predicate = parse_expr(condition, self.names, dtypes.bool_)
                case ast.Assign([ast.Name(target)], ast.Call(ast.Name(word)) as value) if word in _SCOPES and not rest:
                    scratch.append(self.scratch(node, target, value, _SCOPES[word]))
                case ast.Assign([ast.Name(target)], ast.Call(ast.Name("inline"), [expanded])) if not rest:
                    self.define(node, target, parse_expr(expanded, self.names))
                case ast.With([ast.withitem(ast.Call(ast.Name("init"), []), None)], inner) if not rest:
                    init = self.suite(inner)
                case _:
                    rest.append(node)
        stmt = self.suite(rest)
        self.owners.pop()
        self.names = outer
        if not iters or bindings:
            return Block(title.value, tuple(iters), tuple(bindings), stmt, init, predicate, tuple(scratch))
        loops = self.loop_variables(iters)
        result: Stmt = Block(title.value, tuple(iters), tuple(loops), stmt, init, predicate, tuple(scratch))
        for index, it in zip(reversed(loops), reversed(iters), strict=True):
            result = For(index, it.extent, result)
        return result

    def block_iter(self, keyword: ast.keyword, outer: Mapping[str, Any]) -> tuple[BlockIter, list[Expr]]:
        node = keyword.value
        word = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if not isinstance(node, ast.Call) or word not in _ITER_KINDS or keyword.arg is None or not 1 <= len(node.args) <= 2:
            raise parse_error(
                node, f"`{ast.unparse(node)}` is not a block iter", hint="spatial(extent, binding) or reduction(extent, binding)"
            )
        options = _options(node, ("name", "dtype"))
        inner, self.names = self.names, dict(outer)
        extent, *binding = [self.integer(part) for part in node.args]
        self.names = inner
        return BlockIter(self.variable(node, keyword.arg, dtypes.int64, options), extent, _ITER_KINDS[word]), binding

    def loop_variables(self, iters: Sequence[BlockIter]) -> list[Expr]:
        """Fresh loop variables for a block without bindings: `i_0` for the iter `i`."""
        taken = set(self.names)
        result = []
        for it in iters:
            serial = 0
            while f"{it.var.name}_{serial}" in taken:
                serial += 1
            taken.add(f"{it.var.name}_{serial}")
            result.append(var(f"{it.var.name}_{serial}", it.var.dtype))
        return result

    # Names and values

    def define(self, node: ast.AST, name: str, thing: Expr | Buffer) -> None:
        if name in self.names:
            raise parse_error(node, f"`{name}` is already defined here", why="names are bound once", hint=changing(name))
        if name in RESERVED:
            raise parse_error(node, f"`{name}` is a word of the language", hint="choose another name")
        self.names[name] = thing

    def variable(self, node: ast.AST, target: str, dtype: DType, options: Mapping[str, Any]) -> Expr:
        made = var(options.get("name", target), options.get("dtype", dtype))
        self.define(node, target, made)
        return made

    def expr_and_options(self, call: ast.Call) -> tuple[Expr, dict[str, Any]]:
        if len(call.args) != 1:
            raise parse_error(call, f"let takes one value, not {len(call.args)}")
        return parse_expr(call.args[0], self.names), _options(call, ("name", "dtype"))

    def integer(self, node: ast.expr) -> Expr:
        value = parse_expr(node, self.names)
        if not value.dtype.is_integer:
            raise parse_error(node, f"`{ast.unparse(node)}` is {value.dtype}, where an integer is needed")
        return value


def _options(call: ast.Call, allowed: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments that are literals: strings, numbers, None; for `dtype` a dtype."""
    options: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in allowed:
            raise parse_error(keyword.value, f"`{keyword.arg}` is not an option here", hint="one of " + ", ".join(allowed))
        if keyword.arg == "dtype":
            options["dtype"] = parse_dtype(keyword.value)
        elif isinstance(keyword.value, ast.Constant):
            options[keyword.arg] = keyword.value.value
        else:
            options[keyword.arg] = number(keyword.value)
    return options


def changing(name: str) -> str:
    """What to write for a name whose value is to change."""
    return f"keep what changes in a buffer: {name} = local(float32[()]), then {name}[()] = ..."
