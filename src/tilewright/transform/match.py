"""What rules ask of values: is it a constant, one number, the result of a certain operator."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from tilewright.graph.node import Array, Node, Operator, Value
from tilewright.graph.ops import Binary, BroadcastTo, Constant, ConstantData, Reshape, Unary
from tilewright.ir import dtypes

Kind = TypeVar("Kind", bound=Operator)


def made_by(value: Value, kind: type[Kind]) -> Kind | None:
    """The operator that computes the value, if it is of this kind."""
    return value.op if isinstance(value.op, kind) else None


def array_of(value: Value) -> Array | None:
    """The elements of a constant."""
    op = value.op
    return op.data.array if isinstance(op, Constant) else None


@lru_cache(maxsize=65536)
def _uniform(data: ConstantData) -> Any:
    array = data.array
    if array.size == 0 or data.dtype is dtypes.string:
        return None
    flat = array.reshape(-1)
    first = flat[0]
    if flat[-1].tobytes() != first.tobytes():
        return None  # as in most weights
    bits = flat.view(_bits(array))  # tells 0.0 from -0.0, and finds NaN equal to itself
    return first if bool((bits == bits[0]).all()) else None


def _bits(array: Array) -> np.dtype[Any]:
    return np.dtype(f"u{array.dtype.itemsize}") if array.dtype.itemsize <= 8 else array.dtype


def uniform(value: Value) -> Any:
    """The element (a NumPy scalar) that a constant repeats everywhere, also through broadcasts and reshapes; None for other values."""
    while isinstance(value.op, (BroadcastTo, Reshape)):
        value = value.node.inputs[0]
    op = value.op
    return _uniform(op.data) if isinstance(op, Constant) else None


def number(value: Value) -> float | int | bool | None:
    """`uniform` as a Python number."""
    found = uniform(value)
    if found is None:
        return None
    return found.item() if isinstance(found.item(), (bool, int, float)) else float(found)


def fn_of(node: Node) -> str:
    """The function of an elementwise operator of one or two operands; "" for other operators."""
    op = node.op
    return op.fn if isinstance(op, (Unary, Binary)) else ""


def unary_of(value: Value, fn: str) -> Value | None:
    """x where value is fn(x)."""
    op = value.op
    return value.node.inputs[0] if isinstance(op, Unary) and op.fn == fn else None


def binary_of(value: Value, fn: str) -> tuple[Value, Value] | None:
    """(a, b) where value is fn(a, b)."""
    op = value.op
    if isinstance(op, Binary) and op.fn == fn:
        a, b = value.node.inputs
        return a, b
    return None
