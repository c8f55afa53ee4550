"""Elementwise operators: one scalar function applied to every element, with NumPy broadcasting between operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.casts import cast_array, cast_scalar
from tilewright.graph.ops.scalars import BINARY, UNARY, ScalarFunction, array_function, scalar_binary, scalar_unary
from tilewright.graph.shapes import broadcast_index, broadcast_shapes
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, bitcast, call, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError, UnsupportedDtypeError


def expect_inputs(name: str, inputs: tuple[TensorType, ...], least: int, most: int | None = None) -> None:
    """Check the number of inputs. Raises TypeRuleError."""
    most = least if most is None else most
    if not least <= len(inputs) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise TypeRuleError(f"{name} takes {wanted} inputs, not {len(inputs)}")


def expect_one_dtype(name: str, inputs: tuple[TensorType, ...]) -> DType:
    """The dtype that all inputs have. Raises TypeRuleError when they differ."""
    if any(t.dtype is not inputs[0].dtype for t in inputs):
        raise TypeRuleError(f"{name}: the inputs have the dtypes {', '.join(t.dtype.name for t in inputs)}", why="it needs one dtype")
    return inputs[0].dtype


def expect_kind(name: str, dtype: DType, kinds: frozenset[str]) -> None:
    """Check the kind of an input's dtype. Raises TypeRuleError."""
    if dtype.kind not in kinds:
        wanted = " or ".join(word for kind, word in _KIND_WORDS.items() if kind in kinds)
        raise TypeRuleError(f"{name} is not defined for {dtype.name}", why=f"it takes {wanted}")


_KIND_WORDS = {"bool": "bool", "int": "signed integers", "uint": "unsigned integers", "float": "floats"}


def _rule(table: dict[str, ScalarFunction], fn: str) -> ScalarFunction:
    if fn not in table:
        raise TypeRuleError(f"there is no elementwise function {fn!r} of this number of operands")
    return table[fn]


@dataclass(frozen=True, slots=True, eq=False)
class Unary(Operator):
    """fn(x) for each element; `fn` is a key of `scalars.UNARY`."""

    name: ClassVar[str] = "unary"
    fn: str

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs(self.fn, inputs, 1)
        rule = _rule(UNARY, self.fn)
        expect_kind(self.fn, inputs[0].dtype, rule.kinds)
        return (TensorType(dtypes.bool_ if rule.predicate else inputs[0].dtype, inputs[0].shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (array_function(UNARY[self.fn], inputs),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return (k.compute(self.fn, x.shape, lambda *i: scalar_unary(self.fn, x[i])),)


@dataclass(frozen=True, slots=True, eq=False)
class Binary(Operator):
    """fn(a, b) for each pair of elements; `fn` is a key of `scalars.BINARY`."""

    name: ClassVar[str] = "binary"
    fn: str

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs(self.fn, inputs, 2)
        rule = _rule(BINARY, self.fn)
        dtype = expect_one_dtype(self.fn, inputs)
        expect_kind(self.fn, dtype, rule.kinds)
        shape = broadcast_shapes(inputs[0].shape, inputs[1].shape, operator=self.fn)
        return (TensorType(dtypes.bool_ if rule.predicate else dtype, shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (array_function(BINARY[self.fn], inputs),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        a, b = inputs
        shape = broadcast_shapes(a.shape, b.shape, operator=self.fn)

        def value(*i: Expr) -> Expr:
            return scalar_binary(self.fn, a[broadcast_index(a.shape, i)], b[broadcast_index(b.shape, i)])

        return (k.compute(self.fn, shape, value),)


@dataclass(frozen=True, slots=True, eq=False)
class Select(Operator):
    """condition ? a : b for each element, with broadcasting of all three."""

    name: ClassVar[str] = "select"

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("select", inputs, 3)
        if inputs[0].dtype is not dtypes.bool_:
            raise TypeRuleError(f"select: the condition is {inputs[0].dtype.name}", why="it must be bool")
        dtype = expect_one_dtype("select", inputs[1:])
        return (TensorType(dtype, broadcast_shapes(*(t.shape for t in inputs), operator="select")),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.where(*inputs).astype(inputs[1].dtype, copy=False),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        shape = broadcast_shapes(*(t.shape for t in inputs), operator="select")

        def value(*i: Expr) -> Expr:
            condition, a, b = (t[broadcast_index(t.shape, i)] for t in inputs)
            return select(condition, a, b)

        return (k.compute("select", shape, value),)


@dataclass(frozen=True, slots=True, eq=False)
class Cast(Operator):
    """Value conversion with ONNX semantics: floats truncate to integers (past their range as `scalar_ops.integer_of` says), integers wrap,
    anything to bool is `!= 0`. To 8-bit floats,
    `saturate` clamps to the finite range (NaN stays); without it overflow gives the type's infinity or NaN.
    `may_flush`: subnormal numbers may become 0, which instructions that round to bfloat16 do; for roundings that no model asked for."""

    name: ClassVar[str] = "cast"
    dtype: DType
    saturate: bool = True
    may_flush: bool = False

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("cast", inputs, 1)
        if "complex" in (inputs[0].dtype.kind, self.dtype.kind):
            raise TypeRuleError(f"cast from {inputs[0].dtype.name} to {self.dtype.name} is not defined")
        return (TensorType(self.dtype, inputs[0].shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (cast_array(inputs[0], self.dtype, self.saturate),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        if "string" in (x.dtype.kind, self.dtype.kind):
            raise UnsupportedDtypeError(f"cast from {x.dtype.name} to {self.dtype.name} can only be done at compile time")
        return (k.compute("cast", x.shape, lambda *i: cast_scalar(self._flushed(x[i]), self.dtype, self.saturate)),)

    def _flushed(self, x: Expr) -> Expr:
        return call("may_flush", x) if self.may_flush and x.dtype.is_float else x


@dataclass(frozen=True, slots=True, eq=False)
class Bitcast(Operator):
    """The same bits read as another dtype of the same width."""

    name: ClassVar[str] = "bitcast"
    dtype: DType

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("bitcast", inputs, 1)
        source = inputs[0].dtype
        if source.bits != self.dtype.bits or "string" in (source.kind, self.dtype.kind):
            raise TypeRuleError(f"bitcast from {source.name} to {self.dtype.name} is not defined", why="the widths differ")
        return (TensorType(self.dtype, inputs[0].shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        if self.dtype.bits >= 8:
            return (inputs[0].view(self.dtype.numpy),)
        # Sub-byte values take a byte each on the host: signed ones keep their sign bits there, so go through the low nibble.
        nibbles = (inputs[0].view(np.uint8) & 0xF).astype(np.uint8)
        if self.dtype.kind == "int":
            nibbles = ((nibbles ^ 8) - np.uint8(8)).astype(np.uint8)
        return (nibbles.view(self.dtype.numpy),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return (k.compute("bitcast", x.shape, lambda *i: bitcast(self.dtype, x[i])),)
