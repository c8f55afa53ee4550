"""Planning branches and loops. `body` plans a function: it takes the views of the arguments and gives those of the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.graph.node import Function, Node, walk_nodes
from tilewright.graph.ops import If, Loop
from tilewright.graph.ops.control import differing_dims
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import TensorType
from tilewright.plan.steps import Branch, SetSize
from tilewright.plan.steps import Loop as LoopStep
from tilewright.plan.storage import ZERO, BindPoint, Ledger, PlannedStep, View

PlanFunction = Callable[[Function, Sequence[View]], list[View]]


def nested(ledger: Ledger, run: Callable[[], None]) -> tuple[PlannedStep, ...]:
    """The steps that `run` makes, as a list of their own."""
    outer, ledger.steps = ledger.steps, []
    run()
    inner, ledger.steps = ledger.steps, outer
    return tuple(inner)


def plan_branch(ledger: Ledger, plan_function: PlanFunction, op: If, node: Node, inputs: Sequence[View]) -> list[View]:
    """Both sides leave their results at the same places. Those whose size the taken side decides are copied there once it is known."""
    condition, *captures = inputs
    point = ledger.bind_point(op.fresh) if op.fresh else None
    differing = dict(zip(differing_dims(op.then_branch, op.else_branch), op.fresh, strict=True))
    results = [ledger.tensor(type_) for type_ in node.types]
    where = ledger.place(condition)

    def side(function: Function) -> Callable[[], None]:
        def run() -> None:
            views = plan_function(function, captures)
            for (result, axis), fresh in differing.items():
                ledger.step(SetSize(fresh, views[result].type.shape[axis]))
            if point is not None:
                ledger.mark(point)
            for view, target in zip(views, results, strict=True):
                if point is not None and target.storage.bind is point:
                    ledger.copy(target, view)
                else:
                    ledger.deliver(view, target)

        return run

    then_steps = nested(ledger, side(op.then_branch))
    otherwise = nested(ledger, side(op.else_branch))
    ledger.step(Branch(where, then_steps, otherwise))  # type: ignore[arg-type]
    for view in results:
        ledger.use(view.storage)
    return results


def plan_loop(ledger: Ledger, plan_function: PlanFunction, op: Loop, inputs: Sequence[View]) -> list[View]:
    """Carried values stay at one place for the whole loop, to which each iteration copies what it made of them. Places of unknown or
    changing size are regions of their own, so that growing one moves no other."""
    first = int(op.conditional)
    start = ledger.clock
    initial, captures = inputs[first : first + op.carried], inputs[first + op.carried :]
    types = [param.type for param in op.body.params[: op.carried]]
    item_types = [value.type for value in op.body.results[first + op.carried :]]
    fresh_point = ledger.bind_point(op.fresh) if op.fresh else None
    for type_, view in zip(types, initial, strict=True):
        for dim, have in zip(type_.shape, view.type.shape, strict=True):
            if dim in op.fresh:
                ledger.step(SetSize(dim, have))
    if fresh_point is not None:
        ledger.mark(fresh_point)
    carried = [ledger.tensor(type_, grows=_mentions(type_, op.fresh)) for type_ in types]
    for view, target in zip(initial, carried, strict=True):
        if target.storage.grows:
            ledger.grow(target, target.storage.bytes)
        ledger.copy(target, replace(view, type=target.type))
    condition = ledger.tensor(TensorType(dtypes.bool_, ())) if op.conditional else None
    if condition is not None:
        ledger.copy(condition, inputs[0])
    counter_point = ledger.bind_point([op.counter])
    # sizes of outputs that only the body binds are those of its last iteration, 0 if there is none
    made = {bound for node in walk_nodes(op.body.results) for bound in node.op.defines}
    inner = [v for v in free_vars(*(dim for type_ in item_types for dim in type_.shape)) if v in made]
    for bound in inner:
        ledger.late_sizes[bound] = None
        ledger.step(SetSize(bound, ZERO))
    ends_late = op.conditional or op.trip is None
    stacked = []
    for type_ in item_types:
        whole = TensorType(type_.dtype, (op.stacked_length, *type_.shape))
        target = ledger.tensor(whole, grows=ends_late or _mentions(type_, (op.counter, *op.fresh, *inner)))
        if target.storage.grows:
            ledger.grow(target, ZERO)  # there is memory also when no iteration runs
        stacked.append(target)

    def body() -> None:
        ledger.mark(counter_point)
        results = plan_function(op.body, [*carried, *captures])
        after = results[first : first + op.carried]
        kept = {view.storage for view in (*carried, *after)}
        for view, target in zip(results[first + op.carried :], stacked, strict=True):
            _append(ledger, op.counter, view, target, view.storage in kept)
        if condition is not None:
            ledger.copy(condition, results[0])
        _carry(ledger, op, after, carried, fresh_point)

    steps = nested(ledger, body)
    where = None if condition is None else ledger.place(condition)
    ledger.step(LoopStep(op.counter, op.trip, where, steps))  # type: ignore[arg-type]
    for storage in ledger.storages:
        # what was made before the loop and is used in it must last until its end: the next iteration uses it again
        if storage.first <= start <= storage.last:
            ledger.use(storage)
    for view in (*carried, *stacked, *([condition] if condition else [])):
        ledger.use(view.storage)
    ledger.mark(ledger.bind_point([op.counter, *op.fresh, *inner]))
    return [*carried, *stacked]


def _mentions(type_: TensorType, sizes: Sequence[Expr]) -> bool:
    return any(v in sizes for v in free_vars(*type_.shape))


def _stays(view: View, target: View) -> bool:
    """A carried value that is where the next iteration reads it; a part of it need not be."""
    return view.storage is target.storage and view.offset is target.offset


def _append(ledger: Ledger, counter: Expr, item: View, target: View, kept: bool) -> None:
    """Put an iteration's output at its place in the stacked one. `kept`: it is a carried value too, which has a place of its own."""
    bytes_ = simplify(item.type.bytes)
    slot = View(target.storage, simplify(counter * bytes_), item.type)
    if target.storage.grows:
        ledger.grow(target, simplify((counter + 1) * bytes_))
    if target.storage.grows or kept:
        ledger.copy(slot, item)
    else:
        ledger.deliver(item, slot)


def _carry(ledger: Ledger, op: Loop, after: Sequence[View], carried: Sequence[View], fresh_point: BindPoint | None) -> None:
    """Move the carried results of one iteration to where the next one reads them, then set the sizes that have changed."""
    params = {view.storage for view in carried}
    staged: list[View] = []
    for view, target in zip(after, carried, strict=True):
        if view.storage in params and not _stays(view, target):
            # it would be overwritten before it is read: values that change places
            copy = ledger.tensor(view.type)
            ledger.copy(copy, view)
            view = copy
        staged.append(view)
    for view, target in zip(staged, carried, strict=True):
        if _stays(view, target):
            continue
        if target.storage.grows:
            ledger.grow(target, simplify(view.type.bytes))
        ledger.copy(replace(target, type=view.type), view)
    if fresh_point is None:
        return
    changed = {
        dim: have
        for param, view in zip(op.body.params, after, strict=False)
        for dim, have in zip(param.shape, view.type.shape, strict=True)
        if dim in op.fresh
    }
    following = {dim: ledger.own_size(f"{dim.name}_next", 0) for dim in changed}
    for dim, have in changed.items():
        ledger.step(SetSize(following[dim], have))
    for dim in changed:
        ledger.step(SetSize(dim, following[dim]))
    ledger.mark(fresh_point)
