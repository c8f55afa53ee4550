"""Softmax over tiles of its axis, one after the other: running maxima, and sums that are corrected when a maximum grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.ir import dtypes
from tilewright.ir.affine import affine_in
from tilewright.ir.expr import Expr, add, call, ceildiv, const, floordiv, less, load, maximum, minimum, mul, select, sub, var
from tilewright.ir.prove import prove_equal
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import free_vars, substitute, transform, walk
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, Seq, Stmt, Store, seq, walk_stmts, with_fields
from tilewright.kernel.regions import accesses, conjuncts
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.nest import Nest, PlacedBlock, both, edit, extents, fresh_iters, nested, refuse, with_body, with_loops
from tilewright.kernel.schedule.reduction import Accumulation, accumulation


def online(nest: Nest, block: str, loop: str, tile: int) -> Change:
    """Compute a softmax, and sums weighted by it, for `tile` points of its axis at a time (Milakov and Gimelshein, "Online normalizer
    calculation for softmax", 2018). `block` is the maximum; it and all that moves along the axis is under `loop`, in nests of their own.

        for i_o in n:                                       for i_o in n:
          for i, k: S: s[i, k] = ..                           for t in ceildiv(m, tile):
          for i, k: M: m[i] = max(m[i], s[i, k])      ->        for i, j: S: s[i, t*tile + j] = ..
          for i, k: E: e[i, k] = exp(s[i, k] - m[i])            for i, j: M: m_tile[t, i] = max(m_tile[t, i], s[i, t*tile + j])
          for i, k: L: l[i] += e[i, k] * v[k]                   for i:    M_running: m_factor[t, i] = exp(m[i] - max(m[i], m_tile[t, i]))
                                                                          m_top[t, i] = m[i] = max(m[i], m_tile[t, i])
                                                                for i, j: E: e[i, t*tile + j] = exp(s[i, t*tile + j] - m_top[t, i])
                                                                for i, j: L_tile: l_tile[t, i] += e[i, t*tile + j] * v[t*tile + j]
                                                                for i:    L: l[i] = l[i] * m_factor[t, i] + l_tile[t, i]

    A maximum of -inf counts as 0 in differences. Where s is -inf unless a condition affine in its iters holds (a causal mask), tiles at
    the end of the axis in which it holds nowhere are left out: they change nothing, whatever v is there. Sums are rounded otherwise than
    before. Results: the loop over tiles, M_running, then for each sum the block of one tile and the one that collects.
    """
    if tile < 1:
        refuse(f"{tile} is no positive number")
    axis = _axis(nest, block, loop)
    count = ceildiv(axis.extent, const(tile))
    if count.is_const and count.value < 2:
        refuse(f"{axis.extent!r} points are no two tiles of {tile}")
    name, running, *tiles = nest.fresh(f"{block}_t", f"{block}_running", *(f"{sum_}_tile" for sum_ in axis.sums))
    build = _Tiles(nest, axis, var(name), tile, count)
    shape = axis.greatest.buffer.shape
    partial, top, factor = (build.scratch(f"{axis.greatest.buffer.name}_{part}", shape, axis.greatest.buffer) for part in PARTS)
    parts: list[Stmt] = []
    made = dict(zip(axis.sums, tiles, strict=True))
    for keyed in axis.keyed:
        if keyed == block:
            parts += [build.accumulated(keyed, keyed, axis.greatest, partial), build.running(running, partial, top, factor)]
        elif keyed in axis.sums:
            found = axis.sums[keyed]
            own = build.scratch(f"{found.buffer.name}_tile", found.buffer.shape, found.buffer)
            parts += [build.accumulated(keyed, made[keyed], found, own), build.collected(keyed, found, own, factor)]
        else:
            parts.append(build.moved(keyed, top))
    whole = For(build.t, build.visited(), seq(*parts))
    first, *others = _nests(axis)
    body = edit(nest.kernel.body, {first: whole, **dict.fromkeys(others)})
    return Change(with_body(nest.kernel, body, add=build.made), (name, running, *(n for sum_ in axis.sums for n in (made[sum_], sum_))))


PARTS = ("tile", "top", "factor")  # of a maximum: of one tile, of all so far, what sums are multiplied with


@dataclass(frozen=True, slots=True)
class _Axis:
    """What moves along the axis of a softmax, under the loop `around`. `keyed`: the blocks, in order; `key`: which iter of each runs along
    the axis; `powers`: the block of exponentials, which loads the maximum as `shift`."""

    around: For
    extent: Expr
    greatest: Accumulation
    powers: str
    shift: Expr
    sums: dict[str, Accumulation]
    keyed: tuple[str, ...]
    key: dict[str, int]


def _axis(nest: Nest, block: str, loop: str) -> _Axis:
    """Reads the blocks under `loop` as a softmax whose maximum is `block`, or refuses."""
    around = nest.loop(loop).stmt
    inside = {placed.stmt.name: placed.stmt for placed in nest.under(around)}
    greatest = _sum_of(nest, block, "max")
    key = {block: _reduced(nest.blocks[block].stmt)}
    readers = [name for name in nest.readers(greatest.buffer) if name != block]
    if len(readers) != 1 or readers[0] not in inside:
        refuse(f"the results of block '{block}' are read by {len(readers)} blocks")
    (powers,) = readers
    store = nest.blocks[powers].stmt.body
    shifts = {e for e in walk(store.value) if e.op is Op.LOAD and e.attr is greatest.buffer} if isinstance(store, Store) else set()
    shift = next(iter(shifts), None)
    if not isinstance(store, Store) or shift is None or len(shifts) > 1 or not _is_shifted(store.value, shift):
        refuse(f"block '{powers}' is no exponential of differences to the maximum")
    dims: dict[Buffer, int] = {}
    _follow(nest, block, inside, key, dims)
    own = [it.var for it in nest.blocks[powers].stmt.iters]
    places = {load_.args[dim] for load_ in walk(store.value) if load_.op is Op.LOAD for dim in (dims.get(load_.attr),) if dim is not None}
    along = next(iter(places), None)
    if len(places) != 1 or along not in own or along in shift.args or along not in store.indices:
        refuse(f"block '{powers}' does not run along the axis")
    key[powers] = own.index(along)
    dims[store.buffer] = store.indices.index(along)
    _follow(nest, powers, inside, key, dims)
    sums = {}
    for name in nest.readers(store.buffer):
        sums[name] = _sum_of(nest, name, "sum")
        key[name] = _reduced(nest.blocks[name].stmt)
        _check_weighted(sums[name], store.buffer, dims[store.buffer], nest.blocks[name].stmt.iters[key[name]].var, greatest.buffer)
    order = tuple(name for name in inside if name in key)
    between = [name for name in list(inside)[list(inside).index(order[0]) : list(inside).index(order[-1])] if name not in key]
    strangers = {r for b in dims for r in nest.readers(b) if r not in key} | set(between) | (set(key) - set(inside))
    if strangers:
        refuse(f"block '{min(strangers)}' stands between the blocks of the softmax")
    extent = nest.blocks[block].stmt.iters[key[block]].extent
    return _Axis(around, extent, greatest, powers, shift, sums, order, key)


def _sum_of(nest: Nest, name: str, combiner: str) -> Accumulation:
    block = nest.block(name).stmt
    found = accumulation(block)
    if found is None or found.combiner != combiner or block.init is None or not found.buffer.dtype.is_float:
        refuse(f"block '{name}' is no {combiner} of floats with its init")
    if found.buffer not in nest.kernel.scratch or not all(index in [it.var for it in block.iters] for index in found.indices):
        refuse(f"block '{name}' does not store scratch at its iters")
    return found


def _reduced(block: Block) -> int:
    found = [position for position, it in enumerate(block.iters) if it.kind == "reduction"]
    if len(found) != 1:
        refuse(f"block '{block.name}' reduces over {len(found)} axes")
    return found[0]


def _is_shifted(value: Expr, shift: Expr) -> bool:
    if value.op is not Op.CALL or value.attr != "exp_nonpositive" or value.args[0].op is not Op.SUB:
        return False
    return value.args[0].args[1] is shift and shift not in set(walk(value.args[0].args[0]))


def _check_weighted(found: Accumulation, powers: Buffer, dim: int, along: Expr, greatest: Buffer) -> None:
    """The terms are exponentials times what does not know the maximum."""
    factors = _factors(found.value)
    weights = [f for f in factors if f.op is Op.LOAD and f.attr is powers]
    others = {e.attr for f in factors if f not in weights for e in walk(f) if e.op is Op.LOAD}
    rows = [index for at, index in enumerate(weights[0].args) if at != dim] if weights else []
    if len(weights) != 1 or others & {powers, greatest} or weights[0].args[dim] is not along or along in free_vars(*rows):
        refuse(f"the terms of {found.buffer.name} are not exponentials times weights", "factor out what divides by their sum")


def _factors(e: Expr) -> list[Expr]:
    return [f for a in e.args for f in _factors(a)] if e.op is Op.MUL else [e]


def _follow(nest: Nest, name: str, inside: dict[str, Block], key: dict[str, int], dims: dict[Buffer, int]) -> None:
    """Adds the blocks that make what `name` reads along its key iter, and the dimension of their buffers that runs along it."""
    along = nest.blocks[name].stmt.iters[key[name]].var
    for access in accesses(nest.blocks[name].stmt).loads:
        writers = [w for w in nest.writers(access.buffer) if w in inside and w != name]
        places = [dim for dim, index in enumerate(access.indices) if along in free_vars(index)]
        if not writers or not places or access.buffer in dims:
            continue
        store = nest.blocks[writers[0]].stmt.body
        if len(writers) != 1 or len(places) != 1 or access.indices[places[0]] is not along or not isinstance(store, Store):
            refuse(f"block '{name}' does not read {access.buffer.name} point by point along the axis")
        own = [it.var for it in nest.blocks[writers[0]].stmt.iters if it.kind == "spatial"]
        if store.indices[places[0]] not in own:
            refuse(f"block '{writers[0]}' does not store {access.buffer.name} at its iters")
        dims[access.buffer] = places[0]
        key[writers[0]] = [it.var for it in nest.blocks[writers[0]].stmt.iters].index(store.indices[places[0]])
        _follow(nest, writers[0], inside, key, dims)


def _nests(axis: _Axis) -> list[Stmt]:
    """The nests of the blocks, each of which has one of its own."""
    found = []
    for part in axis.around.body.stmts if isinstance(axis.around.body, Seq) else (axis.around.body,):
        names = [stmt.name for stmt in walk_stmts(part) if isinstance(stmt, Block)]
        if set(names) & set(axis.keyed):
            found.append(part)
            if len(names) > 1:
                refuse(f"blocks '{names[0]}' and '{names[1]}' share a nest", "do this before blocks are computed in each other's loops")
    return found


class _Tiles:
    """Makes the nests of one tile, number `t`. `made`: the buffers that they add."""

    def __init__(self, nest: Nest, axis: _Axis, t: Expr, tile: int, count: Expr) -> None:
        self.nest, self.axis, self.t, self.tile, self.count = nest, axis, t, const(tile), count
        self.ragged = not prove_equal(count * tile, axis.extent)
        self.made: list[Buffer] = []

    def scratch(self, name: str, shape: Iterable[Expr], like: Buffer) -> Buffer:
        buffer = Buffer(self.nest.fresh(name)[0], like.dtype, (self.count, *shape), like.scope)
        self.made.append(buffer)
        return buffer

    def _key_loop(self, placed: PlacedBlock) -> For:
        """The loop along the axis, which serves nothing else."""
        block = placed.stmt
        key = self.axis.key[block.name]
        binding = block.bindings[key]
        loop = next((lp for lp in placed.inside(self.axis.around) if lp.var is binding), None)
        others = free_vars(*(b for i, b in enumerate(block.bindings) if i != key), block.predicate)
        if loop is None or not prove_equal(loop.extent, self.axis.extent) or loop.var in others or loop.kind != "serial":
            refuse(f"no loop of block '{block.name}' runs along the whole axis alone", "do this before loops are split")
        return loop

    def moved(self, name: str, top: Buffer) -> Stmt:
        """A block with a point for each point of the tile."""
        placed = self.nest.blocks[name]
        block, key = placed.stmt, self.axis.key[name]
        at = self.t * self.tile + self._key_loop(placed).var
        bindings = (*block.bindings[:key], at, *block.bindings[key + 1 :])
        predicate = both(block.predicate, less(at, self.axis.extent)) if self.ragged else block.predicate
        moved = with_loops(block, bindings, predicate)
        if name == self.axis.powers:
            now = load(top, (floordiv(block.iters[key].var, self.tile), *self.axis.shift.args))
            assert isinstance(block.body, Store)
            value = transform(block.body.value, lambda e: now if e is self.axis.shift else None)
            moved = with_fields(moved, body=Store(block.body.buffer, block.body.indices, value))
        loop = self._key_loop(placed)
        return nested([(lp.var, self.tile if lp is loop else lp.extent) for lp in placed.inside(self.axis.around)], moved)

    def accumulated(self, old: str, name: str, found: Accumulation, partial: Buffer) -> Stmt:
        """The accumulation over the points of the tile."""
        placed = self.nest.blocks[old]
        block, key = placed.stmt, self.axis.key[old]
        kept = [(it, b) for i, (it, b) in enumerate(zip(block.iters, block.bindings, strict=True)) if i != key]
        spatial = fresh_iters(self.nest, [(it.extent, it.kind) for it, _ in kept])
        tau, j = fresh_iters(self.nest, [(self.count, "spatial"), (self.tile, "reduction")])
        at = tau.var * self.tile + j.var
        mapping: dict[Expr, Expr] = {it.var: new.var for (it, _), new in zip(kept, spatial, strict=True)} | {block.iters[key].var: at}
        value = substitute(found.value, mapping)
        if self.ragged:
            value = select(less(at, self.axis.extent), value, found.identity)
        where = (tau.var, *(substitute(index, mapping) for index in found.indices))
        combine = maximum if found.combiner == "max" else add
        body = Store(partial, where, combine(load(partial, where), value))
        loop = self._key_loop(placed)
        bindings = (*(b for _, b in kept), self.t, loop.var)
        new = Block(name, (*spatial, tau, j), bindings, body, Store(partial, where, found.identity), block.predicate)
        own = [(lp.var, lp.extent) for lp in placed.inside(self.axis.around) if lp is not loop]
        # a loop for each iter, as rules find them
        once = (var(self.nest.fresh(f"{name}_i{len(own)}")[0]), const(1))
        return nested([*own, once, (loop.var, self.tile)], new)

    def running(self, name: str, partial: Buffer, top: Buffer, factor: Buffer) -> Stmt:
        """The maximum of this tile and those before it, and what earlier sums are multiplied with."""
        (old,) = [n for n in self.axis.key if accumulation(self.nest.blocks[n].stmt) == self.axis.greatest]
        found = self.axis.greatest
        tau = BlockIter(var(self.nest.fresh("r")[0]), self.count, "reduction")
        where = (tau.var, *found.indices)
        before = load(found.buffer, found.indices)
        greatest = maximum(before, load(partial, where))
        level = select(less(found.identity, greatest), greatest, const(0.0, greatest.dtype))
        body = seq(
            Store(factor, where, call("exp_nonpositive", sub(before, level))),
            Store(top, where, level),
            Store(found.buffer, found.indices, greatest),
        )
        return self._collecting(old, name, tau, body)

    def collected(self, name: str, found: Accumulation, partial: Buffer, factor: Buffer) -> Stmt:
        """The sum over the tiles so far."""
        powers = self.nest.blocks[self.axis.powers].stmt.body
        assert isinstance(powers, Store)
        weight = next(f for f in _factors(found.value) if f.op is Op.LOAD and f.attr is powers.buffer)
        rows = [substitute(index, dict(zip(powers.indices, weight.args, strict=True))) for index in self.axis.shift.args]
        tau = BlockIter(var(self.nest.fresh("r")[0]), self.count, "reduction")
        corrected = mul(load(found.buffer, found.indices), load(factor, (tau.var, *rows)))
        body = Store(found.buffer, found.indices, add(corrected, load(partial, (tau.var, *found.indices))))
        return self._collecting(name, name, tau, body)

    def _collecting(self, old: str, name: str, tau: BlockIter, body: Stmt) -> Stmt:
        """A block over the spatial iters of block `old`, in loops of its own, that goes along with the tiles."""
        placed = self.nest.blocks[old]
        block, key = placed.stmt, self.axis.key[old]
        loop = self._key_loop(placed)
        around = [lp for lp in placed.inside(self.axis.around) if lp is not loop]
        names = self.nest.fresh(*(f"{lp.var.name}_all" for lp in around))
        loops: dict[Expr, Expr] = {lp.var: var(n) for lp, n in zip(around, names, strict=True)}
        kept = [i for i in range(len(block.iters)) if i != key]
        bindings = (*(substitute(block.bindings[i], loops) for i in kept), self.t)
        new = Block(name, (*(block.iters[i] for i in kept), tau), bindings, body, block.init, substitute(block.predicate, loops))
        return nested([(loops[lp.var], lp.extent) for lp in around], new)

    def visited(self) -> Expr:
        """How many tiles hold a score that may be more than -inf."""
        source = self.axis.greatest.value
        writers = [name for name in self.axis.keyed if source.op is Op.LOAD and source.attr in self.nest.outputs(name)]
        if len(writers) != 1 or not isinstance(self.nest.blocks[writers[0]].stmt.body, Store):
            return self.count
        placed = self.nest.blocks[writers[0]]
        block, key = placed.stmt, self.axis.key[writers[0]]
        inner = {**extents(placed.inside(self.axis.around)), self._key_loop(placed).var: self.tile}
        at = self.t * self.tile + self._key_loop(placed).var
        values = {it.var: at if i == key else b for i, (it, b) in enumerate(zip(block.iters, block.bindings, strict=True))}
        outer = extents(self.nest.loop(self.axis.around.var.name).around) | {self.axis.around.var: self.axis.around.extent}
        most = self.count
        for condition in needed_conditions(block.body.value) if isinstance(block.body, Store) else ():
            last = _last(substitute(condition, values), self.t, inner)
            if last is not None:
                most = minimum(most, last + 1)
        return most if most is self.count else simplify(maximum(most, const(0)), extents=outer)


def needed_conditions(value: Expr) -> list[Expr]:
    """Conditions without each of which the value is -inf, whatever finite numbers are added to it."""
    if value.op is Op.SELECT:
        low = value.args[2].is_const and value.args[2].value == -float("inf")
        return [*(conjuncts(value.args[0]) if low else ()), *(needed_conditions(value.args[1]) if low else ())]
    if value.op is Op.ADD:
        return [condition for term in value.args for condition in needed_conditions(term)]
    return []


def _last(condition: Expr, t: Expr, inner: dict[Expr, Expr]) -> Expr | None:
    """The last value of t for which a comparison may hold, whatever the inner loops are; None where that is not known."""
    if condition.op not in (Op.LT, Op.LE) or condition.args[0].dtype is not dtypes.int64 or any(e.op is Op.LOAD for e in walk(condition)):
        return None
    form = affine_in(sub(*condition.args), (t, *inner))
    if form is None or not all(c.is_const for c in form[0].values()) or form[0][t].value <= 0:
        return None
    least = form[1] if condition.op is Op.LE else form[1] + 1
    for loop, extent in inner.items():
        if form[0][loop].value < 0:
            least = least + form[0][loop] * (extent - 1)
    return floordiv(const(0) - least, form[0][t])
