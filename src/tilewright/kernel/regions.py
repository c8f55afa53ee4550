"""Which part of each buffer a statement reads and writes, and what kind of computation a block is.

A region is a box: per dimension a start and an extent, expressions over the variables that stay fixed. It never misses an element that
is touched; `exact` says that it holds nothing else. Regions are not clipped to the buffer, so that tiles of ragged buffers keep constant
extents: elements past the end are touched by no block whose predicate holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from weakref import WeakKeyDictionary

from tilewright.ir.affine import ZERO, add_scaled, linear, to_expr
from tilewright.ir.expr import TRUE, Expr, const
from tilewright.ir.prove import at_most, larger, nonnegative, prove_equal, smaller
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import free_vars, substitute, variables_in, walk
from tilewright.kernel.nodes import Block, Buffer, For, If, Let, Seq, Stmt, Store, While
from tilewright.kernel.spans import Extents, Span, span

Pattern = Literal["elementwise", "broadcast", "injective", "reduction", "opaque"]


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: `indices` in terms of the block's iters and of loops in its body, whose extents are `loops`.
    `conditional`: it may not happen at every point."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    loops: tuple[tuple[Expr, Expr], ...]
    conditional: bool


@dataclass(frozen=True, slots=True)
class Accesses:
    """What a block touches outside its own scratch. `init_stores` come from the init statement."""

    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    init_stores: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a buffer: (start, extent) per dimension; `bounded` is False where a start or extent could not be told and the whole
    dimension is given; `exact` when every element of the box is touched (apart from predicates at the edge of the domain)."""

    buffer: Buffer
    dims: tuple[tuple[Expr, Expr], ...]
    bounded: tuple[bool, ...]
    exact: bool


# Bodies stay the same while schedules change loops and bindings, so a body is read once. Values do not hold their key.
_ACCESSES: WeakKeyDictionary[Stmt, dict[tuple[int, tuple[Buffer, ...]], tuple[Stmt | None, Accesses]]] = WeakKeyDictionary()


def accesses(block: Block) -> Accesses:
    """Loads and stores of the block's body and init, each distinct one once."""
    per_body = _ACCESSES.setdefault(block.body, {})
    key = (id(block.init), block.scratch)
    found = per_body.get(key)
    if found is not None:
        return found[1]
    own = frozenset(block.scratch)
    loads: dict[Access, None] = {}
    stores: dict[Access, None] = {}
    init_stores: dict[Access, None] = {}
    _collect(block.body, {}, (), False, loads, stores)
    if block.init is not None:
        _collect(block.init, {}, (), False, loads, init_stores)
    result = Accesses(*(tuple(a for a in group if a.buffer not in own) for group in (loads, stores, init_stores)))
    per_body[key] = (block.init, result)
    return result


def _collect(
    stmt: Stmt,
    lets: Mapping[Expr, Expr],
    loops: tuple[tuple[Expr, Expr], ...],
    conditional: bool,
    loads: dict[Access, None],
    stores: dict[Access, None],
) -> None:
    def read(*exprs: Expr, guarded: bool = conditional) -> None:
        for node in walk(*exprs):
            if node.op is Op.LOAD:
                indices = tuple(substitute(i, lets) for i in node.args) if lets else node.args
                loads[Access(node.attr, indices, loops, guarded)] = None

    match stmt:
        case Store(buffer, indices, value):
            read(*indices, value)
            where = tuple(substitute(i, lets) for i in indices) if lets else indices
            stores[Access(buffer, where, loops, conditional)] = None
        case Seq(stmts):
            for child in stmts:
                _collect(child, lets, loops, conditional, loads, stores)
        case For(var, extent, body, _):
            read(extent)
            _collect(body, lets, (*loops, (var, substitute(extent, lets) if lets else extent)), conditional, loads, stores)
        case If(condition, then, otherwise):
            read(condition)
            _collect(then, lets, loops, True, loads, stores)
            if otherwise is not None:
                _collect(otherwise, lets, loops, True, loads, stores)
        case While(condition, body):
            read(condition)
            _collect(body, lets, loops, True, loads, stores)
        case Let(var, value, body):
            read(value)
            _collect(body, {**lets, var: substitute(value, lets)}, loops, conditional, loads, stores)
        case Block():
            for part in (stmt.init, stmt.body):
                if part is not None:
                    bound = {it.var: substitute(b, lets) for it, b in zip(stmt.iters, stmt.bindings, strict=True)}
                    _collect(part, {**lets, **bound}, loops, conditional or not stmt.predicate.is_const, loads, stores)


