"""Channel-blocked layouts for convolutions and what surrounds them (NCHW -> NCHW[x]c).

Walks from parameters to results and keeps, for each value, its blocked form where it has one. Dense convolutions start blocked regions;
depthwise ones, elementwise operators, pooling, reductions over space and concatenation of whole blocks continue them; everything else reads
the plain form, which is made where it is first asked for. Weights stay as they are: kernels that read them pack them for their own tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.graph.node import Function, GraphBuilder, Node, Parameter, Value, walk_nodes
from tilewright.graph.ops import (
    Binary,
    Block,
    BlockedConvolution,
    Cast,
    Concat,
    Constant,
    Convolution,
    Gelu,
    HardSwish,
    Interleave,
    Pad,
    Reduce,
    Reshape,
    Select,
    Slice,
    Softplus,
    Unary,
    Unblock,
    WindowReduce,
    constant,
)
from tilewright.graph.ops.compose import cast, widen
from tilewright.graph.shapes import dims_equal, is_one, is_zero
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const
from tilewright.transform.choose_layouts import LayoutCost, plain_nodes
from tilewright.transform.window_rows import row_windows

# Lanes past the last channel hold what these make of zeros. It must stay finite, or the zero weights of the next convolution give NaN.
FINITE = frozenset(
    {"add", "sub", "mul", "max", "min", "neg", "abs", "sigmoid", "tanh", "erf", "exp", "floor", "ceil", "round", "select"}
    | {"gelu", "hard_swish", "softplus", "cast"}
)
FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)  # narrow ones are converted where they are read and stored
WORTH = 2.0  # times the arithmetic that filling up blocks may cost
BYTES = (dtypes.uint8, dtypes.int8)
INTEGER_TERMS, FLOAT_TERMS = 4, 2  # channels that one instruction may sum over, of bytes and of bfloat16
FEW = 4  # input channels up to this are read from the plain layout; those of bytes from blocks of so many, which one instruction takes


@dataclass(slots=True)
class _Blocker:
    """State of the walk: `plain` and `blocked` forms of the original values."""

    lanes: int
    cost: LayoutCost | None = None
    g: GraphBuilder = field(default_factory=GraphBuilder)
    plain: dict[Value, Value] = field(default_factory=dict)
    blocked: dict[Value, Value] = field(default_factory=dict)

    def plain_form(self, value: Value) -> Value:
        found = self.plain.get(value)
        if found is None:
            found = self._unblocked(self.blocked[value], value.shape)
            self.plain[value] = found
        return found

    def blocked_form(self, value: Value) -> Value:
        found = self.blocked.get(value)
        if found is None:
            found = self.g.one(Block(self.lanes), self.plain[value])
            self.blocked[value] = found
        return found

    def _unblocked(self, value: Value, shape: tuple[Expr, ...]) -> Value:
        """The plain form; where all of space is one point, blocks already are in order."""
        if not all(is_one(dim) for dim in shape[2:]):
            return self.g.one(Unblock(shape[1]), value)
        full = (shape[0], value.shape[1] * self.lanes)
        flat = self.g.one(Reshape(full), value)
        if not dims_equal(full[1], shape[1]):
            flat = self.g.one(Slice((const(0), const(0)), (shape[0], shape[1]), (1, 1)), flat)
        return self.g.one(Reshape(shape), flat)

    def whole(self, channels: Expr) -> bool:
        return channels.is_const and channels.value % self.lanes == 0


def block_channels(function: Function, lanes: int, cost: LayoutCost | None = None) -> Function:
    """The function with convolutions of floats or bytes by constant weights, and what can follow them, in blocks of `lanes` channels, where
    that is cheaper by `cost` (None: wherever it is possible)."""
    if lanes < 2 or not any(_starts(node, lanes) for node in walk_nodes(function.results)):
        return function
    state = _Blocker(lanes, cost)
    plain = frozenset() if cost is None else plain_nodes(function, lambda node: _starts(node, lanes), cost)
    for node in walk_nodes(function.results):
        state.g.origin = node.origin
        made = None if node in plain else _blocked(state, node)
        if made is not None:
            state.blocked[node[0]] = made
        elif node[0] in state.plain:
            continue
        elif isinstance(node.op, (Parameter, Constant)):
            state.plain[node[0]] = node[0]
        else:
            results = state.g.emit(node.op, *(state.plain_form(value) for value in node.inputs))
            state.plain.update(zip(node.values, results, strict=True))
    return Function(function.name, function.params, tuple(state.plain_form(value) for value in function.results))


def best_lanes(function: Function, sizes: Sequence[int], cost: Callable[[int], LayoutCost]) -> int:
    """Of several sizes of blocks the one with which the function's convolutions cost least; the first where some of them are depthwise,
    whose channels only take more memory."""
    options = [n for n in sizes if n == sizes[0] or not _is_depthwise_anywhere(function, n)]
    if len(options) == 1:
        return options[0]

    def total(lanes: int) -> float:
        priced = cost(lanes)
        nodes = [node for node in walk_nodes(function.results) if isinstance(node.op, Convolution) and _starts(node, sizes[0])]
        return sum(priced.convolution(node, blocked=_starts(node, lanes)) for node in nodes)

    return min(options, key=total)


def _is_depthwise_anywhere(function: Function, lanes: int) -> bool:
    return any(isinstance(node.op, Convolution) and node.op.groups > 1 and _starts(node, lanes) for node in walk_nodes(function.results))


def _starts(node: Node, lanes: int) -> bool:
    """A convolution that is worth blocking: of floats or bytes, static channels that nearly fill blocks, constant weights, dense or
    depthwise."""
    op = node.op
    if not isinstance(op, Convolution) or not isinstance(node.inputs[1].op, Constant):
        return False
    x, w = (value.type for value in node.inputs)
    floats = op.dtype in FLOATS and x.dtype is op.dtype and w.dtype is op.dtype
    sums = op.dtype in (dtypes.int32, dtypes.float32) and x.dtype in BYTES and w.dtype in (*BYTES, dtypes.int16)
    if not (floats or sums) or not (w.is_static and x.shape[1].is_const):
        return False
    depthwise = op.groups == x.shape[1].value == w.shape[0].value
    if not (depthwise or op.groups == 1):
        return False
    channels = [int(w.shape[0].value)] + ([] if depthwise or w.shape[1].value <= FEW else [int(w.shape[1].value)])
    return all(channels) and math.prod(-(-n // lanes) * lanes / n for n in channels) <= WORTH


def _blocked(state: _Blocker, node: Node) -> Value | None:
    """The blocked form of the node's result, or None where it stays plain."""
    op = node.op
    match op:
        case Convolution() if _starts(node, state.lanes) and (op.groups == 1 or node.inputs[0] in state.blocked):
            return _convolution(state, node, op)
        case Unary() | Binary() | Select() | Cast() | Gelu() | HardSwish() | Softplus():
            return _elementwise(state, node)
        case Pad(mode="constant") if node.inputs[0] in state.blocked and all(is_zero(e) for e in (*op.low[:2], *op.high[:2])):
            wide = replace(op, low=(*op.low, const(0)), high=(*op.high, const(0)))
            return state.g.one(wide, state.blocked[node.inputs[0]], state.plain_form(node.inputs[1]))
        case WindowReduce():
            return _pooled(state, node, op)
        case Reduce():
            return _reduced(state, node, op)
        case Interleave() if node.inputs[0] in state.blocked and state.whole(node.types[0].shape[1]):
            return state.g.one(op, state.blocked[node.inputs[0]])
        case Concat(axis=1) if all(value in state.blocked and state.whole(value.shape[1]) for value in node.inputs):
            return state.g.one(op, *(state.blocked[value] for value in node.inputs))
    return None


