"""Models with strings, sequences, optionals or maps: cut into parts of tensors of numbers, which are compiled, and host steps between.

Nodes are taken in order. One whose operands and results are tensors of numbers joins the part that is being gathered; any other becomes
a host step at once, and closes the part first when it reads something of it. Bodies of control flow over host values are cut likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import onnx
from onnx import inliner

from tilewright.frontend.dims import DimRange
from tilewright.frontend.onnx.bodies import type_proto
from tilewright.frontend.onnx.context import origin_of
from tilewright.frontend.onnx.declared import computed_type
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import LoadedModel, dtype_of
from tilewright.frontend.onnx.node_check import check_node, check_operands
from tilewright.frontend.onnx.order import why_undefined
from tilewright.frontend.onnx.registry import IMPORTERS
from tilewright.frontend.onnx.survey import Refusal, refusal, survey
from tilewright.frontend.onnx.walking import domain_of, plain_domain, subgraphs, uses, walk_nodes
from tilewright.graph.node import Module
from tilewright.ir import dtypes
from tilewright.runtime.host.kinds import ValueSpec
from tilewright.runtime.host.steps import Apply, Body, Branch, Literal, Over, Part, Repeat, Step
from tilewright.runtime.host.table import ADDED_AXES, OPERATORS
from tilewright.runtime.specs import SizeSpec
from tilewright.support.errors import GraphError, ModelError, TilewrightError, UnsupportedOperatorError

Types: TypeAlias = dict[str, onnx.TypeProto]  # a type without a kind: a tensor of which nothing else is known

HOST_ONLY = frozenset(OPERATORS.keys() - IMPORTERS.keys())
STRINGY = frozenset({"LabelEncoder", "OneHotEncoder", "CategoryMapper"})  # about strings when an attribute is
CLASSIFIERS = {"TreeEnsembleClassifier": "classlabels_int64s", "LinearClassifier": "classlabels_ints", "SVMClassifier": "classlabels_ints"}
SEQUENCES = frozenset({
    "SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength", "SequenceMap",
    "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalHasElement", "OptionalGetElement",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostProgram:
    """A model as parts to be compiled and the steps around them."""

    parts: tuple[Module, ...]
    body: Body
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    ranges: tuple[SizeSpec, ...]


def wants_host(proto: onnx.ModelProto) -> bool:
    """Whether a model surely works on more than tensors of numbers."""
    if not all(is_plain(info.type) for info in (*proto.graph.input, *proto.graph.output)):
        return True
    return any(_is_host_only(node) for node in walk_nodes(proto.graph.node))


def may_want_host(proto: onnx.ModelProto) -> bool:
    """Whether a model has sequences or optionals, which may or may not vanish while it is imported."""
    return any(node.op_type in SEQUENCES for node in walk_nodes(proto.graph.node))


def is_plain(type_: onnx.TypeProto) -> bool:
    """Whether values of the type are tensors of numbers."""
    kind = type_.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and type_.tensor_type.elem_type != onnx.TensorProto.STRING)


def _is_host_only(node: onnx.NodeProto) -> bool:
    if (domain_of(node), node.op_type) in HOST_ONLY:
        return True
    if node.op_type == "Cast":
        return any(a.name == "to" and a.i == onnx.TensorProto.STRING for a in node.attribute)
    return node.op_type in STRINGY and any("strings" in a.name or a.t.data_type == onnx.TensorProto.STRING for a in node.attribute)


def partition(model: LoadedModel, dims: Mapping[str, DimRange | int], refusals: list[Refusal] | None = None) -> HostProgram:
    """The model as a host program. Raises UnsupportedOperatorError for a node that neither host nor compiler takes, ModelError for declared
    dims that no input has. With `refusals`, nodes that are refused are noted there, and left out with what depends on them."""
    proto = model.proto
    if proto.functions:
        model = replace(model, proto=inliner.inline_local_functions(proto))
    graph = model.proto.graph
    known = {tensor.name for tensor in graph.initializer}
    inputs = [info for info in graph.input if info.name not in known]
    named = {name for info in inputs for name in dim_names(info.name, info.type)}
    unknown = [name for name in dims if name not in named]
    if unknown:
        listed = ", ".join(f"'{name}'" for name in sorted(named)) or "none"
        raise ModelError(f"no input has a dim named '{unknown[0]}'", where=model.source, why=f"the symbolic dims are: {listed}")
    work = _Cutter(model, {plain_domain(o.domain): o.version for o in model.proto.opset_import}, dims, refusals)
    scope = _Scope({info.name: info.type for info in inputs}, {}, set())
    body, types = work.body(graph, [info.name for info in inputs], scope)
    origins = {name: str(origin_of(node)) for node in graph.node for name in node.output}
    found = [computed_type(info, type_, origins.get(info.name)) for info, type_ in zip(graph.output, types, strict=True)]
    outputs = tuple(value_spec(info.name, type_) for info, type_ in zip(graph.output, found, strict=True))
    ranges = [(name, DimRange(value, value) if isinstance(value, int) else value) for name, value in dims.items()]
    sizes = tuple(SizeSpec(name, r.lo, r.hi, r.multiple) for name, r in ranges)
    return HostProgram(tuple(work.parts), body, tuple(value_spec(info.name, info.type) for info in inputs), outputs, sizes)


@dataclass(slots=True)
class _Scope:
    """Names in sight: their types, which of them are constants, and which constants the steps so far define."""

    types: Types
    constants: dict[str, onnx.TensorProto]
    defined: set[str]

    def inner(self) -> _Scope:
        return _Scope(dict(self.types), dict(self.constants), set(self.defined))


@dataclass(slots=True)
class _Cutter:
    model: LoadedModel
    opsets: Mapping[str, int]
    dims: Mapping[str, DimRange | int]
    refusals: list[Refusal] | None = None
    parts: list[Module] = field(default_factory=list)

    def body(self, graph: onnx.GraphProto, params: Sequence[str], scope: _Scope) -> tuple[Body, list[onnx.TypeProto]]:
        """The steps of a graph whose inputs are in `scope`, and the types of its results."""
        for tensor in graph.initializer:
            scope.constants[tensor.name] = tensor
            scope.types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        last_read = {name: number for number, node in enumerate(graph.node) for name in uses(node)}
        cut = _Cut(self, scope, {**last_read, **dict.fromkeys((info.name for info in graph.output), len(graph.node))}, graph.node)
        for number, node in enumerate(graph.node):
            cut.number = number
            try:
                cut.node(node)
            except TilewrightError as error:
                located = error.located(str(origin_of(node)))
                if self.refusals is None:
                    raise located from error.__cause__
                self.refusals.append(refusal(located, self.model, node, scope.types))
                scope.types.update((name, onnx.TypeProto()) for name in node.output if name)
        results = [info.name for info in graph.output]
        cut.number = len(graph.node)
        cut.require(results)
        missing = [name for name in results if name not in scope.types]
        if missing:
            raise ModelError(f"the graph's output '{missing[0]}' is not defined by any node", where=self.model.source)
        types = [_known(scope.types[info.name], info.type) for info in graph.output]
        return Body(tuple(params), tuple(cut.steps), tuple(results)), types

    def attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        """The attributes as plain data."""
        found = {a.name: self.plain(onnx.helper.get_attribute_value(a)) for a in node.attribute if a.name != "type"}
        if node.op_type == "Cast":
            to = dtype_of(found["to"])
            found["to"] = "string" if to is dtypes.string else to.numpy.name
        return found

    def plain(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        if isinstance(value, onnx.TensorProto):
            return self.model.tensor(value)
        return [self.plain(item) for item in value] if isinstance(value, (list, tuple)) or hasattr(value, "append") else value


@dataclass(slots=True)
class _Cut:
    """One graph being cut. `last_read`: by name, the number of the last node that reads it; past all of them for the graph's outputs.
    `nodes`: all of them. `number`: of the node at hand; all before it are in steps, or pending."""

    cutter: _Cutter
    scope: _Scope
    last_read: dict[str, int]
    nodes: Sequence[onnx.NodeProto]
    number: int = 0
    steps: list[Step] = field(default_factory=list)
    pending: list[onnx.NodeProto] = field(default_factory=list)

    def node(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant" and self.constant(node):
            return
        types = self.scope.types
        domain = domain_of(node)
        version = self.cutter.opsets.get(domain, 1)
        check_node(node, version, domain)
        undefined = next((name for name in node.input if name and name not in types), None)
        if undefined is not None:
            raise GraphError(f"'{undefined}' is used before it is defined", why=why_undefined(undefined, self.nodes))
        read = [name for name in uses(node) if name in types]
        inferred = infer(node, self.scope, self.cutter)
        control = node.op_type in ("If", "Loop", "SequenceMap") and domain == ""
        inside = [inner for graph in subgraphs(node) for inner in walk_nodes(graph.node)]
        host = (
            not all(is_plain(types[name]) for name in read)
            or not all(is_plain(type_) for type_ in inferred.values())
            or any(_is_host_only(inner) or inner.op_type in SEQUENCES for inner in (node, *inside))
        )
        if node.op_type in CLASSIFIERS and self.classifier(node):
            return
        if not host:
            self.pending.append(node)
            types.update((name, inferred.get(name, onnx.TypeProto())) for name in node.output if name)
            return
        check_operands(node, version, domain)
        self.require(uses(node))
        step, results = self.control(node, inferred) if control else self.apply(node, inferred)
        self.steps.append(step)
        types.update((name, type_) for name, type_ in zip(node.output, results, strict=False) if name)

    def constant(self, node: onnx.NodeProto) -> bool:
        """Note a Constant of one tensor; False for other forms, which are left to the importer."""
        attribute = node.attribute[0] if node.attribute else None
        if attribute is None or attribute.name not in ("value", "value_string", "value_strings"):
            return False
        tensor = onnx.TensorProto()
        if attribute.name == "value":
            tensor.CopyFrom(attribute.t)
        else:
            texts = [attribute.s] if attribute.name == "value_string" else list(attribute.strings)
            shape = [] if attribute.name == "value_string" else [len(texts)]
            tensor = onnx.helper.make_tensor("", onnx.TensorProto.STRING, shape, texts)
        name = tensor.name = node.output[0]
        self.scope.constants[name] = tensor
        self.scope.types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        return True

    def classifier(self, node: onnx.NodeProto) -> bool:
        """A classifier whose labels are strings: compiled with numbers of classes, which a step after it names."""
        names = next((list(a.strings) for a in node.attribute if a.name == "classlabels_strings"), [])
        if not names or not node.output[0]:
            return False
        numbered = onnx.NodeProto()
        numbered.CopyFrom(node)
        del numbered.attribute[:]
        numbered.attribute.extend(a for a in node.attribute if a.name != "classlabels_strings")
        numbered.attribute.append(onnx.helper.make_attribute(CLASSIFIERS[node.op_type], list(range(len(names)))))
        number = numbered.output[0] = f"{node.output[0]}:number"
        self.pending.append(numbered)
        self.scope.types.update((name, onnx.TypeProto()) for name in numbered.output if name)
        self.number += 1  # the classifier is in the part, what names its classes comes after
        self.last_read[number] = self.number
        self.flush()
        texts = [name.decode("utf-8", "surrogateescape") for name in names]
        self.steps.append(Apply("tilewright", "ClassLabels", {"names": texts}, (number,), (node.output[0],), str(origin_of(node))))
        self.scope.types[node.output[0]] = onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, [None])
        return True

    def require(self, names: Sequence[str] | set[str]) -> None:
        """See to it that the steps so far define names: end the part that computes them, spell out constants."""
        gathered = {name for node in self.pending for name in node.output if name}
        if not gathered.isdisjoint(names):
            self.flush()
        for name in sorted(names):
            if name in self.scope.constants and name not in self.scope.defined:
                self.steps.append(Literal(self.cutter.model.tensor(self.scope.constants[name]), (name,)))
                self.scope.defined.add(name)

    def flush(self) -> None:
        """Make a part of the nodes gathered; its results are what is read from here on."""
        nodes, self.pending = self.pending, []
        own = {name for node in nodes for name in node.output if name}
        results = [name for node in nodes for name in node.output if name and self.last_read.get(name, -1) >= self.number]
        if not results:
            return
        read = dict.fromkeys(name for node in nodes for name in sorted(uses(node)) if name not in own and name in self.scope.types)
        given = [name for name in read if name not in self.scope.constants]
        part = onnx.ModelProto(ir_version=self.cutter.model.proto.ir_version)
        part.opset_import.extend(self.cutter.model.proto.opset_import)
        part.graph.name = f"part {len(self.cutter.parts)}"
        part.graph.node.extend(nodes)
        part.graph.initializer.extend(self.scope.constants[name] for name in read if name in self.scope.constants)
        part.graph.input.extend(onnx.ValueInfoProto(name=name, type=self.scope.types[name]) for name in given)
        part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
        named = {dim for name in given for dim in dim_names(name, self.scope.types[name])}
        dims = {name: value for name, value in self.cutter.dims.items() if name in named}
        loaded = replace(self.cutter.model, proto=part)
        if self.cutter.refusals is None:
            module = import_model(loaded, dims).module
        else:
            found = survey(loaded, dims)
            self.cutter.refusals.extend(found.refusals)
            if found.module is None:
                return
            module = found.module
        self.steps.append(Part(len(self.cutter.parts), tuple(given), tuple(results)))
        self.cutter.parts.append(module)
        self.scope.types.update((name, type_proto(value)) for name, value in zip(module.output_names, module.main.results, strict=True))

    def apply(self, node: onnx.NodeProto, inferred: Types) -> tuple[Step, list[onnx.TypeProto]]:
        key = (domain_of(node), node.op_type)
        if key not in OPERATORS:
            kinds = ", ".join(kind_text(self.scope.types[name]) for name in node.input if name in self.scope.types)
            shown = "::".join(part for part in key if part)
            raise UnsupportedOperatorError(f"{shown} of {kinds or 'nothing'} is not supported")
        attributes = self.cutter.attributes(node)
        if key == ("", "Split"):
            attributes.setdefault("num_outputs", len(node.output))
        step = Apply(*key, attributes, tuple(node.input), tuple(node.output), str(origin_of(node)))
        return step, [inferred.get(name, onnx.TypeProto()) for name in node.output]

    def control(self, node: onnx.NodeProto, inferred: Types) -> tuple[Step, list[onnx.TypeProto]]:
        graphs = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        outputs = tuple(node.output)
        if node.op_type == "If":
            then, first = self.cutter.body(graphs["then_branch"], (), self.scope.inner())
            otherwise, second = self.cutter.body(graphs["else_branch"], (), self.scope.inner())
            return Branch(node.input[0], then, otherwise, outputs), [merged(a, b) for a, b in zip(first, second, strict=True)]
        graph, scope = next(iter(graphs.values())), self.scope.inner()
        names = [info.name for info in graph.input]
        if node.op_type == "SequenceMap":
            outer = [self.scope.types[name] for name in node.input]
            for info, type_ in zip(graph.input, outer, strict=True):
                element = type_.sequence_type.elem_type if type_.WhichOneof("value") == "sequence_type" else type_
                scope.types[info.name] = _known(element, info.type)
            body, types = self.cutter.body(graph, names, scope)
            return Over(tuple(node.input), body, outputs), [onnx.helper.make_sequence_type_proto(type_) for type_ in types]
        carried = tuple(node.input[2:])
        scalars = [onnx.helper.make_tensor_type_proto(code, []) for code in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)]
        for info, type_ in zip(graph.input, [*scalars, *(opened(self.scope.types[name]) for name in carried)], strict=True):
            scope.types[info.name] = _known(opened(info.type), type_)
        body, types = self.cutter.body(graph, names, scope)
        rows = types[1 + len(carried) :]
        empty = tuple((kind_text(t)[len("tensor(") : -1].replace("string", "object"), _least(t)) for t in rows)
        condition = node.input[1] if len(node.input) > 1 else ""
        stacked = [stacked_type(row) for row in rows]
        return Repeat(node.input[0], condition, carried, body, outputs, empty), [*map(opened, types[1 : 1 + len(carried)]), *stacked]


def infer(node: onnx.NodeProto, scope: _Scope, cutter: _Cutter) -> Types:
    """The types of a node's results, as far as ONNX tells them. Raises ModelError where it finds the node wrong."""
    domain = domain_of(node)
    if node.op_type in ("If", "Loop"):  # their bodies tell
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, cutter.opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return _contributed(node, domain, scope)
    types = {name: scope.types[name] for name in node.input if name in scope.types and scope.types[name].WhichOneof("value")}
    known = {name: scope.constants[name] for name in node.input if name in scope.constants}
    imports = list(cutter.model.proto.opset_import)
    try:
        found: Types = onnx.shape_inference.infer_node_outputs(
            schema, node, types, known, opset_imports=imports, ir_version=cutter.model.proto.ir_version
        )
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{node.op_type} is malformed: {' '.join(str(error).split())}") from None
    except (onnx.shape_inference.InferenceError, KeyError, ValueError, RuntimeError) as error:
        if all(name in types for name in node.input if name):
            raise ModelError(f"{node.op_type} cannot take these values: {' '.join(str(error).split())}") from None
        return {}
    return found


