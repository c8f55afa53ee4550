"""onnxruntime's attention operators: caches that grow, groups of heads, rotary positions; against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright as tw
from tests.frontend.onnx.models import IR_VERSION, Array, assert_same, imported, run, run_onnxruntime
from tilewright.compiler import optimise
from tilewright.graph.node import walk_nodes
from tilewright.graph.ops import Fused
from tilewright.machine.detect import detect_host
from tilewright.support.errors import UnsupportedOperatorError
from tilewright.support.settings import Settings

F32, I32 = np.float32, np.int32


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def one(
    op: str, inputs: Sequence[Array | None], results: int = 1, dims: Mapping[int, Sequence[Any]] | None = None, **attributes: Any
) -> Any:
    """A model of one node, and its feeds."""
    given = {i: a for i, a in enumerate(inputs) if a is not None}
    names = [f"x{i}" if i in given else "" for i in range(len(inputs))]
    outs = [f"y{i}" for i in range(results)]
    node = helper.make_node(op, names, outs, domain="com.microsoft", name="node", **attributes)
    code = helper.np_dtype_to_tensor_dtype
    infos = [helper.make_tensor_value_info(f"x{i}", code(a.dtype), (dims or {}).get(i, a.shape)) for i, a in given.items()]
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos, outputs), opset_imports=opsets, ir_version=IR_VERSION)
    return model, {f"x{i}": a for i, a in given.items()}


def check(op: str, inputs: Sequence[Array | None], results: int = 1, **attributes: Any) -> None:
    model, feeds = one(op, inputs, results, **attributes)
    assert_same(run(model, feeds), run_onnxruntime(model, feeds), 1e-4, 1e-5)


def grouped(
    batch: int,
    steps: int,
    past: int,
    lengths: Sequence[int],
    room: int | None = None,
    packed: bool = False,
    heads: int = 4,
    shared: int = 2,
) -> list[Array | None]:
    """Inputs of GroupQueryAttention with heads of 16: `lengths` keys after the step, caches of `room`."""
    q, k, v = floats(batch, steps, heads * 16), floats(batch, steps, shared * 16, seed=1), floats(batch, steps, shared * 16, seed=2)
    cache = [floats(batch, shared, past if room is None else room, 16, seed=s) for s in (3, 4)]
    first: list[Array | None] = [np.concatenate([q, k, v], 2), None, None] if packed else [q, k, v]
    return [*first, *cache, np.array(lengths, I32) - 1, np.array(max(lengths), I32)]


TABLES = [floats(20, 8, seed=5), floats(20, 8, seed=6)]
GROUPS: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "prompt": (grouped(2, 5, 0, [5, 5]), {}),
    "one token": (grouped(1, 1, 6, [7]), {}),
    "one token of each of two": (grouped(2, 1, 6, [7, 7]), {}),
    "sequences of several lengths": (grouped(2, 1, 6, [4, 7]), {}),
    "several tokens after others": (grouped(1, 3, 6, [9]), {}),
    "a cache with room": (grouped(2, 1, 6, [4, 7], room=12), {}),
    "packed": (grouped(2, 5, 0, [5, 5], packed=True), {}),
    "one head of keys": (grouped(1, 1, 6, [7], shared=1), {}),
    "rotary": ([*grouped(2, 1, 6, [4, 7]), *TABLES], {"do_rotary": 1}),
    "rotary prompt": ([*grouped(2, 5, 0, [5, 5]), *TABLES], {"do_rotary": 1}),
    "rotary neighbours": ([*grouped(1, 1, 6, [7]), *TABLES], {"do_rotary": 1, "rotary_interleaved": 1}),
    "a window": (grouped(1, 1, 6, [7]), {"local_window_size": 3}),
    "a window over a prompt": (grouped(1, 6, 0, [6]), {"local_window_size": 3}),
    "a cap": (grouped(2, 5, 0, [5, 5]), {"softcap": 0.7}),
    "a scale": (grouped(2, 5, 0, [5, 5]), {"scale": 0.2}),
    "a bias": ([*grouped(1, 2, 6, [8]), None, None, None, floats(1, 4, 2, 8, seed=7)], {}),
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_of_heads(case: str) -> None:
    inputs, attributes = GROUPS[case]
    shared = inputs[3].shape[1] if inputs[3] is not None else 2
    check("GroupQueryAttention", inputs, 3, num_heads=4, kv_num_heads=shared, **attributes)


@pytest.mark.parametrize("case", ["one token of each of two", "sequences of several lengths", "rotary"])
def test_groups_of_heads_compiled_for_any_length(case: str) -> None:
    inputs, attributes = GROUPS[case]
    dims: dict[int, list[Any]] = {3: ["batch", 2, "past", 16], 4: ["batch", 2, "past", 16], 0: ["batch", "steps", 64], 5: ["batch"]}
    dims |= {1: ["batch", "steps", 32], 2: ["batch", "steps", 32]}
    model, feeds = one("GroupQueryAttention", inputs, 3, dims, num_heads=4, kv_num_heads=2, **attributes)
    executable = tw.compile(model, cache=False, progress="none")
    assert_same(list(executable.run(feeds).values()), run_onnxruntime(model, feeds), 1e-4, 1e-5)


def test_a_sink_is_refused() -> None:
    model, _ = one("GroupQueryAttention", [*grouped(1, 1, 6, [7]), None, None, None, None, floats(4)], 3, num_heads=4, kv_num_heads=2)
    with pytest.raises(UnsupportedOperatorError, match="a sink"):
        imported(model)


def kernels_of(model: onnx.ModelProto) -> list[list[str]]:
    """The operators of each kernel."""
    main = optimise(imported(model).module, detect_host(), Settings()).main
    fused = [node.op.body for node in walk_nodes(main.results) if isinstance(node.op, Fused)]
    return [[node.op.name for node in walk_nodes(body.results) if node.op.name not in ("parameter", "constant")] for body in fused]


def test_shared_keys_are_read_where_they_are() -> None:
    """No kernel moves or repeats the keys and values of a group, or the queries."""
    inputs = grouped(2, 5, 0, [5, 5])
    model, _ = one("GroupQueryAttention", [*inputs[:3], None, None, *inputs[5:]], 1, num_heads=4, kv_num_heads=2)
    kernels = kernels_of(model)
    assert sum("softmax" in names for names in kernels) == 1
    assert not any({"repeat", "transpose", "broadcast_to"} & set(names) for names in kernels if "softmax" not in names)


def test_a_model_that_repeats_its_keys_reads_them_where_they_are() -> None:
    """Unsqueeze, Expand, Reshape before the products, as exporters write groups of heads."""
    shapes = {"wide": [2, 2, 3, 7, 8], "merged": [2, 6, 7, 8]}
    nodes = [
        helper.make_node("Constant", [], ["one"], value=onnx.numpy_helper.from_array(np.array([2]))),
        *(helper.make_node("Constant", [], [n], value=onnx.numpy_helper.from_array(np.array(s))) for n, s in shapes.items()),
    ]
    for name in "kv":
        nodes += [
            helper.make_node("Unsqueeze", [name, "one"], [f"{name}1"]),
            helper.make_node("Expand", [f"{name}1", "wide"], [f"{name}2"]),
            helper.make_node("Reshape", [f"{name}2", "merged"], [f"{name}3"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["k3"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v3"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, 1, s) for n, s in (("q", (2, 6, 5, 8)), ("k", (2, 2, 7, 8)), ("v", (2, 2, 7, 8)))]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=IR_VERSION)
    assert len(kernels_of(model)) == 1
    feeds = {"q": floats(2, 6, 5, 8), "k": floats(2, 2, 7, 8, seed=1), "v": floats(2, 2, 7, 8, seed=2)}
    got = tw.compile(model, cache=False, progress="none").run(feeds)
    assert_same(list(got.values()), run_onnxruntime(model, feeds), 1e-4, 1e-5)


@pytest.mark.parametrize("causal", [0, 1])
def test_heads_with_a_cache(causal: int) -> None:
    q, k, v = (floats(2, 3, 8, seed=s) for s in range(3))
    past = [floats(2, 2, 5, 4, seed=s) for s in (3, 4)]
    check("MultiHeadAttention", [q, k, v, None, None, None, *past], 3, num_heads=2, unidirectional=causal)
    mask = np.array([[1] * 6 + [0] * 2, [1] * 8], I32)
    check("MultiHeadAttention", [q, k, v, floats(24, seed=9), mask, floats(2, 2, 3, 8, seed=7), *past], 3, num_heads=2, scale=0.3)


def test_heads_that_are_there_already() -> None:
    q, k, v = floats(2, 3, 8), floats(2, 2, 7, 4, seed=1), floats(2, 2, 7, 4, seed=2)
    check("MultiHeadAttention", [q, k, v], num_heads=2)


def test_heads_in_one_tensor() -> None:
    q, k, v = floats(2, 3, 8), floats(2, 5, 2, 4, seed=1), floats(2, 5, 2, 4, seed=2)
    apart, feeds = one("MultiHeadAttention", [q, k.reshape(2, 5, 8), v.reshape(2, 5, 8)], num_heads=2)
    together, packed = one("MultiHeadAttention", [q, np.stack([k, v], 3)], num_heads=2)
    assert_same(run(together, packed), run_onnxruntime(apart, feeds), 1e-4, 1e-5)


@pytest.mark.parametrize("width", [2, 3, 6])
def test_values_of_another_width(width: int) -> None:
    """Each part of the bias is as wide as what it is added to."""
    q, k, v = floats(2, 3, 8), floats(2, 7, 8, seed=1), floats(2, 7, 2 * width, seed=2)
    check("MultiHeadAttention", [q, k, v, floats(16 + 2 * width, seed=3)], num_heads=2)


@pytest.mark.parametrize("width", [2, 6])
def test_projections_of_another_width(width: int) -> None:
    x, weights, bias = floats(2, 3, 6), floats(6, 16 + 2 * width, seed=1), floats(16 + 2 * width, seed=2)
    check("Attention", [x, weights, bias], num_heads=2, qkv_hidden_sizes=[8, 8, 2 * width])


@pytest.mark.parametrize("causal", [0, 1])
def test_projections_with_a_cache(causal: int) -> None:
    x, weights, bias, past = floats(2, 3, 6), floats(6, 24, seed=1), floats(24, seed=2), floats(2, 2, 2, 5, 4, seed=3)
    check("Attention", [x, weights, bias, None, past], 2, num_heads=2, unidirectional=causal)


@pytest.mark.parametrize("mask", [np.array([[1] * 4 + [0], [1] * 5], I32), np.array([4, 5], I32), np.tril(np.ones((2, 5, 5), I32))])
def test_masks_of_projections(mask: Array) -> None:
    check("Attention", [floats(2, 5, 6), floats(6, 24, seed=1), floats(24, seed=2), mask], num_heads=2)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [np.array([2], np.int64), np.array([[3, 0, 1], [2, 2, 5]], np.int64)])
def test_rotary_embedding(interleaved: int, positions: Array) -> None:
    check("RotaryEmbedding", [floats(2, 3, 32), positions, *TABLES], interleaved=interleaved)
    check("RotaryEmbedding", [floats(2, 2, 3, 16), positions, *TABLES], interleaved=interleaved)
    check("RotaryEmbedding", [floats(2, 3, 48), positions, *TABLES], num_heads=2, rotary_embedding_dim=16, interleaved=interleaved)
