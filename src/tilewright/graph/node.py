"""Graphs: operators, nodes, values, functions, modules. Immutable and interned; equality is identity.

A graph has no order and no names: a function is its parameters and results, and what they reach is the program. Order is
the planner's business.

Sizes that depend on data are bound by the node whose operator lists them in `defines` (`bind_size`, loops, branches). A node
whose attributes mention such a size lists the binding value among its `binders`, so that dataflow alone says what must run first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from tilewright.ir.expr import Expr, const
from tilewright.ir.interning import Interned
from tilewright.ir.traverse import evaluate_int, free_vars, substitute
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Origin(Interned):
    """Where a node comes from in the user's model: its name and operator there, file or line. A fused group has the origin of its main
    node, with those of all its nodes in `parts`."""

    name: str
    operator: str = ""
    location: str = ""
    parts: tuple[Origin, ...] = ()

    def __str__(self) -> str:
        return f"{self.operator} node '{self.name}'" if self.operator else self.name


@dataclass(frozen=True, slots=True, eq=False)
class Operator(Interned):
    """Base of operators: a frozen dataclass whose fields are the attributes (ints, floats, strings, dtypes, expressions, functions, tuples
    of these). A subclass gives a `name`, `infer` and `reference`, and either `define` (a kernel) or `decompose` (other operators).

    Attributes that are shapes or positions are int64 expressions, so that they may be symbolic.
    """

    _numbers: ClassVar[bool] = True
    name: ClassVar[str] = ""

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The types of the results. Raises TypeRuleError (message without location; the caller adds the origin)."""
        raise TypeRuleError(f"operator {self.name} has no type rule")

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """The results in NumPy. Attributes are bound before (`bind_operator`), so every dim is a constant."""
        raise TypeRuleError(f"operator {self.name} has no reference")

    @property
    def defines(self) -> tuple[Expr, ...]:
        """Sizes that this operator's execution binds."""
        return ()


class Defined(Protocol):
    """An operator with a kernel definition."""

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Append blocks to `k` that compute the results from `inputs`; the results' tensors."""


class Composite(Protocol):
    """An operator that can be written with others."""

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """The results, of the types that the operator's type rule infers."""


def has_definition(op: Operator) -> bool:
    return hasattr(op, "define")


def has_decomposition(op: Operator) -> bool:
    return hasattr(op, "decompose")


