"""Which convolutions and followers compute in channel-blocked layouts: the cheapest choice over the whole function.

Each operator that could compute in either layout is a node of a network; a cut puts it on the side of the blocked or of the plain ones and
pays for what it costs there, and for one conversion of each value that somebody reads in the other layout. The least cut is the least
cost (Greig, Porteous, Seheult 1989: energies of two labels); it is found by shortest augmenting paths in levels (Dinic 1970).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.graph.node import Function, Node, Value, users_of, walk_nodes
from tilewright.graph.ops import Constant, Convolution, Reduce

# Operators that follow the layout of what they read, at about the same cost in both.
EITHER = frozenset({"unary", "binary", "select", "cast", "gelu", "hard_swish", "softplus", "window_reduce", "concat", "interleave", "pad"})


class LayoutCost(Protocol):
    """The target's opinion, in any unit of time."""

    def convolution(self, node: Node, blocked: bool) -> float:
        """Computing a convolution that can be blocked, in blocks or as it is."""
        ...

    def conversion(self, value: Value) -> float:
        """Bringing a value from one layout into the other."""
        ...

    def window_channels(self, node: Node) -> int:
        """Channels, those of the image or more, with which pixels of a convolution of few channels are to lie side by side, so that one
        axis of the reduction goes over pixels and channels (`window_rows.py`); 0 where the channels had better be apart."""
        ...


def plain_nodes(function: Function, starts: Callable[[Node], bool], cost: LayoutCost) -> frozenset[Node]:
    """The nodes that stay plain: of the convolutions for which `starts` holds and what follows them, those for which blocks do not pay."""
    users = users_of(function.results)
    convolutions = [node for node in walk_nodes(function.results) if isinstance(node.op, Convolution) and starts(node)]
    free = dict.fromkeys(convolutions)
    for node in walk_nodes(function.results):
        if _follows(node) and any(value.node in free for value in node.inputs):
            free[node] = None
    network = _Network()
    for node in convolutions:
        network.join(network.blocked, node, cost.convolution(node, blocked=False))
        network.join(node, network.plain, cost.convolution(node, blocked=True))
    results = {value.node for value in function.results}
    for value in _values(function, free):
        if isinstance(value.node.op, Constant):
            continue
        readers = [user for user in users[value.node] if any(v is value for v in user.inputs)]
        ends = [user if user in free else network.plain for user in readers]
        if value.node in results:
            ends.append(network.plain)
        source = value.node if value.node in free else network.plain
        price = cost.conversion(value)
        for kind, forward in (("plain", True), ("blocked", False)):
            shared = (value, kind)  # stands for the other form of the value: paid for once, however many read it
            network.join(source, shared, price) if forward else network.join(shared, source, price)
            for end in dict.fromkeys(ends):
                network.join(shared, end, _NEVER) if forward else network.join(end, shared, _NEVER)
    side = network.plain_side()
    return frozenset(node for node in free if node in side)


def _follows(node: Node) -> bool:
    op = node.op
    if isinstance(op, Reduce):
        return tuple(sorted(op.axes)) == tuple(range(2, node.inputs[0].type.rank))
    return op.name in EITHER and len(node.types) == 1 and node.types[0].rank >= 3


def _values(function: Function, free: Mapping[Node, None]) -> list[Value]:
    """Values that a free node makes or reads as its data, each once."""
    found: dict[Value, None] = {}
    for node in walk_nodes(function.results):
        if node in free:
            data = node.inputs[:1] if isinstance(node.op, Convolution) else node.inputs
            space = node.types[0].shape[2:]
            found.update(dict.fromkeys(v for i, v in enumerate(data) if i == 0 or (v.type.rank >= 3 and v.shape[2:] == space)))
            found.update(dict.fromkeys(node.values))
    return list(found)


_NEVER = float("inf")


@dataclass(slots=True)
class _Edge:
    end: object
    room: float
    back: _Edge | None = None


@dataclass(slots=True)
class _Network:
    """A flow network; nodes are any hashable things."""

    blocked: object = field(default_factory=lambda: "blocked")
    plain: object = field(default_factory=lambda: "plain")
    edges: dict[object, list[_Edge]] = field(default_factory=dict)

    def join(self, start: object, end: object, room: float) -> None:
        if start is end or room <= 0:
            return
        there, back = _Edge(end, room), _Edge(start, 0.0)
        there.back, back.back = back, there
        self.edges.setdefault(start, []).append(there)
        self.edges.setdefault(end, []).append(back)

    def plain_side(self) -> frozenset[object]:
        """What is on the plain side of the least cut; of equal ones, the one with the least on that side, since blocked operators fuse with
        the convolution that they follow."""
        while True:
            levels = self._levels()
            if self.plain not in levels:
                return self._reaching_plain()
            following = dict.fromkeys(levels, 0)
            while self._augment(levels, following):
                pass

    def _reaching_plain(self) -> frozenset[object]:
        """The nodes from which something could still flow to the plain end."""
        found, queue = {self.plain}, deque([self.plain])
        while queue:
            for edge in self.edges.get(queue.popleft(), ()):
                if edge.back is not None and edge.back.room > _LITTLE and edge.end not in found:
                    found.add(edge.end)
                    queue.append(edge.end)
        return frozenset(found)

    def _levels(self) -> dict[object, int]:
        levels = {self.blocked: 0}
        queue = deque([self.blocked])
        while queue:
            start = queue.popleft()
            for edge in self.edges.get(start, ()):
                if edge.room > _LITTLE and edge.end not in levels:
                    levels[edge.end] = levels[start] + 1
                    queue.append(edge.end)
        return levels

    def _augment(self, levels: Mapping[object, int], following: dict[object, int]) -> bool:
        """Send flow along one path of rising levels, if there is one left."""
        path: list[_Edge] = []
        at = self.blocked
        while at is not self.plain:
            edges: Sequence[_Edge] = self.edges.get(at, ())
            while following[at] < len(edges):
                edge = edges[following[at]]
                if edge.room > _LITTLE and levels.get(edge.end) == levels[at] + 1:
                    break
                following[at] += 1
            if following[at] < len(edges):
                path.append(edges[following[at]])
                at = path[-1].end
            elif path:
                edge = path.pop()
                assert edge.back is not None
                at = edge.back.end
                following[at] += 1
            else:
                return False
        amount = min(edge.room for edge in path)
        for edge in path:
            assert edge.back is not None
            edge.room -= amount
            edge.back.room += amount
        return True


_LITTLE = 1e-9
