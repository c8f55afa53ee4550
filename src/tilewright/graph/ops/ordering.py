"""Order along an axis: the k best elements, sorting, running combinations, reversal of sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.heap import Entry, Heap
from tilewright.graph.ops.positions import clamped, expect_indices
from tilewright.graph.ops.scalars import arithmetic_dtype, scalar_binary, widened
from tilewright.graph.shapes import normalize_axis
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, as_expr, cast, const, equal, less, logical_and, logical_or, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import COMBINERS, KernelBuilder, StmtBuilder, Tensor
from tilewright.support.errors import TypeRuleError


def _expect_ordered(name: str, type_: TensorType) -> None:
    if not (type_.dtype.is_float or type_.dtype.is_integer):
        raise TypeRuleError(f"{name} is not defined for {type_.dtype.name}", why="its elements have no order")


@dataclass(frozen=True, slots=True, eq=False)
class TopK(Operator):
    """(x) -> (values, int64 indices) of the `k` largest or smallest elements along `axis`, best first; of equal ones the lower index first.
    O(n log k). The order of NaN is not defined. k must not exceed the axis."""

    name: ClassVar[str] = "top_k"
    k: Expr
    axis: int
    largest: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("top_k", inputs, 1)
        (x,) = inputs
        axis = normalize_axis(self.axis, x.rank, "top_k")
        _expect_ordered("top_k", x)
        dim = x.shape[axis]
        if self.k.is_const and (self.k.value < 0 or (dim.is_const and self.k.value > dim.value)):
            raise TypeRuleError(f"top_k: the {self.k.value} best of {dim!r} elements were asked for")
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :])
        return (TensorType(x.dtype, shape), TensorType(dtypes.int64, shape))

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return _sorted_arrays(inputs[0], self.axis, int(self.k.value), self.largest)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return _select(k, "top_k", inputs[0], self.axis, self.k, self.largest)


@dataclass(frozen=True, slots=True, eq=False)
class Sort(Operator):
    """(x) -> (values, int64 indices) sorted along `axis`; stable."""

    name: ClassVar[str] = "sort"
    axis: int
    descending: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("sort", inputs, 1)
        (x,) = inputs
        normalize_axis(self.axis, x.rank, "sort")
        _expect_ordered("sort", x)
        return (x, TensorType(dtypes.int64, x.shape))

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return _sorted_arrays(inputs[0], self.axis, inputs[0].shape[self.axis], self.descending)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return _select(k, "sort", x, self.axis, x.shape[self.axis], self.descending)


def _sorted_arrays(x: Array, axis: int, count: int, descending: bool) -> tuple[Array, ...]:
    axis = axis % x.ndim
    if descending:  # a stable descending order: the last of equals comes first in the ascending order of the reversed axis
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    order = np.take(order, np.arange(count), axis=axis).astype(np.int64)
    return (np.take_along_axis(x, order, axis), order)


def _select(k: KernelBuilder, name: str, x: Tensor, axis: int, count: Expr, descending: bool) -> tuple[Tensor, ...]:
    """The `count` best of each line, sorted: a heap of the best so far, the worst of them at its root."""
    axis = axis % x.rank
    dim = x.shape[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])

    def worse(a: Entry, b: Entry) -> Expr:
        first, second = widened(a[0]), widened(b[0])
        behind = less(first, second) if descending else less(second, first)
        return logical_or(behind, logical_and(equal(first, second), a[1] > b[1]))

    def body(s: StmtBuilder, outs: tuple[Tensor, ...], *point: Expr) -> None:
        values, indices = outs

        def place(position: Expr) -> tuple[Expr, ...]:
            return (*point[:axis], position, *point[axis:])

        def put(position: Expr, entry: Entry) -> None:
            s.store(values, place(position), entry[0])
            s.store(indices, place(position), entry[1])

        heap = Heap(s, lambda position: (values[place(position)], indices[place(position)]), put, worse)
        with s.loop("j", count) as j:
            put(j, (x[place(j)], j))
        heap.build(count)
        if count is not dim:
            with s.when(count > 0), s.loop("j", dim - count) as j:
                item = (s.let("value", x[place(count + j)]), s.let("index", count + j))
                with s.when(worse(heap.get(const(0)), item)):
                    heap.sift_down(const(0), count, item)
        heap.sort(count)

    domain = (*x.shape[:axis], *x.shape[axis + 1 :])
    return k.opaque(name, [TensorType(x.dtype, shape), TensorType(dtypes.int64, shape)], domain, body)


_ACCUMULATE: dict[str, Callable[..., Any]] = {
    "sum": np.add.accumulate,
    "prod": np.multiply.accumulate,
    "max": np.maximum.accumulate,
    "min": np.minimum.accumulate,
}
_STEP = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


@dataclass(frozen=True, slots=True, eq=False)
class CumulativeScan(Operator):
    """(x) -> running `fn` (sum, prod, max, min) along `axis`. `exclusive`: without the element itself, starting from the identity;
    `reverse`: from the end. Half floats accumulate in float32."""

    name: ClassVar[str] = "cumulative_scan"
    fn: str
    axis: int
    exclusive: bool = False
    reverse: bool = False

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("cumulative_scan", inputs, 1)
        (x,) = inputs
        normalize_axis(self.axis, x.rank, "cumulative_scan")
        _expect_ordered("cumulative_scan", x)
        if self.fn not in _ACCUMULATE:
            raise TypeRuleError(f"cumulative_scan: there is no function {self.fn!r}", why=f"it is one of {', '.join(_ACCUMULATE)}")
        return (x,)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        dtype = dtypes.from_numpy(x.dtype)
        wide = arithmetic_dtype(dtype)
        lines = np.moveaxis(x, self.axis, -1).astype(wide.numpy)
        lines = lines[..., ::-1] if self.reverse else lines
        if self.exclusive:
            first = np.full((*lines.shape[:-1], 1), COMBINERS[self.fn].identity(wide).value, wide.numpy)
            lines = np.concatenate([first, lines], axis=-1)[..., : lines.shape[-1]]
        with np.errstate(all="ignore"):
            result = _ACCUMULATE[self.fn](lines, axis=-1, dtype=wide.numpy)
        result = result[..., ::-1] if self.reverse else result
        return (np.ascontiguousarray(np.moveaxis(result, -1, self.axis)).astype(x.dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        axis = self.axis % x.rank
        wide = arithmetic_dtype(x.dtype)

        def body(s: StmtBuilder, outs: tuple[Tensor, ...], *point: Expr) -> None:
            total = s.local("total", wide, (), COMBINERS[self.fn].identity(wide))
            with s.loop("j", x.shape[axis]) as j:
                position = x.shape[axis] - 1 - j if self.reverse else j
                at = (*point[:axis], position, *point[axis:])
                if self.exclusive:
                    s.store(outs[0], at, cast(x.dtype, total[()]))
                s.store(total, (), scalar_binary(_STEP[self.fn], total[()], widened(x[at])))
                if not self.exclusive:
                    s.store(outs[0], at, cast(x.dtype, total[()]))

        return k.opaque("cumulative_scan", [TensorType(x.dtype, x.shape)], (*x.shape[:axis], *x.shape[axis + 1 :]), body)


@dataclass(frozen=True, slots=True, eq=False)
class ReverseSequence(Operator):
    """(x, lengths[batch]) -> x with the first lengths[b] elements of `time_axis` reversed for each b of `batch_axis`."""

    name: ClassVar[str] = "reverse_sequence"
    batch_axis: int
    time_axis: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("reverse_sequence", inputs, 2)
        x, lengths = inputs
        normalize_axis(self.batch_axis, x.rank, "reverse_sequence")
        normalize_axis(self.time_axis, x.rank, "reverse_sequence")
        expect_indices("reverse_sequence", lengths)
        if lengths.rank != 1 or self.batch_axis % x.rank == self.time_axis % x.rank:
            raise TypeRuleError("reverse_sequence needs one length for each index of the batch axis, which is not the time axis")
        return (x,)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, lengths = inputs
        moved = np.moveaxis(x, (self.batch_axis, self.time_axis), (0, 1)).copy()
        for b, length in enumerate(lengths):
            moved[b, :length] = moved[b, :length][::-1].copy()
        return (np.ascontiguousarray(np.moveaxis(moved, (0, 1), (self.batch_axis, self.time_axis))),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, lengths = inputs
        batch, time = self.batch_axis % x.rank, self.time_axis % x.rank

        def value(*i: Expr) -> Expr:
            length = cast(dtypes.int64, lengths[i[batch]])
            t = i[time]
            at = list(i)
            at[time] = clamped(select(t < length, length - 1 - t, t), as_expr(x.shape[time]))
            return x[tuple(at)]

        return (k.compute("reverse_sequence", x.shape, value),)
