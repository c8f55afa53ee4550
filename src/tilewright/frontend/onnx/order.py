"""Why a value that a node reads is not there yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from tilewright.frontend.onnx.context import origin_of


def why_undefined(name: str, nodes: Sequence[onnx.NodeProto]) -> str:
    """The reason why nothing before its reader defines `name`, with the nodes involved."""
    producers = {output: node for node in nodes for output in node.output if output}
    if name not in producers:
        return "no node, input or initializer defines it"
    circle = cycle_through(producers[name], producers)
    if circle:
        return "the nodes form a cycle: " + " -> ".join(str(origin_of(node)) for node in (*circle, circle[0]))
    return f"{origin_of(producers[name])} defines it and comes later: the nodes are not in topological order"


def cycle_through(start: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """A shortest cycle of nodes, each reading a result of the one before, that begins at `start`; empty when there is none."""
    reader: dict[int, onnx.NodeProto] = {}
    front = [start]
    while front:
        behind = []
        for node in front:
            for source in (producers[name] for name in node.input if name in producers):
                if source is start:
                    circle = [node]
                    while circle[-1] is not start:
                        circle.append(reader[id(circle[-1])])
                    return [start, *circle[:-1]]
                if id(source) not in reader:
                    reader[id(source)] = node
                    behind.append(source)
        front = behind
    return []
