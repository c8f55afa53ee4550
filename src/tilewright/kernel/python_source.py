"""A kernel as the source of one Python function over flat lists, for the interpreter.

Values are the Python scalars of `kernel/scalars.py`; an element nobody wrote is None. Each distinct expression is computed once
per scope: expressions without loads live as long as the loop around them, expressions with loads as long as their statement.
With `check`, every access is tested (bounds, unwritten elements, races of parallel and vectorized loops) and every block
binding must lie in its domain; a test that provably holds is left out.

Races. Each parallel loop gives each of its iterations, each time it runs, a tag of its own. For each buffer that outlives an
iteration and is written in the loop, two tables hold the tag of the last writer and of the readers of each element; an access meets
another iteration's when it finds a tag of this run of the loop that is not its own. Kernel scratch used in one parallel loop only is
private to an iteration of that loop, since lowering places it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.expr import TRUE, Expr
from tilewright.kernel.nodes import Block, Buffer, For, If, Kernel, Let, Prefetch, Seq, Stmt, Store, While, children, loads
from tilewright.kernel.private_scratch import private_scratch
from tilewright.kernel.python_values import Level, Site, SourceWriter
from tilewright.support.errors import VerifyError

# CPython allows 20 nested loops in one function; deeper nests continue in an inner function.
_MAX_NESTING = 12
_LARGE = 1 << 16  # private buffers above this many elements are kept sparse


class Sparse(dict[int, Any]):
    """A flat buffer whose unwritten elements take no memory."""

    def __missing__(self, index: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class PythonKernel:
    """`source` defines `run(buffers, sizes)`: flat lists of params in order, size values in order. Its globals are `constants`, for
    each name in `tables` an empty dict, `tick`, a list of one 1, and the functions that make errors."""

    source: str
    constants: dict[str, Any]
    sites: tuple[Site, ...]
    tables: tuple[str, ...]


def to_python(kernel: Kernel, check: bool) -> PythonKernel:
    """Raises VerifyError for a kernel that uses a variable or buffer that nothing defines."""
    return _Emitter(kernel, check).emit()


@dataclass(slots=True)
class _Emitter(SourceWriter):
    nesting: int = 0
    parallel_count: int = 0
    private: dict[int, list[Buffer]] = field(default_factory=dict)

    def emit(self) -> PythonKernel:
        kernel = self.kernel
        for position, size in enumerate(kernel.sizes):
            name = self.fresh(size.name)
            self.variables[size] = name
            self.line(f"{name} = sizes[{position}]")
        for position, buffer in enumerate(kernel.params):
            place = self.declare(buffer, initialised=position < len(kernel.inputs))
            self.line(f"{place.name} = buffers[{position}]")
        self.private = private_scratch(kernel)
        placed_inside = {buffer for buffers in self.private.values() for buffer in buffers}
        for buffer in kernel.scratch:
            if buffer not in placed_inside:
                self.allocate(buffer)
        self._stmt(kernel.body)
        head = ["def run(buffers, sizes):"]
        return PythonKernel(
            "\n".join(head + self.lines) + "\n", {**self.formulas.constants, "empty": _empty}, tuple(self.sites), tuple(self.tables)
        )

    # Statements

    def _stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts):
                for inner in stmts:
                    self._stmt(inner)
            case Store():
                self._store(stmt)
            case For():
                self._for(stmt)
            case If(condition, then, otherwise):
                self.line(f"if {self.statement_value(condition)}:")
                self.scope(lambda: self._stmt(then))
                if otherwise is not None:
                    self.line("else:")
                    self.scope(lambda: self._stmt(otherwise))
            case While(condition, body):
                self._deepen(lambda: self._while(condition, body))
            case Let(var, value, body):
                name = self.fresh(var.name)
                self.line(f"{name} = {self.statement_value(value)}")
                self.bound(var, name, lambda: self._stmt(body))
            case Prefetch():
                self.line("pass")
            case Block():
                self._block(stmt)

    def _while(self, condition: Expr, body: Stmt) -> None:
        self.line("while True:")

        def inside() -> None:
            self.line(f"if not {self.statement_value(condition)}: break")
            self._stmt(body)

        self.scope(inside)

    def _store(self, stmt: Store) -> None:
        self.volatile.append({})
        place = self.place(stmt.buffer)
        if any(load.attr is stmt.buffer and load.args == stmt.indices for load in loads(stmt.value)):
            self.update_of = (stmt.buffer, stmt.indices)
        value = self.value(stmt.value)
        flat = self.element(stmt.buffer, place, stmt.indices, "store")
        self.line(f"{place.name}[{flat}] = {value}")
        self.update_of = None
        self.volatile.pop()

    def _for(self, stmt: For) -> None:
        extent = self.statement_value(stmt.extent)
        name = self.fresh(stmt.var.name)
        is_parallel = stmt.kind in ("parallel", "vectorized")
        number = self.parallel_count
        if is_parallel:
            self.parallel_count += 1

        def inside() -> None:
            if is_parallel:
                for buffer in self.private.get(number, []):
                    self.allocate(buffer)
            self.extents[stmt.var] = stmt.extent
            self.loop_variables.append(stmt.var)
            self.bound(stmt.var, name, lambda: self._stmt(stmt.body))
            self.loop_variables.pop()
            del self.extents[stmt.var]

        def loop() -> None:
            if not (is_parallel and self.check):
                self.line(f"for {name} in range({extent}):")
                self.scope(inside)
                return
            level = Level(number, f"base{number}", f"tag{number}", stmt.kind == "vectorized", _written(stmt.body))
            self.line(f"{level.base} = tick[0]; tick[0] += {extent}")
            self.line(f"for {name} in range({extent}):")
            self.levels.append(level)

            def tagged() -> None:
                self.line(f"{level.tag} = {level.base} + {name}")
                inside()

            self.scope(tagged)
            self.levels.pop()

        self._deepen(loop)

    def _block(self, block: Block) -> None:
        outer_block, self.block = self.block, block.name
        shadowed = [(it.var, self.variables.get(it.var)) for it in block.iters]
        bound = len(block.iters)
        if len(block.bindings) != bound:
            raise VerifyError(f"{bound} block iters have {len(block.bindings)} bindings", where=self.where())
        for it, binding in zip(block.iters, block.bindings, strict=True):
            name = self.fresh(it.var.name)
            self.line(f"{name} = {self.statement_value(binding)}")
            self.variables[it.var] = name
            self.extents[it.var] = it.extent
        self.pure.append({})
        self.loop_variables.extend(it.var for it in block.iters)
        guarded = block.predicate is not TRUE
        self.line(f"if {self.statement_value(block.predicate)}:" if guarded else "if True:")
        self.scope(lambda: self._block_body(block))
        self.pure.pop()
        del self.loop_variables[len(self.loop_variables) - bound :]
        for var, previous in shadowed:
            del self.extents[var]
            if previous is None:
                del self.variables[var]
            else:
                self.variables[var] = previous
        self.block = outer_block

    def _block_body(self, block: Block) -> None:
        if self.check:
            for it, binding in zip(block.iters, block.bindings, strict=True):
                if self.extents.get(binding) is it.extent:
                    continue
                name = self.variables[it.var]
                extent = self.statement_value(it.extent)
                site = self.site("load", None)
                complaint = f"raise bad_binding({site}, {it.var.name!r}, {name}, {extent}, {self.loop_values()})"
                self.line(f"if not 0 <= {name} < {extent}: {complaint}")
        for buffer in block.scratch:
            self.allocate(buffer)
        reduction = [self.variables[it.var] for it in block.iters if it.kind == "reduction"]
        init = block.init
        if init is not None:
            self.line("if " + (" and ".join(f"{name} == 0" for name in reduction) or "True") + ":")
            self.scope(lambda: self._stmt(init))
        self._stmt(block.body)

    def _deepen(self, emit: Callable[[], None]) -> None:
        """One more loop: in an inner function when Python would refuse it."""
        outer = self.nesting
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            name = self.fresh("nest")
            self.line(f"def {name}():")
            self.nesting = 1
            self.scope(emit)
            self.line(f"{name}()")
        else:
            emit()
        self.nesting = outer


def _empty(count: int) -> Any:
    return [None] * count if count <= _LARGE else Sparse()


def _written(stmt: Stmt) -> frozenset[Buffer]:
    if isinstance(stmt, Store):
        return frozenset({stmt.buffer})
    return frozenset().union(*(_written(child) for child in children(stmt)))
