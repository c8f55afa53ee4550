"""Quantization by known scales, as the end of what is quantized: one factor, a clamp, and one conversion that rounds.

saturate(round(x / s) + z) is round(min(max(x / s, least - z), greatest - z)) + z: the bounds are whole numbers, so that clamping and
rounding may change places, and the clamp keeps the conversion in range. Where x ends in a factor, 1 / s is multiplied into it.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.node import Node, Value
from tilewright.graph.ops import Binary, Cast, Quantize, Unary, constant
from tilewright.ir import dtypes
from tilewright.transform.match import array_of, made_by, number, uniform
from tilewright.transform.rewriting import Answer, Rewriter, Rules
from tilewright.transform.rules.integer_products import held, quantized

DEPTH = 8  # operators that a factor is carried through
CARRYING = ("add", "sub", "max", "min")  # fn(a, b) * f is fn(a * f, b * f) for positive f


def quantize(r: Rewriter, node: Node) -> Answer:
    """Quantization to an integer of 8 or 16 bits by one known scale."""
    op = node.op
    assert isinstance(op, Quantize)
    x, scale, *zero = node.inputs
    step, point = uniform(scale), uniform(zero[0]) if zero else 0
    floats = x.type.dtype is dtypes.float32 and scale.type.dtype is dtypes.float32
    if not (floats and op.dtype.is_integer and op.dtype.bits in (8, 16)) or step is None or point is None:
        return None
    if not (math.isfinite(step) and step > 0 and math.isfinite(1 / step)):
        return None
    shift = int(point)
    if _takes(r, x, DEPTH):
        scaled = times(r, x, 1 / float(step), DEPTH)
    else:
        scaled = r.emit(Binary("div"), x, r.emit(constant(step)))  # as the model says it, where no factor takes it in
    scaled, least, greatest = _clamps(scaled, float(op.dtype.lowest) - shift, float(op.dtype.highest) - shift)
    bounded = r.emit(Binary("min"), r.emit(Binary("max"), scaled, _number(r, least)), _number(r, greatest))
    whole = r.emit(Cast(dtypes.int32), r.emit(Unary("round"), bounded))
    if shift:
        whole = r.emit(Binary("add"), whole, r.emit(constant(shift, dtypes.int32)))
    return r.emit(Cast(op.dtype), whole)


def _clamps(x: Value, least: float, greatest: float) -> tuple[Value, float, float]:
    """x without the clamps that it ends in, and the bounds with them."""
    while True:
        op = made_by(x, Binary)
        bound = number(x.node.inputs[1]) if op is not None and x.node.inputs[0].type is x.type else None
        if op is None or bound is None:
            return x, least, greatest
        if op.fn == "max" and bound <= greatest:
            least = max(least, float(bound))
        elif op.fn == "min" and bound >= least:
            greatest = min(greatest, float(bound))
        else:
            return x, least, greatest
        x = x.node.inputs[0]


def _number(r: Rewriter, value: float) -> Value:
    return r.emit(constant(np.float32(value)))


def times(r: Rewriter, x: Value, factor: float, depth: int) -> Value:
    """x * factor, positive, with the factor in the constants that x is made with: of products, sums and clamps that nobody else reads."""
    found, op = quantized(x), made_by(x, Binary)
    if found is not None:
        return r.emit(Binary("mul"), r.emit(Cast(dtypes.float32), _centred(r, found.q, found.zero)), _number(r, found.scale * factor))
    if op is not None and _takes(r, x, depth):
        a, b = x.node.inputs
        known = array_of(b)
        other = times(r, b, factor, depth - 1) if known is None else held(r, (known.astype(np.float64) * factor).astype(np.float32))
        return r.emit(op, a if op.fn == "mul" else times(r, a, factor, depth - 1), other)
    return r.emit(Binary("mul"), x, _number(r, factor))


def _takes(r: Rewriter, x: Value, depth: int) -> bool:
    """Whether a factor goes into a constant of x."""
    op = made_by(x, Binary)
    if quantized(x) is not None:
        return True
    if op is None or not depth or r.is_shared(x):
        return False
    a, b = x.node.inputs
    if array_of(b) is not None:
        return op.fn == "mul" or (op.fn in CARRYING and _takes(r, a, depth - 1))
    return op.fn in CARRYING and (_takes(r, a, depth - 1) or _takes(r, b, depth - 1))


def _centred(r: Rewriter, q: Value, zero: int) -> Value:
    """q - zero, in int32."""
    wide = r.emit(Cast(dtypes.int32), q)
    return wide if zero == 0 else r.emit(Binary("sub"), wide, r.emit(constant(zero, dtypes.int32)))


RULES: Rules = {Quantize: (quantize,)}
