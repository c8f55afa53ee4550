"""Graphs whose dims are unknown while they grow: what type rules need of them is collected, and solved (after NNSmith, ASPLOS 2023).

An operator is placed on values of any dims, if the constraints of all operators so far can hold at once: dims that a rule compares are
equal, windows and slices fit, element counts agree, nothing is too large. Kernel sizes, padding and slices' places are unknowns as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.fuzzing.constraints import Constraint, Solver, always, equal
from tilewright.fuzzing.generator import Generator
from tilewright.fuzzing.growth import MOST_ELEMENTS, Growth, elements_of
from tilewright.fuzzing.structured_steps import SPECS
from tilewright.graph.node import Operator, Value, map_operator
from tilewright.graph.ops import (
    Binary,
    Concat,
    Contract,
    Convolution,
    LayerNorm,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
    Unary,
    WindowReduce,
    constant,
)
from tilewright.graph.shapes import assuming, canonical
from tilewright.ir import dtypes
from tilewright.ir.affine import linear
from tilewright.ir.bounds import Interval
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.traverse import substitute
from tilewright.ir.types import product, tensor
from tilewright.support.errors import TypeRuleError

F32 = dtypes.float32
LONGEST = 64  # elements of an axis
TERMS = 1 << 12  # of one element of a product
NAMED = 40  # the greatest value of a named size


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A value over unknown dims: what an operator computes, or a parameter."""

    shape: tuple[Expr, ...]
    op: Operator | None = None
    inputs: tuple[Placed, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(slots=True)
class Sketch:
    """A graph over unknown dims. `values`: those so far; `instead`: what takes the places of parameters; `backwards`: whether the next
    operator's result is to."""

    rng: np.random.Generator
    solver: Solver
    values: list[Placed] = field(default_factory=list)
    instead: dict[Placed, Placed] = field(default_factory=dict)
    backwards: bool = False

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def unknowns(self, count: int, low: int = 1, high: int = LONGEST) -> tuple[Expr, ...]:
        return tuple(self.solver.unknown(low, high) for _ in range(count))

    def value(self, low: int, high: int | None = None) -> Placed:
        """A value of a rank from low to high: one that there is, or a new parameter, which is all that an operator reads whose result is to
        take a parameter's place."""
        found = [value for value in self.values if low <= value.rank <= (high or low)]
        if found and not self.backwards and self.rng.random() < 0.75:
            return found[int(self.rng.integers(len(found)))]
        return Placed(self.unknowns(self.whole(low, high or low)))

    def take(self, op: Operator, *inputs: Placed, also: Sequence[Constraint] = ()) -> None:
        """Place the operator, unless what has to hold then cannot. Raises TypeRuleError where its rule refuses the types."""
        with assuming() as alike:
            (type_,) = op.infer(tuple(tensor(F32, value.shape) for value in inputs))
        needed = [equal(a, b) for a, b in alike] + list(also)
        shape = tuple(self._named(dim, needed) for dim in type_.shape)
        result = Placed(shape, op, inputs)
        fresh = [value for value in dict.fromkeys(inputs) if value not in self.values]
        needed += [Constraint(product(value.shape), Interval(1, MOST_ELEMENTS)) for value in (*fresh, result)]
        place = self._place(result.rank) if self.backwards else None
        if place is not None:
            needed += [equal(a, b) for a, b in zip(place.shape, shape, strict=True)]
        if self.solver.add(needed):
            self.values += [*fresh, result]
            if place is not None:
                self.instead[place] = result

    def _named(self, dim: Expr, needed: list[Constraint]) -> Expr:
        """The dim as an unknown of its own, so that constraints stay small."""
        if dim.is_const or dim in self.solver.domains:
            return dim
        v = self.solver.unknown(1, 4 * LONGEST, dim)
        needed.append(equal(v, dim))
        return v

    def _place(self, rank: int) -> Placed | None:
        """A parameter of this rank."""
        found = [value for value in self.values if value.op is None and value.rank == rank and value not in self.instead]
        return found[int(self.rng.integers(len(found)))] if found else None


def _product(s: Sketch) -> None:
    spec = SPECS[s.whole(0, len(SPECS) - 1)]
    letters, result = spec.split("->")
    left, right = (s.value(len(part)) for part in letters.split(","))
    dims = dict(zip(letters.replace(",", ""), (*left.shape, *right.shape), strict=True))
    terms = product([dim for letter, dim in dims.items() if letter not in result])
    s.take(Contract(spec, F32), left, right, also=[Constraint(terms, Interval(1, TERMS))])


def _convolution(s: Sketch) -> None:
    x = s.value(3, 5)
    rank = x.rank - 2
    kernel, (outs, part, channels), groups = s.unknowns(rank, 1, 5), s.unknowns(3, 1, 24), s.whole(1, 3)
    low, high = s.unknowns(rank, 0, 2), s.unknowns(rank, 0, 2)
    op = Convolution(tuple(s.whole(1, 2) for _ in kernel), tuple(s.whole(1, 2) for _ in kernel), low, high, groups, F32)
    whole = equal(outs, part * groups)
    s.take(op, x, Placed((outs, channels, *kernel)), also=[whole, Constraint(product((channels, *kernel)), Interval(1, TERMS))])


def _pooling(s: Sketch) -> None:
    x = s.value(2, 4)
    rank = s.whole(1, 2)
    window = tuple(s.whole(1, 3) for _ in range(rank))
    low, high = (tuple(s.unknowns(1, 0, taps - 1)[0] for taps in window) for _ in range(2))
    fn = ("max", "sum", "min")[s.whole(0, 2)]
    s.take(WindowReduce(fn, window, tuple(s.whole(1, 3) for _ in window), (1,) * rank, low, high), x)


def _pair(s: Sketch) -> None:
    x = s.value(1, 4)
    s.take(Binary(("add", "sub", "max", "mul")[s.whole(0, 3)]), x, s.value(s.whole(1, x.rank)))


def _join(s: Sketch) -> None:
    x = s.value(1, 4)
    s.take(Concat(s.whole(0, x.rank - 1)), x, *(s.value(x.rank) for _ in range(s.whole(1, 2))))


def _regroup(s: Sketch) -> None:
    """An axis split in two whose sizes are unknown, two joined, or any other shape of as many elements."""
    x = s.value(1, 4)
    dims, at, kind = list(x.shape), s.whole(0, x.rank - 1), s.whole(0, 2)
    if kind == 0 and len(dims) < 4:
        dims[at : at + 1] = s.unknowns(2)
    elif kind == 1 and at + 1 < len(dims):
        dims[at : at + 2] = [canonical(dims[at] * dims[at + 1])]
    else:
        dims = list(s.unknowns(s.whole(1, 3)))
    s.take(Reshape(tuple(dims)), x)


def _part(s: Sketch) -> None:
    x = s.value(1, 4)
    starts, sizes = (s.unknowns(x.rank, low) for low in (0, 1))
    inside = [Constraint(d - a - n, Interval(0, None)) for d, a, n in zip(x.shape, starts, sizes, strict=True)]
    s.take(Slice(starts, sizes, (1,) * x.rank), x, also=inside)


def _padded(s: Sketch) -> None:
    x = s.value(1, 4)
    low, high = (s.unknowns(x.rank, 0, 4) for _ in range(2))
    mode = ("constant", "edge", "reflect")[s.whole(0, 2)]
    least = [Constraint(d - p, Interval(1, None)) for d, *pads in zip(x.shape, low, high, strict=True) for p in pads]
    s.take(Pad(low, high, mode), x, Placed((), constant(0.0, F32)), also=least if mode == "reflect" else ())


def _alone(s: Sketch) -> None:
    x = s.value(1, 4)
    axis = s.whole(0, x.rank - 1)
    ops = (Softmax(axis), Reduce(("sum", "max")[s.whole(0, 1)], (axis,), bool(s.whole(0, 1))), Unary("tanh"), Unary("neg"),
           Transpose(tuple(int(a) for a in s.rng.permutation(x.rank))))  # fmt: skip
    s.take(ops[s.whole(0, len(ops) - 1)], x)


def _normed(s: Sketch) -> None:
    x = s.value(2, 4)
    axis = s.whole(0, x.rank - 1)
    s.take(LayerNorm(axis, 0.5), x, *(s.value(x.rank - axis) for _ in range(2)))


STEPS: tuple[Callable[[Sketch], None], ...] = (
    _product, _product, _convolution, _pooling, _pair, _pair, _join, _regroup, _part, _padded, _alone, _normed,
)  # fmt: skip


def sketched(rng: np.random.Generator, steps: int) -> Sketch:
    """A graph of some operators on unknown dims. Three steps of ten put an operator's result in a parameter's place."""
    s = Sketch(rng, Solver(rng))
    s.values.append(s.value(2, 4))
    for _ in range(steps):
        s.backwards = bool(rng.random() < 0.3)
        with contextlib.suppress(TypeRuleError):
            STEPS[s.whole(0, len(STEPS) - 1)](s)
    return s


def grow_solved(rng: np.random.Generator) -> Growth:
    """A graph of some operators with dims that the constraints leave. In half of them unknowns that may have any value are named sizes."""
    s = sketched(rng, int(rng.integers(2, 9)))
    values = s.solver.solve()
    names = named(s, values) if rng.random() < 0.5 else {}
    numbers: dict[Expr, Expr] = {v: const(n) for v, n in values.items()}
    for dims in ({**numbers, **names}, numbers):
        f = Growth(Generator(rng, tuple(dict.fromkeys(names.values())) if dims != numbers else (), (1, 2, 3, 5, 7, 8, 9, 16, 17)))
        with contextlib.suppress(TypeRuleError):
            rebuilt(f, s, dims)
            return f
    raise AssertionError("solved dims do not satisfy the type rules")


def solved(f: Growth) -> None:
    """A part of a graph that is solved on its own."""
    s = sketched(f.rng, int(f.rng.integers(2, 6)))
    rebuilt(f, s, {v: const(n) for v, n in s.solver.solve().items()})


def named(s: Sketch, values: dict[Expr, int]) -> dict[Expr, Expr]:
    """Up to two sizes in place of unknowns that may have any value while the others keep theirs, together with those that equal them."""
    same = {v: v for v in values}
    for c in s.solver.constraints:
        form = linear(c.e)
        pair = [atoms[0] for atoms in form.terms if len(atoms) == 1 and atoms[0] in same]
        if c.within == Interval(0, 0) and form.constant == 0 and len(pair) == 2 and sorted(form.terms.values()) == [-1, 1]:
            first, other = (same[v] for v in pair)
            same = {v: first if w is other else w for v, w in same.items()}
    constraints = [Constraint(canonical(substitute(c.e, same)), c.within) for c in s.solver.constraints]
    ranges = {v: Interval(n, n) for v, n in values.items()}
    found: dict[Expr, Expr] = {}
    kinds = list(dict.fromkeys(same.values()))
    for v in (kinds[int(i)] for i in s.rng.permutation(len(kinds))):
        domains = [s.solver.domains[w] for w, kind in same.items() if kind is v]
        low, high = max(d.lo or 0 for d in domains), min(NAMED, *(d.hi or 0 for d in domains))
        if low < 1 or high < 8 or len(set(found.values())) == 2:
            continue
        trial = {**ranges, v: Interval(low, high)}
        if always(constraints, trial):
            ranges, name = trial, size("NM"[len(set(found.values()))], low, high)
            found.update((w, name) for w, kind in same.items() if kind is v)
    return found


def rebuilt(f: Growth, s: Sketch, dims: dict[Expr, Expr]) -> None:
    """Grow a graph by the sketch, with these dims for its unknowns. Raises TypeRuleError."""
    made: dict[Placed, Value] = {}

    def dim(e: Expr) -> Expr:
        return canonical(substitute(e, dims))

    def mapped(value: Placed) -> Value:
        if value in s.instead:
            return mapped(s.instead[value])
        if value not in made:
            inputs = [mapped(v) for v in value.inputs]
            if value.op is None:
                made[value] = f.picked(F32, tuple(map(dim, value.shape)))
            else:
                made[value] = _put(f, map_operator(value.op, dim), inputs) if inputs else f.s.g.one(value.op)
        return made[value]

    for value in s.values:
        mapped(value)


def _put(f: Growth, op: Operator, inputs: list[Value]) -> Value:
    """The operator's result, with what is known of it."""
    known = [f.s.pool[value] for value in inputs if value in f.s.pool]
    bound, exact = max(k.bound for k in known), all(k.exact for k in known)
    if isinstance(op, Contract):
        letters, result = op.spec.split("->")
        dims = dict(zip(letters.replace(",", ""), (*inputs[0].shape, *inputs[1].shape), strict=True))
        bound = known[0].bound * known[1].bound * elements_of([dim for letter, dim in dims.items() if letter not in result])
    elif isinstance(op, Convolution):
        bound, exact = known[0].bound * known[1].bound * elements_of(inputs[1].shape[1:]), False
    elif isinstance(op, Reduce):
        bound *= elements_of([inputs[0].shape[axis] for axis in op.axes])
    elif isinstance(op, WindowReduce):
        bound *= int(np.prod(op.window))
    elif isinstance(op, Binary):
        bound = known[0].bound * known[-1].bound if op.fn == "mul" else 2 * bound
    elif isinstance(op, (Softmax, LayerNorm, Unary)) and op != Unary("neg"):
        bound, exact = max(bound, 64.0), False
    return f.put(op, inputs, bound, exact and bound < 1e4)
