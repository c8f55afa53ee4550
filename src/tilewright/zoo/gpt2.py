"""GPT-2 (Radford et al. 2019): pre-norm decoder blocks, tanh GELU, tied embeddings; one graph reads a prompt or continues from a KV cache.

With one seed and one set of sizes the graphs with and without a cache have equal weights, so a prompt can be read by one and continued by
the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto

from tilewright.runtime.examples import Example
from tilewright.zoo.builder import Dim, GraphBuilder, Value, require, sum_dims
from tilewright.zoo.layers import MASKED, NormStyle, gelu_tanh, layer_norm, merge_heads, sized, split_heads

EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Gpt2Options:
    batch: Dim = field(default=1, metadata={"doc": "sequences per call, or a name for a size given at run time"})
    sequence: Dim = field(default="sequence", metadata={"doc": "new tokens per call, or a name"})
    past: Dim = field(default=0, metadata={"doc": "tokens in the cache, or a name; 0 builds a graph without cache inputs"})
    layers: int = field(default=12, metadata={"doc": "decoder blocks"})
    hidden: int = field(default=768, metadata={"doc": "columns of a token's vector"})
    heads: int = field(default=12, metadata={"doc": "attention heads; divides hidden"})
    vocab: int = field(default=50257, metadata={"doc": "tokens of the vocabulary"})
    ctx: int = field(default=1024, metadata={"doc": "most tokens that the model can look back on"})
    layer_norm: NormStyle = field(default="op", metadata={"doc": "op: one LayerNormalization node; decomposed: its parts"})


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of one block, [batch, heads, tokens, head size] each."""

    key: Value
    value: Value


def gpt2(options: Gpt2Options, seed: int = 0) -> onnx.ModelProto:
    """Logits of the next token at each new position, and the cache for the next call.

    input_ids [batch, sequence] int64, past.N.key and past.N.value [batch, heads, past, hidden / heads] float32
    -> logits [batch, sequence, vocab], present.N.key and present.N.value [batch, heads, past + sequence, hidden / heads], float32.
    """
    require(options.hidden % options.heads == 0, f"gpt2: heads={options.heads} does not divide hidden={options.hidden}")
    known = sum(dim for dim in (options.past, options.sequence) if isinstance(dim, int))
    require(known <= options.ctx, f"gpt2: past + sequence = {known} tokens are more than ctx={options.ctx}")
    b = GraphBuilder("gpt2", seed)
    head_size = options.hidden // options.heads
    ids = b.input("input_ids", [options.batch, options.sequence], TensorProto.INT64, Example("integers", options.vocab))
    cache_shape: list[Dim] = [options.batch, options.heads, options.past, head_size]
    past: list[Cache | None] = [None] * options.layers
    if options.past != 0:
        past = [Cache(b.input(f"past.{n}.key", cache_shape), b.input(f"past.{n}.value", cache_shape)) for n in range(options.layers)]
    past_size = b.size(past[0].key, 2, options.past) if past and past[0] is not None else b.int_scalar(0)
    total = sum_dims(options.past, options.sequence) if options.past != 0 else options.sequence

    with b.scope("transformer"):
        x, table, positions, keys = embeddings(b, ids, past_size, options)
        bias = causal_bias(b, positions, keys)
        present = []
        for index in range(options.layers):
            with b.scope("h", index):
                x, cache = decoder_block(b, x, bias, past[index], options)
            present.append(cache)
        with b.scope("ln_f"):
            x = layer_norm(b, x, options.hidden, options.layer_norm, EPSILON)
    with b.scope("lm_head"):
        logits = b.op("MatMul", x, b.op("Transpose", table, perm=[1, 0]))
    b.output("logits", logits, [options.batch, options.sequence, options.vocab])
    for index, cache in enumerate(present):
        for name, value in (("key", cache.key), ("value", cache.value)):
            b.output(f"present.{index}.{name}", value, [options.batch, options.heads, total, head_size])
    return b.model("GPT-2 with random weights")


