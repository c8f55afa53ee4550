"""Ways to damage a model, one at a time: what an exporter with a fault, a broken disk or an enemy could leave in a file."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import onnx

Mutation = Callable[[onnx.GraphProto, random.Random], None]

SIZES = (-(1 << 63), -(1 << 40), -5, -1, 0, 1, 2, 7, 1 << 20, 1 << 31, 1 << 33, 1 << 40, (1 << 63) - 1)
"""Numbers that stand for sizes, axes and counts: small ones, and more than any memory holds."""


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
    others = [
        "Einsum",
        "LSTM",
        "MatMul",
        "Pad",
        "Resize",
        "Squeeze",
        "TopK",
        "Tile",
        "Expand",
        "ConstantOfShape",
        "Range",
        "OneHot",
        "Loop",
    ]
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
            attribute.i = rng.choice(SIZES)
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
    if not graph.input:
        return
    info = rng.choice(list(graph.input))
    dims = info.type.tensor_type.shape.dim
    match rng.randrange(3) if dims else 2:
        case 0:
            dims[rng.randrange(len(dims))].dim_value = rng.choice(SIZES)
        case 1:
            dims.pop()
        case _:
            dims.add().dim_value = 3


def change_domain(graph: onnx.GraphProto, rng: random.Random) -> None:
    node(graph, rng).domain = rng.choice(["", "ai.onnx.ml", "com.microsoft", "elsewhere", "\0", "a" * 1000])


def rename_output(graph: onnx.GraphProto, rng: random.Random) -> None:
    chosen = node(graph, rng)
    if chosen.output:
        names = [name for n in graph.node for name in (*n.input, *n.output)]
        chosen.output[rng.randrange(len(chosen.output))] = rng.choice([*names, "", "\n", "%s", "../x"])


def repeat_node(graph: onnx.GraphProto, rng: random.Random) -> None:
    """The same node again, with results of its own or with the same: then names are defined twice."""
    copy = graph.node.add()
    copy.CopyFrom(node(graph, rng))
    if rng.random() < 0.5:
        copy.output[:] = [f"{name}.again" for name in copy.output]


def nest(graph: onnx.GraphProto, rng: random.Random) -> None:
    """A graph as an attribute of an operator that may have none, or the node's own graph inside of itself."""
    attribute = node(graph, rng).attribute.add()
    attribute.name, attribute.type = rng.choice(["body", "then_branch", "else_branch", "axis"]), onnx.AttributeProto.GRAPH
    inner = onnx.GraphProto()
    inner.CopyFrom(graph)
    attribute.g.CopyFrom(inner)


def change_outputs(graph: onnx.GraphProto, rng: random.Random) -> None:
    match rng.randrange(3):
        case 0 if graph.output:
            graph.output[rng.randrange(len(graph.output))].name = rng.choice(["", "nothing", *(i.name for i in graph.input)])
        case 1 if graph.output:
            graph.output.add().CopyFrom(rng.choice(list(graph.output)))
        case _:
            del graph.output[:]


def change_dtype(graph: onnx.GraphProto, rng: random.Random) -> None:
    if graph.input:
        rng.choice(list(graph.input)).type.tensor_type.elem_type = rng.randrange(0, 30)


def change_numbers(tensor: onnx.TensorProto, rng: random.Random) -> None:
    """Other integers in a constant: shapes, axes, repeats, indices that make no sense or ask for more than there is."""
    if tensor.data_type != onnx.TensorProto.INT64 or len(tensor.dims) > 1:
        return
    count = tensor.dims[0] if tensor.dims else 1
    tensor.ClearField("raw_data")
    tensor.int64_data[:] = rng.choices(SIZES, k=count)


def change_tensor(graph: onnx.GraphProto, rng: random.Random) -> None:
    if not graph.initializer:
        return
    tensor = rng.choice(list(graph.initializer))
    match rng.randrange(6) if tensor.dims else 0:
        case 0:
            tensor.data_type = rng.randrange(0, 30)
        case 1:
            tensor.dims.append(rng.choice([-1, 0, 2]))
        case 2:
            tensor.dims.pop()
        case 3:
            tensor.raw_data = bytes(rng.randrange(64))
        case 4:
            change_numbers(tensor, rng)
        case _:
            graph.initializer.remove(tensor)


MUTATIONS: tuple[Mutation, ...] = (
    drop_input, blank_input, rewire, change_operator, change_attribute, drop_node, swap_nodes, change_dims, change_dtype, change_tensor,
    change_domain, rename_output, repeat_node, nest, change_outputs,
)  # fmt: skip


def damage(model: onnx.ModelProto, mutations: Sequence[Mutation], rng: random.Random) -> None:
    """Damage a model, by each of the mutations as long as it has nodes."""
    for mutation in mutations:
        if model.graph.node:
            mutation(model.graph, rng)