def _contributed(node: onnx.NodeProto, domain: str, scope: _Scope) -> Types:
    """The same for operators of onnxruntime that run on the host, which ONNX does not know."""
    added = ADDED_AXES.get((domain, node.op_type))
    if added is None or not node.input or not node.output:
        return {}
    found = onnx.TypeProto()
    found.CopyFrom(scope.types.get(node.input[0], onnx.TypeProto()))
    if found.tensor_type.HasField("shape"):
        found.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in range(added))
    return {node.output[0]: found}


def kind_text(type_: onnx.TypeProto) -> str:
    """The type as ONNX writes it, without shapes."""
    match type_.WhichOneof("value"):
        case "tensor_type":
            dtype = dtype_of(type_.tensor_type.elem_type)
            return f"tensor({'string' if dtype is dtypes.string else dtype.numpy.name})"
        case "sequence_type":
            return f"seq({kind_text(type_.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({kind_text(type_.optional_type.elem_type)})"
        case "map_type":
            return f"map({dtype_of(type_.map_type.key_type)}, {kind_text(type_.map_type.value_type)})"
    return "unknown"


def value_spec(name: str, type_: onnx.TypeProto) -> ValueSpec:
    tensor = type_.tensor_type
    if type_.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return ValueSpec(name, kind_text(type_), None)
    dims = zip(dim_names(name, type_, constants=True), tensor.shape.dim, strict=True)
    return ValueSpec(name, kind_text(type_), tuple(dim for dim, _ in dims))


