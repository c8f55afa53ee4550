"""Object detection: suppression of overlapping boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, GraphBuilder, Operator, Value
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.heap import Entry, Heap
from tilewright.graph.ops.movement import Slice
from tilewright.graph.ops.selection import FreshSize
from tilewright.graph.ops.source import BindSize
from tilewright.graph.shapes import format_shape
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, equal, less, logical_and, logical_not, logical_or, maximum, minimum
from tilewright.ir.types import TensorType, product
from tilewright.kernel.builder import KernelBuilder, StmtBuilder, Tensor
from tilewright.support.errors import TypeRuleError

_SCORES = (dtypes.float32, dtypes.float64)


@dataclass(frozen=True, slots=True, eq=False)
class NonMaxSuppression(Operator):
    """(boxes[b, n, 4], scores[b, c, n], per_class int64 scalar, iou scalar, score scalar) -> (int64 [b * c * limit, 3], int64 count).

    For each batch and class, boxes with a score above `score` are visited from the best score down (of equal ones the lower index
    first) and kept, at most `per_class` of them, unless they overlap a kept one by an intersection over union above `iou`. A NaN is
    above nothing: a box with that score is not kept, and one with such a corner overlaps nothing. Rows are (batch, class, box);
    those from `count` on are 0. Boxes are two opposite corners (y, x, y, x), or with `center` (x, y, width, height). `limit` bounds
    per_class.
    """

    name: ClassVar[str] = "non_max_suppression"
    limit: Expr
    center: bool = False

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("non_max_suppression", inputs, 5)
        boxes, scores, *scalars = inputs
        if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] is not const(4):
            shapes = f"boxes {format_shape(boxes.shape)}, scores {format_shape(scores.shape)}"
            raise TypeRuleError(f"non_max_suppression: {shapes}", why="they must be [b, n, 4] and [b, c, n]")
        wanted = (dtypes.int64, scores.dtype, scores.dtype)
        if boxes.dtype is not scores.dtype or scores.dtype not in _SCORES:
            found = f"boxes are {boxes.dtype}, scores {scores.dtype}"
            raise TypeRuleError(f"non_max_suppression: {found}", why="both must be one of float32, float64")
        if any(t.dtype is not dtype or t.rank for t, dtype in zip(scalars, wanted, strict=True)):
            raise TypeRuleError("non_max_suppression: the limits must be an int64 scalar and two of the scores' dtype")
        rows = product((*scores.shape[:2], self.limit))
        return (TensorType(dtypes.int64, (rows, const(3))), TensorType(dtypes.int64, ()))

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        boxes, scores, per_class, iou, least = inputs
        kept: list[tuple[int, int, int]] = []
        for b, c in np.ndindex(*scores.shape[:2]):
            mine: list[int] = []
            for i in np.argsort(-scores[b, c], kind="stable"):
                if len(mine) >= int(per_class):
                    break
                if scores[b, c, i] > least and not any(_overlap(boxes[b, i], boxes[b, j], self.center) > iou for j in mine):
                    mine.append(int(i))
            kept += [(b, c, i) for i in mine]
        rows = np.zeros((scores.shape[0] * scores.shape[1] * int(self.limit.value), 3), np.int64)
        rows[: len(kept)] = np.array(kept, np.int64).reshape(-1, 3)
        return (rows, np.asarray(len(kept), np.int64))

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        boxes, scores, per_class, iou, least = inputs
        batches, classes, n = scores.shape

        def pick(s: StmtBuilder, outs: tuple[Tensor, ...], b: Expr, c: Expr) -> None:
            chosen, number, order = outs
            count = s.local("count", dtypes.int64, (), 0)
            with s.loop("i", n) as i:
                with s.when(less(least[()], scores[b, c, i])):
                    s.store(order, (b, c, count[()]), i)
                    s.store(count, (), count[()] + 1)

            def better(p: Entry, q: Entry) -> Expr:
                first, second = scores[b, c, p[0]], scores[b, c, q[0]]
                return logical_or(less(second, first), logical_and(equal(first, second), p[0] < q[0]))

            heap = Heap(s, lambda at: (order[b, c, at],), lambda at, entry: s.store(order, (b, c, at), entry[0]), better)
            heap.build(s.let("candidates", count[()]))
            kept = s.local("kept", dtypes.int64, (), 0)
            wanted = s.let("wanted", minimum(per_class[()], self.limit))
            with s.repeat_while(logical_and(count[()] > 0, kept[()] < wanted)):
                s.store(count, (), count[()] - 1)
                (box,) = heap.pop_to(s.let("last", count[()]))
                apart = s.local("apart", dtypes.bool_, (), True)
                mine = _corners(s, boxes, b, box, self.center)
                visited = s.local("visited", dtypes.int64, (), 0)
                with s.repeat_while(logical_and(apart[()], visited[()] < kept[()])):
                    theirs = _corners(s, boxes, b, s.let("other", chosen[b, c, visited[()]]), self.center)
                    s.store(apart, (), logical_not(_overlap_above(s, mine, theirs, iou[()])))
                    s.store(visited, (), visited[()] + 1)
                with s.when(apart[()]):
                    s.store(chosen, (b, c, kept[()]), box)
                    s.store(kept, (), kept[()] + 1)
            s.store(number, (b, c), kept[()])

        table = TensorType(dtypes.int64, (batches, classes, self.limit))
        order = TensorType(dtypes.int64, scores.shape)
        chosen, number, _ = k.opaque("nms_pick", [table, TensorType(dtypes.int64, (batches, classes)), order], (batches, classes), pick)

        def gather(s: StmtBuilder, outs: tuple[Tensor, ...]) -> None:
            rows, total = outs
            at = s.local("at", dtypes.int64, (), 0)
            with s.loop("b", batches) as b, s.loop("c", classes) as c, s.loop("i", number[b, c]) as i:
                for column, value in enumerate((b, c, chosen[b, c, i])):
                    s.store(rows, (at[()], const(column)), value)
                s.store(at, (), at[()] + 1)
            s.store(total, (), at[()])
            with s.loop("r", rows.shape[0] - at[()]) as rest:
                for column in range(3):
                    s.store(rows, (at[()] + rest, const(column)), 0)

        rows = TensorType(dtypes.int64, (product((batches, classes, self.limit)), const(3)))
        return k.opaque("nms_rows", [rows, TensorType(dtypes.int64, ())], (), gather)


def _corners(s: StmtBuilder, boxes: Tensor, batch: Expr, box: Expr, center: bool) -> tuple[Expr, ...]:
    """(low y, low x, high y, high x) of a box."""
    a, b, c, d = (boxes[batch, box, const(i)] for i in range(4))
    if center:
        half = const(0.5, boxes.dtype)
        corners = (b - d * half, a - c * half, b + d * half, a + c * half)
    else:
        corners = (minimum(a, c), minimum(b, d), maximum(a, c), maximum(b, d))
    return tuple(s.let("corner", e) for e in corners)


def _overlap_above(s: StmtBuilder, p: tuple[Expr, ...], q: tuple[Expr, ...], limit: Expr) -> Expr:
    """Whether intersection over union is above `limit`; boxes without area overlap nothing."""
    zero = const(0, limit.dtype)
    height = maximum(minimum(p[2], q[2]) - maximum(p[0], q[0]), zero)
    width = maximum(minimum(p[3], q[3]) - maximum(p[1], q[1]), zero)
    inter = s.let("inter", height * width)
    first, second = s.let("area", (p[2] - p[0]) * (p[3] - p[1])), s.let("area", (q[2] - q[0]) * (q[3] - q[1]))
    union = first + second - inter
    proper = logical_and(logical_and(first > zero, second > zero), logical_and(union > zero, inter > zero))
    return logical_and(proper, inter / union > limit)


def _overlap(p: Array, q: Array, center: bool) -> float:
    def corners(box: Array) -> tuple[float, ...]:
        a, b, c, d = (box.dtype.type(v) for v in box)
        if center:
            return (b - d / 2, a - c / 2, b + d / 2, a + c / 2)
        return (np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d))

    p0, p1, p2, p3 = corners(p)
    q0, q1, q2, q3 = corners(q)
    with np.errstate(all="ignore"):
        height = np.maximum(np.minimum(p2, q2) - np.maximum(p0, q0), 0)
        width = np.maximum(np.minimum(p3, q3) - np.maximum(p1, q1), 0)
        inter = height * width
        first, second = (p2 - p0) * (p3 - p1), (q2 - q0) * (q3 - q1)
        union = first + second - inter
        return float(inter / union) if first > 0 and second > 0 and union > 0 and inter > 0 else 0.0


def non_max_suppression(
    g: GraphBuilder, operands: tuple[Value, ...], limit: Expr, center: bool, fresh: FreshSize, name: str = "selected"
) -> Value:
    """int64 [count, 3] rows (batch, class, box) of the boxes kept; operands as for the operator."""
    rows, count = g.emit(NonMaxSuppression(limit, center), *operands)
    size = fresh(name)
    g.emit(BindSize(size), count)
    return g.one(Slice((const(0), const(0)), (size, const(3)), (1, 1)), rows)
