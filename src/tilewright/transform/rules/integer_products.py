"""Rules that let quantized models compute in integers: products of dequantized operands become products of the integers they came from.

With x = (q - z) * s for activations (one scale for the tensor) and w = v * t for weights (one scale for each output channel),
sum(x * w) = (sum(q * v) - z * sum(v)) * (s * t): an integer product, a constant of the weights, one factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.node import Array, Node, Operator, Value
from tilewright.graph.ops import (
    Binary,
    Cast,
    Constant,
    ConstantData,
    Contract,
    Convolution,
    Dequantize,
    Pad,
    Quantize,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    WindowReduce,
    constant,
)
from tilewright.graph.ops.contraction import parse_spec
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import const
from tilewright.ir.types import static_shape
from tilewright.transform.match import array_of, made_by, number, uniform
from tilewright.transform.rewriting import Answer, Rewriter, Rules

EXACT_IN_FLOAT = 1 << 24  # integers up to this are float32 numbers
BYTES = (dtypes.uint8, dtypes.int8)


@dataclass(frozen=True, slots=True)
class Quantized:
    """A float value that is (q - zero) * scale, with one scale and zero point for all of it."""

    q: Value
    scale: float
    zero: int


def quantized(value: Value) -> Quantized | None:
    """What a dequantized value stands for; None where it has no scale that is one known number."""
    op = made_by(value, Dequantize)
    if op is None or op.block or op.dtype is not dtypes.float32:
        return None
    q, scale, *zero = value.node.inputs
    step, point = uniform(scale), uniform(zero[0]) if zero else 0
    if step is None or point is None or not (math.isfinite(step) and step > 0):
        return None
    return Quantized(q, float(step), int(point))


@dataclass(frozen=True, slots=True)
class Weights:
    """Constant weights that are values * scale: values int8, or int16 where the zero point moves them past that; scale of the same rank,
    with 1 where it does not vary."""

    values: Array
    scale: Array

    def varies_only_along(self, axis: int) -> bool:
        return all(n == 1 for i, n in enumerate(self.scale.shape) if i != axis)


def weights(value: Value) -> Weights | None:
    """Dequantized constants of bytes."""
    op = made_by(value, Dequantize)
    if op is None or op.block or op.dtype is not dtypes.float32:
        return None
    q, scale, *zero = (array_of(v) for v in value.node.inputs)
    if q is None or scale is None or (zero and zero[0] is None) or value.node.inputs[0].type.dtype not in BYTES:
        return None
    shape = [1] * q.ndim
    if scale.size > 1:
        shape[op.axis % q.ndim] = scale.size
    values = q.astype(np.int32) - (zero[0].astype(np.int32).reshape(shape) if zero and zero[0] is not None else 0)
    fits = values.size == 0 or (values.min() >= -128 and values.max() <= 127)
    return Weights(values.astype(np.int8 if fits else np.int16), scale.astype(np.float32).reshape(shape))


def held(r: Rewriter, array: Array) -> Value:
    return r.emit(Constant(ConstantData(np.ascontiguousarray(array))))


def in_bytes(r: Rewriter, x: Quantized, wanted: DType) -> Quantized:
    """The same values from bytes of the other sign, with the zero point moved along: q + 128 is unsigned, q - 128 signed."""
    if x.q.type.dtype is wanted:
        return x
    shift = 128 if wanted is dtypes.uint8 else -128
    q = r.emit(Binary("add"), r.emit(Cast(wanted), x.q), r.emit(constant(shift, wanted)))  # wraps into place
    return Quantized(q, x.scale, x.zero + shift)


def scaled(r: Rewriter, acc: Value, correction: Array, scale: Array) -> Value:
    """(acc + correction) * scale in float32, as one multiply-add."""
    scale = scale.astype(np.float64)
    real = acc if acc.type.dtype is dtypes.float32 else r.emit(Cast(dtypes.float32), acc)
    product = r.emit(Binary("mul"), real, held(r, scale.astype(np.float32)))
    return r.emit(Binary("add"), product, held(r, (correction * scale).astype(np.float32))) if correction.any() else product


def convolution(r: Rewriter, node: Node, activations: DType) -> Answer:
    """A convolution of dequantized activations and weights."""
    op = node.op
    assert isinstance(op, Convolution)
    x, w = quantized(node.inputs[0]), weights(node.inputs[1])
    if op.dtype is not dtypes.float32 or x is None or w is None or x.q.type.dtype not in BYTES or not w.varies_only_along(0):
        return None
    x = in_bytes(r, x, activations)
    q = x.q
    if x.zero and any(amount is not const(0) for amount in (*op.low, *op.high)):
        outside = (const(0), const(0))  # padding is the number 0, which is the zero point
        q = r.emit(Pad((*outside, *op.low), (*outside, *op.high), "constant"), q, r.emit(constant(x.zero, q.type.dtype)))
        op = replace(op, low=(const(0),) * len(op.low), high=(const(0),) * len(op.high))
    taps = math.prod(w.values.shape[1:])
    depthwise = w.values.shape[1] == 1
    # One channel for each result is no work for dot products; floats hold such short sums exactly.
    accumulator = dtypes.float32 if depthwise and taps * 255 * 255 < EXACT_IN_FLOAT else dtypes.int32
    acc = r.emit(replace(op, dtype=accumulator), q, held(r, w.values))
    shape = (-1, *(1,) * len(op.strides))
    sums = w.values.astype(np.int64).sum(axis=tuple(range(1, w.values.ndim))).reshape(shape)
    return scaled(r, acc, -x.zero * sums, np.broadcast_to(w.scale.reshape(-1), sums.size).reshape(shape) * np.float64(x.scale))


def contraction(r: Rewriter, node: Node, activations: DType) -> Answer:
    """A contraction of dequantized activations and weights, in either order."""
    op = node.op
    assert isinstance(op, Contract)
    letters = parse_spec(op.spec)
    for slot in (1, 0):
        x, w = quantized(node.inputs[1 - slot]), weights(node.inputs[slot])
        own = (letters.left, letters.right)[slot]
        if op.dtype is not dtypes.float32 or x is None or w is None or x.q.type.dtype not in BYTES or not set(letters.reduced) <= set(own):
            continue
        varying = [letter for letter, n in zip(own, w.scale.shape, strict=True) if n > 1]
        if any(letter not in letters.result for letter in varying):
            continue
        x = in_bytes(r, x, activations)
        values = held(r, w.values)
        acc = r.emit(Contract(op.spec, dtypes.int32), *((x.q, values) if slot else (values, x.q)))
        summed = tuple(i for i, letter in enumerate(own) if letter in letters.reduced)
        sums = _spread(own, letters.result, w.values.astype(np.int64).sum(axis=summed, keepdims=True))
        return scaled(r, acc, -x.zero * sums, _spread(own, letters.result, w.scale * np.float64(x.scale)))
    return None


def _spread(own: str, result: str, array: Array) -> Array:
    """An array over the letters of one operand, of size 1 where the result lacks them, in the order of the result's axes."""
    kept = [letter for letter in result if letter in own]
    moved = array.transpose([own.index(letter) for letter in kept] + [i for i, letter in enumerate(own) if letter not in result])
    sizes = dict(zip(kept, moved.shape))
    return moved.reshape([sizes.get(letter, 1) for letter in result])


