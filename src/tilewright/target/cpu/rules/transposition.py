"""Blocks that read along one axis and store along another: tiles that are turned in registers (target/cpu/codegen/transposition.py).

First every loop is split where indices divide its variable by a constant (reshapes, blocked channels, packed copies), so that addresses are
linear in the loops. Then, by the strides of the accesses:

* a load is contiguous along `column`, the store along `row`: `row` in vectors, `column` unrolled inside of blocks that leave the lines of
  the result in the first-level cache until they are full;
* `row` has two to four iterations and the store is contiguous over it and `column`: vectors along `column`, interleaved as they are stored;
* the loads have a stride of two to four along `row`, and `column` are the elements in between: vectors along `row`, all of `column`
  at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir import dtypes
from tilewright.ir.affine import affine_in
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier
from tilewright.ir.traverse import substitute, variables_in, walk
from tilewright.kernel.nodes import Buffer, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.structure import block_of, extent_value

PIECE = 16  # bytes of a row that are loaded at once
FEW = 4  # elements that are interleaved, or that strided loads are put together over
MOST_LOADS = 128  # of pieces of rows in one tile
FEW_TASKS = 4  # per core, below which more loops are parallel


@dataclass(frozen=True, slots=True)
class Access:
    """An access with its indices in terms of loops; elements per iteration of each loop (None: not a constant)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    steps: dict[str, int | None]

    def step(self, loop: str) -> int | None:
        return self.steps.get(loop, 0)


@dataclass(frozen=True, slots=True)
class Accesses:
    """Of one block: its store, its loads, and the loops that its value uses otherwise than as indices of loads."""

    store: Access
    loads: tuple[Access, ...]
    computed: frozenset[str]


def tile_transposition(
    s: Schedule, name: str, loops: Sequence[str], lanes: int, machine: Machine, space: Space
) -> tuple[Schedule, list[str]] | None:
    """The nest of one injective block in tiles, and its outer loops, which may run in parallel; None where its accesses agree. `loops`:
    those around the block alone. lanes: of the widest element that it computes with."""
    s, names, digits = split_digits(s, name, loops)
    found = accesses_of(s, name, names)
    if found is None:
        return None
    row = next((n for n in reversed(names) if found.store.step(n) == 1 and _extent(s, n) != 1), None)
    if row is None:
        return None
    count = _extent(s, row)
    across = [load for load in found.loads if load.step(row) not in (0, 1)]
    if count is not None and count <= FEW:
        column = next((n for n in names if n != row and found.store.step(n) == count and (_extent(s, n) or FEW * 2) > FEW), None)
        if column is not None and (across or digits):
            return _interleave(s, name, names, row, column, found, machine.lanes(_bits(found, machine)))
    column = _column(found, across, names, row)
    if column is not None and _extent(s, column) != 1:
        few = _extent(s, column)
        if few is not None and few <= FEW and all(load.step(row) in (0, 1, few) for load in found.loads):
            return _strided(s, name, names, row, column, found, lanes)
        return _tiles(s, name, names, row, column, found, lanes, machine, space)
    if not digits or across:
        return None
    s, names, row = _joined(s, name, names, row, found)
    outer = [n for n in names if n != row]
    s, (chunk, lane) = s.split(row, min(lanes, count or lanes))
    s = s.reorder(*outer, chunk, lane) if outer else s
    return s.vectorize(lane), [*outer] or [chunk]


