"""Models damaged at random either compile or are refused by a TilewrightError; nothing else ever comes out."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.support.errors import InternalError, TilewrightError

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
m (float[n, 3, 8, 8] x, int64[2] at) => (float[n, 4] y, float[k] z)
<float[4] b = {1, 2, 3, 4}, int64[2] shape = {0, -1}, int64[1] axes = {1}, int64[1] stop = {3}>
{
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)
    n = BatchNormalization (c, b, b, b, b)
    r = Relu (n)
    f = Reshape (r, shape)
    d = Dropout (f)
    g = Gemm <alpha = 0.5> (d, v, b)
    s = Softmax <axis = 1> (g)
    t = Transpose <perm = [1, 0]> (s)
    u = Gather <axis = 0> (t, at)
    m = ReduceMean <keepdims = 0> (u, axes)
    p = Slice (s, axes, stop)
    h, i = Split <axis = 1, num_outputs = 2> (s)
    j = Concat <axis = 1> (h, i)
    e = Exp (j)
    l = Less (j, s)
    q = Where (l, j, s)
    y = Add (q, e)
    z = Identity (m)
}
"""


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(MODEL)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (64, 4))):
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    return made


Mutation = Callable[[onnx.GraphProto, random.Random], None]


def node(graph: onnx.GraphProto, rng: random.Random) -> onnx.NodeProto:
    return graph.node[rng.randrange(len(graph.node))]


def drop_input(graph: onnx.GraphProto, rng: random.Random) -> None:
    chosen = node(graph, rng)
    if chosen.input:
        del chosen.input[rng.randrange(len(chosen.input))]


def blank_input(graph: onnx.GraphProto, rng: random.Random) -> None:
    chosen = node(graph, rng)
    if chosen.input:
        chosen.input[rng.randrange(len(chosen.input))] = ""


def rewire(graph: onnx.GraphProto, rng: random.Random) -> None:
    names = [name for n in graph.node for name in (*n.input, *n.output)]
    chosen = node(graph, rng)
    if chosen.input:
        chosen.input[rng.randrange(len(chosen.input))] = rng.choice(names)


def change_operator(graph: onnx.GraphProto, rng: random.Random) -> None:
    others = ["Einsum", "LSTM", "MatMul", "Pad", "Resize", "Squeeze", "TopK"]
    node(graph, rng).op_type = rng.choice([n.op_type for n in graph.node] + others)


def change_attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    chosen = rng.choice([n for n in graph.node if n.attribute] or [node(graph, rng)])
    if not chosen.attribute:
        return
    attribute = chosen.attribute[rng.randrange(len(chosen.attribute))]
    match rng.randrange(4):
        case 0:
            chosen.attribute.remove(attribute)
        case 1:
            attribute.i = rng.choice([-(1 << 40), -5, -1, 0, 2, 1 << 40])
        case 2:
            del attribute.ints[:]
            attribute.ints.extend(rng.choices([-2, -1, 0, 1, 5, 1 << 33], k=rng.randrange(6)))
        case _:
            attribute.type = rng.choice([1, 2, 3, 4, 5, 6, 7, 8])


def drop_node(graph: onnx.GraphProto, rng: random.Random) -> None:
    graph.node.remove(node(graph, rng))


def swap_nodes(graph: onnx.GraphProto, rng: random.Random) -> None:
    a, b = node(graph, rng), node(graph, rng)
    copy = onnx.NodeProto()
    copy.CopyFrom(a)
    a.CopyFrom(b)
    b.CopyFrom(copy)


def change_dims(graph: onnx.GraphProto, rng: random.Random) -> None:
    info = rng.choice(list(graph.input))
    dims = info.type.tensor_type.shape.dim
    match rng.randrange(3) if dims else 2:
        case 0:
            dims[rng.randrange(len(dims))].dim_value = rng.choice([-1, 0, 1, 2, 1 << 40])
        case 1:
            dims.pop()
        case _:
            dims.add().dim_value = 3


def change_dtype(graph: onnx.GraphProto, rng: random.Random) -> None:
    rng.choice(list(graph.input)).type.tensor_type.elem_type = rng.randrange(0, 30)


def change_tensor(graph: onnx.GraphProto, rng: random.Random) -> None:
    tensor = rng.choice(list(graph.initializer))
    match rng.randrange(5) if tensor.dims else 0:
        case 0:
            tensor.data_type = rng.randrange(0, 30)
        case 1:
            tensor.dims.append(rng.choice([-1, 0, 2]))
        case 2:
            tensor.dims.pop()
        case 3:
            tensor.raw_data = bytes(rng.randrange(64))
        case _:
            graph.initializer.remove(tensor)


MUTATIONS: tuple[Mutation, ...] = (
    drop_input, blank_input, rewire, change_operator, change_attribute, drop_node, swap_nodes, change_dims, change_dtype, change_tensor,
)  # fmt: skip


def test_the_model_itself_is_sound() -> None:
    assert import_model(load_model(model())).module.output_names == ("y", "z")


def complaint(content: onnx.ModelProto | bytes) -> TilewrightError | None:
    """Why a model is refused; None if it is not. A damaged model is no fault of ours."""
    try:
        import_model(load_model(content))
    except InternalError:
        raise
    except TilewrightError as error:
        return error
    return None


@settings(max_examples=400)
@given(st.integers(0, 1 << 30), st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=3))
def test_damaged_graphs(seed: int, mutations: list[Mutation]) -> None:
    damaged, rng = model(), random.Random(seed)
    for mutation in mutations:
        if damaged.graph.node and damaged.graph.initializer:
            mutation(damaged.graph, rng)
    error = complaint(damaged)
    assert error is None or error.where is not None or "'" in error.what  # it names a node, the file, or an input or tensor


@settings(max_examples=200)
@given(st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    content = bytearray(model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    error = complaint(bytes(content[: data.draw(st.integers(0, len(content)))]))
    assert error is None or str(error)
