"""A graph under construction: the values so far with what is known of them, and random shapes and numbers.

Shapes mix axes of size 1, small sizes and named ones. Values carry a bound of their magnitude, so that nothing overflows, and whether they
are exact: operators with jumps (floor, comparisons, casts to integers) read exact values only, since two right compilations of the rest
may differ in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.graph.node import GraphBuilder, Operator, Value
from tilewright.graph.ops import Binary, constant
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, size

N = size("N", 1, 8)
M = size("M", 2, 6)
SIZES = (N, M)
MAX_RANK = 4
MAGNITUDE = 1e3


@dataclass(slots=True)
class Known:
    """What is known of a value: a bound of its elements' magnitude, and whether every compilation computes the same bits."""

    bound: float
    exact: bool


@dataclass(slots=True)
class Generator:
    """Grows a graph. `pool` holds the values so far, newest last. Shapes are drawn from `dims` and the named `sizes`."""

    rng: np.random.Generator
    sizes: tuple[Expr, ...] = SIZES
    dims: tuple[int, ...] = (1, 1, 2, 3, 4)
    g: GraphBuilder = field(default_factory=GraphBuilder)
    pool: dict[Value, Known] = field(default_factory=dict)
    params: list[Value] = field(default_factory=list)

    def pick(self, accept: Callable[[Value, Known], bool] = lambda value, known: True) -> Value | None:
        """A value that `accept` takes; new ones are more likely."""
        found = [value for value, known in self.pool.items() if accept(value, known)]
        if not found:
            return None
        weights = np.arange(1, len(found) + 1, dtype=np.float64)
        return found[int(self.rng.choice(len(found), p=weights / weights.sum()))]

    def put(self, op: Operator, inputs: Sequence[Value], bound: float, exact: bool) -> Value:
        """The result of an operator, clamped when it could grow too large."""
        (value,) = self.g.emit(op, *inputs)
        if bound > MAGNITUDE and value.type.dtype.is_float:
            low, high = (self.g.one(constant(np.float32(n), value.type.dtype)) for n in (-4, 4))
            value = self.g.one(Binary("min"), self.g.one(Binary("max"), value, low), high)
            bound = 4.0
        self.pool[value] = Known(bound, exact)
        return value

    def number(self, dtype: DType) -> Value:
        choices = (0, 1, 2, 3, 4) if dtype.kind == "uint" else (0, 1, 2, -1, -2, 4) if dtype.is_integer else (0, 1, 2, 0.5, -1, -0.5, 3)
        return self.constant(np.asarray(self.rng.choice(choices)), dtype)

    def constant(self, array: np.ndarray, dtype: DType) -> Value:
        value = self.g.one(constant(array, dtype))
        self.pool[value] = Known(float(np.max(np.abs(array.astype(np.float64)), initial=0.0)), True)
        return value

    def draw(self, shape: Sequence[int], dtype: DType = dtypes.float32) -> np.ndarray:
        """Small multiples of 1/4, whose sums and products are exact; now and then one number everywhere."""
        if self.rng.random() < 0.2:
            return np.full(shape, self.rng.integers(-2, 3)).astype(dtype.numpy)
        return draw(self.rng, shape, dtype)

    def shape(self, rank: int) -> tuple[Expr, ...]:
        return tuple(self.dim() for _ in range(rank))

    def dim(self) -> Expr:
        if self.sizes and self.rng.random() < 0.3:
            return self.sizes[int(self.rng.integers(len(self.sizes)))]
        return const(int(self.rng.choice(self.dims)))

    def static(self, shape: Sequence[Expr]) -> tuple[int, ...] | None:
        return tuple(int(dim.value) for dim in shape) if all(dim.is_const for dim in shape) else None


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> np.ndarray:
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind == "uint" else -4, 5, shape).astype(dtype.numpy)
    return (rng.integers(-8, 9, shape) / 4).astype(dtype.numpy)
