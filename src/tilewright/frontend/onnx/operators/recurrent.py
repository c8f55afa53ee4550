"""Importers of recurrent layers: LSTM, GRU, RNN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Gru, Lstm, Rnn, activation
from tilewright.graph.ops.activations import Activation
from tilewright.graph.ops.recurrent import DIRECTIONS
from tilewright.ir import dtypes
from tilewright.ir.types import Shape
from tilewright.support.errors import ModelError

_WITH_ALPHA = frozenset({"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"})
_WITH_BETA = frozenset({"affine", "scaledtanh", "hardsigmoid"})


def activations(ctx: NodeContext, default: Sequence[str], directions: int) -> tuple[Activation, ...]:
    """The activations of every direction; alphas and betas go in order to those that have such a parameter."""
    names = ctx.attribute("activations") or [*default] * directions
    alphas, betas = list(ctx.attribute("activation_alpha") or []), list(ctx.attribute("activation_beta") or [])
    chosen = []
    for name in names:
        alpha = alphas.pop(0) if name.lower() in _WITH_ALPHA and alphas else None
        beta = betas.pop(0) if name.lower() in _WITH_BETA and betas else None
        chosen.append(activation(name, alpha, beta))
    return tuple(chosen)


def operands(ctx: NodeContext, names: Sequence[str], gates: int) -> tuple[tuple[str, ...], list[Value]]:
    """(names given, [x, w, r, *given]) with time first; `names` are the inputs after r. Lengths that are all full are dropped, and open
    dims asserted to be what directions, `gates` and hidden size make them."""
    x = ctx.input(0)
    for index, rank in ((0, 3), (1, 3), (2, 3)):
        if ctx.input(index).type.rank != rank:
            raise ModelError(f"{ctx.op_type}: input {index} is {ctx.input(index).type!r}", where=ctx.where, why=f"it must have {rank} axes")
    batch_first = bool(ctx.attribute("layout", 0))
    x = ctx.transpose(x, (1, 0, 2)) if batch_first else x
    given = []
    time, batch, features = x.shape
    for position, name in enumerate(names, 3):
        state = ctx.optional(position)
        if state is not None and name in ("lengths", "initial_h", "initial_c") and not batch.is_const:
            batch = ctx.dim(state, 0 if batch_first or name == "lengths" else 1)  # one batch size asserts that of the input
    if not features.is_const and ctx.input(1).shape[2].is_const:
        features = ctx.input(1).shape[2]  # and so do the weights that of its features
    x = ctx.refine(x, (time, batch, features))
    ways, hidden = DIRECTIONS[direction(ctx)], hidden_size(ctx)
    found = [x, ctx.refine(ctx.input(1), (ways, gates * hidden, x.shape[2])), ctx.refine(ctx.input(2), (ways, gates * hidden, hidden))]
    widths = {"bias": 2 * gates * hidden, "peephole": 3 * hidden}
    for position, name in enumerate(names, 3):
        value = ctx.optional(position)
        if value is None:
            continue
        if name == "lengths":
            known = ctx.constant_of(position)
            if known is not None and time.is_const and np.all(known == time.value):
                continue
            value = ctx.refine(ctx.cast(value, dtypes.int32), (batch,))
        if name in ("initial_h", "initial_c"):
            value = ctx.transpose(value, (1, 0, 2)) if batch_first else value
            value = ctx.refine(value, (ways, batch, hidden))
        if name in widths:
            value = ctx.refine(value, (ways, widths[name]))
        given.append(name)
        found.append(value)
    return tuple(given), found


def hidden_size(ctx: NodeContext) -> int:
    """The size of the state: that of the recurrence weights, or the attribute where these are open."""
    r: Shape = ctx.input(2).shape
    if ctx.attribute("hidden_size") is not None and not r[-1].is_const:
        return int(ctx.attribute("hidden_size"))
    if len(r) != 3 or not r[2].is_const:
        raise ModelError(f"{ctx.op_type}: the recurrence weights are {ctx.input(2).type!r}", where=ctx.where)
    return int(r[2].value)


def direction(ctx: NodeContext) -> str:
    chosen: str = ctx.attribute("direction", "forward")
    if chosen not in DIRECTIONS:
        raise ModelError(f"{ctx.op_type} has the direction '{chosen}'", where=ctx.where, why=f"it is one of {', '.join(DIRECTIONS)}")
    return chosen


def laid_out(ctx: NodeContext, results: Sequence[Value]) -> list[Value]:
    """The results with the batch first where the model wants that: y [B, T, D, H], states [B, D, H]."""
    if not ctx.attribute("layout", 0):
        return list(results)
    y, *states = results
    return [ctx.transpose(y, (2, 0, 1, 3)), *(ctx.transpose(state, (1, 0, 2)) for state in states)]


def lstm(ctx: NodeContext) -> list[Value]:
    way = direction(ctx)
    given, values = operands(ctx, ("bias", "lengths", "initial_h", "initial_c", "peephole"), 4)
    chosen = activations(ctx, ("Sigmoid", "Tanh", "Tanh"), DIRECTIONS[way])
    op = Lstm(hidden_size(ctx), way, chosen, ctx.attribute("clip"), bool(ctx.attribute("input_forget", 0)), given)
    return laid_out(ctx, ctx.emit(op, *values))


def gru(ctx: NodeContext) -> list[Value]:
    way = direction(ctx)
    given, values = operands(ctx, ("bias", "lengths", "initial_h"), 3)
    chosen = activations(ctx, ("Sigmoid", "Tanh"), DIRECTIONS[way])
    op = Gru(hidden_size(ctx), way, chosen, ctx.attribute("clip"), bool(ctx.attribute("linear_before_reset", 0)), given)
    return laid_out(ctx, ctx.emit(op, *values))


def rnn(ctx: NodeContext) -> list[Value]:
    way = direction(ctx)
    given, values = operands(ctx, ("bias", "lengths", "initial_h"), 1)
    op = Rnn(hidden_size(ctx), way, activations(ctx, ("Tanh",), DIRECTIONS[way]), ctx.attribute("clip"), given)
    return laid_out(ctx, ctx.emit(op, *values))


IMPORTERS: Table = {
    ("", "GRU"): gru,
    ("", "LSTM"): lstm,
    ("", "RNN"): rnn,
}
