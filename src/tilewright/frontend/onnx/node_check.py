"""Whether a node is one that ONNX's own definition of its operator allows: numbers of inputs and outputs, types of attributes.

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
    """What a version of an operator takes. `attributes`: type by name."""

    inputs: tuple[int, int]
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
    return Form((schema.min_input, schema.max_input), (schema.min_output, schema.max_output), attributes, required)


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
