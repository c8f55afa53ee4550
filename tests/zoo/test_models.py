"""Every model of the zoo, in small sizes: valid, runnable, of order one, and dependent on its input."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tilewright.zoo import CATALOG, build, example_inputs

TRANSFORMER = {"hidden": 32, "heads": 4, "vocab": 50, "layers": 2}

# name of the case -> (model, options, sizes of symbolic axes).
CASES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "resnet18": ("resnet18", {"width": 8, "image": 32, "classes": 10}, {}),
    "resnet18-symbolic": ("resnet18", {"width": 8, "image": "side", "batch": "N", "classes": 10}, {"N": 2, "side": 40}),
    "resnet50": ("resnet50", {"width": 8, "image": 32, "batch": 2, "classes": 10}, {}),
    "mobilenet_v2": ("mobilenet_v2", {"width": 0.25, "image": 64, "batch": "N", "classes": 10}, {"N": 2}),
    "bert": ("bert", {**TRANSFORMER, "intermediate": 64, "max_positions": 32}, {"batch": 2, "sequence": 7}),
    "bert-static": (
        "bert",
        {**TRANSFORMER, "intermediate": 64, "max_positions": 32, "batch": 2, "sequence": 5, "layer_norm": "op"},
        {},
    ),
    "gpt2": ("gpt2", {**TRANSFORMER, "ctx": 32, "batch": "N"}, {"N": 2, "sequence": 6}),
    "gpt2-static": ("gpt2", {**TRANSFORMER, "ctx": 32, "sequence": 6, "layer_norm": "decomposed"}, {}),
    "gpt2_decode": ("gpt2_decode", {**TRANSFORMER, "ctx": 32}, {"past": 6}),
    "gpt2_decode-static": ("gpt2_decode", {**TRANSFORMER, "ctx": 32, "past": 4, "sequence": 2}, {}),
    "mlp": ("mlp", {"sizes": (20, 30, 10), "batch": "N"}, {"N": 3}),
    "lstm_lm": ("lstm_lm", {"hidden": 16, "vocab": 40, "sequence": "steps"}, {"steps": 5}),
}


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds)))


@pytest.mark.parametrize("case", CASES)
def test_model_is_valid_and_its_outputs_have_the_declared_shapes(case: str) -> None:
    name, options, dims = CASES[case]
    model = build(name, **options)
    onnx.checker.check_model(model, full_check=True)
    results = run(model, example_inputs(model, dims))
    assert [info.name for info in model.graph.output] == list(results)
    for info in model.graph.output:
        result = results[info.name]
        for declared, actual in zip(info.type.tensor_type.shape.dim, result.shape, strict=True):
            expected = declared.dim_value or eval(declared.dim_param, {}, dims)  # "past + 1"
            assert expected == actual


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_of_order_one_and_depend_on_the_input(case: str) -> None:
    name, options, dims = CASES[case]
    model = build(name, **options)
    first, second = (next(iter(run(model, example_inputs(model, dims, seed)).values())) for seed in (1, 2))
    assert np.isfinite(first).all()
    assert 0.1 < first.std() < 10
    assert (first - second).std() > 0.2 * first.std()


def test_every_model_of_the_catalogue_has_a_case() -> None:
    assert {name for name, _, _ in CASES.values()} == set(CATALOG)


@pytest.mark.parametrize(("name", "layers"), [("resnet18", 8), ("mobilenet_v2", 1)])
def test_activations_neither_vanish_nor_explode_through_depth(name: str, layers: int) -> None:
    options: dict[str, Any] = {"blocks": (layers, 2, 2, layers)} if name == "resnet18" else {}
    model = build(name, width=16 if name == "resnet18" else 0.5, image=64, **options)
    inner = [node.output[0] for node in model.graph.node if node.op_type == "BatchNormalization"]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(value) for value in inner)
    results = run(model, example_inputs(model))
    deviations = [float(results[value].std()) for value in inner]
    assert min(deviations) > 0.1
    assert max(deviations) < 10


def test_mlp_computes_what_numpy_computes() -> None:
    model = build("mlp", seed=3, sizes=(20, 30, 25, 10), batch="N")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    x = example_inputs(model, {"N": 4}, seed=1)["input"]
    expected = x
    for layer in ("fc1", "fc2", "fc3"):
        expected = expected @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        if layer != "fc3":
            expected = np.maximum(expected, 0)
    np.testing.assert_allclose(run(model, {"input": x})["output"], expected, rtol=1e-4, atol=1e-5)


def test_gpt2_continues_from_its_own_cache_as_if_it_had_read_the_whole() -> None:
    sizes = {**TRANSFORMER, "ctx": 32}
    prefill, decode = build("gpt2", seed=5, **sizes), build("gpt2_decode", seed=5, **sizes)
    tokens = np.array([[3, 14, 15, 9, 2, 6, 5]])
    whole = run(prefill, {"input_ids": tokens})
    prompt = run(prefill, {"input_ids": tokens[:, :-1]})
    cache = {name.replace("present", "past"): value for name, value in prompt.items() if name.startswith("present")}
    step = run(decode, {"input_ids": tokens[:, -1:], **cache})
    np.testing.assert_allclose(step["logits"], whole["logits"][:, -1:], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(step["present.1.value"], whole["present.1.value"], rtol=1e-4, atol=1e-4)


def test_gpt2_does_not_look_ahead() -> None:
    model = build("gpt2", **TRANSFORMER, ctx=32)
    tokens = np.array([[3, 14, 15, 9, 2]])
    changed = np.array([[3, 14, 15, 9, 40]])
    first, second = run(model, {"input_ids": tokens})["logits"], run(model, {"input_ids": changed})["logits"]
    np.testing.assert_allclose(first[:, :-1], second[:, :-1], rtol=1e-5, atol=1e-5)
    assert np.abs(first[:, -1] - second[:, -1]).max() > 0.1


def test_bert_ignores_masked_tokens() -> None:
    model = build("bert", **TRANSFORMER, intermediate=64, max_positions=32)
    feeds = example_inputs(model, {"batch": 1, "sequence": 6})
    feeds["attention_mask"] = np.array([[1, 1, 1, 1, 0, 0]])
    changed = {**feeds, "input_ids": feeds["input_ids"].copy()}
    changed["input_ids"][:, 4:] += 1
    changed["input_ids"] %= TRANSFORMER["vocab"]
    first, second = (run(model, inputs)["last_hidden_state"] for inputs in (feeds, changed))
    np.testing.assert_allclose(first[:, :4], second[:, :4], rtol=1e-5, atol=1e-5)
    assert np.abs(first[:, 4:] - second[:, 4:]).max() > 0.1


def test_lstm_carries_its_state_from_call_to_call() -> None:
    model = build("lstm_lm", hidden=16, vocab=40, sequence="steps")
    feeds = example_inputs(model, {"steps": 6})
    whole = run(model, feeds)
    first = run(model, {**feeds, "input_ids": feeds["input_ids"][:, :4]})
    second = run(model, {"input_ids": feeds["input_ids"][:, 4:], "h0": first["hn"], "c0": first["cn"]})
    np.testing.assert_allclose(second["logits"], whole["logits"][:, 4:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(second["cn"], whole["cn"], rtol=1e-4, atol=1e-5)


def test_graphs_look_like_what_exporters_write() -> None:
    def kinds(name: str, **options: Any) -> set[str]:
        return {node.op_type for node in build(name, **options).graph.node}

    small = {**TRANSFORMER, "layers": 1}
    assert {"Conv", "BatchNormalization", "Relu", "GlobalAveragePool", "Flatten", "Gemm"} <= kinds("resnet18", width=8)
    assert {"Shape", "Gather", "Unsqueeze", "Concat", "Reshape", "Erf", "ReduceMean"} <= kinds("bert", **small)
    assert "Shape" not in kinds("bert", **small, batch=1, sequence=8)
    assert {"Range", "LessOrEqual", "Where", "Split", "Tanh", "LayerNormalization"} <= kinds("gpt2", **small)