def access_region(access: Access, bindings: Mapping[Expr, Expr], inner: Extents, outer: Extents) -> Region:
    """The region that one access touches while `inner` loops run; `bindings` give the block's iters."""
    ranges = {**inner, **dict(access.loops)} if access.loops else inner
    dims: list[tuple[Expr, Expr]] = []
    bounded: list[bool] = []
    exact = not access.conditional
    moving: set[Expr] = set()
    memo: dict[Expr, Expr] = {}
    for index, size in zip(access.indices, access.buffer.shape, strict=True):
        bound = substitute(index, bindings, memo) if bindings else index
        if _taken_apart(bound):
            bound = simplify(bound, extents={**outer, **ranges})
        used = [v for v in variables_in(bound) if v in ranges]
        found = span(bound, ranges, outer)
        exact = exact and found is not None and found.exact and moving.isdisjoint(used)
        moving.update(used)
        dims.append(_dimension(found, size, outer))
        bounded.append(found is not None)
    return Region(access.buffer, tuple(dims), tuple(bounded), exact)


@lru_cache(maxsize=4096)
def _taken_apart(index: Expr) -> bool:
    """Whether an index may be a digit of a number in range, or a flat number that was taken apart into digits and put together again."""
    return any(node.op in (Op.FLOORDIV, Op.FLOORMOD) for node in walk(index))


def _dimension(found: Span | None, size: Expr, outer: Extents) -> tuple[Expr, Expr]:
    if found is None:
        return const(0), size
    extent = found.extent
    if found.low == ZERO and size.is_const and not extent.is_const:
        if nonnegative(add_scaled(extent, linear(size), -1), outer):
            return const(0), size
    return to_expr(found.low), to_expr(extent)


def union(regions: Iterable[Region], outer: Extents) -> Region:
    """The smallest box known to hold all the regions of one buffer."""
    first, *rest = regions
    for region in rest:
        if region.dims == first.dims:
            first = Region(first.buffer, first.dims, first.bounded, first.exact or region.exact)
            continue
        dims: list[tuple[Expr, Expr]] = []
        for (a, n), (b, m) in zip(first.dims, region.dims, strict=True):
            if a is b and n is m:
                dims.append((a, n))
                continue
            low_a, low_b = linear(a), linear(b)
            low = smaller(low_a, low_b, outer)
            high = larger(add_scaled(low_a, linear(n)), add_scaled(low_b, linear(m)), outer)
            dims.append((to_expr(low), to_expr(add_scaled(high, low, -1))))
        bounded = tuple(p and q for p, q in zip(first.bounded, region.bounded, strict=True))
        first = Region(first.buffer, tuple(dims), bounded, False)
    return first


@dataclass(frozen=True, slots=True)
class Regions:
    """Regions by buffer, in order of first access."""

    reads: dict[Buffer, Region]
    writes: dict[Buffer, Region]


def regions(stmt: Stmt, outer: Extents | None = None, only: Buffer | None = None) -> Regions:
    """What `stmt` reads and writes while all loops inside it run, as boxes over the variables outside it. `outer` gives the extents of
    loops around it, outermost first; it only sharpens the answer. Scratch of blocks is left out; so are buffers other than `only`, if it
    is given."""
    around: Extents = outer or {}
    reads: dict[Buffer, list[Region]] = {}
    writes: dict[Buffer, list[Region]] = {}

    def visit(node: Stmt, inner: dict[Expr, Expr]) -> None:
        match node:
            case For(var, extent, body, _):
                visit(body, {**inner, var: extent})
            case Seq(stmts):
                for child in stmts:
                    visit(child, inner)
            case _:
                block = node if isinstance(node, Block) else Block("", (), (), node)
                found = accesses(block)
                for group, into in ((found.loads, reads), ((*found.init_stores, *found.stores), writes)):
                    for buffer in {a.buffer: None for a in group} if only is None else (only,):
                        region = _joined([a for a in group if a.buffer is buffer], block, inner, around)
                        if region is not None:
                            into.setdefault(buffer, []).append(region)

    visit(stmt, {})
    return Regions({b: union(r, around) for b, r in reads.items()}, {b: union(r, around) for b, r in writes.items()})


def read_region(block: Block, buffer: Buffer, inner: Extents, outer: Extents) -> Region | None:
    """What one block reads of a buffer while the `inner` loops run, or None. With empty `inner` this is the region of one point, over the
    loops' variables."""
    return _joined([a for a in accesses(block).loads if a.buffer is buffer], block, inner, outer)


