"""Sums of products by tile instructions (Intel AMX): eight registers of up to 16 rows of 64 bytes, three of which one instruction takes.

A `matrix` loop adds a tile of products to a tile of sums in a local buffer, or clears it:

    matrix i in 16: for k in 16: vectorized j in 16: c[i, j] = dot4(c[i, j], a[i, k*4], .., b[k, j*4], ..)

What runs one after the other and does nothing else to its sums is a *region*, such as a reduction with what clears its sums before it:
there each tile of the sums has a register from the beginning to the end, and goes to memory once, after it. A tile of rows or of the panel
is loaded where it changes. Shapes of the registers are set before a region, if they are not what they have been last: numbers of rows may
be known only while running. Rows that do not exist are not loaded; a register that has none of them has one of what it held before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import DOTS, Op
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import depends_on, free_vars, substitute
from tilewright.kernel.nodes import Buffer, For, If, Prefetch, Seq, Stmt, Store, walk_stmts
from tilewright.kernel.schedule.matrix import is_dot_sum
from tilewright.target.cpu.codegen import memory
from tilewright.target.cpu.codegen.text import Function, Operand
from tilewright.target.cpu.dots import MATRIX_REGISTERS, MatrixInstruction

if TYPE_CHECKING:
    from tilewright.target.cpu.codegen.expressions import ExprEmitter

_Env = dict[Expr, int]  # variables of unrolled loops


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tile in memory: the element at its first row, and how many elements its rows are apart."""

    buffer: Buffer
    terms: tuple[tuple[Expr, int], ...]
    constant: int
    stride: int


@dataclass(frozen=True, slots=True)
class _Nest:
    """One matrix loop. rows: its extent; steps, lanes: those of the loops inside. left, right: the operands of a product, None for what
    clears the sums."""

    loop: For
    rows: Expr
    steps: int
    lanes: int
    sums: _Operand
    left: _Operand | None = None
    right: _Operand | None = None
    instruction: MatrixInstruction | None = None


_Key = tuple[tuple[Expr, int], ...]


@dataclass(slots=True)
class Region:
    """Statements whose sums stay in registers. tiles: register of each tile of sums, by the number of its first element, with its number of
    rows; left, right: registers of the operands, by the part of the sums that they go into."""

    stmts: Sequence[Stmt]
    nests: dict[For, _Nest]
    tiles: dict[int, tuple[int, Expr]]
    left: dict[_Key, tuple[int, Expr]]
    right: dict[_Key, int]
    cleared: set[int]
    shape: _Nest


def split_regions(em: ExprEmitter, stmts: Sequence[Stmt]) -> Iterator[Stmt | Region]:
    """Statements in order, those that are a region together."""
    if not em.style.tiles or em.lanes:
        yield from stmts
        return
    at = 0
    while at < len(stmts):
        end = at
        while end < len(stmts) and _is_matrix(stmts[end]):
            end += 1
        region = _region(em, stmts[at:end]) if end > at else None
        yield region if region is not None else stmts[at]
        at = end if region is not None else at + 1


def _is_matrix(stmt: Stmt) -> bool:
    """Whether a statement computes by matrix loops, and by nothing else."""
    match stmt:
        case Seq(stmts):
            return bool(stmts) and all(map(_is_matrix, stmts)) and any(isinstance(s, For) for s in walk_stmts(stmt))
        case For(_, _, _, "matrix"):
            return True
        case For(_, extent, body, kind):
            return kind in ("serial", "unrolled") and (kind == "serial" or extent.is_const) and _is_matrix(_without_asking(body))
        case _:
            return False


def _without_asking(stmt: Stmt) -> Stmt:
    kept = [s for s in stmt.stmts if not _asks(s)] if isinstance(stmt, Seq) else [stmt]
    return kept[0] if len(kept) == 1 else Seq(tuple(kept))


def _asks(stmt: Stmt) -> bool:
    """The statement asks for memory, and does nothing else."""
    if isinstance(stmt, Prefetch):
        return True
    return isinstance(stmt, If) and stmt.otherwise is None and _asks(stmt.then)


