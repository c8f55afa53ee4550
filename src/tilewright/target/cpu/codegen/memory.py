"""Addresses, loads and stores.

An address is built outermost loop first, one pointer per loop level, with the constant part last: what a loop does not change is then
outside of it or easily hoisted, neighbouring accesses share their pointer, and constants become displacements. The pointers carry no
`inbounds`, because those of lanes or selects that are off may be anywhere.

Vector accesses, by how the element number depends on the lane: equal in all lanes: one scalar; stride 1: one vector; small constant
strides: a few overlapping vectors and shuffles; anything else: gather and scatter. Lanes that are off touch no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.kernel.nodes import Buffer, Prefetch
from tilewright.target.cpu.codegen import arithmetic
from tilewright.target.cpu.codegen.conversions import from_memory, mangled, to_memory
from tilewright.target.cpu.codegen.llvm_types import memory_type, shuffle_mask, splat_constant, vector
from tilewright.target.cpu.codegen.text import Operand

if TYPE_CHECKING:
    from tilewright.target.cpu.codegen.expressions import ExprEmitter

Terms = list[tuple[Expr, int]]
MAX_SHUFFLED_STRIDE = 4
SAFE_BYTES = 1024  # at least the bytes of the widest vector that is loaded at once


def total(em: ExprEmitter, terms: Terms, constant: int) -> Operand:
    """The int64 sum of terms that are equal in all lanes."""
    result: Operand = 0
    for term, coefficient in terms:
        value = (
            arithmetic.binary(em.fn, Op.MUL, dtypes.int64, em.scalar(term), coefficient, 0, indexing=True)
            if coefficient != 1
            else em.scalar(term)
        )
        if type(value) is int:
            constant += value
        else:
            result = value if result == 0 else em.fn.op(f"add nsw i64 {result}, {value}")
    if type(result) is int:
        return constant
    return result if constant == 0 else em.fn.op(f"add nsw i64 {result}, {constant}")


def address(em: ExprEmitter, buffer: Buffer, terms: Terms, constant: int) -> str:
    """The pointer to the element whose number is the sum."""
    element = memory_type(buffer.dtype)
    pointer = em.pointers[buffer]
    levels: dict[int, Terms] = {}
    for term, coefficient in terms:
        known = em.value_of(term)
        if type(known) is int:
            constant += known * coefficient
        else:
            levels.setdefault(em.depth(term), []).append((term, coefficient))
    for level in sorted(levels):
        # Of addresses with products of sizes LLVM's strength reduction makes every sum there is: seconds for a tile of rows.
        products = any(term.op is Op.MUL for term, _ in levels[level])
        pointer = em.shared_pointer(pointer, element, levels[level], 0, opaque=products)
    return em.shared_pointer(pointer, element, [], constant) if constant else pointer


def prefetch(em: ExprEmitter, stmt: Prefetch) -> None:
    """Ask for a cache line, into the second level: lines asked for far ahead must not drive out of the first what is in use. Where each
    lane would ask for another one, none is asked for: it is a hint."""
    if em.varies(stmt.offset):
        return
    fn = em.fn
    fn.module.declare("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    terms, constant = em.facts.flat(stmt.offset)
    fn.do(f"call void @llvm.prefetch.p0(ptr {address(em, stmt.buffer, list(terms), constant)}, i32 0, i32 2, i32 1)")


def load_scalar(em: ExprEmitter, e: Expr) -> Operand:
    """The element, the same for all lanes."""
    return from_memory(em.fn, raw_scalar(em, e), e.attr.dtype, 0, em.style.native_floats)


def raw_scalar(em: ExprEmitter, e: Expr) -> str:
    """What `load_scalar` gives, as it stands in memory."""
    buffer: Buffer = e.attr
    terms, constant = em.offset(buffer, e.args)
    pointer = _guarded(em, buffer, list(terms), constant, 1)
    return em.fn.op(f"load {memory_type(buffer.dtype)}, ptr {pointer}, align {buffer.dtype.bytes}")


def load_vector(em: ExprEmitter, e: Expr) -> Operand:
    """The elements of the lanes; zero bits in the lanes that are off, except from local buffers."""
    return from_memory(em.fn, raw_vector(em, e), e.attr.dtype, em.lanes, em.style.native_floats)


def raw_vector(em: ExprEmitter, e: Expr) -> str:
    """What `load_vector` gives, as it stands in memory."""
    buffer: Buffer = e.attr
    uniform, stride, constant = by_lane(em, buffer, e.args)
    owned = stride is not None and _is_owned(em, buffer, uniform, constant, stride)
    on = None if em.mask is None or owned else _lanes_on(em.mask)
    if on is not None and stride is not None and (2 <= abs(stride) <= MAX_SHUFFLED_STRIDE or stride == -1):
        return _strided(em, buffer, uniform, stride, constant, on)
    if stride is None or (em.mask != em.prefix and stride != 1 and not owned):
        return _gather(em, buffer, _element_pointers(em, buffer, e.args, uniform, stride, constant))
    if stride == 1:
        return _load_contiguous(em, buffer, uniform, constant, owned)
    if (2 <= abs(stride) <= MAX_SHUFFLED_STRIDE and em.prefix is None) or (stride == -1 and em.prefix is None):
        return _strided(em, buffer, uniform, stride, constant, range(em.lanes))
    return _one_by_one(em, buffer, uniform, stride, constant)


def store_scalar(em: ExprEmitter, buffer: Buffer, indices: tuple[Expr, ...], value: Operand) -> None:
    """buffer[indices] = value, once."""
    terms, constant = em.offset(buffer, indices)
    pointer = address(em, buffer, list(terms), constant)
    raw = to_memory(em.fn, value, buffer.dtype, 0, em.style.native_floats)
    em.fn.do(f"store {memory_type(buffer.dtype)} {raw}, ptr {pointer}, align {buffer.dtype.bytes}")


def store_vector(em: ExprEmitter, buffer: Buffer, indices: tuple[Expr, ...], value: Operand) -> None:
    """buffer[indices] = value in the lanes that are on."""
    lanes, fn, dtype = em.lanes, em.fn, buffer.dtype
    uniform, stride, constant = by_lane(em, buffer, indices)
    element, align = memory_type(dtype), dtype.bytes
    type_, mask_type = vector(element, lanes), f"<{lanes} x i1>"
    raw = to_memory(fn, value, dtype, lanes, em.style.native_floats)
    if stride == 1:
        pointer = address(em, buffer, uniform, constant)
        if em.mask is None or _is_owned(em, buffer, uniform, constant, 1):
            _store_owned(em, raw, element, pointer, align)
            return
        only = _only_lane(em.mask)
        if only is not None:
            # Of values that were truncated, LLVM 22's back end for AVX-512 stores all bits of the wide element.
            one = fn.op(f"extractelement {type_} {raw}, i64 {only}")
            fn.do(f"store {element} {one}, ptr {address(em, buffer, uniform, constant + only)}, align {align}")
            return
        name = f"@llvm.masked.store.{mangled(element, lanes)}.p0"
        fn.module.declare(f"declare void {name}({type_}, ptr, i32 immarg, {mask_type})")
        fn.do(f"call void {name}({type_} {raw}, ptr {pointer}, i32 {align}, {mask_type} {em.mask})")
        return
    if stride is not None and em.mask == em.prefix:
        for lane in range(em.active):
            one = fn.op(f"extractelement {type_} {raw}, i64 {lane}")
            fn.do(f"store {element} {one}, ptr {address(em, buffer, uniform, constant + lane * stride)}, align {align}")
        return
    pointers = _element_pointers(em, buffer, indices, uniform, stride, constant)
    name = f"@llvm.masked.scatter.{mangled(element, lanes)}.v{lanes}p0"
    fn.module.declare(f"declare void {name}({type_}, <{lanes} x ptr>, i32 immarg, {mask_type})")
    mask = "splat (i1 true)" if em.mask is None else em.mask
    fn.do(f"call void {name}({type_} {raw}, <{lanes} x ptr> {pointers}, i32 {align}, {mask_type} {mask})")


def lanes_of(mask: Operand) -> list[bool]:
    """Which lanes a constant mask has; nothing for masks that are no constants or have all or no lanes."""
    text = str(mask)
    return [lane == "i1 true" for lane in text.strip("<>").split(", ")] if text.startswith("<") else []


def _lanes_on(mask: Operand) -> range | None:
    """The lanes that a constant mask has, where they are neighbours; else None."""
    lanes = lanes_of(mask)
    if not any(lanes):
        return None
    on = range(lanes.index(True), len(lanes) - lanes[::-1].index(True))
    return on if all(lanes[lane] for lane in on) else None


def _only_lane(mask: Operand) -> int | None:
    """The lane of a constant mask that has one, else None."""
    on = _lanes_on(mask)
    return on.start if on is not None and len(on) == 1 else None


def _load_contiguous(em: ExprEmitter, buffer: Buffer, uniform: Terms, constant: int, owned: bool) -> str:
    fn, lanes, element, align = em.fn, em.lanes, memory_type(buffer.dtype), buffer.dtype.bytes
    if owned or em.mask is None:
        pointer = address(em, buffer, uniform, constant) if owned else _guarded(em, buffer, uniform, constant, lanes, masked=True)
        loaded = fn.op(f"load {vector(element, em.active)}, ptr {pointer}, align {align}")
        return _resized(em, loaded, element, em.active, lanes)
    return _masked_load(em, _guarded(em, buffer, uniform, constant, lanes, masked=True), buffer, str(em.mask))


def _masked_load(em: ExprEmitter, pointer: str, buffer: Buffer, mask: str) -> str:
    fn, lanes, element, align = em.fn, em.lanes, memory_type(buffer.dtype), buffer.dtype.bytes
    type_ = vector(element, lanes)
    name = f"@llvm.masked.load.{mangled(element, lanes)}.p0"
    fn.module.declare(f"declare {type_} {name}(ptr, i32 immarg, <{lanes} x i1>, {type_})")
    loaded = fn.op(f"call {type_} {name}(ptr {pointer}, i32 {align}, <{lanes} x i1> {mask}, {type_} zeroinitializer)")
    return _kept_apart(em, loaded, element, align * 8) if em.style.masks else loaded


def _kept_apart(em: ExprEmitter, loaded: str, element: str, bits: int) -> str:
    """A masked load that LLVM 22 does not fold into an instruction under the same mask: with AVX-512 it may unfold that again to a load of
    all lanes, past the end of the buffer. The fence is no instruction."""
    fn, lanes = em.fn, em.lanes
    fenced = element if element in ("float", "double") else "float"
    count = lanes if fenced == element else lanes * bits // 32
    if count == 0:
        return loaded
    own, other = vector(element, lanes), vector(fenced, count)
    value = loaded if own == other else fn.op(f"bitcast {own} {loaded} to {other}")
    name = f"@llvm.arithmetic.fence.{mangled(fenced, count)}"
    fn.module.declare(f"declare {other} {name}({other})")
    value = fn.op(f"call {other} {name}({other} {value})")
    return value if own == other else fn.op(f"bitcast {other} {value} to {own}")


def _store_owned(em: ExprEmitter, raw: Operand, element: str, pointer: str, align: int) -> None:
    """A store to memory of this task alone, whose lanes that are off may be read and written back: plain accesses, unlike those under a
    mask, let LLVM keep the buffer in registers."""
    fn, active = em.fn, em.active
    type_ = vector(element, active)
    value = _resized(em, str(raw), element, em.lanes, active)
    if em.mask != em.prefix:
        mask = _resized(em, str(em.mask), "i1", em.lanes, active)
        before = fn.op(f"load {type_}, ptr {pointer}, align {align}")
        value = fn.op(f"select <{active} x i1> {mask}, {type_} {value}, {type_} {before}")
    fn.do(f"store {type_} {value}, ptr {pointer}, align {align}")


def _resized(em: ExprEmitter, value: str, element: str, lanes: int, wanted: int) -> str:
    """The first lanes of a vector, or the vector with undefined lanes added."""
    if lanes == wanted:
        return value
    type_ = vector(element, lanes)
    mask = shuffle_mask(tuple(min(lane, lanes) for lane in range(wanted)))
    return em.fn.op(f"shufflevector {type_} {value}, {type_} poison, {mask}")


def is_local(buffer: Buffer) -> bool:
    return buffer.scope == "local"


def by_lane(em: ExprEmitter, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Terms, int | None, int]:
    """The terms that are equal in all lanes, the stride from lane to lane (None: not constant), the constant of lane 0."""
    terms, constant = em.offset(buffer, indices)
    stride: int | None = 0
    uniform: Terms = []
    for term, coefficient in terms:
        if term is em.axis:
            stride = None if stride is None else stride + coefficient
            constant += coefficient * em.first
        elif em.varies(term):
            stride = None
        else:
            uniform.append((term, coefficient))
    return uniform, stride, constant


def _is_owned(em: ExprEmitter, buffer: Buffer, uniform: Terms, constant: int, stride: int) -> bool:
    """Whether the active lanes are at constant places inside a local buffer, where an access more does no harm."""
    if not is_local(buffer):
        return False
    for term, coefficient in uniform:
        known = em.value_of(term)
        if type(known) is not int:
            return False
        constant += known * coefficient
    last = constant + stride * (max(em.active, 1) - 1)
    count = 1
    for dim in buffer.shape:
        count *= dim.attr
    return min(constant, last) >= 0 and max(constant, last) < count


def _guarded(em: ExprEmitter, buffer: Buffer, uniform: Terms, constant: int, lanes: int, masked: bool = False) -> str:
    """The pointer to the elements, or where the code does not count one to zeros. lanes: how many are loaded from there. masked: the
    access itself leaves out the lanes that are off."""
    pointer, guard = address(em, buffer, uniform, constant), em.guard
    needs_mask = em.mask != em.prefix and not masked
    if (guard is None and not needs_mask) or _is_owned(em, buffer, uniform, constant, 0 if lanes == 1 else 1):
        return pointer
    if needs_mask:
        bits = em.fn.op(f"bitcast <{em.lanes} x i1> {em.mask} to i{em.lanes}")
        some = em.fn.op(f"icmp ne i{em.lanes} {bits}, 0")
        guard = some if guard is None else em.fn.op(f"and i1 {guard}, {some}")
    return em.fn.op(f"select i1 {guard}, ptr {pointer}, ptr {zeros(em)}")


def is_zeroed_when_off(em: ExprEmitter, e: Expr) -> bool:
    """Whether the load `e` under a guard gives zero where the guard is false."""
    return e.op is Op.LOAD and not is_local(e.attr) and e.dtype is not dtypes.float8e8m0


def zeros(em: ExprEmitter) -> str:
    """The address of SAFE_BYTES zeros."""
    return em.fn.module.constant("tw.zeros", f"private unnamed_addr constant [{SAFE_BYTES} x i8] zeroinitializer, align 64")


def _strided(em: ExprEmitter, buffer: Buffer, uniform: Terms, stride: int, constant: int, on: range) -> str:
    """Every `stride`-th element in the lanes `on`, zero in the others, from vectors that lie inside the span of the elements."""
    fn, lanes, element = em.fn, em.lanes, memory_type(buffer.dtype)
    type_, step = vector(element, lanes), abs(stride)
    start = constant + stride * (on.start if stride > 0 else on.stop - 1)
    span = step * (len(on) - 1) + 1
    # The vector `part` begins at part * lanes, the last one so that it ends at the last element.
    parts = [max(min(part * lanes, span - lanes), 0) for part in range(-(-span // lanes))]
    loaded = [_first_elements(em, _guarded(em, buffer, uniform, start + part, lanes, masked=True), buffer, span) for part in parts]
    where = []
    for lane in range(lanes):
        number = (lane - on.start if stride > 0 else on.stop - 1 - lane) * step if lane in on else 0
        part = min(number // lanes, len(parts) - 1)
        where.append((part, number - parts[part]))
    result = _pick(em, type_, loaded[0], loaded[1] if len(loaded) > 1 else "poison", [n if p == 0 else lanes + n for p, n in where])
    for part in range(2, len(loaded)):
        result = _pick(em, type_, result, loaded[part], [lanes + n if p == part else lane for lane, (p, n) in enumerate(where)])
    if len(on) == lanes:
        return result
    return fn.op(f"select <{lanes} x i1> {em.mask}, {type_} {result}, {type_} zeroinitializer")


def _first_elements(em: ExprEmitter, pointer: str, buffer: Buffer, count: int) -> str:
    """A vector from `pointer` of which only the first `count` elements are there, where that is less than all."""
    lanes, element, align = em.lanes, memory_type(buffer.dtype), buffer.dtype.bytes
    if count >= lanes:
        return em.fn.op(f"load {vector(element, lanes)}, ptr {pointer}, align {align}")
    if em.style.masks:
        return _masked_load(
            em, pointer, buffer, "<" + ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes)) + ">"
        )
    return _resized(em, em.fn.op(f"load {vector(element, count)}, ptr {pointer}, align {align}"), element, count, lanes)


def _one_by_one(em: ExprEmitter, buffer: Buffer, uniform: Terms, stride: int, constant: int) -> str:
    """Elements far apart, at constant distances: loads and inserts, which are no slower than a gather and let local buffers be promoted."""
    element = memory_type(buffer.dtype)
    type_ = vector(element, em.lanes)
    result = "poison"
    for lane in range(em.active):
        pointer = _guarded(em, buffer, uniform, constant + lane * stride, 1)
        one = em.fn.op(f"load {element}, ptr {pointer}, align {buffer.dtype.bytes}")
        result = em.fn.op(f"insertelement {type_} {result}, {element} {one}, i64 {lane}")
    return result


def _pick(em: ExprEmitter, type_: str, a: str, b: str, indices: list[int]) -> str:
    wanted = tuple(index if 0 <= index < 2 * em.lanes else 0 for index in indices)
    return em.fn.op(f"shufflevector {type_} {a}, {type_} {b}, {shuffle_mask(wanted)}")


def _element_pointers(em: ExprEmitter, buffer: Buffer, indices: tuple[Expr, ...], uniform: Terms, stride: int | None, constant: int) -> str:
    """A vector of pointers, one per lane."""
    fn, lanes = em.fn, em.lanes
    base = address(em, buffer, uniform, 0 if stride is None else constant)
    wide = vector("i64", lanes)
    if stride is not None:
        offsets: Operand = "<" + ", ".join(f"i64 {lane * stride}" for lane in range(lanes)) + ">"
    else:
        terms, number = em.offset(buffer, indices)
        offsets = splat_constant(number, "i64", lanes)
        for term, coefficient in terms:
            if em.varies(term):
                value = em.vector(term)
                if coefficient != 1:
                    value = fn.op(f"mul nsw {wide} {value}, {splat_constant(coefficient, 'i64', lanes)}")
                offsets = value if offsets == "zeroinitializer" else fn.op(f"add nsw {wide} {offsets}, {value}")
    return fn.op(f"getelementptr {memory_type(buffer.dtype)}, ptr {base}, {wide} {offsets}")


def _gather(em: ExprEmitter, buffer: Buffer, pointers: str) -> str:
    fn, lanes, element = em.fn, em.lanes, memory_type(buffer.dtype)
    type_, pointer_type, mask_type = vector(element, lanes), f"<{lanes} x ptr>", f"<{lanes} x i1>"
    mask: Operand = "splat (i1 true)" if em.mask is None else em.mask
    if em.guard is not None:
        mask_of_guard = em.splat(em.guard, "i1")
        mask = mask_of_guard if em.mask is None else em.both(em.mask, mask_of_guard)
    if buffer.dtype.bytes >= 4:
        name = f"@llvm.masked.gather.{mangled(element, lanes)}.v{lanes}p0"
        fn.module.declare(f"declare {type_} {name}({pointer_type}, i32 immarg, {mask_type}, {type_})")
        return fn.op(
            f"call {type_} {name}({pointer_type} {pointers}, i32 {buffer.dtype.bytes}, {mask_type} {mask}, {type_} zeroinitializer)"
        )
    if mask != "splat (i1 true)":
        pointers = fn.op(f"select {mask_type} {mask}, {pointer_type} {pointers}, {pointer_type} {splat_constant(zeros(em), 'ptr', lanes)}")
    result: Operand = "poison"
    for lane in range(lanes):
        pointer = fn.op(f"extractelement {pointer_type} {pointers}, i64 {lane}")
        one = fn.op(f"load {element}, ptr {pointer}, align {buffer.dtype.bytes}")
        result = fn.op(f"insertelement {type_} {result}, {element} {one}, i64 {lane}")
    return str(result)
