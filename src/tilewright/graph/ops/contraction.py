"""Contraction of two tensors in general einsum form: matrix products, batched or not, outer products, dot products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.blocks import reduce_block, rounded
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.graph.ops.scalars import arithmetic_dtype
from tilewright.graph.shapes import dims_equal, format_shape
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, cast
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError


@dataclass(frozen=True, slots=True)
class Letters:
    """The parts of a spec "ab,bc->ac": letters of the operands and the result, and `reduced`, those that the result lacks."""

    left: str
    right: str
    result: str

    @property
    def reduced(self) -> str:
        seen = dict.fromkeys(self.left + self.right)
        return "".join(letter for letter in seen if letter not in self.result)

    @property
    def batch(self) -> str:
        return "".join(c for c in self.result if c in self.left and c in self.right)

    @property
    def contracted(self) -> str:
        return "".join(c for c in self.left if c in self.right and c not in self.result)


def parse_spec(spec: str) -> Letters:
    """The letters of a two-operand spec. Raises TypeRuleError for a repeated letter, a result letter without source, or bad syntax."""
    operands, arrow, result = spec.replace(" ", "").partition("->")
    left, comma, right = operands.partition(",")
    if not (arrow and comma) or not all(part == "" or part.isalpha() for part in (left, right, result)):
        raise TypeRuleError(f"contract: {spec!r} is not of the form 'ab,bc->ac'")
    for part in (left, right, result):
        if len(set(part)) != len(part):
            raise TypeRuleError(f"contract: {spec!r} repeats a letter within one operand")
    missing = [letter for letter in result if letter not in left + right]
    if missing:
        raise TypeRuleError(f"contract: the letter {missing[0]!r} of the result is in neither operand of {spec!r}")
    return Letters(left, right, result)


@dataclass(frozen=True, slots=True, eq=False)
class Contract(Operator):
    """sum over the letters that the result lacks of left * right; no letter occurs twice in one operand. Operands are converted to the
    accumulator's dtype: `dtype`, or float32 for narrower floats."""

    name: ClassVar[str] = "contract"
    spec: str
    dtype: DType

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("contract", inputs, 2)
        letters = parse_spec(self.spec)
        for t in (*inputs, TensorType(self.dtype, ())):
            if not (t.dtype.is_float or t.dtype.is_integer):
                raise TypeRuleError(f"contract is not defined for {t.dtype.name}")
        if self.dtype.is_integer and any(t.dtype.is_float for t in inputs):
            raise TypeRuleError(f"contract: products of floats do not accumulate in {self.dtype.name}")
        dims: dict[str, Expr] = {}
        for part, t in zip((letters.left, letters.right), inputs):
            if len(part) != t.rank:
                raise TypeRuleError(f"contract: {self.spec!r} names {len(part)} axes of {format_shape(t.shape)}")
            for letter, dim in zip(part, t.shape):
                known = dims.setdefault(letter, dim)
                if not dims_equal(known, dim):
                    shapes = " and ".join(format_shape(t.shape) for t in inputs)
                    raise TypeRuleError(
                        f"contract: the shapes {shapes} do not fit {self.spec!r}",
                        why=f"the axis {letter!r} has sizes {known!r} and {dim!r}",
                    )
        return (TensorType(self.dtype, tuple(dims[letter] for letter in letters.result)),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return (contract_arrays(parse_spec(self.spec), inputs[0], inputs[1], self.dtype),)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        a, b = inputs
        letters = parse_spec(self.spec)
        dims = dict(zip(letters.left + letters.right, a.shape + b.shape))
        accumulator = arithmetic_dtype(self.dtype)
        order = letters.result + letters.reduced

        def value(*i: Expr) -> Expr:
            at = dict(zip(order, i, strict=True))
            x = a[tuple(at[letter] for letter in letters.left)]
            y = b[tuple(at[letter] for letter in letters.right)]
            return cast(accumulator, x) * cast(accumulator, y)

        shape = [dims[letter] for letter in letters.result]
        extents = [dims[letter] for letter in letters.reduced]
        result = reduce_block(k, "contract", shape, extents, value, "sum")
        return (rounded(k, "contract_result", result, self.dtype),)


def contract_arrays(letters: Letters, a: Array, b: Array, dtype: DType) -> Array:
    """The contraction in NumPy: one batched matrix product, or where nothing is summed the products themselves, zeros with their signs."""
    wide = arithmetic_dtype(dtype).numpy
    if not letters.reduced:
        with np.errstate(all="ignore"):
            return np.asarray((_spread(letters, letters.left, a, wide) * _spread(letters, letters.right, b, wide)).astype(dtype.numpy))
    exact = _exact_integers(letters, a, b, dtype)
    compute = np.dtype(np.float64) if exact else wide
    left = _sum_out(letters.left, letters.right + letters.result, a.astype(compute, copy=False))
    right = _sum_out(letters.right, letters.left + letters.result, b.astype(compute, copy=False))
    batch, shared = letters.batch, letters.contracted
    own_left = [c for c in left[0] if c not in batch and c not in shared]
    own_right = [c for c in right[0] if c not in batch and c not in shared]
    x = _arranged(left, batch, own_left, shared)
    y = _arranged(right, batch, shared, own_right)
    with np.errstate(all="ignore"):
        product = np.matmul(x, y)
    sizes = dict(zip(left[0], left[1].shape)) | dict(zip(right[0], right[1].shape))
    order = [*batch, *own_left, *own_right]
    full = product.reshape([sizes[c] for c in order]).transpose([order.index(c) for c in letters.result])
    return np.asarray((full.astype(np.int64) if exact else full).astype(wide).astype(dtype.numpy))


def _exact_integers(letters: Letters, a: Array, b: Array, dtype: DType) -> bool:
    """Whether float64 holds every partial sum of narrow integers exactly: matrix products of floats are far faster in NumPy."""
    if not dtype.is_integer or max(a.dtype.itemsize, b.dtype.itemsize) > 2:
        return False
    sizes = dict(zip(letters.left, a.shape)) | dict(zip(letters.right, b.shape))
    terms: int = math.prod(sizes[c] for c in letters.reduced)
    return terms < 1 << 21


def _sum_out(part: str, others: str, x: Array) -> tuple[str, Array]:
    """Sum over the letters that occur in one operand only."""
    axes = tuple(i for i, letter in enumerate(part) if letter not in others)
    kept = "".join(letter for letter in part if letter in others)
    return (kept, x.sum(axis=axes, dtype=x.dtype)) if axes else (part, x)


def _spread(letters: Letters, part: str, x: Array, dtype: np.dtype[Any]) -> Array:
    """An operand with its axes in the order of the result, of size 1 where it has none."""
    kept = [c for c in letters.result if c in part]
    sizes = dict(zip(part, x.shape))
    return x.astype(dtype, copy=False).transpose([part.index(c) for c in kept]).reshape([sizes.get(c, 1) for c in letters.result])


def _arranged(operand: tuple[str, Array], batch: str, rows: Sequence[str], columns: Sequence[str]) -> Array:
    """The operand as a stack of matrices: one batch axis, rows, columns."""
    part, x = operand
    groups = (batch, rows, columns)
    moved = x.transpose([part.index(c) for group in groups for c in group])
    sizes = dict(zip(part, x.shape))
    return moved.reshape([math.prod(sizes[c] for c in group) for group in groups])
