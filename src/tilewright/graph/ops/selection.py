"""Results whose size depends on data: positions of non-zero elements, distinct rows.

The operators here give as much as there can be and say how much counts, or are told a size that was bound before. The functions
`nonzero`, `compress` and `unique` put the pieces together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, GraphBuilder, Operator, Value
from tilewright.graph.ops.elementwise import Binary, Cast, expect_inputs
from tilewright.graph.ops.heap import Entry, Heap
from tilewright.graph.ops.indexing import Gather
from tilewright.graph.ops.movement import Reshape, Slice, Transpose
from tilewright.graph.ops.positions import nest
from tilewright.graph.ops.reduction import Reduce
from tilewright.graph.ops.scalars import sorts_before, widened
from tilewright.graph.ops.source import BindSize, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, equal, logical_and, logical_not, logical_or, not_equal
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, StmtBuilder, Tensor
from tilewright.support.errors import TypeRuleError

FreshSize = Callable[[str], Expr]


@dataclass(frozen=True, slots=True, eq=False)
class NonZeroIndices(Operator):
    """(x) -> int64 [rank, count], the positions of the elements that are not zero (or true) in row-major order. `count` is their
    number, bound before; positions that are missing read as 0."""

    name: ClassVar[str] = "nonzero_indices"
    count: Expr

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("nonzero_indices", inputs, 1)
        return (TensorType(dtypes.int64, (const(inputs[0].rank), self.count)),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        found = np.argwhere(inputs[0] != 0).T.astype(np.int64)
        result = np.zeros((inputs[0].ndim, int(self.count.value)), np.int64)
        kept = min(found.shape[1], result.shape[1])
        result[:, :kept] = found[:, :kept]
        return (result,)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs

        def body(s: StmtBuilder, outs: tuple[Tensor, ...]) -> None:
            found = s.local("found", dtypes.int64, (), 0)
            with nest(s, "p", x.shape) as at:
                value = x[at]
                present = value if value.dtype is dtypes.bool_ else not_equal(widened(value), const(0, widened(value).dtype))
                with s.when(logical_and(present, found[()] < self.count)):
                    for axis, position in enumerate(at):
                        s.store(outs[0], (const(axis), found[()]), position)
                    s.store(found, (), found[()] + 1)
            with s.loop("p", self.count - found[()]) as rest:
                for axis in range(x.rank):
                    s.store(outs[0], (const(axis), self.count - 1 - rest), 0)

        return k.opaque("nonzero_indices", [TensorType(dtypes.int64, (const(x.rank), self.count))], (), body)


@dataclass(frozen=True, slots=True, eq=False)
class Unique(Operator):
    """(x[n, m]) -> (first int64 [n], inverse int64 [n], counts int64 [n], int64 count) of the distinct rows of x. Entry g of `first` is the
    index of the first row of group g, of `counts` the number of its rows; both are 0 from `count` on. `inverse` is the group of each
    row. Groups are in the lexicographic order of their rows when `ordered`, else in the order of first occurrence. NaNs are equal and after
    all numbers, as in NumPy. O(n m log n)."""

    name: ClassVar[str] = "unique"
    ordered: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("unique", inputs, 1)
        (x,) = inputs
        if x.rank != 2 or x.dtype.kind not in ("int", "uint", "float", "bool"):
            raise TypeRuleError(f"unique takes a matrix of numbers, not {x!r}")
        vector = TensorType(dtypes.int64, x.shape[:1])
        return (vector, vector, vector, TensorType(dtypes.int64, ()))

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        n = x.shape[0]
        numbers: dict[tuple[object, ...], list[int]] = {}
        for i in range(n):
            numbers.setdefault(tuple((v != v, 0 if v != v else v) for v in x[i].tolist()), []).append(i)
        groups = [numbers[key] for key in sorted(numbers)] if self.ordered else list(numbers.values())
        first, inverse, counts = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
        for g, rows in enumerate(groups):
            first[g], counts[g], inverse[rows] = rows[0], len(rows), g
        return (first, inverse, counts, np.asarray(len(groups), np.int64))

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        n, width = x.shape

        def body(s: StmtBuilder, outs: tuple[Tensor, ...]) -> None:
            first, inverse, counts, count, order, group, begin, number = outs

            def order_of(a: Expr, b: Expr) -> Expr:
                """-1, 0 or 1 as row a comes before, equals or comes after row b."""
                sign = s.local("sign", dtypes.int64, (), 0)
                column = s.local("column", dtypes.int64, (), 0)
                with s.repeat_while(logical_and(equal(sign[()], 0), column[()] < width)):
                    p, q = s.let("p", widened(x[a, column[()]])), s.let("q", widened(x[b, column[()]]))
                    if p.dtype is dtypes.bool_:
                        before, after = logical_and(logical_not(p), q), logical_and(p, logical_not(q))
                    else:
                        before, after = sorts_before(p, q), sorts_before(q, p)
                    with s.when(before):
                        s.store(sign, (), -1)
                    with s.when(after):
                        s.store(sign, (), 1)
                    s.store(column, (), column[()] + 1)
                return sign[()]

            def later(a: Entry, b: Entry) -> Expr:
                sign = s.let("sign", order_of(a[0], b[0]))
                return logical_or(sign > 0, logical_and(equal(sign, 0), a[0] > b[0]))

            heap = Heap(s, lambda at: (order[at],), lambda at, entry: s.store(order, (at,), entry[0]), later)
            with s.loop("p", n) as i:
                s.store(order, (i,), i)
            heap.build(n)
            heap.sort(n)
            groups = s.local("groups", dtypes.int64, (), 0)
            with s.loop("p", n) as i:
                row = s.let("row", order[i])
                fresh = s.local("fresh", dtypes.bool_, (), True)
                with s.when(i > 0):
                    s.store(fresh, (), not_equal(order_of(s.let("previous", order[i - 1]), row), 0))
                with s.when(fresh[()]):
                    s.store(begin, (groups[()],), row)
                    s.store(number, (groups[()],), 0)
                    s.store(groups, (), groups[()] + 1)
                s.store(group, (row,), groups[()] - 1)
                s.store(number, (groups[()] - 1,), number[groups[()] - 1] + 1)
            s.store(count, (), groups[()])
            self._number(s, (first, inverse, counts), (group, begin, number, order), n)
            with s.loop("p", n - groups[()]) as i:
                s.store(first, (groups[()] + i,), 0)
                s.store(counts, (groups[()] + i,), 0)

        vector = TensorType(dtypes.int64, (n,))
        results = k.opaque("unique", [vector, vector, vector, TensorType(dtypes.int64, ()), *[vector] * 4], (), body)
        return results[:4]

    def _number(self, s: StmtBuilder, outs: tuple[Tensor, ...], found: tuple[Tensor, ...], n: Expr) -> None:
        """Write the groups, found in sorted order, in the order asked for. `order` is free by now and takes the new numbers."""
        first, inverse, counts = outs
        group, begin, number, renumbered = found
        following = s.local("following", dtypes.int64, (), 0)
        with s.loop("p", n) as i:
            mine = s.let("mine", group[i])
            with s.when(equal(begin[mine], i)):
                target = mine if self.ordered else s.let("target", following[()])
                s.store(renumbered, (mine,), target)
                s.store(first, (target,), i)
                s.store(counts, (target,), number[mine])
                s.store(following, (), following[()] + 1)
            s.store(inverse, (i,), renumbered[mine])


def _count(g: GraphBuilder, condition: Value, count: Expr) -> Value:
    total = g.one(Reduce("sum", tuple(range(condition.type.rank)), False), g.one(Cast(dtypes.int64), condition))
    return g.one(BindSize(count), total)


def nonzero(g: GraphBuilder, x: Value, fresh: FreshSize, name: str = "nonzero") -> Value:
    """int64 [rank, count] positions of the elements of x that are not zero; `fresh(name)` gives the size that holds their number."""
    present = x
    if x.type.dtype is not dtypes.bool_:
        present = g.one(Binary("not_equal"), x, g.one(constant(np.zeros((), x.type.dtype.numpy))))
    count = fresh(name)
    _count(g, present, count)
    return g.one(NonZeroIndices(count), present)


def compress(g: GraphBuilder, x: Value, condition: Value, axis: int | None, fresh: FreshSize, name: str = "compress") -> Value:
    """The slices of x along `axis` (elements of x flattened: None) where the bool vector `condition` holds, which is not longer."""
    flat = g.one(Reshape((x.type.count,)), x) if axis is None else x
    positions = nonzero(g, condition, fresh, name)
    return g.one(Gather(axis or 0), flat, g.one(Reshape(positions.shape[1:]), positions))


def unique(
    g: GraphBuilder, x: Value, axis: int | None, ordered: bool, fresh: FreshSize, name: str = "unique"
) -> tuple[Value, Value, Value, Value]:
    """(y, first, inverse, counts) of the distinct slices of x along `axis`, or elements when None; as ONNX Unique."""
    if axis is None:
        along = g.one(Reshape((x.type.count,)), x)
    else:
        perm = (axis, *(a for a in range(x.type.rank) if a != axis))
        along = g.one(Transpose(perm), x)
    width = TensorType(x.type.dtype, along.shape[1:]).count
    first, inverse, counts, count = g.emit(Unique(ordered), g.one(Reshape((along.shape[0], width)), along))
    size = fresh(name)
    g.emit(BindSize(size), count)
    first, counts = (g.one(Slice((const(0),), (size,), (1,)), v) for v in (first, counts))
    return g.one(Gather(axis or 0), x if axis is not None else along, first), first, inverse, counts
