"""Sums of products of narrow numbers: `dot2` and `dot4` as the machine's instructions, or as widening multiply-adds where it has none.

Factors of an instruction lie side by side: those that are equal in all lanes are one load of 16 or 32 bits, broadcast; those that differ
are one load of all lanes, each lane with its own factors in order. What is not laid out like that is computed factor by factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, cast
from tilewright.ir.scalar_ops import DOTS, Op
from tilewright.target.cpu.codegen import memory
from tilewright.target.cpu.codegen.llvm_types import shuffle_mask, splat_constant, vector
from tilewright.target.cpu.codegen.text import Operand
from tilewright.target.cpu.dots import BFDOT, BYTES, EVEN_ODD, VDPBF16PS, VPDPBUSD, VPDPWSSD, VPMADDWD, WORDS, DotInstruction, takes

if TYPE_CHECKING:
    from tilewright.target.cpu.codegen.expressions import ExprEmitter

Terms = memory.Terms
_VPMADDWD = {128: "llvm.x86.sse2.pmadd.wd", 256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"}


def is_dot_call(e: Expr) -> bool:
    return e.op is Op.CALL and e.attr in DOTS


def emit_dot(em: ExprEmitter, e: Expr) -> Operand:
    """The value of a `dot2` or `dot4`, in all lanes (or the scalar outside of lanes)."""
    total, *factors = e.args
    count = DOTS[e.attr]
    left, right = tuple(factors[:count]), tuple(factors[count:])
    found = _instruction(em, count, left[0].dtype, right[0].dtype) if em.lanes else None
    if found is not None:
        instruction, swapped = found
        rows = (right, left) if swapped else (left, right)
        places = [_place(em, row) for row in rows]
        if places[0] is not None and places[1] is not None:
            if instruction in BYTES:
                a, b = (_factors(em, row, place, row[0].dtype) for row, place in zip(rows, places, strict=True) if place is not None)
                return _even_odd(em, instruction, em.vector(total), (a, rows[0][0].dtype), (b, rows[1][0].dtype))
            a = _factors(em, rows[0], places[0], instruction.left)
            b = _factors(em, rows[1], places[1], instruction.right)
            return _call(em, instruction, em.vector(total), a, b)
    value = total
    for x, y in zip(left, right, strict=True):
        value = value + cast(total.dtype, x) * cast(total.dtype, y)
    return em.vector(value) if em.lanes else em.scalar(value)


def _instruction(em: ExprEmitter, count: int, left: DType, right: DType) -> tuple[DotInstruction, bool] | None:
    bits = em.lanes * 32
    for found in em.style.dots:
        widths = (128, 256, 512) if found in (VPDPBUSD, VDPBF16PS, *BYTES, *WORDS) else (128,)
        if found.factors != count or bits not in widths or bits > em.style.vector_bits:
            continue
        if takes(found, left, right):
            return found, False
        if takes(found, right, left):
            return found, True
    return None


def _place(em: ExprEmitter, row: tuple[Expr, ...]) -> tuple[Terms, int] | None:
    """Where the factors lie, side by side: the address's terms and constant. None where they do not, or not all lanes may load theirs."""
    first = row[0]
    if any(x.op is not Op.LOAD or x.attr is not first.attr or x.dtype.bits != x.dtype.bytes * 8 for x in row):
        return None
    if em.guard is not None or em.mask != em.prefix:
        return None
    at = [memory.by_lane(em, x.attr, x.args) for x in row]
    uniform, stride, constant = at[0]
    if stride not in (0, len(row)) or any(t[0] != uniform or t[1] != stride or t[2] != constant + i for i, t in enumerate(at)):
        return None
    return uniform, constant


def _factors(em: ExprEmitter, row: tuple[Expr, ...], place: tuple[Terms, int], wanted: DType) -> str:
    """The factors of all lanes as one vector of `lanes * factors` numbers."""
    fn, count, lanes = em.fn, len(row), em.lanes
    dtype = row[0].dtype
    pointer = memory.address(em, row[0].attr, *place)
    narrow, wide = f"i{dtype.bits}", f"i{wanted.bits}"
    total = vector(wide, lanes * count)
    if not em.varies(row[0]):
        one = vector(wide, count)
        if narrow == wide:
            value = fn.op(f"load i{dtype.bits * count}, ptr {pointer}, align {dtype.bytes}")
        else:
            loaded = fn.op(f"load {vector(narrow, count)}, ptr {pointer}, align {dtype.bytes}")
            value = fn.op(f"bitcast {one} {_extended(em, loaded, dtype, wanted, count)} to i{wanted.bits * count}")
        word = f"i{wanted.bits * count}"
        return fn.op(f"bitcast {vector(word, lanes)} {em.splat(value, word)} to {total}")
    loaded = fn.op(f"load {vector(narrow, em.active * count)}, ptr {pointer}, align {dtype.bytes}")
    if em.active != lanes:
        mask = shuffle_mask(tuple(min(i, em.active * count) for i in range(lanes * count)))
        type_ = vector(narrow, em.active * count)
        loaded = fn.op(f"shufflevector {type_} {loaded}, {type_} {splat_constant('0', narrow, em.active * count)}, {mask}")
    return loaded if narrow == wide else _extended(em, loaded, dtype, wanted, lanes * count)


