"""Knowing what integer tensors hold, in terms of named sizes.

Models compute shapes with tensors: Shape -> Gather -> Mul -> Concat -> Reshape. This analysis follows such chains and answers
an array of expressions, so that a front end or pass can use dims instead of tensors; the chain then is dead code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.graph import ratios
from tilewright.graph.node import Value
from tilewright.graph.ops import (
    Binary,
    BindSize,
    BroadcastTo,
    Cast,
    Concat,
    Constant,
    Gather,
    Iota,
    Reduce,
    RefineShape,
    Reshape,
    Select,
    SizeValue,
    Slice,
    Transpose,
    Unary,
)
from tilewright.graph.ratios import NoRatio
from tilewright.ir import dtypes
from tilewright.ir import expr as ex
from tilewright.ir.bounds import bounds
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.simplify import simplify
from tilewright.ir.types import static_shape

MAX_ELEMENTS = 1024  # tensors larger than this hold data, not shapes
MAX_RATIOS = 16

Contents = np.ndarray[Any, np.dtype[Any]]  # object array of Expr (int64 or bool); of Ratio for floats

_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": ex.add,
    "sub": ex.sub,
    "mul": ex.mul,
    "div": lambda a, b: _divided(ex.floordiv if _non_negative(a) and _non_negative(b) else ex.trunc_div, a, b),
    "floordiv": lambda a, b: _divided(ex.floordiv, a, b),
    "floormod": lambda a, b: _divided(ex.floormod, a, b),
    "min": ex.minimum,
    "max": ex.maximum,
    "and": ex.logical_and,
    "or": ex.logical_or,
    "equal": ex.equal,
    "not_equal": ex.not_equal,
    "less": ex.less,
    "less_equal": ex.less_equal,
    "greater": lambda a, b: ex.less(b, a),
    "greater_equal": lambda a, b: ex.less_equal(b, a),
}
_REDUCE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "sum": ex.add, "prod": ex.mul, "max": ex.maximum, "min": ex.minimum, "any": ex.logical_or, "all": ex.logical_and,
}  # fmt: skip

_TRANSPARENT = (Unary, Binary, Select, Cast, Reshape, RefineShape, BroadcastTo, Transpose, Concat, Slice, Gather, Reduce)


_INTEGERS = (dtypes.int64, dtypes.int32, dtypes.bool_)  # narrower and unsigned ones may wrap
_FLOATS = (dtypes.float32, dtypes.float64)


def _divided(divide: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """A quotient or remainder of tensors' elements: 0 for the divisor 0, which expressions do not define."""
    if b is ex.const(0):
        return b
    low, high = bounds(b, {})
    known = (low is not None and low > 0) or (high is not None and high < 0)
    return divide(a, b) if known else ex.select(ex.equal(b, 0), ex.const(0), divide(a, b))


def _non_negative(e: Expr) -> bool:
    lo = bounds(e, {}).lo
    return lo is not None and lo >= 0


