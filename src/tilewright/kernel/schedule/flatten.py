"""Two neighbouring axes as one: the rows and columns of an image, where nothing depends on which of the two a point moves along."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.expr import Expr, const, load, mul, var
from tilewright.ir.prove import prove_equal
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import depends_on, substitute, transform
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, Kernel, Stmt, Store, map_stmt, own_exprs, walk_stmts
from tilewright.kernel.regions import Access, accesses
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.nest import Nest, PlacedBlock, edit, refuse
from tilewright.kernel.schedule.padding import iter_position


def flatten(nest: Nest, block: str, iter: str | int) -> Change:  # noqa: A002 (the term of the kernel form)
    """Make one axis of a block's spatial iter and the one after it, in all blocks and buffers that have the two side by side. Elements stay
    where they are in memory; the shapes of parameters change with the others.

        for i in h: for j in w: A: y[v, u] = x[v, u] * s      x, y: float32[h, w]
        ->
        for i_j in h*w: A: y[v] = x[v] * s                    x, y: float32[h*w]

    Results: the block's new loop. Iters of one point count as 0. Refuses where a buffer is read along one of the two alone.
    """
    blocks: dict[str, int] = {}
    buffers: dict[Buffer, int] = {}
    waiting = [(block, iter_position(nest.block(block).stmt, iter))]
    while waiting:
        name, position = waiting.pop()
        if name in blocks:
            if blocks[name] != position:
                refuse(f"block '{name}' would have two pairs of iters made one")
            continue
        blocks[name] = position
        for buffer, dim in _sides(nest.block(name), position).items():
            if buffers.setdefault(buffer, dim) != dim:
                refuse(f"{buffer.name} has the two axes in two places")
            waiting += [(user, _pair(nest.block(user).stmt, buffer, dim)) for user in (*nest.readers(buffer), *nest.writers(buffer))]
    flat = {buffer: _joined(buffer, dim) for buffer, dim in buffers.items()}
    changes: dict[Stmt, Stmt | None] = {}
    loops = {}
    for name, position in blocks.items():
        placed = nest.block(name)
        outer, inner = _loops(nest, placed, position)
        (loops[name],) = nest.fresh(f"{outer.var.name}_{inner.var.name}")
        changes[outer] = _flattened(nest, placed, position, outer, inner, loops[name], flat, buffers)
    kernel = nest.kernel

    def each(group: Iterable[Buffer]) -> tuple[Buffer, ...]:
        return tuple(flat.get(buffer, buffer) for buffer in group)

    body = edit(kernel.body, changes)
    assert body is not None
    made = Kernel(kernel.name, each(kernel.inputs), each(kernel.outputs), body, kernel.sizes, each(kernel.scratch))
    return Change(made, (loops[block],))


def _points(block: Block) -> dict[Expr, Expr]:
    """The iters of one point."""
    return {it.var: const(0) for it in block.iters if it.extent.is_const and it.extent.value == 1}


def _touched(block: Block) -> tuple[Access, ...]:
    found = accesses(block)
    return (*found.loads, *found.stores, *found.init_stores)


def _sides(placed: PlacedBlock, position: int) -> dict[Buffer, int]:
    """The buffers that the block goes through with both iters, and the dimension of the first one."""
    block, single = placed.stmt, _points(placed.stmt)
    if position + 1 >= len(block.iters) or any(it.kind != "spatial" for it in block.iters[position : position + 2]):
        refuse(f"block '{block.name}' has no two spatial iters at {position}", "flatten takes the first of two neighbours")
    first, second = block.iters[position : position + 2]
    found: dict[Buffer, int] = {}
    for access in _touched(block):
        indices = [substitute(index, single) for index in access.indices]
        if not any(depends_on(index, {first.var, second.var}) for index in indices):
            continue
        dim = _dim(indices, first, second)
        sizes = access.buffer.shape[dim : dim + 2] if dim is not None else ()
        if dim is None or not all(prove_equal(size, it.extent) for size, it in zip(sizes, (first, second), strict=True)):
            refuse(f"block '{block.name}' does not go through all of {access.buffer.name} by '{first.var.name}' and '{second.var.name}'")
        if found.setdefault(access.buffer, dim) != dim:
            refuse(f"{access.buffer.name} has the two axes in two places")
    return found


def _dim(indices: list[Expr], first: BlockIter, second: BlockIter) -> int | None:
    """Where the two iters are indices side by side, and nowhere else."""
    own = [dim for dim, index in enumerate(indices) if depends_on(index, {first.var, second.var})]
    beside = len(own) == 2 and own[1] == own[0] + 1 and indices[own[0]] is first.var and indices[own[1]] is second.var
    return own[0] if beside else None


def _pair(block: Block, buffer: Buffer, dim: int) -> int:
    """The number of the iter that all accesses of the block have as index `dim` of the buffer, with the next one behind it."""
    single, variables = _points(block), [it.var for it in block.iters]
    found = {tuple(substitute(i, single) for i in access.indices[dim : dim + 2]) for access in _touched(block) if access.buffer is buffer}
    pairs = [p for p in range(len(variables) - 1) if found == {(variables[p], variables[p + 1])}]
    if not pairs:
        refuse(f"block '{block.name}' does not go through {buffer.name} by two neighbouring iters")
    return pairs[0]


def _loops(nest: Nest, placed: PlacedBlock, position: int) -> tuple[For, For]:
    """The two loops that the iters are bound to."""
    block = placed.stmt
    pair = [next((loop for loop in placed.around if loop.var is binding), None) for binding in block.bindings[position : position + 2]]
    outer, inner = pair
    if outer is None or inner is None or outer.body is not inner or outer.kind != "serial" or inner.kind != "serial":
        refuse(f"the iters of block '{block.name}' are not bound to two nested serial loops", "flatten before other primitives")
    extents = (block.iters[position].extent, block.iters[position + 1].extent)
    if not all(prove_equal(loop.extent, extent) for loop, extent in zip((outer, inner), extents, strict=True)):
        refuse(f"the loops of block '{block.name}' are not as long as its iters")
    if len(nest.under(outer)) != 1:
        refuse(f"'{outer.var.name}' is around other blocks as well", "flatten before computing blocks together")
    return outer, inner


def _joined(buffer: Buffer, dim: int) -> Buffer:
    shape = buffer.shape
    return Buffer(buffer.name, buffer.dtype, (*shape[:dim], mul(shape[dim], shape[dim + 1]), *shape[dim + 2 :]), buffer.scope)


def _flattened(
    nest: Nest, placed: PlacedBlock, position: int, outer: For, inner: For, name: str, flat: dict[Buffer, Buffer], dims: dict[Buffer, int]
) -> Stmt:
    """The loop that takes the place of the block's two."""
    old, single = placed.stmt, _points(placed.stmt)
    gone = {old.iters[position].var, old.iters[position + 1].var}
    at = var(nest.fresh("v")[0])
    memo: dict[Expr, Expr] = {}

    def moved(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        dim = dims[buffer]
        return (*indices[:dim], at, *indices[dim + 2 :])

    def visit(e: Expr) -> Expr | None:
        return load(flat[e.attr], moved(e.attr, e.args)) if e.op is Op.LOAD and e.attr in flat else None

    def on_stmt(stmt: Stmt) -> Stmt:
        mapped = map_stmt(stmt, on_stmt, lambda e: transform(substitute(e, single), visit, memo))
        if isinstance(mapped, Store) and mapped.buffer in flat:
            return Store(flat[mapped.buffer], moved(mapped.buffer, mapped.indices), mapped.value)
        return mapped

    body, init = on_stmt(old.body), None if old.init is None else on_stmt(old.init)
    left = [e for part in (body, init) if part is not None for stmt in walk_stmts(part) for e in own_exprs(stmt)]
    if any(depends_on(e, gone) for e in (*left, old.predicate)):
        refuse(f"block '{old.name}' computes with '{old.iters[position].var.name}' or the iter after it")
    variable = var(name)
    others = (*old.bindings[:position], *old.bindings[position + 2 :])
    within = [loop.extent for loop in placed.inside(inner)]
    if any(depends_on(e, {outer.var, inner.var}) for e in (*others, old.predicate, *within)):
        refuse(f"more of block '{old.name}' than two iters depends on '{outer.var.name}' and '{inner.var.name}'")
    extent = mul(outer.extent, inner.extent)
    iters = (*old.iters[:position], BlockIter(at, extent), *old.iters[position + 2 :])
    bindings = (*old.bindings[:position], variable, *old.bindings[position + 2 :])
    new = Block(old.name, iters, bindings, body, init, old.predicate, old.scratch)
    inside = edit(inner.body, {old: new})
    assert inside is not None
    return For(variable, extent, inside)
