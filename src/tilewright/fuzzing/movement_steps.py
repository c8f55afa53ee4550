"""Steps that grow a graph by movement, one operator after another on the same value: what one leaves out, the next may need."""

from __future__ import annotations

from tilewright.fuzzing.growth import MOST_ELEMENTS, ZERO, Growth, elements
from tilewright.graph.node import Operator, Value
from tilewright.graph.ops import Concat, Pad, Slice, Transpose
from tilewright.graph.shapes import canonical
from tilewright.ir.expr import Expr, const

PADDED = ("pad", "pad", "pad", "slice", "slice", "reverse", "transpose", "concat")


def moved_on(f: Growth) -> None:
    """Two to five paddings that add or crop, slices, reversals, transposes and concatenations; paddings have one value, or several."""
    x = f.pick(lambda value, known: value.type.rank >= 1 and elements(value) < 1000 and value.type.dtype.kind != "bool")
    if x is None:
        return
    known, fillings = f.known(x), [f.number(f.among(0, 1, 3), x.type.dtype) for _ in range(f.among(1, 1, 2))]
    focus = f.whole(0, x.type.rank - 1) if f.chance(0.5) else None  # so that one operator meets the ends of the one before
    for _ in range(f.whole(2, 5)):
        if elements(x) > MOST_ELEMENTS // 2:
            break
        op, others = _movement(f, x, f.among(*fillings), focus)
        x = f.s.g.one(op, *((x, *others) if f.chance(0.7) or not isinstance(op, Concat) else (*others, x)))
    f.s.pool[x] = type(known)(max(known.bound, 4.0), known.exact)


def _movement(f: Growth, x: Value, filling: Value, focus: int | None) -> tuple[Operator, tuple[Value, ...]]:
    """An operator for x, with its other operands."""
    kind, rank = f.among(*PADDED), x.type.rank
    if kind == "transpose" and focus is None:
        return Transpose(tuple(int(axis) for axis in f.rng.permutation(rank))), ()
    if kind == "concat":
        axis = focus if focus is not None else f.whole(0, rank - 1)
        return Concat(axis), (f.picked(x.type.dtype, (*x.shape[:axis], f.among(const(1), const(2)), *x.shape[axis + 1 :])),)
    if kind == "pad":
        amounts = [_amounts(f, dim) if focus in (None, axis) else (0, 0) for axis, dim in enumerate(x.shape)]
        low, high = zip(*amounts, strict=True)
        return Pad(tuple(map(const, low)), tuple(map(const, high)), "constant"), (filling,)
    parts = [_part(f, dim, kind == "reverse") if focus in (None, axis) else (ZERO, dim, 1) for axis, dim in enumerate(x.shape)]
    starts, sizes, steps = zip(*parts, strict=True)
    return Slice(starts, sizes, steps), ()


def _amounts(f: Growth, dim: Expr) -> tuple[int, int]:
    """What a padding adds before and after an axis, or takes away, of which something is left."""
    left = int(dim.value) - 1 if dim.is_const else 0
    before = f.whole(max(-2, -left), 2)
    return before, f.whole(max(-2, -left - min(before, 0)), 2)


def _part(f: Growth, dim: Expr, reverse: bool) -> tuple[Expr, Expr, int]:
    """Start, size and step of a slice."""
    if reverse:
        return f.among((canonical(dim - 1), dim, -1), (ZERO, dim, 1)) if not dim.is_const or dim.value > 0 else (ZERO, dim, 1)
    if not dim.is_const or dim.value < 2:
        return ZERO, dim, 1
    start = f.whole(0, min(2, int(dim.value) - 1))
    return const(start), const(max(int(dim.value) - start - f.whole(0, 2), 1)), 1
