"""Text form of kernels: Python syntax that people can write as well as read.

    @kernel
    def row_sums(x: float32[N, 64], y: Out[float32[N]]):
        N = size(lo=1)
        for i, k in grid(N, 64):
            with block("y", v=spatial(N, i), r=reduction(64, k)):
                with init():
                    y[v] = float32(0.0)
                y[v] = y[v] + x[v, r]

* Sizes: names in the shapes that nothing defines; a line `N = size(lo=, hi=, multiple=)` declares a range, `sizes(N, M)` an
  order of arguments other than that of first use.
* Buffers: `t = scratch(float32[N, 8])` is global, `t = local(float32[8])` local; in a block they belong to the block.
* Loops: `range`, `parallel`, `vectorized`, `unrolled`; `grid` is several serial ones. `while condition:`, `if` and `else`.
* `t = inline(value)` is text only: `t` stands for the expression, which occurs more than once.
* `t = value` names a value for the rest of the suite; `with let(value) as t:` for its own suite only.
* Blocks: each keyword is a block iter with its extent and its binding; `where(condition)` is the predicate.
* A name that is no free Python identifier is written under another, with `name="..."` where it is introduced.

`script_parser.parse_kernel` reads it back to the same kernel.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import TRUE, Expr, make, var
from tilewright.ir.printer import format_expr
from tilewright.ir.scalar_ops import INTRINSICS
from tilewright.ir.traverse import free_vars, walk
from tilewright.kernel.nodes import Block, Buffer, For, If, Kernel, Let, LoopKind, Prefetch, Seq, Stmt, Store, While, own_exprs

LOOP_WORDS: dict[LoopKind, str] = {
    "serial": "range", "parallel": "parallel", "vectorized": "vectorized", "unrolled": "unrolled", "matrix": "matrix",
}  # fmt: skip
SCRATCH_WORDS = {"global": "scratch", "local": "local"}
RESERVED = frozenset({
    *LOOP_WORDS.values(), *SCRATCH_WORDS.values(), *INTRINSICS, *dtypes.BY_NAME,
    "Out", "block", "bitcast", "cast", "grid", "inf", "init", "inline", "kernel", "let", "max", "min", "nan", "prefetch", "reduction",
    "select", "size", "sizes", "spatial", "trunc_div", "trunc_mod", "var", "where",
})  # fmt: skip
_WIDTH = 120
_LONG = 120  # nodes in an expression


def format_kernel(kernel: Kernel) -> str:
    """The kernel as a script. Total: a malformed kernel prints as well, for error messages."""
    return "\n".join(_Printer().kernel(kernel).lines) + "\n"


def excerpt(kernel: Kernel, stmt: Stmt | None, around: int = 2) -> str:
    """The lines of the script around the first occurrence of a statement (around the header for None), that line marked by `>`."""
    printer = _Printer().kernel(kernel)
    at = printer.line_of.get(stmt, 1) if stmt is not None else 1  # line 1 is the header
    first, last = max(0, at - around), min(len(printer.lines), at + around + 1)
    shown = textwrap.dedent("\n".join(printer.lines[first:last])).splitlines()
    return "\n".join(f"{'>' if first + n == at else ' '} {line}" for n, line in enumerate(shown))


@dataclass(slots=True)
class _Printer:
    lines: list[str] = field(default_factory=list)
    line_of: dict[Stmt, int] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    shown: dict[Expr, Expr] = field(default_factory=dict)  # expressions written with placeholders for their shared parts
    taken: set[str] = field(default_factory=set)
    indent: int = 0

    def kernel(self, kernel: Kernel) -> _Printer:
        decorator = "@kernel"
        title = kernel.name
        if not is_free_name(title):
            title = identifier(title)
            decorator = f"@kernel(name={quote(kernel.name)})"
        self.line(decorator)
        shape_sizes = free_vars(*(dim for buffer in kernel.params for dim in buffer.shape))
        declared = tuple(dict.fromkeys((*shape_sizes, *kernel.sizes)))
        for size in declared:
            self.name(size, size.name)
        params = []
        for buffer in kernel.params:
            name, extra = self.name(buffer, buffer.name)
            text = self.type(buffer)
            extra = [quote(buffer.name)] if extra else []
            is_output = buffer in kernel.outputs
            if is_output or extra:
                text = f"{'Out' if is_output else 'In'}[{', '.join([text, *extra])}]"
            params.append(f"{name}: {text}")
        header = f"def {title}({', '.join(params)}):"
        if len(header) <= _WIDTH:
            self.line(header)
        else:
            self.line(f"def {title}(")
            for param in params:
                self.line(f"    {param},")
            self.line("):")
        self.indent += 1
        start = len(self.lines)
        for size in declared:
            self.size(size, in_a_shape=size in shape_sizes)
        if kernel.sizes != declared:
            self.line(f"sizes({', '.join(self.names[size] for size in kernel.sizes)})")
        for buffer in kernel.scratch:
            self.scratch(buffer)
        self.suite(kernel.body, may_be_empty=len(self.lines) > start)
        self.indent -= 1
        return self

    def size(self, size: Expr, in_a_shape: bool) -> None:
        info = size.attr
        fields = [f"name={quote(info.name)}"] if self.names[size] != info.name else []
        fields += [f"lo={info.lo}"] if info.lo != 0 else []
        fields += [f"hi={info.hi}"] if info.hi is not None else []
        fields += [f"multiple={info.multiple}"] if info.multiple != 1 else []
        fields += [f"dtype={size.dtype.name}"] if size.dtype is not dtypes.int64 else []
        if fields or not in_a_shape:
            self.line(f"{self.names[size]} = size({', '.join(fields)})")

    def scratch(self, buffer: Buffer) -> None:
        name, extra = self.name(buffer, buffer.name)
        self.line(f"{name} = {SCRATCH_WORDS[buffer.scope]}({', '.join([self.type(buffer), *extra])})")

    # Statements

    def suite(self, stmt: Stmt, may_be_empty: bool = False) -> None:
        """A statement as the lines of one suite."""
        start = len(self.lines)
        with self.scope():
            while True:
                stmts = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
                last = stmts[-1] if stmts else None
                for inner in stmts if not isinstance(last, Let) else stmts[:-1]:
                    self.stmt(inner)
                if not isinstance(last, Let):
                    break
                self.share(last.value)
                self.line_of.setdefault(last, len(self.lines))
                value = self.expr(last.value)
                name, extra = self.introduce(last.var, last.value.dtype)
                self.line(f"{name} = let({', '.join([value, *extra])})" if extra else f"{name} = {value}")
                stmt = last.body
        if len(self.lines) == start and not may_be_empty:
            self.line("pass")

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, Block):
            self.share(*stmt.bindings, *(it.extent for it in stmt.iters))
        else:
            self.share(*own_exprs(stmt))
        self.line_of.setdefault(stmt, len(self.lines))
        match stmt:
            case Store(buffer, indices, value):
                target = self.names.get(buffer, buffer.name)
                self.line(f"{target}[{', '.join(map(self.expr, indices)) or '()'}] = {self.expr(value)}")
            case For():
                self.loops(stmt)
            case If():
                self.branches(stmt)
            case While(condition, body):
                self.line(f"while {self.expr(condition)}:")
                self.nested(body)
            case Let(var, value, body):
                text = self.expr(value)
                with self.scope():
                    name, extra = self.introduce(var, value.dtype)
                    self.line(f"with let({', '.join([text, *extra])}) as {name}:")
                    self.nested(body)
            case Prefetch(buffer, offset):
                self.line(f"prefetch({self.names.get(buffer, buffer.name)}, {self.expr(offset)})")
            case Block():
                self.block(stmt)
            case Seq():
                self.suite(stmt)

    def nested(self, stmt: Stmt) -> None:
        self.indent += 1
        self.suite(stmt)
        self.indent -= 1

    def loops(self, stmt: For) -> None:
        nest = [stmt]
        while nest[-1].kind == "serial" and isinstance(inner := nest[-1].body, For) and inner.kind == "serial":
            nest.append(inner)
        for loop in nest:
            self.line_of.setdefault(loop, len(self.lines))
        with self.scope():
            outer = {loop.var for loop in nest}
            extents = [self.expr(loop.extent) for loop in nest]
            if len(nest) > 1 and not any(v in outer for loop in nest for v in free_vars(loop.extent)):
                introduced = [self.introduce(loop.var, loop.extent.dtype) for loop in nest]
                if not any(extra for _, extra in introduced) and len({name for name, _ in introduced}) == len(nest):
                    self.line(f"for {', '.join(name for name, _ in introduced)} in grid({', '.join(extents)}):")
                    self.nested(nest[-1].body)
                    return
        with self.scope():
            extent = self.expr(stmt.extent)
            name, extra = self.introduce(stmt.var, stmt.extent.dtype)
            self.line(f"for {name} in {LOOP_WORDS[stmt.kind]}({', '.join([extent, *extra])}):")
            self.nested(stmt.body)

    def branches(self, stmt: If) -> None:
        word = "if"
        while True:
            self.line_of.setdefault(stmt, len(self.lines))
            self.line(f"{word} {self.expr(stmt.condition)}:")
            self.nested(stmt.then)
            if not isinstance(stmt.otherwise, If) or shared_parts([stmt.otherwise.condition]):
                break
            stmt, word = stmt.otherwise, "elif"
        if stmt.otherwise is not None:
            self.line("else:")
            self.nested(stmt.otherwise)

    def block(self, block: Block) -> None:
        with self.scope():
            arguments = [quote(block.name)]
            bindings = [self.expr(binding) for binding in block.bindings]
            extents = [self.expr(it.extent) for it in block.iters]
            for position, it in enumerate(block.iters):
                name, extra = self.introduce(it.var, dtypes.int64)
                parts = [extents[position], *bindings[position : position + 1], *extra]
                arguments.append(f"{name}={it.kind}({', '.join(parts)})")
            self.call_line("with block", arguments)
            self.indent += 1
            start = len(self.lines)
            self.share(block.predicate)
            if block.predicate is not TRUE:
                self.line(f"where({self.expr(block.predicate)})")
            for buffer in block.scratch:
                self.scratch(buffer)
            if block.init is not None:
                self.line("with init():")
                self.nested(block.init)
            self.suite(block.body, may_be_empty=len(self.lines) > start)
            self.indent -= 1

    def call_line(self, function: str, arguments: Sequence[str]) -> None:
        text = f"{function}({', '.join(arguments)}):"
        if len(text) + 4 * self.indent <= _WIDTH:
            self.line(text)
            return
        self.line(f"{function}(")
        for argument in arguments:
            self.line(f"    {argument},")
        self.line("):")

    # Names

    def name(self, key: Any, wanted: str) -> tuple[str, list[str]]:
        """The identifier under which a new thing is written, and `name="..."` when that is not its own name."""
        text = wanted if is_free_name(wanted) else identifier(wanted)
        serial = 0
        candidate = text
        while candidate in self.taken:
            serial += 1
            candidate = f"{text}_{serial}"
        self.taken.add(candidate)
        self.names[key] = candidate
        return candidate, [] if candidate == wanted else [f"name={quote(wanted)}"]

    def introduce(self, var: Expr, expected: DType) -> tuple[str, list[str]]:
        name, extra = self.name(var, var.name)
        return name, extra + ([f"dtype={var.dtype.name}"] if var.dtype is not expected else [])

    @contextmanager
    def scope(self) -> Iterator[None]:
        names, taken = self.names, self.taken
        self.names, self.taken = dict(names), set(taken)
        yield
        self.names, self.taken = names, taken

    def type(self, buffer: Buffer) -> str:
        return f"{buffer.dtype.name}[{', '.join(map(self.expr, buffer.shape)) or '()'}]"

    def expr(self, e: Expr) -> str:
        return format_expr(self.shown.get(e, e), self.names)

    def share(self, *exprs: Expr) -> None:
        """Writes `t = inline(...)` for parts that the expressions of a statement share, where the text would grow out of hand."""
        self.shown = {}
        shared = shared_parts(exprs)
        if not shared:
            return
        shown: dict[Expr, Expr] = {}
        for node in walk(*exprs):
            args = tuple([shown[a] for a in node.args])
            shown[node] = make(node.op, node.dtype, args, node.attr) if args else node
            if node in shared:
                name, _ = self.name(node, "t")
                self.line(f"{name} = inline({format_expr(shown[node], self.names)})")
                shown[node] = var(name, node.dtype)
        self.shown = {e: shown[e] for e in exprs}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)


def shared_parts(exprs: Sequence[Expr]) -> set[Expr]:
    """The parts to write once: those with several users, if all of them written out would be long."""
    length: dict[Expr, int] = {}
    users: dict[Expr, int] = {}
    for node in walk(*exprs):
        length[node] = 1 + sum(length[a] for a in node.args)
        for a in node.args:
            users[a] = users.get(a, 0) + 1
    if sum(length[e] for e in exprs) <= _LONG:
        return set()
    return {node for node, count in users.items() if count > 1 and length[node] > 3}


def is_free_name(name: str) -> bool:
    """Whether a name can be written as it is: an ASCII identifier that is no word of Python or of the language."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name not in RESERVED


def identifier(name: str) -> str:
    """A free name that resembles `name`."""
    text = re.sub(r"[^0-9A-Za-z_]", "_", name) or "_"
    return text if is_free_name(text) else f"{text}_" if text.isidentifier() else f"_{text}"


def quote(text: str) -> str:
    """A string literal in ASCII."""
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
