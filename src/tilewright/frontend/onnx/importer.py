"""ONNX graphs to Tilewright graphs: scopes, subgraphs, functions, symbolic dims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx

from tilewright.frontend.dims import DimRange
from tilewright.frontend.onnx import opset6
from tilewright.frontend.onnx.bodies import schema_function, type_proto
from tilewright.frontend.onnx.context import ModelState, NodeContext, origin_of
from tilewright.frontend.onnx.declared import warn_of_contradiction
from tilewright.frontend.onnx.inputs import Dims
from tilewright.frontend.onnx.loader import LoadedModel, dtype_of
from tilewright.frontend.onnx.node_check import check_node, check_types
from tilewright.frontend.onnx.operators.sequence import ACCEPTING
from tilewright.frontend.onnx.order import why_undefined
from tilewright.frontend.onnx.registry import IMPORTERS
from tilewright.frontend.onnx.walking import outer_names
from tilewright.graph.node import Function, Module, Origin, Parameter, Value
from tilewright.graph.ops import Constant, ConstantData
from tilewright.ir import dtypes
from tilewright.support.errors import (
    GraphError,
    InternalError,
    ModelError,
    TilewrightError,
    TypeRuleError,
    UnsupportedDtypeError,
    UnsupportedOperatorError,
)

__all__ = ["DimRange", "GraphImporter", "Imported", "import_model"]

FunctionKey: TypeAlias = tuple[str, str, str]  # domain, name, overload
OLDEST_OPSET = 7  # before, elementwise operators broadcast by rules of their own; of set 6, what exporters wrote is read too

Scope: TypeAlias = dict[str, Value]  # the names of one graph; a subgraph's scope starts with its captures


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: the module, and the problems found when importing was asked to go on (`check`)."""

    module: Module
    problems: tuple[TilewrightError, ...] = ()


