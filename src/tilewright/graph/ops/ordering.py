"""Order along an axis: the k best elements, sorting, running combinations, reversal of sequences."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.heap import Entry, Heap
from tilewright.graph.ops.positions import clamped, expect_indices
from tilewright.graph.ops.radix import FEW, key_dtype, radix_sort, sort_key
from tilewright.graph.ops.scalars import arithmetic_dtype, scalar_binary, sorts_before, widened
from tilewright.graph.shapes import normalize_axis
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, as_expr, cast, ceildiv, const, less, logical_and, logical_not, logical_or, maximum, minimum, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import COMBINERS, KernelBuilder, StmtBuilder, Tensor
from tilewright.support.errors import TypeRuleError

LOCAL_LINE = 1024  # elements of a line that is sorted on the stack
COLUMNS = 512  # lines of a scan that are walked side by side
RUN, LANES = 128, 16  # elements of which a longer line is looked through at once, and side by side


def _expect_ordered(name: str, type_: TensorType) -> None:
    if not (type_.dtype.is_float or type_.dtype.is_integer):
        raise TypeRuleError(f"{name} is not defined for {type_.dtype.name}", why="its elements have no order")


@dataclass(frozen=True, slots=True, eq=False)
class TopK(Operator):
    """(x) -> (values, int64 indices) of the `k` largest or smallest elements along `axis`, best first; of equal ones the lower index first.
    NaNs are equal and greater than all numbers, as in NumPy. O(n log k), or O(n) where k is a good part of a constant n. k must not exceed
    the axis."""

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
    """(x) -> (values, int64 indices) sorted along `axis`; stable. NaNs are equal and greater than all numbers, as in NumPy."""

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
    wide = x.astype(arithmetic_dtype(dtypes.from_numpy(x.dtype)).numpy, copy=False)  # NumPy sorts NaNs of its own floats alone
    if descending:  # a stable descending order: the last of equals comes first in the ascending order of the reversed axis
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(wide, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(wide, axis=axis, kind="stable")
    order = np.take(order, np.arange(count), axis=axis).astype(np.int64)
    return (np.take_along_axis(x, order, axis), order)


def _select(k: KernelBuilder, name: str, x: Tensor, axis: int, count: Expr, descending: bool) -> tuple[Tensor, ...]:
    """The `count` best of each line, sorted: by digits where most of a line is wanted and it is not short, else by a heap of the best so
    far, the worst of them at its root."""
    axis = axis % x.rank
    dim = x.shape[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    domain = (*x.shape[:axis], *x.shape[axis + 1 :])
    most = count is dim or (count.is_const and dim.is_const and bool(count.value * 4 >= dim.value))
    radix = most and not (dim.is_const and dim.value <= FEW)
    width = key_dtype(arithmetic_dtype(x.dtype))
    local = dim.is_const and bool(dim.value <= LOCAL_LINE)

    def body(s: StmtBuilder, outs: tuple[Tensor, ...], *point: Expr) -> None:
        values, indices = outs[:2]

        def place(position: Expr) -> tuple[Expr, ...]:
            return (*point[:axis], position, *point[axis:])

        def by_digits() -> None:
            keys, order = (s.local("keys", width, (2, dim)), s.local("order", dtypes.int64, (2, dim))) if local else outs[2:]
            line = () if local else point
            half = radix_sort(
                s,
                dim,
                lambda j: sort_key(widened(x[place(j)]), descending),
                lambda half, j: (keys, (*line, half, j)),
                lambda half, j: (order, (*line, half, j)),
            )
            with s.loop("j", count) as j:
                found = s.let("found", order[(*line, half, j)])
                s.store(indices, place(j), found)
                s.store(values, place(j), x[place(found)])

        if not radix:
            _by_heap(s, x, (values, indices), place, count, dim, axis == x.rank - 1, descending)
        elif dim.is_const:
            by_digits()
        else:
            with s.when(dim <= FEW):
                _by_heap(s, x, (values, indices), place, count, dim, False, descending)
            with s.otherwise():
                by_digits()

    made = [TensorType(x.dtype, shape), TensorType(dtypes.int64, shape)]
    if radix and not local:
        made += [TensorType(width, (*domain, const(2), dim)), TensorType(dtypes.int64, (*domain, const(2), dim))]
    return k.opaque(name, made, domain, body)[:2]


def _by_heap(
    s: StmtBuilder,
    x: Tensor,
    outs: tuple[Tensor, Tensor],
    place: Callable[[Expr], tuple[Expr, ...]],
    count: Expr,
    dim: Expr,
    in_order: bool,
    descending: bool,
) -> None:
    """The `count` best of the line whose element i is x[place(i)], of `dim` elements. in_order: they lie next to each other."""
    values, indices = outs

    def before(a: Expr, b: Expr) -> Expr:
        return sorts_before(b, a) if descending else sorts_before(a, b)

    def worse(a: Entry, b: Entry) -> Expr:
        first, second = widened(a[0]), widened(b[0])
        return logical_or(before(second, first), logical_and(logical_not(before(first, second)), a[1] > b[1]))

    def put(position: Expr, entry: Entry) -> None:
        s.store(values, place(position), entry[0])
        s.store(indices, place(position), entry[1])

    heap = Heap(s, lambda position: (values[place(position)], indices[place(position)]), put, worse)

    def offer(j: Expr) -> None:
        item = (s.let("value", x[place(j)]), s.let("index", j))
        # Elements behind those of the heap are never better where they are equal.
        with s.when(before(widened(item[0]), widened(values[place(const(0))]))):
            heap.sift_down(const(0), count, item)

    with s.loop("j", count) as j:
        put(j, (x[place(j)], j))
    heap.build(count)
    if count is not dim:
        runs = (dim - count) // RUN if in_order else const(0)
        with s.when(count > 0):
            if in_order:
                with s.loop("run", runs) as run:
                    start = s.let("start", count + run * RUN)
                    best = _best_of_run(s, lambda j: widened(x[place(start + j)]), descending)
                    with s.when(before(best, widened(values[place(const(0))]))), s.loop("j", RUN) as j:
                        offer(start + j)
            with s.loop("j", dim - count - runs * RUN) as j:
                offer(count + runs * RUN + j)
    heap.sort(count)


def _best_of_run(s: StmtBuilder, read: Callable[[Expr], Expr], descending: bool) -> Expr:
    """The best of RUN elements, found in lanes: by it most of a long line is passed over. A NaN is the greatest, and passed over in search
    of the least: of NaNs alone that is infinity."""
    dtype = read(const(0)).dtype
    worst = const(dtype.lowest if descending else dtype.highest, dtype)
    lanes = s.local("lanes", dtype, (LANES,))
    best = s.local("best", dtype, ())
    with s.loop("lane", LANES, "vectorized") as lane:
        s.store(lanes, (lane,), worst)
    with s.loop("part", RUN // LANES, "unrolled") as part, s.loop("lane", LANES, "vectorized") as lane:
        candidate = read(part * LANES + lane)
        so_far = lanes[lane]
        better = maximum(so_far, candidate) if descending else select(less(candidate, so_far), candidate, so_far)
        s.store(lanes, (lane,), better)
    s.store(best, (), worst)
    with s.loop("lane", LANES, "vectorized") as lane:
        s.store(best, (), (maximum if descending else minimum)(best[()], lanes[lane]))
    return best[()]


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
        identity = COMBINERS[self.fn].identity(wide)
        columns = x.shape[-1]
        # Other axes than the last: neighbouring columns side by side, so that memory is walked in order.
        width = COLUMNS if not columns.is_const else min(COLUMNS, -(-int(columns.value) // LANES) * LANES)
        if axis == x.rank - 1 or columns is const(1) or columns is const(0):
            width = 1

        def body(s: StmtBuilder, outs: tuple[Tensor, ...], *point: Expr) -> None:
            total = s.local("total", wide, (width,))

            def step(j: Expr, lane: Expr) -> None:
                position = x.shape[axis] - 1 - j if self.reverse else j
                outer = point[:-1] if width > 1 else point
                own: tuple[Expr, ...] = (point[-1] * width + lane,) if width > 1 else ()
                at = (*outer[:axis], position, *outer[axis:], *own)
                with ExitStack() as only:
                    for column in own:
                        only.enter_context(s.when(column < columns))
                    if self.exclusive:
                        s.store(outs[0], at, cast(x.dtype, total[lane]))
                    s.store(total, (lane,), scalar_binary(_STEP[self.fn], total[lane], widened(x[at])))
                    if not self.exclusive:
                        s.store(outs[0], at, cast(x.dtype, total[lane]))

            lanes = min(width, LANES)
            with s.loop("c", width // lanes) as part, s.loop("c", lanes, "vectorized") as lane:
                s.store(total, (part * lanes + lane,), identity)
            with s.loop("j", x.shape[axis]) as j, s.loop("c", width // lanes) as part, s.loop("c", lanes, "vectorized") as lane:
                step(j, part * lanes + lane)

        domain = (*x.shape[:axis], *x.shape[axis + 1 :])
        if width > 1:
            domain = (*domain[:-1], ceildiv(columns, const(width)))
        return k.opaque("cumulative_scan", [TensorType(x.dtype, x.shape)], domain, body)


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
