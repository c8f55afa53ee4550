"""Opening models: parsed without their weights, read lazily, and with clear errors for what is not a model."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.onnx.models import IR_VERSION
from tilewright.frontend.onnx.loader import DTYPES, dtype_of, load_model
from tilewright.frontend.onnx.wire import LARGE, WireError, cut_weights
from tilewright.support.errors import ModelError, UnsupportedDtypeError
from tilewright.zoo import build


def model_with(*tensors: TensorProto) -> onnx.ModelProto:
    """A model with the tensors as initializers, which an Identity node reads."""
    nodes = [helper.make_node("Identity", [t.name], [f"out_{t.name}"]) for t in tensors]
    outputs = [helper.make_tensor_value_info(f"out_{t.name}", t.data_type, list(t.dims)) for t in tensors]
    graph = helper.make_graph(nodes, "weights", [], outputs, list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=IR_VERSION)


def external(name: str, array: np.ndarray, **entries: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "large": generator.standard_normal((64, 64)).astype(np.float32),
        "half": generator.standard_normal((64, 64)).astype(np.float16),
        "brain": generator.standard_normal((64, 64)).astype(ml_dtypes.bfloat16),
        "bytes": generator.integers(-128, 127, 3 * LARGE).astype(np.int8),
        "small": np.arange(3, dtype=np.int64),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 4), np.float32),
        "flags": generator.random(2 * LARGE) > 0.5,
        "nibbles": generator.integers(-8, 8, 3 * LARGE + 1).astype(ml_dtypes.int4),
        "unsigned_nibbles": generator.integers(0, 16, 3 * LARGE).astype(ml_dtypes.uint4),
        "quarters": generator.integers(-2, 2, 5 * LARGE + 3).astype(ml_dtypes.int2),
        "unsigned_quarters": generator.integers(0, 4, 5 * LARGE + 1).astype(ml_dtypes.uint2),
        "eighths": generator.standard_normal(2 * LARGE).astype(ml_dtypes.float8_e4m3fn),
    }


def test_weights_of_a_file_equal_those_of_a_plain_parse(tmp_path: Path) -> None:
    expected = arrays()
    proto = model_with(*(numpy_helper.from_array(array, name) for name, array in expected.items()))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    for loaded in (load_model(path), load_model(str(path)), load_model(path.read_bytes()), load_model(proto)):
        for tensor in loaded.proto.graph.initializer:
            found = loaded.tensor(tensor)
            assert found.dtype == expected[tensor.name].dtype
            assert found.shape == expected[tensor.name].shape
            assert found.tobytes() == expected[tensor.name].tobytes()


def test_large_weights_of_a_file_are_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_with(numpy_helper.from_array(arrays()["large"], "large")), path)
    loaded = load_model(path)
    assert set(loaded.cut) == {"large"}
    assert loaded.proto.ByteSize() < 200
    array = loaded.tensor(loaded.proto.graph.initializer[0])
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_cut_message_keeps_everything_else(tmp_path: Path) -> None:
    proto = model_with(numpy_helper.from_array(arrays()["large"], "large"))
    proto.metadata_props.add(key="author", value="somebody")
    content, cut = cut_weights(memoryview(proto.SerializeToString()))
    parsed = onnx.ModelProto.FromString(content)
    parsed.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data
    assert set(cut) == {"large"}
    assert parsed == proto


@pytest.mark.parametrize("content", [b"", b"not a model at all, but text", b"\xff" * 100, b"\x3a\xff\xff\xff\xff\x0f"])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is not an ONNX model"):
        load_model(path)
    with pytest.raises(ModelError, match="is not an ONNX model"):
        load_model(content)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "model.onnx"
    content = model_with(numpy_helper.from_array(arrays()["large"], "large")).SerializeToString()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert "download or export is complete" in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.onnx", tmp_path):
        with pytest.raises(ModelError, match="cannot be opened"):
            load_model(path)


def test_wire_errors() -> None:
    for content in (b"\x0b", b"\x3a\x05ab", b"\x80", b"\xff" * 12):
        with pytest.raises(WireError):
            cut_weights(memoryview(content))


def test_raw_data_of_the_wrong_length(tmp_path: Path) -> None:
    for count in (10, 2 * LARGE):
        tensor = numpy_helper.from_array(np.zeros(count, np.float32), "weights")
        tensor.raw_data = tensor.raw_data[:-4]
        path = tmp_path / f"{count}.onnx"
        onnx.save(model_with(tensor), path)
        loaded = load_model(path)
        with pytest.raises(ModelError, match="weights"):
            loaded.tensor(loaded.proto.graph.initializer[0])


def test_negative_dims() -> None:
    loaded = load_model(model_with(TensorProto(name="odd", data_type=TensorProto.FLOAT, dims=[-1], raw_data=b"")))
    with pytest.raises(ModelError, match="negative dim"):
        loaded.tensor(loaded.proto.graph.initializer[0])


def test_external_data(tmp_path: Path) -> None:
    first, second = arrays()["large"], arrays()["brain"]
    (tmp_path / "weights.bin").write_bytes(first.tobytes() + second.tobytes())
    proto = model_with(
        external("first", first, location="weights.bin"),
        external("second", second, location="weights.bin", offset=str(first.nbytes), length=str(second.nbytes)),
        external("none", np.zeros((0, 3), np.float32), location="weights.bin"),
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    loaded = load_model(path)
    found = [loaded.tensor(tensor) for tensor in loaded.proto.graph.initializer]
    assert np.array_equal(found[0], first)
    assert found[1].tobytes() == second.tobytes()
    assert found[2].shape == (0, 3)
    assert len(loaded.external) == 1


def test_external_file_of_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").touch()
    path = tmp_path / "model.onnx"
    path.write_bytes(model_with(external("none", np.zeros(0, np.float32), location="empty.bin")).SerializeToString())
    loaded = load_model(path)
    assert loaded.tensor(loaded.proto.graph.initializer[0]).shape == (0,)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../outside.bin"}, "outside of the model's folder"),
        ({"location": "/etc/hostname"}, "outside of the model's folder"),
        ({"location": "inner/../../outside.bin"}, "outside of the model's folder"),
        ({"location": "link.bin"}, "outside of the model's folder"),
        ({"location": ""}, "outside of the model's folder"),
        ({}, "outside of the model's folder"),
        ({"location": "absent.bin"}, "cannot be opened"),
        ({"location": "weights.bin", "offset": "8"}, "too short"),
        ({"location": "weights.bin", "offset": "-8"}, "malformed"),
        ({"location": "weights.bin", "length": "8"}, "holds 8 bytes"),
        ({"location": "weights.bin", "length": "-1"}, "malformed"),
        ({"location": "weights.bin", "offset": "many"}, "malformed"),
    ],
)
def test_external_data_that_cannot_be_read(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(16))
    (folder / "weights.bin").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    path = folder / "model.onnx"
    path.write_bytes(model_with(external("weights", np.zeros(4, np.float32), **entries)).SerializeToString())
    loaded = load_model(path)
    with pytest.raises(ModelError, match=message):
        loaded.tensor(loaded.proto.graph.initializer[0])


def test_links_of_a_download_cache(tmp_path: Path) -> None:
    """The model and its data are links to files that lie side by side, under other names."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    array = arrays()["large"]
    (blobs / "b2").write_bytes(array.tobytes())
    (blobs / "a1").write_bytes(model_with(external("weights", array, location="model.onnx_data")).SerializeToString())
    (snapshot / "model.onnx").symlink_to("../../blobs/a1")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/b2")
    loaded = load_model(snapshot / "model.onnx")
    assert np.array_equal(loaded.tensor(loaded.proto.graph.initializer[0]), array)


