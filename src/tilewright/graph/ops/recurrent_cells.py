"""One time step of each recurrent layer, and the loop that runs it over a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.graph.node import Array, GraphBuilder, Value
from tilewright.graph.ops.activations import Activation, activation_array, build_activation
from tilewright.graph.ops.compose import binary, cast, reshape, scalar, select
from tilewright.graph.ops.contraction import Contract
from tilewright.graph.ops.control import scan
from tilewright.graph.ops.elementwise import Binary
from tilewright.graph.ops.movement import BroadcastTo, Concat, Slice
from tilewright.graph.ops.quantization import DynamicQuantize
from tilewright.graph.ops.reduction import Reduce
from tilewright.graph.ops.scalars import arithmetic_dtype
from tilewright.graph.ops.source import Iota, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const


@dataclass(frozen=True, slots=True)
class LstmCell:
    hidden: int
    activations: tuple[Activation, ...]
    clip: float | None
    input_forget: bool
    quantized: bool = False  # each product quantizes its float operand as a whole and multiplies integers
    gates = 4
    states = 2


@dataclass(frozen=True, slots=True)
class GruCell:
    hidden: int
    activations: tuple[Activation, ...]
    clip: float | None
    linear_before_reset: bool
    gates = 3
    states = 1


@dataclass(frozen=True, slots=True)
class RnnCell:
    hidden: int
    activations: tuple[Activation, ...]
    clip: float | None
    gates = 1
    states = 1


Cell: TypeAlias = LstmCell | GruCell | RnnCell


# ---- graph


def _part(g: GraphBuilder, x: Value, start: int, length: int) -> Value:
    """x[..., start : start + length]"""
    rank = x.type.rank
    if x.shape[-1] is const(length):
        return x
    starts = (*[const(0)] * (rank - 1), const(start))
    return g.one(Slice(starts, (*x.shape[:-1], const(length)), (1,) * rank), x)


def _direction(g: GraphBuilder, x: Value, index: int) -> Value:
    """x[index]"""
    rank = x.type.rank
    starts = (const(index), *[const(0)] * (rank - 1))
    return reshape(g, g.one(Slice(starts, (const(1), *x.shape[1:]), (1,) * rank), x), x.shape[1:])


def _clipped(g: GraphBuilder, x: Value, clip: float | None) -> Value:
    return x if clip is None else binary(g, "min", binary(g, "max", x, -clip), clip)


def _recur(g: GraphBuilder, h: Value, r: Value) -> Value:
    return g.one(Contract("bh,gh->bg", h.type.dtype), h, r)


def quantized_product(g: GraphBuilder, spec: str, x: Value, w: Value, scale: Value, sums: Value) -> Value:
    """The float product of x, quantized to uint8 over all of it, and integer weights of a scale; `sums` are those of w's rows."""
    q, x_scale, zero = g.emit(DynamicQuantize(), x)
    acc = g.one(Contract(spec, dtypes.int32), q, w)
    acc = g.one(Binary("sub"), acc, g.one(Binary("mul"), cast(g, zero, dtypes.int32), sums))
    return g.one(Binary("mul"), cast(g, acc, x.type.dtype), g.one(Binary("mul"), x_scale, scale))


def _lstm(g: GraphBuilder, cell: LstmCell, gates: Value, states: Sequence[Value], captures: Sequence[Value]) -> list[Value]:
    h, c = states
    size = cell.hidden
    if cell.quantized:
        recurrent, peephole = quantized_product(g, "bh,gh->bg", h, *captures[:3]), captures[3:]
    else:
        recurrent, peephole = _recur(g, h, captures[0]), captures[1:]
    total = g.one(Binary("add"), gates, recurrent)
    i, o, f, cand = (_part(g, total, j * size, size) for j in range(4))
    act_f, act_g, act_h = cell.activations

    def gate(x: Value, weight: int, state: Value) -> Value:
        if peephole:
            x = g.one(Binary("add"), x, g.one(Binary("mul"), peephole[weight], state))
        return build_activation(g, act_f, _clipped(g, x, cell.clip))

    i = gate(i, 0, c)
    f = binary(g, "sub", scalar(g, 1.0, i.type.dtype), i) if cell.input_forget else gate(f, 2, c)
    new = build_activation(g, act_g, _clipped(g, cand, cell.clip))
    c = g.one(Binary("add"), g.one(Binary("mul"), f, c), g.one(Binary("mul"), i, new))
    o = gate(o, 1, c)
    return [g.one(Binary("mul"), o, build_activation(g, act_h, c)), c]


