"""Counter-based random numbers: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

The counter is the row-major position of an element, the key the seed, so that elements are independent of order, tiling and threads.
Uniform numbers are bit-identical between the expression and NumPy; normal ones (Box-Muller) up to the accuracy of log and cos.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.graph.node import Array
from tilewright.graph.ops.scalars import arithmetic_dtype
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, binary, call, cast, const
from tilewright.ir.scalar_ops import Op

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_ROUNDS = 20
_MASK = 0xFFFFFFFF


def _key(seed: int) -> tuple[int, int, int]:
    low, high = seed & _MASK, (seed >> 32) & _MASK
    return low, high, low ^ high ^ _PARITY


def _threefry(x0: Any, x1: Any, key: tuple[Any, Any, Any], rotate: Any) -> tuple[Any, Any]:
    """The permutation, on expressions or arrays of uint32 alike. `key` are the scheduled key words, `rotate(x, n)` rotates left."""
    x0, x1 = x0 + key[0], x1 + key[1]
    for round_ in range(_ROUNDS):
        x0 = x0 + x1
        x1 = rotate(x1, _ROTATIONS[round_ % 8], x0)
        if round_ % 4 == 3:
            injection = round_ // 4 + 1
            x0 = x0 + key[injection % 3]
            x1 = x1 + key[(injection + 1) % 3] + _as_like(injection, x1)
    return x0, x1


def _as_like(value: int, like: Any) -> Any:
    return const(value, dtypes.uint32) if isinstance(like, Expr) else np.uint32(value)


def _rotate_expression(x: Expr, n: int, mixed: Expr) -> Expr:
    left = binary(Op.SHL, x, const(n, dtypes.uint32))
    return binary(Op.XOR, binary(Op.OR, left, binary(Op.SHR, x, const(32 - n, dtypes.uint32))), mixed)


def _rotate_array(x: Any, n: int, mixed: Any) -> Any:
    return ((x << np.uint32(n)) | (x >> np.uint32(32 - n))) ^ mixed


def expression_bits(position: Expr, seed: int) -> tuple[Expr, Expr]:
    """Two random uint32 for the element at an int64 position."""
    key = tuple(const(word, dtypes.uint32) for word in _key(seed))
    low = cast(dtypes.uint32, position)
    high = cast(dtypes.uint32, binary(Op.SHR, position, const(32)))
    return _threefry(low, high, (key[0], key[1], key[2]), _rotate_expression)


def array_bits(count: int, seed: int) -> tuple[Array, Array]:
    """Two random uint32 for each of the positions 0 .. count-1."""
    positions = np.arange(count, dtype=np.uint64)
    key = tuple(np.uint32(word) for word in _key(seed))
    low, high = (positions & np.uint64(_MASK)).astype(np.uint32), (positions >> np.uint64(32)).astype(np.uint32)
    with np.errstate(over="ignore"):
        return _threefry(low, high, (key[0], key[1], key[2]), _rotate_array)


def _unit_expression(bits: tuple[Expr, Expr], dtype: DType) -> Expr:
    """A float in [0, 1): 24 random bits for float32, 53 for float64."""
    if dtype is dtypes.float32:
        return cast(dtype, binary(Op.SHR, bits[0], const(8, dtypes.uint32))) * const(2.0**-24, dtype)
    upper = cast(dtype, binary(Op.SHR, bits[0], const(5, dtypes.uint32))) * const(2.0**26, dtype)
    return (upper + cast(dtype, binary(Op.SHR, bits[1], const(6, dtypes.uint32)))) * const(2.0**-53, dtype)


def _unit_array(bits: tuple[Array, Array], dtype: DType) -> Array:
    host = dtype.numpy
    if dtype is dtypes.float32:
        return np.asarray((bits[0] >> np.uint32(8)).astype(host) * host.type(2.0**-24))
    upper = (bits[0] >> np.uint32(5)).astype(host) * host.type(2.0**26)
    return np.asarray((upper + (bits[1] >> np.uint32(6)).astype(host)) * host.type(2.0**-53))


def uniform_expression(bits: tuple[Expr, Expr], dtype: DType, low: float, high: float) -> Expr:
    wide = arithmetic_dtype(dtype)
    scaled = _unit_expression(bits, wide) * const(high - low, wide)
    return cast(dtype, scaled + const(low, wide))


def uniform_array(shape: Sequence[int], dtype: DType, low: float, high: float, seed: int) -> Array:
    wide = arithmetic_dtype(dtype)
    unit = _unit_array(array_bits(math.prod(shape), seed), wide)
    host = wide.numpy.type
    return np.asarray((unit * host(high - low) + host(low)).astype(dtype.numpy)).reshape(shape)


def _normal_units(bits: tuple[Any, Any], unit: Any) -> tuple[Any, Any]:
    """Radius source and angle source of Box-Muller: each takes one of the words."""
    return unit(bits), unit((bits[1], bits[0]))


def normal_expression(bits: tuple[Expr, Expr], dtype: DType, mean: float, scale: float) -> Expr:
    wide = arithmetic_dtype(dtype)
    u, v = _normal_units(bits, lambda pair: _unit_expression(pair, wide))
    # 1 - u is in (0, 1], so that the logarithm is finite.
    radius = call("sqrt", call("log", const(1.0, wide) - u) * const(-2.0, wide))
    return cast(dtype, radius * call("cos", v * const(2.0 * math.pi, wide)) * const(scale, wide) + const(mean, wide))


def normal_array(shape: Sequence[int], dtype: DType, mean: float, scale: float, seed: int) -> Array:
    wide = arithmetic_dtype(dtype)
    host = wide.numpy.type
    u, v = _normal_units(array_bits(math.prod(shape), seed), lambda pair: _unit_array(pair, wide))
    radius = np.sqrt(np.log(host(1.0) - u) * host(-2.0))
    normal = radius * np.cos(v * host(2.0 * math.pi)) * host(scale) + host(mean)
    return np.asarray(normal.astype(dtype.numpy)).reshape(shape)
