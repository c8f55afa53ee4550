"""How far right results may lie apart: the reference, run again with rounding errors added to every operation that rounds.

Monte Carlo arithmetic (Parker, 1997): each operation whose result is not exact gets operands and results that are off by random parts of a
unit in the last place. What the results differ by estimates how much a different order of summation, a fused multiply-add or another
approximation of a function may change them. Elements that jump (an index, a rounding) are recognised by their changing at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.accuracy.operator_errors import (
    ARITHMETIC,
    BOUNDED_FUNCTIONS,
    CHOOSING,
    FUNCTION_ULPS,
    is_float,
    leaves_its_parts,
    may_jump,
    rounds,
    signs_zeros,
    terms,
    unit,
)
from tilewright.accuracy.rounded_factors import PRODUCTS, loses_bits, scaled_products
from tilewright.graph.interpreter import Interpreter, decomposed, has_reference
from tilewright.graph.node import Function, Module, Node, Operator, Value, bind_operator, has_decomposition, walk_nodes
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.types import TensorType, tensor
from tilewright.support.errors import TilewrightError

Array = np.ndarray[Any, np.dtype[Any]]
RUNS = 5
BFLOAT16 = dtypes.bfloat16.numpy


@dataclass(slots=True)
class Memory:
    """What noisy runs of the same graph on the same inputs learn. many: of nodes that round, how large errors of their operands are, in
    units of rounding errors; without it each run would have to find that out by running them exactly too. jumps: whether there are
    operators with float operands that may jump; without any, errors of ordinary size say all. opened: of operators with operands of such
    types, what they are made of, where that matters, and whether nothing else counts. scaled: of each function, the products that
    factors may go into."""

    many: dict[Node, float] = field(default_factory=dict)
    jumps: bool = False
    opened: dict[tuple[Operator, tuple[TensorType, ...], bool], Function | None] = field(default_factory=dict)
    scaled: dict[tuple[Value, ...], frozenset[Node]] = field(default_factory=dict)


class NoisyInterpreter(Interpreter):
    """Runs functions with errors, `scale` times as large as rounding makes them; each run draws others. absolute: results of functions
    between -1 and 1 have errors in units of 1, as those of libraries do that are not accurate where results are small. coarse: float32
    factors of products have errors as large as those of bfloat16, also where the product is inside of another operator and its factors are
    computed there, such as the states of a recurrent layer. memory: what runs before have learnt. zeros: a number with the sign of all
    zeros that may have either, or 0 where each draws its own."""

    __slots__ = ("absolute", "coarse", "memory", "node", "rng", "scale", "scaled", "zeros")

    def __init__(
        self,
        rng: np.random.Generator,
        module: Module | None = None,
        scale: float = 1.0,
        absolute: bool = False,
        coarse: bool = False,
        memory: Memory | None = None,
        zeros: float = 0.0,
    ) -> None:
        super().__init__(module)
        self.rng, self.scale, self.absolute, self.coarse, self.zeros = rng, scale, absolute, coarse, zeros
        self.memory = Memory() if memory is None else memory
        self.node: Node | None = None
        self.scaled: frozenset[Node] = frozenset()

    def over(self, module: Module) -> NoisyInterpreter:
        """An interpreter over another module that draws errors from the same generator."""
        return NoisyInterpreter(self.rng, module, self.scale, self.absolute, self.coarse, self.memory, self.zeros)

    def run(self, function: Function, inputs: Sequence[Array], sizes: dict[Expr, int]) -> list[Array]:
        """The results of `function`, with errors."""
        if not self.coarse:
            return super().run(function, inputs, sizes)
        if function.results not in self.memory.scaled:
            self.memory.scaled[function.results] = frozenset(scaled_products(function.results))
        outer, self.scaled = self.scaled, self.memory.scaled[function.results]
        try:
            return super().run(function, inputs, sizes)
        finally:
            self.scaled = outer

    def _node(self, node: Node, inputs: list[Array], sizes: dict[Expr, int]) -> list[Array]:
        self.node = node
        results = super()._node(node, inputs, sizes)
        return results if signs_zeros(node.op) else [self._signed(r) if is_float(r) else r for r in results]

    def _signed(self, x: Array) -> Array:
        """The array with other signs of its zeros."""
        zero = x == 0
        if not zero.any():
            return x
        sign = self.zeros or self.rng.choice((-1.0, 1.0), x.shape)
        return np.where(zero, (np.zeros(x.shape) * sign).astype(x.dtype), x)

    def _operator(self, op: Operator, inputs: list[Array], sizes: dict[Expr, int], types: list[TensorType]) -> Sequence[Array]:
        by_parts = leaves_its_parts(op, inputs)
        opened = self._opened(op, inputs, sizes, types, by_parts) if self.coarse or by_parts else None
        if opened is not None:
            return self.run(opened, inputs, {})
        node = self.node
        self.memory.jumps = self.memory.jumps or may_jump(op, inputs)
        many = None if node is None else self.memory.many.get(node)
        # Not learnt: in a loop, factors may lose bits in one turn and have none to lose in another, such as the first state, of zeros.
        coarse = self.coarse and isinstance(op, PRODUCTS) and (node in self.scaled or any(map(loses_bits, inputs)))
        if many is None:
            results = [np.asarray(r) for r in super()._operator(op, inputs, sizes, types)]
            if not any(map(is_float, (*results, *inputs))) or hasattr(op, "interpret") or not (coarse or rounds(op, inputs, results)):
                return results
            # Errors of partial sums: in whatever order terms are added, they grow with the number of terms.
            many = math.sqrt(terms(op, inputs, results))
            if node is not None:
                self.memory.many[node] = many
        many += unit(BFLOAT16) / unit(np.dtype(np.float32)) if coarse else 0.0
        noisy = [self._disturbed(x, many) if is_float(x) and not isinstance(op, CHOOSING) else x for x in inputs]
        results = [np.asarray(r) for r in super()._operator(op, noisy, sizes, types)]
        size = 1.0 if getattr(op, "fn", "add") in ARITHMETIC else FUNCTION_ULPS
        disturbed = [self._disturbed(r, size) if is_float(r) else r for r in results]
        if self.absolute and (op.name == "softmax" or getattr(op, "fn", "") in BOUNDED_FUNCTIONS):
            return [self._moved(r, FUNCTION_ULPS) for r in disturbed]
        return disturbed

    def _opened(self, op: Operator, inputs: list[Array], sizes: dict[Expr, int], types: list[TensorType], always: bool) -> Function | None:
        """What an operator is made of that has a reference, so that no error would get inside, and has products inside, or `always`; None
        for others."""
        if not (has_reference(op) and has_decomposition(op)):
            return None
        fixed = tuple(tensor(type_.dtype, array.shape) for type_, array in zip(types, inputs, strict=True))
        key = (op, fixed, always)
        if key not in self.memory.opened:
            parts = decomposed(bind_operator(op, sizes), fixed)
            matter = always or any(isinstance(node.op, PRODUCTS) for node in walk_nodes(parts.results))
            self.memory.opened[key] = parts if matter else None
        return self.memory.opened[key]

    def _moved(self, x: Array, size: float) -> Array:
        error = self.scale * size * unit(x.dtype) * self.rng.uniform(-1, 1, x.shape)
        return np.asarray(x.astype(np.float64) + error).astype(x.dtype)

    def _disturbed(self, x: Array, size: float) -> Array:
        # Narrow floats are computed with as float32: their operands are exact, only results are rounded to the narrow dtype.
        narrow = x.dtype.itemsize < 4
        factor = np.asarray(1.0 + self.scale * size * unit(x.dtype) * self.rng.uniform(-1, 1, x.shape))
        with np.errstate(all="ignore"):
            return (
                (x.astype(np.float64) * factor).astype(x.dtype)
                if not narrow
                else (x.astype(np.float32) * factor.astype(np.float32)).astype(x.dtype)
            )


def zeros_of_run(run: int) -> float:
    """`NoisyInterpreter.zeros` for the noisy run of this number: one run has all below 0 and one all above, so that what hangs on the sign
    of one zero, or of a sum of them, differs in one of them; others draw."""
    return (-1.0, 1.0)[run] if run < 2 else 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What a result should be: `value`, how far each element may be off (`allowed`), and which elements are to be compared."""

    value: Array
    allowed: Array
    compared: Array

    @property
    def finite(self) -> Array:
        """Which elements are numbers, neither infinite nor NaN."""
        return np.isfinite(self.value.astype(np.float64)) if is_float(self.value) else np.ones(self.value.shape, bool)


