"""Statements to instructions: stores, loops, branches; vectorised loops in pieces of the machine's vector width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op, wrap_integer
from tilewright.ir.traverse import depends_on
from tilewright.kernel.nodes import For, If, Let, Prefetch, Seq, Stmt, Store, While, walk_stmts
from tilewright.support.errors import InternalError
from tilewright.target.cpu.codegen import arithmetic, matrix, memory, transposition
from tilewright.target.cpu.codegen.counters import Counter, Counters
from tilewright.target.cpu.codegen.expressions import ExprEmitter
from tilewright.target.cpu.codegen.facts import Facts
from tilewright.target.cpu.codegen.llvm_types import is_narrow_float, shuffle_mask, value_type, vector
from tilewright.target.cpu.codegen.narrow_floats import round_to
from tilewright.target.cpu.codegen.selects import ALL_LANES
from tilewright.target.cpu.codegen.text import Operand

SHORT_LOOP = 4  # iterations
MAX_PIECES = 64  # copies of the body of one vectorised loop; beyond, a loop over the pieces
_REDUCING = frozenset({Op.ADD, Op.MUL, Op.MIN, Op.MAX, Op.AND, Op.OR, Op.XOR})


@dataclass(frozen=True, slots=True)
class Context:
    """The emitter of the function that is being built, and what to do with a parallel loop (None: run it here)."""

    em: ExprEmitter
    on_parallel: Callable[[For], None] | None = None


def emit(cx: Context, stmt: Stmt) -> None:
    """Appends the statement's code to the function."""
    match stmt:
        case Store():
            emit_store(cx.em, stmt)
        case Seq(stmts):
            for part in matrix.split_regions(cx.em, stmts):
                if isinstance(part, matrix.Region):
                    _emit_region(cx, part)
                else:
                    emit(cx, part)
        case For():
            (part,) = matrix.split_regions(cx.em, (stmt,))
            if isinstance(part, matrix.Region):
                _emit_region(cx, part)
            else:
                _emit_for(cx, stmt)
        case If():
            _emit_if(cx, stmt)
        case Let():
            _emit_let(cx, stmt)
        case While():
            _emit_while(cx, stmt)
        case Prefetch():
            memory.prefetch(cx.em, stmt)
        case _:
            raise InternalError(f"the CPU code generator met a block ({stmt.name}); `lower` dissolves blocks")


def _emit_region(cx: Context, region: matrix.Region) -> None:
    def loop(around: For, extent: Operand, body: Callable[[], None]) -> None:
        emit_loop(cx.em, around, 0, extent, body)

    matrix.emit_region(cx.em, region, lambda stmt: emit(cx, stmt), loop)


def _emit_for(cx: Context, loop: For) -> None:
    em = cx.em
    if loop.kind == "parallel" and cx.on_parallel is not None and not em.lanes:
        cx.on_parallel(loop)
        return
    extent = em.scalar(loop.extent) if not em.varies(loop.extent) else None
    if extent is None:
        raise InternalError("a loop whose extent differs between vector lanes")
    if type(extent) is int:
        if extent <= 0:
            return
        tile = transposition.tile_of(loop, em) if not em.lanes else None
        if tile is not None:
            _emit_tile(cx, tile)
            return
        if extent == 1 or loop.kind == "unrolled":
            for index in range(extent):
                mark = em.mark()
                em.level += 1
                em.bind(loop.var, index)
                emit(cx, loop.body)
                em.leave_level(mark)
                em.level -= 1
            return
        if loop.kind == "vectorized" and not em.lanes:
            width = em.facts.lane_width.get(loop)
            if width is None:
                width = em.facts.lane_width[loop] = lane_bits(loop, em.facts) if is_vectorizable(loop, em.facts) else 0
            if width:
                _emit_vectorized(cx, loop, extent, width)
                return
    emit_loop(em, loop, 0, extent, lambda: emit(cx, loop.body))


def emit_loop(
    em: ExprEmitter,
    loop: For,
    begin: Operand,
    end: Operand,
    body: Callable[[], None],
    backwards: Operand | None = None,
    counters: tuple[Counter, ...] = (),
) -> None:
    """for loop.var in [begin, end): body, from the last to the first where the i1 `backwards` is true, else with `counters`. The test is at
    the bottom; above it only where the range may be empty.

    LLVM unrolls innermost loops by its own judgement, and of those around them only short ones: copies of nests gain nothing.
    """
    variable, written = loop.var, em.facts.written(loop.body)
    fn = em.fn
    exit_ = fn.label("exit")
    em.forget(written)
    if not (type(begin) is int and type(end) is int and begin < end):
        enter = fn.label("enter")
        fn.branch(fn.op(f"icmp slt i64 {begin}, {end}"), enter, exit_)
        fn.start(enter)
    mark = em.mark()
    counted = Counters()
    counted.before(em, counters, variable, begin)
    head, before = fn.label("loop"), fn.block
    fn.jump(head)
    fn.start(head)
    phi = fn.phi_later()
    counted.head(em)
    em.level += 1
    position = phi[0]
    if backwards is not None:
        both, complement = fn.op(f"add i64 {begin}, {end}"), fn.op(f"xor i64 {phi[0]}, -1")
        mirrored = fn.op(f"add i64 {both}, {complement}")  # begin + end - 1 - the counter
        position = fn.op(f"select i1 {backwards}, i64 {mirrored}, i64 {phi[0]}")
    em.bind(variable, position, nonnegative=True)
    counted.bind(em)
    body()
    em.level -= 1
    em.leave(mark)
    counted.step(em, variable, before)
    following = fn.op(f"add nuw nsw i64 {phi[0]}, 1")
    fn.set_phi(phi, "i64", ((begin, before), (following, fn.block)))
    short = type(end) is int and type(begin) is int and end - begin <= SHORT_LOOP
    fn.branch(fn.op(f"icmp slt i64 {following}, {end}"), head, exit_, "" if short or _is_innermost(loop.body) else fn.module.plain_loop())
    fn.start(exit_)
    em.forget(written)


