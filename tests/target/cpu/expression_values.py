"""Values of scalar expressions on NumPy arrays, for tests of what the CPU's expansions compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk

Array = np.ndarray[Any, Any]

BINARY: dict[Op, Callable[[Array, Array], Array]] = {
    Op.ADD: np.add, Op.SUB: np.subtract, Op.MUL: np.multiply, Op.DIV: np.divide, Op.MIN: np.minimum, Op.MAX: np.maximum,
    Op.EQ: np.equal, Op.NE: np.not_equal, Op.LT: np.less, Op.LE: np.less_equal, Op.AND: np.bitwise_and, Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor, Op.SHL: np.left_shift, Op.SHR: np.right_shift,
}  # fmt: skip
CALLS: dict[str, Callable[..., Array]] = {
    "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "copysign": np.copysign,
    "reciprocal_normal": np.reciprocal,
}  # fmt: skip


def exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b in float64 and its rounding error, by Veltkamp's splitting (Dekker 1971)."""

    def split(x: Array) -> tuple[Array, Array]:
        scaled = x * 134217729.0
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once (twice in rare ties)."""
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b + c).astype(np.float32)
    product, error = exact_product(a, b)
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back)
    careful = total + (rest + error)
    # Nothing to correct: the plain sum, which has the right zero.
    return np.where(np.isfinite(careful) & (careful != total), careful, total)


def evaluate(e: Expr, values: Mapping[Expr, Array]) -> Array:
    """The values of `e`, given those of its variables; every node is evaluated once, in its own dtype."""
    known: dict[Expr, Array] = {}
    with np.errstate(all="ignore"):
        for node in walk(e):
            known[node] = _apply(node, [known[a] for a in node.args], values)
    return known[e]


def _apply(node: Expr, args: list[Array], values: Mapping[Expr, Array]) -> Array:
    host = node.dtype.numpy
    if node.op is Op.VAR:
        return values[node]
    if node.op is Op.CONST:
        return np.asarray(node.attr, host)
    if node.op in BINARY:
        return np.asarray(BINARY[node.op](*args), host)
    if node.op is Op.SELECT:
        return np.where(*args)
    if node.op is Op.NOT:
        return np.logical_not(args[0]) if node.dtype is dtypes.bool_ else np.invert(args[0])
    if node.op is Op.CAST:
        return args[0].astype(host)
    if node.op is Op.BITCAST:
        return np.ascontiguousarray(args[0]).view(host)
    if node.attr == "fma":
        return np.asarray(fused(*np.broadcast_arrays(*args)), host)
    return np.asarray(CALLS[node.attr](*args), host)