def _region(em: ExprEmitter, stmts: Sequence[Stmt]) -> Region | None:
    """The region that statements are, if their sums are tiles at constant places of one local buffer, for which the registers suffice."""
    nests: dict[For, _Nest] = {}
    inside: set[Expr] = set()
    for stmt in stmts:
        for inner in walk_stmts(stmt):
            if isinstance(inner, For) and inner.kind == "matrix":
                found = _nest(em, inner)
                if found is None:
                    return None
                nests[inner] = found
            elif isinstance(inner, For):
                inside.add(inner.var)
    products = [nest for nest in nests.values() if nest.left is not None]
    if not products or len({nest.sums.buffer for nest in nests.values()}) != 1 or not memory.is_local(products[0].sums.buffer):
        return None
    shape = products[0]
    if any((nest.steps, nest.instruction) != (shape.steps, shape.instruction) for nest in products):
        return None
    if any((nest.lanes, nest.sums.stride) != (shape.lanes, shape.sums.stride) for nest in nests.values()):
        return None
    region = Region(stmts, nests, {}, {}, {}, set(), shape)
    for nest, env in _instances(stmts, nests, {}):
        place = _constant(em, nest.sums, env)
        rows = simplify(substitute(nest.rows, {v: const(n) for v, n in env.items()}))
        if place is None or any(v in inside for v in free_vars(rows)):
            return None
        if nest.left is None or nest.right is None:
            if place not in region.tiles:
                region.cleared.add(place)
        else:
            left, right = (_key(operand, nest, env) for operand in (nest.left, nest.right))
            if region.left.setdefault(left, (len(region.left), rows))[1] is not rows:
                return None
            region.right.setdefault(right, len(region.right))
        if region.tiles.setdefault(place, (len(region.tiles), rows))[1] is not rows:
            return None
    if len(region.tiles) + len(region.left) + len(region.right) > MATRIX_REGISTERS:
        return None
    return region


def _nest(em: ExprEmitter, loop: For) -> _Nest | None:
    """A matrix loop whose operands are laid out as the instruction wants them."""
    inner = loop.body
    steps = inner if isinstance(inner, For) and inner.kind == "serial" else None
    lanes = steps.body if steps is not None else inner
    if not (isinstance(lanes, For) and lanes.kind == "vectorized" and isinstance(lanes.body, Store)):
        return None
    if not lanes.extent.is_const or (steps is not None and not steps.extent.is_const):
        return None
    store = lanes.body
    moving = (loop.var, lanes.var, *(() if steps is None else (steps.var,)))
    found = _operand(em, store.buffer, store.indices, moving, loop.var)
    if found is None or found[1] != {loop.var: found[0].stride, lanes.var: 1}:
        return None
    width = int(lanes.extent.value)
    if steps is None:
        cleared = store.value.op is Op.CONST and store.value.attr == 0
        return _Nest(loop, loop.extent, 0, width, found[0]) if cleared else None
    if not is_dot_sum(store):
        return None
    count = DOTS[store.value.attr]
    sides = [store.value.args[1 : 1 + count], store.value.args[1 + count :]]
    places = [_row(em, side, moving, lanes.var, loop.var, steps.var) for side in sides]
    if any(place is None for place in places):
        return None
    for a, b in ((0, 1), (1, 0)):
        left, right = places[a], places[b]
        assert left is not None
        assert right is not None
        instruction = next((t for t in em.style.tiles if (t.left, t.right) == (sides[a][0].dtype, sides[b][0].dtype)), None)
        if instruction is None or instruction.factors != count or instruction.sums is not store.buffer.dtype:
            continue
        rows_fit = left[1] in ({steps.var: count, loop.var: left[0].stride}, {steps.var: count})
        if rows_fit and right[1] == {steps.var: right[0].stride, lanes.var: count}:
            return _Nest(loop, loop.extent, int(steps.extent.value), width, found[0], left[0], right[0], instruction)
    return None


def _row(
    em: ExprEmitter, side: Sequence[Expr], moving: Sequence[Expr], lane: Expr, row: Expr, step: Expr
) -> tuple[_Operand, dict[Expr, int]] | None:
    """Where the factors of one side lie, neighbours in memory."""
    if any(x.op is not Op.LOAD or x.attr is not side[0].attr for x in side):
        return None
    varies = any(lane in free_vars(index) for index in side[0].args)
    found = [_operand(em, x.attr, x.args, moving, step if varies else row) for x in side]
    first = found[0]
    for n, place in enumerate(found):
        if place is None or first is None:
            return None
        if (place[0].terms, place[0].constant, place[1]) != (first[0].terms, first[0].constant + n, first[1]):
            return None
    return first


def _operand(
    em: ExprEmitter, buffer: Buffer, indices: tuple[Expr, ...], moving: Sequence[Expr], row: Expr
) -> tuple[_Operand, dict[Expr, int]] | None:
    """The place of an access, and by how many elements it moves with each of some variables; None where that is no constant."""
    terms, constant = em.offset(buffer, indices)
    by: dict[Expr, int] = {}
    rest: list[tuple[Expr, int]] = []
    for term, coefficient in terms:
        if term in moving:
            by[term] = coefficient
        elif depends_on(term, moving):
            return None
        else:
            rest.append((term, coefficient))
    return _Operand(buffer, tuple(rest), constant, by.get(row, 0)), by


