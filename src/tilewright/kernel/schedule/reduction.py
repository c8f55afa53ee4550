"""Reductions: initialisation as a block of its own, and partial results that run side by side."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import TRUE, Expr, const, load, select, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, substitute
from tilewright.kernel.builder import COMBINERS
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, Stmt, Store, seq, substitute_stmt, with_fields
from tilewright.kernel.regions import bound_predicate, conjuncts
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.legality import determines, reduction_loops
from tilewright.kernel.schedule.nest import (
    Nest,
    PlacedBlock,
    both,
    edit,
    extents,
    fresh_iters,
    nested,
    refuse,
    replaced,
    with_body,
)

_COMBINER_OF = {Op.ADD: "sum", Op.MUL: "prod", Op.MAX: "max", Op.MIN: "min", Op.OR: "any", Op.AND: "all"}


def decompose_reduction(nest: Nest, block: str, loop: str) -> Change:
    """Make a block of a reduction's init and place it right before `loop`, which must be around or outside all reduction loops.

        for i in 4:                       for i in 4:
          for k in 8:                       C_init: c[v] = 0
            C: init c[v] = 0       ->       for k in 8:
               c[v] += a[v, r]                C: c[v] += a[v, r]

    Loops inside `loop` that the spatial iters need are copied for the init, with the way they run. Refuses where two iterations inside
    `loop` may compute the same element, which would be added up twice. Results: the new block, then the copied loops.
    """
    placed, target = nest.block(block), nest.loop(loop)
    old = placed.stmt
    if old.init is None:
        refuse(f"block '{block}' has no init")
    if target.stmt not in placed.around:
        refuse(f"loop '{loop}' is not around block '{block}'")
    reducing = reduction_loops(placed)
    outside = [name for name in (v.name for v in target.outer) if var(name) in reducing]
    if outside:
        refuse(f"'{outside[0]}' outside '{loop}' reduces too", "choose the outermost reduction loop")
    spatial = [(it, b) for it, b in zip(old.iters, old.bindings, strict=True) if it.kind == "spatial"]
    wanted = free_vars(*(b for _, b in spatial))
    within = placed.around[placed.around.index(target.stmt) :]
    copied = [lp for lp in within if lp.var in wanted]
    repeating = [lp.var.name for lp in within if lp.var not in wanted and lp.var not in reducing and lp.extent is not const(1)]
    if repeating:
        refuse(f"the reduction starts anew in each iteration of '{repeating[0]}'", "choose a loop inside of it")
    for position, lp in enumerate(within):
        if lp.extent is not const(1) and not determines(old.bindings, lp.var, extents(within[position:])):
            refuse(f"iterations of '{lp.var.name}' may compute the same elements again", "choose a loop inside of it")
    names = nest.fresh(f"{block}_init", *(f"{lp.var.name}_init" for lp in copied))
    loops: dict[Expr, Expr] = {lp.var: var(name) for lp, name in zip(copied, names[1:], strict=True)}
    iters = fresh_iters(nest, [(it.extent, it.kind) for it, _ in spatial])
    predicate = TRUE
    inside = {lp.var for lp in within}
    for condition in conjuncts(bound_predicate(old)):
        if not any(v in inside and v not in loops for v in free_vars(condition)):
            predicate = both(predicate, substitute(condition, loops))
    body = substitute_stmt(old.init, {it.var: new.var for (it, _), new in zip(spatial, iters, strict=True)})
    bindings = tuple(substitute(b, loops) for _, b in spatial)
    init: Stmt = Block(names[0], iters, bindings, body, None, predicate)
    init = nested([(loops[lp.var], substitute(lp.extent, loops), lp.kind) for lp in copied], init)
    update = with_fields(old, init=None)
    lowered = edit(target.stmt, {old: update})
    return Change(replaced(nest, {target.stmt: seq(init, lowered)}), names)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """buffer[indices] = combine(buffer[indices], value), from the combiner's identity."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    combiner: str

    @property
    def identity(self) -> Expr:
        return COMBINERS[self.combiner].identity(self.buffer.dtype)


def accumulation(block: Block) -> Accumulation | None:
    """The block read as an accumulation with a known combiner, or None."""
    body, init = block.body, block.init
    if not isinstance(body, Store) or (init is not None and not isinstance(init, Store)):
        return None
    name = _COMBINER_OF.get(body.value.op)
    if name is None:
        return None
    own = load(body.buffer, body.indices)
    if own not in body.value.args or body.value.args[0] is body.value.args[1]:
        return None
    value = body.value.args[1] if body.value.args[0] is own else body.value.args[0]
    found = Accumulation(body.buffer, body.indices, value, name)
    if init is not None and (init.buffer is not body.buffer or init.indices != body.indices or init.value is not found.identity):
        return None
    return found


