"""Layouts by cost: the choice is the cheapest of all, not that of each convolution for itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled_graphs import f32, function
from tilewright.graph.node import Function, GraphBuilder, Node, Value, walk_nodes
from tilewright.graph.ops import Binary, Convolution, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.transform.choose_layouts import plain_nodes

SHAPE = (1, 8, 4, 4)


def convolution(g: GraphBuilder, x: Value, number: int) -> Value:
    weights = g.one(constant(np.full((8, 8, 1, 1), number, np.float32)))
    zero = (const(0), const(0))
    return g.one(Convolution((1, 1), (1, 1), zero, zero, 1, dtypes.float32), x, weights)


def number_of(node: Node) -> int:
    weights = node.inputs[1].op
    return int(weights.data.array.flat[0])  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Costs:
    blocked: dict[int, float]
    plain: dict[int, float]
    converted: float

    def convolution(self, node: Node, blocked: bool) -> float:
        return (self.blocked if blocked else self.plain)[number_of(node)]

    def conversion(self, value: Value) -> float:
        return self.converted

    def window_channels(self, node: Node) -> int:
        return 0


def starts(node: Node) -> bool:
    return isinstance(node.op, Convolution)


def energy(f: Function, costs: Costs, free: list[Node], plain: frozenset[Node]) -> float:
    """The cost of a choice, counted over the graph: computing, and each value that somebody reads in the other layout, once."""
    total = sum(costs.convolution(node, node not in plain) for node in free if starts(node))
    blocked = {node for node in free if node not in plain}
    nodes = list(walk_nodes(f.results))
    for node in nodes:
        if node.op.name == "constant":
            continue
        readers = [user in blocked for user in nodes if any(value.node is node for value in user.inputs)]
        if any(value.node is node for value in f.results):
            readers.append(False)
        total += costs.conversion(node[0]) * any(reader != (node in blocked) for reader in readers)
    return total


def chain(length: int) -> Function:
    def body(g: GraphBuilder, x: Value) -> list[Value]:
        for number in range(length):
            x = g.one(Unary("tanh"), convolution(g, x, number + 1))
        return [x]

    return function("p", [f32(*SHAPE)], body)


def test_one_convolution_is_not_worth_two_conversions_and_a_chain_of_them_is() -> None:
    costs = Costs(dict.fromkeys(range(1, 9), 10.0), dict.fromkeys(range(1, 9), 13.0), 4.0)
    single, several = chain(1), chain(4)
    assert any(starts(node) for node in plain_nodes(single, starts, costs))
    assert not plain_nodes(several, starts, costs)


def test_what_blocks_make_slower_stays_plain_between_blocked_ones() -> None:
    costs = Costs({1: 10.0, 2: 100.0, 3: 10.0}, {1: 50.0, 2: 10.0, 3: 50.0}, 4.0)
    plain = plain_nodes(chain(3), starts, costs)
    assert [number_of(node) for node in plain if starts(node)] == [2]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_choice_is_the_cheapest_of_all(data: st.DataObject) -> None:
    draw = data.draw
    steps = draw(st.lists(st.sampled_from(["convolution", "tanh", "add"]), min_size=1, max_size=7))
    picks = draw(st.lists(st.integers(0, 100), min_size=20, max_size=20))

    def body(g: GraphBuilder, x: Value) -> list[Value]:
        values = [convolution(g, x, 1)]
        for i, step in enumerate(steps):
            a, b = values[picks[2 * i] % len(values)], values[picks[2 * i + 1] % len(values)]
            made = convolution(g, a, i + 2) if step == "convolution" else g.one(Unary("tanh"), a) if step == "tanh" else None
            values.append(made if made is not None else g.one(Binary("add"), a, b))
        return [values[-1], values[picks[-1] % len(values)]]

    f = function("p", [f32(*SHAPE)], body)
    price = st.integers(1, 30).map(float)
    costs = Costs({n: draw(price) for n in range(1, 9)}, {n: draw(price) for n in range(1, 9)}, draw(price))
    chosen = plain_nodes(f, starts, costs)
    free = [node for node in walk_nodes(f.results) if node.op.name in ("convolution", "unary", "binary")]
    choices = (frozenset(n for n, keep in zip(free, kept, strict=True) if keep) for kept in product((False, True), repeat=len(free)))
    best = min(energy(f, costs, free, plain) for plain in choices)
    assert energy(f, costs, free, chosen) == best
