"""The catalogue: options, their checks, example inputs and saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tilewright.support.errors import InputError, SettingsError
from tilewright.zoo import CATALOG, build, example_inputs, parse_options, save, write

SMALL = {"sizes": (8, 6, 4)}


def test_equal_arguments_give_equal_models_and_seeds_differ() -> None:
    assert build("mlp", seed=1, **SMALL).SerializeToString() == build("mlp", seed=1, **SMALL).SerializeToString()
    first, second = build("mlp", seed=1, **SMALL).graph, build("mlp", seed=2, **SMALL).graph
    assert all(a.raw_data != b.raw_data for a, b in zip(first.initializer, second.initializer, strict=True))


def test_a_model_records_what_it_was_built_from() -> None:
    record = {prop.key: prop.value for prop in build("mlp", seed=7, batch="N", **SMALL).metadata_props}
    assert (record["zoo.model"], record["zoo.seed"]) == ("mlp", "7")
    assert json.loads(record["zoo.options"]) == {"batch": "N", "sizes": [8, 6, 4]}


@pytest.mark.parametrize("name", CATALOG)
def test_every_option_is_documented_and_has_its_default(name: str) -> None:
    entry = CATALOG[name]
    options = entry.options()
    assert len(options) >= 2
    for option in options:
        assert len(option.meaning) > 8
        assert getattr(entry.defaults, option.name) == option.default


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet19", {}, "no model 'resnet19'"),
        ("mlp", {"seed": -1}, "seed=-1 is negative"),
        ("mlp", {"depth": 3}, "no option 'depth'"),
        ("mlp", {"batch": 0}, "batch=0 is not a positive integer or a name"),
        ("mlp", {"batch": "two words"}, "is not a positive integer or a name"),
        ("mlp", {"sizes": (4, 0)}, "not a tuple of positive integers"),
        ("mlp", {"sizes": (4,)}, "at least an input and an output"),
        ("resnet18", {"bottleneck": 1}, "not True or False"),
        ("resnet18", {"classes": True}, "not a positive integer"),
        ("mobilenet_v2", {"width": 0}, "not a positive multiplier"),
        ("bert", {"heads": 5}, "does not divide"),
        ("bert", {"layer_norm": "fused"}, "'op' or 'decomposed'"),
        ("gpt2", {"sequence": 2000}, "more than ctx"),
    ],
)
def test_wrong_options_are_refused_with_what_is_right(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build(name, **options)
    assert message in str(caught.value)


def test_options_from_a_command_line() -> None:
    assert parse_options("mlp", ["batch=N", "sizes=4,5,6"]) == {"batch": "N", "sizes": (4, 5, 6)}
    assert parse_options("resnet50", ["bottleneck=false", "batch=8"]) == {"bottleneck": False, "batch": 8}
    assert parse_options("mobilenet_v2", ["width=0.5"]) == {"width": 0.5}
    with pytest.raises(SettingsError, match="name=value"):
        parse_options("mlp", ["batch"])
    with pytest.raises(SettingsError, match="not a positive integer"):
        build("lstm_lm", **parse_options("lstm_lm", ["layers=two"]))


def test_example_inputs_are_meaningful_and_repeatable() -> None:
    model = build("bert", layers=1, hidden=8, heads=2, intermediate=8, vocab=5, max_positions=64)
    feeds = example_inputs(model, {"batch": 3, "sequence": 40}, seed=4)
    assert {name: (value.shape, value.dtype) for name, value in feeds.items()} == dict.fromkeys(feeds, ((3, 40), np.dtype(np.int64)))
    assert set(np.unique(feeds["input_ids"])) == set(range(5))
    mask = feeds["attention_mask"]
    assert (mask[:, 0] == 1).all()
    assert (np.diff(mask, axis=1) <= 0).all()
    again = example_inputs(model, {"batch": 3, "sequence": 40}, seed=4)
    assert all((again[name] == feeds[name]).all() for name in feeds)


def test_example_inputs_of_a_model_from_elsewhere() -> None:
    inputs = [
        helper.make_tensor_value_info("half", TensorProto.FLOAT16, [2, "N"]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        helper.make_tensor_value_info("weight", TensorProto.FLOAT, [1]),
    ]
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [1], [1.0])
    model = helper.make_model(helper.make_graph([], "g", inputs, [], [weight]))
    feeds = example_inputs(model, {"N": 3})
    assert {name: (value.shape, value.dtype.name) for name, value in feeds.items()} == {"half": ((2, 3), "float16"), "flag": ((), "bool")}
    with pytest.raises(InputError, match="axis 1 of input 'half' has a symbolic size 'N'"):
        example_inputs(model)


def test_write_leaves_one_loadable_file(tmp_path: Path) -> None:
    path = write("mlp", tmp_path / "new" / "mlp.onnx", seed=2, **SMALL)
    assert [entry.name for entry in path.parent.iterdir()] == ["mlp.onnx"]
    assert onnx.load(path).SerializeToString() == build("mlp", seed=2, **SMALL).SerializeToString()


def test_large_weights_go_to_a_file_next_to_the_model(tmp_path: Path) -> None:
    sizes = {"sizes": (64, 64, 10)}
    path = save(build("mlp", **sizes), tmp_path / "mlp.onnx", external_above=1000)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mlp.onnx", "mlp.onnx.data"]
    model = build("mlp", **sizes)
    feeds = example_inputs(model)
    (inside,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (outside,) = onnxruntime.InferenceSession(path).run(None, feeds)
    np.testing.assert_array_equal(inside, outside)


def test_a_failed_save_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"sizes": (64, 64, 10)}
    path = save(build("mlp", **sizes), tmp_path / "mlp.onnx", external_above=0)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}

    def fail(model: onnx.ModelProto, part: Path, **options: object) -> None:
        part.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(onnx, "save_model", fail)
    with pytest.raises(OSError, match="disk full"):
        save(build("mlp", seed=9, **sizes), path, external_above=0)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before
