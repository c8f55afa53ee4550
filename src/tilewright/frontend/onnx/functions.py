"""The functions of a model: how many nodes it has once they stand where they are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from tilewright.frontend.onnx.walking import plain_domain, walk_nodes
from tilewright.support.errors import ModelError

MOST_NODES = 1_000_000
"""More than this and a small file asks for hours: functions that call others several times multiply."""

Key = tuple[str, str, str]


def check_functions(model: onnx.ModelProto) -> None:
    """Raise ModelError for functions that call themselves, and for those that would make too many nodes of the model."""
    functions = {(plain_domain(f.domain), f.name, f.overload): f for f in model.functions}
    if not functions:
        return
    sizes: dict[Key, int] = {}
    for key in _callees_first(functions):
        sizes[key] = _count(functions[key].node, sizes)
    total = _count(model.graph.node, sizes)
    if total > MOST_NODES:
        most = max(sizes, key=sizes.__getitem__)
        why = f"the function {_named(most)} alone becomes {sizes[most]:,}"
        raise ModelError(f"the model becomes {total:,} nodes where its functions are called; {MOST_NODES:,} may be", why=why)


def _callees_first(functions: Mapping[Key, onnx.FunctionProto]) -> list[Key]:
    """The functions in an order in which each comes after those that it calls."""
    order: dict[Key, None] = {}
    for start in functions:
        path: list[tuple[Key, list[Key]]] = [(start, _calls(functions[start].node, functions))]
        open_ones = {start}
        while path:
            key, left = path[-1]
            if not left:
                order[key] = None
                open_ones.discard(key)
                path.pop()
                continue
            called = left.pop()
            if called in open_ones:
                raise ModelError(f"the function {_named(called)} calls itself", why="it would have no end")
            if called not in order:
                open_ones.add(called)
                path.append((called, _calls(functions[called].node, functions)))
    return list(order)


def _calls(nodes: Iterable[onnx.NodeProto], functions: Mapping[Key, onnx.FunctionProto]) -> list[Key]:
    return [key for node in walk_nodes(nodes) if (key := _key(node)) in functions]


def _count(nodes: Iterable[onnx.NodeProto], sizes: Mapping[Key, int]) -> int:
    return sum(sizes.get(_key(node), 1) for node in walk_nodes(nodes))


def _key(node: onnx.NodeProto) -> Key:
    return plain_domain(node.domain), node.op_type, node.overload


def _named(key: Key) -> str:
    return "::".join(part for part in key[:2] if part)
