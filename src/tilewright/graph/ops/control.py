"""Control flow: branches, loops, scans and calls over closed functions.

A function sees nothing from outside but its parameters and the named sizes; values that it needs are passed as captures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Function, GraphBuilder, Operator, Parameter, Value, walk_nodes
from tilewright.graph.ops.movement import Reshape, Slice
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.ir.types import TensorType
from tilewright.support.errors import TypeRuleError

# run(function, arguments, sizes) -> results; sizes that the function binds are added to the mapping
Run = Callable[[Function, Sequence[Array], dict[Expr, int]], list[Array]]


def _match_params(what: str, function: Function, types: Sequence[TensorType]) -> None:
    if len(function.params) != len(types):
        raise TypeRuleError(f"{what} takes {len(function.params)} values, {len(types)} are passed")
    for param, given in zip(function.params, types, strict=True):
        if param.type is not given:
            raise TypeRuleError(f"{what}: parameter of type {param.type!r} is passed {given!r}")


@dataclass(frozen=True, slots=True, eq=False)
class If(Operator):
    """(condition, *captures) -> results of `then_branch(*captures)` or `else_branch(*captures)`.

    Results must agree in dtype and rank. Dims in which they differ are named, in order, by the sizes of `fresh`, which running binds;
    `branch` builds the operator with as many as needed.
    """

    name: ClassVar[str] = "if"
    then_branch: Function
    else_branch: Function
    fresh: tuple[Expr, ...] = ()

    @property
    def defines(self) -> tuple[Expr, ...]:
        return self.fresh

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        condition, *captures = inputs
        if condition.dtype is not dtypes.bool_ or condition.rank != 0:
            raise TypeRuleError(f"the condition must be a bool scalar, not {condition!r}")
        for function in (self.then_branch, self.else_branch):
            _match_params(f"branch {function.name}", function, captures)
        types, used = merge_types(self.then_branch, self.else_branch, self.fresh)
        if used != len(self.fresh):
            raise TypeRuleError(f"the branches differ in {used} dims, {len(self.fresh)} sizes are given")
        return types

    def interpret(self, run: Run, inputs: Sequence[Array], sizes: dict[Expr, int]) -> list[Array]:
        branch = self.then_branch if bool(inputs[0]) else self.else_branch
        results = run(branch, inputs[1:], sizes)
        for fresh, (result, axis) in zip(self.fresh, differing_dims(self.then_branch, self.else_branch), strict=True):
            sizes[fresh] = results[result].shape[axis]
        return results


def differing_dims(then_branch: Function, else_branch: Function) -> list[tuple[int, int]]:
    """(result, axis) of each dim in which the results of two functions differ."""
    return [
        (i, axis)
        for i, (a, b) in enumerate(zip(then_branch.results, else_branch.results, strict=True))
        for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True))
        if canonical(x) is not canonical(y)
    ]


def merge_types(then_branch: Function, else_branch: Function, fresh: Sequence[Expr]) -> tuple[tuple[TensorType, ...], int]:
    """Result types of a branch with differing dims named by `fresh`, and how many dims differ. Missing names are shown as 0."""
    if len(then_branch.results) != len(else_branch.results):
        raise TypeRuleError(f"the branches give {len(then_branch.results)} and {len(else_branch.results)} results")
    for i, (a, b) in enumerate(zip(then_branch.results, else_branch.results, strict=True)):
        if a.type.dtype is not b.type.dtype or a.type.rank != b.type.rank:
            raise TypeRuleError(f"result {i} of the branches is {a.type!r} in one and {b.type!r} in the other")
    differing = differing_dims(then_branch, else_branch)
    names = dict(zip(differing, fresh, strict=False))
    types = tuple(
        TensorType(a.type.dtype, tuple(names.get((i, x), const(0)) if (i, x) in differing else dim for x, dim in enumerate(a.shape)))
        for i, a in enumerate(then_branch.results)
    )
    return types, len(differing)


def branch(
    g: GraphBuilder, condition: Value, captures: Sequence[Value], then_branch: Function, else_branch: Function, fresh: Callable[[], Expr]
) -> tuple[Value, ...]:
    """An If with `fresh()` called for each dim in which the branches differ."""
    _, count = merge_types(then_branch, else_branch, ())
    return g.emit(If(then_branch, else_branch, tuple(fresh() for _ in range(count))), condition, *captures)


@dataclass(frozen=True, slots=True, eq=False)
class Loop(Operator):
    """([condition], *carried, *captures) -> (*carried at the end, *stacked outputs).

    Runs `body` for counter = 0, 1, ... while counter < `trip` (if given) and the condition holds (if `conditional`). The body's
    parameters are (*carried, *captures), its results ([condition], *carried, *outputs); the size `counter` is visible in it as the number
    of the iteration and, after the loop, as the number of iterations. Each output is stacked on a new leading axis of length `trip`, or
    `counter` when the loop is conditional or has no `trip`. Dims of carried values that change from one iteration to the next are
    written in the body's parameter types as sizes listed in `fresh`, which the loop binds.
    """

    name: ClassVar[str] = "loop"
    body: Function
    carried: int
    counter: Expr
    trip: Expr | None = None
    conditional: bool = False
    fresh: tuple[Expr, ...] = ()

    @property
    def defines(self) -> tuple[Expr, ...]:
        return (self.counter, *self.fresh)

    @property
    def outputs(self) -> int:
        """Number of stacked outputs."""
        return len(self.body.results) - self.carried - int(self.conditional)

    @property
    def stacked_length(self) -> Expr:
        return self.counter if self.conditional or self.trip is None else self.trip

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        first = int(self.conditional)
        if self.conditional and (inputs[0].dtype is not dtypes.bool_ or inputs[0].rank != 0):
            raise TypeRuleError(f"the condition must be a bool scalar, not {inputs[0]!r}")
        params = [param.type for param in self.body.params]
        if len(params) != len(inputs) - first:
            raise TypeRuleError(f"the body takes {len(params)} values, {len(inputs) - first} are passed")
        for i, (param, given) in enumerate(zip(params, inputs[first:], strict=True)):
            self._check_carried(f"{'carried value' if i < self.carried else 'capture'} {i}", param, given, i < self.carried)
        results = self.body.results[first:]
        for i in range(self.carried):
            self._check_carried(f"carried value {i} after one iteration", params[i], results[i].type, True)
        own = self.own_sizes(results[self.carried :])
        if own:
            raise TypeRuleError(f"a stacked output has the size {own[0].attr.name}, which is another one in each iteration")
        stacked = [TensorType(r.type.dtype, (self.stacked_length, *r.shape)) for r in results[self.carried :]]
        return (*params[: self.carried], *stacked)

    def own_sizes(self, values: Sequence[Value]) -> tuple[Expr, ...]:
        """The sizes in the shapes of values of the body that one iteration may bind to something else than another."""
        mentioned = free_vars(*(dim for value in values for dim in value.shape))
        if not mentioned:
            return ()
        bound = {size for node in walk_nodes(self.body.results) for size in node.op.defines} | {self.counter, *self.fresh}
        return tuple(size for size in mentioned if size in bound)

    def _check_carried(self, what: str, param: TensorType, given: TensorType, may_change: bool) -> None:
        same = param.dtype is given.dtype and param.rank == given.rank
        if same:
            for have, want in zip(given.shape, param.shape, strict=True):
                same &= have is want or (may_change and want in self.fresh) or canonical(have) is canonical(want)
        if not same:
            raise TypeRuleError(f"{what} is {given!r}, the body's parameter is {param!r}")

    def interpret(self, run: Run, inputs: Sequence[Array], sizes: dict[Expr, int]) -> list[Array]:
        first = int(self.conditional)
        going = bool(inputs[0]) if self.conditional else True
        carried, captures = list(inputs[first : first + self.carried]), list(inputs[first + self.carried :])
        trip = None if self.trip is None else evaluate_int(self.trip, sizes)
        stacked: list[list[Array]] = [[] for _ in range(self.outputs)]
        count = 0
        self._bind_fresh(carried, sizes)
        while going and (trip is None or count < trip):
            sizes[self.counter] = count
            results = run(self.body, [*carried, *captures], sizes)
            if self.conditional:
                going = bool(results[0])
            carried = list(results[first : first + self.carried])
            for column, item in zip(stacked, results[first + self.carried :], strict=True):
                column.append(item)
            self._bind_fresh(carried, sizes)
            count += 1
        sizes[self.counter] = count
        empty = [self._empty(value.type, sizes) for value in self.body.results[first + self.carried :]]
        return [*carried, *(np.stack(column) if column else none for column, none in zip(stacked, empty, strict=True))]

    def _bind_fresh(self, carried: Sequence[Array], sizes: dict[Expr, int]) -> None:
        for param, array in zip(self.body.params, carried, strict=False):
            for dim, extent in zip(param.shape, array.shape, strict=True):
                if dim in self.fresh:
                    sizes[dim] = extent

    @staticmethod
    def _empty(type_: TensorType, sizes: Mapping[Expr, int]) -> Array:
        known = {**sizes}
        shape = [evaluate_int(dim, known) if all(v in known for v in free_vars(dim)) else 0 for dim in type_.shape]
        return np.zeros((0, *shape), type_.dtype.numpy)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Operator):
    """(*arguments) -> results of the module's function `function`, whose result types are `types`."""

    name: ClassVar[str] = "call"
    function: str
    types: tuple[TensorType, ...]

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return self.types


