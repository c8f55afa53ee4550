"""What is wrong with a model is said by a TilewrightError that names the node, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.runtime.artifact import load as load_artifact
from tilewright.support.errors import (
    ArtifactError,
    GraphError,
    MemoryLimitError,
    ModelError,
    ShapeError,
    TilewrightError,
    TypeRuleError,
    UnsupportedDtypeError,
    UnsupportedOperatorError,
)

CASES: dict[str, tuple[str, type[TilewrightError], str]] = {
    "unknown operator": ("(float[3] x) => (float[3] y) { y = Frobnicate(x) }", UnsupportedOperatorError, "operator Frobnicate"),
    "unknown domain": ("(float[3] x) => (float[3] y) { y = other.Op(x) }", UnsupportedOperatorError, "other::Op"),
    "cycle": ("(float[3] x) => (float[3] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }", GraphError, "'b' is used before it is defined"),
    "undefined input": ("(float[3] x) => (float[3] y) { y = Add(x, z) }", GraphError, "'z' is used before it is defined"),
    "too few inputs": ("(float[3] x) => (float[3] y) { y = MatMul(x) }", ModelError, "MatMul has 1 input"),
    "attribute type": ("(float[3] x) => (float[3] y) { y = Softmax <axis = 1.5> (x) }", ModelError, "'axis' of Softmax is of type FLOAT"),
    "missing attribute": ("(float[3] x) => (float[3] y) { y = Concat(x, x) }", ModelError, "lacks the attribute 'axis'"),
    "shape conflict": ("(float[2, 3] x, float[4, 5] w) => (float[2, 5] y) { y = MatMul(x, w) }", ShapeError, "sizes 3 and 4"),
    "broadcast conflict": ("(float[2, 3] x, float[4] w) => (float[2, 3] y) { y = Add(x, w) }", TypeRuleError, "do not broadcast"),
    "reshape conflict": ("(float[6] x) => (float[4] y) <int64[1] s = {4}> { y = Reshape(x, s) }", ModelError, "numbers of elements differ"),
    "mixed dtypes": ("(float[3] x, double[3] w) => (float[3] y) { y = Add(x, w) }", TypeRuleError, "float64"),
    "complex": ("(complex64[3] x) => (complex64[3] y) { y = Add(x, x) }", TilewrightError, "complex64"),
    "strings": ("(string[3] x) => (string[n] y) { y = Unique(x) }", UnsupportedOperatorError, "Unique of tensor(string)"),
}


def parse(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18, "other": 1]> m {graph}')


@pytest.mark.parametrize("name", CASES)
def test_the_node_is_named(name: str) -> None:
    graph, kind, message = CASES[name]
    model = parse(graph)
    for node in model.graph.node:
        node.name = f"layer/{node.output[0]}"
    with pytest.raises(kind) as caught:
        tw.compile(model, cache=False, progress="none")
    assert message in str(caught.value)
    assert "node 'layer/" in str(caught.value.where)


def external_model(folder: Path) -> Path:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name, size in (("x", 3), ("y", 4)))
    graph = helper.make_graph([node], "m", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def cut(path: Path) -> None:
    weights = path.with_name("weights.bin")
    weights.write_bytes(weights.read_bytes()[:20])


def lose(path: Path) -> None:
    path.with_name("weights.bin").unlink()


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scramble(path: Path) -> None:
    path.write_bytes(b"\xff\xfe" + path.read_bytes()[2:])


@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, "too short for tensor 'w'"), (lose, "cannot be opened"), (halve, "is not an ONNX model"), (scramble, "is not an ONNX model")],
)
def test_damaged_files(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    path = external_model(tmp_path)
    x = np.ones((2, 3), np.float32)
    assert tw.compile(path, cache=False, progress="none")(x).shape == (2, 4)
    damage(path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match=message):
        tw.compile(path, cache_dir=tmp_path / "cache", progress="none")
    left = [found for found in (tmp_path / "cache").rglob("*") if found.is_file() and found.suffix != ".lock"]
    assert sorted(p for p in tmp_path.iterdir() if p.name != "cache") == before
    for found in left:  # kernels and notes may be there, which are right for themselves, but no artifact
        with pytest.raises(ArtifactError):
            load_artifact(found)


def test_memory_past_a_limit_names_the_node_that_needs_most() -> None:
    model = parse("(float[1000, 1000] x, float[1000, 2000] w) => (float[1000, 2000] y) { h = Exp(x) g = MatMul(h, w) y = Softmax(g) }")
    for node in model.graph.node:
        node.name = f"layer/{node.output[0]}"
    with pytest.raises(MemoryLimitError, match="limit is 100,000") as caught:
        tw.compile(model, cache=False, max_memory=100_000, progress="none")
    assert "layer/g" in str(caught.value.where)


def test_more_memory_than_the_machine_has() -> None:
    model = parse("(float[1000000, 1000000] x) => (float[1000000, 1000000] y) { h = Transpose(x) g = MatMul(h, x) y = Softmax(g) }")
    with pytest.raises(MemoryLimitError, match="compile for smaller dims"):
        tw.compile(model, cache=False, progress="none")


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    exe: Any = tw.compile(parse("(float[3] x) => (float[3] y) { y = Neg(x) }"), cache=False, progress="none")
    (tmp_path / "taken").mkdir()
    with pytest.raises((TilewrightError, OSError)):
        exe.save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_sizes_that_contradict_each_other_while_running() -> None:
    exe: Any = tw.compile(parse("(float[n] x, float[m] w) => (float[n] y) { y = Add(x, w) }"), cache=False, progress="none")
    np.testing.assert_array_equal(exe(np.ones(3, np.float32), np.ones(3, np.float32)), [2, 2, 2])
    with pytest.raises(ShapeError, match="Add node 'y'"):
        exe(np.ones(3, np.float32), np.ones(4, np.float32))


def test_dtypes_that_onnx_has_and_tilewright_lacks() -> None:
    model = parse("(float[3] x) => (float[3] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT6E2M3 if hasattr(TensorProto, "FLOAT6E2M3") else 99
    with pytest.raises(UnsupportedDtypeError, match="input 'x'"):
        tw.compile(model, cache=False, progress="none")
