"""Selects and comparisons of lanes: masks, what may be loaded under them, and branches where a side is costly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.target.cpu.codegen import arithmetic, memory
from tilewright.target.cpu.codegen.llvm_types import lane_numbers, value_type, vector
from tilewright.target.cpu.codegen.text import Operand

if TYPE_CHECKING:
    from tilewright.target.cpu.codegen.expressions import ExprEmitter

BRANCH_COST = 40  # operations in a side of a scalar select beyond which a branch is cheaper than computing both sides
FARTHEST_LANE = 1 << 30  # multiple of a lane's number that is compared in 32 bits
ALL_LANES = "splat (i1 true)"
NO_LANES = "zeroinitializer"


def some_lanes(on: list[bool]) -> str:
    """The mask constant."""
    if all(on):
        return ALL_LANES
    return "<" + ", ".join(f"i1 {'true' if lane else 'false'}" for lane in on) + ">" if any(on) else NO_LANES


def compare_lanes(em: ExprEmitter, e: Expr) -> Operand | None:
    """A comparison of (a multiple of) the lane's number with a bound that is equal in all lanes, in 32 bits; None where `e` is another."""
    terms, constant = em.facts.difference(*e.args)
    varying = [(t, c) for t, c in terms if em.varies(t)]
    if len(varying) != 1 or varying[0][0] is not em.axis:
        return None
    sign = varying[0][1]
    rest = memory.total(em, [(t, c) for t, c in terms if t is not em.axis], constant + sign * em.first)
    if type(rest) is int:
        return some_lanes([sign * lane + rest < int(e.op is Op.LE) for lane in range(em.lanes)])
    step = abs(sign)
    if step > FARTHEST_LANE // em.lanes:
        return None
    # sign * lane + rest < 0 or <= 0: where sign is positive, step * lane < bound; else step * lane >= bound.
    closed = int(e.op is Op.LE)
    if sign > 0:
        bound = arithmetic.binary(em.fn, Op.SUB, dtypes.int64, closed, rest, 0, indexing=True)
    else:
        bound = rest if closed else arithmetic.binary(em.fn, Op.ADD, dtypes.int64, rest, 1, 0, indexing=True)
    bound = arithmetic.binary(em.fn, Op.MAX, dtypes.int64, bound, 0, 0)
    bound = arithmetic.binary(em.fn, Op.MIN, dtypes.int64, bound, step * em.lanes, 0)
    narrow = em.splat(em.fn.op(f"trunc i64 {bound} to i32"), "i32")
    how = "ult" if sign > 0 else "uge"
    return em.fn.op(f"icmp {how} <{em.lanes} x i32> {lane_numbers('i32', em.lanes, step=step)}, {narrow}")


def emit_select(em: ExprEmitter, e: Expr, lanes: int) -> Operand:
    """The value of a select in `lanes` lanes (0: a scalar), of which a side loads only where it is taken."""
    condition, if_true, if_false = e.args
    emit = em.vector if lanes else em.scalar
    if lanes and em.varies(condition):
        mask = em.vector(condition)
        if mask in (ALL_LANES, NO_LANES):
            return em.vector(if_true if mask == ALL_LANES else if_false)
        zeroed = not em.is_known(if_true) and em.varies(if_true) and memory.is_zeroed_when_off(em, if_true)
        a = _under(em, emit, if_true, mask, None)
        if zeroed and _is_zero(if_false):
            return a
        b = _under(em, emit, if_false, f"xor <{lanes} x i1> {mask}, {ALL_LANES}", None)
        type_ = vector(value_type(e.dtype), lanes)
        return em.fn.op(f"select <{lanes} x i1> {mask}, {type_} {a}, {type_} {b}")
    test = em.scalar(condition)
    if test in ("true", "false"):
        return emit(if_true if test == "true" else if_false)
    type_ = vector(value_type(e.dtype), lanes)
    if em.guard is None and any(em.facts.reads(side) and em.facts.cost(side) > BRANCH_COST for side in (if_true, if_false)):
        return _select_by_branch(em, e, test, type_, lanes)
    zeroed = not em.is_known(if_true) and memory.is_zeroed_when_off(em, if_true)
    a = _under(em, emit, if_true, None, test)
    if zeroed and _is_zero(if_false):
        return a
    b = _under(em, emit, if_false, None, f"xor i1 {test}, true")
    return em.fn.op(f"select i1 {test}, {type_} {a}, {type_} {b}")


def _under(em: ExprEmitter, emit: Callable[[Expr], Operand], e: Expr, mask: Operand | None, guard: Operand | None) -> Operand:
    """`e`, whose loads may touch memory only in the lanes of `mask` (varying) or only when `guard` (scalar). Either is an operand,
    or the text of an instruction that is emitted if it is needed."""
    if not em.facts.reads(e) or em.is_known(e):
        return emit(e)
    before, mark = (em.mask, em.guard), em.mark()
    if mask is not None:
        mask = _operand(em, mask)
        em.mask = mask if em.mask is None else em.both(em.mask, mask)
    if guard is not None:
        guard = _operand(em, guard)
        em.guard = guard if em.guard is None else em.fn.op(f"and i1 {em.guard}, {guard}")
    result = emit(e)
    em.leave_mask(mark)
    em.mask, em.guard = before
    return result


def _operand(em: ExprEmitter, text: Operand) -> Operand:
    return em.fn.op(text) if isinstance(text, str) and text.startswith("xor ") else text


def _select_by_branch(em: ExprEmitter, e: Expr, test: Operand, type_: str, lanes: int) -> Operand:
    fn, emit = em.fn, em.vector if lanes else em.scalar
    taken, other, join = fn.label("then"), fn.label("else"), fn.label("join")
    incoming: list[tuple[Operand, str]] = []
    fn.branch(test, taken, other)
    for label, side in ((taken, e.args[1]), (other, e.args[2])):
        fn.start(label)
        mark = em.mark()
        incoming.append((emit(side), fn.block))
        em.leave(mark)
        fn.jump(join)
    fn.start(join)
    return fn.op(f"phi {type_} " + ", ".join(f"[ {x}, %{label} ]" for x, label in incoming))


def _is_zero(e: Expr) -> bool:
    return e.op is Op.CONST and e.attr == 0
