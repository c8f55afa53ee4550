"""What the steps that grow fuzzed graphs share: fresh parameters with inputs that suit them, and choices of dtypes and shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tilewright.fuzzing.generator import Generator, Known, draw
from tilewright.graph.node import Operator, Parameter, Value
from tilewright.graph.ops import constant
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.ir.types import tensor

Array = np.ndarray[Any, np.dtype[Any]]
Choice = TypeVar("Choice")
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
MOST_ELEMENTS = 1 << 14  # of one value, named sizes counted as SIZE_GUESS
SIZE_GUESS = 12
FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
INTEGERS = (
    dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64,
)  # fmt: skip


class Unsuitable(Exception):
    """A step finds no use for what it has chosen."""


@dataclass(slots=True)
class Growth:
    """A graph under construction. `draws` says what inputs a parameter takes, where small multiples of 1/4 will not do. `label`: what the
    names of parameters begin with; `fresh`: how many sizes were made that operators bind."""

    s: Generator
    draws: dict[Value, Draw] = field(default_factory=dict)
    label: str = "x"
    fresh: int = 0

    @property
    def rng(self) -> np.random.Generator:
        return self.s.rng

    @property
    def names(self) -> tuple[Expr, ...]:
        """The named sizes that shapes may mention."""
        return free_vars(*self.s.sizes)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def among(self, *choices: Choice) -> Choice:
        """One of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def whole(self, low: int, high: int) -> int:
        """A random integer, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def parameter(
        self, dtype: DType, shape: Sequence[Expr | int], how: Draw | None = None, bound: float = 4.0, exact: bool = True
    ) -> Value:
        type_ = tensor(dtype, shape)
        if any(v not in self.names for v in free_vars(*type_.shape)):
            raise Unsuitable  # sizes that depend on data cannot be sizes of inputs
        value = self.s.g.one(Parameter(f"{self.label}{len(self.s.params)}", type_))
        self.s.params.append(value)
        self.s.pool[value] = Known(bound, exact)
        if how is not None:
            self.draws[value] = how
        return value

    def operand(self, dtype: DType, shape: Sequence[Expr | int], how: Draw | None = None, bound: float = 4.0) -> Value:
        """A constant (packed, folded) or a parameter."""
        dims = tensor(dtype, shape).shape
        static = self.s.static(dims)
        if static is None or self.chance(0.4):
            return self.parameter(dtype, dims, how, bound)
        array = how(self.rng, static) if how is not None else self.s.draw(static, dtype)
        return self.s.constant(array, dtype)

    def put(self, op: Operator, inputs: Sequence[Value], bound: float, exact: bool) -> Value:
        return self.s.put(op, inputs, bound, exact)

    def put_all(self, op: Operator, inputs: Sequence[Value], *known: Known) -> tuple[Value, ...]:
        values = self.s.g.emit(op, *inputs)
        self.s.pool.update(zip(values, known, strict=True))
        return values

    def number(self, value: float, dtype: DType) -> Value:
        return self.s.g.one(constant(np.asarray(value), dtype))

    def fresh_size(self, name: str) -> Expr:
        """A size that no other operator binds."""
        self.fresh += 1
        return size(f"{name}{self.fresh}", 0)

    def known(self, value: Value) -> Known:
        return self.s.pool[value]

    def pick(self, accept: Callable[[Value, Known], bool] = lambda value, known: True) -> Value | None:
        return self.s.pick(lambda value, known: elements(value) <= MOST_ELEMENTS and accept(value, known))

    def picked(self, dtype: DType, shape: Sequence[Expr | int], how: Draw | None = None) -> Value:
        """A value of this type: one that there is, or an operand, which `how` draws."""
        wanted = tensor(dtype, shape)
        found = self.pick(lambda value, known: value.type is wanted) if self.chance(0.6) else None
        return found or self.operand(dtype, shape, how)


def elements(value: Value) -> int:
    return elements_of(value.shape)


def elements_of(shape: Sequence[Expr]) -> int:
    total = 1
    for dim in shape:
        total *= int(dim.value) if dim.is_const else SIZE_GUESS
    return total


def never_empty(value: Value) -> bool:
    """No axis can be of size 0; dims are taken to grow with their sizes."""
    return all(evaluate_int(dim, {v: v.attr.lo for v in free_vars(dim)}) > 0 for dim in value.shape)


def static_dims(value: Value) -> bool:
    return all(dim.is_const for dim in value.shape)


def whole_numbers(low: int, high: int) -> Draw:
    """Inputs that are integers from low to high."""
    return lambda rng, shape: rng.integers(low, high + 1, shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(1, 9, shape) / 4


def full_range(dtype: DType) -> Draw:
    """Every bit pattern of an integer dtype; extremes often."""

    def values(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        low, high = int(dtype.lowest), int(dtype.highest)
        host = dtype.numpy if dtype.bits >= 8 else np.dtype(np.int8)
        inner = rng.integers(low, high, shape, dtype=host, endpoint=True)
        edges = np.array([low, high, 0, 1, high - 1], host)[rng.integers(0, 5, shape)]
        return np.where(rng.random(shape) < 0.3, edges, inner)

    return values


def input_array(growth_draw: Draw | None, rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    return np.asarray(growth_draw(rng, shape) if growth_draw is not None else draw(rng, shape, dtype)).astype(dtype.numpy)


ONE = const(1)
ZERO = const(0)