@dataclass(slots=True)
class GraphImporter:
    """Imports one graph after another into a shared state. With `problems` a list, unsupported nodes are collected and skipped."""

    state: ModelState
    functions: dict[FunctionKey, onnx.FunctionProto]
    problems: list[TilewrightError] | None = None
    callers: tuple[str, ...] = ()  # the nodes whose functions are being imported, outermost first

    def origin(self, node: onnx.NodeProto) -> Origin:
        own = origin_of(node)
        return Origin("/".join((*self.callers, own.name)), own.operator) if self.callers else own

    def initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        for tensor in graph.initializer:
            scope[tensor.name] = self.state.g.one(Constant(ConstantData(self.state.model.tensor(tensor))))
        for sparse in graph.sparse_initializer:
            scope[sparse.values.name] = self.state.g.one(Constant(ConstantData(self.state.model.dense(sparse))))

    def nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope) -> None:
        before: set[str] = set()
        for node in nodes:
            try:
                self.guarded(node, scope, nodes, before)
            except TilewrightError as error:
                error = error.located(str(self.origin(node)))
                if self.problems is None or isinstance(error, InternalError):
                    raise error from error.__cause__
                self.problems.append(error)
            before.update(node.output)

    def guarded(self, node: onnx.NodeProto, scope: Scope, nodes: Sequence[onnx.NodeProto], before: set[str]) -> None:
        """Import a node. Raises TilewrightErrors only: where an importer fails in another way, ONNX is asked whether the node
        is to blame."""
        try:
            self.node(node, scope, nodes, before)
        except (TilewrightError, MemoryError):
            raise
        except RecursionError:
            raise ModelError("the model nests too deeply") from None
        except Exception as error:
            check_types(node, {name: type_proto(scope[name]) for name in node.input if name in scope}, self.state.opsets)
            raise InternalError(f"{node.op_type} cannot be imported", why=f"{type(error).__name__}: {error}") from error

    def node(self, node: onnx.NodeProto, scope: Scope, nodes: Sequence[onnx.NodeProto], before: set[str]) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.state.opsets.get(domain, OLDEST_OPSET)
        if domain == "" and is_too_old(node.op_type, version):
            raise UnsupportedOperatorError(
                f"{node.op_type} of operator set {version} is not supported",
                why=f"it changed before operator set {OLDEST_OPSET}, the oldest that is read whole",
                hint="convert the model: onnx.version_converter.convert_version(model, 13)",
            )
        function = self.functions.get((domain, node.op_type, node.overload))
        if function is None:
            check_node(node, version, domain)
        importer = None if function is not None else IMPORTERS.get((domain, node.op_type))
        inputs = self.inputs(node, scope, nodes, before)
        if inputs is None:
            return
        if importer is not None and node.op_type not in ACCEPTING and any(value in self.state.sequences for value in inputs):
            raise UnsupportedOperatorError(f"{node.op_type} of a sequence of tensors is not supported")
        self.state.g.origin = self.origin(node)
        if importer is not None:
            context = NodeContext(
                node,
                self.state,
                inputs,
                lambda graph, params: self.subgraph(graph, scope, params),
                lambda graph: self.captured(graph, scope),
                lambda: self.by_definition(node, domain, inputs),
                lambda graph: self.inlined(graph, scope),
                lambda graph: self.attempted(graph, scope, ()),
                lambda function, operands: self.call(node, function, operands),
            )
            if domain == "" and version == opset6.VERSION and node.op_type in opset6.READ:
                context.inputs = opset6.modern_inputs(context)
            results = importer(context)
        else:
            results = self.by_definition(node, domain, inputs) if function is None else self.call(node, function, inputs)
        results = (results,) if isinstance(results, Value) else tuple(results)
        for name, result in zip(node.output, results, strict=False):
            if name and result is not None:
                if name in scope:
                    raise GraphError(f"'{name}' is defined twice")
                scope[name] = result

    def inputs(
        self, node: onnx.NodeProto, scope: Scope, nodes: Sequence[onnx.NodeProto], before: set[str]
    ) -> tuple[Value | None, ...] | None:
        """The values of a node's inputs; None when the producer of one, among the nodes before, is already reported as a problem."""
        inputs: list[Value | None] = []
        for name in node.input:
            if not name:
                inputs.append(None)
                continue
            value = scope.get(name)
            if value is None:
                if self.problems is not None and name in before:
                    return None
                raise GraphError(f"'{name}' is used before it is defined", why=why_undefined(name, nodes))
            inputs.append(value)
        return tuple(inputs)

    def by_definition(self, node: onnx.NodeProto, domain: str, inputs: Sequence[Value | None]) -> list[Value | None]:
        """The operator's results by ONNX's own definition in terms of others; UnsupportedOperatorError when there is none."""
        function = schema_function(node, domain, self.state.opsets.get(domain, 1), inputs)
        if function is None:
            raise unsupported(node, domain, self.state)
        return self.call(node, function, inputs)

    def call(self, node: onnx.NodeProto, function: onnx.FunctionProto, inputs: Sequence[Value | None]) -> list[Value | None]:
        """A function, imported in place. Inputs that the node leaves out are left out of the nodes that would read them."""
        scope: Scope = {}
        for name, value in zip(function.input, inputs, strict=False):
            if value is not None:
                scope[name] = value
        left_out = frozenset(function.input) - scope.keys()
        given = {attribute.name: attribute for attribute in node.attribute}
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        outer, callers = dict(self.state.opsets), self.callers
        self.state.opsets.update({"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import})
        self.callers = (*callers, origin_of(node).name)
        self.nodes([_without(_with_attributes(inner, {**defaults, **given}), left_out) for inner in function.node], scope)
        self.callers = callers
        self.state.opsets.clear()
        self.state.opsets.update(outer)
        return [scope.get(name) for name in function.output]

    def captured(self, graph: onnx.GraphProto, scope: Scope) -> tuple[Value, ...]:
        """The values of `scope` that a subgraph uses, in a fixed order; constants are left out, they are copied."""
        found = [scope.get(name) for name in outer_names(graph)]
        return tuple(dict.fromkeys(v for v in found if v is not None and not isinstance(v.op, Constant)))

    def subgraph(self, graph: onnx.GraphProto, parent: Scope, params: Sequence[Value]) -> Function:
        """A subgraph as a function of `params` (Parameter values for the graph's own inputs) followed by its captures, in the order of
        `captured(graph)`."""
        scope: Scope = {}
        outer = self.captured(graph, parent)
        by_outer: dict[Value, Value] = {}
        if any(value in self.state.sequences for value in outer):
            raise UnsupportedOperatorError(f"the subgraph '{graph.name}' uses a sequence of tensors from outside of it")
        g, binders, origin = self.state.g, self.state.g.binders, self.state.g.origin
        g.binders = {}  # a closed function sees sizes by name; what binds them outside is no part of it
        try:
            for value in outer:
                inner = g.one(Parameter(f"capture_{len(by_outer)}_{graph.name}", value.type))
                self.state.contents.known[inner] = self.state.contents.of(value)
                by_outer[value] = inner
            for name in outer_names(graph):
                found = parent.get(name)
                if found is not None:
                    scope[name] = by_outer.get(found, found)
            for info, param in zip(graph.input, params, strict=True):
                scope[info.name] = param
            self.initializers(graph, scope)
            self.nodes(graph.node, scope)
        finally:
            g.binders, g.origin = binders, origin
        results = tuple(self.result(info.name, scope) for info in graph.output)
        if any(value in self.state.sequences for value in results):
            raise UnsupportedOperatorError(f"the subgraph '{graph.name}' gives a sequence of tensors")
        return Function(graph.name or "body", (*params, *by_outer.values()), results)

    def attempted(self, graph: onnx.GraphProto, parent: Scope, params: Sequence[Value]) -> Function | ModelError:
        """The subgraph, or why the model is wrong there: an error that only matters if the subgraph ever runs."""
        problems, self.problems = self.problems, None
        try:
            return self.subgraph(graph, parent, params)
        except ModelError as error:
            return error
        except UnsupportedOperatorError:
            pass
        finally:
            self.problems = problems
        return self.subgraph(graph, parent, params)

    def inlined(self, graph: onnx.GraphProto, parent: Scope) -> tuple[Value, ...]:
        """The results of a subgraph without inputs, imported in place."""
        names = outer_names(graph)
        scope: Scope = {name: parent[name] for name in names if name in parent}
        origin = self.state.g.origin
        self.initializers(graph, scope)
        self.nodes(graph.node, scope)
        self.state.g.origin = origin
        return tuple(self.result(info.name, scope) for info in graph.output)

    def result(self, name: str, scope: Scope) -> Value:
        value = scope.get(name)
        if value is None:
            raise GraphError(f"the graph's output '{name}' is not defined by any node")
        return value


def is_too_old(op_type: str, version: int) -> bool:
    """Whether an operator changed between an old operator set and the oldest that importers know."""
    if version >= OLDEST_OPSET or (version == opset6.VERSION and op_type in opset6.READ):
        return False
    try:
        return bool(onnx.defs.get_schema(op_type, version).since_version != onnx.defs.get_schema(op_type, OLDEST_OPSET).since_version)
    except onnx.defs.SchemaError:
        return False


def unsupported(node: onnx.NodeProto, domain: str, state: ModelState) -> UnsupportedOperatorError:
    shown = f"{domain}::{node.op_type}" if domain else node.op_type
    version = state.opsets.get(domain)
    return UnsupportedOperatorError(
        f"operator {shown} is not supported",
        where=str(origin_of(node)),
        why=f"opset {version} of {domain or 'ai.onnx'}" if version else f"the model does not import the domain '{domain}'",
        hint="`tilewright check MODEL` lists everything that the model needs and Tilewright lacks",
    )


def _with_attributes(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A function body's node with references to the function's attributes replaced by their values, also in its subgraphs."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                value = result.attribute.add()
                value.CopyFrom(given[attribute.ref_attr_name])
                value.name = attribute.name
            continue
        copied = result.attribute.add()
        copied.CopyFrom(attribute)
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = [_with_attributes(n, given) for n in attribute.g.node]
            del copied.g.node[:]
            copied.g.node.extend(inner)
    return result


def _without(node: onnx.NodeProto, names: frozenset[str]) -> onnx.NodeProto:
    """A node, here already a copy, without its inputs of these names."""
    if not names.isdisjoint(node.input):
        kept = ["" if name in names else name for name in node.input]
        while kept and not kept[-1]:
            kept.pop()
        node.ClearField("input")
        node.input.extend(kept)
    return node


def import_model(model: LoadedModel, dims: Mapping[str, DimRange | int] | None = None, keep_going: bool = False) -> Imported:
    """The model as a module with one function `main`. `dims` fixes or bounds symbolic dims by name. With `keep_going`, every
    unsupported node is collected in `problems` instead of raising at the first; the module then lacks what depends on them. Warns
    of outputs whose declared shape contradicts the graph."""
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.proto.opset_import}
    state = ModelState(model, opsets)
    problems: list[TilewrightError] | None = [] if keep_going else None
    functions = {(("" if f.domain == "ai.onnx" else f.domain), f.name, f.overload): f for f in model.proto.functions}
    importer = GraphImporter(state, functions, problems)
    graph = model.proto.graph
    scope: Scope = {}
    importer.initializers(graph, scope)
    check_names(graph, model.source)
    check_opset(opsets.get("", OLDEST_OPSET), model.source)
    inputs = [info for info in graph.input if info.name not in scope]  # initializers that are inputs too are compiled as constants
    types = Dims(state, dims or {}).types(inputs, model.source)
    params = tuple(state.g.one(Parameter(info.name, type_)) for info, type_ in zip(inputs, types, strict=True))
    scope.update((info.name, param) for info, param in zip(inputs, params, strict=True))
    importer.nodes(graph.node, scope)
    results, outputs = _outputs(graph, scope, state, skip_missing=bool(problems))
    main = Function("main", params, results)
    return Imported(Module({"main": main}, "main", tuple(info.name for info in inputs), outputs), tuple(problems or ()))


def check_names(graph: onnx.GraphProto, source: str) -> None:
    """Raise GraphError when two inputs or two initializers of a model have one name."""
    for what, names in (
        ("inputs", [info.name for info in graph.input]),
        ("initializers", [*(tensor.name for tensor in graph.initializer), *(sparse.values.name for sparse in graph.sparse_initializer)]),
    ):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise GraphError(f"two {what} of the model are called '{twice[0]}'", where=source)


def check_opset(version: int, source: str) -> None:
    """Raise UnsupportedOperatorError for an operator set that is newer than all that are known: what it changed is not."""
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise UnsupportedOperatorError(
            f"operator set {version} is not supported",
            where=source,
            why=f"{newest} is the newest that the installed onnx {onnx.__version__} knows",
            hint=f"export with operator set {newest} or older, or pip install --upgrade onnx",
        )


def _outputs(graph: onnx.GraphProto, scope: Scope, state: ModelState, skip_missing: bool) -> tuple[tuple[Value, ...], tuple[str, ...]]:
    """The values of the graph's outputs, and their names."""
    results: list[Value] = []
    names: list[str] = []
    for info in graph.output:
        value = scope.get(info.name)
        if value is None:
            if skip_missing:
                continue
            raise GraphError(f"the graph's output '{info.name}' is not defined by any node", where=state.model.source)
        if value in state.sequences:
            raise ModelError(f"output '{info.name}' is a sequence of tensors", hint="only tensors can be results of a compiled model")
        if value.type.dtype is dtypes.string:
            raise UnsupportedDtypeError(f"output '{info.name}' holds strings", hint="only numbers can be results of a compiled model")
        declared = info.type.tensor_type.elem_type
        if declared and dtype_of(declared) is not value.type.dtype:
            raise TypeRuleError(
                f"the output '{info.name}' is declared to be {dtype_of(declared).name}, and is {value.type.dtype.name}",
                where=None if value.node.origin is None else str(value.node.origin),
            )
        if not skip_missing:  # else it is imported once more without what is refused
            warn_of_contradiction(info, value)
        results.append(value)
        names.append(info.name)
    return tuple(results), tuple(names)