def _is_innermost(body: Stmt) -> bool:
    return not any(isinstance(s, While) or (isinstance(s, For) and s.kind not in ("vectorized", "unrolled")) for s in walk_stmts(body))


def _emit_if(cx: Context, stmt: If) -> None:
    em, fn = cx.em, cx.em.fn
    if em.varies(stmt.condition):
        _emit_masked(cx, stmt)
        return
    test = em.scalar(stmt.condition)
    if test in ("true", "false"):
        chosen = stmt.then if test == "true" else stmt.otherwise
        if chosen is not None:
            emit(cx, chosen)
        return
    then, join = fn.label("then"), fn.label("join")
    other = join if stmt.otherwise is None else fn.label("else")
    fn.branch(test, then, other)
    for label, side in ((then, stmt.then), (other, stmt.otherwise)):
        if side is None:
            continue
        fn.start(label)
        mark = em.mark()
        emit(cx, side)
        em.leave(mark)
        fn.jump(join)
    fn.start(join)
    em.forget(em.facts.written(stmt))


def _emit_masked(cx: Context, stmt: If) -> None:
    em = cx.em
    before = em.mask
    condition = em.vector(stmt.condition)
    sides: tuple[tuple[Stmt | None, Operand], ...] = ((stmt.then, condition),)
    if stmt.otherwise is not None:
        sides += ((stmt.otherwise, em.fn.op(f"xor <{em.lanes} x i1> {condition}, {ALL_LANES}")),)
    for side, lanes_on in sides:
        if lanes_on == "zeroinitializer":
            continue
        inner = em.mark()
        if lanes_on != ALL_LANES:
            em.mask = lanes_on if before is None else em.both(before, lanes_on)
        emit(cx, side)  # type: ignore[arg-type]
        em.leave_mask(inner)
        em.mask = before
    em.forget(em.facts.written(stmt))


def _emit_let(cx: Context, stmt: Let) -> None:
    em = cx.em
    mark = em.mark()
    value = em.vector(stmt.value) if em.varies(stmt.value) else em.scalar(stmt.value)
    em.level += 1
    if em.varies(stmt.value):
        em.bind_varying(stmt.var, value)
    else:
        em.bind(stmt.var, value, nonnegative=stmt.value.dtype.is_integer and em.nonnegative(stmt.value))
    emit(cx, stmt.body)
    em.leave_level(mark)
    em.level -= 1


def _emit_while(cx: Context, stmt: While) -> None:
    em, fn = cx.em, cx.em.fn
    written = em.facts.written(stmt.body)
    head, body, exit_ = fn.label("while"), fn.label("body"), fn.label("exit")
    em.forget(written)
    fn.jump(head)
    fn.start(head)
    mark = em.mark()
    em.level += 1
    fn.branch(em.scalar(stmt.condition), body, exit_)
    fn.start(body)
    emit(cx, stmt.body)
    fn.jump(head)
    em.level -= 1
    em.leave(mark)
    fn.start(exit_)
    em.forget(written)


# Vectorised loops


def is_vectorizable(loop: For, facts: Facts) -> bool:
    """Whether the loop can run in lanes: no `while`, no inner loop whose extent depends on the lane, and no store that all lanes do to
    one place other than a reduction. Loops that cannot run as plain loops."""
    varying = {loop.var}
    for stmt in walk_stmts(loop.body):
        if isinstance(stmt, While):
            return False
        if isinstance(stmt, Let) and _depends(varying, stmt.value):
            varying.add(stmt.var)
        elif (isinstance(stmt, For) and _depends(varying, stmt.extent)) or (
            isinstance(stmt, Store) and not _depends(varying, *stmt.indices) and reduction_of(stmt, facts) is None
        ):
            return False
    return True


def _depends(variables: set[Expr], *exprs: Expr) -> bool:
    return any(depends_on(e, variables) for e in exprs)


def reduction_of(stmt: Store, facts: Facts) -> tuple[Op, Expr, Expr] | None:
    """For `b[i] = b[i] op x`, where `x` does not read `b`: op, b[i] and x."""
    value = stmt.value
    if value.op in _REDUCING:
        for own, other in (value.args, value.args[::-1]):
            if own.op is Op.LOAD and own.attr is stmt.buffer and own.args == stmt.indices and stmt.buffer not in facts.reads(other):
                return value.op, own, other
    return None