def test_dims_past_all_bounds(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(16))
    tensor = external("weights", np.zeros(4, np.float32), location="weights.bin")
    tensor.dims[:] = [1 << 32, 1 << 32]
    path = tmp_path / "model.onnx"
    path.write_bytes(model_with(tensor).SerializeToString())
    loaded = load_model(path)
    with pytest.raises(ModelError, match="too short"):
        loaded.tensor(loaded.proto.graph.initializer[0])


@pytest.mark.parametrize("model", [None, 3, ["model.onnx"]])
def test_what_is_no_model_at_all(model: object) -> None:
    with pytest.raises(ModelError, match="is no model"):
        load_model(model)


def test_an_artifact_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    path.write_bytes(b"TILEWRT\x01" + bytes(4088))
    with pytest.raises(ModelError, match="is an artifact"):
        load_model(path)


def test_external_data_without_a_folder() -> None:
    loaded = load_model(model_with(external("weights", np.zeros(4, np.float32), location="weights.bin")))
    with pytest.raises(ModelError, match="the model has no folder"):
        loaded.tensor(loaded.proto.graph.initializer[0])


def test_sparse_tensors() -> None:
    values = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "sparse")
    loaded = load_model(model_with(values))
    for indices in (np.array([1, 5]), np.array([[0, 1], [1, 2]])):
        sparse = onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(indices), dims=[2, 3])
        assert loaded.dense(sparse).tolist() == [[0, 1, 0], [0, 0, 2]]
    outside = onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(np.array([1, 6])), dims=[2, 3])
    with pytest.raises(ModelError, match="sparse tensor 'sparse' is malformed"):
        loaded.dense(outside)


def test_element_types() -> None:
    assert {dtype.name for dtype in DTYPES.values()} >= {"float32", "bfloat16", "int4", "float8e5m2", "string", "bool"}
    with pytest.raises(UnsupportedDtypeError, match="element type UNDEFINED"):
        dtype_of(0)


def test_text_values() -> None:
    tensor = helper.make_tensor("words", TensorProto.STRING, [2], [b"one", b"two"])
    loaded = load_model(model_with(tensor))
    assert [str(word) for word in loaded.tensor(loaded.proto.graph.initializer[0])] == ["one", "two"]


def test_names_that_are_no_text() -> None:
    damaged = build("mlp", sizes=(8, 4)).SerializeToString().replace(b"Gemm", b"\x80emm", 1)
    with pytest.raises(ModelError, match="stands where a name must"):
        load_model(damaged)
