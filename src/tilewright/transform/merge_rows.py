"""Axes that a matrix product treats alike become one: leading ones the rows, those of an image, in a pointwise convolution, the columns.

A product of [B, T, K] by weights [K, N] has B * T rows. As two axes, tiles of several rows lie along one of them, and compute rows that are
not there where that one is short: a batch of 1, a sequence of one token. Row-major memory makes one axis of both for free. What follows
element by element is computed with merged axes too, so that it stays with its product; everything else reads the axes as they were.

    add(contract("btk,kn->btn", x, w), bias)  ->  reshape(add(contract("bk,kn->bn", reshape(x), w), bias))

Rows that the result has in another order are copied into that order where one of their numbers is known only while running, so that nobody
can say which of the axes is long enough for tiles. A copied element is one load and store, and takes part in a product with each column.

    contract("tbk,kn->btn", x, w)  ->  contract("btk,kn->btn", transpose(x), w)

Convolutions of one tap that are still in plain layout here are products of [K, C] by [C, pixels]: where vectors run along all pixels,
results are stored as they are computed, whereas a tile of channels by pixels of one image row is turned first. With strides the image is
thinned out before, which pays where many channels read it.

    convolution(x [N, C, H, W], w [K, C, 1, 1])  ->  reshape(contract("KC,NCP->NKP", w, reshape(x)))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from tilewright.graph.in_place import is_in_place
from tilewright.graph.node import Function, GraphBuilder, Node, Parameter, Value, users_of, walk_nodes
from tilewright.graph.ops import (
    Binary,
    Cast,
    Constant,
    Contract,
    Convolution,
    Gelu,
    HardSwish,
    Reshape,
    Select,
    Slice,
    Softplus,
    Transpose,
    Unary,
    constant,
)
from tilewright.graph.ops.contraction import parse_spec
from tilewright.graph.shapes import canonical, is_one
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import Shape, product

ELEMENTWISE = (Unary, Binary, Select, Cast, Gelu, HardSwish, Softplus)
WIDE = 64  # columns from which on a product takes far longer than a copy of its rows
ABSORBED = ("transpose", "slice", "broadcast_to")  # products read through these, which they cannot where a reshape stands between
THINNED = 8  # vectors of output channels from which on a strided image is worth a copy: it costs about as much as one of them

Span = tuple[int, int]  # the first of the axes that become one, and the one after the last


@dataclass(slots=True)
class _Merger:
    """State of the walk: the `plain` form of the original values, and the `merged` form with the axes that are one."""

    users: dict[Node, list[Node]]
    g: GraphBuilder = field(default_factory=GraphBuilder)
    plain: dict[Value, Value] = field(default_factory=dict)
    merged: dict[Value, tuple[Value, Span]] = field(default_factory=dict)

    def plain_form(self, value: Value) -> Value:
        found = self.plain.get(value)
        if found is None:
            found = self.plain[value] = self.g.one(Reshape(value.shape), self.merged[value][0])
        return found

    def merged_form(self, value: Value, span: Span) -> Value:
        found = self.merged.get(value)
        if found is not None and found[1] == span:
            return found[0]
        return self.g.one(Reshape(_merged_shape(value.shape, span)), self.plain_form(value))


def _merged_shape(shape: Shape, span: Span) -> Shape:
    first, end = span
    return (*shape[:first], canonical(product(shape[first:end])), *shape[end:])


def merge_rows(function: Function, lanes: int) -> Function:
    """The function with the leading axes of products, those of images in pointwise convolutions, and both in what follows these element by
    element, merged. `lanes`: of a vector, which pixels must fill."""
    if not any(_is_mergeable(node, lanes) for node in walk_nodes(function.results)):
        return function
    state = _Merger(users_of(function.results))
    for node in walk_nodes(function.results):
        state.g.origin = node.origin
        if isinstance(node.op, Contract):
            made = _product(state, node)
        elif isinstance(node.op, Convolution):
            made = _pointwise(state, node) if _is_pointwise(node, lanes) else None
        else:
            made = _elementwise(state, node)
        if made is not None:
            state.merged[node[0]] = made
        elif isinstance(node.op, (Parameter, Constant)):
            state.plain[node[0]] = node[0]
        else:
            results = state.g.emit(node.op, *(state.plain_form(value) for value in node.inputs))
            state.plain.update(zip(node.values, results, strict=True))
    return Function(function.name, function.params, tuple(state.plain_form(value) for value in function.results))


def _is_mergeable(node: Node, lanes: int) -> bool:
    return (isinstance(node.op, Contract) and bool(_leading(node) or _turned(node))) or _is_pointwise(node, lanes)


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


def _product(state: _Merger, node: Node) -> tuple[Value, Span] | None:
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
        inputs[operand] = state.merged_form(rows, (0, axes))
    else:
        turned = state.g.one(Transpose(order), state.plain_form(rows))
        inputs[operand] = state.g.one(Reshape(_merged_shape(turned.shape, (0, axes))), turned)
    return state.g.one(Contract(spec, node.op.dtype), *inputs), (0, axes)


def _is_pointwise(node: Node, lanes: int) -> bool:
    """A convolution of one tap over images of at least a vector, as a product of which no operand is copied in vain."""
    op = node.op
    if not isinstance(op, Convolution) or op.dtype is not dtypes.float32 or op.groups != 1:
        return False
    x, w = node.inputs
    image = node.types[0].shape[2:]
    if not isinstance(w.op, Constant) or not all(map(is_one, w.shape[2:])) or not all(dim.is_const for dim in (*image, w.shape[0])):
        return False
    padded = any(not (amount.is_const and amount.value == 0) for amount in (*op.low, *op.high))
    strided = any(stride > 1 for stride in op.strides)
    pays = not strided or int(w.shape[0].value) >= THINNED * lanes
    return not padded and pays and len(image) > 1 and product(image).value >= lanes and x.type.dtype is w.type.dtype is dtypes.float32


def _pointwise(state: _Merger, node: Node) -> tuple[Value, Span]:
    op, g = node.op, state.g
    assert isinstance(op, Convolution)
    x, w = node.inputs
    span = 2, node.types[0].rank
    assert isinstance(w.op, Constant)
    weights = g.one(constant(w.op.data.array.reshape(w.op.data.array.shape[:2])))
    if any(stride > 1 for stride in op.strides):
        sizes = (*x.shape[:2], *node.types[0].shape[2:])
        thin = g.one(Slice((const(0),) * len(sizes), sizes, (1, 1, *op.strides)), state.plain_form(x))
        columns = g.one(Reshape(_merged_shape(sizes, span)), thin)
    else:
        columns = state.merged_form(x, span)
    return g.one(Contract("KC,NCP->NKP", op.dtype), weights, columns), span


def _elementwise(state: _Merger, node: Node) -> tuple[Value, Span] | None:
    if not isinstance(node.op, ELEMENTWISE):
        return None
    shape = node.types[0].shape
    span = next((state.merged[value][1] for value in node.inputs if value in state.merged and value.shape == shape), None)
    if span is None:
        return None
    inputs: list[Value] = []
    for value in node.inputs:
        rank = value.type.rank
        missing = len(shape) - rank
        if value.shape == shape:
            inputs.append(state.merged_form(value, span))
        elif rank <= len(shape) - span[1]:
            inputs.append(state.plain_form(value))
        elif missing <= span[0] and all(map(is_one, value.shape[span[0] - missing : span[1] - missing])):
            inputs.append(state.merged_form(value, (span[0] - missing, span[1] - missing)))
        else:
            return None
    return state.g.one(node.op, *inputs), span
