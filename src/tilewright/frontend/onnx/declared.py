"""What a model declares of its values, where that says more than can be inferred."""

from __future__ import annotations

from collections.abc import Collection

import onnx

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
