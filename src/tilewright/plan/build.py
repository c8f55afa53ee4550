"""Building a plan: walks a function in order, turns nodes into steps, and gives every tensor a place.

Tensors first live in storages, each with its size and its live interval on a clock that ticks with every step. When all steps are
known, `memory.place` lays the storages of each arena out, and the steps are rewritten from storages to places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np

from tilewright.graph.in_place import cut_axis, is_in_place, is_piece_of_constant, picked_axis
from tilewright.graph.node import Array, Function, Module, Node, Origin, Parameter, Value, operator_sizes, walk_nodes
from tilewright.graph.ops import (
    BindSize,
    Call,
    Concat,
    Constant,
    ConstantData,
    Fused,
    Gather,
    If,
    Loop,
    Pad,
    RefineShape,
    Reshape,
    SizeValue,
    Slice,
)
from tilewright.graph.ops.positions import clamped, wrapped
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, all_of, equal, less_equal, logical_or
from tilewright.ir.prove import equal_dims, prove
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import TensorType, product
from tilewright.kernel.nodes import Kernel
from tilewright.plan.control_flow import plan_branch, plan_loop
from tilewright.plan.placing import lay_out
from tilewright.plan.steps import Bind, Check, Launch, Plan, literal
from tilewright.plan.storage import ZERO, Ledger, Storage, View
from tilewright.support.errors import GraphError, InternalError, TypeRuleError


class Layout(Protocol):
    """How a constant is laid out for a kernel. Hashable, so that equal layouts of equal data are stored once."""

    def pack(self, array: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class EachSlice:
    """The slices of a constant, each of `shape`, one after the other, every one in `layout`."""

    layout: Layout
    shape: tuple[int, ...]

    def pack(self, array: Array) -> Array:
        parts = array.reshape(-1, *self.shape)
        first = self.layout.pack(parts[0])
        packed = np.empty((len(parts), *first.shape), first.dtype)
        packed[0] = first
        for i, part in enumerate(parts[1:], 1):  # no second copy of them all
            packed[i] = self.layout.pack(part)
        return packed


@dataclass(frozen=True, slots=True)
class Picked:
    """What begins with slice `number` of a constant, each of `each` elements, known while running. In which layout the constant is stored
    depends on who reads it."""

    whole: Value
    number: Expr
    each: Expr
    type: TensorType


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
    """What the planner needs of a fused group: the lowered `kernel`, bytes of its `workspace` (0: none), the layouts in which it wants
    operands that are constants (`packed`: operand index -> layout), and which results may be stored over which operands (`overwrites`:
    pairs of operand and result)."""

    kernel: Kernel
    workspace: Expr = ZERO
    packed: Mapping[int, Layout] = field(default_factory=dict)
    overwrites: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class PlanBuilder:
    """State of one plan under construction. `compiled` gives the kernel of a fused node."""

    compiled: Callable[[Node], CompiledGroup | None]
    on_launch: Callable[[], None] = lambda: None
    ledger: Ledger = field(default_factory=Ledger)
    constants: dict[PlannedConstant, Storage] = field(default_factory=dict)
    since: int = 0  # when the function that is being planned began
    positions: dict[Value, Expr] = field(default_factory=dict)  # indices that slices of this function are picked by
    given: frozenset[Expr] = frozenset()  # the sizes of the inputs
    sound: frozenset[Expr] = frozenset()  # dims that are not negative, wherever the step at hand is reached

    def constant(self, data: ConstantData, type_: TensorType, layout: Layout | None = None) -> View:
        constant = PlannedConstant(data, layout, type_)
        storage = self.constants.get(constant)
        if storage is None:
            storage = self.ledger.storage(type_.bytes, "constant", len(self.constants))
            self.constants[constant] = storage
        return View(storage, ZERO, type_)

    def function(self, function: Function, arguments: Sequence[View]) -> list[View]:
        """Steps of a function's body; the views of its results."""
        outer, self.since, self.positions = (self.since, self.positions, self.sound), self.ledger.clock, {}
        views: dict[Value, View | Picked] = dict(zip(function.params, arguments, strict=True))
        nodes = list(walk_nodes(function.results))
        for node in nodes:  # before anything is written to memory that is laid out by these sizes
            self.expect_sound(node, self.given)
        for node in nodes:
            if isinstance(node.op, Parameter):
                if node[0] not in views:
                    raise GraphError(f"function {function.name} uses a value that is not its parameter: {node.op.label}")
            elif not isinstance(node.op, Constant):
                self.expect_sound(node, None)
                self.expect_borders(node)
                views.update(zip(node.values, self.node(node, views), strict=True))
        self.since, self.positions, self.sound = outer
        return [self.view(value, views) for value in function.results]

    def expect_sound(self, node: Node, sizes: frozenset[Expr] | None) -> None:
        """Check while running that no result of a node, nor of those it is fused of, has a negative dim: dims of all sizes, or of `sizes`
        alone. What a Reshape or a RefineShape makes of a shape is checked where they are planned."""
        for each in _with_fused(node):
            if isinstance(each.op, (Parameter, Constant, Reshape, RefineShape)):
                continue
            for type_ in each.types:
                for dim in type_.shape:
                    if dim.is_const or dim in self.sound or (sizes is not None and not sizes.issuperset(free_vars(dim))):
                        continue
                    self.sound |= {dim}
                    if not prove(less_equal(0, dim)):
                        self.ledger.step(
                            Check(less_equal(0, dim), f"a dim of a result{_said(each, node, 'of')} would be {{0}} ({dim!r})", (dim,))
                        )

    def expect_borders(self, node: Node) -> None:
        """Check while running that what a Pad repeats is there: an axis without elements has no border, and reading it would leave it."""
        for each in _with_fused(node):
            if not isinstance(each.op, Pad) or each.op.mode == "constant":
                continue
            for axis, (dim, padded) in enumerate(zip(each.inputs[0].shape, each.types[0].shape, strict=True)):
                if dim is not padded and not dim.is_const and not prove(less_equal(1, dim)):
                    where = _said(each, node, "at")
                    text = f"axis {axis} is empty, so mode {each.op.mode} has no element to repeat: it would have {{0}}{where}"
                    self.ledger.step(Check(logical_or(less_equal(1, dim), less_equal(padded, 0)), text, (padded,)))

    def view(self, value: Value, views: Mapping[Value, View | Picked]) -> View:
        """Where a value is. Constants are stored when something wants them as they are, not where kernels read a packed form only."""
        if isinstance(value.op, Constant):
            return self.constant(value.op.data, value.type)
        found = views[value]
        return self.picked(found) if isinstance(found, Picked) else found

    def picked(self, piece: Picked) -> View:
        """Where a piece of a constant is, as it is."""
        storage = self.view(piece.whole, {}).storage
        return View(storage, simplify(piece.number * (piece.each * piece.type.dtype.bytes)), piece.type)

    def packed(self, piece: Picked, type_: TensorType, layout: Layout) -> View:
        """Where one slice of a constant is in a layout, in which it is of `type_`."""
        data = piece.whole.op
        assert isinstance(data, Constant)
        each = EachSlice(layout, tuple(int(dim.value) for dim in piece.type.shape))
        whole = TensorType(type_.dtype, (piece.whole.type.count // piece.each, *type_.shape))
        return View(self.constant(data.data, whole, each).storage, simplify(piece.number * type_.bytes), type_)

    def node(self, node: Node, views: Mapping[Value, View | Picked]) -> Sequence[View | Picked]:
        axis = picked_axis(node)
        if not (isinstance(node.op, (Reshape, RefineShape, BindSize, If, Loop, Call)) or is_in_place(node) or axis is not None):
            return self.launch(node, views)
        if is_piece_of_constant(node):
            return [self.piece(node, views)]
        if isinstance(node.op, (Reshape, RefineShape)):
            return [self.reinterpret(node, views.get(node.inputs[0]) or self.view(node.inputs[0], views))]
        inputs = [self.view(value, views) for value in node.inputs if axis is None or value is node.inputs[0]]
        match node.op:
            case Concat():
                return [self.join(node, inputs)]
            case Slice():
                return [self.part(node, node.op, inputs[0])]
            case Gather() if axis is not None:
                step = product(inputs[0].type.shape[axis + 1 :]) * inputs[0].type.dtype.bytes
                return [View(inputs[0].storage, simplify(inputs[0].offset + self.number(node, axis, views) * step), node.types[0])]
            case BindSize(size=bound):
                self.ledger.step(Bind(bound, self.ledger.place(inputs[0]), node.origin))
                self.ledger.mark(self.ledger.bind_point([bound]))
                return [inputs[0]]
            case If():
                return plan_branch(self.ledger, self.function, node.op, node, inputs)
            case Loop():
                return plan_loop(self.ledger, self.function, node.op, inputs)
        raise InternalError(f"a {node.op.name} was not opened before planning")  # calls are inlined

    def piece(self, node: Node, views: Mapping[Value, View | Picked]) -> Picked:
        """A Gather or Slice that is a piece of a constant."""
        whole, axis = node.inputs[0], picked_axis(node)
        if axis is not None:
            number = self.number(node, axis, views)
        else:
            axis = cut_axis(node)
            if axis is None or not isinstance(node.op, Slice):
                raise InternalError(f"{node!r} is no piece of a constant")
            number = node.op.starts[axis]
        return Picked(whole, number, product(whole.shape[axis + 1 :]), node.types[0])

    def number(self, node: Node, axis: int, views: Mapping[Value, View | Picked]) -> Expr:
        """Which slice along `axis` a Gather picks."""
        x, index = node.inputs
        dim = x.shape[axis]
        while isinstance(index.op, Reshape):
            index = index.node.inputs[0]
        inner = index.op.body.results[index.index] if isinstance(index.op, Fused) else index
        at = inner.op.size if isinstance(inner.op, SizeValue) else self.positions.get(index)
        if at is None:
            # any integer; what it stands for is computed where it is used
            at = self.positions[index] = self.ledger.own_size("slice", None)
            self.ledger.step(Bind(at, self.ledger.place(self.view(index, views)), node.origin))
        return simplify(clamped(wrapped(at, dim), dim))

    def launch(self, node: Node, views: Mapping[Value, View | Picked]) -> list[View]:
        group = self.compiled(node)
        if group is None:
            raise TypeRuleError(f"operator {node.op.name} has no kernel", where=str(node.origin) if node.origin else None)
        operands: list[View] = []
        for i, value in enumerate(node.inputs):
            layout = group.packed.get(i)
            if layout is None:
                operands.append(self.view(value, views))
                continue
            buffer = group.kernel.inputs[i]
            type_, found = TensorType(buffer.dtype, buffer.shape), views.get(value)
            if isinstance(value.op, Constant):
                operands.append(self.constant(value.op.data, type_, layout))
            elif isinstance(found, Picked):
                operands.append(self.packed(found, type_, layout))
            else:
                raise InternalError(f"kernel {group.kernel.name} packs operand {i}, which is not a constant")
        self.on_launch()
        results = [self.ledger.tensor(type_) for type_ in node.types]
        args = [*operands, *results]
        if group.workspace is not ZERO:
            args.append(self.ledger.tensor(TensorType(dtypes.uint8, (group.workspace,))))
        places = tuple(self.ledger.place(view) for view in args)
        for i, o in group.overwrites:
            self.ledger.may_overwrite(operands[i], results[o], [view for n, view in enumerate(operands) if n != i])
        origins = origins_of(node)
        self.ledger.step(Launch(group.kernel, places, group.kernel.sizes, origins, node))
        return results

    def join(self, node: Node, inputs: Sequence[View]) -> View:
        """A concatenation in memory: operands are written to their part of the result by whoever computes them, or copied there."""
        target = self.ledger.tensor(node.types[0])
        offset: Expr = ZERO
        for view in inputs:
            part = View(target.storage, offset, view.type)
            self.ledger.deliver(view, part, self.since)
            offset = simplify(offset + view.type.bytes)
        self.ledger.use(target.storage)
        return target

    def part(self, node: Node, op: Slice, source: View) -> View:
        """A slice that is a piece of its operand."""
        axis = cut_axis(node)
        if axis is None:
            raise InternalError(f"slice {node!r} is not one piece of its operand")
        step = product(source.type.shape[axis + 1 :]) * source.type.dtype.bytes
        return View(source.storage, simplify(source.offset + op.starts[axis] * step), node.types[0])

    def reinterpret(self, node: Node, source: View | Picked) -> View | Picked:
        """Reshape and RefineShape change the type, not the bytes; what cannot be proved is checked while running."""
        target = node.types[0]
        where = f" at {literal(str(node.origin))}" if node.origin is not None else ""
        if isinstance(node.op, RefineShape):
            for axis, (have, want) in enumerate(zip(source.type.shape, target.shape, strict=True)):
                if not equal_dims(have, want):
                    text = f"dim {axis} is {{0}} ({have!r}) where the model needs {{1}} ({want!r}){where}"
                    self.ledger.step(Check(equal(have, want), text, (have, want)))
        elif not equal_dims(product(source.type.shape), product(target.shape)):
            have, want = product(source.type.shape), product(target.shape)
            text = f"a tensor of {{0}} elements ({source.type!r}) cannot be reshaped to {{1}} elements ({target!r}){where}"
            self.ledger.step(
                Check(all_of(equal(have, want), *(less_equal(0, dim) for dim in target.shape if not dim.is_const)), text, (have, want))
            )
        return replace(source, type=target)


def origins_of(node: Node) -> tuple[Origin, ...]:
    """The model nodes that a node computes."""
    return () if node.origin is None else node.origin.parts or (node.origin,)


def _with_fused(node: Node) -> Iterator[Node]:
    """The node, and those that it is fused of."""
    yield node
    if isinstance(node.op, Fused):
        yield from walk_nodes(node.op.body.results)


def _said(node: Node, group: Node, word: str) -> str:
    """Where a node of a group comes from, as the text of a check has it."""
    origin = node.origin or group.origin
    return f" {word} {literal(str(origin))}" if origin is not None else ""


def build_plan(
    module: Module, compiled: Callable[[Node], CompiledGroup | None], on_launch: Callable[[], None] = lambda: None
) -> tuple[Plan, tuple[PlannedConstant, ...]]:
    """The plan of a module's entry, and the data of its constants in the order of the plan's constant regions. Calls must be inlined.
    `on_launch` is called for each kernel launch planned."""
    builder = PlanBuilder(compiled, on_launch)
    ledger, main = builder.ledger, module.main
    ledger.names.update(names_of_sizes(module.main))
    arguments = [View(ledger.storage(p.type.bytes, "input", i), ZERO, p.type) for i, p in enumerate(main.params)]
    builder.given = frozenset(free_vars(*(dim for param in main.params for dim in param.type.shape)))
    results = builder.function(main, arguments)
    for i, view in enumerate(results):
        target = ledger.output(view.type, i)
        ledger.deliver(view, target)
    inputs, outputs = [param.type for param in main.params], [view.type for view in results]
    return lay_out(ledger, inputs, outputs, [constant.type for constant in builder.constants]), tuple(builder.constants)


def names_of_sizes(function: Function) -> set[str]:
    """The names of all sizes in a function, and in those inside of it."""
    found = {v.name for v in free_vars(*(dim for param in function.params for dim in param.shape))}
    for node in walk_nodes(function.results):
        dims = [dim for type_ in node.types for dim in type_.shape]
        found.update(v.name for v in (*node.op.defines, *operator_sizes(node.op), *free_vars(*dims)))
        for inner in (getattr(node.op, each.name) for each in fields(node.op)):
            if isinstance(inner, Function):
                found |= names_of_sizes(inner)
    return found
