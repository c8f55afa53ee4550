"""Ragged tiles at full speed: blocks that compute a little past the end of their domain, where nobody looks."""

from __future__ import annotations

from tilewright.ir.affine import linear, shift, to_expr
from tilewright.ir.expr import TRUE, Expr, ceildiv, const, less, load, minimum, select
from tilewright.ir.prove import at_most, prove_equal
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, substitute, transform, walk
from tilewright.kernel.builder import COMBINERS
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, If, Kernel, Stmt, Store, map_stmt
from tilewright.kernel.regions import accesses, conjuncts, limits_iter, stores_to
from tilewright.kernel.schedule.caching import swapped
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.legality import written_in_full
from tilewright.kernel.schedule.nest import Nest, PlacedBlock, both, edit, extents, refuse, with_body
from tilewright.kernel.schedule.reduction import accumulation
from tilewright.kernel.spans import span


def clamp_reads(nest: Nest, block: str, iter: str | int, masked: bool = False) -> Change:  # noqa: A002 (the term of the kernel form)
    """Drop the predicate that guards the ragged end of a spatial iter: the iter's extent grows to what the loops run over, loads that
    could then leave their buffer use min(iter, old extent - 1), and the scratch that the block writes grows along. Values past the
    end are never read: readers keep to their own domain. (Halide: tail strategy RoundUp, with the loads of ShiftInwards.)
    `masked`: such loads give 0 past the end instead, which keeps a vector of them one masked load.

        for i_0 in ceildiv(m, 8): for i_1 in 8:
          C: c[v] = a[v]  (v < m)  where i_0*8 + i_1 < m
        ->
          C: c[v] = a[min(v, m - 1)]  (v < ceildiv(m, 8)*8)

    The block must write scratch only. One that accumulates what another block initialises takes that block along: it would load what
    nobody has stored.
    """
    nest = _with_inits(nest, block, iter, masked)
    placed = nest.block(block)
    old = placed.stmt
    position = iter_position(old, iter)
    it, binding = old.iters[position], old.bindings[position]
    if it.kind != "spatial":
        refuse(f"'{it.var.name}' of block '{block}' is a reduction iter", "pad it with the identity: pad()")
    guards = [c for c in conjuncts(old.predicate) if limits_iter(c, old) == position and c.op is Op.LT]
    if not guards:
        return Change(nest.kernel)
    scope = extents(placed.around)
    found = span(binding, scope, {})
    if found is None or (found.low.terms or found.low.constant < 0):
        refuse(f"the values of '{it.var.name}', {binding!r}, are not bounded by the loops")
    rest = TRUE
    for condition in conjuncts(old.predicate):
        if condition not in guards:
            rest = both(rest, condition)
    return Change(_widened(nest, placed, position, to_expr(shift(found.high, 1)), rest, {}, masked))


def _with_inits(nest: Nest, block: str, iter_: str | int, masked: bool) -> Nest:
    """The kernel with the guards dropped of the blocks that write first what `block` accumulates, where it has a guard itself."""
    old = nest.block(block).stmt
    var = old.iters[iter_position(old, iter_)].var
    if old.init is not None or not any(it.kind == "reduction" for it in old.iters):
        return nest
    if not any(limits_iter(c, old) == iter_position(old, iter_) for c in conjuncts(old.predicate)):
        return nest
    for buffer in nest.outputs(block):
        dims = {dim for access in stores_to(old, buffer) for dim, index in enumerate(access.indices) if index is var}
        for writer in nest.writers(buffer)[: nest.writers(buffer).index(block)]:
            first = nest.block(writer).stmt
            if first.init is None and any(it.kind == "reduction" for it in first.iters):
                continue
            own = [it.var for it in first.iters]
            for dim in dims:
                places = {access.indices[dim] for access in stores_to(first, buffer)}
                if len(places) != 1 or not places <= set(own):
                    refuse(f"block '{writer}' stores to {buffer.name} at {places}, not at one iter of its own")
                nest = Nest(clamp_reads(nest, writer, own.index(places.pop()), masked).kernel)
    return nest


