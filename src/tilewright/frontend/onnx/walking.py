"""Walking ONNX graphs: subgraphs, nodes, what a node reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def uses(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, also through its subgraphs."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        names.update(outer_names(graph))
    return names


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def walk_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every subgraph in it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from walk_graphs(inner)


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and all nodes of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from walk_nodes(graph.node)


def domain_of(node: onnx.NodeProto) -> str:
    return plain_domain(node.domain)


def plain_domain(name: str) -> str:
    """The domain as importers write it."""
    return "" if name == "ai.onnx" else name


def outer_names(graph: onnx.GraphProto) -> list[str]:
    """Names that a graph uses but does not define, also through its own subgraphs, in order of first use."""
    own = {tensor.name for tensor in graph.initializer} | {info.name for info in graph.input}
    own |= {name for node in graph.node for name in node.output}
    used: dict[str, None] = {}
    for node in graph.node:
        for name in node.input:
            if name and name not in own:
                used[name] = None
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                used.update((name, None) for name in outer_names(inner) if name not in own)
    for info in graph.output:
        if info.name not in own:
            used[info.name] = None
    return list(used)
