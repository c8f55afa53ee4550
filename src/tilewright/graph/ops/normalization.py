"""Normalisations: shift and scale to mean 0 and variance 1 over some axes, then by learned factors. Statistics take two passes (mean,
then squared deviations), in float32 for narrower floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, GraphBuilder, Operator, Value
from tilewright.graph.ops.blocks import reduce_block
from tilewright.graph.ops.compose import binary, cast, mean, reshape, unary, widen
from tilewright.graph.ops.elementwise import expect_inputs, expect_kind
from tilewright.graph.ops.padding import pad_block
from tilewright.graph.ops.scalars import FLOAT, arithmetic_dtype, widened
from tilewright.graph.ops.window import WindowReduce
from tilewright.graph.shapes import (
    broadcast_index,
    broadcast_shapes,
    canonical,
    dims_equal,
    element_count,
    format_shape,
    is_one,
    normalize_axis,
    shapes_equal,
)
from tilewright.ir import expr as ex
from tilewright.ir.expr import Expr, call, const
from tilewright.ir.types import Shape, TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

Index = tuple[Expr, ...]


def _check_floats(name: str, inputs: tuple[TensorType, ...], count: int) -> TensorType:
    expect_inputs(name, inputs, count)
    for t in inputs:
        expect_kind(name, t.dtype, FLOAT)
    return inputs[0]


def _check_channels(name: str, inputs: tuple[TensorType, ...], count: int) -> TensorType:
    """x [N, C, ...] and parameters [C]."""
    x = _check_floats(name, inputs, count)
    if x.rank < 2:
        raise TypeRuleError(f"{name}: {format_shape(x.shape)} has no channel axis")
    for t in inputs[1:]:
        if t.rank != 1 or not dims_equal(t.shape[0], x.shape[1]):
            raise TypeRuleError(
                f"{name}: a parameter has the shape {format_shape(t.shape)}", why=f"the input has {x.shape[1]!r} channels on axis 1"
            )
    return x


def _check_trailing(name: str, axis: int, inputs: tuple[TensorType, ...], count: int) -> TensorType:
    """x and parameters that broadcast to it."""
    x = _check_floats(name, inputs, count)
    normalize_axis(axis, x.rank, name)
    for t in inputs[1:]:
        if not shapes_equal(broadcast_shapes(x.shape, t.shape, operator=name), x.shape):
            raise TypeRuleError(f"{name}: a parameter of shape {format_shape(t.shape)} does not broadcast to {format_shape(x.shape)}")
    return x


@dataclass(frozen=True, slots=True)
class Grouping:
    """How the elements of x form groups with statistics of their own: `groups` is the shape of the statistics, `members` the extents of
    one group, `element` maps (group, member) to an index of x, `group` an index of x to its group."""

    groups: Shape
    members: Shape
    element: Callable[[Index, Index], Index]
    group: Callable[[Index], Index]


def _trailing_group(shape: Shape, axis: int) -> Grouping:
    return Grouping(shape[:axis], shape[axis:], lambda group, member: group + member, lambda index: index[:axis])


def _channel_group(shape: Shape, groups: int) -> Grouping:
    each = canonical(shape[1] // groups)

    def element(group: Index, member: Index) -> Index:
        return (group[0], group[1] * each + member[0], *member[1:])

    def group_of(index: Index) -> Index:
        return (index[0], const(0) if groups == 1 else index[1] if is_one(each) else index[1] // each)

    return Grouping((shape[0], const(groups)), (each, *shape[2:]), element, group_of)


def _instance_group(shape: Shape) -> Grouping:
    return Grouping(shape[:2], shape[2:], lambda group, member: group + member, lambda index: index[:2])


def _normalized(
    k: KernelBuilder, name: str, x: Tensor, how: Grouping, epsilon: float, centered: bool, affine: Callable[[Expr, Index], Expr]
) -> Tensor:
    """Blocks for the mean (unless not `centered`), the reciprocal standard deviation, and the result `affine(normalised, index)`."""
    wide = arithmetic_dtype(x.dtype)
    rank = len(how.groups)
    count = ex.cast(wide, element_count(how.members))

    def read(i: Index) -> Expr:
        return widened(x[how.element(i[:rank], i[rank:])])

    means: Tensor | None = None
    if centered:
        total = reduce_block(k, "total", how.groups, how.members, lambda *i: read(i), "sum")
        means = k.compute("mean", how.groups, lambda *i: total[i] / count)

    def deviation(value: Expr, group: Index) -> Expr:
        return value if means is None else value - means[group]

    def square(*i: Expr) -> Expr:
        d = deviation(read(i), i[:rank])
        return d * d

    squares = reduce_block(k, "squares", how.groups, how.members, square, "sum")
    inverse = k.compute("inverse", how.groups, lambda *i: call("rsqrt", squares[i] / count + const(epsilon, wide)))

    def result(*i: Expr) -> Expr:
        group = how.group(i)
        return ex.cast(x.dtype, affine(deviation(widened(x[i]), group) * inverse[group], i))

    return k.compute(name, x.shape, result)


def _parameter(t: Tensor, wide: Expr, index: Index) -> Expr:
    return ex.cast(wide.dtype, t[broadcast_index(t.shape, index)])


def _normalize(g: GraphBuilder, x: Value, axes: Sequence[int], epsilon: float, centered: bool = True) -> Value:
    """x in its arithmetic dtype, normalised over axes, in terms of elementwise operators and reductions."""
    deviation = binary(g, "sub", x, mean(g, x, axes)) if centered else x
    variance = mean(g, binary(g, "mul", deviation, deviation), axes)
    return binary(g, "mul", deviation, unary(g, "rsqrt", binary(g, "add", variance, epsilon)))


def _scaled(g: GraphBuilder, x: Value, parameters: Sequence[Value], result: TensorType) -> Value:
    """x * scale (+ bias), rounded to the result's dtype."""
    for fn, parameter in zip(("mul", "add"), parameters):
        x = binary(g, fn, x, cast(g, parameter, x.type.dtype))
    return cast(g, x, result.dtype)


