"""Whether a node is one that ONNX's own definition of its operator allows: numbers of inputs and outputs, types of attributes, and what
the graphs inside of it take and give.

Importers rely on this, and say themselves what depends on shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx

from tilewright.support.errors import ModelError

_TYPES = {number: name for name, number in onnx.AttributeProto.AttributeType.items()}


@dataclass(frozen=True, slots=True)
class Form:
    """What a version of an operator takes. `optional`: which inputs may be left out. `attributes`: type by name."""

    inputs: tuple[int, int]
    optional: frozenset[int]
    outputs: tuple[int, int]
    attributes: dict[str, int]
    required: frozenset[str]


@lru_cache(maxsize=1024)
def form_of(op_type: str, version: int, domain: str) -> Form | None:
    """The form by ONNX's table; None for operators that it does not have."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    attributes = {name: _number(attribute.type) for name, attribute in schema.attributes.items()}
    required = frozenset(name for name, attribute in schema.attributes.items() if attribute.required)
    optional = frozenset(i for i, input_ in enumerate(schema.inputs) if input_.option == onnx.defs.OpSchema.FormalParameterOption.Optional)
    return Form((schema.min_input, schema.max_input), optional, (schema.min_output, schema.max_output), attributes, required)


def _number(kind: Any) -> int:
    """The number of an attribute's type, an enumeration of ONNX's C++ library that its stubs do not describe."""
    return int(kind.value)


def check_node(node: onnx.NodeProto, version: int, domain: str) -> None:
    """Raise ModelError for a node that its operator's definition does not allow."""
    form = form_of(node.op_type, version, domain)
    if form is None:
        return
    for what, names, (least, most) in (("input", node.input, form.inputs), ("output", node.output, form.outputs)):
        if not least <= len(names) <= most:
            wanted = str(least) if least == most else f"{least} or more" if most > 1 << 16 else f"{least} to {most}"
            counted = f"{len(names)} {what}{'' if len(names) == 1 else 's'}"
            raise ModelError(f"{node.op_type} has {counted}", why=f"it takes {wanted}" if what == "input" else f"it gives {wanted}")
    given = set()
    for attribute in node.attribute:
        given.add(attribute.name)
        wanted_type = form.attributes.get(attribute.name)
        if wanted_type is None:
            known = ", ".join(sorted(form.attributes)) or "none"
            raise ModelError(f"{node.op_type} has no attribute '{attribute.name}'", why=f"operator set {version} gives it: {known}")
        if attribute.type != wanted_type:
            raise ModelError(
                f"the attribute '{attribute.name}' of {node.op_type} is of type {_TYPES.get(attribute.type, attribute.type)}",
                why=f"it must be {_TYPES[wanted_type]}",
            )
    missing = form.required - given
    if missing:
        raise ModelError(f"{node.op_type} lacks the attribute '{min(missing)}'")
    if domain == "" and node.op_type in ("If", "Loop", "Scan", "SequenceMap"):
        _check_graphs(node, version)


def check_operands(node: onnx.NodeProto, version: int, domain: str) -> None:
    """Raise ModelError where an input that the definition wants is left out. Importers of tensors ask for each input that they need, and
    do without some that the definition wants, as exporters leave them out."""
    form = form_of(node.op_type, version, domain)
    missing = next((i for i, name in enumerate(node.input) if not name and form is not None and i not in form.optional), None)
    if missing is not None:
        raise ModelError(f"input {missing} of {node.op_type} is left out", why="the operator needs it")


def _check_graphs(node: onnx.NodeProto, version: int) -> None:
    """Raise ModelError where a graph of a control flow node does not take or give as many values as the node hands to it and away."""
    given, least = len(node.input), len(node.output)
    if node.op_type == "If":
        given = 0
    elif node.op_type == "Loop":  # the body gets the number of the turn and a condition, and gives a condition
        least = 1 + max(least, given - 2)
    elif node.op_type == "Scan" and version < 9:
        given -= 1  # the lengths stay outside
    graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH}
    for name, graph in graphs.items():
        if len(graph.input) != given:
            raise ModelError(f"'{name}' of {node.op_type} takes {_counted(len(graph.input))}", why=f"the node gives it {given}")
        if len(graph.output) < least:
            raise ModelError(f"'{name}' of {node.op_type} gives {_counted(len(graph.output))}", why=f"the node needs {least} of it")
    results = {name: len(graph.output) for name, graph in graphs.items()}
    if node.op_type == "If" and len(set(results.values())) > 1:
        raise ModelError("the branches of If differ", why=" and ".join(f"'{name}' gives {_counted(n)}" for name, n in results.items()))


def _counted(count: int) -> str:
    return f"{count} value{'' if count == 1 else 's'}"


def check_types(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opsets: Mapping[str, int]) -> None:
    """Raise ModelError where ONNX's own type rule refuses a node with operands of these types. Importers rely on ranks and dtypes that it
    asks for; to ask it for each node would take more time than all the rest."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    imports = [onnx.helper.make_opsetid(name, number) for name, number in opsets.items()]
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
        onnx.shape_inference.infer_node_outputs(schema, node, dict(types), opset_imports=imports, ir_version=10)
    except onnx.defs.SchemaError:
        return
    except Exception as error:  # what ONNX's C++ library raises has no common base
        raise ModelError(f"{node.op_type} cannot take these values", why=" ".join(str(error).split())) from None
