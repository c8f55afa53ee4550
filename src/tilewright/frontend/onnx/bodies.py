"""Operators that ONNX itself defines by other operators: their definitions stand in where Tilewright has no importer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from tilewright.frontend.onnx.loader import DTYPES
from tilewright.graph.node import Value

CODES = {dtype: code for code, dtype in DTYPES.items()}


def type_proto(value: Value | None) -> onnx.TypeProto:
    """The ONNX type of a value; symbolic dims are left open."""
    if value is None:
        return onnx.TypeProto()
    dims = [int(dim.value) if dim.is_const else None for dim in value.shape]
    return onnx.helper.make_tensor_type_proto(CODES[value.type.dtype], dims)


def has_definition(domain: str, op_type: str, version: int) -> bool:
    """Whether ONNX defines an operator by others, at least for some inputs."""
    try:
        schema: Any = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def schema_function(node: onnx.NodeProto, domain: str, version: int, inputs: Sequence[Value | None]) -> onnx.FunctionProto | None:
    """The definition of an operator as ONNX's schema gives it for these inputs, attribute defaults filled in; None without one."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    function = onnx.FunctionProto()
    if schema.has_function:
        function.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        types = [type_proto(value).SerializeToString() for value in inputs]
        content = schema.get_context_dependent_function(node.SerializeToString(), types)
        if not content:
            return None
        function.ParseFromString(content)
    else:
        return None
    given = {attribute.name for attribute in function.attribute_proto}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            default = function.attribute_proto.add()
            default.CopyFrom(attribute.default_value)
            default.name = name
    return function
