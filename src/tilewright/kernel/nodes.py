"""Loop programs: buffers, loops, blocks with declared iteration domains, scalar expressions. Immutable and interned.

A kernel starts as loop nests around blocks. A block owns an iteration domain: `iters` are its own variables, `bindings` give
their values from the loops around it. Schedules rewrite loops and bindings; the block's body does not change. Lowering
(`kernel/lower`) dissolves blocks into plain statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import TRUE, Expr
from tilewright.ir.interning import Interned
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import marked, substitute
from tilewright.ir.types import Shape

Scope = Literal["global", "local"]  # local: small, constant size, one per iteration that uses it (stack or registers)
LoopKind = Literal["serial", "parallel", "vectorized", "unrolled", "matrix"]
IterKind = Literal["spatial", "reduction"]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer(Interned):
    """A dense row-major array. Parameters of a kernel are `global`; scratch is either. A scalar has shape ()."""

    name: str
    dtype: DType
    shape: Shape
    scope: Scope = "global"

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(repr, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Store(Interned):
    """buffer[indices] = value"""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Interned):
    """Statements in order. Use `seq()` to build one: it flattens."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class For(Interned):
    """for var in range(extent): body. Parallel iterations must not depend on each other (the verifier checks)."""

    var: Expr
    extent: Expr
    body: Stmt
    kind: LoopKind = "serial"


@dataclass(frozen=True, slots=True, eq=False)
class If(Interned):
    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class While(Interned):
    """while condition: body. Only in the body of opaque blocks; mutable state lives in local buffers."""

    condition: Expr
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Let(Interned):
    """var = value, visible in body"""

    var: Expr
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Prefetch(Interned):
    """Ask for the cache line that holds the element at flat position `offset`, which may be outside the buffer. Has no effect on values."""

    buffer: Buffer
    offset: Expr


@dataclass(frozen=True, slots=True, eq=False)
class BlockIter(Interned):
    """One axis of a block's domain: 0 <= var < extent. Reduction axes may be reordered and reassociated."""

    var: Expr
    extent: Expr
    kind: IterKind = "spatial"


@dataclass(frozen=True, slots=True, eq=False)
class Block(Interned):
    """A unit of computation. For each point of the domain (`predicate` true) the body runs once; `init` runs before the first
    reduction point of each spatial point. The predicate may test the iters, which schedules keep, and the loops around the block. Buffers
    in `scratch` exist for one run of the body."""

    name: str
    iters: tuple[BlockIter, ...]
    bindings: tuple[Expr, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr = TRUE
    scratch: tuple[Buffer, ...] = ()


Stmt: TypeAlias = Store | Seq | For | If | While | Let | Prefetch | Block


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Interned):
    """A loop program. `inputs` are read, `outputs` written in full; `sizes` are the run-time sizes in its shapes (int64 arguments);
    `scratch` are intermediate buffers (lowering places them as near as possible to their use)."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Stmt
    sizes: tuple[Expr, ...] = ()
    scratch: tuple[Buffer, ...] = ()

    @property
    def params(self) -> tuple[Buffer, ...]:
        return self.inputs + self.outputs

    def __repr__(self) -> str:
        from tilewright.kernel.script import format_kernel

        return format_kernel(self)


def seq(*stmts: Stmt | None) -> Stmt:
    """The statements in order, flattened; one statement stands for itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.stmts)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


NOTHING = Seq(())


def children(stmt: Stmt) -> tuple[Stmt, ...]:
    """Direct sub-statements, in order."""
    match stmt:
        case Seq(stmts):
            return stmts
        case If(_, then, otherwise):
            return (then,) if otherwise is None else (then, otherwise)
        case Block():
            return (stmt.body,) if stmt.init is None else (stmt.init, stmt.body)
        case Store() | Prefetch():
            return ()
        case _:
            return (stmt.body,)


def walk_stmts(root: Stmt) -> Iterator[Stmt]:
    """Every statement below `root`, parents first, in program order."""
    stack = [root]
    while stack:
        stmt = stack.pop()
        yield stmt
        stack.extend(reversed(children(stmt)))


def own_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions of the statement itself, not of its sub-statements (variables that it defines not included)."""
    match stmt:
        case Store(_, indices, value):
            return (*indices, value)
        case For(_, extent, _, _):
            return (extent,)
        case If(condition, _, _) | While(condition, _):
            return (condition,)
        case Let(_, value, _):
            return (value,)
        case Prefetch(_, offset):
            return (offset,)
        case Block():
            return (*stmt.bindings, stmt.predicate, *(it.extent for it in stmt.iters))
        case _:
            return ()


def map_stmt(stmt: Stmt, on_stmt: Callable[[Stmt], Stmt], on_expr: Callable[[Expr], Expr] = lambda e: e) -> Stmt:
    """The statement with `on_stmt` applied to direct sub-statements and `on_expr` to own expressions."""
    match stmt:
        case Store(buffer, indices, value):
            return Store(buffer, tuple([on_expr(i) for i in indices]), on_expr(value))
        case Seq(stmts):
            mapped = [on_stmt(s) for s in stmts]
            return stmt if all(a is b for a, b in zip(mapped, stmts, strict=True)) else seq(*mapped)
        case For(var, extent, body, kind):
            return For(var, on_expr(extent), on_stmt(body), kind)
        case If(condition, then, otherwise):
            return If(on_expr(condition), on_stmt(then), None if otherwise is None else on_stmt(otherwise))
        case While(condition, body):
            return While(on_expr(condition), on_stmt(body))
        case Let(var, value, body):
            return Let(var, on_expr(value), on_stmt(body))
        case Prefetch(buffer, offset):
            return Prefetch(buffer, on_expr(offset))
        case Block():
            iters = tuple([BlockIter(it.var, on_expr(it.extent), it.kind) for it in stmt.iters])
            init = None if stmt.init is None else on_stmt(stmt.init)
            bindings = tuple([on_expr(b) for b in stmt.bindings])
            return Block(stmt.name, iters, bindings, on_stmt(stmt.body), init, on_expr(stmt.predicate), stmt.scratch)


def substitute_stmt(stmt: Stmt, mapping: Mapping[Expr, Expr], memo: dict[Expr, Expr] | None = None) -> Stmt:
    """The statement with variables replaced in every expression (not where loops, lets and block iters define them)."""
    memo = {} if memo is None else memo

    def on_expr(e: Expr) -> Expr:
        return substitute(e, mapping, memo)

    def on_stmt(s: Stmt) -> Stmt:
        return map_stmt(s, on_stmt, on_expr)

    return on_stmt(stmt)


def loads(*exprs: Expr) -> Iterator[Expr]:
    """The LOAD nodes in the expressions."""
    return (node for node in marked(*exprs) if node.op is Op.LOAD)


def buffers_read(stmt: Stmt) -> dict[Buffer, None]:
    """Buffers loaded from anywhere below the statement, in order of first use."""
    return {load.attr: None for s in walk_stmts(stmt) for load in loads(*own_exprs(s))}


def buffers_written(stmt: Stmt) -> dict[Buffer, None]:
    return {s.buffer: None for s in walk_stmts(stmt) if isinstance(s, Store)}


def blocks(stmt: Stmt) -> list[Block]:
    """Blocks below the statement in program order, outermost only."""
    if isinstance(stmt, Block):
        return [stmt]
    return [block for child in children(stmt) for block in blocks(child)]


def with_fields(node: Any, **changes: Any) -> Any:
    """A copy of an interned node with some fields changed."""
    return replace(node, **changes)