def dim_names(name: str, type_: onnx.TypeProto, constants: bool = False) -> list[str]:
    """How the symbolic dims of a tensor are called; with `constants` the fixed ones as well."""
    found = []
    for axis, dim in enumerate(type_.tensor_type.shape.dim):
        if dim.HasField("dim_value"):
            found.extend([str(dim.dim_value)] if constants else [])
        else:
            found.append(dim.dim_param if any(c.isalnum() for c in dim.dim_param) else f"{name}_{axis}")
    return found


def opened(type_: onnx.TypeProto) -> onnx.TypeProto:
    """The type with every dim open."""
    result = onnx.TypeProto()
    result.CopyFrom(type_)
    if result.WhichOneof("value") == "tensor_type":
        for dim in result.tensor_type.shape.dim:
            dim.Clear()
    return result


def merged(a: onnx.TypeProto, b: onnx.TypeProto) -> onnx.TypeProto:
    """What holds of values of both types: dims that differ are open, ranks that differ unknown."""
    if a == b:
        return a
    if a.WhichOneof("value") != "tensor_type" or b.WhichOneof("value") != "tensor_type":
        return b if a.WhichOneof("value") is None or b.WhichOneof("value") == "optional_type" else a
    result = opened(a)
    if len(a.tensor_type.shape.dim) != len(b.tensor_type.shape.dim):
        result.tensor_type.ClearField("shape")
        return result
    for dim, x, y in zip(result.tensor_type.shape.dim, a.tensor_type.shape.dim, b.tensor_type.shape.dim, strict=True):
        if x == y:
            dim.CopyFrom(x)
    return result


def stacked_type(row: onnx.TypeProto) -> onnx.TypeProto:
    """The type of rows stacked in a new first axis."""
    dims = [d.dim_value if d.HasField("dim_value") else None for d in row.tensor_type.shape.dim]
    return onnx.helper.make_tensor_type_proto(row.tensor_type.elem_type, [None, *dims])


def _known(first: onnx.TypeProto, second: onnx.TypeProto) -> onnx.TypeProto:
    """The type that says more."""
    if first.WhichOneof("value") is None:
        return second
    shapeless = first.WhichOneof("value") == "tensor_type" and not first.tensor_type.HasField("shape")
    return second if shapeless and second.WhichOneof("value") == "tensor_type" else first


def _least(type_: onnx.TypeProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in type_.tensor_type.shape.dim)
