"""Importers of products: MatMul, Gemm, Einsum. All become two-operand contractions over named letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_letters

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Contract, Iota
from tilewright.graph.shapes import dims_equal, is_one
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const
from tilewright.support.errors import ModelError, ShapeError


def contract(ctx: NodeContext, a: Value, left: str, b: Value, right: str, result: str, dtype: DType | None = None) -> Value:
    """sum of a[left] * b[right] over the letters that `result` lacks. Where a dim of 1 meets a larger one it broadcasts, without
    being materialised; dims that the model asserts to be equal are refined."""
    for value, letters in ((a, left), (b, right)):
        if value.type.rank != len(letters):
            raise ShapeError(f"{ctx.op_type} of {value.type!r}", where=ctx.where, why=f"it takes tensors of rank {len(letters)} here")
    sizes = _letter_sizes([(a, left), (b, right)])
    a, left = _without_ones(ctx, a, left, sizes)
    b, right = _without_ones(ctx, b, right, sizes)
    a, left = _summed(ctx, a, left, right + result)
    b, right = _summed(ctx, b, right, left + result)
    return ctx.one(Contract(f"{left},{right}->{result}", dtype or a.type.dtype), a, b)


def _letter_sizes(operands: Sequence[tuple[Value, str]]) -> dict[str, Expr]:
    """The size of each letter: the constant one where dims differ, else the first that is not 1."""
    sizes: dict[str, Expr] = {}
    for value, letters in operands:
        for letter, dim in zip(letters, value.shape, strict=True):
            current = sizes.get(letter, const(1))
            sizes[letter] = dim if is_one(current) or (dim.is_const and not is_one(dim) and not current.is_const) else current
    return sizes


def _without_ones(ctx: NodeContext, value: Value, letters: str, sizes: Mapping[str, Expr]) -> tuple[Value, str]:
    """The operand without its axes of size 1 whose letter is larger elsewhere, and with its other dims refined."""
    kept = [(letter, dim) for letter, dim in zip(letters, value.shape, strict=True) if not is_one(dim) or is_one(sizes[letter])]
    value = ctx.reshape(value, [dim for _, dim in kept])
    for letter, dim in kept:
        if dim.is_const and sizes[letter].is_const and not dims_equal(dim, sizes[letter]):
            raise ShapeError(f"{ctx.op_type}: sizes {sizes[letter]!r} and {dim!r} do not match", where=ctx.where)
    return ctx.refine(value, [sizes[letter] for letter, _ in kept]), "".join(letter for letter, _ in kept)


def _summed(ctx: NodeContext, value: Value, letters: str, needed: str) -> tuple[Value, str]:
    """The operand summed over the letters that nothing else mentions."""
    axes = [axis for axis, letter in enumerate(letters) if letter not in needed]
    return ctx.reduce("sum", value, axes, keepdims=False), "".join(letter for letter in letters if letter in needed)


def matmul(ctx: NodeContext) -> Value:
    return matrix_product(ctx, ctx.input(0), ctx.input(1))


def matrix_product(ctx: NodeContext, a: Value, b: Value, dtype: DType | None = None) -> Value:
    """NumPy's matmul: vectors are one row or column, leading axes broadcast."""
    if a.type.rank == 0 or b.type.rank == 0:
        raise ModelError(f"{ctx.op_type} of a scalar", where=ctx.where)
    batch = max(a.type.rank, b.type.rank) - 2
    letters = ascii_letters[: max(batch, 0)]
    row, inner, column = "X", "Y", "Z"
    left = letters[len(letters) - (a.type.rank - 2) :] + row + inner if a.type.rank > 1 else inner
    right = letters[len(letters) - (b.type.rank - 2) :] + inner + column if b.type.rank > 1 else inner
    result = letters + (row if a.type.rank > 1 else "") + (column if b.type.rank > 1 else "")
    return contract(ctx, a, left, b, right, result, dtype)


def gemm(ctx: NodeContext) -> Value:
    """alpha * op(a) @ op(b) + beta * c. The sum of integers by factors that are none is computed in float64 and truncated."""
    a, b = ctx.input(0), ctx.input(1)
    left = "ki" if ctx.attribute("transA", 0) else "ik"
    right = "jk" if ctx.attribute("transB", 0) else "kj"
    alpha, beta = ctx.attribute("alpha", 1.0), ctx.attribute("beta", 1.0)
    terms = [(contract(ctx, a, left, b, right, "ij"), alpha)]
    if ctx.has(2) and beta != 0.0:
        terms.append((ctx.input(2), beta))
    dtype = terms[0][0].type.dtype
    wide = dtype if dtype.is_float or all(float(factor).is_integer() for _, factor in terms) else dtypes.float64
    first, *rest = (scaled(ctx, ctx.cast(value, wide), factor) for value, factor in terms)
    return ctx.cast(ctx.binary("add", first, rest[0]) if rest else first, dtype)


