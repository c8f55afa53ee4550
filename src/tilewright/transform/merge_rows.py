"""Leading axes that a matrix product treats alike become one axis of rows.

A product of [B, T, K] by weights [K, N] has B * T rows. As two axes, tiles of several rows lie along one of them, and compute rows that are
not there where that one is short: a batch of 1, a sequence of one token. Row-major memory makes one axis of both for free. What follows
element by element is computed with merged axes too, so that it stays with its product; everything else reads the axes as they were.

    add(contract("btk,kn->btn", x, w), bias)  ->  reshape(add(contract("bk,kn->bn", reshape(x), w), bias))

Rows that the result has in another order are copied into that order where one of their numbers is known only while running, so that nobody
can say which of the axes is long enough for tiles. A copied element is one load and store, and takes part in a product with each column.

    contract("tbk,kn->btn", x, w)  ->  contract("btk,kn->btn", transpose(x), w)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from tilewright.graph.in_place import is_in_place
from tilewright.graph.node import Function, GraphBuilder, Node, Parameter, Value, users_of, walk_nodes
from tilewright.graph.ops import Binary, Cast, Constant, Contract, Gelu, HardSwish, Reshape, Select, Softplus, Transpose, Unary
from tilewright.graph.ops.contraction import parse_spec
from tilewright.graph.shapes import canonical, is_one
from tilewright.ir.types import Shape, product

ELEMENTWISE = (Unary, Binary, Select, Cast, Gelu, HardSwish, Softplus)
WIDE = 64  # columns from which on a product takes far longer than a copy of its rows
ABSORBED = ("transpose", "slice", "broadcast_to")  # products read through these, which they cannot where a reshape stands between


@dataclass(slots=True)
class _Merger:
    """State of the walk: the `plain` form of the original values, and the `merged` form with the number of leading axes that are one."""

    users: dict[Node, list[Node]]
    g: GraphBuilder = field(default_factory=GraphBuilder)
    plain: dict[Value, Value] = field(default_factory=dict)
    merged: dict[Value, tuple[Value, int]] = field(default_factory=dict)

    def plain_form(self, value: Value) -> Value:
        found = self.plain.get(value)
        if found is None:
            found = self.plain[value] = self.g.one(Reshape(value.shape), self.merged[value][0])
        return found

    def merged_form(self, value: Value, axes: int) -> Value:
        found = self.merged.get(value)
        if found is not None and found[1] == axes:
            return found[0]
        return self.g.one(Reshape(_merged_shape(value.shape, axes)), self.plain_form(value))


def _merged_shape(shape: Shape, axes: int) -> Shape:
    return (canonical(product(shape[:axes])), *shape[axes:])


def merge_rows(function: Function) -> Function:
    """The function with the leading axes of products, and of what follows them element by element, merged."""
    if not any(isinstance(node.op, Contract) and (_leading(node) or _turned(node)) for node in walk_nodes(function.results)):
        return function
    state = _Merger(users_of(function.results))
    for node in walk_nodes(function.results):
        state.g.origin = node.origin
        made = _product(state, node) if isinstance(node.op, Contract) else _elementwise(state, node)
        if made is not None:
            state.merged[node[0]] = made
        elif isinstance(node.op, (Parameter, Constant)):
            state.plain[node[0]] = node[0]
        else:
            results = state.g.emit(node.op, *(state.plain_form(value) for value in node.inputs))
            state.plain.update(zip(node.values, results, strict=True))
    return Function(function.name, function.params, tuple(state.plain_form(value) for value in function.results))


def _leading(node: Node) -> tuple[int, tuple[int, ...], int] | None:
    """(operand, order, axes): the operand whose first axes, two or more of them longer than 1, are first in the result and not in the other
    operand; the order that it has."""
    assert isinstance(node.op, Contract)
    letters = parse_spec(node.op.spec)
    for operand, (own, other) in enumerate(((letters.left, letters.right), (letters.right, letters.left))):
        axes = 0
        while axes < min(len(own), len(letters.result)) and own[axes] == letters.result[axes] and own[axes] not in other:
            axes += 1
        if sum(not is_one(dim) for dim in node.inputs[operand].shape[:axes]) > 1 and axes < len(letters.result):
            return operand, tuple(range(len(own))), axes
    return None


def _turned(node: Node) -> tuple[int, tuple[int, ...], int] | None:
    """(operand, order, axes): the operand whose first axes, once they are in that order, are the first of the result, and their number."""
    assert isinstance(node.op, Contract)
    letters = parse_spec(node.op.spec)
    for operand, (own, other) in enumerate(((letters.left, letters.right), (letters.right, letters.left))):
        rows = [letter for letter, _ in takewhile(lambda pair: pair[1], ((c, c in own and c not in other) for c in letters.result))]
        dims = [node.inputs[operand].shape[own.index(letter)] for letter in rows]
        columns = product(node.types[0].shape[len(rows) :])
        known = all(dim.is_const for dim in dims if not is_one(dim))
        if sum(not is_one(dim) for dim in dims) < 2 or known or (columns.is_const and columns.value < WIDE):
            continue
        order = [*rows, *(letter for letter in own if letter not in rows)]
        if len(rows) < len(letters.result):
            return operand, tuple(own.index(letter) for letter in order), len(rows)
    return None


def _product(state: _Merger, node: Node) -> tuple[Value, int] | None:
    found = _leading(node) or _turned(node)
    if found is None:
        return None
    operand, order, axes = found
    rows = node.inputs[operand]
    if rows.op.name in ABSORBED and not is_in_place(rows.node) and len(state.users[rows.node]) == 1:
        return None
    assert isinstance(node.op, Contract)
    letters = parse_spec(node.op.spec)
    sides = [letters.left, letters.right]
    sides[operand] = "".join(sides[operand][axis] for axis in order)
    spec = "".join(letter for letter in f"{sides[0]},{sides[1]}->{letters.result}" if letter not in letters.result[1:axes])
    inputs = [rows if i == operand else state.plain_form(value) for i, value in enumerate(node.inputs)]
    if order == tuple(range(len(order))):
        inputs[operand] = state.merged_form(rows, axes)
    else:
        turned = state.g.one(Transpose(order), state.plain_form(rows))
        inputs[operand] = state.g.one(Reshape(_merged_shape(turned.shape, axes)), turned)
    return state.g.one(Contract(spec, node.op.dtype), *inputs), axes


def _elementwise(state: _Merger, node: Node) -> tuple[Value, int] | None:
    if not isinstance(node.op, ELEMENTWISE):
        return None
    shape = node.types[0].shape
    axes = next((state.merged[value][1] for value in node.inputs if value in state.merged and value.shape == shape), None)
    if axes is None:
        return None
    inputs: list[Value] = []
    for value in node.inputs:
        rank = value.type.rank
        if value.shape == shape:
            inputs.append(state.merged_form(value, axes))
        elif rank <= len(shape) - axes:
            inputs.append(state.plain_form(value))
        elif rank == len(shape) and all(map(is_one, value.shape[:axes])):
            inputs.append(state.merged_form(value, axes))
        else:
            return None
    return state.g.one(node.op, *inputs), axes
