"""Whole models: the passes keep their results and take out what they should."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.transform.test_passes import PASSES
from tilewright.frontend.onnx import import_model, load_model
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Module, walk_nodes
from tilewright.transform.functions import on_all_functions
from tilewright.transform.verify import verify_module
from tilewright.zoo import build, example_inputs

TRANSFORMER = {"hidden": 32, "heads": 4, "vocab": 50, "layers": 2}
BERT = {**TRANSFORMER, "intermediate": 64, "max_positions": 32}

# name of the case -> (model, options, sizes of symbolic axes, operators that must be there in these numbers after optimisation)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, int], dict[str, int]]] = {
    "resnet18": ("resnet18", {"width": 8, "image": 32, "classes": 10}, {}, {"convolution": 20, "add": 29, "mul": 0, "batch_norm": 0}),
    "mobilenet_v2": ("mobilenet_v2", {"width": 0.25, "image": 64, "batch": "N", "classes": 10}, {"N": 2}, {"mul": 1, "batch_norm": 0}),
    "bert": ("bert", BERT, {"batch": 2, "sequence": 7}, {"transpose": 0, "gelu": 2, "layer_norm": 5, "softmax": 2}),
    "bert-layer-norm": ("bert", {**BERT, "layer_norm": "op"}, {"batch": 2, "sequence": 7}, {"gelu": 2, "layer_norm": 5}),
    "gpt2": ("gpt2", {**TRANSFORMER, "ctx": 32, "batch": "N"}, {"N": 2, "sequence": 6}, {"gelu": 2, "layer_norm": 5}),
    "gpt2-decomposed": ("gpt2", {**TRANSFORMER, "ctx": 32, "sequence": 6, "layer_norm": "decomposed"}, {}, {"layer_norm": 5}),
    "gpt2_decode": ("gpt2_decode", {**TRANSFORMER, "ctx": 32}, {"past": 6}, {"gelu": 2}),
    "mlp": ("mlp", {"sizes": (20, 30, 10), "batch": "N"}, {"N": 3}, {"transpose": 0}),
    "lstm_lm": ("lstm_lm", {"hidden": 16, "vocab": 40, "sequence": "steps"}, {"steps": 5}, {}),
}


def operators(module: Module) -> Counter[str]:
    return Counter(getattr(node.op, "fn", node.op.name) for node in walk_nodes(module.main.results))


@pytest.mark.parametrize("case", CASES)
def test_models_of_the_zoo(case: str) -> None:
    name, options, dims, wanted = CASES[case]
    proto = build(name, **options)
    module = import_model(load_model(proto)).module
    feeds = example_inputs(proto, dims)
    inputs = [feeds[label] for label in module.input_names]
    expected = interpret(module, inputs)
    before = sum(operators(module).values())
    for pass_name, apply in PASSES.items():
        module = on_all_functions(module, apply)
        verify_module(module, pass_name)
    for a, e in zip(interpret(module, inputs), expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(e).max())))
    found = operators(module)
    assert {operator: found[operator] for operator in wanted} == wanted
    assert sum(found.values()) <= before + 40  # recurrent layers become loops
