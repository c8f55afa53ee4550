"""Hostile inputs: each seed gives one file or message that a careless or hostile hand could have made, with what surrounds it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.hostile.mutations import MUTATIONS, SIZES, damage
from tilewright.runtime.artifact import HEADER, PAGE

SECRET = "secret.bin"  # lies beside the folder of a case: no model may read it


@dataclass(frozen=True, slots=True)
class Hostile:
    """kind: what was done. path: the file to open; an artifact where `artifact` says so. runs: whether it may be run as well as opened:
    not where code would run that a manifest with hashes of its own describes wrongly, since an artifact is code."""

    kind: str
    path: Path
    artifact: bool = False
    runs: bool = True


def hostile(seed: int, models: Sequence[bytes], artifacts: Sequence[bytes], folder: Path) -> Hostile:
    """The case of a seed, written into `folder`. models: sound ones to damage; artifacts: likewise."""
    rng = random.Random(seed)
    kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    return KINDS[kind][1](rng, models, artifacts, folder)


def graph_case(rng: random.Random, models: Sequence[bytes], artifacts: Sequence[bytes], folder: Path) -> Hostile:
    """A model with one to three mutations."""
    model = onnx.load_model_from_string(rng.choice(models))
    damage(model, rng.choices(MUTATIONS, k=rng.choice((1, 1, 2, 3))), rng)
    return written("graph", model.SerializeToString(), folder)


def bytes_case(rng: random.Random, models: Sequence[bytes], artifacts: Sequence[bytes], folder: Path) -> Hostile:
    """A model's file with some bytes changed, cut out, put in or repeated."""
    return written("bytes", scrambled(rng.choice(models), rng), folder)


