"""What rounding errors do to each operator: whether it rounds, how many terms it adds, whether it jumps, which zeros have a sign."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.graph.interpreter import has_reference
from tilewright.graph.node import Operator
from tilewright.graph.ops import (
    ArgReduce,
    Attention,
    BatchNorm,
    Binary,
    Bitcast,
    Block,
    BlockedConvolution,
    Call,
    Cast,
    Contract,
    Convolution,
    ConvolutionTranspose,
    CumulativeScan,
    Dequantize,
    Fused,
    Gather,
    GatherElements,
    GatherNd,
    Gelu,
    GroupNorm,
    Gru,
    HardSwish,
    If,
    InstanceNorm,
    Interleave,
    LayerNorm,
    LogSoftmax,
    Loop,
    Lrn,
    Lstm,
    MaxPoolIndices,
    NonZeroIndices,
    Quantize,
    Reduce,
    Repeat,
    Resize,
    ReverseSequence,
    RmsNorm,
    Rnn,
    ScatterElements,
    ScatterNd,
    Select,
    Softmax,
    Softplus,
    Sort,
    TopK,
    TreeEnsemble,
    Unary,
    Unblock,
    Unique,
    WidenWeights,
    WindowReduce,
    WinogradConvolution,
    WinogradWeights,
)
from tilewright.graph.ops.contraction import parse_spec
from tilewright.graph.ops.movement import BroadcastTo, Concat, Pad, RefineShape, Reshape, Slice, Transpose
from tilewright.graph.ops.source import BindSize, Constant, Iota, SizeValue
from tilewright.ir import dtypes

Array = np.ndarray[Any, np.dtype[Any]]
# Operators whose results are the same bits in every right compilation, given the same operands: they move, choose, order or convert.
EXACT = (
    Reshape, RefineShape, Transpose, BroadcastTo, Repeat, Slice, Pad, Concat, Interleave, Block, Unblock, Constant, Iota, SizeValue,
    BindSize, Cast, Bitcast, Select, Gather, GatherElements, GatherNd, ReverseSequence, TopK, Sort, ArgReduce, MaxPoolIndices,
    NonZeroIndices, Unique,
)  # fmt: skip
EXACT_FUNCTIONS = frozenset([
    "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "min", "max", "equal", "not_equal", "less", "less_equal", "greater",
    "greater_equal", "isnan", "isinf", "none",
])  # fmt: skip
# Operators that round no more than exact arithmetic needs to, so that comparing with float64 shows whether they round at all.
SUMS = (
    Binary, Reduce, WindowReduce, CumulativeScan, ScatterElements, ScatterNd, Contract, Convolution, ConvolutionTranspose, Dequantize,
)  # fmt: skip
# Operators that have references in float64, but whose definition in their own dtype subtracts numbers that are nearly equal: errors of
# their results are as large as those of what they are made of, however small the results are.
CANCELLING = (Gelu, LogSoftmax)
# Likewise those that square operands: in float32 the squares of numbers beyond 1e19 are infinite.
SQUARING = (LayerNorm, RmsNorm, InstanceNorm, GroupNorm, Lrn)
# Operators that jump where an operand passes a threshold: errors of sums come after that.
CHOOSING = (TreeEnsemble,)
ARITHMETIC = frozenset(["add", "sub", "mul", "div", "reciprocal", "sqrt"])
BOUNDED_FUNCTIONS = frozenset(["sigmoid", "tanh", "erf", "sin", "cos"])
FUNCTION_ULPS = 8.0  # of approximated functions, with some room
# Operators that small errors of operands never make jump: their results are continuous, and so are those of what they hold.
SMOOTH = (
    Reshape, RefineShape, Transpose, BroadcastTo, Repeat, Slice, Pad, Concat, Interleave, Block, Unblock, Constant, Iota, SizeValue,
    Select, Gather, GatherElements, GatherNd, ScatterElements, ScatterNd, ReverseSequence, Contract, Convolution, ConvolutionTranspose,
    BlockedConvolution, WinogradWeights, WinogradConvolution, Reduce, WindowReduce, CumulativeScan, Softmax, LogSoftmax, LayerNorm, RmsNorm,
    InstanceNorm, GroupNorm, BatchNorm, Lrn, Gelu, HardSwish, Softplus, Attention, Lstm, Gru, Rnn, Dequantize, WidenWeights, If, Loop, Call,
    Fused,
)  # fmt: skip
# Functions whose zeros may have either sign: x + 0 becomes x and -(a - b) becomes b - a, either of two zeros is the greater one, and
# quotients and remainders are computed from others. Those of all other functions are what IEEE 754 and C's annex F say.
UNSIGNED_ZEROS = frozenset(["add", "sub", "min", "max", "sign", "floordiv", "floormod"])
JUMPING_FUNCTIONS = frozenset([
    "sign", "floor", "ceil", "round", "trunc", "floordiv", "floormod", "fmod", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "atan2",
])  # fmt: skip


def is_float(array: Array) -> bool:
    return dtypes.from_numpy(array.dtype).is_float if array.dtype.kind not in "OUS" else False


def unit(dtype: np.dtype) -> float:
    """Half a unit in the last place of 1."""
    info: Any = ml_dtypes.finfo  # it has no types of its own
    return float(info(dtype).eps) / 2


def signs_zeros(op: Operator) -> bool:
    """Whether every right compilation gives the zeros of the results the same signs, for the same operands. Sums do not: what begins with
    +0, or has tiles filled up with it, gives +0 for terms that are all -0."""
    if isinstance(op, Contract):
        return not parse_spec(op.spec).reduced
    if isinstance(op, (Unary, Binary)):
        return op.fn not in UNSIGNED_ZEROS
    return isinstance(op, EXACT) or not has_reference(op)  # those that are run part by part


def may_jump(op: Operator, inputs: Sequence[Array]) -> bool:
    """Whether errors of operands may do something else to a result than errors of their size."""
    if not any(map(is_float, inputs)):
        return False
    if isinstance(op, (Unary, Binary)):
        return op.fn in JUMPING_FUNCTIONS
    if isinstance(op, Cast):
        return not op.dtype.is_float
    return not isinstance(op, SMOOTH) and not (isinstance(op, Resize) and len(inputs) == 1)


def leaves_its_parts(op: Operator, inputs: Sequence[Array]) -> bool:
    """Whether an operator that has a reference in float64 is, on these operands, far from what its definition gives in their dtype."""
    if not isinstance(op, SQUARING):
        return isinstance(op, CANCELLING)
    x = inputs[0].astype(np.float64)
    greatest = float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))
    return greatest**2 * x.size >= float(np.finfo(np.float64 if inputs[0].dtype == np.float64 else np.float32).max)


def terms(op: Operator, inputs: Sequence[Array], results: Sequence[Array]) -> float:
    """About how many terms are added for one element of a result."""
    if isinstance(op, (Unary, Binary)) or not inputs:
        return 1.0
    sizes = [max(x.size, 1) for x in inputs]
    if isinstance(op, Contract):
        return max(1.0, math.sqrt(sizes[0] * sizes[1] / max(results[0].size, 1)))
    if isinstance(op, (Convolution, ConvolutionTranspose)):
        return float(sizes[1] / max(min(inputs[1].shape[:2]), 1))
    return float(max(sizes[0] / max(results[0].size, 1), 1.0)) if isinstance(op, Reduce) else float(min(sizes[0], 1024))


def rounds(op: Operator, inputs: Sequence[Array], results: Sequence[Array]) -> bool:
    """Whether the operator, on these operands, gives something else than exact arithmetic."""
    if isinstance(op, EXACT) or getattr(op, "fn", getattr(op, "reduction", "")) in EXACT_FUNCTIONS:
        return False
    if isinstance(op, Convolution) and max(op.strides) == 1 and max(inputs[1].shape[2:]) > 1 and inputs[0].dtype == np.float32:
        return True  # Winograd's transforms round where direct sums do not
    if isinstance(op, Quantize):  # exact where the division is
        results = replace(op, dtype=dtypes.float32).reference(tuple(inputs))
    elif not isinstance(op, SUMS) and not (isinstance(op, Unary) and op.fn in ARITHMETIC):
        return True
    if any(x.dtype == np.float64 for x in inputs):
        return True
    wide = [x.astype(np.float64) if is_float(x) else x for x in inputs]
    changed: dict[str, Any] = {"dtype": dtypes.float64} if any(each.name == "dtype" for each in fields(op)) else {}
    precise = replace(op, **changed)
    exact = precise.reference(tuple(wide))
    return not all(np.array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(exact, results, strict=True))