def _per_channel(g: GraphBuilder, parameter: Value, rank: int) -> Value:
    return reshape(g, parameter, (parameter.shape[0], *(const(1),) * (rank - 2)))


def _normalize_array(x: Array, axes: tuple[int, ...], epsilon: float, centered: bool = True) -> Array:
    deviation = x - x.mean(axis=axes, keepdims=True) if centered else x
    return np.asarray(deviation / np.sqrt((deviation**2).mean(axis=axes, keepdims=True) + epsilon))


def _channelwise(parameter: Array, rank: int) -> Array:
    return parameter.astype(np.float64).reshape(-1, *(1,) * (rank - 2))


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm(Operator):
    """(x, scale, bias): x normalised over the axes from `axis` to the last, times scale plus bias, which broadcast to x."""

    name: ClassVar[str] = "layer_norm"
    axis: int
    epsilon: float

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return (_check_trailing("layer_norm", self.axis, inputs, 3),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, scale, bias = (a.astype(np.float64) for a in inputs)
        with np.errstate(all="ignore"):
            result = _normalize_array(x, tuple(range(self.axis % x.ndim, x.ndim)), self.epsilon) * scale + bias
        return (result.astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, scale, bias = inputs

        def affine(value: Expr, i: Index) -> Expr:
            return value * _parameter(scale, value, i) + _parameter(bias, value, i)

        return (_normalized(k, "layer_norm", x, _trailing_group(x.shape, self.axis % x.rank), self.epsilon, True, affine),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = inputs[0]
        axes = range(self.axis % x.type.rank, x.type.rank)
        return (_scaled(g, _normalize(g, widen(g, x), axes, self.epsilon), inputs[1:], x.type),)


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm(Operator):
    """(x, scale): x divided by its root mean square over the axes from `axis` to the last (Zhang and Sennrich, 2019), times scale."""

    name: ClassVar[str] = "rms_norm"
    axis: int
    epsilon: float

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return (_check_trailing("rms_norm", self.axis, inputs, 2),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x, scale = (a.astype(np.float64) for a in inputs)
        with np.errstate(all="ignore"):
            result = _normalize_array(x, tuple(range(self.axis % x.ndim, x.ndim)), self.epsilon, centered=False) * scale
        return (result.astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, scale = inputs
        how = _trailing_group(x.shape, self.axis % x.rank)
        return (_normalized(k, "rms_norm", x, how, self.epsilon, False, lambda value, i: value * _parameter(scale, value, i)),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = inputs[0]
        axes = range(self.axis % x.type.rank, x.type.rank)
        return (_scaled(g, _normalize(g, widen(g, x), axes, self.epsilon, centered=False), inputs[1:], x.type),)


def _channel_affine(scale: Tensor, bias: Tensor) -> Callable[[Expr, Index], Expr]:
    return lambda value, i: value * _parameter(scale, value, (i[1],)) + _parameter(bias, value, (i[1],))


@dataclass(frozen=True, slots=True, eq=False)
class InstanceNorm(Operator):
    """(x [N, C, *S], scale [C], bias [C]): each channel of each sample normalised over space."""

    name: ClassVar[str] = "instance_norm"
    epsilon: float

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        x = _check_channels("instance_norm", inputs, 3)
        if x.rank < 3:
            raise TypeRuleError(f"instance_norm: {format_shape(x.shape)} has no spatial axis")
        return (x,)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x = inputs[0].astype(np.float64)
        scale, bias = (_channelwise(a, x.ndim) for a in inputs[1:])
        with np.errstate(all="ignore"):
            return ((_normalize_array(x, tuple(range(2, x.ndim)), self.epsilon) * scale + bias).astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, scale, bias = inputs
        return (_normalized(k, "instance_norm", x, _instance_group(x.shape), self.epsilon, True, _channel_affine(scale, bias)),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = inputs[0]
        rank = x.type.rank
        normal = _normalize(g, widen(g, x), range(2, rank), self.epsilon)
        return (_scaled(g, normal, [_per_channel(g, p, rank) for p in inputs[1:]], x.type),)


@dataclass(frozen=True, slots=True, eq=False)
class GroupNorm(Operator):
    """(x [N, C, *S], scale [C], bias [C]): `groups` runs of channels of each sample, each normalised over its channels and space (Wu and
    He, 2018)."""

    name: ClassVar[str] = "group_norm"
    groups: int
    epsilon: float

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        x = _check_channels("group_norm", inputs, 3)
        channels = x.shape[1]
        if self.groups < 1 or (channels.is_const and channels.value % self.groups):
            raise TypeRuleError(f"group_norm: {channels!r} channels do not divide into {self.groups} groups")
        return (x,)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x = inputs[0].astype(np.float64)
        scale, bias = (_channelwise(a, x.ndim) for a in inputs[1:])
        split = x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:])
        with np.errstate(all="ignore"):
            normal = _normalize_array(split, tuple(range(2, split.ndim)), self.epsilon).reshape(x.shape)
            return ((normal * scale + bias).astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, scale, bias = inputs
        how = _channel_group(x.shape, self.groups)
        return (_normalized(k, "group_norm", x, how, self.epsilon, True, _channel_affine(scale, bias)),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = inputs[0]
        rank = x.type.rank
        each = canonical(x.shape[1] // self.groups)
        split = reshape(g, widen(g, x), (x.shape[0], const(self.groups), each, *x.shape[2:]))
        normal = reshape(g, _normalize(g, split, range(2, rank + 1), self.epsilon), x.shape)
        return (_scaled(g, normal, [_per_channel(g, p, rank) for p in inputs[1:]], x.type),)


@dataclass(frozen=True, slots=True, eq=False)
class BatchNorm(Operator):
    """(x [N, C, ...], scale, bias, mean, variance, all [C]): inference with known statistics. Written as x*a + b with a and b for each
    channel, which fold into a convolution before it when they are constants."""

    name: ClassVar[str] = "batch_norm"
    epsilon: float

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return (_check_channels("batch_norm", inputs, 5),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x = inputs[0].astype(np.float64)
        scale, bias, center, variance = (_channelwise(a, x.ndim) for a in inputs[1:])
        with np.errstate(all="ignore"):
            return (((x - center) / np.sqrt(variance + self.epsilon) * scale + bias).astype(inputs[0].dtype),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = inputs[0]
        wide = arithmetic_dtype(x.type.dtype)
        scale, bias, center, variance = (cast(g, p, wide) for p in inputs[1:])
        factor = binary(g, "mul", scale, unary(g, "rsqrt", binary(g, "add", variance, self.epsilon)))
        offset = binary(g, "sub", bias, binary(g, "mul", center, factor))
        rank = x.type.rank
        return (_scaled(g, widen(g, x), [_per_channel(g, p, rank) for p in (factor, offset)], x.type),)


@dataclass(frozen=True, slots=True, eq=False)
class Lrn(Operator):
    """x / (bias + alpha/size * sum of squares of `size` neighbouring channels)**beta (Krizhevsky et al., 2012)."""

    name: ClassVar[str] = "lrn"
    size: int
    alpha: float
    beta: float
    bias: float

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        x = _check_floats("lrn", inputs, 1)
        if x.rank < 2 or self.size < 1:
            raise TypeRuleError(f"lrn: {format_shape(x.shape)} needs a channel axis, and the size {self.size} must be positive")
        return (x,)

    @property
    def _margins(self) -> tuple[int, int]:
        return (self.size - 1) // 2, self.size // 2

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x = inputs[0].astype(np.float64)
        before, after = self._margins
        total = np.zeros_like(x)
        for c in range(x.shape[1]):
            total[:, c] = (x[:, max(0, c - before) : c + after + 1] ** 2).sum(axis=1)
        with np.errstate(all="ignore"):
            return ((x / (self.bias + self.alpha / self.size * total) ** self.beta).astype(inputs[0].dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        before, after = (self._around_channel(n, x.rank) for n in self._margins)
        padded = pad_block(k, x, before, after, const(0, x.dtype))

        def square(*i: Expr) -> Expr:
            element = widened(padded[(i[0], i[1] + i[-1], *i[2:-1])])
            return element * element

        total = k.reduce("squares", x.shape, (const(self.size),), square, "sum")

        def value(*i: Expr) -> Expr:
            wide = total.dtype
            base = total[i] * (self.alpha / self.size) + self.bias
            return ex.cast(x.dtype, widened(x[i]) / call("pow", base, const(self.beta, wide)))

        return (k.compute("lrn", x.shape, value),)

    @staticmethod
    def _around_channel(amount: int, rank: int) -> Shape:
        return (const(0), const(amount), *(const(0),) * (rank - 2))

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = widen(g, inputs[0])
        rank = x.type.rank
        ones = (1,) * (rank - 1)
        before, after = (self._around_channel(n, rank)[1:] for n in self._margins)
        squares = binary(g, "mul", x, x)
        total = g.one(WindowReduce("sum", (self.size, *ones[1:]), ones, ones, before, after), squares)
        base = binary(g, "add", binary(g, "mul", total, self.alpha / self.size), self.bias)
        return (cast(g, binary(g, "div", x, binary(g, "pow", base, self.beta)), inputs[0].type.dtype),)