def _extended(em: ExprEmitter, value: str, dtype: DType, wanted: DType, count: int) -> str:
    how = "sext" if dtype.kind == "int" else "zext"
    return em.fn.op(f"{how} {vector(f'i{dtype.bits}', count)} {value} to {vector(f'i{wanted.bits}', count)}")


def _call(em: ExprEmitter, instruction: DotInstruction, total: Operand, a: str, b: str) -> str:
    fn, lanes = em.fn, em.lanes
    if instruction.sums is dtypes.float32:
        return _float_call(em, instruction, total, a, b)
    sums, bits = vector("i32", lanes), lanes * 32
    factors = vector(f"i{instruction.left.bits}", lanes * instruction.factors)
    if instruction is VPMADDWD:
        return fn.op(f"add {sums} {total}, {_pairs(em, a, b)}")
    x86 = instruction in (VPDPBUSD, *WORDS)
    name = f"@llvm.x86.avx512.{instruction.name}.{bits}" if x86 else f"@llvm.aarch64.neon.{instruction.name}.v4i32.v16i8"
    fn.module.declare(f"declare {sums} {name}({sums}, {factors}, {factors})")
    return fn.op(f"call {sums} {name}({sums} {total}, {factors} {a}, {factors} {b})")


def _even_odd(em: ExprEmitter, instruction: DotInstruction, total: Operand, a: tuple[str, DType], b: tuple[str, DType]) -> str:
    """`total` and the sums of products of four bytes each: those of the even and those of the odd ones, as pairs of 16 bits."""
    pairs = list(zip(_halves(em, *a), _halves(em, *b), strict=True))
    if instruction is not EVEN_ODD:
        for x, y in pairs:
            total = _call(em, VPDPWSSD, total, x, y)
        return str(total)
    even, odd = (_pairs(em, x, y) for x, y in pairs)
    sums = vector("i32", em.lanes)
    return em.fn.op(f"add {sums} {total}, {em.fn.op(f'add {sums} {even}, {odd}')}")


def _halves(em: ExprEmitter, factors: str, dtype: DType) -> tuple[str, str]:
    """The even and the odd of four bytes a lane, each widened to 16 bits where it stands."""
    fn, lanes = em.fn, em.lanes
    words = vector("i16", 2 * lanes)
    both = fn.op(f"bitcast {vector('i8', 4 * lanes)} {factors} to {words}")
    eight = splat_constant("8", "i16", 2 * lanes)
    if dtype.kind == "int":
        return fn.op(f"ashr {words} {fn.op(f'shl {words} {both}, {eight}')}, {eight}"), fn.op(f"ashr {words} {both}, {eight}")
    return fn.op(f"and {words} {both}, {splat_constant('255', 'i16', 2 * lanes)}"), fn.op(f"lshr {words} {both}, {eight}")


def _pairs(em: ExprEmitter, a: str, b: str) -> str:
    """Products of 16-bit numbers, added up by pairs."""
    fn, lanes = em.fn, em.lanes
    sums, words, name = vector("i32", lanes), vector("i16", 2 * lanes), f"@{_VPMADDWD[lanes * 32]}"
    fn.module.declare(f"declare {sums} {name}({words}, {words})")
    return fn.op(f"call {sums} {name}({words} {a}, {words} {b})")


def _float_call(em: ExprEmitter, instruction: DotInstruction, total: Operand, a: str, b: str) -> str:
    fn, lanes = em.fn, em.lanes
    sums, words, halves = vector("float", lanes), vector("i16", 2 * lanes), vector("bfloat", 2 * lanes)
    name = "@llvm.aarch64.neon.bfdot.v4f32.v8bf16" if instruction is BFDOT else f"@llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}"
    fn.module.declare(f"declare {sums} {name}({sums}, {halves}, {halves})")
    x, y = (fn.op(f"bitcast {words} {factors} to {halves}") for factors in (a, b))
    return fn.op(f"call {sums} {name}({sums} {total}, {halves} {x}, {halves} {y})")
