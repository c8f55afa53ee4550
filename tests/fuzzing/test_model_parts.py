"""`tw.fuzz(like=model)`: parts of a model, with other dims, are valid graphs made of its operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.fuzzing import model_parts
from tilewright.fuzzing.cases import Case, How, operators_of
from tilewright.fuzzing.graphs import grow
from tilewright.fuzzing.model_parts import SMALL, fitted, nodes_of, other_dims
from tilewright.fuzzing.shrink import _known_sizes
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Parameter
from tilewright.graph.ops import Constant, Slice, Unary
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor


def test_parts_of_a_model_are_cases_that_compile_right(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    zoo.write("mlp", model, batch="batch")
    own = {node.op.name for node in nodes_of(str(model))}
    grown = [grow(seed, model=str(model)) for seed in range(12)]
    for each in grown:
        for inputs in each.inputs:
            assert all(np.isfinite(result.astype(np.float64)).mean() > 0.4 for result in interpret(each.function, inputs) if result.size)
    met = {name.split(".")[0] for each in grown for name in operators_of(each.function)}
    assert own <= met
    report = tw.fuzz(model, cases=4, seed=2, out=tmp_path / "found")
    assert report.ok, str(report)


def test_dims_change_alike_and_products_stay_products() -> None:
    dims = [const(n) for n in (3, 12, 64, 768)]
    for seed in range(20):
        changed = other_dims(dims, np.random.default_rng(seed))
        assert changed[const(3)] is const(3)
        assert SMALL >= 3
        assert changed[const(768)].value == changed[const(12)].value * changed[const(64)].value


def test_a_constant_that_would_become_too_large_is_never_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    zoo.write("mlp", model)
    part = [node for node in nodes_of(str(model)) if any(isinstance(v.op, Constant) and v.type.rank for v in node.inputs)][:1]
    assert part
    monkeypatch.setattr(model_parts, "other_dims", lambda dims, rng: dict.fromkeys(dims, const(1 << 16)))
    monkeypatch.setattr(model_parts, "fitted", lambda array, shape: pytest.fail(f"an array of the shape {shape}"))
    assert model_parts.rebuilt(part, np.random.default_rng(0)) is None


def test_a_part_whose_attributes_mention_sizes_of_other_inputs_is_refused() -> None:
    n, g = size("n", 1, 4), GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (8,))))
    last = g.one(Slice((n - 1,), (const(1),), (1,)), x)
    assert model_parts.rebuilt([last.node], np.random.default_rng(0)) is None
    x = g.one(Parameter("x", tensor(dtypes.float32, (n + 3,))))
    last = g.one(Slice((n - 1,), (const(1),), (1,)), x)
    assert model_parts.rebuilt([last.node], np.random.default_rng(0)) is not None


def test_what_only_some_sizes_fit_is_no_part(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[n] x) => (float[2] a, float[3] b) <int64[2] s = {2, 3}> { y = Abs(x) \n a, b = Split<axis = 0>(y, s) }""")
    onnx.save(model, tmp_path / "model.onnx")
    names = {node.op.name for node in nodes_of(str(tmp_path / "model.onnx"))}
    assert "slice" in names
    assert "refine_shape" not in names


def test_a_size_that_becomes_known_is_known_in_what_is_computed_of_it() -> None:
    n, g = size("n", 1, 8), GraphBuilder()
    params = g.one(Parameter("x", tensor(dtypes.float32, (n * 2,)))), g.one(Parameter("sizes", tensor(dtypes.bool_, (n,))))
    function = Function("main", params, (g.one(Unary("neg"), params[0]),))
    case = Case(function, ((np.ones(6, np.float32), np.ones(3, np.bool_)),), How(), 0)
    (smaller,) = _known_sizes(case)
    assert all(dim.is_const for param in smaller.function.params for dim in param.shape)
    (result,) = interpret(smaller.function, smaller.inputs[0])
    np.testing.assert_array_equal(result, np.full(6, -1, np.float32))


def test_constants_are_cut_or_repeated() -> None:
    array = np.arange(6).reshape(2, 3)
    assert fitted(array, (1, 2)).tolist() == [[0, 1]]
    assert fitted(array, (3, 4)).tolist() == [[0, 1, 2, 0], [3, 4, 5, 3], [0, 1, 2, 0]]
