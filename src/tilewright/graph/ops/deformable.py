"""Samples of deformable convolution (Dai et al., "Deformable convolutional networks", 2017; masks: Zhu et al., 2019)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.casts import cast_scalar
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.positions import clamped
from tilewright.graph.shapes import dims_equal
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, all_of, call, cast, const, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError


@dataclass(frozen=True, slots=True, eq=False)
class DeformableColumns(Operator):
    """(x [N, C, H, W], offsets [N, G*K*2, P, Q][, mask [N, G*K, P, Q]]) -> [N, C, K, P, Q] for a window of K = kernel[0] * kernel[1] taps:
    tap t of output (p, q) read at its place plus offset (y, x), interpolated linearly, 0 outside, times the mask. Channels are split evenly
    among the G offset groups; `low` pads before."""

    name: ClassVar[str] = "deformable_columns"
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    low: tuple[int, int]
    groups: int

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("deformable_columns", inputs, 2, 3)
        x, offsets, *mask = inputs
        if x.rank != 4 or offsets.rank != 4 or offsets.shape[1] is not const(2 * self.groups * self.taps) or not x.shape[1].is_const:
            raise TypeRuleError(f"deformable_columns: offsets {offsets!r} do not fit {self.groups} groups of {self.taps} taps of {x!r}")
        if x.shape[1].value % self.groups or not x.dtype.is_float or any(t.dtype is not x.dtype for t in inputs):
            raise TypeRuleError(f"deformable_columns: {x!r} by {offsets!r} in {self.groups} groups is not defined")
        if mask and (mask[0].rank != 4 or mask[0].shape[1] is not const(self.groups * self.taps)):
            raise TypeRuleError(f"deformable_columns: the mask {mask[0]!r} does not fit the offsets {offsets!r}")
        if not dims_equal(x.shape[0], offsets.shape[0]):
            raise TypeRuleError(f"deformable_columns: {x!r} and {offsets!r} differ in their batch")
        return (TensorType(x.dtype, (*x.shape[:2], const(self.taps), *offsets.shape[2:])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, offsets, *mask = inputs
        n, channels, height, width = x.shape
        rows, columns = offsets.shape[2:]
        out = np.zeros((n, channels, self.taps, rows, columns))
        for b, c, t, p, q in np.ndindex(*out.shape):
            group = c // (channels // self.groups)
            at = []
            for a, (o, tap) in enumerate(((p, t // self.kernel[1]), (q, t % self.kernel[1]))):
                base = o * self.strides[a] - self.low[a] + tap * self.dilations[a]
                at.append(base + float(offsets[b, (group * self.taps + t) * 2 + a, p, q]))
            y0, x0 = int(np.floor(at[0])), int(np.floor(at[1]))
            total = 0.0
            for dy, dx in itertools.product((0, 1), repeat=2):
                if 0 <= y0 + dy < height and 0 <= x0 + dx < width:
                    weight = (1 - abs(at[0] - y0 - dy)) * (1 - abs(at[1] - x0 - dx))
                    total += weight * float(x[b, c, y0 + dy, x0 + dx])
            out[b, c, t, p, q] = total * (float(mask[0][b, group * self.taps + t, p, q]) if mask else 1.0)
        return (out.astype(x.dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, offsets, *mask = inputs
        work = dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32
        share = int(x.shape[1].value) // self.groups

        def value(b: Expr, c: Expr, t: Expr, p: Expr, q: Expr) -> Expr:
            entry = (c // share) * self.taps + t
            bases, fractions = [], []
            for a, (o, tap) in enumerate(((p, t // self.kernel[1]), (q, t % self.kernel[1]))):
                place = cast(work, o * self.strides[a] - self.low[a] + tap * self.dilations[a])
                place = place + cast_scalar(offsets[b, entry * 2 + a, p, q], work)
                bases.append(call("floor", place))
                fractions.append(place - bases[-1])
            total = const(0, work)
            for corner in itertools.product((0, 1), repeat=2):
                at, inside, weight = [], [], const(1, work)
                for a, high in enumerate(corner):
                    index = cast(dtypes.int64, bases[a]) + high
                    dim = x.shape[2 + a]
                    inside += [index >= 0, index < dim]
                    at.append(clamped(index, dim))
                    part = fractions[a] if high else const(1, work) - fractions[a]
                    weight = part if a == 0 else weight * part
                element = select(all_of(*inside), cast_scalar(x[(b, c, *at)], work), const(0, work))
                total = total + element * weight
            if mask:
                total = total * cast_scalar(mask[0][b, entry, p, q], work)
            return cast_scalar(total, x.dtype, False)

        return (k.compute("deformable_columns", (*x.shape[:2], const(self.taps), *offsets.shape[2:]), value),)
