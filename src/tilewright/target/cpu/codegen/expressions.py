"""Expressions to instructions: `scalar(e)` for values that are equal in all lanes, `vector(e)` for values that differ by lane.

The emitter keeps what it has emitted by expression, so that shared parts are computed once. Entries live in nested scopes (a loop body,
a branch), since an instruction may be used only where its block dominates; entries that were loaded die when their buffer is stored to.
Index arithmetic between constants is done here, not emitted.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.nodes import Buffer
from tilewright.support.errors import InternalError
from tilewright.target.cpu.codegen import arithmetic, memory
from tilewright.target.cpu.codegen.conversions import convert, from_memory, rounded_integer, to_memory
from tilewright.target.cpu.codegen.dot import emit_dot, is_dot_call
from tilewright.target.cpu.codegen.facts import Facts, Terms
from tilewright.target.cpu.codegen.llvm_types import is_narrow_float, lane_numbers, memory_type, number, splat_constant, value_type, vector
from tilewright.target.cpu.codegen.narrow_floats import round_to
from tilewright.target.cpu.codegen.selects import ALL_LANES, NO_LANES, compare_lanes, emit_select, some_lanes
from tilewright.target.cpu.codegen.style import Style
from tilewright.target.cpu.codegen.text import Function, Operand

_ZERO = const(0)
_EXACT = frozenset({Op.MIN, Op.MAX, Op.SELECT, Op.LOAD, Op.CONST, Op.VAR, Op.CAST, Op.BITCAST})
_EXACT_CALLS = frozenset({"abs", "floor", "ceil", "round", "trunc", "copysign", "may_flush"})
_DIVISIONS = frozenset({Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD})


class ExprEmitter:
    """Emits expressions into `fn`. Bind variables with `bind` and buffers in `pointers` first.

    In a vectorised loop `axis` is its variable and `lanes` their number (else None and 0), `first` the value of lane 0. Only the first
    `active` lanes belong to the loop, which `prefix` says as a mask (None: all); `mask` are the lanes that are on (None: all), and `guard`
    says whether the code that is being emitted counts at all (None: yes): loads that are off touch no memory of their buffer.
    """

    __slots__ = (
        "_depth", "_depths", "_log", "_pointers", "_reading", "_scalars", "_tables", "_varying", "_vectors",
        "active", "axis", "facts", "first", "fn", "guard", "lanes", "level", "mask", "nonnegative_vars", "per_task", "pointers", "prefix",
        "style",
    )  # fmt: skip

    def __init__(self, fn: Function, style: Style, facts: Facts) -> None:
        self.fn, self.style, self.facts = fn, style, facts
        self.pointers: dict[Buffer, str] = {}
        self.per_task: frozenset[Buffer] = frozenset()
        self.axis: Expr | None = None
        self.lanes, self.active, self.first, self.level = 0, 0, 0, 0
        self.mask: Operand | None = None
        self.prefix: Operand | None = None
        self.guard: Operand | None = None
        self.nonnegative_vars: set[Expr] = set()
        self._scalars: dict[Expr, Operand] = {}
        self._tables: dict[int, dict[Expr, Operand]] = {}  # values by lane, for each number of lanes
        self._vectors: dict[Expr, Operand] = {}
        self._varying: dict[Expr, bool] = {}
        self._depth: dict[Expr, int] = {}
        self._depths: dict[Expr, int] = {}
        self._pointers: dict[Any, str] = {}
        self._log = fn.log
        self._reading: dict[Buffer, list[Expr]] = {}

    # Scopes

    def bind(self, variable: Expr, value: Operand, *, nonnegative: bool = False) -> None:
        """Gives a variable its value in the current scope."""
        self._scalars[variable] = value
        self._log.append((self._scalars, variable))
        self._place(variable)
        if nonnegative:
            self.nonnegative_vars.add(variable)

    def bind_varying(self, variable: Expr, value: Operand) -> None:
        """Gives a variable a value by lane."""
        self._varying = {e: varies for e, varies in self._varying.items() if e.op is Op.VAR}
        self._varying[variable] = True
        self._place(variable)
        self._vectors[variable] = value
        self._log.append((self._vectors, variable))

    def give(self, e: Expr, value: Operand) -> None:
        """Says what `e` is in each lane, in the current scope."""
        self._varying[e] = True
        self._keep(self._vectors, e, value)

    def keep_scalar(self, e: Expr, value: Operand) -> None:
        """Says what `e`, equal in all lanes, is in the current scope."""
        self._keep(self._scalars, e, value)

    def _place(self, variable: Expr) -> None:
        if self._depth.get(variable, self.level) != self.level:
            self._depths = {}
        self._depth[variable] = self.level

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Terms:
        """The element number of `buffer[indices]` from its pointer. Buffers in `per_task` have a pointer to the part of the task, which all
        of its iterations use in turn, so that it stays in cache."""
        if buffer in self.per_task:
            indices = (_ZERO, *indices[1:])
        return self.facts.offset(buffer, indices)

    def is_known(self, e: Expr) -> bool:
        """Whether the value of `e` has been emitted already where this is used."""
        return e in self._scalars or e in self._vectors

    def value_of(self, variable: Expr) -> Operand | None:
        return self._scalars.get(variable)

    def mark(self) -> int:
        """The beginning of a scope; see `leave`."""
        return len(self._log)

    def leave(self, mark: int) -> None:
        """Forgets everything emitted or bound since `mark`: what follows may be reached on another way."""
        log = self._log
        while len(log) > mark:
            table, key = log.pop()
            table.pop(key, None)

    def leave_mask(self, mark: int) -> None:
        """Forgets what was loaded since `mark`, in lanes that a mask or a guard had left on; for scopes without a block of their own."""
        kept = []
        for entry in self._log[mark:]:
            table, key = entry
            if table is self._pointers or table is self.fn.values or not self.facts.reads(key):
                kept.append(entry)
            else:
                table.pop(key, None)
        self._log[mark:] = kept

    def leave_level(self, mark: int) -> None:
        """Forgets what depends on a variable bound since `mark` at the current level or deeper; for scopes without a block of their own."""
        kept = []
        for entry in self._log[mark:]:
            table, key = entry
            if table is self.fn.values or (
                all(self.depth(term) < self.level for term, _ in key[3:]) if table is self._pointers else self.depth(key) < self.level
            ):
                kept.append(entry)
            else:
                table.pop(key, None)
        self._log[mark:] = kept

    def forget(self, buffers: frozenset[Buffer]) -> None:
        """Forgets the values that were loaded from `buffers`, which change."""
        for buffer in buffers:
            for e in self._reading.pop(buffer, ()):
                self._scalars.pop(e, None)
                for table in self._tables.values():
                    table.pop(e, None)

    def enter_lanes(self, axis: Expr, first: int, lanes: int, active: int) -> None:
        """Begins a piece of a vectorised loop: `active` iterations from `first` on, in so many lanes."""
        self.axis, self.first, self.lanes, self.active = axis, first, lanes, active
        self.prefix = None if active == lanes else some_lanes([lane < active for lane in range(lanes)])
        self.mask = self.prefix
        self._varying = {axis: True}
        self._place(axis)
        self._vectors = self._tables.setdefault(lanes, {})
        self._vectors[axis] = lane_numbers("i64", lanes, first)
        self._log.append((self._vectors, axis))

    def leave_lanes(self) -> None:
        self.axis, self.first, self.lanes, self.active, self._varying = None, 0, 0, 0, {}
        self.mask = self.prefix = None

    # Analyses that depend on the place

    def varies(self, e: Expr) -> bool:
        """Whether `e` differs between the lanes."""
        if not self.lanes:
            return False
        found = self._varying.get(e)
        if found is None:
            found = False
            for a in e.args:
                if self.varies(a):
                    found = True
                    break
            self._varying[e] = found
        return found

    def depth(self, e: Expr) -> int:
        """How deep the innermost of the variables in `e` is bound."""
        found = self._depths.get(e)
        if found is None:
            found = self._depth.get(e, 0) if e.op is Op.VAR else max([self.depth(a) for a in e.args], default=0)
            self._depths[e] = found
        return found

    def nonnegative(self, e: Expr) -> bool:
        """Whether the integer `e` is known not to be negative, cheaply."""
        op = e.op
        if op is Op.CONST:
            return bool(e.attr >= 0)
        if op is Op.VAR:
            return e in self.nonnegative_vars or (e.attr.lo is not None and e.attr.lo >= 0)
        if op in (Op.ADD, Op.MUL, Op.MIN, Op.FLOORDIV):
            return self.nonnegative(e.args[0]) and self.nonnegative(e.args[1])
        if op is Op.MAX:
            return self.nonnegative(e.args[0]) or self.nonnegative(e.args[1])
        if op is Op.FLOORMOD:
            return self.nonnegative(e.args[1])
        return op is Op.SELECT and self.nonnegative(e.args[1]) and self.nonnegative(e.args[2])

    # Emission

    def scalar(self, e: Expr) -> Operand:
        """The value of `e`, equal in all lanes."""
        found = self._scalars.get(e)
        if found is not None:
            return found
        op = e.op
        if op is Op.CONST:
            return number(e.attr, e.dtype)
        if op is Op.VAR:
            raise InternalError(f"the variable {e.name} has no value where it is used", hint="a pass moved an expression out of its loop")
        if op is Op.LOAD:
            value = memory.load_scalar(self, e)
        elif op is Op.SELECT:
            value = emit_select(self, e, 0)
        elif is_dot_call(e):
            value = emit_dot(self, e)
        else:
            value = self._apply(e, [self.scalar(a) for a in e.args], 0)
        self._keep(self._scalars, e, value)
        return value

    def vector(self, e: Expr) -> Operand:
        """The value of `e` in each lane."""
        found = self._vectors.get(e)
        if found is not None:
            return found
        if not self.varies(e):
            value = self.splat(self.scalar(e), value_type(e.dtype))
        elif e.op is Op.LOAD:
            value = memory.load_vector(self, e)
        elif e.op is Op.SELECT:
            value = emit_select(self, e, self.lanes)
        elif e.op in (Op.LT, Op.LE) and e.args[0].dtype is dtypes.int64 and (compared := compare_lanes(self, e)) is not None:
            value = compared
        elif is_dot_call(e):
            value = emit_dot(self, e)
        else:
            value = self._apply(e, [self.vector(a) for a in e.args], self.lanes)
        self._keep(self._vectors, e, value)
        return value

    def splat(self, value: Operand, type_: str) -> Operand:
        """The scalar in every lane."""
        if type(value) is int or not str(value).startswith("%"):
            return splat_constant(value, type_, self.lanes)
        wide = vector(type_, self.lanes)
        one = self.fn.op(f"insertelement {wide} poison, {type_} {value}, i64 0")
        return self.fn.op(f"shufflevector {wide} {one}, {wide} poison, <{self.lanes} x i32> zeroinitializer")

    def condition(self, e: Expr) -> Operand:
        """A mask that varies, with the lanes that are off already left out."""
        mask = self.vector(e)
        return mask if self.mask is None else self.both(self.mask, mask)

    def both(self, a: Operand, b: Operand) -> Operand:
        """The mask of the lanes that two masks have in common, a constant where both are."""
        if a == ALL_LANES:
            return b
        if b == ALL_LANES or a == b:
            return a
        if NO_LANES in (a, b):
            return NO_LANES
        known = memory.lanes_of(a), memory.lanes_of(b)
        if known[0] and known[1]:
            return some_lanes([x and y for x, y in zip(*known, strict=True)])
        return self.fn.op(f"and <{self.lanes} x i1> {a}, {b}")

    def _keep(self, table: dict[Expr, Operand], e: Expr, value: Operand) -> None:
        table[e] = value
        self._log.append((table, e))
        for buffer in self.facts.reads(e):
            self._reading.setdefault(buffer, []).append(e)

    def _apply(self, e: Expr, args: list[Operand], lanes: int) -> Operand:
        op, fn, dtype = e.op, self.fn, e.args[0].dtype
        if op is Op.CAST:
            inner = e.args[0]
            is_rounded = inner.op is Op.CALL and inner.attr == "round" and dtype is dtypes.float32 and e.dtype.bits <= 32
            if is_rounded and _is_clamped(inner.args[0], e):
                return rounded_integer(fn, (self.vector if lanes else self.scalar)(inner.args[0]), e.dtype, lanes)
            flushes = inner.op is Op.CALL and inner.attr == "may_flush"
            native = self.style.native_floats | self.style.flushed_floats if flushes else self.style.native_floats
            return convert(fn, args[0], dtype, e.dtype, lanes, native, _is_clamped(inner, e))
        if op is Op.BITCAST:
            return self._bitcast(e, args[0], lanes)
        if op is Op.NOT:
            type_ = vector(value_type(dtype), lanes)
            return fn.op(f"xor {type_} {args[0]}, {arithmetic.constant(True if dtype.kind == 'bool' else -1, dtype, lanes)}")
        if op is Op.CALL:
            value = arithmetic.call(fn, e, args, lanes, native_fma=self.style.native_fma, rough_reciprocal=self.style.rough_reciprocal)
        elif op is Op.AND and dtype is dtypes.bool_ and lanes:
            value = self.both(args[0], args[1])
        elif op in _DIVISIONS and dtype is dtypes.int64 and not (type(args[0]) is int and type(args[1]) is int):
            value = self._divide(e, args, lanes)
        else:
            value = arithmetic.binary(
                fn, op, dtype, args[0], args[1], lanes, indexing=not self.facts.reads(e), native_max=self.style.native_max
            )
        if is_narrow_float(e.dtype) and op not in _EXACT and not (op is Op.CALL and e.attr in _EXACT_CALLS):
            value = round_to(fn, value, e.dtype, lanes, self.style.native_floats)
        return value

    def _divide(self, e: Expr, args: list[Operand], lanes: int) -> Operand:
        a, b = e.args
        nonnegative = self.nonnegative(a)
        if nonnegative and e.op in (Op.TRUNCDIV, Op.TRUNCMOD) and b.op is Op.CONST and b.attr > 0:
            op = Op.FLOORDIV if e.op is Op.TRUNCDIV else Op.FLOORMOD
            return arithmetic.divide_known(self.fn, op, args[0], b.attr, lanes, nonnegative=True)
        if e.op in (Op.FLOORDIV, Op.FLOORMOD):
            if b.op is Op.CONST and b.attr > 0:
                return arithmetic.divide_known(self.fn, e.op, args[0], b.attr, lanes, nonnegative=nonnegative)
            if nonnegative and is_positive(b):
                return self.fn.op(f"{'udiv' if e.op is Op.FLOORDIV else 'urem'} {vector('i64', lanes)} {args[0]}, {args[1]}")
        return arithmetic.binary(self.fn, e.op, dtypes.int64, args[0], args[1], lanes)

    def _bitcast(self, e: Expr, value: Operand, lanes: int) -> Operand:
        source, target = e.args[0].dtype, e.dtype
        bits = to_memory(self.fn, value, source, lanes, self.style.native_floats)
        source_type, target_type = vector(memory_type(source), lanes), vector(memory_type(target), lanes)
        if source_type != target_type:
            bits = self.fn.op(f"bitcast {source_type} {bits} to {target_type}")
        return from_memory(self.fn, bits, target, lanes, self.style.native_floats)

    def shared_pointer(self, base: str, element: str, terms: list[tuple[Expr, int]], constant: int, opaque: bool = False) -> str:
        """The pointer `terms` and `constant` elements past `base`, emitted once per scope. opaque: LLVM does not look into the sum."""
        key = (base, element, constant, *terms)
        found = self._pointers.get(key)
        if found is None:
            offset = memory.total(self, terms, constant)
            found = base if offset == 0 else self.fn.op(f"getelementptr {element}, ptr {base}, i64 {offset}")
            if opaque:
                found = self.fn.op(f"freeze ptr {found}")
            self._pointers[key] = found
            self._log.append((self._pointers, key))
        return found


def _is_clamped(e: Expr, cast: Expr) -> bool:
    """Whether a float is bounded by constants inside the range of the integer dtype of `cast`."""
    if not (e.dtype.is_float and cast.dtype.is_integer) or e.op not in (Op.MIN, Op.MAX):
        return False
    bounds: dict[Op, float] = {}
    inner: Expr = e
    while inner.op in (Op.MIN, Op.MAX) and inner.args[1].op is Op.CONST:
        bounds.setdefault(inner.op, inner.args[1].attr)
        inner = inner.args[0]
    if len(bounds) < 2:
        return False
    return bool(cast.dtype.lowest <= bounds[Op.MAX] <= bounds[Op.MIN] <= cast.dtype.highest)


def is_positive(e: Expr) -> bool:
    """Whether the integer `e` is known to be positive, cheaply."""
    if e.op is Op.CONST:
        return bool(e.attr > 0)
    if e.op is Op.VAR:
        return e.attr.lo is not None and e.attr.lo > 0
    if e.op is Op.MAX:
        return is_positive(e.args[0]) or is_positive(e.args[1])
    return e.op is Op.MUL and is_positive(e.args[0]) and is_positive(e.args[1])