def split_digits(s: Schedule, name: str, loops: Sequence[str]) -> tuple[Schedule, list[str], bool]:
    """Split the loops by the constants that indices divide their variables by. Gives the loops, and whether there were any."""
    block = block_of(s, name)
    names = list(loops)
    divisors: dict[Expr, set[int]] = {}
    body = block.body
    if not isinstance(body, Store):
        return s, names, False
    for e in walk(*body.indices, body.value):
        if e.op in (Op.FLOORDIV, Op.FLOORMOD) and e.args[0].op is Op.VAR and e.args[1].is_const and e.args[1].value > 1:
            divisors.setdefault(e.args[0], set()).add(int(e.args[1].value))
    split = False
    for it, binding in zip(block.iters, block.bindings, strict=True):
        found = sorted(divisors.get(it.var, ()))
        extent = it.extent.value if it.extent.is_const else None
        found = [d for d in found if extent is None or d < extent]
        loop = binding.name if binding.op is Op.VAR and binding.name in names else None
        if not found or loop is None or any(b % a for a, b in pairwise(found)):
            continue
        s, made = s.split(loop, (None, *(b // a for a, b in reversed(list(pairwise(found)))), found[0]))
        position = names.index(loop)
        names[position : position + 1] = made
        split = True
    return s, names, split


def accesses_of(s: Schedule, name: str, names: Sequence[str]) -> Accesses | None:
    """The accesses of a block in terms of its loops."""
    block = block_of(s, name)
    body = block.body
    if not isinstance(body, Store):
        return None
    placed = s.nest.blocks[name]
    variables = {loop.var.name: loop.var for loop in placed.around if loop.var.name in names}
    run = simplifier(extents={loop.var: loop.extent for loop in placed.around})
    bound = {it.var: binding for it, binding in zip(block.iters, block.bindings, strict=True)}

    def access(buffer: Buffer, indices: tuple[Expr, ...]) -> Access:
        rewritten = tuple(run.rewrite(substitute(index, bound)) if _plain(index) else substitute(index, bound) for index in indices)
        return Access(buffer, rewritten, {n: _step(buffer, rewritten, v) for n, v in variables.items()})

    found: dict[Expr, None] = {}
    computed: set[Expr] = set()
    stack = [body.value]
    seen: set[Expr] = set()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.op is Op.LOAD:
            found[e] = None
            nested = [part for part in walk(*e.args) if part.op is Op.LOAD]
            found.update(dict.fromkeys(nested))
            computed.update(v for part in nested for v in variables_in(part))
        elif e.op is Op.VAR:
            computed.add(e)
        else:
            stack.extend(e.args)
    used = {v for it in computed for v in variables_in(bound.get(it, it))}
    return Accesses(
        access(body.buffer, body.indices),
        tuple(access(load.attr, load.args) for load in found),
        frozenset(n for n, v in variables.items() if v in used),
    )


def _plain(index: Expr) -> bool:
    return index.dtype is dtypes.int64 and not any(e.op is Op.LOAD for e in walk(index))


def _step(buffer: Buffer, indices: tuple[Expr, ...], variable: Expr) -> int | None:
    """Elements by which an address moves with a variable; None where that is not a constant."""
    total, factor, known = 0, 1, True
    for index, dim in zip(reversed(indices), reversed(buffer.shape), strict=True):
        if variable in variables_in(index):
            found = affine_in(index, (variable,))
            if found is None or not found[0][variable].is_const or not known:
                return None
            total += int(found[0][variable].value) * factor
        if dim.is_const:
            factor *= int(dim.value)
        else:
            known = False
    return total


def _extent(s: Schedule, loop: str) -> int | None:
    extent = s.nest.loop(loop).stmt.extent
    return int(extent.value) if extent.is_const else None


def _column(found: Accesses, across: Sequence[Access], names: Sequence[str], row: str) -> str | None:
    """The loop along which most of the loads are contiguous that are not so along `row`."""
    best, most = None, 0
    for candidate in reversed(names):
        count = sum(load.step(candidate) == 1 for load in across)
        if candidate != row and count > most:
            best, most = candidate, count
    return best


def _bits(found: Accesses, machine: Machine) -> int:
    """Of the lanes of results that are interleaved: bytes and words are so only inside of 128 bits, where no instruction crosses them."""
    own = max(8, min(found.store.buffer.dtype.bits, 64), *(min(load.buffer.dtype.bits, 64) for load in found.loads), 8)
    if own >= 32 or machine.has("avx512vbmi"):
        return own
    return own * max(1, machine.vector_bits // 128)


def _joined(s: Schedule, name: str, names: Sequence[str], inner: str, found: Accesses) -> tuple[Schedule, list[str], str]:
    """Fuse `inner` with the loops outside of it that every access walks on with in order. The loops get a new order: those fused, last."""
    names = list(names)
    chain = [inner]
    while True:
        outer = next((n for n in names if n not in chain and _continues(s, n, chain[0], found)), None)
        if outer is None:
            break
        chain.insert(0, outer)
    if len(chain) == 1:
        return s, names, inner
    rest = [n for n in names if n not in chain]
    s = s.reorder(*rest, *chain)
    s, fused = s.fuse(*chain)
    return s, [*rest, fused], fused


def _continues(s: Schedule, outer: str, inner: str, found: Accesses) -> bool:
    """Whether each access goes on where `inner` ends when `outer` takes a step: they index neighbouring dimensions, of which the second has
    as many elements as `inner` iterations, or neither moves it."""
    if {outer, inner} & found.computed:
        return False
    a, b = s.nest.loop(outer).stmt, s.nest.loop(inner).stmt
    for access in (found.store, *found.loads):
        moved = [d for d, index in enumerate(access.indices) if {a.var, b.var} & set(variables_in(index))]
        if not moved:
            continue
        if len(moved) != 2 or moved[1] != moved[0] + 1:
            return False
        first, second = (access.indices[d] for d in moved)
        if first is not a.var or second is not b.var or access.buffer.shape[moved[1]] is not b.extent:
            return False
    return True


def _interleave(
    s: Schedule, name: str, names: Sequence[str], row: str, column: str, found: Accesses, lanes: int
) -> tuple[Schedule, list[str]]:
    """Vectors along `column`, of which the few of `row` are stored together."""
    s, names, column = _joined(s, name, names, column, found)
    outer = [n for n in names if n not in (row, column)]
    size = _extent(s, column)
    s, (chunk, lane) = s.split(column, lanes if size is None else min(lanes, size))
    s = s.reorder(*outer, chunk, row, lane)
    s = s.vectorize(lane).unroll(row)
    return s, outer or [chunk]


def _strided(
    s: Schedule, name: str, names: Sequence[str], row: str, column: str, found: Accesses, lanes: int
) -> tuple[Schedule, list[str]]:
    """Vectors along `row`, for all of `column`, whose elements lie between those of a vector."""
    s, names, row = _joined(s, name, names, row, found)
    outer = [n for n in names if n not in (row, column)]
    size = _extent(s, row)
    s, (chunk, lane) = s.split(row, lanes if size is None else min(lanes, size))
    s = s.reorder(*outer, chunk, column, lane)
    s = s.vectorize(lane).unroll(column)
    return s, outer or [chunk]


def _tiles(
    s: Schedule, name: str, names: Sequence[str], row: str, column: str, found: Accesses, lanes: int, machine: Machine, space: Space
) -> tuple[Schedule, list[str]]:
    width = max(load.buffer.dtype.bytes for load in found.loads if load.step(row) not in (0, 1))
    s, names, row = _joined(s, name, names, row, found)
    s, names, column = _joined(s, name, names, column, found)
    outer = [n for n in names if n not in (row, column)]
    rows, columns = choose_tile(_extent(s, row), _extent(s, column), width, lanes, machine, space, name)
    block = choose_block(_extent(s, column), columns, found.store.buffer.dtype.bytes, machine, space, name)
    s, (row_tile, lane) = s.split(row, rows)
    if block > 1:
        s, (blocks, column_tile, part) = s.split(column, (None, block, columns))
    else:
        s, (blocks, part) = s.split(column, columns)
        column_tile = blocks
    outer = [*outer, blocks] if block > 1 else outer
    tasks = 1
    for loop in outer:
        tasks *= extent_value(s.nest.loop(loop).stmt.extent)
    if tasks < FEW_TASKS * machine.cores and extent_value(s.nest.loop(row_tile).stmt.extent) > tasks:
        # not fused with the others: what it takes to tell them apart again hides that an axis which was fused before is walked in order
        s = s.reorder(row_tile, *outer, column_tile, part, lane)
        outer = [row_tile]
    else:
        s = s.reorder(*outer, row_tile, column_tile, part, lane)
    s = s.vectorize(lane).unroll(part)
    return s, outer or [row_tile]


def choose_tile(
    rows: int | None, columns: int | None, width: int, lanes: int, machine: Machine, space: Space, name: str
) -> tuple[int, int]:
    """Rows (lanes of the vectors that are stored) and columns (vectors) of a tile. width: bytes of an element that is loaded.

    Cost: instructions per element. A piece of a row is a load and, beside the first of a vector, an insert; turning takes a shuffle for
    each vector and round. Rows that are shorter than a cache line are read again by the next tile.
    """
    line = machine.l1d.line
    heights = [h for h in (lanes, lanes // 2, lanes // 4) if h >= 4] or [lanes]
    if rows is not None and rows < lanes:
        heights = [rows]
    options = []
    for height in heights:
        piece = max(1, min(PIECE // width, height))
        for pieces in (1, 2, 4, 8):
            if pieces == 1 or (pieces * piece * width <= line and height * pieces <= MOST_LOADS):
                options.append((height, piece * pieces if columns is None else min(piece * pieces, columns)))

    def cost(tile: tuple[int, int]) -> float:
        height, breadth = tile
        piece = max(1, min(PIECE // width, height, breadth))
        rounds = piece.bit_length() - 1
        each = 2.0 / piece + rounds / height + 1.0 / height + line / width / breadth / 16
        used = 1.0 if rows is None else rows / (-(-rows // height) * height)
        used *= 1.0 if columns is None else columns / (-(-columns // piece) * piece)
        return each / used

    return space.choose(
        f"{name}.transposed_tile", list(dict.fromkeys(options)), cost, "instructions per element, with lanes and lines wasted"
    )


def choose_block(columns: int | None, tile: int, width: int, machine: Machine, space: Space, name: str) -> int:
    """Tiles along the columns before the next rows begin. The lines of the result that a block writes stay in the first-level cache until
    the next tiles fill them; a longer block reads longer runs. width: bytes of a stored element."""
    line = machine.l1d.line
    options = [n for n in (1, 2, 4, 8, 16, 32, 64) if columns is None or n == 1 or n * tile < columns]
    if columns is not None and columns * line * 2 <= machine.l1d.size:
        options = [1]

    def cost(n: int) -> float:
        held = n * tile * line
        run = line / (n * tile * width)  # lines in which a run begins or ends, of those it reads
        return run + (4.0 if held * 2 > machine.l1d.size else 0.0)

    why = "tiles along the columns: runs that begin and end, lines that leave the cache before they are full"
    return space.choose(f"{name}.transposed_block", options, cost, why)


__all__ = ["Accesses", "accesses_of", "choose_block", "choose_tile", "split_digits", "tile_transposition"]
