"""Structural verifier: what must hold of a kernel at every stage, checked without running it.

Scoping, ranks and dtypes; sizes and buffers declared; block iters bound, and no reduction split between parallel iterations; every
output written and nothing else's inputs; accesses that are out of bounds, and stores of parallel iterations that collide, whenever
they run. What depends on data or guards is the interpreter's to find (`interpret` with `check`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir import dtypes
from tilewright.ir.affine import affine_in, linear, to_expr
from tilewright.ir.bounds import Interval, bounds
from tilewright.ir.expr import TRUE, Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, substitute, walk
from tilewright.kernel.nodes import (
    Block,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Seq,
    Stmt,
    Store,
    While,
    buffers_read,
    buffers_written,
    loads,
    own_exprs,
)
from tilewright.kernel.private_scratch import private_scratch
from tilewright.kernel.python_values import unguarded
from tilewright.kernel.script import excerpt
from tilewright.support.errors import VerifyError

LANE_REDUCTIONS = frozenset({Op.ADD, Op.MUL, Op.MIN, Op.MAX, Op.AND, Op.OR, Op.XOR})


def verify(kernel: Kernel) -> None:
    """Raises VerifyError for the first fault, with the lines of the script around it."""
    checker = _Checker(kernel)
    checker.signature()
    checker.stmt(kernel.body)
    checker.data_flow()


@dataclass(frozen=True, slots=True)
class _Loop:
    """A parallel or vectorized loop around: its statement and the scratch that is private to its iterations."""

    stmt: For
    private: frozenset[Buffer]


@dataclass(slots=True)
class _Checker:
    kernel: Kernel
    variables: dict[str, Expr] = field(default_factory=dict)  # those in scope that are no sizes; sizes may share their names
    extents: dict[Expr, Expr] = field(default_factory=dict)
    reach: dict[Expr, frozenset[Expr] | None] = field(default_factory=dict)  # loop variables that a variable depends on; None: any
    buffers: dict[str, Buffer] = field(default_factory=dict)
    inner: set[Buffer] = field(default_factory=set)  # scratch of the blocks around
    depth_of: dict[Buffer, int] = field(default_factory=dict)
    loops: list[_Loop] = field(default_factory=list)
    combined: frozenset[Expr] = frozenset()  # vectorized loops whose lanes one accumulation combines
    parallel_count: int = 0
    private: dict[int, list[Buffer]] = field(default_factory=dict)
    guarded: bool = False
    block: str = ""
    block_names: set[str] = field(default_factory=set)
    at: Stmt | None = None

    # The kernel as a whole

    def signature(self) -> None:
        kernel = self.kernel
        for size in kernel.sizes:
            if size.op is not Op.VAR or size.dtype is not dtypes.int64:
                self.fail(f"the size {size!r} is not an int64 variable")
        for buffer in (*kernel.params, *kernel.scratch):
            self.declare(buffer)
        for buffer in kernel.params:
            if buffer.scope != "global":
                self.fail(f"the parameter {buffer.name} has scope {buffer.scope}", "parameters are global")
        self.private = private_scratch(kernel)

    def data_flow(self) -> None:
        self.at = None
        read, written = buffers_read(self.kernel.body), buffers_written(self.kernel.body)
        for buffer in self.kernel.inputs:
            if buffer in written:
                self.fail(f"the input {buffer.name} is stored to")
        for buffer in self.kernel.outputs:
            if buffer not in written and not _is_empty(buffer):
                self.fail(f"the output {buffer.name} is never stored to")
        for buffer in read:
            if buffer not in written and buffer not in self.kernel.inputs:
                self.fail(f"the scratch {buffer.name} is loaded but never stored to")

    def declare(self, buffer: Buffer) -> None:
        if buffer.name in self.buffers:
            self.fail(f"two buffers in scope are named {buffer.name}")
        if buffer.name in self.variables:
            self.fail(f"a variable and a buffer in scope are named {buffer.name}")
        for dim in buffer.shape:
            if dim.dtype is not dtypes.int64:
                self.fail(f"a dim of {buffer!r} is {dim.dtype}, not int64")
            self.expr(dim)
            strangers = [v.name for v in free_vars(dim) if v not in self.kernel.sizes]
            if strangers:
                self.fail(f"the shape of {buffer!r} depends on {', '.join(strangers)}", "shapes are expressions of the kernel's sizes")
        self.buffers[buffer.name] = buffer
        self.depth_of[buffer] = len(self.loops)

    # Statements

    def stmt(self, stmt: Stmt) -> None:
        outer = self.at
        if not isinstance(stmt, Seq):
            self.at = stmt
        match stmt:
            case Seq(stmts):
                for inner in stmts:
                    self.stmt(inner)
            case Block():
                self.block_stmt(stmt)
            case _:
                for e in own_exprs(stmt):
                    self.expr(e)
                self.plain_stmt(stmt)
        self.at = outer

    def plain_stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Store():
                self.store(stmt)
            case For():
                self.for_stmt(stmt)
            case If(condition, then, otherwise):
                self.boolean(condition, "the condition")
                self.guard([then] if otherwise is None else [then, otherwise])
            case While(condition, body):
                self.boolean(condition, "the condition")
                self.guard([body])
            case Let(var, value, body):
                self.same_dtype(var, value, "the value")
                self.introduce(var, None)
                depends = [self.reached(v) for v in free_vars(value)]
                known = [d for d in depends if d is not None]
                self.reach[var] = frozenset().union(*known) if len(known) == len(depends) and not _has_loads(value) else None
                self.stmt(body)
                self.remove(var)

    def store(self, stmt: Store) -> None:
        buffer = stmt.buffer
        if stmt.value.dtype is not buffer.dtype:
            self.fail(f"the store to {buffer.name} gives {stmt.value.dtype}, the buffer holds {buffer.dtype}")
        self.access("store", buffer, stmt.indices, self.guarded)
        if self.guarded:
            return
        for loop in self.loops[self.depth_of[buffer] :]:
            if buffer in loop.private or _at_most_one(loop.stmt.extent) or loop.stmt.var in self.combined:
                continue
            if loop.stmt.kind == "vectorized" and _accumulates(stmt):
                continue
            reached = [self.reached(v) for index in stmt.indices for v in free_vars(index)]
            if any(d is None or loop.stmt.var in d for d in reached) or _has_loads(*stmt.indices):
                continue
            self.fail(
                f"all iterations of the {loop.stmt.kind} loop over {loop.stmt.var.name} store to the same element of {buffer.name}",
                f"the indices do not depend on {loop.stmt.var.name}",
            )

    def for_stmt(self, stmt: For) -> None:
        if stmt.var.op is not Op.VAR or not stmt.var.dtype.is_integer:
            self.fail(f"the loop variable {stmt.var!r} is no integer variable")
        self.same_dtype(stmt.var, stmt.extent, "the extent")
        self.introduce(stmt.var, stmt.extent)
        self.reach[stmt.var] = frozenset({stmt.var})
        is_parallel = stmt.kind in ("parallel", "vectorized")
        if is_parallel:
            self.loops.append(_Loop(stmt, frozenset(self.private.get(self.parallel_count, ()))))
            self.parallel_count += 1
        outer = self.guarded
        # What never runs does no harm, and an extent that depends on loops around may be empty just where the body would do harm.
        varies = any(v not in self.kernel.sizes for v in free_vars(stmt.extent)) or _has_loads(stmt.extent)
        self.guarded = outer or varies or stmt.extent is const(0)
        self.stmt(stmt.body)
        self.guarded = outer
        if is_parallel:
            self.loops.pop()
        self.remove(stmt.var)

    def guard(self, stmts: Sequence[Stmt]) -> None:
        outer, self.guarded = self.guarded, True
        for stmt in stmts:
            self.stmt(stmt)
        self.guarded = outer

    def block_stmt(self, block: Block) -> None:
        outer_block, self.block = self.block, block.name
        if block.name in self.block_names:
            self.fail(f"two blocks are named {block.name}")
        self.block_names.add(block.name)
        if len(block.bindings) != len(block.iters):
            self.fail(f"{len(block.iters)} block iters have {len(block.bindings)} bindings")
        for e in (*block.bindings, *(it.extent for it in block.iters)):
            self.expr(e)
        reaches = [self.binding(block, position) for position in range(len(block.iters))]
        for it, reach in zip(block.iters, reaches, strict=True):
            self.introduce(it.var, it.extent)
            self.reach[it.var] = reach
        self.expr(block.predicate)
        self.boolean(block.predicate, "the predicate")
        for buffer in block.scratch:
            self.declare(buffer)
        outer_guarded = self.guarded
        self.guarded = outer_guarded or block.predicate is not TRUE
        if block.init is not None:
            starts = [reach for it, reach in zip(block.iters, reaches, strict=True) if it.kind == "reduction" and reach is not None]
            self.combined = frozenset().union(*starts) if _accumulates(block.body) else frozenset()
            self.stmt(block.init)
            self.combined = frozenset()
        self.stmt(block.body)
        self.guarded = outer_guarded
        for buffer in block.scratch:
            del self.buffers[buffer.name], self.depth_of[buffer]
        for it in block.iters:
            self.remove(it.var)
        self.block = outer_block

    def binding(self, block: Block, position: int) -> frozenset[Expr] | None:
        """The loops that a block iter follows, after checking its binding."""
        it, binding = block.iters[position], block.bindings[position]
        if it.var.op is not Op.VAR or not it.var.dtype.is_integer:
            self.fail(f"the block iter {it.var!r} is no integer variable")
        self.same_dtype(it.var, binding, "the binding")
        self.same_dtype(it.var, it.extent, "the extent")
        reaches = [self.reached(v) for v in free_vars(binding)]
        known = [r for r in reaches if r is not None]
        reach = frozenset().union(*known) if len(known) == len(reaches) and not _has_loads(binding) else None
        if it.kind == "reduction":
            for loop in self.loops:
                if reach is not None and loop.stmt.var in reach and not (loop.stmt.kind == "vectorized" and _accumulates(block.body)):
                    self.fail(
                        f"the reduction iter {it.var.name} is bound to the {loop.stmt.kind} loop over {loop.stmt.var.name}",
                        "its iterations would update one element at a time",
                    )
        if block.predicate is TRUE and not self.guarded:
            fault = self.out_of_range(binding, it.extent)
            if fault:
                self.fail(f"the block iter {it.var.name} leaves its domain [0, {it.extent!r})", f"its binding {binding!r} {fault}")
        return reach

    # Expressions

    def expr(self, e: Expr) -> None:
        """Variables and buffers in scope, dtypes of conditions, ranks and bounds of loads."""
        for node in walk(e):
            other = self.variables.get(node.name) if node.op is Op.VAR else None
            if node.op is Op.VAR and other is not node and node not in self.kernel.sizes:
                self.fail(f"the variable {node.name} is not defined here", f"{node.name} in scope is another variable" if other else None)
            if node.op is Op.SELECT:
                self.boolean(node.args[0], "the condition of a select")
        certain = set() if self.guarded else unguarded(e)
        for load in loads(e):
            self.access("load", load.attr, load.args, load not in certain)

    def access(self, kind: str, buffer: Buffer, indices: tuple[Expr, ...], guarded: bool) -> None:
        if self.buffers.get(buffer.name) is not buffer:
            self.fail(
                f"the buffer {buffer.name} is not declared", "it is neither a parameter nor scratch of the kernel or of a block around"
            )
        if len(indices) != len(buffer.shape):
            self.fail(f"{kind} of {buffer.name} with {len(indices)} indices", f"it is {buffer!r}")
        for axis, (index, dim) in enumerate(zip(indices, buffer.shape, strict=True)):
            if not index.dtype.is_integer:
                self.fail(f"index {axis} of {buffer.name} is {index.dtype}, not an integer")
            fault = None if guarded else self.out_of_range(index, dim)
            if fault:
                self.fail(
                    f"{kind} of {buffer.name} is out of bounds in axis {axis}", f"the index {index!r} {fault}; the axis has size {dim!r}"
                )

    def out_of_range(self, e: Expr, limit: Expr) -> str | None:
        """How `e` provably leaves [0, limit) at some point of the loops around, or None.

        An expression affine in the variables with constant coefficients takes its extremes at ends of their ranges."""
        variables = [v for v in free_vars(e) if v in self.extents]
        parts = affine_in(e, variables) if e.dtype is dtypes.int64 and not _has_loads(e) else None
        if parts is None or not all(c.is_const for c in parts[0].values()):
            return None
        least = substitute(e, {v: (self.extents[v] - 1 if c.value < 0 else v * 0) for v, c in parts[0].items()})
        most = substitute(e, {v: (self.extents[v] - 1 if c.value > 0 else v * 0) for v, c in parts[0].items()})
        if any(v in self.extents for v in free_vars(least, most, limit)):
            return None  # extents that depend on loops around: not for this simple argument
        ranges: dict[Expr, Interval] = {}
        low, over = bounds(least, ranges), bounds(most - limit, ranges)
        if low.hi is not None and low.hi < 0:
            return f"reaches {to_expr(linear(least))!r}"
        if over.lo is not None and over.lo >= 0:
            return f"reaches {to_expr(linear(most))!r}"
        return None

    def boolean(self, e: Expr, what: str) -> None:
        if e.dtype.kind != "bool":
            self.fail(f"{what} {e!r} is {e.dtype}, not bool")

    def same_dtype(self, var: Expr, value: Expr, what: str) -> None:
        if var.dtype is not value.dtype:
            self.fail(f"{what} of {var.name} is {value.dtype}, the variable is {var.dtype}")

    # Scopes

    def introduce(self, var: Expr, extent: Expr | None) -> None:
        if var.name in self.variables:
            self.fail(f"the variable {var.name} is already defined in this scope")
        if var.name in self.buffers:
            self.fail(f"a variable and a buffer in scope are named {var.name}")
        self.variables[var.name] = var
        if extent is not None:
            self.extents[var] = extent

    def remove(self, var: Expr) -> None:
        del self.variables[var.name]
        self.extents.pop(var, None)

    def reached(self, var: Expr) -> frozenset[Expr] | None:
        return self.reach.get(var, frozenset())

    def fail(self, what: str, why: str | None = None) -> None:
        place = f"block '{self.block}' of kernel '{self.kernel.name}'" if self.block else f"kernel '{self.kernel.name}'"
        raise VerifyError(what, where=f"{place}\n{excerpt(self.kernel, self.at)}", why=why)


def _has_loads(*exprs: Expr) -> bool:
    return next(loads(*exprs), None) is not None


def _accumulates(stmt: Stmt) -> bool:
    """b[i] = b[i] op x, with an operation by which lanes can be combined before the element."""
    if not isinstance(stmt, Store) or stmt.value.op not in LANE_REDUCTIONS:
        return False
    own = [a for a in stmt.value.args if a.op is Op.LOAD and a.attr is stmt.buffer and a.args == stmt.indices]
    return len(own) == 1


def _at_most_one(extent: Expr) -> bool:
    return extent.is_const and extent.value <= 1


def _is_empty(buffer: Buffer) -> bool:
    return any(dim.is_const and dim.value == 0 for dim in buffer.shape)
