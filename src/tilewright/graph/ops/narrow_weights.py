"""Weights that are stored as small integers and read as floats: w = (code - zero) * scale, converted by the kernel that multiplies by them.

Codes of fewer than 8 bits lie in words of 32 bits along one axis, the first in the lowest bits: a vector of words holds so many vectors
of codes, and nothing has to move between lanes. Codes of 8 bits are bytes.

A code becomes a float without a conversion: its bits are put into the mantissa of a power of two, which is then subtracted together with
the zero point. As the mantissa has 23 bits, several codes of a word need no shift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.shapes import canonical, dims_equal, format_shape, is_one
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, binary, bitcast, cast, ceildiv, const, logical_and, logical_or
from tilewright.ir.scalar_ops import Op
from tilewright.ir.types import Shape, TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

WORD = 32
MANTISSA = 23
EXPONENT_BIAS = 127


@dataclass(frozen=True, slots=True, eq=False)
class WidenWeights(Operator):
    """(codes, scale[, zero]) -> (code - zero) * scale in float32. codes: int8 or uint8, or for `bits` of 2 or 4 uint32 words with
    32 / bits unsigned codes along `axis`, which has `extent` of them. scale, zero: of the same rank, of size 1 along axes where they do
    not vary, and with one element for each run of `block` codes along `axis`; the zero point is a byte or a float32."""

    name: ClassVar[str] = "widen_weights"
    bits: int
    axis: int
    extent: int
    block: int

    @property
    def codes_per_element(self) -> int:
        """Codes in one element of the operand."""
        return 1 if self.bits == 8 else WORD // self.bits

    def _shape(self, codes: Shape) -> Shape:
        return (*codes[: self.axis], const(self.extent), *codes[self.axis + 1 :])

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs(self.name, inputs, 2, 3)
        codes, *parameters = inputs
        if self.bits not in (2, 4, 8) or codes.dtype not in ((dtypes.uint32,) if self.bits < 8 else (dtypes.int8, dtypes.uint8)):
            raise TypeRuleError(f"widen_weights: codes of {self.bits} bits are not stored as {codes.dtype}")
        shape = self._shape(codes.shape)
        if not dims_equal(codes.shape[self.axis], const(-(-self.extent // self.codes_per_element))):
            raise TypeRuleError(f"widen_weights: {codes.shape[self.axis]!r} elements do not hold {self.extent} codes")
        for t in parameters:
            blocks = canonical(ceildiv(shape[self.axis], const(self.block)))
            wanted = (*shape[: self.axis], blocks, *shape[self.axis + 1 :])
            if t.rank != len(shape) or not all(is_one(a) or dims_equal(a, b) for a, b in zip(t.shape, wanted, strict=True)):
                raise TypeRuleError(f"widen_weights: a scale or zero point of {format_shape(t.shape)} for {format_shape(shape)}")
        if not inputs[1].dtype.is_float or (len(inputs) > 2 and inputs[2].dtype not in (dtypes.float32, dtypes.uint8, dtypes.int8)):
            raise TypeRuleError(f"widen_weights: a scale or zero point of {', '.join(t.dtype.name for t in parameters)}")
        return (TensorType(dtypes.float32, shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        codes, *parameters = inputs
        scale, *zero = (self._spread(p) for p in parameters)
        plain = unpacked(codes, self.bits, self.axis, self.extent).astype(np.float32)
        return (((plain - zero[0]) if zero else plain) * scale,)

    def _spread(self, p: Array) -> Array:
        """A scale or zero point that broadcasts to the result."""
        wide = p.astype(np.float32)
        if p.shape[self.axis] == 1:
            return wide
        return np.take(np.repeat(wide, self.block, axis=self.axis), range(self.extent), axis=self.axis)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        codes, scale, *zero = inputs

        def parameter(p: Tensor, at: tuple[Expr, ...]) -> Expr:
            where = [i // self.block if axis == self.axis else i for axis, i in enumerate(at)]
            return _as_float(p[tuple(const(0) if is_one(dim) else i for i, dim in zip(where, p.shape, strict=True))])

        def value(*at: Expr) -> Expr:
            position = at[self.axis]
            element = codes[(*at[: self.axis], position // self.codes_per_element, *at[self.axis + 1 :])]
            offset = parameter(zero[0], at) if zero else None
            if self.bits < 8:
                plain = word_code(element, position % self.codes_per_element, self.bits, offset)
            else:
                plain = _as_float(element)
                plain = plain if offset is None else plain - offset
            return plain * parameter(scale, at)

        return (k.compute("widen_weights", self._shape(codes.shape), value),)


def _as_float(e: Expr) -> Expr:
    """A float, or a byte, as float32."""
    return cast(dtypes.float32, cast(dtypes.int32, e) if e.dtype.is_integer else e)


def word_code(word: Expr, number: Expr, bits: int, offset: Expr | None) -> Expr:
    """Code `number` of a word, less `offset`, as float32: exact where the offset is a whole number of few bits.

    With the code at bits p.. of the mantissa of 2**(23 - p) one has that number plus the code. Past the codes that fit a mantissa, the word
    is shifted by all of these together.
    """
    dtype, fitting = word.dtype, MANTISSA // bits
    shifted = binary(Op.SHR, word, cast(dtype, number // fitting * (fitting * bits)))
    place = cast(dtype, number % fitting * bits)
    power = binary(Op.SHL, const(EXPONENT_BIAS + MANTISSA, dtype) - place, const(MANTISSA, dtype))
    mask = binary(Op.SHL, const((1 << bits) - 1, dtype), place)
    raised = bitcast(dtypes.float32, logical_or(logical_and(shifted, mask), power))
    base = bitcast(dtypes.float32, power)
    return raised - (base if offset is None else base + offset)


def packed(codes: Array, bits: int, axis: int) -> Array:
    """Unsigned codes as WidenWeights takes them: themselves, or in words along `axis`, filled up with 0."""
    if bits == 8:
        return codes
    per = WORD // bits
    moved = np.moveaxis(codes, axis, -1).astype(np.uint32)
    full = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, -moved.shape[-1] % per)])
    shifts = (np.arange(per) * bits).astype(np.uint32)
    words = np.bitwise_or.reduce(full.reshape(*full.shape[:-1], -1, per) << shifts, axis=-1)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def unpacked(codes: Array, bits: int, axis: int, extent: int) -> Array:
    """The codes that `packed` made these words from."""
    if bits == 8:
        return codes
    shifts = (np.arange(WORD // bits) * bits).astype(np.uint32)
    moved = np.moveaxis(codes, axis, -1)[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return np.moveaxis(moved.reshape(*moved.shape[:-2], -1)[..., :extent], -1, axis)
