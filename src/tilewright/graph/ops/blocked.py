"""Channel-blocked layouts: [N, C, *S] as [N, C/lanes, *S, lanes], so that a vector holds neighbouring channels of one position.

The last block is filled up with channels of zeros where the lanes do not divide C. What is computed from these lanes is never looked at:
`Unblock` drops them, and a convolution sums over the channels that its weights have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.blocks import reduce_block
from tilewright.graph.ops.convolution import Convolution
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.padding import pad_block, padded_element, windowed_dim
from tilewright.graph.shapes import canonical, dims_equal, format_shape
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, cast, const, less, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError


def blocked_count(channels: Expr, lanes: int) -> Expr:
    """Blocks that hold `channels`."""
    return canonical((channels + (lanes - 1)) // lanes)


@dataclass(frozen=True, slots=True, eq=False)
class Block(Operator):
    """[N, C, *S] -> [N, ceil(C / lanes), *S, lanes], with zeros for the channels past C."""

    name: ClassVar[str] = "block"
    lanes: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("block", inputs, 1)
        (x,) = inputs
        if x.rank < 2:
            raise TypeRuleError(f"block: {format_shape(x.shape)} has no channel axis")
        return (TensorType(x.dtype, (x.shape[0], blocked_count(x.shape[1], self.lanes), *x.shape[2:], const(self.lanes))),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        missing = -x.shape[1] % self.lanes
        full = np.concatenate([x, np.zeros((x.shape[0], missing, *x.shape[2:]), x.dtype)], 1) if missing else x
        split = full.reshape(full.shape[0], full.shape[1] // self.lanes, self.lanes, *full.shape[2:])
        return (np.ascontiguousarray(np.moveaxis(split, 2, -1)),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        channels = x.shape[1]
        whole = channels.is_const and channels.value % self.lanes == 0
        shape = (x.shape[0], blocked_count(channels, self.lanes), *x.shape[2:], const(self.lanes))

        def value(n: Expr, b: Expr, *rest: Expr) -> Expr:
            channel = b * self.lanes + rest[-1]
            element = x[(n, channel, *rest[:-1])]
            return element if whole else select(less(channel, channels), element, const(0, x.dtype))

        return (k.compute("block", shape, value),)


@dataclass(frozen=True, slots=True, eq=False)
class Unblock(Operator):
    """[N, C/lanes, *S, lanes] -> [N, channels, *S]."""

    name: ClassVar[str] = "unblock"
    channels: Expr

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("unblock", inputs, 1)
        (x,) = inputs
        if x.rank < 3 or not x.shape[-1].is_const or not dims_equal(blocked_count(self.channels, int(x.shape[-1].value)), x.shape[1]):
            raise TypeRuleError(f"unblock: {format_shape(x.shape)} does not hold {self.channels!r} channels in blocks")
        return (TensorType(x.dtype, (x.shape[0], self.channels, *x.shape[2:-1])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        merged = np.moveaxis(x, -1, 2).reshape(x.shape[0], x.shape[1] * x.shape[-1], *x.shape[2:-1])
        return (np.ascontiguousarray(merged[:, : int(self.channels.value)]),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        lanes = x.shape[-1]
        shape = (x.shape[0], self.channels, *x.shape[2:-1])
        return (k.compute("unblock", shape, lambda n, c, *s: x[(n, c // lanes, *s, c % lanes)]),)


def _is_factor(dtype: DType, sum_: DType) -> bool:
    """Whether factors of a narrower dtype may be summed in another."""
    return dtype.bits <= 16 if dtype.is_integer else dtype is dtypes.bfloat16 and sum_ is dtypes.float32


@dataclass(frozen=True, slots=True, eq=False)
class BlockedConvolution(Operator):
    """A convolution with blocked channels: result [N, ceil(O/lanes), *S', lanes]. The weights keep the shape that `Convolution` takes,
    [O, C, *K] or [C, 1, *K] (`depthwise`), with O (C, if depthwise) a multiple of the lanes of the result (the caller pads it). The input
    is blocked, by lanes of its own, of which the last block may have more than C, or, where it has few channels, plain [N, C, *S]. `dtype`
    is that of the sum; bytes are summed in int32 or float32, bfloat16 in float32."""

    name: ClassVar[str] = "blocked_convolution"
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    depthwise: bool
    lanes: int
    dtype: DType = dtypes.float32

    def _plain(self, x: TensorType, w: TensorType) -> bool:
        """Whether the input is not blocked."""
        return x.rank == w.rank

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("blocked_convolution", inputs, 2)
        x, w = inputs
        rank = w.rank - 2
        plain = self._plain(x, w)
        if not plain and (x.rank != w.rank + 1 or not x.shape[-1].is_const or (self.depthwise and x.shape[-1] is not const(self.lanes))):
            raise TypeRuleError(f"blocked_convolution: {format_shape(x.shape)} is not blocked for the weights {format_shape(w.shape)}")
        if not (w.shape[0].is_const and w.shape[0].value % self.lanes == 0):
            raise TypeRuleError(f"blocked_convolution: {w!r} are no weights of whole blocks")
        if not all(t.dtype is self.dtype or _is_factor(t.dtype, self.dtype) for t in inputs):
            raise TypeRuleError(f"blocked_convolution of {x.dtype} and {w.dtype} in {self.dtype} is not defined")
        channels = w.shape[0] if self.depthwise else w.shape[1]
        wanted = channels if plain else blocked_count(channels, int(x.shape[-1].value))
        if (self.depthwise and plain) or not dims_equal(x.shape[1], wanted):
            raise TypeRuleError(f"blocked_convolution: the input {format_shape(x.shape)} has not the {channels!r} channels of the weights")
        own = zip(x.shape[2 : 2 + rank], self.low, self.high, w.shape[2:], self.strides, self.dilations, strict=True)
        spatial = tuple(windowed_dim(*axis) for axis in own)
        return (TensorType(self.dtype, (x.shape[0], canonical(w.shape[0] // self.lanes), *spatial, const(self.lanes))),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, w = inputs
        plain = x if x.ndim == w.ndim else Unblock(const(w.shape[0 if self.depthwise else 1])).reference((x,))[0]
        groups = w.shape[0] if self.depthwise else 1
        convolution = Convolution(self.strides, self.dilations, self.low, self.high, groups, self.dtype)
        return Block(self.lanes).reference(convolution.reference((plain, w)))

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, w = inputs
        rank = w.rank - 2
        zero = const(0)
        plain = x.rank == w.rank
        inner = () if plain else (zero,)
        low, high = (zero, zero, *self.low, *inner), (zero, zero, *self.high, *inner)
        padded = x if self.depthwise else pad_block(k, x, low, high, const(0, x.dtype))
        shape = self.infer((TensorType(x.dtype, x.shape), TensorType(w.dtype, w.shape)))[0].shape

        def source(spatial: tuple[Expr, ...], taps: tuple[Expr, ...]) -> tuple[Expr, ...]:
            own = zip(spatial, taps, self.strides, self.dilations, strict=True)
            return tuple(s * stride + t * dilation for s, t, stride, dilation in own)

        def value(n: Expr, ob: Expr, *rest: Expr) -> Expr:
            spatial, o, reduced = rest[:rank], rest[rank], rest[rank + 1 :]
            out = ob * self.lanes + o
            if self.depthwise:
                own = (n, ob, *source(spatial, reduced), o)
                return product(padded_element(x, own, low, high, const(0, self.dtype), widened), w[(out, zero, *reduced)])
            if plain:
                return product(padded[(n, reduced[0], *source(spatial, reduced[1:]))], w[(out, reduced[0], *reduced[1:])])
            cb, taps, c = reduced[0], reduced[1:-1], reduced[-1]
            return product(padded[(n, cb, *source(spatial, taps), c)], w[(out, cb * x.shape[-1] + c, *taps)])

        def widened(element: Expr) -> Expr:
            return cast(self.dtype, element)

        def product(a: Expr, b: Expr) -> Expr:
            return widened(a) * widened(b)

        taps = w.shape[2:]
        extents = taps if self.depthwise else (w.shape[1], *taps) if plain else (x.shape[1], *taps, x.shape[-1])
        whole = self.depthwise or plain or dims_equal(canonical(x.shape[1] * x.shape[-1]), w.shape[1])
        ragged = None if whole else partial(inside, w.shape[1], x.shape[-1])
        return (reduce_block(k, "blocked_convolution", shape, extents, value, "sum", ragged),)


def inside(channels: Expr, lanes: Expr, block: Expr, *rest: Expr) -> Expr:
    """Whether a lane, the last of `rest`, of a block of channels is one of the `channels`."""
    return less(block * lanes + rest[-1], channels)
