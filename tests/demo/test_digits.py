"""The shipped network is small and right, and the picture shows what it answered."""

from __future__ import annotations

from collections import Counter
from importlib import resources

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tilewright.demo import accuracy, model_bytes, network_input, render, samples
from tilewright.support.errors import InputError


def test_the_network_reads_the_shipped_images() -> None:
    shown = samples()
    assert (shown.images.shape, shown.images.dtype, shown.labels.shape) == ((64, 8, 8), np.uint8, (64,))
    assert shown.images.max() == 16
    (probabilities,) = ReferenceEvaluator(onnx.load_from_string(model_bytes())).run(None, {"image": network_input(shown.images)})
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    assert accuracy(probabilities, shown.labels) >= 0.95


def test_all_ten_digits_are_shown() -> None:
    assert set(samples().labels.tolist()) == set(range(10))


def test_size_budget() -> None:
    files = resources.files("tilewright.demo")
    assert len(model_bytes()) <= 100_000
    assert len(files.joinpath("digits.npz").read_bytes()) <= 10_000


def test_the_model_is_valid_states_its_accuracy_and_takes_any_batch() -> None:
    model = onnx.load_from_string(model_bytes())
    onnx.checker.check_model(model, full_check=True)
    facts = {prop.key: prop.value for prop in model.metadata_props}
    assert float(facts["test_accuracy"]) >= 0.98
    assert int(facts["test_images"]) >= 300
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["Conv"] == kinds["BatchNormalization"] == kinds["Relu"] == 4
    assert {"MaxPool", "Flatten", "Gemm", "Softmax"} <= set(kinds)


def test_the_notice_names_source_and_licence() -> None:
    notice = resources.files("tilewright.demo").joinpath("NOTICE").read_text(encoding="utf-8")
    assert "Optical Recognition of Handwritten Digits" in notice
    assert "CC BY 4.0" in notice


def test_network_input_scales_to_one() -> None:
    scaled = network_input(np.full((2, 8, 8), 16, np.uint8))
    assert (scaled.shape, scaled.dtype, float(scaled.max())) == ((2, 1, 8, 8), np.float32, 1.0)


def test_render_shows_pixels_verdicts_and_the_total() -> None:
    images = np.zeros((5, 8, 8), np.uint8)
    images[:, 0, :5] = [0, 4, 8, 12, 16]
    probabilities = np.full((5, 10), 0.01, np.float32)
    probabilities[:, 3] = 0.91
    picture = render(images, probabilities, np.array([3, 7, 3, 3, 3], np.uint8))
    lines = picture.split("\n")
    assert lines[0].startswith("  ░░▒▒▓▓██")
    assert lines[0].count("██") == 4
    assert lines[8].split("%")[0] == "3  91.0"
    assert "3  91.0%  ✗ is 7" in lines[8]
    assert lines[8].count("✓") == 3
    assert lines[-1] == "4 of 5 digits right (80.0%)"
    assert max(map(len, lines)) <= 73


def test_render_limits_what_it_draws_but_counts_all() -> None:
    shown = samples()
    answers = np.eye(10, dtype=np.float32)[shown.labels]
    picture = render(shown.images, answers, shown.labels, count=3)
    assert picture.count("100.0%  ✓") == 3
    assert picture.endswith("64 of 64 digits right (100.0%)")


def test_render_refuses_what_does_not_fit() -> None:
    shown = samples()
    with pytest.raises(InputError, match="do not fit 64 images"):
        render(shown.images, np.zeros((3, 10), np.float32), shown.labels)
