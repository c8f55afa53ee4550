"""Everything that importing a model refuses, in one go.

Importing goes on past a node that it refuses, but not past what depends on it. So the refused nodes are cut out of the model, their
results become inputs of the types that ONNX infers, and the rest is imported again, until nothing new is refused. What depends on a
result whose type nobody knows is checked by name only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from tilewright.frontend.onnx.bodies import has_definition
from tilewright.frontend.onnx.context import ModelState, origin_of
from tilewright.frontend.onnx.importer import DimRange, import_model, unsupported
from tilewright.frontend.onnx.loader import DTYPES, LoadedModel
from tilewright.frontend.onnx.registry import IMPORTERS
from tilewright.frontend.onnx.walking import domain_of, plain_domain, uses, walk_graphs, walk_nodes
from tilewright.graph.node import Module, Origin
from tilewright.support.errors import TilewrightError

SHOWN_ATTRIBUTE = 60  # characters of an attribute's value
MAX_CALLS = 50  # functions calling functions


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that cannot be imported, and why. `dtypes` are those of its inputs where known, `attributes` texts `name=value`;
    `operator` is empty when the error concerns no single node."""

    error: TilewrightError
    node: str = ""
    operator: str = ""
    domain: str = ""
    opset: int | None = None
    dtypes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """`module`: what can be imported, with the results of refused nodes as further inputs; None when not even the inputs can be.
    `by_name`: how many nodes were checked by name only."""

    module: Module | None
    refusals: tuple[Refusal, ...]
    by_name: int


def survey(model: LoadedModel, dims: Mapping[str, DimRange | int] | None = None) -> Survey:
    """Import a model as far as possible and collect what is refused."""
    work = _Surveyor(model, dims or {})
    module = work.run()
    return Survey(module, tuple(work.refusals), work.by_name)


def operator_counts(model: LoadedModel) -> dict[tuple[str, str], int]:
    """(domain, operator) -> how often it occurs, subgraphs included."""
    return dict(Counter((domain_of(node), node.op_type) for node in walk_nodes(model.proto.graph.node)))


