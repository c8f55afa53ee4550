"""What emission asks of expressions and statements again and again, worked out once per kernel."""

from __future__ import annotations

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, Op, const, mul
from tilewright.kernel.nodes import Buffer, Stmt, Store, children
from tilewright.target.cpu.codegen.llvm_types import is_narrow_float

Terms = tuple[tuple[tuple[Expr, int], ...], int]  # sum of coefficient * expression, and a constant

_NONE: frozenset[Buffer] = frozenset()


class Facts:
    """Memo tables over the nodes of one kernel; nothing here depends on where a node stands."""

    __slots__ = ("_bits", "_costs", "_reads", "_strides", "_terms", "_written")

    def __init__(self) -> None:
        self._reads: dict[Expr, frozenset[Buffer]] = {}
        self._bits: dict[Expr, int] = {}
        self._costs: dict[Expr, int] = {}
        self._written: dict[Stmt, frozenset[Buffer]] = {}
        self._strides: dict[Buffer, tuple[Expr, ...]] = {}
        self._terms: dict[object, Terms] = {}

    def reads(self, e: Expr) -> frozenset[Buffer]:
        """The buffers that the value of `e` is loaded from."""
        found = self._reads.get(e)
        if found is None:
            found = _NONE
            for argument in e.args:
                below = self._reads.get(argument)
                below = self.reads(argument) if below is None else below
                found = (found | below) if found else below
            if e.op is Op.LOAD:
                found = found | {e.attr}
            self._reads[e] = found
        return found

    def cost(self, e: Expr) -> int:
        """Operations in `e`, where a shared part counts each time it is used."""
        found = self._costs.get(e)
        if found is None:
            found = sum([self.cost(a) for a in e.args]) + (20 if e.op is Op.CALL else 1 if e.args else 0)
            self._costs[e] = found
        return found

    def data_bits(self, e: Expr) -> int:
        """Bits of the widest value in `e`, in registers; the indices of loads, conditions and whole numbers cast from indices aside."""
        found = self._bits.get(e)
        if found is None:
            found = 32 if is_narrow_float(e.dtype) else e.dtype.bits
            if e.op is Op.CAST and e.args[0].dtype is dtypes.int64 and not self.reads(e.args[0]):
                pass
            elif e.op is not Op.LOAD:
                for a in e.args[1:] if e.op is Op.SELECT else e.args:
                    found = max(found, self.data_bits(a))
            self._bits[e] = found
        return found

    def written(self, stmt: Stmt) -> frozenset[Buffer]:
        """The buffers that `stmt` stores to."""
        found = self._written.get(stmt)
        if found is None:
            found = frozenset({stmt.buffer}) if isinstance(stmt, Store) else _NONE
            for child in children(stmt):
                found = found | self.written(child)
            self._written[stmt] = found
        return found

    def strides(self, buffer: Buffer) -> tuple[Expr, ...]:
        """Elements from one index to the next, per dimension of a row-major buffer."""
        found = self._strides.get(buffer)
        if found is None:
            stride = const(1)
            reversed_: list[Expr] = []
            for dim in reversed(buffer.shape):
                reversed_.append(stride)
                stride = mul(stride, dim)
            found = tuple(reversed(reversed_))
            self._strides[buffer] = found
        return found

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Terms:
        """The element number of `buffer[indices]` as a sum of terms."""
        key = (buffer, indices)
        found = self._terms.get(key)
        if found is None:
            terms: dict[Expr, int] = {}
            constant = 0
            for index, stride in zip(indices, self.strides(buffer), strict=True):
                if stride.op is Op.CONST:
                    constant += _collect(index, stride.attr, terms)
                else:
                    constant += _collect(mul(index, stride), 1, terms)
            found = _finished(terms, constant)
            self._terms[key] = found
        return found

    def difference(self, a: Expr, b: Expr) -> Terms:
        """a - b as a sum of terms."""
        key = (a, b)
        found = self._terms.get(key)
        if found is None:
            terms: dict[Expr, int] = {}
            constant = _collect(a, 1, terms)
            constant += _collect(b, -1, terms)
            found = _finished(terms, constant)
            self._terms[key] = found
        return found


def _collect(e: Expr, scale: int, terms: dict[Expr, int]) -> int:
    """Adds scale * e to `terms`; gives the constant part."""
    op = e.op
    if op is Op.CONST:
        return int(e.attr) * scale
    if op is Op.ADD:
        return _collect(e.args[0], scale, terms) + _collect(e.args[1], scale, terms)
    if op is Op.SUB:
        return _collect(e.args[0], scale, terms) + _collect(e.args[1], -scale, terms)
    if op is Op.MUL:
        a, b = e.args
        if b.op is Op.CONST:
            return _collect(a, scale * int(b.attr), terms)
        if a.op in (Op.ADD, Op.SUB):
            sign = 1 if a.op is Op.ADD else -1
            return _collect(mul(a.args[0], b), scale, terms) + _collect(mul(a.args[1], b), sign * scale, terms)
        if a.op is Op.CONST:
            return _collect(b, scale * int(a.attr), terms)
        if a.op is Op.MUL and a.args[1].op is Op.CONST:
            return _collect(mul(a.args[0], b), scale * int(a.args[1].attr), terms)
        if b.op is Op.MUL and b.args[1].op is Op.CONST:
            return _collect(mul(a, b.args[0]), scale * int(b.args[1].attr), terms)
    terms[e] = terms.get(e, 0) + scale
    return 0


def _finished(terms: dict[Expr, int], constant: int) -> Terms:
    # (x // k) * (c * k) + (x % k) * c is c * x: the way that a flat index comes back after it was taken apart.
    for term in [t for t in terms if t.op is Op.FLOORMOD and t.dtype is dtypes.int64]:
        x, k = term.args
        if k.op is not Op.CONST or not terms.get(term):
            continue
        quotient = next((t for t in terms if t.op is Op.FLOORDIV and t.args == term.args), None)
        coefficient = terms[term]
        if quotient is not None and terms[quotient] == coefficient * k.attr:
            del terms[quotient], terms[term]
            constant += _collect(x, coefficient, terms)
    return tuple([(term, coefficient) for term, coefficient in terms.items() if coefficient]), constant
