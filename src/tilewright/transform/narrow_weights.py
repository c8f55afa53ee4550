"""Products by dequantized constants read the small integers themselves (weight-only quantization).

    contract(x, dequantize(q, scale, zero))  ->  contract(x, widen_weights(codes, scale, zero))

Folding would make floats of the weights, of four to eight times the size, and with few rows of x a product takes the time of reading its
weights. The kernel that multiplies converts them (`target/cpu/rules/narrow_weights.py`). Weights that fit the first cache as floats are
left to folding.

Weights may be slices of constants, all of one number, which is known while running (an expert's, a layer's):

    contract(x, dequantize(q[i], scale[i], zero[i]))  ->  contract(x, widen_weights(codes[i], scale[i], zero[i]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.graph.in_place import cut_axis, picking
from tilewright.graph.node import Array, Function, Node, Value, walk_nodes
from tilewright.graph.ops import (
    Constant,
    ConstantData,
    Contract,
    Dequantize,
    Gather,
    Reshape,
    SizeValue,
    Slice,
    WidenWeights,
)
from tilewright.graph.ops.contraction import parse_spec
from tilewright.graph.ops.narrow_weights import packed
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.transform.match import array_of, made_by
from tilewright.transform.rewriting import Answer, Rewriter, apply_rules

FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
NARROW = {
    dtypes.int8: 8,
    dtypes.uint8: 8,
    dtypes.int4: 4,
    dtypes.uint4: 4,
    dtypes.int2: 2,
    dtypes.uint2: 2,
}


def narrow_weights(function: Function, cache: int) -> Function:
    """The function with products by dequantized constants in their stored width, where as floats they exceed `cache` bytes."""
    if not any(isinstance(node.op, Dequantize) for node in walk_nodes(function.results)):
        return function

    def narrow_contraction(r: Rewriter, node: Node) -> Answer:
        return _contraction(r, node, cache)

    return apply_rules(function, {Contract: (narrow_contraction,)})


def _contraction(r: Rewriter, node: Node, cache: int) -> Answer:
    op = node.op
    assert isinstance(op, Contract)
    letters = parse_spec(op.spec)
    if op.dtype not in FLOATS:
        return None
    for slot, own in ((1, letters.right), (0, letters.left)):
        weights, other = node.inputs[slot], node.inputs[1 - slot]
        stored = _stored(weights)
        if stored is None or r.is_shared(weights) or isinstance(other.op, Constant):
            continue
        codes, scale = stored.codes.shape[1:], stored.scale.shape[1:]
        if 4 * math.prod(codes) <= cache:
            continue
        reduced = [axis for axis, letter in enumerate(own) if letter in letters.contracted]
        varying = [axis for axis in reduced if scale[axis] > 1]
        blocked = [axis for axis, (n, full) in enumerate(zip(scale, codes, strict=True)) if n not in (1, full)]
        if not reduced or len(varying) > 1 or not set(blocked) <= set(varying):
            continue
        axis = varying[0] if varying else max(reduced, key=lambda a: codes[a])
        wide = _widened(r, stored, axis)
        return r.emit(op, *((other, wide) if slot else (wide, other)))
    return None


@dataclass(frozen=True, slots=True)
class Stored:
    """(codes - zero) * scale: codes unsigned where they have fewer than 8 bits; scale and zero of the same rank. The first axis of each
    counts the slices of which `picked` picks one; it has one element where that is None. `block`: codes for each scale along its axis of
    blocks, if it has one."""

    codes: Array
    bits: int
    scale: Array
    zero: Array | None
    block: int
    picked: Node | None


def _stored(value: Value) -> Stored | None:
    """Dequantized constants of at most 8 bits, or slices of them."""
    op = made_by(value, Dequantize)
    if op is None or op.dtype not in FLOATS:
        return None
    picked = picking(value.node.inputs[0])
    q, scale, *rest = (_slices(v, picked) for v in value.node.inputs)
    bits = NARROW.get(value.node.inputs[0].type.dtype)
    if q is None or scale is None or bits is None or (rest and rest[0] is None) or 0 in q.shape or scale.dtype == np.float64:
        return None
    if len({len(each) for each in (q, scale, *rest) if each is not None} - {1, len(q)}):
        return None
    axis = op.axis % (q.ndim - 1)
    codes = q.astype(np.int16)
    zero = rest[0].astype(np.int16) if rest and rest[0] is not None else None
    if bits < 8:
        lowest = int(value.node.inputs[0].type.dtype.lowest)
        codes, zero = codes - lowest, np.zeros(len(scale), np.int16) - lowest if zero is None else zero - lowest
    scale = _with_rank(scale, q.shape, axis)
    zero = None if zero is None else _with_rank(zero, q.shape, axis)
    block = op.block or 1
    if zero is not None and bits == 8 and all(n == 1 or not op.block for n in zero.shape[1:]):
        centred = codes - zero
        if centred.min() >= -128 and centred.max() <= 127:
            codes, zero = centred, None
    signed = bits == 8 and bool(codes.min() < 0)
    kept = codes.astype(np.int8 if signed else np.uint8)
    return Stored(kept, bits, scale, None if zero is None else _in_bytes(zero), block, picked)


def _slices(value: Value, picked: Node | None) -> Array | None:
    """The slices of which a value is the one that `picked` picks, on a new first axis: one where the value is a constant. None for other
    values."""
    own = picking(value)
    if own is None or picked is None:
        array = array_of(value)
        return None if array is None else array[None]
    array = array_of(own.inputs[0])
    if array is None or _number(own) != _number(picked) or not own.types[0].is_static:
        return None  # a Slice whose size is not known is checked, and stays
    return array.reshape(-1, *(int(dim.value) for dim in value.shape))


def _with_rank(p: Array, shape: tuple[int, ...], axis: int) -> Array:
    """A scale or zero point, of each slice, with an axis for each of the tensor's."""
    shape, one = shape[1:], p.shape[1:]
    if len(one) == len(shape) and len(one) != 1:
        return p
    size = math.prod(one)
    return p.reshape([len(p), *([1] * len(shape) if size == 1 else [size if a == axis else 1 for a in range(len(shape))])])


