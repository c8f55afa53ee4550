"""Where blocks are computed: under a loop of their consumers or producers, or inside their expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.affine import add_scaled, linear, to_expr
from tilewright.ir.expr import Expr, all_of, const, less, less_equal, var
from tilewright.ir.prove import at_most, larger, nonnegative, prove_equal, smaller
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import depends_on, substitute, transform
from tilewright.kernel.nodes import Block, Buffer, For, Stmt, Store, map_stmt, with_fields
from tilewright.kernel.regions import Region, accesses, conjuncts, plain_store, read_region, stores_to, union, written_region
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.legality import check_inputs_ready, reduction_loops
from tilewright.kernel.schedule.nest import (
    Nest,
    PlacedBlock,
    both,
    edit,
    extents,
    insert,
    nested,
    positions,
    refuse,
    with_body,
    with_loops,
)
from tilewright.kernel.spans import Extents

Ranges = dict[Expr, tuple[Expr, Expr]]  # block iter -> start, extent


def compute_at(nest: Nest, block: str, loop: str) -> Change:
    """Compute a producer inside a loop of its consumers, just the region that one iteration needs.

        for i in 64: P(v=i)               for i_o in 8:
        for i_o in 8:             ->        for P_i0 in 10: P(v=i_o*8 + P_i0 - 1) where 0 <= .. and .. < 64
          for i_i in 8: C(..)               for i_i in 8: C(v=i_o*8 + i_i), which reads P at v-1, v, v+1

    All consumers must be under the loop and the block must write no output. Its buffers keep their shape; lowering shrinks them.
    Results: the new loops, one per iter of the block, in order.
    """
    placed, target = nest.block(block), nest.loop(loop)
    _check_whole(nest, placed)
    if target.stmt in placed.around:
        refuse(f"block '{block}' is under '{loop}' already")
    outputs = nest.outputs(block)
    for buffer in outputs:
        if buffer in nest.kernel.outputs:
            refuse(f"block '{block}' writes the output {buffer.name}", "move its consumers to it by reverse_compute_at")
    consumers = nest.consumers(block)
    if not consumers:
        refuse(f"nothing reads what block '{block}' writes")
    for name in consumers:
        if target.stmt not in nest.blocks[name].around:
            refuse(f"block '{name}' reads what block '{block}' writes and is outside '{loop}'", "choose a loop around all consumers")
    scope = target.scope
    needed: Ranges = {}
    for buffer in outputs:
        reads = []
        for name in consumers:
            consumer = nest.blocks[name]
            region = read_region(consumer.stmt, buffer, extents(consumer.inside(target.stmt)), scope)
            if region is not None:
                reads.append(region)
        if reads:
            _require(placed.stmt, buffer, union(reads, scope), needed, scope, also=len(outputs) > 1)
    wanted = set(consumers)
    changed = edit(nest.kernel.body, {placed.stmt: None})
    body = target.stmt.body
    index = positions(body, lambda s: isinstance(s, Block) and s.name in wanted)[0]
    return _placed(nest, placed, target.stmt, changed, index, needed, scope)


def reverse_compute_at(nest: Nest, block: str, loop: str) -> Change:
    """Compute a consumer inside a loop of its producer, right after it, over the region that one iteration writes.

        for i_o in 8:                     for i_o in 8:
          for i_i in 8: P(..)     ->        for i_i in 8: P(v=i_o*8 + i_i)
        for i in 64: C(v=i)                 for C_i0 in 8: C(v=i_o*8 + C_i0)

    The region must be written in full there: no loop around may reduce into it. Results: the new loops, one per iter, in order.
    """
    placed, target = nest.block(block), nest.loop(loop)
    _check_whole(nest, placed)
    if target.stmt in placed.around:
        refuse(f"block '{block}' is under '{loop}' already")
    scope = target.scope
    needed: Ranges = {}
    last = -1
    sources = 0
    for buffer in nest.inputs(block):
        for name in nest.writers(buffer):
            producer = nest.blocks[name]
            if target.stmt not in producer.around:
                continue
            if reduction_loops(producer) & scope.keys():
                refuse(f"block '{name}' reduces over a loop around '{loop}'", "choose a loop outside its reduction loops")
            last = max(last, producer.position)
        writers = [nest.blocks[name] for name in nest.writers(buffer) if target.stmt in nest.blocks[name].around]
        if not writers:
            continue
        parts = [written_region(w.stmt, buffer, extents(w.inside(target.stmt)), scope) for w in writers]
        written = union([part for part in parts if part is not None], scope)
        if not written.exact:
            refuse(f"what is written of {buffer.name} in one iteration of '{loop}' is not a full box", "split its loops evenly")
        before = dict(needed)
        _from_written(placed.stmt, buffer, written, needed)
        sources += needed != before
    if last < 0:
        refuse(f"block '{block}' reads nothing that is written under '{loop}'")
    if not sources:
        refuse(f"the iters of block '{block}' do not follow from what it reads under '{loop}'", "its loads must index by plain iters")
    for it, binding in zip(placed.stmt.iters, placed.stmt.bindings, strict=True):
        if it.kind == "reduction" and it.var in needed:
            start, extent = needed[it.var]
            if prove_equal(start, binding) and prove_equal(extent, const(1)):
                continue  # one step of a reduction over a loop around both, as before
            if not (prove_equal(start, const(0)) and at_most(it.extent, extent, scope)):
                refuse(f"block '{block}' reduces over more than what is written in one iteration of '{loop}'")
    changed = edit(nest.kernel.body, {placed.stmt: None})
    order = {name: p.position for name, p in nest.blocks.items()}
    index = positions(target.stmt.body, lambda s: isinstance(s, Block) and order[s.name] <= last and s.name != block)[-1] + 1
    result = _placed(nest, placed, target.stmt, changed, index, needed, scope)
    for consumer in nest.consumers(block):
        check_inputs_ready(Nest(result.kernel), consumer)
    return result


def _check_whole(nest: Nest, placed: PlacedBlock) -> None:
    block = placed.stmt
    if block.init is None and any(it.kind == "reduction" for it in block.iters):
        refuse(f"block '{block.name}' accumulates and its init is elsewhere", "move it before decompose_reduction")
    for buffer in nest.outputs(block.name):
        if nest.writers(buffer) != [block.name]:
            refuse(f"{buffer.name} is written by several blocks: {', '.join(nest.writers(buffer))}")


def _require(block: Block, buffer: Buffer, region: Region, needed: Ranges, scope: Extents, also: bool) -> None:
    """Widen `needed` so that the block, run over these ranges of its iters, writes the region. An iter is tied to a dimension when all
    its stores index the dimension by that iter alone, or by the number of its tile in a packed layout (`iter // size`); other iters run in
    full. `also`: other outputs may tie the iter to more."""
    stores = stores_to(block, buffer)
    full = {it.var: it.extent for it in block.iters}
    tied: set[Expr] = set()
    for dim, (start, extent) in enumerate(region.dims):
        index = stores[0].indices[dim]
        if any(a.indices[dim] is not index for a in stores) or not region.bounded[dim]:
            continue
        if index.op is Op.FLOORDIV and index.args[1].is_const and index.args[1].value > 0:
            index, size = index.args
            start, extent = start * size, extent * size
        if index not in full or index in tied:
            continue
        tied.add(index)
        known = needed.get(index)
        if known is not None:
            low = smaller(linear(known[0]), linear(start), scope)
            high = larger(add_scaled(linear(known[0]), linear(known[1])), add_scaled(linear(start), linear(extent)), scope)
            start, extent = to_expr(low), to_expr(add_scaled(high, low, -1))
        needed[index] = (start, extent)
    if also:
        needed.update({v: (const(0), extent) for v, extent in full.items() if v not in tied})


def _from_written(block: Block, buffer: Buffer, region: Region, needed: Ranges) -> None:
    """The points of the block that read inside the region: tells the range of each iter that indexes a dimension alone."""
    full = {it.var: it.extent for it in block.iters}
    for access in accesses(block).loads:
        if access.buffer is not buffer:
            continue
        for index, (start, extent), bounded in zip(access.indices, region.dims, region.bounded, strict=True):
            if index in full and bounded and index not in needed:
                needed[index] = (start, extent)


def _placed(nest: Nest, placed: PlacedBlock, loop: For, without: Stmt | None, index: int, needed: Ranges, scope: Extents) -> Change:
    """The block under `loop`, as child number `index`, in new loops over `needed`; checks that its inputs are ready there."""
    block = placed.stmt
    names = nest.fresh(*(f"{block.name}_{'i' if it.kind == 'spatial' else 'k'}{axis}" for axis, it in enumerate(block.iters)))
    loops: list[tuple[Expr, Expr]] = []
    bindings: list[Expr] = []
    iters = [it.var for it in block.iters]
    predicate = all_of(*(condition for condition in conjuncts(block.predicate) if depends_on(condition, iters)))
    for it, name in zip(block.iters, names, strict=True):
        start, extent = needed.get(it.var, (const(0), it.extent))
        start_form, extent_form, size = linear(start), linear(extent), linear(it.extent)
        if nonnegative(add_scaled(extent_form, size, -1), scope):  # as many points as there are, of which some may be outside
            start, extent, start_form, extent_form = const(0), it.extent, linear(const(0)), size
        variable = var(name)
        binding = variable if prove_equal(start, const(0)) else start + variable
        loops.append((variable, extent))
        bindings.append(binding)
        if not nonnegative(start_form, scope):
            predicate = both(predicate, less_equal(const(0), binding))
        if not nonnegative(add_scaled(size, add_scaled(start_form, extent_form), -1), scope):
            predicate = both(predicate, less(binding, it.extent))
    moved = nested(loops, with_loops(block, tuple(bindings), predicate))
    # The block was outside the loop, so the loop is untouched by its removal.
    new_loop = For(loop.var, loop.extent, insert(loop.body, index, moved), loop.kind)
    kernel = with_body(nest.kernel, edit(without, {loop: new_loop}) if without is not None else None)
    check_inputs_ready(Nest(kernel), block.name)
    return Change(kernel, names)


def inline(nest: Nest, block: str) -> Change:
    """Put a block's expression where its value is loaded, in all its consumers (Halide: the default; TVM: compute_inline).

    for i in n: B: b[v] = a[v] + 1
    for i in n: C: c[v] = b[v] * 2    ->    for i in n: C: c[v] = (a[v] + 1) * 2
    """
    placed = nest.block(block)
    store = _inlinable(nest, placed)
    buffer = store.buffer
    if buffer in nest.kernel.outputs:
        refuse(f"{buffer.name} is an output")
    if block in nest.readers(buffer):
        refuse(f"block '{block}' reads what it writes")
    changes: dict[Stmt, Stmt | None] = {placed.stmt: None}
    for name in nest.readers(buffer):
        consumer = nest.blocks[name].stmt
        changes[consumer] = _with_loads(consumer, buffer, lambda indices: _value_at(store, indices))
    kernel = with_body(nest.kernel, edit(nest.kernel.body, changes), remove=(buffer,))
    after = Nest(kernel)
    for name in nest.readers(buffer):
        check_inputs_ready(after, name)
    return Change(kernel)


def _inlinable(nest: Nest, placed: PlacedBlock) -> Store:
    block = placed.stmt
    store = plain_store(block)
    if store is None or block.init is not None or len(store.indices) != len(block.iters):
        refuse(f"block '{block.name}' is not a single store at its own spatial iters")
    full = {it.var: it.extent for it in block.iters}
    if not all(prove_equal(full[index], size) for index, size in zip(store.indices, store.buffer.shape, strict=True)):
        refuse(f"block '{block.name}' does not write all of {store.buffer.name}")
    if nest.writers(store.buffer) != [block.name]:
        refuse(f"{store.buffer.name} is written by several blocks")
    return store


def _value_at(store: Store, indices: tuple[Expr, ...]) -> Expr:
    return substitute(store.value, dict(zip(store.indices, indices, strict=True)))


def _with_loads(block: Block, buffer: Buffer, value: Callable[[tuple[Expr, ...]], Expr]) -> Block:
    """The block with each load of the buffer replaced by `value(indices)`."""
    memo: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr | None:
        return value(e.args) if e.op is Op.LOAD and e.attr is buffer else None

    def on_expr(e: Expr) -> Expr:
        return transform(e, visit, memo)

    def on_stmt(stmt: Stmt) -> Stmt:
        return map_stmt(stmt, on_stmt, on_expr)

    init = None if block.init is None else on_stmt(block.init)
    result: Block = with_fields(block, body=on_stmt(block.body), init=init)
    return result


def reverse_inline(nest: Nest, block: str) -> Change:
    """Put an elementwise consumer into its producer, which then stores the consumer's value (TVM: reverse_compute_inline).

    for i in n: B: b[v] = a[v] + 1
    for i in n: C: c[w] = b[w] * 2    ->    for i in n: B: c[v] = (a[v] + 1) * 2
    """
    placed = nest.block(block)
    consumer = _inlinable(nest, placed)
    candidates = []
    for buffer in nest.inputs(block):
        if buffer in nest.kernel.outputs or nest.readers(buffer) != [block] or len(nest.writers(buffer)) != 1:
            continue
        producer = nest.blocks[nest.writers(buffer)[0]]
        store = plain_store(producer.stmt)
        if store is not None and store.buffer is buffer and producer.stmt.init is None and len(store.indices) == len(producer.stmt.iters):
            candidates.append((producer, store))
    if not candidates:
        refuse(f"block '{block}' has no producer that only it reads and that is a single store without reduction")
    producer, store = candidates[-1]
    where = {a.indices for a in accesses(placed.stmt).loads if a.buffer is store.buffer}
    full: Mapping[Expr, Expr] = {it.var: it.extent for it in placed.stmt.iters}
    at = next(iter(where))
    if len(where) != 1 or len(set(at)) != len(full) or not all(index in full for index in at):
        refuse(f"block '{block}' does not read {store.buffer.name} once, at its own iters")
    if not all(prove_equal(full[index], size) for index, size in zip(at, store.buffer.shape, strict=True)):
        refuse(f"block '{block}' reads only part of {store.buffer.name}")
    mapping = dict(zip(at, store.indices, strict=True))

    def visit(e: Expr) -> Expr | None:
        return store.value if e.op is Op.LOAD and e.attr is store.buffer else None

    # Iters first, while the loads of the producer's buffer still stand for its value: the value has iters of its own.
    value = transform(substitute(consumer.value, mapping), visit)
    indices = tuple(substitute(index, mapping) for index in consumer.indices)
    merged = with_fields(producer.stmt, body=Store(consumer.buffer, indices, value))
    kernel = with_body(nest.kernel, edit(nest.kernel.body, {placed.stmt: None, producer.stmt: merged}), remove=(store.buffer,))
    after = Nest(kernel)
    check_inputs_ready(after, producer.stmt.name)
    for name in after.readers(consumer.buffer):
        check_inputs_ready(after, name)
    return Change(kernel)
