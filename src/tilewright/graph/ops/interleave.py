"""Channels that hold the phases of a finer grid, put in place: what ends a transposed convolution, and moves depth to space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.shapes import canonical, format_shape
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import Shape, TensorType, bind_shape
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError


@dataclass(frozen=True, slots=True, eq=False)
class Interleave(Operator):
    """[N, phases * C, *S, *rest] -> [N, C, *sizes, *rest] with phases = product of `strides`. out[n, c, *p] = x[n, phase * C + c, *q]: on
    each axis, q and its part of the phase (the last axis counts fastest) are quotient and remainder of p + start by the stride."""

    name: ClassVar[str] = "interleave"
    strides: tuple[int, ...]
    starts: tuple[Expr, ...]
    sizes: Shape

    @property
    def phases(self) -> int:
        return math.prod(self.strides)

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("interleave", inputs, 1)
        (x,) = inputs
        rank = len(self.strides)
        if not 1 <= rank <= x.rank - 2 or len(self.starts) != rank or len(self.sizes) != rank or min(self.strides) < 1:
            raise TypeRuleError(
                f"interleave: {rank} strides, {len(self.starts)} starts, {len(self.sizes)} sizes for {format_shape(x.shape)}"
            )
        if x.shape[1].is_const and x.shape[1].value % self.phases:
            raise TypeRuleError(f"interleave: {x.shape[1]!r} channels do not hold {self.phases} phases")
        for axis, (start, size, stride) in enumerate(zip(self.starts, self.sizes, self.strides, strict=True)):
            past = canonical(start + size - x.shape[2 + axis] * stride)
            if past.is_const and past.value > 0:
                raise TypeRuleError(f"interleave: axis {axis} of size {x.shape[2 + axis]!r} does not reach {size!r} positions")
        return (TensorType(x.dtype, (x.shape[0], canonical(x.shape[1] // self.phases), *self.sizes, *x.shape[2 + rank :])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        rank = len(self.strides)
        starts, sizes = bind_shape(self.starts, {}), bind_shape(self.sizes, {})
        split = x.reshape(x.shape[0], *self.strides, x.shape[1] // self.phases, *x.shape[2:])
        spatial = [axis for i in range(rank) for axis in (2 + rank + i, 1 + i)]
        moved = split.transpose(0, 1 + rank, *spatial, *range(2 + 2 * rank, split.ndim))
        full = [n * stride for n, stride in zip(x.shape[2:], self.strides, strict=False)]
        whole = moved.reshape(*moved.shape[:2], *full, *x.shape[2 + rank :])
        cut = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
        return (np.ascontiguousarray(whole[(slice(None), slice(None), *cut)]),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        rank = len(self.strides)
        channels = canonical(x.shape[1] // self.phases)

        def value(n: Expr, c: Expr, *i: Expr) -> Expr:
            phase: Expr = const(0)
            at: list[Expr] = []
            for position, start, stride in zip(i[:rank], self.starts, self.strides, strict=True):
                shifted = position + start
                phase = phase * stride + shifted % stride
                at.append(shifted // stride)
            return x[(n, phase * channels + c, *at, *i[rank:])]

        return (k.compute("interleave", (x.shape[0], channels, *self.sizes, *x.shape[2 + rank :]), value),)