@dataclass(slots=True)
class Spread:
    """How far rounding errors move one result from `value`, as seen in noisy runs. far: of each element the farthest so far, infinite where
    it was a number in one run and none in another; for integers and booleans whether it has changed at all. shapeless: even the shape
    depends on rounding errors."""

    value: Array
    far: Array = field(init=False)
    shapeless: bool = False

    def __post_init__(self) -> None:
        self.far = np.zeros(self.value.shape, np.float64 if is_float(self.value) else np.bool_)

    def add(self, other: Array, scale: float = 1.0) -> None:
        """Take a noisy run in, whose errors were `scale` times what rounding makes, up to 12. With large errors, elements that jump are
        found from farther away, and may be off by two jumps; those that move in proportion gain nothing, since 24 times is allowed."""
        if other.shape != self.value.shape:
            self.shapeless = True
        elif not is_float(self.value):
            self.far |= np.asarray(other != self.value)
        else:
            with np.errstate(all="ignore"):
                a, b = other.astype(np.float64), self.value.astype(np.float64)
                moved = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
                self.far = np.maximum(self.far, moved if scale == 1.0 else moved / 12)

    def expected(self) -> Expected | None:
        """What a right result may be; None where even the shape is open."""
        if self.shapeless:
            return None
        value, spread = self.value, self.far
        if not is_float(value):
            return Expected(value, np.zeros(value.shape), ~spread)
        wide = value.astype(np.float64)
        with np.errstate(all="ignore"):
            finite = np.isfinite(spread) & np.isfinite(wide)
            typical = float(np.sqrt(np.mean(np.square(spread[finite])))) if finite.any() else 0.0
            allowed = 24 * spread + 8 * typical + 6 * unit(value.dtype) * np.abs(wide) + 1e-30
        # A jump in one element of many (a rounding that falls the other way) says nothing of the others.
        allowed = np.where(finite, allowed, 0)
        return Expected(value, allowed, np.isfinite(spread))  # infinities and NaNs as well, where all runs have the same