def _convolution(state: _Blocker, node: Node, op: Convolution) -> Value:
    x, w = node.inputs
    depthwise = op.groups > 1 and op.groups == w.shape[0].value
    few = not depthwise and x not in state.blocked and x.shape[1].value <= FEW
    sums = op.dtype if w.type.dtype.is_integer else dtypes.float32
    if few and state.cost is not None and (channels := state.cost.window_channels(node)):
        found = row_windows(state.g, op, state.plain_form(x), state.plain_form(w), channels)
        if found is not None:
            return _blocked_convolution(state, found[0], found[1], found[2], sums)
    if few and w.type.dtype.is_integer:
        data = state.g.one(Block(FEW), state.plain_form(x))
    else:
        data = state.plain_form(x) if few else state.blocked_form(x)
    terms = INTEGER_TERMS if w.type.dtype.is_integer else FLOAT_TERMS
    alone = depthwise or data.type.rank == w.type.rank
    inputs = w.shape[1] if alone else const(-(-int(w.shape[1].value) // terms) * terms)
    shape = (w.shape[0], inputs, *w.shape[2:])
    return _blocked_convolution(state, op, data, _padded(state, state.plain_form(w), shape), sums, depthwise)


def _blocked_convolution(state: _Blocker, op: Convolution, data: Value, w: Value, sums: DType, depthwise: bool = False) -> Value:
    """The convolution with its output channels in blocks. w: weights for all channels that `data` has."""
    outputs = -(-int(w.shape[0].value) // state.lanes) * state.lanes
    weights = _padded(state, widen(state.g, w), (const(outputs), *w.shape[1:]))
    blocked = BlockedConvolution(op.strides, op.dilations, op.low, op.high, depthwise, state.lanes, sums)
    return cast(state.g, state.g.one(blocked, widen(state.g, data), weights), op.dtype)


def _padded(state: _Blocker, value: Value, shape: Sequence[Expr]) -> Value:
    high = tuple(want - have for want, have in zip(shape, value.shape, strict=True))
    if all(amount.is_const and amount.value == 0 for amount in high):
        return value
    zero = state.g.one(constant(0, value.type.dtype))
    return state.g.one(Pad((const(0),) * len(high), high, "constant"), value, zero)


def _elementwise(state: _Blocker, node: Node) -> Value | None:
    shape = node.types[0].shape
    if len(shape) < 3 or not any(value in state.blocked and value.shape == shape for value in node.inputs):
        return None
    fn = getattr(node.op, "fn", node.op.name)
    if not state.whole(shape[1]) and fn not in FINITE:
        return None
    if not state.whole(shape[1]) and any(isinstance(v.op, Constant) and not np.all(np.isfinite(v.op.data.array)) for v in node.inputs):
        return None
    operands = [_operand(state, value, shape) for value in node.inputs]
    if any(operand is None for operand in operands):
        return None
    return state.g.one(node.op, *(operand for operand in operands if operand is not None))


def _operand(state: _Blocker, value: Value, shape: tuple[Expr, ...]) -> Value | None:
    """An operand of a blocked elementwise operator: blocked itself, one number, or one number for each channel."""
    rank = len(shape)
    if value in state.blocked and value.type.rank == rank and dims_equal(value.shape[1], shape[1]):
        return state.blocked[value]
    if all(is_one(dim) for dim in value.shape):
        return state.g.one(Reshape(()), state.plain_form(value)) if value.type.rank else state.plain_form(value)
    if value.type.rank == rank and value.shape == shape:
        return state.blocked_form(value)
    channel = value.type.rank - (rank - 1)  # position of the channel axis of a right-aligned operand
    own = channel in (0, 1) and dims_equal(value.shape[channel], shape[1])
    if not own or not all(is_one(dim) for i, dim in enumerate(value.shape) if i != channel):
        return None
    flat = _padded(state, state.g.one(Reshape((value.shape[channel],)), state.plain_form(value)), (_full(state, shape[1]),))
    return state.g.one(Reshape((_full(state, shape[1]) // state.lanes, *(const(1),) * (rank - 2), const(state.lanes))), flat)


def _full(state: _Blocker, channels: Expr) -> Expr:
    return const(-(-int(channels.value) // state.lanes) * state.lanes)


def _pooled(state: _Blocker, node: Node, op: WindowReduce) -> Value | None:
    (x,) = node.inputs
    if x not in state.blocked or len(op.window) != x.type.rank - 2:
        return None
    zero = const(0)
    wide = replace(
        op,
        window=(*op.window, 1),
        strides=(*op.strides, 1),
        dilations=(*op.dilations, 1),
        low=(*op.low, zero),
        high=(*op.high, zero),
    )
    return state.g.one(wide, state.blocked[x])


def _reduced(state: _Blocker, node: Node, op: Reduce) -> Value | None:
    """Reductions over all of space, with the axes kept; the plain result is a reshape away."""
    (x,) = node.inputs
    space = tuple(range(2, x.type.rank))
    if x not in state.blocked or tuple(sorted(op.axes)) != space or not space:
        return None
    kept = state.g.one(replace(op, axes=space, keepdims=True), state.blocked[x])
    if op.keepdims:
        return kept
    shape = (*x.shape[:2], *(const(1) for _ in space))
    state.plain[node[0]] = state.g.one(Reshape(node.types[0].shape), state._unblocked(kept, shape))
    return None
