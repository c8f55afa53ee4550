"""What emission asks of expressions and statements again and again, worked out once per kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from tilewright.ir import dtypes
from tilewright.ir.affine import ZERO, Linear, Monomial, add_scaled, linear, scale, sorted_terms, to_expr
from tilewright.ir.bounds import Interval
from tilewright.ir.expr import Expr, const, mul
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier
from tilewright.ir.traverse import free_vars
from tilewright.kernel.nodes import Buffer, For, Stmt, Store, children, walk_stmts
from tilewright.target.cpu.codegen.llvm_types import is_narrow_float

Terms = tuple[tuple[tuple[Expr, int], ...], int]  # sum of coefficient * expression, and a constant

_NONE: frozenset[Buffer] = frozenset()


class Facts:
    """Memo tables over the nodes of one kernel; nothing here depends on where a node stands. `lane_width` has for vectorised loops the bits
    of a lane, 0 where the loop cannot run in lanes. `ranges`: what is known of variables wherever they stand."""

    __slots__ = ("_bits", "_costs", "_reads", "_simplifier", "_strides", "_terms", "_written", "lane_width")

    def __init__(self, ranges: Mapping[Expr, Interval] | None = None) -> None:
        self._simplifier = simplifier(ranges or {})
        self.lane_width: dict[Stmt, int] = {}
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
            form = ZERO
            for index, stride in zip(indices, self.strides(buffer), strict=True):
                part = scale(linear(index), stride.attr) if stride.op is Op.CONST else linear(mul(index, stride))
                form = add_scaled(form, part)
            if any(atom.op is Op.FLOORMOD for atoms in form.terms for atom in atoms):
                # A flat index that was taken apart comes back here: (x // k) * (c * k) + (x % k) * c is c * x.
                form = linear(self._simplifier.rewrite(to_expr(form)))
            found = self._terms[key] = _terms(form)
        return found

    def flat(self, position: Expr) -> Terms:
        """A flat element number as a sum of terms."""
        return self.difference(position, const(0))

    def difference(self, a: Expr, b: Expr) -> Terms:
        """a - b as a sum of terms."""
        key = (a, b)
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = _terms(add_scaled(linear(a), linear(b), -1))
        return found


def ranges_of(stmt: Stmt) -> dict[Expr, Interval]:
    """The ranges of the loop variables in `stmt`; copies of a loop may differ in their extents, the longest counts."""
    longest: dict[Expr, int | None] = {}
    for loop in walk_stmts(stmt):
        if isinstance(loop, For):
            extent = int(loop.extent.value) if loop.extent.is_const else None
            before = longest.get(loop.var, 0)
            longest[loop.var] = None if extent is None or before is None else max(extent, before)
    return {variable: Interval(0, None if extent is None else extent - 1) for variable, extent in longest.items()}


def _terms(form: Linear) -> Terms:
    return tuple([(_product(atoms), coefficient) for atoms, coefficient in sorted_terms(form)]), form.constant


def _product(atoms: Monomial) -> Expr:
    """The product with what depends on sizes alone in front: that part is then one value for all iterations."""
    fixed = [atom for atom in atoms if all(v.attr.lo is not None for v in free_vars(atom))] if len(atoms) > 1 else []
    moving = [atom for atom in atoms if atom not in fixed]
    return reduce(mul, [*fixed, *moving])
