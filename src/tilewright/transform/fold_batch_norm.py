"""Batch norms with known statistics, and other factors and offsets for each channel, go into the weights before them.

    batch_norm(convolution(x, w) [+ b]) -> convolution(x, w') + b'
    (convolution(x, w) [+ b]) * c + d   -> convolution(x, w') + b'

Also for transposed convolutions and contractions with constant weights. Weights are scaled in float64 and rounded once; sums then round
in another order, which the default precision allows. A batch norm that finds no weights becomes x * scale + shift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.graph.node import Array, Function, Node, Operator, Value
from tilewright.graph.ops import BatchNorm, Binary, Constant, ConstantData, Contract, Convolution, ConvolutionTranspose
from tilewright.graph.ops.contraction import parse_spec
from tilewright.ir.types import static_shape
from tilewright.transform.match import array_of, binary_of
from tilewright.transform.rewriting import Answer, Rewriter, Rules, apply_rules


def fold_batch_norm(function: Function) -> Function:
    """The function with constant factors for each channel multiplied into constant weights."""
    return apply_rules(function, RULES)


@dataclass(frozen=True, slots=True)
class Weighted:
    """A value that is `op` over `inputs` plus `bias` (which broadcasts to it); operand `slot` holds constant weights."""

    op: Operator
    inputs: tuple[Value, ...]
    slot: int
    bias: Array | None


def weighted(r: Rewriter, value: Value) -> Weighted | None:
    """The value as weights and bias, if nothing else uses it or what it is made of."""
    if r.is_shared(value) or not value.type.dtype.is_float:
        return None
    total = binary_of(value, "add")
    bias = None
    if total is not None:
        bias = array_of(total[1])
        value = total[0]
        if bias is None or r.is_shared(value) or value.type is not total[0].type:
            return None
    slots = (1,) if isinstance(value.op, (Convolution, ConvolutionTranspose)) else (1, 0) if isinstance(value.op, Contract) else ()
    for slot in slots:
        array = array_of(value.node.inputs[slot])
        if array is not None and array.dtype == value.type.dtype.numpy:
            return Weighted(value.op, value.node.inputs, slot, bias)
    return None


def weight_factor(part: Weighted, factor: Array, rank: int) -> Array | None:
    """The factor, which broadcasts to the result, in the shape in which it broadcasts to the weights; None when it varies along an axis
    that the weights do not have."""
    factor = factor.reshape((1,) * (rank - factor.ndim) + factor.shape)
    varying = [axis for axis, n in enumerate(factor.shape) if n != 1]
    op = part.op
    weights = part.inputs[part.slot]
    if isinstance(op, Contract):
        letters = parse_spec(op.spec)
        own = (letters.left, letters.right)[part.slot]
        if any(letters.result[axis] not in own for axis in varying):
            return None
        moved = [letters.result.index(letter) if letter in letters.result else None for letter in own]
        order = [axis for axis in moved if axis is not None]
        rest = [axis for axis in range(rank) if axis not in order]
        return factor.transpose([*order, *rest]).reshape([1 if axis is None else factor.shape[axis] for axis in moved])
    if varying not in ([], [1]):
        return None
    if isinstance(op, Convolution) or not varying:
        return factor.reshape(-1, *(1,) * (weights.type.rank - 1))
    assert isinstance(op, ConvolutionTranspose)
    shape = static_shape(weights.shape)
    assert shape is not None
    # w [C, O/groups, *K]: output channel g * O/groups + o reads the input channels of group g.
    grouped = np.repeat(factor.reshape(op.groups, shape[1]), shape[0] // op.groups, axis=0)
    return grouped.reshape(*shape[:2], *(1,) * (len(shape) - 2))


def scaled(r: Rewriter, value: Value, factor: Array | None, offset: Array | None) -> Value | None:
    """value * factor + offset with both in the weights and the bias of `value`; None when it has none or they do not fit."""
    part = weighted(r, value)
    if part is None:
        return None
    rank, dtype = value.type.rank, value.type.dtype
    inputs, bias = list(part.inputs), part.bias
    if factor is not None:
        fitting = weight_factor(part, factor, rank)
        weights = array_of(inputs[part.slot])
        assert weights is not None
        if fitting is None:
            return None
        with np.errstate(all="ignore"):
            product = (weights.astype(np.float64) * fitting).astype(dtype.numpy)
        if product.shape != weights.shape or not np.isfinite(product).all():
            return None
        inputs[part.slot] = r.emit(Constant(ConstantData(product)))
        bias = None if bias is None else bias.astype(np.float64) * factor
    if offset is not None:
        bias = offset.astype(np.float64) if bias is None else bias.astype(np.float64) + offset
    result = r.emit(part.op, *inputs)
    if bias is None or not bias.any():
        return result
    if math.prod(bias.shape) > MAX_BIAS:
        return None
    return r.emit(Binary("add"), result, r.emit(Constant(ConstantData(bias.astype(dtype.numpy)))))


MAX_BIAS = 1 << 20  # elements; the product of factor and bias may be larger than both


def batch_norm(r: Rewriter, node: Node) -> Answer:
    """x * scale + shift, in the weights that x comes from if there are any."""
    op = node.op
    assert isinstance(op, BatchNorm)
    parameters = [array_of(value) for value in node.inputs[1:]]
    if any(p is None for p in parameters):
        return None
    scale, bias, mean, variance = (p.astype(np.float64) for p in parameters if p is not None)
    x = node.inputs[0]
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + op.epsilon)
    shape = (-1, *(1,) * (x.type.rank - 2))
    factor, offset = factor.reshape(shape), (bias - mean * factor).reshape(shape)
    folded = scaled(r, x, factor, offset)
    if folded is not None:
        return folded
    dtype = x.type.dtype
    if dtype.bits < 32 or x.type.rank < 2:
        return None
    product = r.emit(Binary("mul"), x, r.emit(Constant(ConstantData(factor.astype(dtype.numpy)))))
    return r.emit(Binary("add"), product, r.emit(Constant(ConstantData(offset.astype(dtype.numpy)))))


def channel_factor(r: Rewriter, node: Node) -> Answer:
    """(w x + b) * c -> (w * c) x + b * c, and (w x + b) + d -> w x + (b + d)."""
    op = node.op
    assert isinstance(op, Binary)
    x, c = node.inputs
    array = array_of(c)
    if array is None or x.type is not node.types[0] or op.fn not in ("mul", "add"):
        return None
    if op.fn == "mul":
        return scaled(r, x, array.astype(np.float64), None)
    # A single sum is in normal form already.
    return scaled(r, x, None, array) if binary_of(x, "add") is not None else None


RULES: Rules = {BatchNorm: (batch_norm,), Binary: (channel_factor,)}
