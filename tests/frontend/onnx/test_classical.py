"""Classical models (ai.onnx.ml) against onnxruntime: tree ensembles, linear models, features."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret
from tilewright.support.errors import ModelError, UnsupportedOperatorError


def build(op: str, x: np.ndarray, outputs: int, version: int = 3, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], [f"y{i}" for i in range(outputs)], domain="ai.onnx.ml", name="node", **attributes)
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name=name) for name in node.output])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(op: str, x: np.ndarray, outputs: int = 1, version: int = 3, tolerance: float = 1e-5, **attributes: Any) -> None:
    model = build(op, x, outputs, version, **attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, {"x": x})
    ours = interpret(import_model(load_model(model)).module, [x])
    for got, want in zip(ours, expected, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def old_trees(prefix: str, targets: list[int], seed: int, positive: bool, mode: str = "BRANCH_LEQ") -> dict[str, Any]:
    """Four full trees of depth 2; each leaf has a weight for one of `targets`."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    }
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(4):
        for node in range(7):
            leaf = node > 2
            row = (tree, node, int(rng.integers(0, 3)), "LEAF" if leaf else mode, float(rng.normal()))
            for name, value in zip(found, (*row, 0 if leaf else 2 * node + 1, 0 if leaf else 2 * node + 2), strict=True):
                found[name].append(value)
            if leaf:
                weight = float(rng.uniform(0, 0.25) if positive else rng.normal())
                for name, value in zip(leaves, (tree, node, targets[int(rng.integers(0, len(targets)))], weight), strict=True):
                    leaves[name].append(value)
    attributes = {f"nodes_{name}": values for name, values in found.items()}
    return attributes | {f"{prefix}_{name}": values for name, values in leaves.items()}


ROWS = np.random.default_rng(9).standard_normal((20, 3)).astype(np.float32)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"])
def test_regressor(aggregate: str, mode: str) -> None:
    trees = old_trees("target", [0, 1], 1, False, mode)
    check("TreeEnsembleRegressor", ROWS, n_targets=2, aggregate_function=aggregate, **trees)


def test_regressor_with_base_values_and_transform() -> None:
    trees = old_trees("target", [0, 1], 1, False)
    check("TreeEnsembleRegressor", ROWS, n_targets=2, post_transform="SOFTMAX", **trees)
    # with one target: onnxruntime leaves out the base value of a target that no tree contributes to
    check("TreeEnsembleRegressor", ROWS, n_targets=1, base_values=[0.5], **old_trees("target", [0], 1, False))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_classifier_of_many(transform: str) -> None:
    trees = old_trees("class", [0, 1, 2], 2, True)
    labels = {"classlabels_int64s": [10, 20, 30]}
    check("TreeEnsembleClassifier", ROWS, 2, post_transform=transform, base_values=[0.1, 0.2, 0.3], **labels, **trees)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("base", [None, [0.2]])
def test_classifier_of_two(transform: str, positive: bool, base: list[float] | None) -> None:
    trees = old_trees("class", [0], 3, positive)
    more = {} if base is None else {"base_values": base}
    check("TreeEnsembleClassifier", ROWS, 2, post_transform=transform, classlabels_int64s=[0, 1], **more, **trees)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize(
    "weights", [[0.0], [0.25], [0.0, 0.25], [0.0, 0.125, 0.25], [-0.0, 0.25], [-1e-30, 0.25], [0.0, -0.25], [-0.25]], ids=str
)
def test_signs_of_the_weights_of_one_class(weights: list[float], transform: str) -> None:
    """Whether any of them is negative decides what the score of the other class is, and from which score on it is this one."""
    trees = old_trees("class", [0], 3, True)
    trees["class_weights"] = (weights * 16)[:16]
    check("TreeEnsembleClassifier", ROWS, 2, post_transform=transform, classlabels_int64s=[0, 1], **trees)


def test_labels_that_are_strings() -> None:
    model = build("TreeEnsembleClassifier", ROWS, 2, classlabels_strings=["a", "b", "c"], **old_trees("class", [0, 1, 2], 2, True))
    with pytest.raises(UnsupportedOperatorError, match="labels that are strings"):
        import_model(load_model(model))


def test_trees_that_point_nowhere() -> None:
    trees = old_trees("target", [0], 1, False)
    trees["nodes_truenodeids"][0] = 99
    with pytest.raises(ModelError, match="no node has the tree and number"):
        import_model(load_model(build("TreeEnsembleRegressor", ROWS, 1, n_targets=1, **trees)))


def test_trees_that_form_a_cycle() -> None:
    trees = old_trees("target", [0], 1, False)
    trees["nodes_truenodeids"][1] = 1
    with pytest.raises(ModelError, match="no trees"):
        import_model(load_model(build("TreeEnsembleRegressor", ROWS, 1, n_targets=1, **trees)))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear_models(transform: str) -> None:
    rng = np.random.default_rng(4)
    weights, bias = rng.normal(size=9).tolist(), rng.normal(size=3).tolist()
    check("LinearRegressor", ROWS, targets=3, coefficients=weights, intercepts=bias, post_transform=transform)
    check("LinearClassifier", ROWS, 2, coefficients=weights, intercepts=bias, classlabels_ints=[5, 6, 7], post_transform=transform)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_linear_classifier_of_two(transform: str) -> None:
    weights = np.random.default_rng(5).normal(size=3).tolist()
    check("LinearClassifier", ROWS, 2, coefficients=weights, intercepts=[0.3], classlabels_ints=[0, 1], post_transform=transform)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    check("Normalizer", np.abs(ROWS), norm=norm)


def test_features() -> None:
    check("Scaler", ROWS, offset=[0.5, 1.0, -1.0], scale=[2.0, 3.0, 0.5])
    check("Scaler", ROWS, offset=[0.5], scale=[2.0])
    check("Binarizer", ROWS, threshold=0.25)
    missing = ROWS.copy()
    missing[missing > 1] = np.nan
    check("Imputer", missing, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    check("Imputer", np.array([[1, 2, 1]]), imputed_value_int64s=[7], replaced_value_int64=1)
    check("OneHotEncoder", np.array([[3], [1], [9]]), cats_int64s=[1, 2, 3], zeros=1)


def test_label_encoder() -> None:
    check("LabelEncoder", np.array([[3, 1], [9, 4]]), keys_int64s=[1, 3, 4], values_floats=[0.5, 1.5, 2.5], default_float=-2.0)
    floats = np.array([1.0, np.nan, 2.5], np.float32)
    check("LabelEncoder", floats, version=4, keys_floats=[2.5, 1.0, float("nan")], values_int64s=[1, 2, 3], default_int64=0)
