"""Building a plan: walks a function in order, turns nodes into steps, and gives every tensor a place.

Tensors first live in storages, each with its size and its live interval on a clock that ticks with every step. When all steps are
known, `memory.place` lays the storages of each arena out, and the steps are rewritten from storages to places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tilewright.graph.node import Array, Function, Module, Node, Origin, Parameter, Value, walk_nodes
from tilewright.graph.ops import BindSize, Call, Constant, ConstantData, If, Loop, RefineShape, Reshape
from tilewright.graph.ops.control import differing_dims
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, all_of, const, equal, free_vars, less_equal, size
from tilewright.ir.prove import equal_dims
from tilewright.ir.simplify import simplify
from tilewright.ir.types import TensorType, product, sizes_of
from tilewright.kernel.nodes import Kernel
from tilewright.plan.memory import Interval, place
from tilewright.plan.steps import (
    Allocate,
    Bind,
    Branch,
    Check,
    Copy,
    Grow,
    Launch,
    Loop as LoopStep,
    Place,
    Plan,
    Region,
    SetSize,
    Step,
)
from tilewright.support.errors import GraphError, InternalError, TypeRuleError

ZERO = const(0)


class Layout(Protocol):
    """How a constant is laid out for a kernel. Hashable, so that equal layouts of equal data are stored once."""

    def pack(self, array: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class PlannedConstant:
    """A constant as the kernels read it: `data`, packed by `layout` where a kernel wants it so."""

    data: ConstantData
    layout: Layout | None
    type: TensorType

    def array(self) -> Array:
        """The bytes to store, computed anew at each call, so that no packed copy is kept."""
        return self.data.array if self.layout is None else self.layout.pack(self.data.array)


@dataclass(frozen=True, slots=True)
class CompiledGroup:
    """What the planner needs of a fused group: the lowered `kernel`, bytes of its `workspace` (0: none), and the layouts in which it wants
    operands that are constants (`packed`: operand index -> layout)."""

    kernel: Kernel
    workspace: Expr = ZERO
    packed: Mapping[int, Layout] = field(default_factory=dict)


@dataclass(slots=True)
class BindPoint:
    """A moment at which sizes get their values; storages that need them are allocated right after it."""

    number: int


@dataclass(slots=True, eq=False)
class Storage:
    """A piece of memory being planned. `forward`: it is a part of another storage instead of having memory of its own."""

    number: int
    kind: str  # "input", "output", "constant", "arena"
    index: int
    bytes: Expr
    bind: BindPoint | None
    first: int
    last: int
    grows: bool = False
    forward: View | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: a storage, a byte offset in it and the tensor's type."""

    storage: Storage
    offset: Expr
    type: TensorType


@dataclass(frozen=True, slots=True)
class _Marker:
    """Where a bind point's arena is allocated."""

    bind: BindPoint


PlannedStep = Step | _Marker