def _gru(g: GraphBuilder, cell: GruCell, gates: Value, states: Sequence[Value], captures: Sequence[Value]) -> list[Value]:
    (h,) = states
    size = cell.hidden
    act_f, act_g = cell.activations
    if cell.linear_before_reset:
        r, *bias = captures
        recurrent = _recur(g, h, r)
        both = g.one(Binary("add"), _part(g, gates, 0, 2 * size), _part(g, recurrent, 0, 2 * size))
        inner = _part(g, recurrent, 2 * size, size)
        inner = g.one(Binary("add"), inner, bias[0]) if bias else inner
    else:
        r, r_hidden = captures
        both = g.one(Binary("add"), _part(g, gates, 0, 2 * size), _recur(g, h, r))
    both = build_activation(g, act_f, _clipped(g, both, cell.clip))
    update, reset = _part(g, both, 0, size), _part(g, both, size, size)
    if cell.linear_before_reset:
        inner = g.one(Binary("mul"), reset, inner)
    else:
        inner = _recur(g, g.one(Binary("mul"), reset, h), r_hidden)
    new = build_activation(g, act_g, _clipped(g, g.one(Binary("add"), _part(g, gates, 2 * size, size), inner), cell.clip))
    # (1 - z) * new + z * h with one product
    return [g.one(Binary("add"), new, g.one(Binary("mul"), update, g.one(Binary("sub"), h, new)))]


def _rnn(g: GraphBuilder, cell: RnnCell, gates: Value, states: Sequence[Value], captures: Sequence[Value]) -> list[Value]:
    total = g.one(Binary("add"), gates, _recur(g, states[0], captures[0]))
    return [build_activation(g, cell.activations[0], _clipped(g, total, cell.clip))]


def _step(g: GraphBuilder, cell: Cell, gates: Value, states: Sequence[Value], captures: Sequence[Value]) -> list[Value]:
    match cell:
        case LstmCell():
            return _lstm(g, cell, gates, states, captures)
        case GruCell():
            return _gru(g, cell, gates, states, captures)
        case RnnCell():
            return _rnn(g, cell, gates, states, captures)


def _prepared(g: GraphBuilder, cell: Cell, operands: dict[str, Value], index: int) -> tuple[Value, list[Value]]:
    """The gates' share of the input [T, B, G*H] with every bias that can be added ahead, and the captures of a step."""
    size, width = cell.hidden, cell.gates * cell.hidden
    x, w, r = operands["x"], _direction(g, operands["w"], index), _direction(g, operands["r"], index)
    if isinstance(cell, LstmCell) and cell.quantized:
        scales = [_direction(g, operands[label], index) for label in ("w_scale", "r_scale")]
        sums = [g.one(Reduce("sum", (1,), False), cast(g, weights, dtypes.int32)) for weights in (w, r)]
        gates = quantized_product(g, "tbi,gi->tbg", x, w, scales[0], sums[0])
        captures = [r, scales[1], sums[1]]
    else:
        gates = g.one(Contract("tbi,gi->tbg", x.type.dtype), x, w)
        captures = [r]
    before_reset = isinstance(cell, GruCell) and not cell.linear_before_reset
    if before_reset:
        rows = [g.one(Slice((const(a), const(0)), (const(n), const(size)), (1, 1)), r) for a, n in ((0, 2 * size), (2 * size, size))]
        captures = rows
    if "bias" in operands:
        bias = _direction(g, operands["bias"], index)
        own, recurrent = _part(g, bias, 0, width), _part(g, bias, width, width)
        if isinstance(cell, GruCell) and cell.linear_before_reset:
            captures.append(_part(g, recurrent, 2 * size, size))
            zero = g.one(constant(np.zeros(size, x.type.dtype.numpy)))
            recurrent = g.one(Concat(0), _part(g, recurrent, 0, 2 * size), zero)
        gates = g.one(Binary("add"), gates, g.one(Binary("add"), own, recurrent))
    if "peephole" in operands:
        peephole = _direction(g, operands["peephole"], index)
        captures += [_part(g, peephole, j * size, size) for j in range(3)]
    return gates, captures


def decompose_layer(
    g: GraphBuilder, name: str, cells: Sequence[Cell], direction: str, given: tuple[str, ...], inputs: tuple[Value, ...]
) -> tuple[Value, ...]:
    """(y, *final states) of a layer with one cell for each direction."""
    dtype = inputs[0].type.dtype
    wide = arithmetic_dtype(dtype)
    named = zip(("x", "w", "r", *given), inputs, strict=True)
    operands = {k: cast(g, v, wide) if v.type.dtype.is_float else v for k, v in named}
    time, batch, _ = operands["x"].shape
    mask = _mask(g, operands["lengths"], time) if "lengths" in operands else None
    ys: list[Value] = []
    finals: list[list[Value]] = []
    for index, cell in enumerate(cells):
        gates, captures = _prepared(g, cell, operands, index)
        states = []
        for label in ("initial_h", "initial_c")[: cell.states]:
            if label in operands:
                states.append(_direction(g, operands[label], index))
            else:
                states.append(g.one(BroadcastTo((batch, const(cell.hidden))), scalar(g, 0.0, wide)))

        def body(
            g: GraphBuilder, carried: Sequence[Value], items: Sequence[Value], captured: Sequence[Value], cell: Cell = cell
        ) -> tuple[Sequence[Value], Sequence[Value]]:
            after = _step(g, cell, items[0], carried, captured)
            if mask is None:
                return after, [after[0]]
            kept = [select(g, items[1], new, old) for new, old in zip(after, carried, strict=True)]
            return kept, [select(g, items[1], after[0], scalar(g, 0.0, wide))]

        sequences = [gates] if mask is None else [gates, mask]
        last, (y,) = scan(g, f"{name}_step", time, states, sequences, captures, body, reverse=direction == "reverse" or index == 1)
        ys.append(reshape(g, y, (time, const(1), *y.shape[1:])))
        finals.append([reshape(g, value, (const(1), *value.shape)) for value in last])
    joined = [_joined(g, ys, 1), *(_joined(g, list(column), 0) for column in zip(*finals, strict=True))]
    return tuple(cast(g, value, dtype) for value in joined)


