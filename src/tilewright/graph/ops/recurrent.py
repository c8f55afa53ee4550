"""Recurrent layers over whole sequences: LSTM, GRU and the simple RNN, with the meaning they have in ONNX.

Shapes: x [T, B, I]; w [D, G*H, I]; r [D, G*H, H] with D directions and G gates; results y [T, D, B, H] and final states [D, B, H].
Further operands are those named in the field `given`, in that order:

    bias [D, 2*G*H]  lengths int32 [B]  initial_h [D, B, H]  initial_c [D, B, H]  peephole [D, 3*H]

The decomposition multiplies the whole sequence by w at once; only the recurrence runs in a loop. Half floats compute in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.node import Array, GraphBuilder, Operator, Value
from tilewright.graph.ops.activations import ACTIVATIONS, Activation
from tilewright.graph.ops.recurrent_cells import (
    Cell,
    GruCell,
    LstmCell,
    RnnCell,
    decompose_layer,
    gru_step,
    lstm_step,
    reference_layer,
    rnn_step,
)
from tilewright.graph.shapes import dims_equal, format_shape
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import TensorType
from tilewright.support.errors import TypeRuleError

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
_OPTIONAL = ("bias", "lengths", "initial_h", "initial_c", "peephole", "w_scale", "r_scale")


def _infer(
    name: str,
    gates: int,
    hidden: int,
    direction: str,
    activations: int,
    per_direction: int,
    given: tuple[str, ...],
    inputs: Sequence[TensorType],
    quantized: bool = False,
) -> tuple[TensorType, TensorType]:
    """The types of y and the final state, after checking the operands."""
    if direction not in DIRECTIONS:
        raise TypeRuleError(f"{name}: there is no direction {direction!r}", why=f"it is one of {', '.join(DIRECTIONS)}")
    directions = DIRECTIONS[direction]
    if activations != directions * per_direction:
        raise TypeRuleError(f"{name} takes {directions * per_direction} activations, not {activations}")
    if len(inputs) != 3 + len(given) or any(item not in _OPTIONAL for item in given):
        raise TypeRuleError(f"{name} takes x, w, r and {', '.join(given) or 'nothing else'}, {len(inputs)} values are passed")
    x = inputs[0]
    if x.rank != 3:
        raise TypeRuleError(f"{name}: x is {format_shape(x.shape)}", why="it must be [time, batch, features]")
    batch = x.shape[1]
    d, h = const(directions), const(hidden)
    wanted = {
        "w": (d, const(gates * hidden), x.shape[2]),
        "r": (d, const(gates * hidden), h),
        "bias": (d, const(2 * gates * hidden)),
        "lengths": (batch,),
        "initial_h": (d, batch, h),
        "initial_c": (d, batch, h),
        "peephole": (d, const(3 * hidden)),
        "w_scale": (d, const(1)),
        "r_scale": (d, const(1)),
    }
    for label, type_ in zip(("w", "r", *given), inputs[1:], strict=True):
        shape = wanted[label]
        if label in ("w_scale", "r_scale") and type_.rank == 2 and type_.shape[1] is not const(1):
            shape = (d, const(gates * hidden))
        if type_.rank != len(shape) or not all(dims_equal(a, b) for a, b in zip(type_.shape, shape)):
            raise TypeRuleError(f"{name}: {label} is {format_shape(type_.shape)}", why=f"it must be {format_shape(shape)}")
        fits = type_.dtype is (dtypes.int32 if label == "lengths" else x.dtype)
        if not (type_.dtype.is_integer if quantized and label in ("w", "r") else fits):
            raise TypeRuleError(f"{name}: {label} is {type_.dtype}, x is {x.dtype}")
    if not x.dtype.is_float or (quantized and x.dtype is not dtypes.float32):
        raise TypeRuleError(f"{name} is not defined for {x.dtype}", why="it takes floats")
    return TensorType(x.dtype, (x.shape[0], d, batch, h)), TensorType(x.dtype, (d, batch, h))


@dataclass(frozen=True, slots=True, eq=False)
class Lstm(Operator):
    """(x, w, r, *given) -> (y, final h, final c). Gates in the order input, output, forget, cell; `activations` are (f, g, h) for each
    direction; `clip` bounds what enters them; `input_forget` couples the gates: forget = 1 - input."""

    name: ClassVar[str] = "lstm"
    hidden: int
    direction: str
    activations: tuple[Activation, ...]
    clip: float | None = None
    input_forget: bool = False
    given: tuple[str, ...] = ()

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        y, state = _infer("lstm", 4, self.hidden, self.direction, len(self.activations), 3, self.given, inputs)
        return (y, state, state)

    def _cells(self) -> list[Cell]:
        picked = [self.activations[i : i + 3] for i in range(0, len(self.activations), 3)]
        return [LstmCell(self.hidden, acts, self.clip, self.input_forget) for acts in picked]

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return reference_layer(self._cells(), lstm_step, self.direction, self.given, inputs)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return decompose_layer(g, "lstm", self._cells(), self.direction, self.given, inputs)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedLstm(Operator):
    """An Lstm on float32 whose w and r are integers with the scales `w_scale` and `r_scale` [D, 1] or [D, 4*H] (zero point 0), both in
    `given`. x as a whole and, in each step, h are quantized to uint8 by their range, and the products are those of integers."""

    name: ClassVar[str] = "quantized_lstm"
    hidden: int
    direction: str
    activations: tuple[Activation, ...]
    clip: float | None = None
    input_forget: bool = False
    given: tuple[str, ...] = ("w_scale", "r_scale")

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        if not {"w_scale", "r_scale"} <= set(self.given):
            raise TypeRuleError("quantized_lstm lacks the scales of its weights")
        y, state = _infer(self.name, 4, self.hidden, self.direction, len(self.activations), 3, self.given, inputs, True)
        return (y, state, state)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        picked = [self.activations[i : i + 3] for i in range(0, len(self.activations), 3)]
        cells = [LstmCell(self.hidden, acts, self.clip, self.input_forget, True) for acts in picked]
        return decompose_layer(g, "lstm", cells, self.direction, self.given, inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Gru(Operator):
    """(x, w, r, *given) -> (y, final h). Gates in the order update, reset, hidden; `activations` are (f, g) for each direction;
    `linear_before_reset` applies the reset gate after the recurrent product instead of before."""

    name: ClassVar[str] = "gru"
    hidden: int
    direction: str
    activations: tuple[Activation, ...]
    clip: float | None = None
    linear_before_reset: bool = False
    given: tuple[str, ...] = ()

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return _infer("gru", 3, self.hidden, self.direction, len(self.activations), 2, self.given, inputs)

    def _cells(self) -> list[Cell]:
        picked = [self.activations[i : i + 2] for i in range(0, len(self.activations), 2)]
        return [GruCell(self.hidden, acts, self.clip, self.linear_before_reset) for acts in picked]

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return reference_layer(self._cells(), gru_step, self.direction, self.given, inputs)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return decompose_layer(g, "gru", self._cells(), self.direction, self.given, inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Rnn(Operator):
    """(x, w, r, *given) -> (y, final h) with h = f(x w + h r + bias); one activation for each direction."""

    name: ClassVar[str] = "rnn"
    hidden: int
    direction: str
    activations: tuple[Activation, ...]
    clip: float | None = None
    given: tuple[str, ...] = ()

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return _infer("rnn", 1, self.hidden, self.direction, len(self.activations), 1, self.given, inputs)

    def _cells(self) -> list[Cell]:
        return [RnnCell(self.hidden, (activation,), self.clip) for activation in self.activations]

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return reference_layer(self._cells(), rnn_step, self.direction, self.given, inputs)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return decompose_layer(g, "rnn", self._cells(), self.direction, self.given, inputs)


def activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """An activation by its ONNX name (any case), with the defaults of its parameters. Raises TypeRuleError for an unknown one."""
    rule = ACTIVATIONS.get(name.lower())
    if rule is None:
        raise TypeRuleError(f"there is no recurrent activation {name!r}", why=f"they are {', '.join(ACTIVATIONS)}")
    return (name.lower(), rule.alpha if alpha is None else alpha, rule.beta if beta is None else beta)