@dataclass(slots=True)
class PlanBuilder:
    """State of one plan under construction. `compiled` gives the kernel of a fused node."""

    module: Module
    compiled: Callable[[Node], CompiledGroup | None]
    on_launch: Callable[[], None] = lambda: None
    clock: int = 0
    storages: list[Storage] = field(default_factory=list)
    steps: list[PlannedStep] = field(default_factory=list)
    binds: dict[Expr, BindPoint] = field(default_factory=dict)
    bind_count: int = 0
    constants: dict[PlannedConstant, Storage] = field(default_factory=dict)
    late_sizes: dict[Expr, None] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    # ---- storages and steps

    def storage(self, bytes_: Expr, kind: str = "arena", index: int = 0, grows: bool = False) -> Storage:
        bind: BindPoint | None = None
        for used in free_vars(bytes_):
            candidate = self.binds.get(used)
            if candidate is not None and (bind is None or candidate.number > bind.number):
                bind = candidate
        made = Storage(len(self.storages), kind, index, bytes_, bind, self.clock, self.clock, grows)
        self.storages.append(made)
        return made

    def tensor(self, type_: TensorType) -> View:
        return View(self.storage(simplify(type_.bytes)), ZERO, type_)

    def constant(self, data: ConstantData, type_: TensorType, layout: Layout | None = None) -> View:
        constant = PlannedConstant(data, layout, type_)
        storage = self.constants.get(constant)
        if storage is None:
            storage = self.storage(type_.bytes, "constant", len(self.constants))
            self.constants[constant] = storage
        return View(storage, ZERO, type_)

    def place(self, view: View) -> Place:
        """The view as a Place of its (still virtual) storage; marks it used now."""
        view.storage.last = max(view.storage.last, self.clock)
        return Place(Region("arena", view.storage.number), view.offset, view.type)

    def step(self, step: Step) -> None:
        self.steps.append(step)
        self.clock += 1

    def bind_point(self, sizes: Sequence[Expr]) -> BindPoint:
        """A new moment at which `sizes` are bound; call `mark` where it happens."""
        point = BindPoint(self.bind_count)
        self.bind_count += 1
        for bound in sizes:
            self.binds[bound] = point
            self.late_sizes[bound] = None
        return point

    def mark(self, point: BindPoint) -> None:
        self.steps.append(_Marker(point))
        self.clock += 1

    def deliver(self, source: View, target: View) -> None:
        """Make `target` hold what `source` holds: by letting the source's producer write there, else by a copy."""
        own = source.storage
        movable = own.kind == "arena" and own.forward is None and not own.grows and source.offset is ZERO
        if movable and own.bind is target.storage.bind and simplify(own.bytes) is simplify(source.type.bytes):
            if target.storage.first <= own.first or target.storage.kind == "output":
                own.forward = target
                target.storage.first = min(target.storage.first, own.first)
                target.storage.last = max(target.storage.last, own.last, self.clock)
                return
        self.step(Copy(self.place(target), self.place(source)))

    def nested(self, run: Callable[[], None]) -> tuple[PlannedStep, ...]:
        """The steps that `run` makes, as a list of their own."""
        outer, self.steps = self.steps, []
        run()
        inner, self.steps = self.steps, outer
        return tuple(inner)

    # ---- nodes

    def function(self, function: Function, arguments: Sequence[View]) -> list[View]:
        """Steps of a function's body; the views of its results."""
        views: dict[Value, View] = dict(zip(function.params, arguments, strict=True))
        for node in walk_nodes(function.results):
            if isinstance(node.op, Parameter):
                if node[0] not in views:
                    raise GraphError(f"function {function.name} uses a value that is not its parameter: {node.op.label}")
                continue
            inputs = [views[value] for value in node.inputs]
            for value, view in zip(node.values, self.node(node, inputs), strict=True):
                views[value] = view
        return [views[value] for value in function.results]

    def node(self, node: Node, inputs: Sequence[View]) -> list[View]:
        match node.op:
            case Constant(data=data):
                return [self.constant(data, node.types[0])]
            case Reshape() | RefineShape():
                return [self.reinterpret(node, inputs[0])]
            case BindSize(size=bound):
                self.step(Bind(bound, self.place(inputs[0]), node.origin))
                self.mark(self.bind_point([bound]))
                return [inputs[0]]
            case If():
                return self.branch(node.op, node, inputs)
            case Loop():
                return self.loop(node.op, inputs)
            case Call(function=name):
                return self.call(name, inputs)
        return self.launch(node, inputs)

    def launch(self, node: Node, inputs: Sequence[View]) -> list[View]:
        group = self.compiled(node)
        if group is None:
            raise TypeRuleError(f"operator {node.op.name} has no kernel", where=str(node.origin) if node.origin else None)
        operands = list(inputs)
        for i, layout in group.packed.items():
            op, buffer = node.inputs[i].op, group.kernel.inputs[i]
            if not isinstance(op, Constant):
                raise InternalError(f"kernel {group.kernel.name} packs operand {i}, which is not a constant")
            operands[i] = self.constant(op.data, TensorType(buffer.dtype, buffer.shape), layout)
        self.on_launch()
        results = [self.tensor(type_) for type_ in node.types]
        args = [*operands, *results]
        if group.workspace is not ZERO:
            args.append(self.tensor(TensorType(dtypes.uint8, (group.workspace,))))
        places = tuple(self.place(view) for view in args)
        origins = tuple(dict.fromkeys(origin for origin in origins_of(node)))
        self.step(Launch(group.kernel, places, group.kernel.sizes, origins))
        return results

    def reinterpret(self, node: Node, source: View) -> View:
        """Reshape and RefineShape change the type, not the bytes; what cannot be proved is checked while running."""
        target = node.types[0]
        where = f" at {node.origin}" if node.origin is not None else ""
        if isinstance(node.op, RefineShape):
            for axis, (have, want) in enumerate(zip(source.type.shape, target.shape, strict=True)):
                if not equal_dims(have, want):
                    text = f"dim {axis} is {{0}} ({have!r}) where the model needs {{1}} ({want!r}){where}"
                    self.step(Check(equal(have, want), text, (have, want)))
        elif not equal_dims(product(source.type.shape), product(target.shape)):
            have, want = product(source.type.shape), product(target.shape)
            text = f"a tensor of {{0}} elements ({source.type!r}) cannot be reshaped to {{1}} elements ({target!r}){where}"
            self.step(Check(all_of(equal(have, want), *(less_equal(0, dim) for dim in target.shape if not dim.is_const)), text, (have, want)))
        return View(source.storage, source.offset, target)

    def branch(self, op: If, node: Node, inputs: Sequence[View]) -> list[View]:
        condition, *captures = inputs
        results: list[View] = []
        point: BindPoint | None = None
        if op.fresh:
            point = self.bind_point(op.fresh)
        differing = dict(zip(differing_dims(op.then_branch, op.else_branch), op.fresh, strict=True))
        results = [self.tensor(type_) for type_ in node.types]
        where = self.place(condition)

        def side(function: Function) -> Callable[[], None]:
            def run() -> None:
                views = self.function(function, captures)
                for (result, axis), fresh in differing.items():
                    self.step(SetSize(fresh, views[result].type.shape[axis]))
                if point is not None:
                    self.mark(point)
                for view, target in zip(views, results, strict=True):
                    if target.storage.bind is point and point is not None:
                        self.step(Copy(self.place(target), self.place(view)))
                    else:
                        self.deliver(view, target)

            return run

        then_steps = self.nested(side(op.then_branch))
        otherwise = self.nested(side(op.else_branch))
        self.step(Branch(where, then_steps, otherwise))  # type: ignore[arg-type]
        for view in results:
            view.storage.last = max(view.storage.last, self.clock)
        return results

    def loop(self, op: Loop, inputs: Sequence[View]) -> list[View]:
        first = int(op.conditional)
        start = self.clock
        initial, captures = inputs[first : first + op.carried], inputs[first + op.carried :]
        fresh_point = self.bind_point(op.fresh) if op.fresh else None
        params = op.body.params
        for param, view in zip(params, initial, strict=False):
            for dim, have in zip(param.shape, view.type.shape, strict=True):
                if dim in op.fresh:
                    self.step(SetSize(dim, have))
        if fresh_point is not None:
            self.mark(fresh_point)
        carried = [self.tensor(param.type) for param in params[: op.carried]]
        for view, target in zip(initial, carried, strict=True):
            self.step(Copy(self.place(target), self.place(replace(view, type=target.type))))
        condition = None
        if op.conditional:
            condition = self.tensor(TensorType(dtypes.bool_, ()))
            self.step(Copy(self.place(condition), self.place(inputs[0])))
        counter_point = self.bind_point([op.counter])
        outputs = op.body.results[first + op.carried :]
        known = op.trip is not None and not op.conditional
        stacked: list[View] = []
        for value in outputs:
            late_item = any(v in op.defines or v in self.binds for v in free_vars(*value.shape))
            type_ = TensorType(value.type.dtype, (op.stacked_length, *value.shape))
            grows = not known or late_item
            stacked.append(View(self.storage(simplify(type_.bytes), grows=grows), ZERO, type_))

        def body() -> None:
            self.mark(counter_point)
            results = self.function(op.body, [*carried, *captures])
            after = results[first : first + op.carried]
            for view, target in zip(results[first + op.carried :], stacked, strict=True):
                item = simplify(view.type.bytes)
                if target.storage.grows:
                    self.step(Grow(Region("arena", target.storage.number), (op.counter + 1) * item))
                slot = View(target.storage, simplify(op.counter * item), view.type)
                if target.storage.grows or view.storage in [c.storage for c in carried] or any(view.storage is a.storage for a in after):
                    self.step(Copy(self.place(slot), self.place(view)))
                else:
                    self.deliver(view, slot)
            if condition is not None:
                self.step(Copy(self.place(condition), self.place(results[0])))
            self.carry(op, after, carried, fresh_point)

        steps = self.nested(body)
        where = None if condition is None else self.place(condition)
        self.step(LoopStep(op.counter, op.trip, where, steps))  # type: ignore[arg-type]
        for storage in self.storages:
            if storage.first <= start and storage.last >= start:
                storage.last = max(storage.last, self.clock)
        for view in (*carried, *stacked, *([condition] if condition else [])):
            view.storage.last = max(view.storage.last, self.clock)
        return [*carried, *stacked]

    def carry(self, op: Loop, after: Sequence[View], carried: Sequence[View], fresh_point: BindPoint | None) -> None:
        """Move the carried results of one iteration to where the next one reads them."""
        params = [view.storage for view in carried]
        staged: list[View] = []
        for view, target in zip(after, carried, strict=True):
            if view.storage in params and view.storage is not target.storage:
                copy = self.tensor(view.type)
                self.step(Copy(self.place(copy), self.place(view)))
                view = copy
            staged.append(view)
        for view, target in zip(staged, carried, strict=True):
            if view.storage is target.storage and fresh_point is not None:
                copy = self.tensor(view.type)
                self.step(Copy(self.place(copy), self.place(view)))
                staged[staged.index(view)] = copy
        if fresh_point is not None:
            pairs = {
                dim: have
                for param, view in zip(op.body.params, staged, strict=False)
                for dim, have in zip(param.shape, view.type.shape, strict=True)
                if dim in op.fresh
            }
            following = {dim: size(f"{dim.name}_next", 0) for dim in pairs}
            for dim, have in pairs.items():
                self.late_sizes[following[dim]] = None
                self.step(SetSize(following[dim], have))
            for dim in pairs:
                self.step(SetSize(dim, following[dim]))
            self.mark(fresh_point)
        for view, target in zip(staged, carried, strict=True):
            if view.storage is not target.storage:
                # the sizes in the source's type may just have changed meaning: its bytes are those of the target
                self.step(Copy(self.place(target), self.place(replace(view, type=target.type))))

    def call(self, name: str, inputs: Sequence[View]) -> list[View]:
        if name in self.calls:
            raise GraphError(f"function '{name}' calls itself", why="recursion cannot be planned ahead")
        self.calls.append(name)
        results = self.function(self.module.functions[name], inputs)
        self.calls.pop()
        return results


