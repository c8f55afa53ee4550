"""BERT encoder with pooler (Devlin et al. 2018): post-norm blocks, Erf GELU, masked attention, symbolic batch and sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto

from tilewright.runtime.examples import Example
from tilewright.zoo.builder import Dim, GraphBuilder, Value, require
from tilewright.zoo.layers import MASKED, NormStyle, gelu_erf, gemm, layer_norm, linear, merge_heads, split_heads

EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class BertOptions:
    batch: Dim = field(default="batch", metadata={"doc": "sequences per call, or a name for a size given at run time"})
    sequence: Dim = field(default="sequence", metadata={"doc": "tokens per sequence, or a name"})
    layers: int = field(default=12, metadata={"doc": "encoder blocks"})
    hidden: int = field(default=768, metadata={"doc": "columns of a token's vector"})
    heads: int = field(default=12, metadata={"doc": "attention heads; divides hidden"})
    intermediate: int = field(default=3072, metadata={"doc": "columns between a block's two last matrices"})
    vocab: int = field(default=30522, metadata={"doc": "tokens of the vocabulary"})
    max_positions: int = field(default=512, metadata={"doc": "longest sequence"})
    layer_norm: NormStyle = field(default="decomposed", metadata={"doc": "op: one LayerNormalization node; decomposed: its parts"})


def bert(options: BertOptions, seed: int = 0) -> onnx.ModelProto:
    """An encoder of token sequences.

    input_ids, attention_mask, token_type_ids [batch, sequence] int64
    -> last_hidden_state [batch, sequence, hidden], pooler_output [batch, hidden], float32.
    """
    require(options.hidden % options.heads == 0, f"bert: heads={options.heads} does not divide hidden={options.hidden}")
    b = GraphBuilder("bert", seed)
    tokens: list[Dim] = [options.batch, options.sequence]
    ids = b.input("input_ids", tokens, TensorProto.INT64, Example("integers", options.vocab))
    mask = b.input("attention_mask", tokens, TensorProto.INT64, Example("prefix_mask"))
    types = b.input("token_type_ids", tokens, TensorProto.INT64, Example("integers", 2))
    bias = mask_bias(b, mask)
    with b.scope("embeddings"):
        x = embeddings(b, ids, types, options)
    for index in range(options.layers):
        with b.scope("encoder", "layer", index):
            x = encoder_layer(b, x, bias, options)
    with b.scope("pooler", "dense"):
        first = b.op("Gather", x, b.int_scalar(0), axis=1)
        pooled = b.op("Tanh", gemm(b, first, options.hidden, options.hidden))
    b.output("last_hidden_state", x, [*tokens, options.hidden])
    b.output("pooler_output", pooled, [options.batch, options.hidden])
    return b.model("BERT encoder with random weights")


def mask_bias(b: GraphBuilder, mask: Value) -> Value:
    """[batch, sequence] of ones and zeros -> [batch, 1, 1, sequence] of zeros and very low numbers, to be added to attention scores."""
    with b.scope("mask"):
        wide = b.op("Unsqueeze", b.op("Unsqueeze", mask, b.ints(1)), b.ints(2))
        return b.op("Mul", b.op("Sub", b.scalar(1.0), b.op("Cast", wide, to=TensorProto.FLOAT)), b.scalar(MASKED))


def embeddings(b: GraphBuilder, ids: Value, types: Value, options: BertOptions) -> Value:
    """Sum of the word's, the segment's and the position's vector, normalised."""
    with b.scope("word_embeddings"):
        words = b.op("Gather", b.normal("weight", [options.vocab, options.hidden], 1.0), ids, axis=0)
    with b.scope("token_type_embeddings"):
        segments = b.op("Gather", b.normal("weight", [2, options.hidden], 0.5), types, axis=0)
    with b.scope("position_embeddings"):
        table = b.normal("weight", [options.max_positions, options.hidden], 0.5)
        end = b.op("Unsqueeze", b.size(ids, 1, options.sequence), b.ints(0))
        positions = b.op("Slice", table, b.ints(0), end, b.ints(0))
    x = b.op("Add", b.op("Add", words, segments), positions)
    with b.scope("LayerNorm"):
        return layer_norm(b, x, options.hidden, options.layer_norm, EPSILON)


def encoder_layer(b: GraphBuilder, x: Value, bias: Value, options: BertOptions) -> Value:
    """Attention and feed-forward, each followed by a residual sum and a normalisation."""
    with b.scope("attention"):
        context = self_attention(b, x, bias, options)
        with b.scope("output", "dense"):
            projected = linear(b, context, options.hidden, options.hidden)
        with b.scope("output", "LayerNorm"):
            x = layer_norm(b, b.op("Add", projected, x), options.hidden, options.layer_norm, EPSILON)
    with b.scope("intermediate", "dense"):
        widened = gelu_erf(b, linear(b, x, options.hidden, options.intermediate))
    with b.scope("output", "dense"):
        narrowed = linear(b, widened, options.intermediate, options.hidden)
    with b.scope("output", "LayerNorm"):
        return layer_norm(b, b.op("Add", narrowed, x), options.hidden, options.layer_norm, EPSILON)


def self_attention(b: GraphBuilder, x: Value, bias: Value, options: BertOptions) -> Value:
    """softmax(Q K^T / sqrt(head size) + bias) V over the heads, laid side by side again."""
    head_size = options.hidden // options.heads

    def head(name: str, perm: tuple[int, ...]) -> Value:
        with b.scope("self", name):
            projected = linear(b, x, options.hidden, options.hidden)
            return split_heads(b, projected, options.batch, options.sequence, options.heads, head_size, perm)

    query, key_transposed, value = head("query", (0, 2, 1, 3)), head("key", (0, 2, 3, 1)), head("value", (0, 2, 1, 3))
    with b.scope("self"):
        scores = b.op("Div", b.op("MatMul", query, key_transposed), b.scalar(math.sqrt(head_size)))
        weights = b.op("Softmax", b.op("Add", scores, bias), axis=-1)
        return merge_heads(b, b.op("MatMul", weights, value), options.batch, options.sequence, options.hidden)
