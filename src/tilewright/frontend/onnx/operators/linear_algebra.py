"""Determinants and inverses by elimination, written in ONNX's own operators."""

from __future__ import annotations

from functools import lru_cache

import onnx

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.matmul import small_determinant
from tilewright.graph.node import Value
from tilewright.ir import dtypes
from tilewright.support.errors import ModelError

EXPANDED = 4  # rows up to which a determinant is expanded rather than eliminated

# One step brings the row with the largest element of column k, of those from k on, to place k.
_PIVOT = """
    column = Gather <axis = 2> (a, k)
    size = Abs (column)
    before = Less (rows, k)
    candidates = Where (before, minus, size)
    row = ArgMax <axis = 1, keepdims = 1> (candidates)
    is_k = Equal (rows, k)
    is_row = Equal (rows, row)
    rest = Where (is_row, k, rows)
    order = Where (is_k, row, rest)
    picked = Unsqueeze (order, two)
    swapped = GatherND <batch_dims = 1> (a, picked)
    top = Gather <axis = 1> (swapped, k)
    pivot = Gather <axis = 1> (top, k)
    column_after = Gather <axis = 2> (swapped, k)
"""

_HEAD = """
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  first = Constant <value_ints = [0]> ()
  one_list = Constant <value_ints = [1]> ()
  two = Constant <value_ints = [2]> ()
  last_two = Constant <value_ints = [-2]> ()
  minus_one = Constant <value = float {-1}> ()
  minus = CastLike (minus_one, X)
  unit_value = Constant <value = float {1}> ()
  unit = CastLike (unit_value, X)
  nothing_value = Constant <value = float {0}> ()
  nothing = CastLike (nothing_value, X)
  shape = Shape (X)
  matrix = Shape <start = -2> (X)
  batch = Shape <end = -2> (X)
  n_list = Shape <start = -1> (X)
  n = Squeeze (n_list, first)
  all = Constant <value_ints = [-1]> ()
  flat_shape = Concat <axis = 0> (all, matrix)
  flat = Reshape (X, flat_shape)
  rows = Range (zero, n, one)
  yes = Constant <value = bool {1}> ()
"""

_DETERMINANT = """
  count = Shape <end = 1> (flat)
  start = Expand (unit, count)
  end, product = Loop (n, yes, flat, start) <body = step (int64 k, bool c, float[b, n, n] a, float[b] p)
      => (bool going, float[b, n, n] after, float[b] q) {
    going = Identity (c)
    PIVOT
    moved = Squeeze (row, one_list)
    same = Equal (moved, k)
    sign = Where (same, unit, minus)
    signed = Mul (pivot, sign)
    q = Mul (p, signed)
    none = Equal (pivot, nothing)
    divisor = Where (none, unit, pivot)
    divisors = Unsqueeze (divisor, one_list)
    factor = Div (column_after, divisors)
    below = Greater (rows, k)
    used = Where (below, factor, nothing)
    left = Unsqueeze (used, two)
    right = Unsqueeze (top, one_list)
    taken = Mul (left, right)
    after = Sub (swapped, taken)
  }>
  Y = Reshape (product, batch)
"""

_INVERSE = """
  plane = ConstantOfShape (matrix)
  eye = EyeLike (plane)
  identity = CastLike (eye, X)
  planes = Shape (flat)
  filled = Expand (identity, planes)
  both = Concat <axis = 2> (flat, filled)
  end = Loop (n, yes, both) <body = step (int64 k, bool c, float[b, n, m] a) => (bool going, float[b, n, m] after) {
    going = Identity (c)
    PIVOT
    pivots = Unsqueeze (pivot, one_list)
    scaled = Div (top, pivots)
    scaled_row = Unsqueeze (scaled, one_list)
    left = Unsqueeze (column_after, two)
    taken = Mul (left, scaled_row)
    reduced = Sub (swapped, taken)
    mask = Unsqueeze (is_k, one_list)
    after = Where (mask, scaled_row, reduced)
  }>
  halves = Concat <axis = 0> (n_list, n_list)
  left_half, right_half = Split <axis = 2> (end, halves)
  Y = Reshape (right_half, shape)
"""


@lru_cache(maxsize=2)
def _function(body: str) -> onnx.FunctionProto:
    steps = (_HEAD + body).replace("PIVOT", _PIVOT)
    return onnx.parser.parse_function(f'<opset_import: ["" : 18], domain: "tilewright"> Eliminated (X) => (Y) {{{steps}}}')


def _square(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    if x.type.rank < 2:
        raise ModelError(f"{ctx.op_type} of a tensor of type {x.type!r}", where=ctx.where, why="it takes square matrices")
    size = x.shape[-2] if x.shape[-2].is_const else x.shape[-1]
    return ctx.refine(x, (*x.shape[:-2], size, size))


def _expanded(ctx: NodeContext, body: str, x: Value) -> Value:
    """In float32 at least."""
    wide = x if x.type.dtype.bits >= 32 else ctx.cast(x, dtypes.float32)
    result = ctx.expansion(_function(body), (wide,))[0]
    if result is None:
        raise ModelError(f"{ctx.op_type} has no result", where=ctx.where)
    return ctx.cast(result, x.type.dtype)


def determinant(ctx: NodeContext) -> Value:
    """By expansion for few rows, else by elimination."""
    x = _square(ctx)
    size = x.shape[-1]
    if size.is_const and size.value <= EXPANDED:
        return small_determinant(ctx, x, int(size.value))
    return _expanded(ctx, _DETERMINANT, x)


def inverse(ctx: NodeContext) -> Value:
    """By elimination with row exchange (Gauss and Jordan); a singular matrix gives infinities or NaN."""
    return _expanded(ctx, _INVERSE, _square(ctx))


IMPORTERS: Table = {
    ("", "Det"): determinant,
    ("com.microsoft", "Inverse"): inverse,
}
