"""A kernel with an index of its loops and blocks: what primitives look things up in, and how they edit trees.

Edits copy the path from the changed statement to the root; everything beside it is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from tilewright.ir.expr import TRUE, Expr, logical_and, var
from tilewright.ir.traverse import substitute
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, If, IterKind, Kernel, LoopKind, Prefetch, Seq, Stmt, children, seq
from tilewright.kernel.regions import accesses, conjuncts
from tilewright.kernel.spans import Extents


class Refused(Exception):
    """Why a primitive does not apply, and what to try; `Schedule` turns it into a ScheduleError that shows the loops."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


def refuse(why: str, hint: str | None = None) -> NoReturn:
    raise Refused(why, hint)


@dataclass(frozen=True, slots=True)
class PlacedLoop:
    """A loop and the loops around it, outermost first."""

    stmt: For
    around: tuple[For, ...]

    @property
    def name(self) -> str:
        return self.stmt.var.name

    @property
    def outer(self) -> Extents:
        """Extents of the loops around it."""
        return extents(self.around)

    @property
    def scope(self) -> Extents:
        """Extents of the loops around it and its own."""
        return extents((*self.around, self.stmt))


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block, the loops around it, outermost first, and its place in program order."""

    stmt: Block
    around: tuple[For, ...]
    position: int

    @property
    def outer(self) -> Extents:
        return extents(self.around)

    def inside(self, loop: For) -> tuple[For, ...]:
        """The loops between `loop` and the block, `loop` not included."""
        return self.around[self.around.index(loop) + 1 :]


def extents(loops: Iterable[For]) -> dict[Expr, Expr]:
    return {loop.var: loop.extent for loop in loops}


class Nest:
    """Index of one kernel. `loops` and `blocks` go by name, blocks in program order."""

    __slots__ = ("_given", "_names", "_readers", "_writers", "blocks", "kernel", "loops")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.loops: dict[str, PlacedLoop] = {}
        self.blocks: dict[str, PlacedBlock] = {}
        self._readers: dict[Buffer, list[str]] | None = None
        self._writers: dict[Buffer, list[str]] = {}
        self._names: frozenset[str] | None = None
        self._given: set[str] = set()
        self._index(kernel.body, ())

    def _index(self, stmt: Stmt, around: tuple[For, ...]) -> None:
        if isinstance(stmt, For):
            name = stmt.var.name
            if name in self.loops:
                refuse(f"two loops are named '{name}'", "give each loop of the kernel its own variable")
            self.loops[name] = PlacedLoop(stmt, around)
            self._index(stmt.body, (*around, stmt))
        elif isinstance(stmt, Block):
            if stmt.name in self.blocks:
                refuse(f"two blocks are named '{stmt.name}'", "give each block of the kernel its own name")
            self.blocks[stmt.name] = PlacedBlock(stmt, around, len(self.blocks))
        else:
            for child in children(stmt):
                self._index(child, around)

    def for_one_change(self) -> Nest:
        """The same index with no names given yet, so that what a primitive makes depends on the kernel alone: not on attempts that were
        refused, nor on other changes of a schedule that was forked."""
        self._uses()
        result: Nest = object.__new__(Nest)
        result.kernel, result.loops, result.blocks = self.kernel, self.loops, self.blocks
        result._readers, result._writers, result._names, result._given = self._readers, self._writers, self._used_names(), set()
        return result

    def _used_names(self) -> frozenset[str]:
        if self._names is None:
            kernel = self.kernel
            names = {*self.loops, *self.blocks, *(b.name for b in (*kernel.params, *kernel.scratch)), *(s.name for s in kernel.sizes)}
            names.update(it.var.name for placed in self.blocks.values() for it in placed.stmt.iters)
            self._names = frozenset(names)
        return self._names

    def loop(self, name: str) -> PlacedLoop:
        found = self.loops.get(name)
        if found is None:
            refuse(f"there is no loop '{name}'", f"the loops are {', '.join(self.loops) or 'none'}")
        return found

    def block(self, name: str) -> PlacedBlock:
        found = self.blocks.get(name)
        if found is None:
            refuse(f"there is no block '{name}'", f"the blocks are {', '.join(self.blocks) or 'none'}")
        return found

    def buffer(self, name: str) -> Buffer:
        for buffer in (*self.kernel.params, *self.kernel.scratch):
            if buffer.name == name:
                return buffer
        refuse(f"there is no buffer '{name}'")

    def _uses(self) -> dict[Buffer, list[str]]:
        if self._readers is None:
            readers: dict[Buffer, list[str]] = {}
            writers: dict[Buffer, list[str]] = {}
            for name, placed in self.blocks.items():
                found = accesses(placed.stmt)
                written = {a.buffer for a in (*found.stores, *found.init_stores)}
                for buffer in written:
                    writers.setdefault(buffer, []).append(name)
                for buffer in {a.buffer: None for a in found.loads}:
                    readers.setdefault(buffer, []).append(name)
            self._writers = writers
            self._readers = readers
        return self._readers

    def readers(self, buffer: Buffer) -> list[str]:
        """Names of the blocks that load from the buffer, in program order; an accumulating block reads what it writes."""
        return self._uses().get(buffer, [])

    def writers(self, buffer: Buffer) -> list[str]:
        self._uses()
        return self._writers.get(buffer, [])

    def outputs(self, block: str) -> list[Buffer]:
        """Buffers that the block writes."""
        found = accesses(self.blocks[block].stmt)
        return list({a.buffer: None for a in (*found.stores, *found.init_stores)})

    def inputs(self, block: str) -> list[Buffer]:
        """Buffers that the block reads, without those it accumulates into."""
        found = accesses(self.blocks[block].stmt)
        written = {a.buffer for a in (*found.stores, *found.init_stores)}
        return list({a.buffer: None for a in found.loads if a.buffer not in written})

    def consumers(self, block: str) -> list[str]:
        """Blocks that read what `block` writes, in program order."""
        return list({reader: None for buffer in self.outputs(block) for reader in self.readers(buffer) if reader != block})

    def under(self, loop: For) -> list[PlacedBlock]:
        """The blocks inside a loop, in program order."""
        return [placed for placed in self.blocks.values() if loop in placed.around]

    def fresh(self, *bases: str) -> tuple[str, ...]:
        """Names not used in the kernel: each base, with the first free number when it is taken."""
        used = self._used_names()
        result = []
        for base in bases:
            name, count = base, 0
            while name in used or name in self._given:
                count += 1
                name = f"{base}_{count}"
            self._given.add(name)
            result.append(name)
        return tuple(result)


def edit(root: Stmt, changes: Mapping[Stmt, Stmt | None]) -> Stmt | None:
    """`root` with statements replaced, or removed where the replacement is None; loops left without a body go too."""
    if root in changes:
        return changes[root]
    if isinstance(root, For):
        body = edit(root.body, changes)
        if body is root.body:
            return root
        return None if body is None else For(root.var, root.extent, body, root.kind)
    if isinstance(root, Seq):
        parts = [edit(child, changes) for child in root.stmts]
        if all(a is b for a, b in zip(parts, root.stmts, strict=True)):
            return root
        return seq(*parts) if any(part is not None for part in parts) else None
    if isinstance(root, If):
        then = edit(root.then, changes)
        otherwise = None if root.otherwise is None else edit(root.otherwise, changes)
        if then is root.then and otherwise is root.otherwise:
            return root
        return None if then is None and otherwise is None else If(root.condition, then or Seq(()), otherwise)
    return root


def with_body(kernel: Kernel, body: Stmt | None, remove: Iterable[Buffer] = (), add: Iterable[Buffer] = ()) -> Kernel:
    """The kernel with another body and some scratch buffers removed and added."""
    gone = tuple(remove)
    scratch = tuple(b for b in kernel.scratch if b not in gone) + tuple(add)
    return Kernel(kernel.name, kernel.inputs, kernel.outputs, Seq(()) if body is None else body, kernel.sizes, scratch)


def replaced(nest: Nest, changes: Mapping[Stmt, Stmt | None]) -> Kernel:
    """The kernel after `edit`."""
    return with_body(nest.kernel, edit(nest.kernel.body, changes))


def rebind(stmt: Stmt, mapping: Mapping[Expr, Expr], guard: Expr = TRUE) -> Stmt:
    """Loop variables replaced in loop extents, bindings and predicates; `guard` is added to the predicate of each block."""
    memo: dict[Expr, Expr] = {}

    def visit(node: Stmt) -> Stmt:
        if isinstance(node, For):
            return For(node.var, substitute(node.extent, mapping, memo), visit(node.body), node.kind)
        if isinstance(node, Seq):
            return Seq(tuple([visit(child) for child in node.stmts]))
        if isinstance(node, Block):
            bindings = tuple([substitute(b, mapping, memo) for b in node.bindings])
            predicate = both(substitute(node.predicate, mapping, memo), guard)
            return with_loops(node, bindings, predicate)
        if isinstance(node, Prefetch):
            return Prefetch(node.buffer, substitute(node.offset, mapping, memo))
        if isinstance(node, If):
            otherwise = None if node.otherwise is None else visit(node.otherwise)
            return If(substitute(node.condition, mapping, memo), visit(node.then), otherwise)
        refuse("there are statements outside blocks", "schedule before lowering")

    return visit(stmt)


def with_loops(block: Block, bindings: tuple[Expr, ...], predicate: Expr) -> Block:
    """The block under other loops."""
    return Block(block.name, block.iters, bindings, block.body, block.init, predicate, block.scratch)


def both(a: Expr, b: Expr) -> Expr:
    """a and b, with each condition once."""
    result = a
    known = set(conjuncts(a))
    for condition in conjuncts(b):
        if condition not in known:
            known.add(condition)
            result = condition if result is TRUE else logical_and(result, condition)
    return result


def nested(loops: Iterable[For | tuple[Expr, Expr] | tuple[Expr, Expr, LoopKind]], body: Stmt) -> Stmt:
    """`body` inside loops, given outermost first as loops (their body is not used) or (variable, extent[, kind])."""
    for loop in reversed(tuple(loops)):
        body = For(loop.var, loop.extent, body, loop.kind) if isinstance(loop, For) else For(loop[0], loop[1], body, *loop[2:])
    return body


def fresh_iters(nest: Nest, iters: Iterable[tuple[Expr, IterKind]]) -> tuple[BlockIter, ...]:
    """New block iters of the given (extent, kind)."""
    return tuple(BlockIter(var(nest.fresh("v" if kind == "spatial" else "r")[0]), extent, kind) for extent, kind in iters)


def insert(body: Stmt, position: int, stmt: Stmt) -> Stmt:
    """`stmt` as the child number `position` of a sequence (a single statement is a sequence of one)."""
    parts = body.stmts if isinstance(body, Seq) else (body,)
    return seq(*parts[:position], stmt, *parts[position:])


def positions(body: Stmt, holds: Callable[[Stmt], bool]) -> list[int]:
    """Which children of a sequence hold something, where `holds` tests every statement below a child."""

    def any_below(stmt: Stmt) -> bool:
        return holds(stmt) or (not isinstance(stmt, Block) and any(any_below(child) for child in children(stmt)))

    parts = body.stmts if isinstance(body, Seq) else (body,)
    return [position for position, child in enumerate(parts) if any_below(child)]
