"""Operators that move elements without computing: reshape, transpose, broadcast, slice, pad, concatenate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs, expect_one_dtype
from tilewright.graph.ops.padding import PAD_MODES, pad_array, pad_block, padded_shape
from tilewright.graph.shapes import (
    broadcast_index,
    canonical,
    counts_equal,
    dims_equal,
    format_shape,
    is_one,
    normalize_axis,
    reshape_index,
)
from tilewright.ir.bounds import bounds
from tilewright.ir.expr import Expr, const, less, select
from tilewright.ir.types import Shape, TensorType, bind_shape
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError


@dataclass(frozen=True, slots=True, eq=False)
class Reshape(Operator):
    """The elements in row-major order under another shape. Counts that are known to differ are an error; symbolic counts that cannot be
    compared are taken as equal."""

    name: ClassVar[str] = "reshape"
    shape: Shape

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("reshape", inputs, 1)
        (x,) = inputs
        if counts_equal(x.shape, self.shape) is False:
            raise TypeRuleError(
                f"reshape: {format_shape(x.shape)} cannot become {format_shape(self.shape)}", why="the numbers of elements differ"
            )
        return (TensorType(x.dtype, self.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.reshape(inputs[0], bind_shape(self.shape, {})),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return (k.compute("reshape", self.shape, lambda *i: x[reshape_index(x.shape, self.shape, i)]),)


@dataclass(frozen=True, slots=True, eq=False)
class RefineShape(Operator):
    """The same tensor with dims that the model asserts to be those of `shape`; checked while running where it cannot be proved."""

    name: ClassVar[str] = "refine_shape"
    shape: Shape

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("refine_shape", inputs, 1)
        (x,) = inputs
        if x.rank != len(self.shape) or any(a.is_const and b.is_const and a is not b for a, b in zip(x.shape, self.shape, strict=False)):
            raise TypeRuleError(f"refine_shape: {format_shape(x.shape)} is not {format_shape(self.shape)}")
        return (TensorType(x.dtype, self.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        (x,) = inputs
        if x.shape != bind_shape(self.shape, {}):
            raise TypeRuleError(f"refine_shape: the shape is {x.shape}, the model needs {bind_shape(self.shape, {})}")
        return (x,)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return (k.compute("refine_shape", self.shape, lambda *i: x[i]),)


@dataclass(frozen=True, slots=True, eq=False)
class Transpose(Operator):
    """Axis `perm[i]` of the input becomes axis `i`."""

    name: ClassVar[str] = "transpose"
    perm: tuple[int, ...]

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("transpose", inputs, 1)
        (x,) = inputs
        if sorted(self.perm) != list(range(x.rank)):
            raise TypeRuleError(f"transpose: {self.perm} is not a permutation of the {x.rank} axes of {format_shape(x.shape)}")
        return (TensorType(x.dtype, tuple(x.shape[axis] for axis in self.perm)),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.ascontiguousarray(np.transpose(inputs[0], self.perm)).reshape([inputs[0].shape[axis] for axis in self.perm]),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        position = [self.perm.index(axis) for axis in range(x.rank)]
        shape = [x.shape[axis] for axis in self.perm]
        return (k.compute("transpose", shape, lambda *i: x[tuple(i[p] for p in position)]),)


@dataclass(frozen=True, slots=True, eq=False)
class BroadcastTo(Operator):
    """The input repeated to `shape`: its axes are matched from the last, and each has the size there or 1."""

    name: ClassVar[str] = "broadcast_to"
    shape: Shape

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("broadcast_to", inputs, 1)
        (x,) = inputs
        own = self.shape[len(self.shape) - x.rank :]
        if x.rank > len(self.shape) or not all(is_one(a) or dims_equal(a, b) for a, b in zip(x.shape, own)):
            raise TypeRuleError(f"broadcast_to: {format_shape(x.shape)} does not broadcast to {format_shape(self.shape)}")
        return (TensorType(x.dtype, self.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.broadcast_to(inputs[0], bind_shape(self.shape, {})),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return (k.compute("broadcast", self.shape, lambda *i: x[broadcast_index(x.shape, i)]),)


@dataclass(frozen=True, slots=True, eq=False)
class Repeat(Operator):
    """Each index of `axis` `times` times in a row: out[.., i, ..] = x[.., i // times, ..]. What attention does to keys and values that
    several heads share."""

    name: ClassVar[str] = "repeat"
    axis: int
    times: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("repeat", inputs, 1)
        (x,) = inputs
        axis = normalize_axis(self.axis, x.rank, "repeat")
        if self.times < 1:
            raise TypeRuleError(f"repeat: {self.times} is no number of times")
        return (TensorType(x.dtype, (*x.shape[:axis], canonical(x.shape[axis] * self.times), *x.shape[axis + 1 :])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.repeat(inputs[0], self.times, self.axis),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        axis = self.axis % x.rank
        shape = (*x.shape[:axis], canonical(x.shape[axis] * self.times), *x.shape[axis + 1 :])
        return (k.compute("repeat", shape, lambda *i: x[(*i[:axis], i[axis] // self.times, *i[axis + 1 :])]),)


@dataclass(frozen=True, slots=True, eq=False)
class Slice(Operator):
    """out[i] = x[start + i * step] on every axis; `starts` are counted from the front, steps may be negative, not zero."""

    name: ClassVar[str] = "slice"
    starts: tuple[Expr, ...]
    sizes: tuple[Expr, ...]
    steps: tuple[int, ...]

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("slice", inputs, 1)
        (x,) = inputs
        if not len(self.starts) == len(self.sizes) == len(self.steps) == x.rank:
            raise TypeRuleError(f"slice: {format_shape(x.shape)} needs {x.rank} starts, sizes and steps")
        for axis, (start, size, step) in enumerate(zip(self.starts, self.sizes, self.steps)):
            if step == 0:
                raise TypeRuleError(f"slice: the step of axis {axis} is 0")
            last = canonical(start + (size - 1) * step)
            if (bounds(size, {}).lo or 0) > 0:  # an axis without elements may be cut into parts without elements
                self._check_inside(axis, start, x.shape[axis])
                self._check_inside(axis, last, x.shape[axis])
        return (TensorType(x.dtype, self.sizes),)

    def _check_inside(self, axis: int, position: Expr, dim: Expr) -> None:
        past = canonical(position - dim)
        if (position.is_const and position.value < 0) or (past.is_const and past.value >= 0):
            raise TypeRuleError(f"slice: axis {axis} of size {dim!r} has no element {position!r}")

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x = inputs[0]
        parts = []
        for start, size, step in zip(self.starts, self.sizes, self.steps):
            first, count = int(start.value), int(size.value)
            stop = first + count * step
            parts.append(slice(first, stop if stop >= 0 else None, step) if count else slice(0, 0))
        return (np.ascontiguousarray(x[tuple(parts)]).reshape([int(size.value) for size in self.sizes]),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs

        def value(*i: Expr) -> Expr:
            return x[tuple(start + index * step for start, index, step in zip(self.starts, i, self.steps, strict=True))]

        return (k.compute("slice", self.sizes, value),)


@dataclass(frozen=True, slots=True, eq=False)
class Pad(Operator):
    """`low` elements before and `high` after on each axis; negative amounts crop. Inputs (x, value): the scalar `value` fills in mode
    `constant`; `reflect` mirrors without repeating the border, `edge` repeats it, `wrap` continues from the other side."""

    name: ClassVar[str] = "pad"
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    mode: str

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("pad", inputs, 2)
        x, value = inputs
        expect_one_dtype("pad", inputs)
        if value.rank != 0:
            raise TypeRuleError(f"pad: the value has the shape {format_shape(value.shape)}", why="it must be a scalar")
        if self.mode not in PAD_MODES:
            raise TypeRuleError(f"pad: there is no mode {self.mode!r}", why=f"the modes are {', '.join(PAD_MODES)}")
        if not len(self.low) == len(self.high) == x.rank:
            raise TypeRuleError(f"pad: {format_shape(x.shape)} needs {x.rank} amounts before and after")
        shape = padded_shape(x.shape, self.low, self.high)
        for axis, dim in enumerate(shape):
            if dim.is_const and dim.value < 0:
                raise TypeRuleError(f"pad: axis {axis} of size {x.shape[axis]!r} is cropped to the size {dim!r}")
            if self.mode != "constant" and x.shape[axis] is const(0) and dim is not const(0):
                raise TypeRuleError(f"pad: axis {axis} is empty, so mode {self.mode} has no element to repeat")
        return (TensorType(x.dtype, shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (pad_array(inputs[0], bind_shape(self.low, {}), bind_shape(self.high, {}), self.mode, inputs[1]),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, value = inputs
        return (pad_block(k, x, self.low, self.high, value[()], self.mode, always=True),)


@dataclass(frozen=True, slots=True, eq=False)
class Concat(Operator):
    """The inputs one after the other along `axis`."""

    name: ClassVar[str] = "concat"
    axis: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("concat", inputs, 1, len(inputs) or 1)
        dtype = expect_one_dtype("concat", inputs)
        first = inputs[0]
        if first.rank == 0:
            raise TypeRuleError("concat: scalars have no axis to join")
        axis = normalize_axis(self.axis, first.rank, "concat")
        total = const(0)
        for t in inputs:
            others = zip(t.shape, first.shape)
            if t.rank != first.rank or any(i != axis and not dims_equal(a, b) for i, (a, b) in enumerate(others)):
                raise TypeRuleError(
                    f"concat: {format_shape(first.shape)} and {format_shape(t.shape)} do not join along axis {axis}",
                    why="the other axes must have equal sizes",
                )
            total = total + t.shape[axis]
        return (TensorType(dtype, (*first.shape[:axis], canonical(total), *first.shape[axis + 1 :])),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.concatenate(inputs, self.axis),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        axis = self.axis % inputs[0].rank
        offsets = [const(0)]
        for x in inputs:
            offsets.append(canonical(offsets[-1] + x.shape[axis]))
        shape = (*inputs[0].shape[:axis], offsets[-1], *inputs[0].shape[axis + 1 :])

        def value(*i: Expr) -> Expr:
            def between(first: int, last: int) -> Expr:
                # A balanced tree of selects: each element passes log2(inputs) comparisons.
                if first == last:
                    return inputs[first][(*i[:axis], i[axis] - offsets[first], *i[axis + 1 :])]
                middle = (first + last + 1) // 2
                return select(less(i[axis], offsets[middle]), between(first, middle - 1), between(middle, last))

            return between(0, len(inputs) - 1)

        return (k.compute("concat", shape, value),)