def scan(
    g: GraphBuilder,
    counter_name: str,
    length: Expr,
    carried: Sequence[Value],
    sequences: Sequence[Value],
    captures: Sequence[Value],
    body: Callable[[GraphBuilder, Sequence[Value], Sequence[Value], Sequence[Value]], tuple[Sequence[Value], Sequence[Value]]],
    reverse: bool = False,
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """A Loop over the leading axis of `sequences`, each of `length`: `body(g, carried, items, captures) -> (carried, outputs)`.

    Gives the carried values at the end and the outputs stacked in the order of the sequences; `reverse` runs from the last item to
    the first.
    """
    counter = size(counter_name, 0)
    outside, g = g, GraphBuilder(origin=g.origin)  # what binds a size outside is no part of the body
    params = [_parameter(g, f"{counter_name}_{kind}{i}", v) for kind, vs in _groups(carried, sequences, captures) for i, v in enumerate(vs)]
    mine, rest = params[: len(carried)], params[len(carried) :]
    position = length - 1 - counter if reverse else counter
    items = [_item(g, sequence, position) for sequence in rest[: len(sequences)]]
    after, outputs = body(g, mine, items, rest[len(sequences) :])
    function = Function(f"{counter_name}_body", tuple(params), (*after, *outputs))
    results = outside.emit(Loop(function, len(carried), counter, length), *carried, *sequences, *captures)
    stacked = results[len(carried) :]
    return results[: len(carried)], tuple(_reversed(outside, value) for value in stacked) if reverse else stacked


def _groups(carried: Sequence[Value], sequences: Sequence[Value], captures: Sequence[Value]) -> list[tuple[str, Sequence[Value]]]:
    return [("carried", carried), ("sequence", sequences), ("capture", captures)]


def _parameter(g: GraphBuilder, label: str, value: Value) -> Value:
    return g.one(Parameter(label, value.type))


def _item(g: GraphBuilder, sequence: Value, position: Expr) -> Value:
    rank = sequence.type.rank
    starts = (position, *[const(0)] * (rank - 1))
    item = g.one(Slice(starts, (const(1), *sequence.shape[1:]), (1,) * rank), sequence)
    return g.one(Reshape(sequence.shape[1:]), item)


def _reversed(g: GraphBuilder, value: Value) -> Value:
    rank = value.type.rank
    starts = (value.shape[0] - 1, *[const(0)] * (rank - 1))
    return g.one(Slice(starts, value.shape, (-1, *[1] * (rank - 1))), value)