def expectations(function: Function, inputs: Sequence[Array], seed: int, coarse: bool = False) -> list[Expected | None]:
    """For each result what compiled code may give; None where even the shape depends on rounding errors. coarse: with `precision=bf16`."""
    spreads = [Spread(value) for value in Interpreter(None).run(function, list(inputs), {})]
    memory = Memory()
    for run in range(RUNS):
        try:
            noisy = NoisyInterpreter(np.random.default_rng([seed, run]), coarse=coarse, memory=memory, zeros=zeros_of_run(run))
            others = noisy.run(function, list(inputs), {})
        except TilewrightError:  # sizes that depend on rounding errors contradict each other
            return [None] * len(spreads)
        for spread, other in zip(spreads, others, strict=True):
            spread.add(other)
    return [spread.expected() for spread in spreads]


def apart(got: Array, expected: Expected) -> Array:
    """Which elements are wrong, of a result of the right dtype and shape."""
    value = expected.value
    if not is_float(value):
        return np.asarray((got != value) & expected.compared)
    a, b = got.astype(np.float64), value.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(~((np.abs(a - b) <= expected.allowed) | (np.isnan(a) & np.isnan(b)) | (a == b)) & expected.compared)


def excess(got: Array, expected: Expected) -> float:
    """How many times what is allowed wrong elements are off at most; infinite for integers, NaN where some are no finite numbers."""
    if not is_float(expected.value):
        return math.inf
    wrong = apart(got, expected)
    a, b = got[wrong].astype(np.float64), expected.value[wrong].astype(np.float64)
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return math.nan
    with np.errstate(all="ignore"):
        return float((np.abs(a - b) / expected.allowed[wrong]).max(initial=0.0))


def disagreement(got: Array, expected: Expected) -> str | None:
    """What is wrong with a result, or None."""
    value = expected.value
    if got.dtype != value.dtype or got.shape != value.shape:
        return f"is {got.dtype}{list(got.shape)}, not {value.dtype}{list(value.shape)}"
    if not value.size:
        return None
    wrong = apart(got, expected)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    tolerance = f", tolerance {expected.allowed[at]:.3g}" if is_float(value) else ""
    return f"has {int(wrong.sum())} wrong of {value.size}, first at {list(at)}: {got[at]!r}, not {value[at]!r}{tolerance}"
