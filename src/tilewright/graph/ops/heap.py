"""Binary heaps in opaque kernel blocks: selection and sorting in O(n log n), in place, for run-time lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, as_expr, maximum, minimum, select
from tilewright.kernel.builder import StmtBuilder

Entry: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Heap:
    """A heap of entries (tuples of scalars) kept wherever `get(position)` reads and `put(position, entry)` stores. `above(a, b)`: whether
    entry a belongs nearer to the root; a strict order. It may append statements to `s`."""

    s: StmtBuilder
    get: Callable[[Expr], Entry]
    put: Callable[[Expr, Entry], None]
    above: Callable[[Entry, Entry], Expr]

    def read(self, position: Expr) -> Entry:
        """The entry at a position, read now."""
        return tuple(self.s.let("entry", e) for e in self.get(position))

    def sift_down(self, start: Expr, count: Expr, item: Entry) -> None:
        """Place `item` in the subheap at `start` of a heap of `count`, whose root is free."""
        s = self.s
        hole = s.local("hole", dtypes.int64, (), start)
        going = s.local("going", dtypes.bool_, (), True)
        with s.repeat_while(going[()]):
            child = s.let("child", hole[()] * 2 + 1)
            s.store(going, (), False)
            with s.when(child < count):
                sibling = s.let("sibling", minimum(child + 1, count - 1))
                left, right = self.read(child), self.read(sibling)
                take = s.let("take", self.above(right, left))
                picked = tuple(s.let("picked", select(take, b, a)) for a, b in zip(left, right, strict=True))
                with s.when(self.above(picked, item)):
                    self.put(hole[()], picked)
                    s.store(hole, (), select(take, sibling, child))
                    s.store(going, (), True)
        self.put(hole[()], item)

    def build(self, count: Expr) -> None:
        """Order the `count` entries present as a heap, in O(count)."""
        half = count // 2
        with self.s.loop("h", half) as step:
            start = self.s.let("start", half - 1 - step)
            self.sift_down(start, count, self.read(start))

    def pop_to(self, last: Expr) -> Entry:
        """Move the root of a heap of `last + 1` entries to position `last`, just behind the heap that remains; gives that entry."""
        root, item = self.read(as_expr(0)), self.read(last)
        self.put(last, root)
        with self.s.when(last > 0):
            self.sift_down(as_expr(0), last, item)
        return root

    def sort(self, count: Expr) -> None:
        """Turn a heap of `count` into a sequence whose last entry is what was the root."""
        with self.s.loop("h", maximum(count - 1, 0)) as step:
            self.pop_to(self.s.let("last", count - 1 - step))
