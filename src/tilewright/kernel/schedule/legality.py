"""The questions that primitives ask before they change the order of computation.

Every buffer is written by one block (an accumulation may be split into an initialising and an updating one), so the only order to keep
is: whoever reads an element runs after it was written in full.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.affine import Linear, linear, to_expr
from tilewright.ir.expr import Expr, const
from tilewright.ir.prove import at_most, prove_equal
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier, simplify
from tilewright.ir.traverse import depends_on, free_vars, substitute, walk
from tilewright.ir.types import product
from tilewright.kernel.nodes import Block, Buffer, For
from tilewright.kernel.regions import (
    Region,
    conjuncts,
    covers,
    domain_predicate_only,
    limits_iter,
    read_region,
    stores_to,
    union,
    written_region,
)
from tilewright.kernel.schedule.nest import Nest, PlacedBlock, PlacedLoop, extents, refuse
from tilewright.kernel.spans import Extents, span


def reduction_loops(placed: PlacedBlock) -> frozenset[Expr]:
    """Variables that the bindings of the block's reduction iters depend on."""
    block = placed.stmt
    used = [binding for it, binding in zip(block.iters, block.bindings, strict=True) if it.kind == "reduction"]
    return frozenset(free_vars(*used))


def check_iterations_independent(nest: Nest, placed: PlacedLoop, private_allowed: bool) -> None:
    """Refuses unless the iterations of the loop may run at once: none reduces over it, each writes its own elements (or, where allowed,
    scratch that is used nowhere outside the loop), and none reads what another writes."""
    loop = placed.stmt
    inside = nest.under(loop)
    written: dict[Buffer, None] = {}
    for block in inside:
        if loop.var in reduction_loops(block):
            refuse(f"block '{block.stmt.name}' reduces over '{placed.name}'", "rfactor the loop, or choose another one")
        for buffer in nest.outputs(block.stmt.name):
            written[buffer] = None
    for buffer in written:
        disjoint = all(_disjoint(block, buffer, loop) for block in inside)
        if not disjoint and not (private_allowed and _private(nest, buffer, loop)):
            refuse(f"iterations of '{placed.name}' may write the same elements of {buffer.name}")
        check_flow(nest, buffer, inside, placed)


def check_flow(nest: Nest, buffer: Buffer, inside: list[PlacedBlock], placed: PlacedLoop) -> None:
    """Refuses unless each read of `buffer` under the loop is of elements written before in the same iteration."""
    names = {block.stmt.name for block in inside}
    writers = [name for name in nest.writers(buffer) if name in names]
    for reader in nest.readers(buffer):
        if reader not in names or reader == writers[0]:
            continue
        check_covered(nest, buffer, writers, reader, placed.stmt)


def _private(nest: Nest, buffer: Buffer, loop: For) -> bool:
    users = {*nest.readers(buffer), *nest.writers(buffer)}
    return buffer in nest.kernel.scratch and all(loop in nest.blocks[name].around for name in users)


def _disjoint(placed: PlacedBlock, buffer: Buffer, loop: For) -> bool:
    """Whether the block's stores to the buffer in two iterations of the loop never meet, the loops around it fixed."""
    block = placed.stmt
    stores = stores_to(block, buffer)
    if not stores:
        return True
    patterns = {tuple(a.indices) for a in stores}
    inner = extents(placed.inside(loop))
    bindings = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    dims = zip(*patterns, strict=True) if len(patterns) > 1 else ((i,) for i in next(iter(patterns)))
    shared = [versions[0] for versions in dims if all(v is versions[0] for v in versions)]
    loops: dict[Expr, Expr] = {loop.var: loop.extent, **inner}
    for access in stores:
        loops.update(access.loops)
    return determines([substitute(index, bindings) for index in shared], loop.var, loops)


Part = tuple[Expr, Expr | None]  # divisor and modulus of a digit


def determines(values: Iterable[Expr], variable: Expr, moving: Extents) -> bool:
    """Whether the values of the expressions, taken together, tell the value of `variable`, whatever the other `moving` variables are.

    Each expression is read as a mixed-radix number whose digits are moving variables or digits `x // a % b` of a common numerator x, as
    split and fuse make them; a numerator whose digits are all known is known, and is read in turn.
    """
    given = list(values)
    return _determines(given, variable, moving, simplified=False) or (
        any(node.op is Op.FLOORDIV for node in walk(*given)) and _determines(given, variable, moving, simplified=True)
    )