@dataclass(slots=True)
class _Surveyor:
    model: LoadedModel
    dims: Mapping[str, DimRange | int]
    refusals: list[Refusal] = field(default_factory=list)
    by_name: int = 0
    types: dict[str, onnx.TypeProto] | None = None
    seen: set[tuple[str | None, str]] = field(default_factory=set)

    def run(self) -> Module | None:
        loaded = self.model
        while True:
            try:
                imported = import_model(loaded, self.dims, keep_going=True)
            except TilewrightError as error:
                self.refuse(error, None)
                return None
            if not imported.problems:
                return imported.module
            refused = self.blame(loaded.proto.graph, imported.problems)
            if not refused:
                return imported.module
            loaded = self.without(loaded, refused)

    def blame(self, graph: onnx.GraphProto, problems: Iterable[TilewrightError]) -> list[onnx.NodeProto]:
        """The nodes of the main graph at fault, their errors recorded. Errors of what depends on them are left to the next round."""
        by_where: dict[str, list[TilewrightError]] = {}
        for problem in problems:
            by_where.setdefault(problem.where or "", []).append(problem)
        tainted: set[str] = set()
        refused = []
        for node in graph.node:
            if not tainted.isdisjoint(uses(node)):
                tainted.update(node.output)
                continue
            inner = {str(origin_of(n)): n for n in (*self.bodies(node), *walk_nodes([node]))}
            prefix = f" node '{origin_of(node).name}/"
            found = [(w, error) for w, errors in by_where.items() if w in inner or prefix in w for error in errors]
            if not found:
                continue
            own = str(origin_of(node))
            nested = [(where, error) for where, error in found if where != own]
            for where, error in nested or found:  # a node whose subgraph fails complains about that too
                self.refuse(error, inner.get(where, node))
            self.check_names(n for n in walk_nodes([node]) if n is not node)
            refused.append(node)
            tainted.update(node.output)
        return refused

    def bodies(self, node: onnx.NodeProto, depth: int = 0) -> Iterator[onnx.NodeProto]:
        """The nodes of the functions that a node and its subgraphs call."""
        functions = {(plain_domain(f.domain), f.name): f for f in self.model.proto.functions}
        for caller in walk_nodes([node]) if functions and depth < MAX_CALLS else ():
            function = functions.get((domain_of(caller), caller.op_type))
            for inner in walk_nodes(function.node) if function is not None else ():
                yield inner
                yield from self.bodies(inner, depth + 1)

    def refuse(self, error: TilewrightError, node: onnx.NodeProto | None) -> None:
        if (error.where, error.what) in self.seen:
            return
        self.seen.add((error.where, error.what))
        self.refusals.append(refusal(error, self.model, node, self.known_types() if node is not None else {}))

    def check_names(self, nodes: Iterable[onnx.NodeProto], caller: str = "") -> int:
        """Refuse operators that nothing defines, also in the functions that are called; how many nodes were looked at."""
        proto = self.model.proto
        functions = {(plain_domain(f.domain), f.name): f for f in proto.functions}
        state = ModelState(self.model, {plain_domain(o.domain): o.version for o in proto.opset_import})
        count = 0
        for node in nodes:
            key, name = (domain_of(node), node.op_type), caller + origin_of(node).name
            if key in functions:
                count += self.check_names(walk_nodes(functions[key].node), name + "/") if caller.count("/") < MAX_CALLS else 0
            elif key not in IMPORTERS and not has_definition(*key, state.opsets.get(key[0], 1)):
                error = unsupported(node, key[0], state)
                error.where = str(Origin(name, node.op_type))
                self.refuse(error, node)
            count += 1
        return count

    def without(self, loaded: LoadedModel, refused: list[onnx.NodeProto]) -> LoadedModel:
        """The model without refused nodes, with their results as inputs, and without what depends on results of unknown type."""
        graph, types = loaded.proto.graph, self.known_types()
        gone = {name for node in refused for name in node.output if name}
        unknown = {name for name in gone if name not in types}
        kept = []
        for node in graph.node:
            if any(node is r or node == r for r in refused):
                continue
            if unknown.isdisjoint(uses(node)):
                kept.append(node)
                continue
            gone.update(name for name in node.output if name in types)
            unknown.update(name for name in node.output if name not in types)
            self.by_name += self.check_names(walk_nodes([node]))
        proto = onnx.ModelProto(ir_version=loaded.proto.ir_version)
        proto.opset_import.extend(loaded.proto.opset_import)
        proto.functions.extend(loaded.proto.functions)
        proto.graph.name = graph.name
        proto.graph.node.extend(kept)
        proto.graph.initializer.extend(graph.initializer)
        proto.graph.sparse_initializer.extend(graph.sparse_initializer)
        proto.graph.input.extend(graph.input)
        proto.graph.input.extend(onnx.ValueInfoProto(name=name, type=types[name]) for name in sorted(gone & types.keys()))
        used = {name for node in kept for name in uses(node)}
        results = [name for node in kept for name in node.output if name and name not in used]
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
        return replace(loaded, proto=proto)

    def known_types(self) -> Mapping[str, onnx.TypeProto]:
        """Types of tensors by name, as far as the model says or ONNX infers them."""
        if self.types is None:
            proto = self.model.proto
            with suppress(Exception):  # it raises what its C++ code does, on models with faults above all
                proto = onnx.shape_inference.infer_shapes(proto)
            self.types = {t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in proto.graph.initializer}
            for graph in walk_graphs(proto.graph):
                for info in (*graph.input, *graph.value_info, *graph.output):
                    if info.type.tensor_type.HasField("shape"):
                        self.types.setdefault(info.name, info.type)
        return self.types


def refusal(error: TilewrightError, model: LoadedModel, node: onnx.NodeProto | None, types: Mapping[str, onnx.TypeProto]) -> Refusal:
    """An error with what the model says of the node that it concerns."""
    if node is None:
        return Refusal(error, error.where or "")
    codes = [types[name].tensor_type.elem_type for name in node.input if name in types]
    return Refusal(
        error,
        (error.where or "").partition(" node ")[2].strip("'") or origin_of(node).name,
        node.op_type,
        domain_of(node),
        next((o.version for o in model.proto.opset_import if plain_domain(o.domain) == domain_of(node)), None),
        tuple(str(DTYPES[code]) for code in codes if code in DTYPES),
        tuple(f"{a.name}={attribute_text(a)}" for a in node.attribute),
    )


def node_named(model: LoadedModel, where: str | None) -> onnx.NodeProto | None:
    """The node that an error's `where` names, in the main graph or a subgraph."""
    return next((node for node in walk_nodes(model.proto.graph.node) if str(origin_of(node)) == where), None)


def attribute_text(attribute: onnx.AttributeProto) -> str:
    """An attribute's value, short."""
    kinds = onnx.AttributeProto
    if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
        return "graph"
    if attribute.type in (kinds.TENSOR, kinds.TENSORS, kinds.SPARSE_TENSOR):
        return "tensor"
    value: Any = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = str(list(value)) if attribute.type in (kinds.INTS, kinds.FLOATS) else str(value)
    return text if len(text) <= SHOWN_ATTRIBUTE else text[: SHOWN_ATTRIBUTE - 3] + "..."
