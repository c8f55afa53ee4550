"""Copies of buffers in faster or private memory, and where scratch lives."""

from __future__ import annotations

from tilewright.ir.expr import Expr, load, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, substitute, transform
from tilewright.kernel.nodes import Block, BlockIter, Buffer, Kernel, Scope, Seq, Stmt, Store, map_stmt, seq, with_fields
from tilewright.kernel.regions import stores_to
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.legality import written_in_full
from tilewright.kernel.schedule.nest import Nest, PlacedBlock, edit, fresh_iters, nested, refuse, with_body


def cache_read(nest: Nest, block: str, buffer: str, scope: Scope = "local") -> Change:
    """Let a block read a copy of one of its inputs; the copy is made in full, just before the nest of the block. Follow with compute_at.

        nest of A, which reads x  ->  for i in n: x_local_copy: x_local[v] = x[v]
                                      nest of A, which reads x_local

    Results: the copying block, then its loops.
    """
    placed, source = nest.block(block), nest.buffer(buffer)
    if source not in nest.inputs(block):
        refuse(f"block '{block}' does not read {buffer}")
    root = _root(nest, placed)
    for writer in nest.writers(source):
        if _root(nest, nest.blocks[writer]) is root or nest.blocks[writer].position > placed.position:
            refuse(f"block '{writer}' writes {buffer} in the same nest", "cache before computing the blocks together")
    if nest.writers(source) and not written_in_full(nest, source):
        refuse(f"{buffer} is not written in full, so it cannot be copied", "cache before packing and padding")
    copy = _fresh_copy(nest, source, scope)
    name, loops, made = _copy_nest(nest, source, copy, f"{copy.name}_copy", _all_of(nest, source))
    changed = edit(nest.kernel.body, {placed.stmt: renamed(placed.stmt, source, copy, stores=False)})
    body = changed if changed is not None else Seq(())
    return Change(_beside(nest, body, root, placed, before=made, add=copy), (name, *loops))


def cache_write(nest: Nest, block: str, scope: Scope = "local") -> Change:
    """Let a block write a private buffer, which is copied to the old one after the nest of the block. Follow with reverse_compute_at.

        nest of A, which writes y  ->  nest of A, which writes y_local
                                       for i in n: y_copy: y[v] = y_local[v]

    Results: the copying block, then its loops.
    """
    placed = nest.block(block)
    outputs = nest.outputs(block)
    if len(outputs) != 1:
        refuse(f"block '{block}' writes {len(outputs)} buffers")
    target = outputs[0]
    root = _root(nest, placed)
    writers = nest.writers(target)
    for user in (*writers, *nest.readers(target)):
        if user not in writers and _root(nest, nest.blocks[user]) is root:
            refuse(f"block '{user}' reads {target.name} in the same nest", "cache before computing the blocks together")
    if any(_root(nest, nest.blocks[writer]) is not root for writer in writers):
        refuse(f"{target.name} is written by several nests")
    elements = _elements_stored(nest, placed, target)
    if elements is None:
        if not written_in_full(nest, target):
            refuse(f"which elements of {target.name} block '{block}' writes is not known")
        elements = _all_of(nest, target)
    copy = _fresh_copy(nest, target, scope)
    name, loops, made = _copy_nest(nest, copy, target, f"{target.name}_copy", elements)
    changes: dict[Stmt, Stmt | None] = {nest.blocks[w].stmt: renamed(nest.blocks[w].stmt, target, copy, stores=True) for w in writers}
    changed = edit(nest.kernel.body, changes)
    body = changed if changed is not None else Seq(())
    return Change(_beside(nest, body, root, placed, after=made, add=copy), (name, *loops))


def set_scope(nest: Nest, buffer: str, scope: Scope) -> Change:
    """Say where a scratch buffer lives: `local` ones are small and private to an iteration, and may end up in registers. Lowering shrinks
    the buffer to what is used at once and refuses a local one whose size is then no constant."""
    old = nest.buffer(buffer)
    if old not in nest.kernel.scratch:
        refuse(f"{buffer} is a parameter", "cache_read or cache_write makes a copy that may be local")
    return Change(swapped(nest.kernel, old, Buffer(old.name, old.dtype, old.shape, scope)))


