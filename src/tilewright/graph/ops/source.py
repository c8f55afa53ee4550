"""Operators without tensor inputs: constants, ranges, dims as values, random numbers; and the one that turns a value into a dim."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.random import expression_bits, normal_array, normal_expression, uniform_array, uniform_expression
from tilewright.graph.shapes import flatten_index
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, cast, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.types import Shape, TensorType, bind_shape
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError

_SAMPLES = 64


class ConstantData:
    """The elements of a constant: a read-only array (a memory map stays one). Equal when dtype, shape and bytes are equal.

    Hashing looks at a sample of the elements only; the full comparison happens between constants whose samples agree.
    """

    __slots__ = ("__dict__", "__weakref__", "_hash", "array", "dtype")
    array: Array
    dtype: DType

    def __init__(self, array: Any) -> None:
        held = np.asarray(array)
        if held.flags.writeable:
            held = held.view()
            held.flags.writeable = False
        self.array = held
        self.dtype = dtypes.from_numpy(held.dtype)
        self._hash = hash((held.dtype.str, self.dtype.name, held.shape, self._sample()))

    def _sample(self) -> Any:
        step = max(1, self.array.size // _SAMPLES)
        sample = self.array.reshape(-1)[::step] if self.array.flags.c_contiguous else self.array.flat[::step]
        return tuple(sample) if self.dtype is dtypes.string else np.ascontiguousarray(sample).tobytes()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ConstantData) or self._hash != other._hash:
            return False
        a, b = self.array, other.array
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if self.dtype is dtypes.string:
            return bool(np.array_equal(a, b))
        # not `.ctypes`, which imports: weak tables still compare when the interpreter ends
        if a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides:
            return True
        return bool(np.array_equal(_bytes_of(a), _bytes_of(b)))

    def __repr__(self) -> str:
        return f"ConstantData({self.dtype}[{', '.join(map(str, self.array.shape))}])"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of dtype, shape and contents, in hexadecimal."""
        found = hashlib.sha256(repr((self.dtype.name, self.array.shape)).encode())
        if self.dtype is dtypes.string:
            found.update(repr(self.array.reshape(-1).tolist()).encode())
        else:
            found.update(_bytes_of(self.array).data)
        return found.hexdigest()

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)


def _bytes_of(a: Array) -> Array:
    """The elements as a flat array of bytes; a view when they are contiguous."""
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Operator):
    """A tensor known at compile time. It has no kernel: constants are operands of the kernels that read them."""

    name: ClassVar[str] = "constant"
    data: ConstantData

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("constant", inputs, 0)
        return (TensorType(self.data.dtype, tuple(const(n) for n in self.data.array.shape)),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (self.data.array,)


def constant(array: Any, dtype: DType | None = None) -> Constant:
    """A Constant from anything that NumPy makes an array of."""
    return Constant(ConstantData(np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy)))


@dataclass(frozen=True, slots=True, eq=False)
class Iota(Operator):
    """0, 1, 2, ... length-1."""

    name: ClassVar[str] = "iota"
    length: Expr
    dtype: DType

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("iota", inputs, 0)
        if not (self.dtype.is_float or self.dtype.is_integer):
            raise TypeRuleError(f"iota is not defined for {self.dtype.name}")
        if self.length.is_const and self.length.value < 0:
            raise TypeRuleError(f"iota: the length is {self.length!r}")
        return (TensorType(self.dtype, (self.length,)),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.arange(int(self.length.value)).astype(self.dtype.numpy),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (k.compute("iota", (self.length,), lambda i: cast(self.dtype, i)),)


@dataclass(frozen=True, slots=True, eq=False)
class SizeValue(Operator):
    """A dim expression as an int64 scalar."""

    name: ClassVar[str] = "size_value"
    size: Expr

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("size_value", inputs, 0)
        if self.size.dtype is not dtypes.int64:
            raise TypeRuleError(f"size_value: {self.size!r} is {self.size.dtype.name}, not int64")
        return (TensorType(dtypes.int64, ()),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.asarray(int(self.size.value), np.int64),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (k.compute("size", (), lambda: self.size),)


@dataclass(frozen=True, slots=True, eq=False)
class BindSize(Operator):
    """Binds the named size `size` to the value of an int64 scalar at run time; the result is that scalar. It has no kernel: the plan
    reads the value."""

    name: ClassVar[str] = "bind_size"
    size: Expr

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("bind_size", inputs, 1)
        if inputs[0].dtype is not dtypes.int64 or inputs[0].rank != 0:
            raise TypeRuleError(f"bind_size: the input is {inputs[0]!r}", why="it must be an int64 scalar")
        if self.size.op is not Op.VAR:
            raise TypeRuleError(f"bind_size: {self.size!r} is not a named size")
        return inputs

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return inputs

    @property
    def defines(self) -> tuple[Expr, ...]:
        return (self.size,)


def _check_random(name: str, dtype: DType) -> None:
    if not dtype.is_float:
        raise TypeRuleError(f"{name} is not defined for {dtype.name}", why="it draws floats")


def _element_bits(shape: Sequence[Expr], indices: Sequence[Expr], seed: int) -> tuple[Expr, Expr]:
    return expression_bits(flatten_index(shape, indices), seed)


@dataclass(frozen=True, slots=True, eq=False)
class RandomUniform(Operator):
    """Uniform random numbers in [low, high), a function of `seed` and the position of the element alone."""

    name: ClassVar[str] = "random_uniform"
    shape: Shape
    dtype: DType
    low: float
    high: float
    seed: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("random_uniform", inputs, 0)
        _check_random("random_uniform", self.dtype)
        return (TensorType(self.dtype, self.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (uniform_array(bind_shape(self.shape, {}), self.dtype, self.low, self.high, self.seed),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def value(*i: Expr) -> Expr:
            return uniform_expression(_element_bits(self.shape, i, self.seed), self.dtype, self.low, self.high)

        return (k.compute("uniform", self.shape, value),)


@dataclass(frozen=True, slots=True, eq=False)
class RandomNormal(Operator):
    """Normally distributed random numbers, a function of `seed` and the position of the element alone."""

    name: ClassVar[str] = "random_normal"
    shape: Shape
    dtype: DType
    mean: float
    scale: float
    seed: int

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("random_normal", inputs, 0)
        _check_random("random_normal", self.dtype)
        return (TensorType(self.dtype, self.shape),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (normal_array(bind_shape(self.shape, {}), self.dtype, self.mean, self.scale, self.seed),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def value(*i: Expr) -> Expr:
            return normal_expression(_element_bits(self.shape, i, self.seed), self.dtype, self.mean, self.scale)

        return (k.compute("normal", self.shape, value),)