def scaled(ctx: NodeContext, value: Value, factor: float) -> Value:
    """`value` times a number that its dtype has, or for unsigned integers times the number modulo their range."""
    return value if factor == 1.0 else ctx.binary("mul", value, factor)


def einsum(ctx: NodeContext) -> Value:
    """Any number of operands, contracted from left to right. Axes under `...` get letters of their own, matched from the right."""
    values = [ctx.input(index) for index in range(len(ctx.inputs))]
    operands, result = _einsum_letters(ctx, ctx.require("equation"), values)
    terms = [_diagonal(ctx, value, letters) for value, letters in zip(values, operands, strict=True)]
    value, letters = terms[0]
    for position, (other, right) in enumerate(terms[1:], 1):
        later = set(result).union(*(after for _, after in terms[position + 1 :]))
        joined = "".join(letter for letter in dict.fromkeys(letters + right) if letter in later)
        last = position == len(terms) - 1
        target = result if last and set(result) <= set(letters + right) else joined
        value, letters = contract(ctx, value, letters, other, right, target), target
    value, letters = _summed(ctx, value, letters, result)
    missing = [letter for letter in result if letter not in letters]
    if missing:
        raise ModelError(f"Einsum: no operand has the letter '{missing[0]}' of the result", where=ctx.where)
    return ctx.transpose(value, [letters.index(letter) for letter in result])


def _einsum_letters(ctx: NodeContext, equation: str, values: Sequence[Value]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with `...` written out and the implicit result filled in."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(values):
        raise ModelError(f"Einsum '{equation}' has {len(parts)} operands where the node has {len(values)}", where=ctx.where)
    free = [letter for letter in reversed(ascii_letters) if letter not in equation]
    hidden = [value.type.rank - len(part.replace("...", "")) if "..." in part else 0 for part, value in zip(parts, values, strict=True)]
    most = max(hidden, default=0)
    if most > len(free) or min(hidden) < 0:
        raise ModelError(f"Einsum '{equation}' does not fit the ranks of its operands", where=ctx.where)
    ellipsis = "".join(free[:most])
    operands = [part.replace("...", ellipsis[most - count :]) for part, count in zip(parts, hidden, strict=True)]
    for letters, value in zip(operands, values, strict=True):
        if len(letters) != value.type.rank or not (letters == "" or letters.isalpha()):
            raise ModelError(f"Einsum '{equation}' does not fit an operand of rank {value.type.rank}", where=ctx.where)
    if arrow:
        return operands, right.replace("...", ellipsis)
    once = sorted(letter for letter, count in Counter(left.replace("...", "").replace(",", "")).items() if count == 1)
    return operands, ellipsis + "".join(once)


def _diagonal(ctx: NodeContext, value: Value, letters: str) -> tuple[Value, str]:
    """An operand with a repeated letter, masked off the diagonal and summed over the second of the axes, until no letter repeats."""
    while len(set(letters)) < len(letters):
        second = next(i for i, letter in enumerate(letters) if letter in letters[:i])
        first = letters.index(letters[second])
        rank = len(letters)
        dims = list(value.shape)
        dims[second] = dims[first]
        value = ctx.refine(value, dims)
        steps = [
            ctx.reshape(ctx.one(Iota(dims[axis], dtypes.int64)), [dims[i] if i == axis else 1 for i in range(rank)])
            for axis in (first, second)
        ]
        on = ctx.binary("equal", *steps)
        value = ctx.reduce("sum", ctx.select(on, value, ctx.scalar_like(0, value)), (second,), keepdims=False)
        letters = letters[:second] + letters[second + 1 :]
    return value, letters


def small_determinant(ctx: NodeContext, x: Value, count: int) -> Value:
    """Laplace expansion along the first row of matrices [..., count, count]."""
    batch = x.shape[:-2]

    def element(row: int, column: int) -> Value:
        at = ctx.slice_axis(ctx.slice_axis(x, x.type.rank - 2, row, 1), x.type.rank - 1, column, 1)
        return ctx.reshape(at, batch)

    def minor(row: int, columns: tuple[int, ...]) -> Value:
        if row == count - 1:
            return element(row, columns[0])
        total: Value | None = None
        for position, column in enumerate(columns):
            rest = minor(row + 1, columns[:position] + columns[position + 1 :])
            term = ctx.binary("mul", element(row, column), rest)
            total = term if total is None else ctx.binary("sub" if position % 2 else "add", total, term)
        assert total is not None
        return total

    return ctx.scalar_like(1, x) if count == 0 else minor(0, tuple(range(count)))


IMPORTERS: Table = {
    ("", "MatMul"): matmul,
    ("", "Gemm"): gemm,
    ("", "Einsum"): einsum,
}
