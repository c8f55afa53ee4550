"""Constant folding: what depends on constants alone is computed by the compiler, by the operators' references."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Array, Function, GraphBuilder, Node, Parameter, Value, operator_sizes, rewrite_function
from tilewright.graph.ops import BroadcastTo, Call, Constant, ConstantData, If, Iota, Loop, RandomNormal, RandomUniform, WidenWeights
from tilewright.graph.ops.source import BindSize
from tilewright.ir.types import static_shape
from tilewright.support.errors import TilewrightError

SMALL = 1 << 20  # bytes: results up to this size are folded whatever the operands' size
LARGE = 1 << 28  # bytes: results past this size are folded only where they take no more than their operands

# Random numbers are drawn anew in each compilation unit; control flow may run long; weights stay as narrow as they are; the rest is no
# computation.
NEVER = (Parameter, Constant, BindSize, RandomUniform, RandomNormal, If, Loop, Call, WidenWeights)


def fold_constants(function: Function) -> Function:
    """The function with nodes over constants evaluated, unless a large result would come from small operands."""
    return rewrite_function(function, _visit)


def _visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    if isinstance(node.op, NEVER) or operator_sizes(node.op) or not all(isinstance(value.op, Constant) for value in inputs):
        return None
    if not _is_worth_storing(node, inputs):
        return None
    results = evaluate(node, inputs)
    return None if results is None else [g.one(Constant(ConstantData(array))) for array in results]


def _is_worth_storing(node: Node, inputs: Sequence[Value]) -> bool:
    """The results are small, or not larger than the operands; elements may become wider (weights in int8 that are used as floats)."""
    shapes = [static_shape(type_.shape) for type_ in node.types]
    counts = [math.prod(shape) for shape in shapes if shape is not None]
    if len(counts) < len(shapes):
        return False
    made = sum(count * type_.dtype.bytes for count, type_ in zip(counts, node.types))
    if isinstance(node.op, (BroadcastTo, Iota)):
        return made <= SMALL // 64
    given = [value.op.data for value in inputs if isinstance(value.op, Constant)]
    held = sum(data.nbytes for data in {id(data): data for data in given}.values())
    if made > max(held, LARGE):
        return False
    return made <= max(SMALL, 2 * held) or sum(counts) <= max((data.array.size for data in given), default=0)


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