def rfactor(nest: Nest, loop: str, axis: int = 0) -> Change:
    """Give each iteration of a reduction loop its own partial result; a second block reduces these. Partial results then may run as
    vector lanes or threads.

        for k_o in 8:                          for k_o in 8:
          for k_i in 16:                         for k_i in 16:
            C: c[v] += a[v, k_o*16+k_i]   ->       C_rf: c_partial[k_i, v] += a[v, k_o*16+k_i]
                                               for k_i_final in 16:
                                                 C: c[v] += c_partial[r, v]

    `axis` is the place of the new dimension. Points outside the domain (ragged tails) contribute the identity. Results: the block of
    partial results, then the loops around the final block that are new.
    """
    target = nest.loop(loop)
    inside = nest.under(target.stmt)
    if len(inside) != 1:
        refuse(f"'{loop}' is around {len(inside)} blocks", "factor a loop around the reduction alone")
    placed = inside[0]
    old = placed.stmt
    found = accumulation(old)
    if found is None or old.init is None:
        refuse(f"block '{old.name}' is not an accumulation with its init", "rfactor before decompose_reduction")
    reducing = reduction_loops(placed)
    if target.stmt.var not in reducing:
        refuse(f"block '{old.name}' does not reduce over '{loop}'")
    spatial = [(it, b) for it, b in zip(old.iters, old.bindings, strict=True) if it.kind == "spatial"]
    mixed = reducing.intersection(free_vars(*(b for _, b in spatial)))
    if mixed:
        refuse(f"'{min(v.name for v in mixed)}' is both a reduction loop and a spatial loop of block '{old.name}'", "rfactor before fusing")
    if not 0 <= axis <= len(found.indices):
        refuse(f"the new axis {axis} is not among 0..{len(found.indices)}")
    extent = target.stmt.extent
    if any(v in placed.outer for v in free_vars(extent)):
        refuse(f"the extent of '{loop}' depends on other loops")
    shape = (*found.buffer.shape[:axis], extent, *found.buffer.shape[axis:])
    rf_name, buffer_name = nest.fresh(f"{old.name}_rf", f"{found.buffer.name}_partial")
    partial = Buffer(buffer_name, found.buffer.dtype, shape)
    first = next(lp for lp in placed.around if lp.var in reducing)
    rf_block = _partial_block(nest, placed, found, target.stmt, partial, axis, rf_name)
    rf_nest = edit(first, {old: rf_block})
    final, names = _final_nest(nest, placed, found, first, target.stmt, partial, axis)
    kernel = replaced(nest, {first: seq(rf_nest, final)})
    return Change(with_body(kernel, kernel.body, add=(partial,)), (rf_name, *names))


def _partial_block(nest: Nest, placed: PlacedBlock, found: Accumulation, loop: For, partial: Buffer, axis: int, name: str) -> Block:
    """The old reduction with the loop as a spatial iter and each other reduction loop as a reduction iter."""
    old = placed.stmt
    spatial = [(it, b) for it, b in zip(old.iters, old.bindings, strict=True) if it.kind == "spatial"]
    others = [lp for lp in placed.around if lp.var in reduction_loops(placed) and lp is not loop]
    fresh = fresh_iters(nest, [(it.extent, it.kind) for it, _ in spatial])
    (lane,) = fresh_iters(nest, [(loop.extent, "spatial")])
    rest = fresh_iters(nest, [(lp.extent, "reduction") for lp in others])
    inner: dict[Expr, Expr] = {lp.var: it.var for lp, it in zip(others, rest, strict=True)} | {loop.var: lane.var}
    values: dict[Expr, Expr] = {it.var: new.var for (it, _), new in zip(spatial, fresh, strict=True)}
    for it, binding in zip(old.iters, old.bindings, strict=True):
        if it.kind == "reduction":
            values[it.var] = substitute(binding, inner)
    predicate, value = TRUE, substitute(found.value, values)
    identity = found.identity
    for condition in conjuncts(bound_predicate(old)):
        if any(v in inner for v in free_vars(condition)):
            if any(v not in inner for v in free_vars(condition) if v in placed.outer):
                refuse(f"the predicate {condition!r} mixes reduction loops with others")
            value = select(substitute(condition, inner), value, identity)
        else:
            predicate = both(predicate, condition)
    at = tuple(substitute(index, values) for index in found.indices)
    where = (*at[:axis], lane.var, *at[axis:])
    update = Store(partial, where, COMBINERS[found.combiner].combine(load(partial, where), value))
    iters = (*fresh, lane, *rest)
    bindings = (*(b for _, b in spatial), loop.var, *(lp.var for lp in others))
    return Block(name, iters, bindings, update, Store(partial, where, identity), predicate)


def _final_nest(
    nest: Nest, placed: PlacedBlock, found: Accumulation, first: For, loop: For, partial: Buffer, axis: int
) -> tuple[Stmt, tuple[str, ...]]:
    """The block that combines partial results, with copies of the spatial loops that were inside the first reduction loop."""
    old = placed.stmt
    spatial = [(it, b) for it, b in zip(old.iters, old.bindings, strict=True) if it.kind == "spatial"]
    wanted = free_vars(*(b for _, b in spatial))
    copied = [lp for lp in placed.around[placed.around.index(first) :] if lp.var in wanted]
    names = nest.fresh(*(f"{lp.var.name}_final" for lp in copied), f"{loop.var.name}_final")
    loops: dict[Expr, Expr] = {lp.var: var(name) for lp, name in zip(copied, names, strict=False)}
    lane_loop = var(names[-1])
    (lane,) = (BlockIter(var(nest.fresh("r")[0]), loop.extent, "reduction"),)
    predicate = TRUE
    dropped = reduction_loops(placed)
    for condition in conjuncts(bound_predicate(old)):
        if not any(v in dropped for v in free_vars(condition)):
            predicate = both(predicate, substitute(condition, loops))
    where = (*found.indices[:axis], lane.var, *found.indices[axis:])
    own = load(found.buffer, found.indices)
    update = Store(found.buffer, found.indices, COMBINERS[found.combiner].combine(own, load(partial, where)))
    iters = (*(it for it, _ in spatial), lane)
    bindings = (*(substitute(b, loops) for _, b in spatial), lane_loop)
    block = Block(old.name, iters, bindings, update, old.init, predicate)
    around = [(loops[lp.var], substitute(lp.extent, loops)) for lp in copied]
    return nested([*around, (lane_loop, loop.extent)], block), names