def renamed(block: Block, old: Buffer, new: Buffer, stores: bool) -> Block:
    """The block reading (and, with `stores`, writing) `new` wherever it uses `old`."""
    memo: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr | None:
        return load(new, e.args) if e.op is Op.LOAD and e.attr is old else None

    def on_expr(e: Expr) -> Expr:
        return transform(e, visit, memo)

    def on_stmt(stmt: Stmt) -> Stmt:
        mapped = map_stmt(stmt, on_stmt, on_expr)
        return Store(new, mapped.indices, mapped.value) if stores and isinstance(mapped, Store) and mapped.buffer is old else mapped

    result: Block = with_fields(block, body=on_stmt(block.body), init=None if block.init is None else on_stmt(block.init))
    return result


def swapped(kernel: Kernel, old: Buffer, new: Buffer) -> Kernel:
    """The kernel with another buffer of the same rank in the place of `old`."""

    body = edit(kernel.body, {p.stmt: renamed(p.stmt, old, new, stores=True) for p in Nest(kernel).blocks.values()})

    def each(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(new if b is old else b for b in buffers)

    whole = body if body is not None else kernel.body
    return Kernel(kernel.name, each(kernel.inputs), each(kernel.outputs), whole, kernel.sizes, each(kernel.scratch))


def _root(nest: Nest, placed: PlacedBlock) -> Stmt:
    """The statement of the kernel's top level that holds the block."""
    return placed.around[0] if placed.around else placed.stmt


def _fresh_copy(nest: Nest, buffer: Buffer, scope: Scope) -> Buffer:
    (name,) = nest.fresh(f"{buffer.name}_{scope}")
    return Buffer(name, buffer.dtype, buffer.shape, scope)


Elements = tuple[tuple[BlockIter, ...], tuple[Expr, ...]]  # iters, and the indices that they run through


def _all_of(nest: Nest, buffer: Buffer) -> Elements:
    iters = fresh_iters(nest, [(size, "spatial") for size in buffer.shape])
    return iters, tuple(it.var for it in iters)


def _elements_stored(nest: Nest, placed: PlacedBlock, buffer: Buffer) -> Elements | None:
    """The elements that the block stores, through its spatial iters; None when its stores differ or depend on more than these."""
    stores = stores_to(placed.stmt, buffer)
    where = {access.indices for access in stores}
    indices = next(iter(where))
    old = {it.var: it for it in placed.stmt.iters if it.kind == "spatial"}
    if (
        len(where) != 1
        or any(a.conditional for a in stores)
        or any(v not in old and v not in nest.kernel.sizes for v in free_vars(*indices))
    ):
        return None
    used = [it for it in old.values() if it.var in free_vars(*indices)]
    iters = fresh_iters(nest, [(it.extent, "spatial") for it in used])
    mapping: dict[Expr, Expr] = {it.var: new.var for it, new in zip(used, iters, strict=True)}
    return iters, tuple(substitute(index, mapping) for index in indices)


def _copy_nest(nest: Nest, source: Buffer, target: Buffer, base: str, elements: Elements) -> tuple[str, tuple[str, ...], Stmt]:
    iters, indices = elements
    (name,) = nest.fresh(base)
    loops = tuple(var(n) for n in nest.fresh(*(f"{name}_i{axis}" for axis in range(len(iters)))))
    block = Block(name, iters, loops, Store(target, indices, load(source, indices)))
    return name, tuple(v.name for v in loops), nested([(v, it.extent) for v, it in zip(loops, iters, strict=True)], block)


def _beside(
    nest: Nest, body: Stmt, root: Stmt, placed: PlacedBlock, add: Buffer, before: Stmt | None = None, after: Stmt | None = None
) -> Kernel:
    """The kernel with a nest before or after the top-level statement that held `placed`."""
    old = nest.kernel.body.stmts if isinstance(nest.kernel.body, Seq) else (nest.kernel.body,)
    parts = body.stmts if isinstance(body, Seq) else (body,)
    position = next(index for index, stmt in enumerate(old) if stmt is root)
    return with_body(nest.kernel, seq(*parts[:position], before, parts[position], after, *parts[position + 1 :]), add=(add,))
