"""Softmax and its logarithm along one axis, in float32 for narrower floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, GraphBuilder, Operator, Value
from tilewright.graph.ops.blocks import AxisReader, reduce_axes
from tilewright.graph.ops.compose import binary, cast, reduce, unary, widen
from tilewright.graph.ops.elementwise import expect_inputs, expect_kind
from tilewright.graph.ops.scalars import FLOAT, widened
from tilewright.graph.shapes import normalize_axis
from tilewright.ir import expr as ex
from tilewright.ir.expr import Expr, call, const
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor


def _infer(name: str, axis: int, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    expect_inputs(name, inputs, 1)
    expect_kind(name, inputs[0].dtype, FLOAT)
    normalize_axis(axis, inputs[0].rank, name)
    return inputs


def _shifted_array(x: Array, axis: int) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))


def _exponentials(k: KernelBuilder, x: Tensor, axis: int) -> tuple[AxisReader, Tensor, Tensor, Tensor]:
    """Blocks for the maximum along the axis, exp(x - maximum) and its sum."""
    reader = AxisReader(x, (axis % x.rank,), False)
    greatest = reduce_axes(k, "maximum", reader, "max")
    powers = k.compute("exponential", x.shape, lambda *i: call("exp_nonpositive", widened(x[i]) - greatest[reader.project(i)]))
    total = reduce_axes(k, "total", AxisReader(powers, reader.axes, False), "sum")
    return reader, greatest, powers, total


def _exponentials_of(g: GraphBuilder, x: Value, axis: int) -> tuple[Value, Value, Value]:
    """x - maximum, its exponential, and the sum of that."""
    axes = (axis % x.type.rank,)
    shifted = binary(g, "sub", x, reduce(g, "max", x, axes))
    powers = unary(g, "exp", shifted)
    return shifted, powers, reduce(g, "sum", powers, axes)


@dataclass(frozen=True, slots=True, eq=False)
class Softmax(Operator):
    """exp(x - max) / sum(exp(x - max)) along `axis`."""

    name: ClassVar[str] = "softmax"
    axis: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return _infer("softmax", self.axis, inputs)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            powers = np.exp(_shifted_array(inputs[0], self.axis))
            return ((powers / powers.sum(axis=self.axis, keepdims=True)).astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        reader, _, powers, total = _exponentials(k, x, self.axis)
        inverse = k.compute("inverse", total.shape, lambda *i: const(1.0, total.dtype) / total[i])  # a division for each row

        def value(*i: Expr) -> Expr:
            return ex.cast(x.dtype, powers[i] * inverse[reader.project(i)])

        return (k.compute("softmax", x.shape, value),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        _, powers, total = _exponentials_of(g, widen(g, inputs[0]), self.axis)
        return (cast(g, binary(g, "div", powers, total), inputs[0].type.dtype),)


@dataclass(frozen=True, slots=True, eq=False)
class LogSoftmax(Operator):
    """x - max - log(sum(exp(x - max))) along `axis`."""

    name: ClassVar[str] = "log_softmax"
    axis: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return _infer("log_softmax", self.axis, inputs)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            shifted = _shifted_array(inputs[0], self.axis)
            return ((shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True))).astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        reader, greatest, _, total = _exponentials(k, x, self.axis)

        def value(*i: Expr) -> Expr:
            at = reader.project(i)
            return ex.cast(x.dtype, widened(x[i]) - greatest[at] - call("log", total[at]))

        return (k.compute("log_softmax", x.shape, value),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        shifted, _, total = _exponentials_of(g, widen(g, inputs[0]), self.axis)
        return (cast(g, binary(g, "sub", shifted, unary(g, "log", total)), inputs[0].type.dtype),)