def _instances(stmts: Sequence[Stmt], nests: Mapping[For, _Nest], env: _Env) -> Iterator[tuple[_Nest, _Env]]:
    """The matrix loops in order, with the values of the unrolled loops around each; of other loops one iteration."""
    for stmt in stmts:
        if isinstance(stmt, Seq):
            yield from _instances(stmt.stmts, nests, env)
        elif isinstance(stmt, For) and stmt in nests:
            yield nests[stmt], env
        elif isinstance(stmt, For) and stmt.kind == "unrolled":
            for index in range(int(stmt.extent.value)):
                yield from _instances((stmt.body,), nests, {**env, stmt.var: index})
        elif isinstance(stmt, For):
            yield from _instances((stmt.body,), nests, env)


def _constant(em: ExprEmitter, place: _Operand, env: _Env) -> int | None:
    total = place.constant
    for term, coefficient in place.terms:
        value = env.get(term, em.value_of(term))
        if type(value) is not int:
            return None
        total += value * coefficient
    return total


def _key(operand: _Operand, nest: _Nest, env: _Env) -> _Key:
    """What tells tiles of an operand apart that are in use together: the unrolled loops that it and the sums move with."""
    own = {v for term, _ in operand.terms for v in free_vars(term)}
    sums = {v for term, _ in nest.sums.terms for v in free_vars(term)}
    return tuple((v, n) for v, n in env.items() if v in own and v in sums)


# Emission


@dataclass(slots=True)
class _Emitter:
    em: ExprEmitter
    region: Region
    emit: Callable[[Stmt], None]
    loop: Callable[[For, Operand, Callable[[], None]], None]
    env: _Env = field(default_factory=dict)
    loaded: dict[int, object] = field(default_factory=dict)

    def run(self) -> None:
        region, em = self.region, self.em
        _slots(em.fn).used = True
        sums = region.shape.sums
        self._configure()
        for place, (register, _) in region.tiles.items():
            if place not in region.cleared:
                self._do("tileloadd64", f"i8 {register}, ptr {memory.address(em, sums.buffer, [], place)}, i64 {4 * sums.stride}")
        for stmt in region.stmts:
            self._stmt(stmt)
        for place, (register, _) in region.tiles.items():
            self._do("tilestored64", f"i8 {register}, ptr {memory.address(em, sums.buffer, [], place)}, i64 {4 * sums.stride}")
        em.forget(frozenset({sums.buffer}))

    def _do(self, name: str, args: str) -> None:
        types = ", ".join("i8 immarg" if word.split()[0] == "i8" else word.split()[0] for word in args.split(", ")) if args else ""
        self.em.fn.module.declare(f"declare void @llvm.x86.{name}({types})")
        self.em.fn.do(f"call void @llvm.x86.{name}({args})")

    # Registers and their shapes

    def _rows(self, rows: Expr) -> Operand:
        """As many rows as a register is said to have: at least one."""
        value = self.em.scalar(rows)
        if type(value) is int:
            return max(value, 1)
        fn = self.em.fn
        fn.module.declare("declare i64 @llvm.smax.i64(i64, i64)")
        return fn.op(f"call i64 @llvm.smax.i64(i64 {value}, i64 1)")

    def _configure(self) -> None:
        """Shapes of the registers, if they are not those that were set last in this function."""
        region, fn, shape = self.region, self.em.fn, self.region.shape
        first_left = len(region.tiles)
        first_right = first_left + len(region.left)
        rows: list[Operand] = [0] * MATRIX_REGISTERS
        bytes_ = [0] * MATRIX_REGISTERS
        for register, extent in region.tiles.values():
            rows[register], bytes_[register] = self._rows(extent), 4 * shape.lanes
        for register, extent in region.left.values():
            rows[first_left + register], bytes_[first_left + register] = self._rows(extent), 4 * shape.steps
        for register in region.right.values():
            rows[first_right + register], bytes_[first_right + register] = shape.steps, 4 * shape.lanes
        # what differs between regions of a function, in one number: rows of each register; steps and lanes; how the registers are used
        layout = (len(region.tiles) << 6 | len(region.left) << 3 | len(region.right)) << 10 | shape.steps << 5 | shape.lanes
        slots = _slots(fn)
        known_rows, parts = layout << 40, []
        for register, count in enumerate(rows[:first_right]):
            if type(count) is int:
                known_rows |= count << 5 * register
            else:
                parts.append(fn.op(f"shl i64 {count}, {5 * register}"))
        key: Operand = known_rows
        for part in parts:
            key = fn.op(f"or i64 {part}, {key}")
        known = fn.op(f"icmp eq i64 {fn.op(f'load i64, ptr {slots.key}, align 8')}, {key}")
        set_, ready = fn.label("shapes"), fn.label("shaped")
        fn.branch(known, ready, set_)
        fn.start(set_)
        mark = self.em.mark()
        fn.do(f"store <64 x i8> zeroinitializer, ptr {slots.shapes}, align 64")
        fn.do(f"store i8 1, ptr {slots.shapes}, align 64")
        widths = ", ".join(f"i16 {n}" for n in bytes_)
        fn.do(f"store <8 x i16> <{widths}>, ptr {fn.op(f'getelementptr i8, ptr {slots.shapes}, i64 16')}, align 16")
        for register, value in enumerate(rows):
            if value != 0:
                byte = value if type(value) is int else fn.op(f"trunc i64 {value} to i8")
                fn.do(f"store i8 {byte}, ptr {fn.op(f'getelementptr i8, ptr {slots.shapes}, i64 {48 + register}')}, align 1")
        self._do("ldtilecfg", f"ptr {slots.shapes}")
        fn.do(f"store i64 {key}, ptr {slots.key}, align 8")
        self.em.leave(mark)
        fn.jump(ready)
        fn.start(ready)

    # Statements

    def _stmt(self, stmt: Stmt) -> None:
        em = self.em
        match stmt:
            case Seq(stmts):
                for child in stmts:
                    self._stmt(child)
            case For() if stmt in self.region.nests:
                self._nest(self.region.nests[stmt])
            case For(variable, extent, body, "unrolled"):
                for index in range(int(extent.value)):
                    mark = em.mark()
                    em.level += 1
                    em.bind(variable, index)
                    self.env[variable] = index
                    self._stmt(body)
                    del self.env[variable]
                    em.leave_level(mark)
                    em.level -= 1
            case For(_, extent, body, _):
                self.loaded.clear()  # as they are after another iteration, or none
                self.loop(stmt, em.scalar(extent), lambda: self._stmt(body))
                self.loaded.clear()
            case _:
                self.emit(stmt)

    def _nest(self, nest: _Nest) -> None:
        em, region = self.em, self.region
        place = _constant(em, nest.sums, self.env)
        assert place is not None
        register = region.tiles[place][0]
        if nest.left is None or nest.right is None or nest.instruction is None:
            self._do("tilezero", f"i8 {register}")
            return
        number, rows = region.left[_key(nest.left, nest, self.env)]
        left = len(region.tiles) + number
        right = len(region.tiles) + len(region.left) + region.right[_key(nest.right, nest, self.env)]
        self._load(left, nest.left, em.scalar(rows))
        self._load(right, nest.right, nest.steps)
        self._do(nest.instruction.name, f"i8 {register}, i8 {left}, i8 {right}")

    def _load(self, register: int, operand: _Operand, rows: Operand) -> None:
        em, fn = self.em, self.em.fn
        pointer = memory.address(em, operand.buffer, list(operand.terms), operand.constant)
        if self.loaded.get(register) == pointer:
            return
        self.loaded[register] = pointer
        if type(rows) is not int:
            some = fn.op(f"icmp sgt i64 {rows}, 0")
            pointer = fn.op(f"select i1 {some}, ptr {pointer}, ptr {memory.zeros(em)}")
        self._do("tileloadd64", f"i8 {register}, ptr {pointer}, i64 {operand.stride * operand.buffer.dtype.bytes}")