def _determines(values: list[Expr], variable: Expr, moving: Extents, simplified: bool) -> bool:
    pending = list(values)
    digits: dict[Expr, set[Part]] = {}
    while pending:
        for digit in _digits_of(pending.pop(), moving, simplified):
            if digit is variable:
                return True
            found = _as_digit(digit)
            if found is None:
                continue
            numerator, part = found
            known = digits.setdefault(numerator, set())
            if part not in known:
                known.add(part)
                if _complete(known, moving.get(numerator)):
                    pending.append(numerator)
    return False


def _digits_of(e: Expr, moving: Extents, simplified: bool) -> list[Expr]:
    """The digits that the value of `e` tells, read as it is written and, with `simplified`, also as it simplifies: `(i * 8 + j) // 4` tells
    a digit of `i * 8 + j`, and, being `i * 2 + j // 4`, also `i`."""
    found = _independent_terms(linear(e), moving)
    return found + _independent_terms(linear(simplify(e, extents=moving)), moving) if simplified else found


def _as_digit(e: Expr) -> tuple[Expr, Part] | None:
    """`e` as numerator // divisor % modulus."""
    if e.op is Op.FLOORMOD:
        top, divisor = _quotient(e.args[0])
        return top, (divisor, e.args[1])
    if e.op is not Op.FLOORDIV:
        return None
    top, divisor = _quotient(e)
    if top.op is Op.FLOORMOD and top.args[1].is_const and divisor.is_const and top.args[1].value % divisor.value == 0:
        return top.args[0], (divisor, const(top.args[1].value // divisor.value))
    return top, (divisor, None)


def _quotient(e: Expr) -> tuple[Expr, Expr]:
    """x // a // b as x, a*b."""
    divisor = const(1)
    while e.op is Op.FLOORDIV:
        divisor = e.args[1] * divisor
        e = e.args[0]
    return e, divisor


def _complete(digits: set[Part], extent: Expr | None) -> bool:
    """Whether the digits determine their numerator: 1, m, m*n, ... without a gap up to one without modulus, or up to its extent."""
    reached = const(1)
    for _ in range(len(digits)):
        following = [modulus for divisor, modulus in digits if prove_equal(divisor, reached)]
        if None in following:
            return True
        if not following or following[0] is None:
            return False
        reached = reached * following[0]
        if extent is not None and (at_most(extent, reached)):
            return True
    return False


def _independent_terms(form: Linear, moving: Extents) -> list[Expr]:
    """The terms that the value of the sum tells: divisions that have one value only, and, if it is a mixed-radix number, all its moving
    terms (each weight beats the sum of all smaller terms' ranges)."""
    parts = [(abs(c), to_expr(Linear(0, {atoms: 1}))) for atoms, c in form.terms.items() if any(depends_on(a, moving) for a in atoms)]
    if len(parts) == 1 and parts[0][1].args:
        return [parts[0][1]]
    terms = [(weight, term, _count(term, moving)) for weight, term in parts]
    known = [term for _, term, count in terms if count == 1 and term.args]
    rest = sorted((term for term in terms if term[2] != 1), key=lambda term: (term[0], term[2] is None))
    reach = 0
    for position, (weight, _, count) in enumerate(rest):
        if weight <= reach or (count is None and position < len(rest) - 1):
            return known
        reach += weight * ((count or 1) - 1)
    return known + [term for _, term, _ in rest]


def _count(atom: Expr, moving: Extents) -> int | None:
    if atom in moving:
        return simplifier(extents=moving).facts.bounds(moving[atom]).hi
    if atom.op is Op.FLOORMOD and atom.args[1].is_const:
        return int(atom.args[1].value)
    found = span(atom, moving, {})
    width = None if found is None else found.extent
    return width.constant if width is not None and width.is_const else None


def check_covered(nest: Nest, buffer: Buffer, writers: list[str], reader: str, common: For) -> None:
    """Refuses unless, in one iteration of `common`, the writers (all in it) write all that the reader reads, in full and before it."""
    read_block = nest.blocks[reader]
    scope = extents((*read_block.around[: read_block.around.index(common) + 1],))
    written: list[Region] = []
    for name in writers:
        writer = nest.blocks[name]
        if writer.position > read_block.position:
            if name != reader:
                refuse(f"block '{reader}' reads {buffer.name} before block '{name}' writes it")
            continue
        if name != reader and _accumulating(writer, buffer) & scope.keys():
            refuse(f"block '{name}' has not finished reducing into {buffer.name} when block '{reader}' reads it")
        region = written_region(writer.stmt, buffer, extents(writer.inside(common)), scope)
        if region is not None:
            written.append(region)
    needed = read_region(read_block.stmt, buffer, extents(read_block.inside(common)), scope)
    if needed is not None and not any(region.exact and covers(region, needed, scope) for region in written):
        refuse(
            f"block '{reader}' reads more of {buffer.name} in one iteration of '{common.var.name}' than is written in it: "
            f"{box(needed)} of {box(union(written, scope)) if written else 'nothing'}"
        )


def _accumulating(placed: PlacedBlock, buffer: Buffer) -> frozenset[Expr]:
    """Loops in whose iterations the block adds to the same elements of the buffer; an iter that indexes them finds others each time."""
    block = placed.stmt
    named = [frozenset(free_vars(*store.indices)) for store in stores_to(block, buffer)]
    pairs = zip(block.iters, block.bindings, strict=True)
    used = [b for it, b in pairs if it.kind == "reduction" and not (named and all(it.var in names for names in named))]
    return frozenset(free_vars(*used))


def box(region: Region) -> str:
    """`A[start : +extent, ...]`"""
    return f"{region.buffer.name}[{', '.join(f'{start!r} : +{extent!r}' for start, extent in region.dims)}]"


def check_inputs_ready(nest: Nest, name: str) -> None:
    """Refuses unless everything that the block reads is complete when it runs: its writers come before it, and those that share loops
    with it write, in one iteration of the shared loops, what it reads there."""
    placed = nest.blocks[name]
    for buffer in nest.inputs(name):
        writers = nest.writers(buffer)
        if not writers:
            continue
        common = _common(placed, [nest.blocks[w] for w in writers])
        if common is not None:
            check_covered(nest, buffer, writers, name, common)
            continue
        for writer in writers:
            if nest.blocks[writer].position > placed.position:
                refuse(f"block '{name}' would read {buffer.name} before block '{writer}' writes it")


def _common(placed: PlacedBlock, others: list[PlacedBlock]) -> For | None:
    """The innermost loop that is around the block and all the others."""
    result = None
    for depth, loop in enumerate(placed.around):
        if not all(len(other.around) > depth and other.around[depth] is loop for other in others):
            break
        result = loop
    return result


def written_in_full(nest: Nest, buffer: Buffer) -> bool:
    """Whether a block is seen to write every element of the buffer: its region is all of it, or it has as many points as the buffer has
    elements and stores each somewhere else (as into a packed layout whose padding it fills too)."""
    whole = Region(buffer, tuple((const(0), size) for size in buffer.shape), (True,) * len(buffer.shape), True)
    for name in nest.writers(buffer):
        writer = nest.blocks[name]
        written = written_region(writer.stmt, buffer, writer.outer, {})
        if written is not None and written.exact and covers(written, whole, {}) and _ends_with(buffer, writer.stmt):
            return True
        stores = stores_to(writer.stmt, buffer)
        spatial = {it.var: it.extent for it in writer.stmt.iters if it.kind == "spatial"}
        if (
            len({a.indices for a in stores}) == 1
            and not any(a.conditional for a in stores)
            and domain_predicate_only(writer.stmt)
            and prove_equal(product(list(spatial.values())), product(buffer.shape))
            and all(determines(stores[0].indices, v, spatial) for v in spatial)
        ):
            return True
    return False


def _ends_with(buffer: Buffer, block: Block) -> bool:
    """Whether points that the block's predicate cuts are outside of the buffer: each iter that it limits is the index along an axis as long
    as the iter. Those of a packed layout whose last tile is not full are inside."""
    limited = {limits_iter(condition, block) for condition in conjuncts(block.predicate)} - {None}
    iters = [block.iters[position] for position in limited if position is not None and block.iters[position].kind == "spatial"]
    return all(
        any(index is it.var and prove_equal(size, it.extent) for index, size in zip(access.indices, buffer.shape, strict=True))
        for access in stores_to(block, buffer)
        for it in iters
    )


def check_locals(nest: Nest) -> None:
    """Refuses when a local buffer is used both inside and outside a parallel loop: each iteration has a local buffer of its own."""
    local = [buffer for buffer in nest.kernel.scratch if buffer.scope == "local"]
    if not local or not any(placed.stmt.kind == "parallel" for placed in nest.loops.values()):
        return
    for buffer in local:
        around: dict[tuple[For, ...], str] = {}
        for name in (*nest.writers(buffer), *nest.readers(buffer)):
            around.setdefault(tuple(lp for lp in nest.blocks[name].around if lp.kind == "parallel"), name)
        if len(around) > 1:
            (some, first), (others, second) = list(around.items())[:2]
            loop = next(lp for lp in (*some, *others) if lp not in some or lp not in others)
            inside, outside = (first, second) if loop in some else (second, first)
            refuse(
                f"local {buffer.name} is private to each iteration of the parallel loop '{loop.var.name}', where block '{inside}' "
                f"uses it, and block '{outside}' uses it outside",
                "compute both blocks under the loop before making it parallel",
            )