def scrambled(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randrange(len(found) + 1), rng.choice((1, 1, 2, 8, 64, 1000))
        match rng.randrange(6):
            case 0:
                del found[at:]
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = rng.randbytes(length)
            case 3:
                found[at:at] = found[at : at + length] * rng.randint(1, 50)
            case 4:
                found[at : at + 10] = b"\xff" * 9 + b"\x01"  # the largest number that a protobuf's field takes
            case _:
                found[at : at + length] = rng.randbytes(len(found[at : at + length]))
    return bytes(found)


def external_case(rng: random.Random, models: Sequence[bytes], artifacts: Sequence[bytes], folder: Path) -> Hostile:
    """Weights in files of their own, with places that lead elsewhere, to no file, or past its end."""
    (folder / "data.bin").write_bytes(bytes(4096))
    (folder / "inside").mkdir()
    (folder / "link").symlink_to(folder.parent / SECRET)
    (folder / "up").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe")
    places = [
        "data.bin",
        f"../{SECRET}",
        f"inside/../../{SECRET}",
        "link",
        f"up/{SECRET}",
        str(folder.parent / SECRET),
        "/etc/passwd",
        "pipe",
    ]
    places += [
        "inside",
        ".",
        "",
        "\0",
        "a" * 5000,
        "/dev/zero",
        "/proc/self/mem",
        "model.onnx",
        f"file://{folder}/data.bin",
        "C:\\data.bin",
    ]
    model = onnx.load_model_from_string(rng.choice(models))
    dtype = rng.choice([TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT4, TensorProto.STRING, TensorProto.BOOL])
    tensor = TensorProto(name="outside", data_type=dtype, dims=[rng.choice([1, 3, 16, *SIZES]) for _ in range(rng.randrange(3))])
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": rng.choice(places), "offset": rng.choice(["0", "8", "-8", "4095", "9" * 30, "x", "0x10", "٣"])}
    entries["length"] = rng.choice(["64", "4", "0", "-1", str(1 << 62), "", "1e3"])
    for key in rng.sample(sorted(entries), rng.randint(1, 3)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, entries[key]
    if model.graph.initializer and rng.random() < 0.5:
        tensor.name = rng.choice(list(model.graph.initializer)).name
        model.graph.initializer[0].CopyFrom(tensor)
    else:
        model.graph.initializer.append(tensor)
        model.graph.node.append(helper.make_node("Identity", ["outside"], ["read"]))
        model.graph.output.append(helper.make_tensor_value_info("read", dtype, None))
    return written("external", model.SerializeToString(), folder)


def bomb_case(rng: random.Random, models: Sequence[bytes], artifacts: Sequence[bytes], folder: Path) -> Hostile:
    """A small file that asks for much: memory, depth, or time."""
    return written("bomb", rng.choice(BOMBS)(rng).SerializeToString(), folder)


def small(nodes: Sequence[onnx.NodeProto], last: str, constants: Sequence[TensorProto] = ()) -> onnx.ModelProto:
    given, made = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info(last, TensorProto.FLOAT, None),
    )
    return helper.make_model(helper.make_graph(nodes, "bomb", [given], [made], constants), opset_imports=[helper.make_opsetid("", 18)])


def integers(name: str, values: Sequence[int]) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def doubling(rng: random.Random) -> onnx.ModelProto:
    """Twice the size with each node."""
    count = rng.choice([10, 30, 60, 200])
    start = (
        helper.make_node("Constant", [], ["v0"], value_floats=[1.0, 2.0]) if rng.random() < 0.5 else helper.make_node("Exp", ["x"], ["v0"])
    )
    return small([start, *(helper.make_node("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=0) for i in range(count))], f"v{count}")


def filling(rng: random.Random) -> onnx.ModelProto:
    """A constant of absurd size, made by one node."""
    sizes = integers("sizes", [rng.choice(SIZES) for _ in range(rng.randint(1, 4))])
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    node = rng.choice(
        [
            helper.make_node("ConstantOfShape", ["sizes"], ["y"]),
            helper.make_node("Expand", ["one", "sizes"], ["y"]),
            helper.make_node("Tile", ["one", "sizes"], ["y"]),
            helper.make_node("Pad", ["one", "sizes"], ["y"]),
            helper.make_node("Upsample", ["one", "sizes"], ["y"]),
            helper.make_node("RandomNormal", [], ["y"], shape=[rng.choice([1 << 20, 1 << 40, -1])]),
            helper.make_node("EyeLike", ["sizes"], ["y"]),
        ]
    )
    return small([node], "y", [sizes, one])


def running_size(rng: random.Random) -> onnx.ModelProto:
    """A size that is known only at run time, and large then."""
    big = integers("big", [rng.choice([1 << 20, 1 << 28, 1 << 31, 1 << 40, (1 << 63) - 1, -1, 0])])
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node("ReduceMax", ["whole"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "zero"], ["none"]),
        helper.make_node("Add", ["none", "big"], ["size"]),
        helper.make_node("Squeeze", ["size"], ["stop"]),
        rng.choice([helper.make_node("Range", ["none0", "stop", "one0"], ["r"]), helper.make_node("Expand", ["one", "size"], ["r"])]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    scalars = [helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in (("none0", 0), ("one0", 1), ("zero", 0))]
    return small(nodes, "y", [big, integers("one", [1]), *scalars])


def endless(rng: random.Random) -> onnx.ModelProto:
    """A loop of many turns, of which each adds to a result."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["v", "v"], ["w"]),
            helper.make_node("Identity", ["w"], ["each"]),
        ],
        "turn",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, [])]
        + [helper.make_tensor_value_info("v", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 3])]
        + [helper.make_tensor_value_info("each", TensorProto.FLOAT, [2, 3])],
    )
    turns = helper.make_tensor("turns", TensorProto.INT64, [], [rng.choice([-1, 0, 3, 1000, 1 << 40])])
    return small([helper.make_node("Loop", ["turns", "", "x"], ["last", "y"], body=body)], "y", [turns])


def nested(rng: random.Random) -> onnx.ModelProto:
    """Branches in branches."""
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["r"])], "leaf", [], [result])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "other", [], [result])
    for _ in range(rng.choice([3, 10, 20])):  # a parser of protobuf stops at a depth of 100 messages
        node = helper.make_node("If", ["flag"], ["r"], then_branch=graph, else_branch=other)
        graph = helper.make_graph([node], "branch", [], [result])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["flag"], to=TensorProto.BOOL),
        *graph.node,
    ]
    return small(nodes, "r")


def chain(rng: random.Random) -> onnx.ModelProto:
    """Thousands of nodes one after the other."""
    count, name = rng.choice([100, 1000, 3000]), rng.choice(["Exp", "Add", "Identity", "Shape", "Relu"])
    values = ["x", *(f"v{i}" for i in range(count))]
    nodes = [helper.make_node(name, [a, a] if name == "Add" else [a], [b]) for a, b in itertools.pairwise(values)]
    return small(nodes, values[-1])


def recursion(rng: random.Random) -> onnx.ModelProto:
    """Functions that call themselves or each other."""
    names = [f"F{i}" for i in range(rng.randint(1, 3))]
    model = small([helper.make_node("F0", ["x"], ["y"], domain="mine")], "y")
    for name, called in zip(names, [*names[1:], rng.choice(names)], strict=True):
        nodes = [helper.make_node(called, ["a"], ["b"], domain="mine")]
        function = helper.make_function("mine", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)])
        model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    return model


def fan(rng: random.Random) -> onnx.ModelProto:
    """Functions each of which calls the next several times: a number of nodes that grows exponentially."""
    depth, width = rng.choice([(3, 3), (5, 4), (40, 2)])
    model = small([helper.make_node("F0", ["x"], ["y"], domain="mine")], "y")
    for i in range(depth):
        names = ["a", *(f"t{j}" for j in range(width - 1)), "b"]
        kind, domain = (f"F{i + 1}", "mine") if i + 1 < depth else ("Exp", "")
        nodes = [helper.make_node(kind, [p], [q], domain=domain) for p, q in itertools.pairwise(names)]
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
        model.functions.append(helper.make_function("mine", f"F{i}", ["a"], ["b"], nodes, imports))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    return model


def sparse(rng: random.Random) -> onnx.ModelProto:
    """A sparse constant of absurd size."""
    dims = [rng.choice([4, 1 << 20, 1 << 33, 1 << 50, -1]) for _ in range(rng.randint(1, 3))]
    values = helper.make_tensor("y", TensorProto.FLOAT, [2], [1.0, 2.0])
    model = small([helper.make_node("Identity", ["y"], ["z"])], "z")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, integers("at", [0, rng.choice([1, -1, 1 << 40])]), dims))
    return model


BOMBS: tuple[Callable[[random.Random], onnx.ModelProto], ...] = (
    doubling, filling, running_size, endless, nested, chain, recursion, fan, sparse,
)  # fmt: skip


def artifact_case(rng: random.Random, models: Sequence[bytes], artifacts: Sequence[bytes], folder: Path) -> Hostile:
    """An artifact with damaged bytes, which its hashes tell, except in weights that nobody asked to check."""
    content = rng.choice(artifacts)
    if rng.random() < 0.5:
        return written("artifact", scrambled(content, rng), folder, "model.tw")
    return written("manifest", rehashed(content, rng), folder, "model.tw", runs=False)


def rehashed(content: bytes, rng: random.Random) -> bytes:
    """An artifact whose manifest says something else, with a hash that fits."""
    length = int.from_bytes(content[8:16], "little")
    manifest = json.loads(content[HEADER : HEADER + length])
    for _ in range(rng.randint(1, 3)):
        twist(manifest, rng)
    text = json.dumps(manifest).encode()
    head = content[:8] + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    start = -(-(HEADER + length) // PAGE) * PAGE
    return head + bytes(-len(head) % PAGE) + content[start:]


def twist(data: Any, rng: random.Random) -> None:
    """Change one place of plain data."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(data[key], (dict, list)) and data[key] and rng.random() < 0.7:
            data = data[key]
            continue
        if rng.random() < 0.2:
            del data[key]
        else:
            data[key] = rng.choice([None, True, "", "x" * 100, "n*" * 20 + "n", "(" * 500, [], {}, [data[key]], 1.5, "../x", *SIZES])
        return


def written(kind: str, content: bytes, folder: Path, name: str = "model.onnx", runs: bool = True) -> Hostile:
    path = folder / name
    path.write_bytes(content)
    return Hostile(kind, path, name.endswith(".tw"), runs)


Maker = Callable[[random.Random, Sequence[bytes], Sequence[bytes], Path], Hostile]
KINDS: dict[str, tuple[int, Maker]] = {
    "graph": (55, graph_case),
    "bytes": (15, bytes_case),
    "external": (8, external_case),
    "bomb": (7, bomb_case),
    "artifact": (15, artifact_case),
}
"""Kinds of cases: how often each is taken, and what makes it."""
