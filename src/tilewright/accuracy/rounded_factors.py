"""Which products may get factors that `precision=bf16` rounds, as far as a graph before compilation shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.graph.node import Node, Operator, Value, walk_nodes
from tilewright.graph.ops import (
    BatchNorm,
    Binary,
    BlockedConvolution,
    Contract,
    Convolution,
    ConvolutionTranspose,
    Unary,
    WinogradConvolution,
)
from tilewright.graph.ops.movement import BroadcastTo, Concat, Pad, RefineShape, Reshape, Slice, Transpose

Array = np.ndarray[Any, np.dtype[Any]]
# Operators whose factors may be rounded to bfloat16.
PRODUCTS = (Contract, Convolution, ConvolutionTranspose, BlockedConvolution, WinogradConvolution)
MOVEMENT = (Reshape, RefineShape, Transpose, BroadcastTo, Slice, Pad, Concat)


def loses_bits(x: Array) -> bool:
    """Whether x is float32 and rounding to bfloat16 changes it."""
    return x.dtype == np.float32 and not np.array_equal(x.astype(ml_dtypes.bfloat16).astype(np.float32), x, equal_nan=True)


def scaled_products(results: Iterable[Value]) -> Iterator[Node]:
    """The products whose results are multiplied by something, before or after they are moved and added to others: the compiler may put
    that into the weights, which then have more bits than those that the graph shows."""
    scaled: set[Node] = set()
    for node in reversed(list(walk_nodes(results))):
        if isinstance(node.op, PRODUCTS):
            if node in scaled:
                yield node
        elif scales(node.op) or (node in scaled and keeps_factors(node.op)):
            scaled.update(value.node for value in node.inputs)


def scales(op: Operator) -> bool:
    return isinstance(op, BatchNorm) or (isinstance(op, Binary) and op.fn in ("mul", "div"))


def keeps_factors(op: Operator) -> bool:
    """Whether a factor of the result may as well be one of the operands."""
    return isinstance(op, MOVEMENT) or (isinstance(op, Binary) and op.fn in ("add", "sub")) or (isinstance(op, Unary) and op.fn == "neg")
