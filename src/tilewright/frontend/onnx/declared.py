"""What a model declares of its values, where that says more than can be inferred."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

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
    known = [int(dim.value) if dim.is_const else None for dim in value.shape]
    _warn(info, known, format_shape(value.shape), None if value.node.origin is None else str(value.node.origin))


def computed_type(info: onnx.ValueInfoProto, found: onnx.TypeProto, origin: str | None) -> onnx.TypeProto:
    """The type of an output of which ONNX types are all that is known: what was found, with the names that are declared for its open dims.
    Warns as `warn_of_contradiction`; `origin` says which node computes it."""
    tensor, declared = found.tensor_type, info.type.tensor_type
    if not tensor.HasField("shape") or not declared.HasField("shape"):
        return found
    _warn(info, [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim], _listed(tensor.shape.dim), origin)
    named = onnx.TypeProto()
    named.CopyFrom(found)
    if len(declared.shape.dim) == len(tensor.shape.dim):
        for dim, said in zip(named.tensor_type.shape.dim, declared.shape.dim, strict=True):
            if said.dim_param and not dim.HasField("dim_value"):
                dim.dim_param = said.dim_param
    return named


def _listed(dims: Collection[onnx.TensorShapeProto.Dimension]) -> str:
    return f"[{', '.join(str(dim.dim_value) if dim.HasField('dim_value') else dim.dim_param or '?' for dim in dims)}]"


def _warn(info: onnx.ValueInfoProto, known: Sequence[int | None], shown: str, origin: str | None) -> None:
    """`known`: the dims that are computed, None where they are open; `shown`: the same to be read."""
    if not info.type.tensor_type.HasField("shape"):
        return
    declared = info.type.tensor_type.shape.dim
    fits = len(declared) == len(known) and all(
        not dim.HasField("dim_value") or dim.dim_value < 0 or own is None or own == dim.dim_value
        for dim, own in zip(declared, known, strict=True)
    )
    if fits:
        return
    node = "" if origin is None else f", by {origin}"
    warnings.warn(
        f"the output '{info.name}' is declared to have the shape {_listed(declared)}, and is computed with {shown}{node}; "
        "the declaration is ignored",
        UserWarning,
        stacklevel=3,
    )