def origins_of(node: Node) -> list[Origin]:
    """The model nodes that a node computes: its own origin, or those inside of a fused function."""
    found: list[Origin] = []
    body = getattr(node.op, "body", None)
    if isinstance(body, Function):
        found = [inner.origin for inner in walk_nodes(body.results) if inner.origin is not None]
    if not found and node.origin is not None:
        found = [node.origin]
    return found


def build_plan(
    module: Module, compiled: Callable[[Node], CompiledGroup | None], on_launch: Callable[[], None] = lambda: None
) -> tuple[Plan, tuple[PlannedConstant, ...]]:
    """The plan of a module's entry, and the data of its constants in the order of the plan's constant regions.
    `on_launch` is called for each kernel launch planned."""
    builder = PlanBuilder(module, compiled, on_launch)
    main = module.main
    arguments = [View(builder.storage(p.type.bytes, "input", i), ZERO, p.type) for i, p in enumerate(main.params)]
    results = builder.function(main, arguments)
    for i, view in enumerate(results):
        target = View(builder.storage(simplify(view.type.bytes), "output", i), ZERO, view.type)
        builder.deliver(view, target)
    return finish(builder, [param.type for param in main.params], [view.type for view in results])


def finish(builder: PlanBuilder, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> tuple[Plan, tuple[PlannedConstant, ...]]:
    """Lay out the arenas and rewrite the steps from storages to places."""
    groups: dict[int, list[Storage]] = {}
    regions: dict[int, tuple[Region, Expr]] = {}
    arenas = 1
    for storage in builder.storages:
        if storage.forward is not None:
            continue
        if storage.kind != "arena":
            regions[storage.number] = (Region(storage.kind, storage.index), ZERO)  # type: ignore[arg-type]
        elif storage.grows:
            regions[storage.number] = (Region("arena", arenas), ZERO)
            arenas += 1
        else:
            groups.setdefault(-1 if storage.bind is None else storage.bind.number, []).append(storage)
    allocations: dict[int, list[Step]] = {}
    total: Expr = ZERO
    for bind, members in sorted(groups.items()):
        offsets, bytes_ = place([Interval(s.bytes, s.first, s.last) for s in members])
        arena = Region("arena", 0)
        if bind < 0:
            total = bytes_
        else:
            arena = Region("arena", arenas)
            arenas += 1
            allocations.setdefault(bind, []).append(Allocate(arena, bytes_))
        for storage, offset in zip(members, offsets, strict=True):
            regions[storage.number] = (arena, offset)
    late_outputs = []
    for storage in builder.storages:
        if storage.kind == "output" and storage.bind is not None:
            late_outputs.append(storage.index)
            allocations.setdefault(storage.bind.number, []).append(Allocate(Region("output", storage.index), storage.bytes))
    steps = _resolve(builder.steps, builder.storages, regions, allocations)
    input_sizes = sizes_of(inputs)
    sizes = tuple(dict.fromkeys((*input_sizes, *builder.late_sizes)))
    constant_types = tuple(constant.type for constant in builder.constants)
    plan = Plan(tuple(inputs), tuple(outputs), tuple(late_outputs), constant_types, steps, total, arenas, sizes, len(input_sizes))
    return plan, tuple(builder.constants)


def _resolve(
    steps: Sequence[PlannedStep],
    storages: Sequence[Storage],
    regions: Mapping[int, tuple[Region, Expr]],
    allocations: Mapping[int, Sequence[Step]],
) -> tuple[Step, ...]:
    def real(place_: Place) -> Place:
        storage, offset = storages[place_.region.index], place_.offset
        while storage.forward is not None:
            offset, storage = offset + storage.forward.offset, storage.forward.storage
        region, base = regions[storage.number]
        return Place(region, simplify(base + offset), place_.type)

    result: list[Step] = []
    for step in steps:
        match step:
            case _Marker(bind):
                result.extend(allocations.get(bind.number, ()))
            case Launch():
                result.append(replace(step, args=tuple(real(p) for p in step.args)))
            case Copy(target, source):
                target, source = real(target), real(source)
                if (target.region, target.offset) != (source.region, source.offset):
                    result.append(Copy(target, source))
            case Bind():
                result.append(replace(step, source=real(step.source)))
            case Grow(arena, bytes_):
                result.append(Grow(regions[arena.index][0], bytes_))
            case Branch(condition, then, otherwise):
                sides = [_resolve(side, storages, regions, allocations) for side in (then, otherwise)]
                result.append(Branch(real(condition), sides[0], sides[1]))
            case LoopStep(counter, trip, condition, body):
                where = None if condition is None else real(condition)
                result.append(LoopStep(counter, trip, where, _resolve(body, storages, regions, allocations)))
            case _:
                result.append(step)
    return tuple(result)
