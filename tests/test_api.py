"""`compile` beyond the happy path: dims as users write them, and what the cache of whole artifacts must not hide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright import api
from tilewright.frontend.onnx.importer import DimRange
from tilewright.support.errors import MemoryLimitError, SettingsError, TargetError
from tilewright.support.settings import Settings


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (8, 8),
        (0, 0),
        ("8", 8),
        (np.int64(8), 8),
        ((1, 32), DimRange(1, 32)),
        ([1, 32], DimRange(1, 32)),
        ((1, None), DimRange(1, None)),
        ("1..32", DimRange(1, 32)),
        ("8..", DimRange(8, None)),
        ("8..64:8", DimRange(8, 64, 8)),
        (DimRange(2, 4), DimRange(2, 4)),
    ],
)
def test_dims_as_users_write_them(value: Any, wanted: Any) -> None:
    found = api.dim_range("n", value)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    "value",
    [-1, True, 2.5, None, [1, 2, 3], (1, 2, 3), (5, 2), (1.5, 2), "a..b", "", "8..64:0", "9..15:8", 1 << 70, (1, 1 << 70), "1..2:3:4"],
)
def test_dims_that_make_no_sense(value: Any) -> None:
    with pytest.raises(SettingsError, match="dim 'n'"):
        api.dim_range("n", value)


def test_arguments_of_other_kinds_are_explained(product: Path) -> None:
    wrong: Any = [("x", 3)]
    with pytest.raises(SettingsError, match="not a mapping of dims by name"):
        api.compile(product, dims=wrong, progress="none")
    number: Any = 3
    with pytest.raises(TargetError, match="is no text"):
        api.compile(product, target=number, progress="none")


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """(x @ w) @ w, whose working memory is known."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xy"]
    weights = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_cache_hides_no_limit_and_no_check(product: Path, tmp_path: Path) -> None:
    settings = Settings().changed(cache_dir=tmp_path / "cache", progress="none")
    assert not api.make_artifact(product, "cpu", None, settings).cached
    assert api.make_artifact(product, "cpu", None, settings).cached
    with pytest.raises(MemoryLimitError):
        api.make_artifact(product, "cpu", None, settings.changed(max_memory=1000))
    assert api.make_artifact(product, "cpu", None, settings.changed(max_memory=10**6)).cached
    assert not api.make_artifact(product, "cpu", None, settings.changed(verify=True)).cached


def test_a_cached_artifact_has_the_name_of_its_own_model(product: Path, tmp_path: Path) -> None:
    settings = Settings().changed(cache_dir=tmp_path / "cache", progress="none")
    other = tmp_path / "other.onnx"
    other.write_bytes(product.read_bytes())
    for path in (product, other):
        assert api.make_artifact(path, "cpu", None, settings).artifact.manifest["model"]["source"] == path.name


def test_external_data_anywhere_in_a_model_is_part_of_the_key(tmp_path: Path) -> None:
    """Here it is that of a node's attribute, in a branch of an If."""
    data = tmp_path / "m.data"
    constant = helper.make_tensor("value", TensorProto.FLOAT, [4], bytes(16), raw=True)
    constant.ClearField("raw_data")
    constant.data_location = TensorProto.EXTERNAL
    constant.external_data.add(key="location", value=data.name)
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [4])
    branch = helper.make_graph([helper.make_node("Constant", [], ["r"], value=constant)], "b", [], [result])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    ends = [helper.make_tensor_value_info("c", TensorProto.BOOL, [])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])]
    graph = helper.make_graph([node], "g", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    settings = Settings().changed(cache_dir=tmp_path / "cache", progress="none")
    for value in (1, 2):
        data.write_bytes(np.full(4, value, np.float32).tobytes())
        assert not api.make_artifact(tmp_path / "m.onnx", "cpu", None, settings).cached
        exe = api.Executable(api.make_artifact(tmp_path / "m.onnx", "cpu", None, settings).artifact, 1)
        np.testing.assert_array_equal(exe(np.array(True)), np.full(4, value, np.float32))