@dataclass(slots=True)
class _Slots:
    """Stack slots of a function: for the shapes of the registers, and for what was set last. used: whether the function has a region."""

    shapes: str
    key: str
    used: bool = False


def _slots(fn: Function) -> _Slots:
    if fn.tiles is None:
        slots = _Slots(fn.alloca("[64 x i8], align 64"), fn.alloca("i64, align 8"))
        fn.at_entry(f"store i64 0, ptr {slots.key}, align 8")
        fn.tiles = slots
        return slots
    found: _Slots = fn.tiles
    return found


def forget_shapes(em: ExprEmitter) -> None:
    """After a call of a function that may set shapes of its own, and releases the registers at its end."""
    if em.style.tiles:
        em.fn.do(f"store i64 0, ptr {_slots(em.fn).key}, align 8")


def release(fn: Function) -> None:
    """At the end of a function: registers that are in use slow down what the system does between threads."""
    if fn.tiles is not None and fn.tiles.used:
        fn.module.declare("declare void @llvm.x86.tilerelease()")
        fn.do("call void @llvm.x86.tilerelease()")


def emit_region(
    em: ExprEmitter, region: Region, emit: Callable[[Stmt], None], loop: Callable[[For, Operand, Callable[[], None]], None]
) -> None:
    """The code of a region. `emit`: what to do with prefetches; `loop`: a serial loop of so many iterations around what is given."""
    _Emitter(em, region, emit, loop).run()