def _joined(g: GraphBuilder, parts: list[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else g.one(Concat(axis), *parts)


def _mask(g: GraphBuilder, lengths: Value, time: Any) -> Value:
    """bool [T, B, 1]: which steps are inside of each sequence."""
    step = reshape(g, g.one(Iota(time, dtypes.int32)), (time, const(1), const(1)))
    return g.one(Binary("less"), step, reshape(g, lengths, (lengths.shape[0], const(1))))


# ---- NumPy

Step: TypeAlias = Callable[[Any, Array, list[Array], dict[str, Array]], list[Array]]


def _bounded(x: Array, clip: float | None) -> Array:
    return x if clip is None else np.clip(x, -clip, clip)


def lstm_step(cell: LstmCell, x: Array, states: list[Array], p: dict[str, Array]) -> list[Array]:
    h, c = states
    i, o, f, cand = np.split(x @ p["w"].T + h @ p["r"].T + p["wb"] + p["rb"], 4, axis=-1)
    pi, po, pf = np.split(p["peephole"], 3)
    act_f, act_g, act_h = cell.activations
    i = activation_array(act_f, _bounded(i + pi * c, cell.clip))
    f = 1 - i if cell.input_forget else activation_array(act_f, _bounded(f + pf * c, cell.clip))
    c = f * c + i * activation_array(act_g, _bounded(cand, cell.clip))
    o = activation_array(act_f, _bounded(o + po * c, cell.clip))
    return [o * activation_array(act_h, c), c]


def gru_step(cell: GruCell, x: Array, states: list[Array], p: dict[str, Array]) -> list[Array]:
    (h,) = states
    n = cell.hidden
    own = x @ p["w"].T + p["wb"]
    act_f, act_g = cell.activations
    both = activation_array(act_f, _bounded(own[:, : 2 * n] + h @ p["r"][: 2 * n].T + p["rb"][: 2 * n], cell.clip))
    update, reset = both[:, :n], both[:, n:]
    r, bias = p["r"][2 * n :].T, p["rb"][2 * n :]
    inner = reset * (h @ r + bias) if cell.linear_before_reset else (reset * h) @ r + bias
    new = activation_array(act_g, _bounded(own[:, 2 * n :] + inner, cell.clip))
    return [(1 - update) * new + update * h]


def rnn_step(cell: RnnCell, x: Array, states: list[Array], p: dict[str, Array]) -> list[Array]:
    total = x @ p["w"].T + states[0] @ p["r"].T + p["wb"] + p["rb"]
    return [activation_array(cell.activations[0], _bounded(total, cell.clip))]


def reference_layer(
    cells: Sequence[Cell], step: Step, direction: str, given: tuple[str, ...], inputs: tuple[Array, ...]
) -> tuple[Array, ...]:
    """(y, *final states), sequence by sequence, in float64."""
    operands = dict(zip(("x", "w", "r", *given), inputs, strict=True))
    x = operands["x"].astype(np.float64)
    time, batch, _ = x.shape
    lengths = operands.get("lengths", np.full(batch, time))
    y = np.zeros((time, len(cells), batch, cells[0].hidden))
    finals = np.zeros((cells[0].states, len(cells), batch, cells[0].hidden))
    for d, cell in enumerate(cells):
        width = cell.gates * cell.hidden
        bias = operands.get("bias", np.zeros((len(cells), 2 * width)))[d].astype(np.float64)
        peephole = operands.get("peephole", np.zeros((len(cells), 3 * cell.hidden)))[d].astype(np.float64)
        params = {"w": operands["w"][d].astype(np.float64), "r": operands["r"][d].astype(np.float64)}
        params |= {"wb": bias[:width], "rb": bias[width:], "peephole": peephole}
        for label, final in zip(("initial_h", "initial_c"), finals):
            final[d] = operands[label][d] if label in operands else 0
        for b in range(batch):
            states = [final[d, b : b + 1] for final in finals]
            steps = range(int(lengths[b]))
            for t in reversed(steps) if direction == "reverse" or d == 1 else steps:
                states = step(cell, x[t, b : b + 1], states, params)
                y[t, d, b] = states[0][0]
            for final, state in zip(finals, states, strict=True):
                final[d, b] = state[0]
    return tuple(result.astype(inputs[0].dtype) for result in (y, *finals))