def pad(nest: Nest, block: str, iter: str | int, multiple: int) -> Change:  # noqa: A002
    """Round the extent of a block's iter up to a multiple, before its loop is split, so that tiles are full.

        for i in m: C: c[v] = a[v]   ->   for i in ceildiv(m, 16)*16: C: c[v] = a[min(v, m - 1)]

    A spatial iter of a block that writes scratch: loads are clamped and the scratch grows; of one that writes a parameter: the store is
    guarded by v < m. A reduction iter: points past the end contribute the combiner's identity. The iter must be bound to one loop,
    around this block alone.
    """
    placed = nest.block(block)
    old = placed.stmt
    position = iter_position(old, iter)
    it, binding = old.iters[position], old.bindings[position]
    loop = next((lp for lp in placed.around if lp.var is binding), None)
    if loop is None or not prove_equal(loop.extent, it.extent):
        refuse(f"'{it.var.name}' of block '{block}' is not bound to one loop of its extent", "pad before splitting")
    if len(nest.under(loop)) != 1:
        refuse(f"'{loop.var.name}' is around other blocks as well", "pad before computing blocks together")
    if multiple < 1:
        refuse(f"{multiple} is no positive number")
    extent = ceildiv(it.extent, const(multiple)) * multiple
    if prove_equal(extent, it.extent):
        return Change(nest.kernel)
    longer = For(loop.var, extent, loop.body, loop.kind)
    changes: dict[Stmt, Stmt | None] = {loop: longer}
    if it.kind == "reduction":
        padded = _with_identity(old, position, extent)
        return Change(_replaced(nest, loop, longer, old, padded))
    if old.init is None and any(i.kind == "reduction" for i in old.iters):
        refuse(f"block '{block}' accumulates and its init is elsewhere", "pad before decompose_reduction")
    if any(buffer not in nest.kernel.scratch for buffer in nest.outputs(block)):
        if any(i.kind == "reduction" for i in old.iters):
            refuse(f"block '{block}' accumulates in a parameter", "cache_write it first")
        guarded = If(less(it.var, it.extent), old.body)
        iters = (*old.iters[:position], BlockIter(it.var, extent, it.kind), *old.iters[position + 1 :])
        padded = Block(old.name, iters, old.bindings, guarded, old.init, old.predicate, old.scratch)
        return Change(_replaced(nest, loop, longer, old, padded))
    return Change(_widened(nest, placed, position, extent, old.predicate, changes))


def iter_position(block: Block, iter_: str | int) -> int:
    """The number of a block's iter, given by number or name."""
    if isinstance(iter_, int):
        if not -len(block.iters) <= iter_ < len(block.iters):
            refuse(f"block '{block.name}' has {len(block.iters)} iters")
        return iter_ % len(block.iters)
    names = [it.var.name for it in block.iters]
    if iter_ not in names:
        refuse(f"block '{block.name}' has no iter '{iter_}'", f"its iters are {', '.join(names)}")
    return names.index(iter_)


def _replaced(nest: Nest, loop: For, longer: For, old: Block, new: Block) -> Kernel:
    body = edit(longer.body, {old: new})
    if body is None:
        refuse("the loop is empty")
    return with_body(nest.kernel, edit(nest.kernel.body, {loop: For(longer.var, longer.extent, body, longer.kind)}))