def _in_bytes(zero: Array) -> Array:
    """Zero points in the byte that holds them; one for all of the tensor if they are alike."""
    if (zero == zero.flat[0]).all():
        zero = zero.flat[0].reshape([1] * zero.ndim)
    return zero.astype(np.int8 if zero.min() < 0 else np.uint8)


def _widened(r: Rewriter, stored: Stored, axis: int) -> Value:
    def held(array: Array) -> Value:
        if len(array) == 1:
            return r.emit(Constant(ConstantData(np.ascontiguousarray(array[0]))))
        return r.emit(Gather(0), r.emit(Constant(ConstantData(np.ascontiguousarray(array)))), index)

    index = _index(r, stored.picked)
    extent = stored.codes.shape[1 + axis]
    block = stored.block if stored.scale.shape[1 + axis] > 1 else extent
    operands = [held(packed(stored.codes, stored.bits, 1 + axis)), held(stored.scale)]
    operands += [] if stored.zero is None else [held(stored.zero)]
    return r.emit(WidenWeights(stored.bits, axis, extent, block), *operands)


def _number(picked: Node) -> Value | Expr:
    """Which slice a node picks."""
    if isinstance(picked.op, Slice):
        axis = cut_axis(picked)
        assert axis is not None
        return picked.op.starts[axis]
    return picked.inputs[1]


def _index(r: Rewriter, picked: Node | None) -> Value:
    """The number of the slice that is picked as a scalar; 0 where none is."""
    number = const(0) if picked is None else _number(picked)
    return r.emit(SizeValue(number)) if isinstance(number, Expr) else r.emit(Reshape(()), number)