@dataclass(slots=True)
class ContentsAnalysis:
    """Memoised contents of values. `known` may be seeded with what the caller knows of parameters."""

    known: dict[Value, Contents | None] = field(default_factory=dict)

    def of(self, value: Value) -> Contents | None:
        """What an integer or bool tensor holds: an object array of its shape with an Expr (int64, or bool) for each element, or None."""
        return self._found(value) if value.type.dtype in _INTEGERS else None

    def ratios(self, value: Value) -> Contents | None:
        """What a float tensor holds, where it is computed from sizes: an object array of Ratio, or None."""
        return self._found(value) if value.type.dtype in _FLOATS else None

    def scalar(self, value: Value) -> Expr | None:
        """The single element of a one-element integer tensor."""
        contents = self.of(value)
        return contents.reshape(-1)[0] if contents is not None and contents.size == 1 else None

    def _found(self, value: Value) -> Contents | None:
        stack = [value]
        while stack:
            current = stack[-1]
            if current in self.known:
                stack.pop()
                continue
            followed = _is_followed(current)
            missing = [v for v in current.node.inputs if v not in self.known] if followed and isinstance(current.op, _TRANSPARENT) else []
            if missing:
                stack.extend(missing)
                continue
            self.known[current] = self._simplified(current) if followed else None
        return self.known[value]

    def _simplified(self, value: Value) -> Contents | None:
        try:
            result = self._compute(value)
        except NoRatio:
            return None
        return result if result is None or value.type.dtype in _FLOATS else _map(simplify, result)

    def _inputs(self, value: Value) -> list[Contents] | None:
        found = []
        for operand in value.node.inputs:
            contents = self.known.get(operand)
            if contents is None:
                return None
            found.append(contents)
        return found

    def _compute(self, value: Value) -> Contents | None:
        op = value.op
        match op:
            case Constant():
                array = op.data.array
                if value.type.dtype in _FLOATS:
                    return _map(ratios.from_float, array.astype(object))
                wide = dtypes.bool_ if array.dtype == np.bool_ else dtypes.int64
                return _map(lambda x: ex.const(x.item() if hasattr(x, "item") else x, wide), array.astype(object))
            case SizeValue():
                return _array(op.size)
            case BindSize():
                return _array(op.size)
            case Iota():
                return _map(lambda x: ex.const(x), np.arange(int(op.length.value)).astype(object)) if op.dtype.is_integer else None
        operands = self._inputs(value)
        if operands is None:
            return None
        match op:
            case Cast():
                return _cast(operands[0], value.node.inputs[0].type.dtype, op.dtype)
            case Binary() if value.node.inputs[0].type.dtype in _FLOATS:
                return _zip(ratios.BINARY[op.fn], operands[0], operands[1]) if op.fn in ratios.BINARY else None
            case Unary() if value.node.inputs[0].type.dtype in _FLOATS:
                return _map(ratios.UNARY[op.fn], operands[0]) if op.fn in ratios.UNARY else None
            case Binary() if op.fn in _BINARY:
                return _zip(_BINARY[op.fn], operands[0], operands[1])
            case Unary(fn="neg"):
                return _map(ex.neg, operands[0])
            case Unary(fn="not"):
                return _map(ex.logical_not, operands[0])
            case Select() if value.type.dtype in _INTEGERS:
                c, a, b = np.broadcast_arrays(*operands)
                picked = [ex.select(p, x, y) for p, x, y in zip(c.flat, a.flat, b.flat, strict=True)]
                return _from_list(picked, c.shape)
            case Reshape() | RefineShape() | BroadcastTo():
                target = static_shape(value.type.shape) or ()
                return np.broadcast_to(operands[0], target) if isinstance(op, BroadcastTo) else operands[0].reshape(target)
            case Transpose():
                return operands[0].transpose(op.perm)
            case Concat():
                return np.concatenate(operands, axis=op.axis)
            case Slice() if all(start.is_const for start in op.starts):
                index = np.ix_(*[_positions(s, n, k) for s, n, k in zip(op.starts, op.sizes, op.steps, strict=True)])
                return _as_array(operands[0][index])
            case Gather():
                indices = operands[1]
                dim = operands[0].shape[op.axis]
                if all(e.is_const and -dim <= e.value < dim for e in indices.flat):
                    return _as_array(np.take(operands[0], _map(lambda e: e.value, indices).astype(np.int64), axis=op.axis))
            case Reduce() if op.fn in _REDUCE and operands[0].size and value.type.dtype in _INTEGERS:
                combined = np.frompyfunc(_REDUCE[op.fn], 2, 1)
                reduced: Any = operands[0]
                for axis in sorted(op.axes, reverse=True):
                    reduced = combined.reduce(reduced, axis=axis, keepdims=op.keepdims)
                return _as_array(reduced)
        return None


def _is_followed(value: Value) -> bool:
    shape = static_shape(value.type.shape)
    if shape is None or value.type.dtype not in _INTEGERS + _FLOATS:
        return False
    count = int(np.prod(shape, dtype=np.int64))
    return count <= (MAX_ELEMENTS if value.type.dtype in _INTEGERS else MAX_RATIOS)


def _positions(start: Expr, count: Expr, step: int) -> list[int]:
    return [int(start.value) + i * step for i in range(int(count.value))]


def _as_array(found: Any) -> Contents:
    """NumPy answers elements, not arrays, where the rank is 0."""
    return found if isinstance(found, np.ndarray) else _array(found)


def _array(e: Expr) -> Contents:
    result = np.empty((), object)
    result[()] = e
    return result


def _from_list(items: list[Expr], shape: tuple[int, ...]) -> Contents:
    result = np.empty(len(items), object)
    for i, item in enumerate(items):
        result[i] = item
    return result.reshape(shape)


def _map(fn: Callable[[Any], Any], array: Contents) -> Contents:
    return _from_list([fn(x) for x in array.flat], array.shape)


def _zip(fn: Callable[[Any, Any], Any], a: Contents, b: Contents) -> Contents | None:
    a, b = np.broadcast_arrays(a, b)
    try:
        return _from_list([fn(x, y) for x, y in zip(a.flat, b.flat, strict=True)], a.shape)
    except TypeError:
        return None


def _cast(contents: Contents, source: DType, dtype: DType) -> Contents | None:
    if dtype not in _INTEGERS + _FLOATS:
        return None
    if source in _FLOATS:
        if dtype in _FLOATS:
            return contents
        return None if dtype is dtypes.bool_ else _map(ratios.truncated, contents)
    if dtype is dtypes.bool_:
        return _map(lambda e: e if e.dtype is dtypes.bool_ else ex.not_equal(e, 0), contents)
    numbers = _map(lambda e: ex.select(e, 1, 0) if e.dtype is dtypes.bool_ else e, contents)
    return _map(ratios.from_size, numbers) if dtype in _FLOATS else numbers
