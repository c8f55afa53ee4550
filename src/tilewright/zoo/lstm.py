"""A recurrent language model: embedding, stacked LSTMs, projection to the vocabulary (Zaremba et al. 2014, the medium size by default)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto

from tilewright.runtime.examples import Example
from tilewright.zoo.builder import Dim, GraphBuilder, Value
from tilewright.zoo.layers import linear

GATES = 4


@dataclass(frozen=True, slots=True)
class LstmOptions:
    batch: Dim = field(default=1, metadata={"doc": "sequences per call, or a name for a size given at run time"})
    sequence: Dim = field(default=35, metadata={"doc": "tokens per sequence, or a name"})
    layers: int = field(default=2, metadata={"doc": "LSTM layers"})
    hidden: int = field(default=650, metadata={"doc": "columns of the embedding and of each layer's state"})
    vocab: int = field(default=10000, metadata={"doc": "tokens of the vocabulary"})


def lstm_lm(options: LstmOptions, seed: int = 0) -> onnx.ModelProto:
    """A step of a language model that carries its state.

    input_ids [batch, sequence] int64, h0 and c0 [layers, batch, hidden] float32
    -> logits [batch, sequence, vocab], hn and cn [layers, batch, hidden], float32.
    """
    b = GraphBuilder("lstm_lm", seed)
    state_shape: list[Dim] = [options.layers, options.batch, options.hidden]
    ids = b.input("input_ids", [options.batch, options.sequence], TensorProto.INT64, Example("integers", options.vocab))
    h0, c0 = b.input("h0", state_shape), b.input("c0", state_shape)
    with b.scope("embedding"):
        x = b.op("Gather", b.normal("weight", [options.vocab, options.hidden], 1.0), ids, axis=0)
    x = b.op("Transpose", x, perm=[1, 0, 2])
    hidden_states, cell_states = [], []
    for layer in range(options.layers):
        with b.scope(f"lstm{layer}"):
            x, hidden, cell = lstm_layer(b, x, layer_state(b, h0, layer), layer_state(b, c0, layer), options.hidden)
        hidden_states.append(hidden)
        cell_states.append(cell)
    x = b.op("Transpose", x, perm=[1, 0, 2])
    with b.scope("decoder"):
        # An LSTM's output stays well inside (-1, 1); the gain brings logits back to order one.
        logits = linear(b, x, options.hidden, options.vocab, gain=4.0)
    b.output("logits", logits, [options.batch, options.sequence, options.vocab])
    b.output("hn", b.op("Concat", *hidden_states, axis=0), state_shape)
    b.output("cn", b.op("Concat", *cell_states, axis=0), state_shape)
    return b.model("LSTM language model with random weights")


def layer_state(b: GraphBuilder, state: Value, layer: int) -> Value:
    """[layers, batch, hidden] -> [1, batch, hidden]."""
    return b.op("Slice", state, b.ints(layer), b.ints(layer + 1), b.ints(0))


def lstm_layer(b: GraphBuilder, x: Value, hidden: Value, cell: Value, width: int) -> tuple[Value, Value, Value]:
    """One forward LSTM over [sequence, batch, width]; returns the outputs and the last hidden and cell states."""
    std = width**-0.5
    # Biases of input and recurrence, gates in the order input, output, forget, cell; a forget bias of one, as trained networks have.
    bias = b.random("bias").normal(0.0, 0.05, (1, 2 * GATES * width)).astype(np.float32)
    bias[:, 2 * width : 3 * width] += 1.0
    y, last_hidden, last_cell = b.op_many(
        "LSTM",
        [
            x,
            b.normal("weight_ih", [1, GATES * width, width], 1.5 * std),
            b.normal("weight_hh", [1, GATES * width, width], std),
            b.array("bias", bias),
            "",
            hidden,
            cell,
        ],
        3,
        hidden_size=width,
    )
    return b.op("Squeeze", y, b.ints(1)), last_hidden, last_cell