def bias(r: Rewriter, node: Node) -> Answer:
    """(acc * s + c) + b -> acc * s + (c + b), for a constant bias, which may be dequantized."""
    op = node.op
    assert isinstance(op, Binary)
    if op.fn != "add":
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        offset = known(other)
        if offset is None or x.type is not node.types[0]:
            continue
        if _is_scaled_product(x) and array_of(other) is None:
            return r.emit(Binary("add"), x, held(r, offset.astype(np.float32)))
        sum_ = made_by(x, Binary)
        before = None if sum_ is None or sum_.fn != "add" or r.is_shared(x) else array_of(x.node.inputs[1])
        if before is not None and _is_scaled_product(x.node.inputs[0]):
            return r.emit(Binary("add"), x.node.inputs[0], held(r, (before.astype(np.float64) + offset).astype(np.float32)))
    return None


def _is_scaled_product(value: Value) -> bool:
    """What `scaled` makes of a product of integers."""
    op = made_by(value, Binary)
    if op is None or op.fn != "mul" or array_of(value.node.inputs[1]) is None:
        return False
    acc = value.node.inputs[0]
    acc = acc.node.inputs[0] if made_by(acc, Cast) else acc
    return isinstance(acc.op, (Convolution, Contract)) and any(v.type.dtype in BYTES for v in acc.node.inputs)


