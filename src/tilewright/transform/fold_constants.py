"""Constant folding: what depends on constants alone is computed by the compiler, by the operators' references."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Array, Function, GraphBuilder, Node, Parameter, Value, operator_sizes, rewrite_function
from tilewright.graph.ops import BroadcastTo, Call, Constant, ConstantData, If, Iota, Loop, RandomNormal, RandomUniform
from tilewright.graph.ops.source import BindSize
from tilewright.ir.types import static_shape
from tilewright.support.errors import TilewrightError

SMALL = 1 << 20  # bytes: results up to this size are folded whatever the operands' size

# Random numbers are drawn anew in each compilation unit; control flow may run long; the rest is no computation.
NEVER = (Parameter, Constant, BindSize, RandomUniform, RandomNormal, If, Loop, Call)


def fold_constants(function: Function) -> Function:
    """The function with nodes over constants evaluated, unless a large result would come from small operands."""
    return rewrite_function(function, _visit)


def _visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    if isinstance(node.op, NEVER) or operator_sizes(node.op) or not all(isinstance(value.op, Constant) for value in inputs):
        return None
    made = _bytes_of(node)
    given = sum(value.op.data.nbytes for value in inputs if isinstance(value.op, Constant))
    limit = SMALL // 64 if isinstance(node.op, (BroadcastTo, Iota)) else max(SMALL, 2 * given)
    if made is None or made > limit:
        return None
    results = evaluate(node, inputs)
    return None if results is None else [g.one(Constant(ConstantData(array))) for array in results]


def _bytes_of(node: Node) -> int | None:
    """Bytes of a node's results; None when a dim is symbolic."""
    total = 0
    for type_ in node.types:
        shape = static_shape(type_.shape)
        if shape is None:
            return None
        total += math.prod(shape) * type_.dtype.bytes
    return total


def evaluate(node: Node, inputs: Sequence[Value]) -> list[Array] | None:
    """The node's results over constants; None when the operator cannot be evaluated, which then happens, or fails, while running."""
    g = GraphBuilder()
    constants = [value.node.op for value in inputs]
    results = g.emit(node.op, *(g.one(op) for op in constants))
    if tuple(value.type for value in results) != node.types:
        return None
    try:
        return [np.ascontiguousarray(array).reshape(array.shape) for array in interpret(Function("folded", (), results), [])]
    except TilewrightError:
        return None