def lane_bits(loop: For, facts: Facts) -> int:
    """Bits of the widest element that the loop computes with; indices and conditions do not count."""
    bits = 8
    for stmt in walk_stmts(loop.body):
        if isinstance(stmt, (Store, Let)):
            bits = max(bits, facts.data_bits(stmt.value))
    return bits


def _emit_vectorized(cx: Context, loop: For, extent: int, bits: int) -> None:
    em = cx.em
    width = max(1, em.style.vector_bits // bits)
    if extent // width > MAX_PIECES:
        raise InternalError(f"a vectorised loop of {extent} iterations", hint="split it first")
    for first, lanes, active in _pieces(extent, width, em.style.masks):
        mark = em.mark()
        em.level += 1
        if lanes == 1:
            em.bind(loop.var, first)
        else:
            em.enter_lanes(loop.var, first, lanes, active)
        emit(Context(em), loop.body)
        em.leave_level(mark)
        em.leave_lanes()
        em.level -= 1


def _emit_tile(cx: Context, tile: transposition.Tile) -> None:
    em = cx.em
    width = max(1, em.style.vector_bits // lane_bits(tile.rows, em.facts))
    pieces = _pieces(int(tile.rows.extent.value), width, em.style.masks)
    transposition.emit_tile(em, tile, pieces, lambda: emit(Context(em), tile.body))


def _pieces(extent: int, width: int, masks: bool) -> list[tuple[int, int, int]]:
    """(first, lanes, active) for vectors of at most `width` lanes that cover `extent` iterations: whole ones, then the rest in one vector
    under a mask, or in shorter ones of powers of two."""
    at = extent - extent % width
    pieces = [(first, width, width) for first in range(0, at, width)]
    rest = extent - at
    while rest:
        lanes = 1 << (rest.bit_length() - 1)
        if lanes < rest and masks:
            pieces.append((at, 2 * lanes, rest))
            break
        pieces.append((at, lanes, lanes))
        at, rest = at + lanes, rest - lanes
    return pieces


def emit_store(em: ExprEmitter, stmt: Store) -> None:
    """One store, in all lanes that are on."""
    buffer, indices, value = stmt.buffer, stmt.indices, stmt.value
    if not em.lanes:
        memory.store_scalar(em, buffer, indices, em.scalar(value))
    elif any(em.varies(index) for index in indices):
        memory.store_vector(em, buffer, indices, em.vector(value))
    else:
        _store_reduction(em, stmt)
    em.forget(frozenset({buffer}))


def _store_reduction(em: ExprEmitter, stmt: Store) -> None:
    found = reduction_of(stmt, em.facts)
    if found is None:
        raise InternalError(f"all lanes of a vectorised loop store to one element of {stmt.buffer.name}")
    op, own, operand = found
    dtype, lanes = stmt.buffer.dtype, em.lanes
    x = em.vector(operand)
    if em.mask is not None:
        type_ = vector(value_type(dtype), lanes)
        neutral = arithmetic.constant(_identity(op, dtype), dtype, lanes)
        x = em.fn.op(f"select <{lanes} x i1> {em.mask}, {type_} {x}, {type_} {neutral}")
    while lanes > 1:
        wide, half = vector(value_type(dtype), lanes), lanes // 2
        low = em.fn.op(f"shufflevector {wide} {x}, {wide} poison, {shuffle_mask(tuple(range(half)))}")
        high = em.fn.op(f"shufflevector {wide} {x}, {wide} poison, {shuffle_mask(tuple(range(half, lanes)))}")
        x, lanes = _combine(em, op, dtype, low, high, half), half
    one = em.fn.op(f"extractelement {vector(value_type(dtype), 1)} {x}, i64 0")
    mask, em.mask = em.mask, em.prefix
    memory.store_scalar(em, stmt.buffer, stmt.indices, _combine(em, op, dtype, memory.load_scalar(em, own), one, 0))
    em.mask = mask


def _combine(em: ExprEmitter, op: Op, dtype: DType, a: Operand, b: Operand, lanes: int) -> Operand:
    value = arithmetic.binary(em.fn, op, dtype, a, b, lanes, native_max=em.style.native_max)
    if is_narrow_float(dtype) and op not in (Op.MIN, Op.MAX):
        value = round_to(em.fn, value, dtype, lanes, em.style.native_floats)
    return value


def _identity(op: Op, dtype: DType) -> bool | int | float:
    """The value that changes nothing: -0.0 for float sums."""
    match op:
        case Op.ADD:
            return -0.0 if dtype.is_float else 0
        case Op.MUL:
            return 1
        case Op.MAX:
            return dtype.lowest
        case Op.MIN:
            return dtype.highest
        case Op.AND:
            return True if dtype.kind == "bool" else wrap_integer(-1, dtype)
        case _:
            return False if dtype.kind == "bool" else 0
