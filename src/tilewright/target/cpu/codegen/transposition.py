"""Tiles whose loads run along another axis than their stores: read along the one, turned in registers, stored along the other.

    unrolled c in 16:
      vectorized r in 16:                  16 rows of y from 16 rows of x, by shuffles of two vectors
        y[.., c, .., r] = f(x[.., r, .., c])

The elements of x that a vector of y needs lie a row of x apart: one by one that is a load and an insert each. Here every row of the tile
is loaded in pieces of 128 bits, row r + n of a piece beside row r, and log2(elements of a piece) rounds of interleaving inside of 128 bits
(the unpack instructions of x86, zip of ARM) turn all pieces at once. What is computed from x happens after it, on whole vectors.

Results with an innermost axis of two to four elements are the other way round: all of a run of elements is computed along the source, and
the vectors are interleaved to whole ones before they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.expr import Expr, logical_not
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import variables_in
from tilewright.kernel.nodes import For, If, Stmt, Store
from tilewright.kernel.regions import conjuncts
from tilewright.target.cpu.codegen import memory
from tilewright.target.cpu.codegen.conversions import from_memory, to_memory
from tilewright.target.cpu.codegen.expressions import ExprEmitter
from tilewright.target.cpu.codegen.llvm_types import memory_type, shuffle_mask, vector
from tilewright.target.cpu.codegen.selects import ALL_LANES
from tilewright.target.cpu.codegen.text import Function, Operand

PIECE_BITS = 128  # shuffles inside of so many bits are one instruction on every vector width
MOST_INTERLEAVED = 4  # vectors

Piece = tuple[int, int, int]  # first iteration, lanes, lanes that are on


@dataclass(frozen=True, slots=True)
class Tile:
    """columns: the unrolled loop. rows: the vectorised one, directly inside. tests: under which the store happens. body: the store under
    its tests. loads: those that are contiguous along the columns, each with the conditions under which its value is used.
    interleaved: the store is contiguous along the columns instead, which are as many as its stride along the rows."""

    columns: For
    rows: For
    tests: tuple[Expr, ...]
    body: Stmt
    store: Store
    loads: tuple[tuple[Expr, tuple[Expr, ...]], ...]
    interleaved: bool


def tile_of(loop: For, em: ExprEmitter) -> Tile | None:
    """The unrolled loop as a tile, if it is one."""
    if loop.kind != "unrolled" or not loop.extent.is_const or loop.extent.value < 2:
        return None
    inner, outside = _under_tests(loop.body)
    if not (isinstance(inner, For) and inner.kind == "vectorized" and inner.extent.is_const and inner.extent.value >= 2):
        return None
    store, inside = _under_tests(inner.body)
    if not isinstance(store, Store) or any(em.facts.reads(test) for test in (*outside, *inside)):
        return None
    reads = em.facts.reads(store.value)
    if store.buffer in reads or any(store.buffer in em.facts.reads(index) for index in store.indices):
        return None
    tests = (*outside, *inside)
    body: Stmt = store
    for test in reversed(tests):
        body = If(test, body)
    along_rows = _step(em, store.buffer, store.indices, inner.var)
    along_columns = _step(em, store.buffer, store.indices, loop.var)
    if along_rows == loop.extent.value <= MOST_INTERLEAVED and along_columns == 1:
        return Tile(loop, inner, tests, body, store, (), True)
    if along_rows != 1:
        return None
    turned = []
    for load, conditions in _conditional_loads(store.value).items():
        if conditions is None or any(em.facts.reads(condition) for condition in conditions):
            continue
        step = _step(em, load.attr, load.args, inner.var)
        near = step is not None and abs(step) <= memory.MAX_SHUFFLED_STRIDE
        if _step(em, load.attr, load.args, loop.var) == 1 and not near:
            turned.append((load, conditions))
    return Tile(loop, inner, tests, body, store, tuple(turned), False) if turned else None


def _under_tests(stmt: Stmt) -> tuple[Stmt, tuple[Expr, ...]]:
    """What runs under tests, and the tests."""
    tests: tuple[Expr, ...] = ()
    while isinstance(stmt, If) and stmt.otherwise is None:
        tests += conjuncts(stmt.condition)
        stmt = stmt.then
    return stmt, tests


def _step(em: ExprEmitter, buffer: object, indices: tuple[Expr, ...], variable: Expr) -> int | None:
    """Elements from one iteration to the next; None where that is not a constant."""
    terms, _ = em.offset(buffer, indices)  # type: ignore[arg-type]
    step = 0
    for term, coefficient in terms:
        if term is variable:
            step += coefficient
        elif variable in variables_in(term):
            return None
    return step


def _conditional_loads(value: Expr) -> dict[Expr, tuple[Expr, ...] | None]:
    """The loads in `value` with the conditions of the selects around them; None for those that stand under several."""
    found: dict[Expr, tuple[Expr, ...] | None] = {}
    seen: set[tuple[Expr, tuple[Expr, ...]]] = set()
    stack: list[tuple[Expr, tuple[Expr, ...]]] = [(value, ())]
    while stack:
        e, conditions = stack.pop()
        if (e, conditions) in seen:
            continue
        seen.add((e, conditions))
        if e.op is Op.LOAD:
            found[e] = conditions if found.get(e, conditions) == conditions else None
        if e.op is Op.SELECT:
            condition, if_true, if_false = e.args
            stack.append((condition, conditions))
            stack.append((if_true, (*conditions, *conjuncts(condition))))
            stack.append((if_false, (*conditions, logical_not(condition))))
        else:
            stack.extend((argument, conditions) for argument in e.args)
    return found


def emit_tile(em: ExprEmitter, tile: Tile, pieces: Sequence[Piece], emit_body: Callable[[], None]) -> None:
    """The stores of the tile; `pieces` are those of the loop over the rows, `emit_body` emits `tile.body`."""
    count = int(tile.columns.extent.value)
    for piece in pieces:
        if tile.interleaved and not tile.tests and piece[1] == piece[2] > 1:
            _store_interleaved(em, tile, piece)
        elif tile.interleaved or piece[1] == 1:
            for column in range(count):
                _in_lanes(em, tile, piece, column, {}, emit_body)
        else:
            _emit_turned(em, tile, piece, emit_body)
    em.forget(frozenset({tile.store.buffer}))


def _in_lanes(em: ExprEmitter, tile: Tile, piece: Piece, column: int, given: dict[Expr, Operand], emit: Callable[[], None]) -> None:
    """`emit` for one column, in lanes along the rows."""
    first, lanes, active = piece
    mark = em.mark()
    em.level += 1
    em.bind(tile.columns.var, column)
    if lanes == 1:
        em.bind(tile.rows.var, first)
    else:
        em.enter_lanes(tile.rows.var, first, lanes, active)
        for load, raw in given.items():
            em.give(load, from_memory(em.fn, raw, load.attr.dtype, lanes, em.style.native_floats))
    emit()
    em.leave_level(mark)
    em.leave_lanes()
    em.level -= 1


# Stores along the rows


def _emit_turned(em: ExprEmitter, tile: Tile, piece: Piece, emit_body: Callable[[], None]) -> None:
    lanes = piece[1]
    count = int(tile.columns.extent.value)
    widest = max(load.attr.dtype.bytes for load, _ in tile.loads)
    chunk = min(PIECE_BITS // 8 // widest, lanes)
    at = 0
    while at < count:
        while chunk > count - at and not em.style.masks:
            chunk //= 2
        while chunk // 2 >= count - at:
            chunk //= 2
        size = min(chunk, count - at)
        columns = {load: _turned(em, tile, load, conditions, piece, (at, chunk, size)) for load, conditions in tile.loads}
        for column in range(size):
            given = {load: vectors[column] for load, vectors in columns.items()}
            _in_lanes(em, tile, piece, at + column, given, emit_body)
        at += size


def _turned(em: ExprEmitter, tile: Tile, load: Expr, conditions: tuple[Expr, ...], piece: Piece, part: Piece) -> list[Operand]:
    """The elements of a load as vectors along the rows, one for each column of `part` (first column, columns, those that there are)."""
    first, lanes, active = piece
    chunk = part[1]
    rows: list[Operand] = []
    for row in range(lanes):
        rows.append(_row(em, tile, load, conditions, first + row, part) if row < active else "zeroinitializer")
    return transposed(em.fn, memory_type(load.attr.dtype), rows, chunk)


def _row(em: ExprEmitter, tile: Tile, load: Expr, conditions: tuple[Expr, ...], row: int, part: Piece) -> Operand:
    """The elements of one row, in lanes along the columns; zeros where the value is not used."""
    first, lanes, active = part
    mark = em.mark()
    em.level += 1
    em.bind(tile.rows.var, row)
    if lanes == 1:
        em.bind(tile.columns.var, first)
    else:
        em.enter_lanes(tile.columns.var, first, lanes, active)
    value: Operand = "zeroinitializer"
    if _restrict(em, (*tile.tests, *conditions)):
        value = memory.raw_vector(em, load) if lanes > 1 else _single(em, load)
    em.guard = None
    em.leave_level(mark)
    em.leave_lanes()
    em.level -= 1
    return value


def _single(em: ExprEmitter, load: Expr) -> Operand:
    element = memory_type(load.attr.dtype)
    return em.fn.op(f"insertelement <1 x {element}> poison, {element} {memory.raw_scalar(em, load)}, i64 0")


def _restrict(em: ExprEmitter, tests: Sequence[Expr]) -> bool:
    """Leave only the lanes on where all tests hold; False: there are none."""
    for test in tests:
        if em.varies(test):
            mask = em.condition(test)
            if mask == "zeroinitializer":
                return False
            em.mask = em.mask if mask == ALL_LANES else mask
            continue
        guard = em.scalar(test)
        if guard == "false":
            return False
        if guard != "true":
            em.guard = guard if em.guard is None else em.fn.op(f"and i1 {em.guard}, {guard}")
    return True


def transposed(fn: Function, element: str, rows: Sequence[Operand], chunk: int) -> list[Operand]:
    """From `len(rows)` vectors of `chunk` elements the `chunk` vectors of `len(rows)` elements; both are powers of two, chunk <= rows.

    Vector k first holds the rows k, k + chunk, k + 2 chunk ... side by side; each round of interleaving halves the distance between the
    vectors of neighbouring rows, inside of each chunk.
    """
    lanes = len(rows)
    vectors = [_side_by_side(fn, element, rows[k::chunk], chunk) for k in range(chunk)]
    if lanes == 1 or chunk == 1:
        return vectors
    type_ = vector(element, lanes)
    masks = []
    for half in (0, chunk // 2):
        taken = [block + half + t + source for block in range(0, lanes, chunk) for t in range(chunk // 2) for source in (0, lanes)]
        masks.append(shuffle_mask(tuple(taken)))
    for _ in range(chunk.bit_length() - 1):
        pairs = [(vectors[k], vectors[k + chunk // 2]) for k in range(chunk // 2)]
        vectors = [fn.op(f"shufflevector {type_} {a}, {type_} {b}, {mask}") for a, b in pairs for mask in masks]
    return vectors


def _side_by_side(fn: Function, element: str, parts: Sequence[Operand], size: int) -> Operand:
    """One vector of the parts (each of `size` elements) in order."""
    parts = list(parts)
    while len(parts) > 1:
        type_, mask = vector(element, size), shuffle_mask(tuple(range(2 * size)))
        parts = [fn.op(f"shufflevector {type_} {a}, {type_} {b}, {mask}") for a, b in zip(parts[::2], parts[1::2], strict=True)]
        size *= 2
    return parts[0]


# Stores along the columns


def _store_interleaved(em: ExprEmitter, tile: Tile, piece: Piece) -> None:
    """All columns of a piece, computed along the rows and stored next to each other."""
    first, lanes, _ = piece
    dtype = tile.store.buffer.dtype
    count = int(tile.columns.extent.value)
    vectors: list[Operand] = []

    def compute() -> None:
        vectors.append(to_memory(em.fn, em.vector(tile.store.value), dtype, lanes, em.style.native_floats))

    for column in range(count):
        _in_lanes(em, tile, piece, column, {}, compute)
    element = memory_type(dtype)
    mark = em.mark()
    em.level += 1
    em.bind(tile.columns.var, 0)
    em.bind(tile.rows.var, first)
    terms, constant = em.offset(tile.store.buffer, tile.store.indices)
    for number, value in enumerate(interleaved(em.fn, element, vectors, lanes)):
        pointer = memory.address(em, tile.store.buffer, list(terms), constant + number * lanes)
        em.fn.do(f"store {vector(element, lanes)} {value}, ptr {pointer}, align {dtype.bytes}")
    em.leave_level(mark)
    em.level -= 1


def interleaved(fn: Function, element: str, vectors: Sequence[Operand], lanes: int) -> list[Operand]:
    """The vectors' first elements, then their second ones ..., as the same number of vectors."""
    type_, count = vector(element, lanes), len(vectors)
    if count == 2 or count == 4:
        halves = [shuffle_mask(tuple(h + t + s for t in range(lanes // 2) for s in (0, lanes))) for h in (0, lanes // 2)]
        current = list(vectors)
        for _ in range(count.bit_length() - 1):
            pairs = [(current[k], current[k + count // 2]) for k in range(count // 2)]
            current = [fn.op(f"shufflevector {type_} {a}, {type_} {b}, {half}") for a, b in pairs for half in halves]
        return current
    results: list[Operand] = []
    for number in range(count):
        where = [divmod(number * lanes + t, count) for t in range(lanes)]  # (element, vector)
        value: Operand = vectors[0]
        for source in range(1, count):
            mask = shuffle_mask(tuple(lanes + n if v == source else n if v == 0 and source == 1 else t for t, (n, v) in enumerate(where)))
            value = fn.op(f"shufflevector {type_} {value}, {type_} {vectors[source]}, {mask}")
        results.append(value)
    return results