def define(op: Operator, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The operator's kernel definition, appended to `k`. Raises TypeRuleError for an operator that has none."""
    if not has_definition(op):
        raise TypeRuleError(f"operator {op.name} has neither a kernel definition nor a decomposition")
    return cast(Defined, op).define(k, inputs)


def decompose(op: Operator, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """The operator in terms of other operators."""
    return cast(Composite, op).decompose(g, inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Node(Interned):
    """An operator applied to values. `types` are the result types; `binders` the values that bind data-dependent sizes which the
    attributes mention. `origin` is not part of identity: merged nodes keep the first."""

    _uninterned: ClassVar[tuple[str, ...]] = ("origin",)

    op: Operator
    inputs: tuple[Value, ...]
    types: tuple[TensorType, ...]
    binders: tuple[Value, ...] = ()
    origin: Origin | None = None

    @property
    def dependencies(self) -> tuple[Value, ...]:
        return self.inputs + self.binders

    def __getitem__(self, index: int) -> Value:
        return Value(self, index)

    @property
    def values(self) -> tuple[Value, ...]:
        return (Value(self, 0),) if len(self.types) == 1 else tuple([Value(self, i) for i in range(len(self.types))])

    def __repr__(self) -> str:
        return f"<{self.op.name} -> {', '.join(map(repr, self.types))}>"


@dataclass(frozen=True, slots=True, eq=False)
class Value(Interned):
    """Result number `index` of a node."""

    node: Node
    index: int = 0

    @property
    def type(self) -> TensorType:
        return self.node.types[self.index]

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.type.shape

    @property
    def op(self) -> Operator:
        return self.node.op

    def __repr__(self) -> str:
        return f"<{self.op.name}.{self.index}: {self.type!r}>"


@dataclass(frozen=True, slots=True, eq=False)
class Parameter(Operator):
    """A parameter of a function."""

    name: ClassVar[str] = "parameter"
    label: str
    type: TensorType

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return (self.type,)


@dataclass(frozen=True, slots=True, eq=False)
class Function(Interned):
    """A closed function: `params` are values of Parameter nodes; results reach nothing else from outside."""

    name: str
    params: tuple[Value, ...]
    results: tuple[Value, ...]

    def __repr__(self) -> str:
        from tilewright.graph.text import format_function

        return format_function(self)


@dataclass(frozen=True, slots=True)
class Module:
    """Functions by name; `entry` is the one to run. `input_names` and `output_names` are those of the model, in order."""

    functions: Mapping[str, Function]
    entry: str = "main"
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()

    @property
    def main(self) -> Function:
        return self.functions[self.entry]

    def with_main(self, function: Function) -> Module:
        return replace(self, functions={**self.functions, self.entry: function})


@lru_cache(maxsize=65536)
def operator_sizes(op: Operator) -> tuple[Expr, ...]:
    """The sizes that the attributes mention; of a function that it holds, those that the function does not bind itself."""
    found: list[Expr] = []

    def visit(value: Any) -> None:
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, TensorType):
            found.extend(value.shape)
        elif isinstance(value, Function):
            found.extend(function_sizes(value))
        elif isinstance(value, tuple):
            for item in value:
                visit(item)

    for f in fields(op):
        visit(getattr(op, f.name))
    return free_vars(*found)


def function_sizes(function: Function) -> tuple[Expr, ...]:
    """The sizes that the nodes of a function mention and none of them binds."""
    nodes = list(walk_nodes(function.results))
    bound = {size for node in nodes for size in node.op.defines}
    used = [size for node in nodes for size in (*operator_sizes(node.op), *free_vars(*(d for t in node.types for d in t.shape)))]
    return tuple(dict.fromkeys(size for size in used if size not in bound))


def map_operator(op: Operator, on_expr: Callable[[Expr], Expr]) -> Operator:
    """The operator with every expression in its attributes mapped (also in tensor types, not inside functions)."""

    def visit(value: Any) -> Any:
        if isinstance(value, Expr):
            return on_expr(value)
        if isinstance(value, TensorType):
            return TensorType(value.dtype, tuple(on_expr(dim) for dim in value.shape))
        if isinstance(value, tuple):
            return tuple(visit(item) for item in value)
        return value

    changes = {}
    for f in fields(op):
        old = getattr(op, f.name)
        new = visit(old)
        if new is not old and new != old:
            changes[f.name] = new
    return replace(op, **changes) if changes else op


def bind_operator(op: Operator, sizes: Mapping[Expr, int]) -> Operator:
    """The operator with its size expressions evaluated, ready for `reference`."""
    return map_operator(op, lambda e: const(evaluate_int(e, sizes))) if operator_sizes(op) else op


def substitute_operator(op: Operator, mapping: Mapping[Expr, Expr]) -> Operator:
    return map_operator(op, lambda e: substitute(e, mapping)) if operator_sizes(op) else op


@dataclass(slots=True)
class GraphBuilder:
    """Makes nodes: runs type rules, adds binders and origins.

    `origin` is attached to the nodes emitted while it is set; a type rule's error is raised with it.
    """

    binders: dict[Expr, Value] = field(default_factory=dict)
    origin: Origin | None = None

    def emit(self, op: Operator, *inputs: Value, origin: Origin | None = None) -> tuple[Value, ...]:
        """All results of `op` applied to `inputs`."""
        origin = origin or self.origin
        try:
            types = op.infer(tuple([value.node.types[value.index] for value in inputs]))
            for type_ in types:
                if not type_.is_possible:
                    why = "a size is negative, or it is larger than any memory"
                    raise TypeRuleError(f"{op.name}: there can be no result of type {type_}", why=why)
        except TypeRuleError as error:
            raise (error if origin is None else error.located(str(origin))) from None
        sizes = operator_sizes(op)
        binders: tuple[Value, ...] = ()
        if sizes and self.binders:
            mine = op.defines
            binders = tuple(dict.fromkeys(self.binders[s] for s in sizes if s in self.binders and s not in mine))
        if op.name == "constant":
            origin = None  # equal constants are one node, also of several models: whoever makes one first would name it
        node = Node(op, inputs, types, binders, origin)
        for defined in op.defines:
            self.binders.setdefault(defined, Value(node, 0))
        return node.values

    def one(self, op: Operator, *inputs: Value, origin: Origin | None = None) -> Value:
        """The single result of `op`."""
        (result,) = self.emit(op, *inputs, origin=origin)
        return result


def walk_nodes(results: Iterable[Value]) -> Iterator[Node]:
    """Every node that the results reach, dependencies first; deterministic."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(value.node, False) for value in reversed(list(results))]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((value.node, False) for value in reversed(node.dependencies))


def users_of(results: Sequence[Value]) -> dict[Node, list[Node]]:
    """For each reached node, the nodes that depend on it."""
    users: dict[Node, list[Node]] = {}
    for node in walk_nodes(results):
        users.setdefault(node, [])
        for dependency in dict.fromkeys(value.node for value in node.dependencies):
            users[dependency].append(node)
    return users


def builder_for(results: Iterable[Value]) -> GraphBuilder:
    """A builder that knows the binders of an existing graph."""
    builder = GraphBuilder()
    for node in walk_nodes(results):
        for defined in node.op.defines:
            builder.binders.setdefault(defined, Value(node, 0))
    return builder


def rewrite_function(function: Function, visit: Callable[[GraphBuilder, Node, tuple[Value, ...]], Sequence[Value] | None]) -> Function:
    """Rebuild a function bottom-up: for each node, `visit(builder, node, new_inputs)` answers replacement values (one for each result)
    or None, which keeps the operator over the new inputs. Parameters stay."""
    builder = GraphBuilder()
    mapped: dict[Value, Value] = {}
    for node in walk_nodes(function.results):
        inputs = tuple([mapped[value] for value in node.inputs])
        builder.origin = node.origin
        replacement = visit(builder, node, inputs)
        if replacement is None:
            unchanged = inputs == node.inputs and all(mapped[b] is b for b in node.binders)
            if unchanged:
                for defined in node.op.defines:
                    builder.binders.setdefault(defined, Value(node, 0))
            replacement = node.values if unchanged else builder.emit(node.op, *inputs)
        for value, new in zip(node.values, replacement, strict=True):
            mapped[value] = new
    return Function(function.name, function.params, tuple(mapped[value] for value in function.results))