def written_region(block: Block, buffer: Buffer, inner: Extents, outer: Extents) -> Region | None:
    """What one block writes of a buffer while the `inner` loops run, or None."""
    return _joined(stores_to(block, buffer), block, inner, outer)


def stores_to(block: Block, buffer: Buffer) -> list[Access]:
    """The block's stores to a buffer, those of the init first."""
    found = accesses(block)
    return [a for a in (*found.init_stores, *found.stores) if a.buffer is buffer]


def _joined(group: list[Access], block: Block, inner: Extents, outer: Extents) -> Region | None:
    """The box around all of the accesses, which are to one buffer."""
    if not group:
        return None
    bindings = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    found = union([access_region(access, bindings, inner, outer) for access in group], outer)
    return found if domain_predicate_only(block) else Region(found.buffer, found.dims, found.bounded, False)


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions that `and` joins; none for True."""
    if condition.is_const and condition.value:
        return ()
    if condition.op is Op.AND:
        return tuple(part for arg in condition.args for part in conjuncts(arg))
    return (condition,)


def bound_predicate(block: Block) -> Expr:
    """The block's predicate in terms of the loops around it alone."""
    return substitute(block.predicate, {it.var: binding for it, binding in zip(block.iters, block.bindings, strict=True)})


def limits_iter(condition: Expr, block: Block) -> int | None:
    """The position of the iter whose binding the condition keeps below its extent, or at or above 0; None for another condition."""
    for position, (it, binding) in enumerate(zip(block.iters, block.bindings, strict=True)):
        if condition.op is Op.LT and prove_equal(condition.args[0], binding):
            if at_most(it.extent, condition.args[1]):
                return position
        if (
            condition.op is Op.LE
            and condition.args[0].is_const
            and condition.args[0].value <= 0
            and prove_equal(condition.args[1], binding)
        ):
            return position
    return None


@lru_cache(maxsize=4096)
def domain_predicate_only(block: Block) -> bool:
    """Whether the predicate only cuts points outside the block's domain, or points of a reduction that are not its first, so that it hides
    no element that belongs to a region of what the block writes."""
    return all(limits_iter(condition, block) is not None or _limits_reduction(condition, block) for condition in conjuncts(block.predicate))


def _limits_reduction(condition: Expr, block: Block) -> bool:
    """Whether a condition tests reduction iters alone, and holds where the reduction begins."""
    used = set(free_vars(condition))
    reduced = {it.var for it in block.iters if it.kind == "reduction"}
    return bool(used) and used <= reduced and simplify(substitute(condition, {v: const(0) for v in used})) is TRUE


def covers(big: Region, small: Region, outer: Extents) -> bool:
    """Whether `big` is proved to hold every element of `small` that lies in the buffer."""
    for (a, n), (b, m), size in zip(big.dims, small.dims, big.buffer.shape, strict=True):
        if a is b and n is m:
            continue
        low_a, low_b = linear(a), linear(b)
        starts = nonnegative(add_scaled(low_b, low_a, -1), outer) or (low_a.is_const and low_a.constant <= 0)
        end_a, end_b = add_scaled(low_a, linear(n)), add_scaled(low_b, linear(m))
        ends = nonnegative(add_scaled(end_a, end_b, -1), outer) or nonnegative(add_scaled(end_a, linear(size), -1), outer)
        if not (starts and ends):
            return False
    return True


def iters_of(access: Access, block: Block) -> tuple[Expr, ...]:
    """The block's iters that the access depends on, in the block's order."""
    used = set(free_vars(*access.indices))
    return tuple(it.var for it in block.iters if it.var in used)


def plain_store(block: Block) -> Store | None:
    """The body, when it is a single store at distinct iters of the block; None otherwise."""
    body = block.body
    if not isinstance(body, Store) or block.scratch:
        return None
    iters = {it.var for it in block.iters if it.kind == "spatial"}
    distinct = len(set(body.indices)) == len(body.indices) and all(i in iters for i in body.indices)
    return body if distinct else None


def pattern(block: Block) -> Pattern:
    """What kind of computation the block is:

    elementwise: one store at its iters, every load at the same indices; broadcast: some loads at a subsequence of them;
    injective: one store, loads elsewhere; reduction: it has reduction iters; opaque: anything else.
    """
    if any(it.kind == "reduction" for it in block.iters):
        return "reduction"
    store = plain_store(block)
    if store is None or block.init is not None:
        return "opaque"
    kind: Pattern = "elementwise"
    for access in accesses(block).loads:
        if access.indices == store.indices:
            continue
        remaining = iter(store.indices)
        if not all(any(index is own for own in remaining) for index in access.indices):
            return "injective"
        kind = "broadcast"
    return kind
