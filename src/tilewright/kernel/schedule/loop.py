"""Loop primitives: split, fuse, reorder, and how iterations run (parallel, vectorized, unrolled)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from tilewright.ir.expr import TRUE, Expr, ceildiv, const, less, var
from tilewright.ir.prove import at_most, prove_equal
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import product
from tilewright.kernel.nodes import For, LoopKind, Stmt
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.legality import check_covered, check_iterations_independent, reduction_loops
from tilewright.kernel.schedule.nest import Nest, PlacedLoop, nested, rebind, refuse, replaced
from tilewright.kernel.schedule.reduction import accumulation

MAX_UNROLL = 1024
MAX_LANES = 256


def split(nest: Nest, loop: str, factors: int | Sequence[int | None]) -> Change:
    """Split a loop into nested ones. `factors` are the extents of the new loops, outermost first; one may be None and is inferred.
    An int f stands for (None, f). Where the extents do not divide, blocks get the predicate that the old loop was in range.

        for i in 20:                      for i_o in 3:
          A(v=i)            ->              for i_i in 8:
                                              A(v=i_o*8 + i_i) where i_o*8 + i_i < 20

    Results: the new loops.
    """
    placed = nest.loop(loop)
    old = placed.stmt
    _need_serial(placed)
    wanted = (None, factors) if isinstance(factors, int) else tuple(factors)
    known = [f for f in wanted if f is not None]
    if len(wanted) < 2 or len(known) < len(wanted) - 1 or any(f < 1 for f in known):
        refuse(f"{wanted} are no factors", "give two or more positive ints, at most one None among them")
    inner = prod(known)
    sizes = [ceildiv(old.extent, const(inner)) if f is None else const(f) for f in wanted]
    total = product(sizes)
    if len(known) == len(wanted) and not at_most(old.extent, total, placed.outer):
        refuse(f"the factors give {inner} iterations, the loop has {old.extent!r}", "leave one factor None")
    new = [var(name) for name in nest.fresh(*(f"{loop}_{part}" for part in _part_names(len(wanted))))]
    index: Expr = new[0]
    for variable, size in zip(new[1:], sizes[1:], strict=True):
        index = index * size + variable
    index = _spread(new, sizes) if all(size.is_const for size in sizes[1:]) else index
    guard = TRUE if prove_equal(total, old.extent) else less(index, old.extent)
    body = rebind(old.body, {old.var: index}, guard)
    result = nested(list(zip(new, sizes, strict=True)), body)
    return Change(replaced(nest, {old: result}), tuple(v.name for v in new))


def _part_names(count: int) -> list[str]:
    """Outer, middle and inner: o, i; o, m, i; o, m1, m2, i ..."""
    middle = ["m"] if count == 3 else [f"m{number}" for number in range(1, count - 1)]
    return ["o", *middle, "i"]


def _spread(variables: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """The index as a sum of variables with constant weights."""
    weight = 1
    terms = []
    for variable, size in zip(reversed(variables), reversed(sizes), strict=True):
        terms.append(variable * weight)
        if variable is not variables[0]:
            weight *= int(size.value)
    result = terms.pop()
    while terms:
        result = result + terms.pop()
    return result


def fuse(nest: Nest, *loops: str) -> Change:
    """Make one loop of perfectly nested ones, given outermost first.

        for i in 4:                       for i_j in 4*6:
          for j in 6:       ->              A(v=i_j // 6, w=i_j % 6)
            A(v=i, w=j)

    Results: the new loop. Refuses loops of a reduction with those of its results where any loop of the reduction may be empty: no
    iteration would be left to initialise them.
    """
    if len(loops) < 2:
        refuse("fusing takes two or more loops")
    chain = [nest.loop(name).stmt for name in loops]
    for outer, inner in pairwise(chain):
        if outer.body is not inner:
            refuse(f"'{inner.var.name}' is not the only thing in '{outer.var.name}'", "reorder the loops or compute blocks elsewhere first")
        if any(v in [c.var for c in chain] for v in free_vars(inner.extent)):
            refuse(f"the extent of '{inner.var.name}' depends on a loop that it would be fused with")
    for name in loops:
        _need_serial(nest.loop(name))
    for placed in nest.under(chain[0]):
        reducing = reduction_loops(placed)
        if placed.stmt.init is None or not 0 < sum(loop.var in reducing for loop in chain) < len(chain):
            continue
        for loop in placed.around:
            if loop.var in reducing and not at_most(const(1), loop.extent, nest.loop(loop.var.name).outer):
                why = f"block '{placed.stmt.name}' would not initialise its results where '{loop.var.name}' has no iterations"
                refuse(why, "decompose the reduction first")
    (name,) = nest.fresh("_".join(loops))
    fused = var(name)
    # loops of one iteration take no digit of the fused number: their variable is 0
    mapping: dict[Expr, Expr] = {loop.var: const(0) for loop in chain}
    digits = [loop for loop in chain if not (loop.extent.is_const and loop.extent.value == 1)]
    rest: Expr = fused
    for loop in reversed(digits):
        mapping[loop.var] = rest if loop is digits[0] else rest % loop.extent
        rest = rest // loop.extent
    body = rebind(chain[-1].body, mapping)
    return Change(replaced(nest, {chain[0]: For(fused, product([c.extent for c in chain]), body)}), (name,))


def reorder(nest: Nest, *loops: str) -> Change:
    """Put loops of one perfect nest in the given order; loops that are not named keep their place.

    for i in 4:                       for j in 6:
      for j in 6:       ->              for i in 4:
        A                                 A
    """
    if len(set(loops)) != len(loops) or len(loops) < 2:
        refuse("reordering takes two or more different loops")
    placed = [nest.loop(name) for name in loops]
    top = min(placed, key=lambda p: len(p.around))
    wanted = {p.stmt for p in placed}
    chain: list[For] = [top.stmt]
    while not wanted <= set(chain):
        below = chain[-1].body
        if not isinstance(below, For):
            missing = next(p.name for p in placed if p.stmt not in chain)
            refuse(f"'{missing}' is not perfectly nested in '{top.name}'", "compute the blocks between them elsewhere first")
        chain.append(below)
    order = iter(placed)
    result = [next(order).stmt if loop in wanted else loop for loop in chain]
    if result == chain:
        return Change(nest.kernel, ())
    for position, loop in enumerate(result):
        inner = {other.var for other in result[position:]}
        if inner.intersection(free_vars(loop.extent)):
            refuse(f"the extent of '{loop.var.name}' depends on a loop that would be inside it")
    _check_reorder(nest, chain)
    return Change(replaced(nest, {chain[0]: nested(result, chain[-1].body)}), ())


def _check_reorder(nest: Nest, chain: list[For]) -> None:
    """Blocks that share all the loops may be reordered when each one reads only what its own iteration wrote."""
    last = chain[-1]
    inside = nest.under(last)
    for block in inside:
        used = free_vars(*block.stmt.bindings)
        idle = [loop.var.name for loop in chain if loop.var not in used and not (loop.extent.is_const and loop.extent.value == 1)]
        if idle and reduction_loops(block):
            refuse(f"block '{block.stmt.name}' is reduced anew in each iteration of '{idle[0]}'")
        # The init runs where all reduction iters are 0, which must stay the first point of each element that is visited.
        spatial = free_vars(*(b for it, b in zip(block.stmt.iters, block.stmt.bindings, strict=True) if it.kind == "spatial"))
        mixed = [loop.var.name for loop in chain if loop.var in spatial and loop.var in reduction_loops(block)]
        if mixed and block.stmt.init is not None:
            refuse(f"'{mixed[0]}' is both a reduction loop and a spatial loop of block '{block.stmt.name}'", "reorder before fusing")
    if len(inside) < 2:
        return
    names = [block.stmt.name for block in inside]
    moved = {loop.var for loop in chain}
    for block in inside:
        if moved & reduction_loops(block):
            refuse(f"block '{block.stmt.name}' reduces over one of the loops and shares them with other blocks", "decompose afterwards")
        for buffer in nest.outputs(block.stmt.name):
            for reader in nest.readers(buffer):
                if reader in names and reader != names[0] and reader not in nest.writers(buffer)[:1]:
                    check_covered(nest, buffer, [w for w in nest.writers(buffer) if w in names], reader, last)


def parallel(nest: Nest, loop: str) -> Change:
    """Let the loop's iterations run on several threads. Each must write its own elements, or scratch used only inside the loop.

    for i in n: A       ->            parallel i in n: A
    """
    placed = nest.loop(loop)
    check_iterations_independent(nest, placed, private_allowed=True)
    return _with_kind(nest, placed, "parallel")


def vectorize(nest: Nest, loop: str) -> Change:
    """Run all iterations of a loop of small constant extent at once, as vector lanes. Each must write its own elements, or the loop is
    around one accumulation alone that reduces over it: then the lanes are combined in pairs, halves first, and the result with the element
    (another order of a sum than the loop's).

    for i in 16: A      ->            vectorized i in 16: A
    """
    placed = nest.loop(loop)
    _need_extent(placed, MAX_LANES)
    if not _reduces_alone(nest, placed):
        check_iterations_independent(nest, placed, private_allowed=False)
    return _with_kind(nest, placed, "vectorized")


def _reduces_alone(nest: Nest, placed: PlacedLoop) -> bool:
    """The loop's body is one accumulation that reduces over the loop, and into the same element in all of its iterations."""
    inside = nest.under(placed.stmt)
    if len(inside) != 1 or placed.stmt.body is not inside[0].stmt or accumulation(inside[0].stmt) is None:
        return False
    block = inside[0].stmt
    kept = free_vars(*(b for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == "spatial"))
    return placed.stmt.var in reduction_loops(inside[0]) and placed.stmt.var not in kept


def unroll(nest: Nest, loop: str) -> Change:
    """Repeat the body instead of looping; the extent must be a small constant.

    for i in 4: A       ->            unrolled i in 4: A
    """
    placed = nest.loop(loop)
    _need_extent(placed, MAX_UNROLL)
    return _with_kind(nest, placed, "unrolled")


def _need_extent(placed: PlacedLoop, most: int) -> None:
    extent = placed.stmt.extent
    if not extent.is_const:
        refuse(f"the extent {extent!r} of '{placed.name}' is not a constant", "split the loop first")
    if extent.value > most:
        refuse(f"the extent {extent!r} of '{placed.name}' is over {most}", "split the loop first")


def _need_serial(placed: PlacedLoop) -> None:
    if placed.stmt.kind != "serial":
        refuse(f"'{placed.name}' is {placed.stmt.kind}", "change how a loop runs after its structure is final")


def _with_kind(nest: Nest, placed: PlacedLoop, kind: LoopKind) -> Change:
    old = placed.stmt
    _need_serial(placed)
    new: Stmt = For(old.var, old.extent, old.body, kind)
    return Change(replaced(nest, {old: new}), ())