def known(value: Value) -> Array | None:
    """The elements, in float64, of a constant or of a dequantized one, which may be reshaped."""
    source = value.node.inputs[0] if isinstance(value.op, Reshape) else value
    shape = static_shape(value.shape)
    op = made_by(source, Dequantize)
    found = array_of(source)
    if op is not None and not op.block and len(source.node.inputs) == 2:
        numbers, scale = (array_of(v) for v in source.node.inputs)
        if numbers is not None and scale is not None and (numbers.ndim == 1 or scale.size == 1):
            found = numbers.astype(np.float64) * scale.astype(np.float64).reshape(-1 if scale.size > 1 else ())
    if found is None or shape is None or found.dtype.kind != "f":
        return None
    return found.astype(np.float64).reshape(shape)


def unsigned_source(r: Rewriter, node: Node) -> Answer:
    """dequantize(quantize(x) to int8) -> the same through uint8, which instructions for products of bytes take."""
    x = quantized(node[0])
    if x is None or x.q.type.dtype is not dtypes.int8:
        return None
    source = made_by(x.q, Quantize)
    if source is None or source.block:
        return None
    value, scale, *zero = x.q.node.inputs
    point = number(zero[0]) if zero else 0
    if uniform(scale) is None or point is None:
        return None
    one = r.emit(constant(uniform(scale)))
    q = r.emit(replace(source, dtype=dtypes.uint8), value, one, r.emit(constant(int(point) + 128, dtypes.uint8)))
    return dequantized(r, Quantized(q, x.scale, x.zero + 128))


def dequantized(r: Rewriter, x: Quantized) -> Value:
    scale = r.emit(constant(np.float32(x.scale)))
    zero = () if x.zero == 0 else (r.emit(constant(x.zero, x.q.type.dtype)),)
    return r.emit(Dequantize(0, 0, dtypes.float32), x.q, scale, *zero)


def moved(r: Rewriter, node: Node) -> Answer:
    """Movement and maxima of dequantized values are those of the integers: both grow together."""
    op: Operator = node.op
    x = quantized(node.inputs[0])
    if x is None or (isinstance(op, (WindowReduce, Reduce)) and op.fn not in ("max", "min")):
        return None
    if isinstance(op, Pad):
        fill = number(node.inputs[1]) if len(node.inputs) > 1 else None
        if op.mode != "constant" or fill != 0 or not x.q.type.dtype.lowest <= x.zero <= x.q.type.dtype.highest:
            return None
        return dequantized(r, replace(x, q=r.emit(op, x.q, r.emit(constant(x.zero, x.q.type.dtype)))))
    if isinstance(x.q.op, Constant):
        return None
    return dequantized(r, replace(x, q=r.emit(op, x.q)))


def relu(r: Rewriter, node: Node) -> Answer:
    """max(dequantized, 0) -> max(q, zero), dequantized."""
    op = node.op
    assert isinstance(op, Binary)
    x = quantized(node.inputs[0])
    if x is None or op.fn != "max" or number(node.inputs[1]) != 0 or node.types[0] is not node.inputs[0].type:
        return None
    dtype = x.q.type.dtype
    if not dtype.lowest <= x.zero <= dtype.highest or isinstance(x.q.op, Constant):
        return None
    least = r.emit(constant(x.zero, dtype))
    return dequantized(r, replace(x, q=x.q if x.zero == dtype.lowest else r.emit(Binary("max"), x.q, least)))


def quantized_again(r: Rewriter, node: Node) -> Answer:
    """quantize(dequantize(q)) with equal scale and zero point -> q."""
    op = node.op
    assert isinstance(op, Quantize)
    x = quantized(node.inputs[0])
    step, point = uniform(node.inputs[1]), number(node.inputs[2]) if len(node.inputs) > 2 else 0
    if x is None or op.block or step is None or float(step) != x.scale or point != x.zero or x.q.type.dtype is not op.dtype:
        return None
    return x.q


def rules(activations: DType) -> Rules:
    """The table for a machine whose instructions multiply bytes of dtype `activations` by signed ones."""

    def integer_convolution(r: Rewriter, node: Node) -> Answer:
        return convolution(r, node, activations)

    def integer_contraction(r: Rewriter, node: Node) -> Answer:
        return contraction(r, node, activations)

    return {
        Convolution: (integer_convolution,),
        Contract: (integer_contraction,),
        Binary: (bias, relu),
        Dequantize: (unsigned_source,) if activations is dtypes.uint8 else (),
        Quantize: (quantized_again,),
        **dict.fromkeys((Reshape, Transpose, Slice, WindowReduce, Reduce, Pad), (moved,)),
    }