def embeddings(b: GraphBuilder, ids: Value, past_size: Value, options: Gpt2Options) -> tuple[Value, Value, Value, Value]:
    """Token plus position vectors; also the token table, the positions of the new tokens and those of all tokens (int64 vectors)."""
    end = b.op("Add", past_size, b.size(ids, 1, options.sequence))
    positions = b.op("Range", past_size, end, b.int_scalar(1))
    keys = b.op("Range", b.int_scalar(0), end, b.int_scalar(1))
    # The table is also the last matrix: this scale makes logits of order one at any width.
    with b.scope("wte"):
        table = b.normal("weight", [options.vocab, options.hidden], options.hidden**-0.5)
        tokens = b.op("Gather", table, ids, axis=0)
    with b.scope("wpe"):
        places = b.op("Gather", b.normal("weight", [options.ctx, options.hidden], 0.5 * options.hidden**-0.5), positions, axis=0)
    return b.op("Add", tokens, places), table, positions, keys


def causal_bias(b: GraphBuilder, positions: Value, keys: Value) -> Value:
    """[sequence, past + sequence]: 0 where a key is not later than the query's position, else very low."""
    with b.scope("causal"):
        query = b.op("Unsqueeze", positions, b.ints(1))
        visible = b.op("LessOrEqual", b.op("Unsqueeze", keys, b.ints(0)), query)
        return b.op("Where", visible, b.scalar(0.0), b.scalar(MASKED))


def decoder_block(b: GraphBuilder, x: Value, bias: Value, past: Cache | None, options: Gpt2Options) -> tuple[Value, Cache]:
    """x + attention(norm(x)), then + feed-forward(norm); also the block's keys and values so far."""
    # Scale of what joins the residual stream, section 2.3 of the paper: its variance does not grow with depth.
    gain = (2 * options.layers) ** -0.5
    with b.scope("ln_1"):
        normed = layer_norm(b, x, options.hidden, options.layer_norm, EPSILON)
    with b.scope("attn"):
        context, cache = attention(b, normed, bias, past, options)
        with b.scope("c_proj"):
            x = b.op("Add", conv1d(b, context, options.hidden, options.hidden, options, gain), x)
    with b.scope("ln_2"):
        normed = layer_norm(b, x, options.hidden, options.layer_norm, EPSILON)
    with b.scope("mlp"):
        with b.scope("c_fc"):
            wide = gelu_tanh(b, conv1d(b, normed, options.hidden, 4 * options.hidden, options))
        with b.scope("c_proj"):
            return b.op("Add", x, conv1d(b, wide, 4 * options.hidden, options.hidden, options, gain)), cache


def attention(b: GraphBuilder, x: Value, bias: Value, past: Cache | None, options: Gpt2Options) -> tuple[Value, Cache]:
    """Causal attention of the new tokens over the cache and themselves."""
    head_size = options.hidden // options.heads
    with b.scope("c_attn"):
        joined = conv1d(b, x, options.hidden, 3 * options.hidden, options)
    parts = b.op_many("Split", [joined, b.ints(*[options.hidden] * 3)], 3, axis=2)
    query, key, value = (split_heads(b, part, options.batch, options.sequence, options.heads, head_size, (0, 2, 1, 3)) for part in parts)
    if past is not None:
        key, value = b.op("Concat", past.key, key, axis=2), b.op("Concat", past.value, value, axis=2)
    scores = b.op("Div", b.op("MatMul", query, b.op("Transpose", key, perm=[0, 1, 3, 2])), b.scalar(math.sqrt(head_size)))
    weights = b.op("Softmax", b.op("Add", scores, bias), axis=-1)
    return merge_heads(b, b.op("MatMul", weights, value), options.batch, options.sequence, options.hidden), Cache(key, value)


def conv1d(b: GraphBuilder, x: Value, columns_in: int, columns_out: int, options: Gpt2Options, gain: float = 1.0) -> Value:
    """GPT-2's dense layer as it is exported: flattened to a matrix, Gemm over a weight stored [in, out], and shaped back."""
    weight = b.normal("weight", [columns_in, columns_out], gain * columns_in**-0.5)
    flat = b.op("Gemm", b.reshape(x, [-1, columns_in]), weight, b.normal("bias", [columns_out], 0.05), alpha=1.0, beta=1.0)
    return b.reshape(flat, [sized(b, x, 0, options.batch), sized(b, x, 1, options.sequence), columns_out])