def _widened(
    nest: Nest, placed: PlacedBlock, position: int, extent: Expr, predicate: Expr, changes: dict[Stmt, Stmt | None], masked: bool = False
) -> Kernel:
    """The kernel with one spatial iter of a block that writes scratch made longer."""
    old = placed.stmt
    it = old.iters[position]
    grown: list[tuple[Buffer, Buffer]] = []
    for buffer in nest.outputs(old.name):
        if buffer not in nest.kernel.scratch:
            refuse(f"block '{old.name}' writes the parameter {buffer.name}", "cache_write it first")
        shape = list(buffer.shape)
        for access in stores_to(old, buffer):
            for dim, index in enumerate(access.indices):
                if index is it.var:
                    shape[dim] = extent
                elif it.var in free_vars(index):
                    refuse(f"block '{old.name}' stores at {index!r}, not at its iter '{it.var.name}'")
            if it.var not in access.indices:
                refuse(f"'{it.var.name}' does not index what block '{old.name}' stores to {buffer.name}")
        if tuple(shape) != buffer.shape:
            grown.append((buffer, Buffer(buffer.name, buffer.dtype, tuple(shape), buffer.scope)))
    clamped = _clamped(nest, old, position, extent, masked)
    new = Block(clamped.name, clamped.iters, clamped.bindings, clamped.body, clamped.init, predicate, clamped.scratch)
    kernel = nest.kernel
    if changes:
        ((loop, longer),) = changes.items()
        kernel = _replaced(nest, loop, longer, old, new)  # type: ignore[arg-type]
    else:
        kernel = with_body(kernel, edit(kernel.body, {old: new}))
    for before, after in grown:
        kernel = swapped(kernel, before, after)
    return kernel


def _clamped(nest: Nest, block: Block, position: int, extent: Expr, masked: bool = False) -> Block:
    """The block with a longer iter whose loads from other buffers stay in bounds: where that is not proved, the index uses the iter
    clamped to its old range, or (`masked`) the load is replaced by 0 past it. Loads of what the block writes itself stay, as they
    follow its stores."""
    it = block.iters[position]
    ranges = {other.var: other.extent for other in block.iters} | {it.var: extent}
    own = {a.buffer for a in (*accesses(block).stores, *accesses(block).init_stores)} | set(block.scratch)
    clamp = {it.var: minimum(it.var, to_expr(shift(linear(it.extent), -1)))}

    def visit(e: Expr) -> Expr | None:
        if e.op is not Op.LOAD or e.attr in own:
            return None
        indices = []
        leaves = False
        for index, size in zip(e.args, e.attr.shape, strict=True):
            if it.var in free_vars(index):
                found = span(index, ranges, {})
                if found is None or not at_most(to_expr(shift(found.high, 1)), size) or not filled(e.attr):
                    leaves = True
                    index = index if masked else substitute(index, clamp)
            indices.append(index)
        return select(less(it.var, it.extent), e, const(0, e.dtype)) if leaves and masked else load(e.attr, tuple(indices))

    full: dict[Buffer, bool] = {}

    def filled(buffer: Buffer) -> bool:
        """Whether all of the buffer holds values: the padding of packed scratch may hold none."""
        if buffer not in full:
            full[buffer] = buffer in nest.kernel.params or written_in_full(nest, buffer)
        return full[buffer]

    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr:
        if masked or not any(n.op is Op.SELECT and it.var in free_vars(n.args[0]) and transform(n, visit, memo) is not n for n in walk(e)):
            return transform(e, visit, memo)
        # A load stays in its buffer under a condition on the iter: both use the clamped one, or the condition is no guard any more.
        kept = {node: node for node in walk(e) if node.op is Op.LOAD and node.attr in own}
        return substitute(e, {**clamp, **kept})

    def on_stmt(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            return Store(stmt.buffer, stmt.indices, on_expr(stmt.value))
        return map_stmt(stmt, on_stmt, on_expr)

    iters = (*block.iters[:position], BlockIter(it.var, extent, it.kind), *block.iters[position + 1 :])
    init = None if block.init is None else on_stmt(block.init)
    return Block(block.name, iters, block.bindings, on_stmt(block.body), init, block.predicate, block.scratch)


def _with_identity(block: Block, position: int, extent: Expr) -> Block:
    """The accumulation with a longer reduction iter; past the old end it combines with the identity."""
    found = accumulation(block)
    if found is None:
        refuse(f"block '{block.name}' is not an accumulation with a known identity")
    it = block.iters[position]
    value = select(less(it.var, it.extent), found.value, found.identity)
    body = Store(found.buffer, found.indices, COMBINERS[found.combiner].combine(load(found.buffer, found.indices), value))
    iters = (*block.iters[:position], BlockIter(it.var, extent, it.kind), *block.iters[position + 1 :])
    return Block(block.name, iters, block.bindings, body, block.init, block.predicate, block.scratch)
