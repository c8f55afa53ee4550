"""What a model declares of its values, where that says more than can be inferred."""

from __future__ import annotations

import warnings
from collections.abc import Collection

import onnx

from tilewright.graph.node import Value
from tilewright.graph.shapes import format_shape

Key = tuple[str, str]  # domain, operator


def declared_rank(graph: onnx.GraphProto, name: str, elementwise: Collection[Key]) -> int | None:
    """The largest rank that a value can have by the declared shape of the first declared value on the way from it through `elementwise`
    operators, whose results have at least the rank of their operands; None when nothing is declared."""
    ranks = {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in (*graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
    }
    pending, seen = [name], {name}
    while pending:
        current = pending.pop(0)
        if current in ranks:
            return ranks[current]
        for node in graph.node:
            domain = "" if node.domain == "ai.onnx" else node.domain
            if current in node.input and (domain, node.op_type) in elementwise:
                pending.extend(result for result in node.output if result not in seen)
                seen.update(node.output)
    return None


def warn_of_contradiction(info: onnx.ValueInfoProto, value: Value) -> None:
    """Warn, once for each text as Python does, where an output is declared with another rank, or a fixed dim with another size, than what
    the graph computes. What is computed holds: exporters and tools that change dims leave such declarations behind."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return
    declared = tensor.shape.dim
    fits = len(declared) == value.type.rank and all(
        not dim.HasField("dim_value") or dim.dim_value < 0 or not own.is_const or own.value == dim.dim_value
        for dim, own in zip(declared, value.shape, strict=True)
    )
    if fits:
        return
    listed = ", ".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in declared)
    node = "" if value.node.origin is None else f", by {value.node.origin}"
    warnings.warn(
        f"the output '{info.name}' is declared to have the shape [{listed}], and is computed with {format_shape(value.shape)}{node}; "
        "the declaration is ignored",
        UserWarning,
        stacklevel=2,
    )
