"""`compare` on models that are right, and on compilers into which a fault was put: it must say where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.accuracy.faults import doubled, slightly_off
from tilewright import compiler, zoo
from tilewright.accuracy.bisect import first_bad
from tilewright.accuracy.judge import SURE, Judge
from tilewright.ir.expr import const
from tilewright.kernel.schedule.schedule import PRIMITIVES
from tilewright.plan import placing
from tilewright.support.errors import InputError, SettingsError
from tilewright.target.cpu import groups


def layered() -> onnx.ModelProto:
    """A convolution with batch norm, two branches that join, a softmax taken apart: something for every pass."""
    generator = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) / 4).astype(np.float32)

    constants = {
        "kernel": weights(8, 3, 3, 3), "matrix": weights(128, 16), "square": weights(16, 16), "scale": weights(8) + 1, "shift": weights(8),
        "mean": weights(8), "variance": np.abs(weights(8)) + 1, "flat": np.asarray([-1, 128]), "last": np.asarray([-1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["c"], "conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["b"], "norm"),
        helper.make_node("Relu", ["b"], ["r"], "relu"),
        helper.make_node("Reshape", ["r", "flat"], ["v"], "flatten"),
        helper.make_node("MatMul", ["v", "matrix"], ["m"], "dense"),
        helper.make_node("MatMul", ["m", "square"], ["p"], "left"),
        helper.make_node("Sigmoid", ["p"], ["s"], "gate"),
        helper.make_node("Mul", ["m", "s"], ["g"], "join"),
        helper.make_node("ReduceMax", ["g"], ["top"], "top", axes=[1]),
        helper.make_node("Sub", ["g", "top"], ["d"], "centred"),
        helper.make_node("Exp", ["d"], ["e"], "exponential"),
        helper.make_node("ReduceSum", ["e", "last"], ["t"], "total"),
        helper.make_node("Div", ["e", "t"], ["shares"], "share"),
    ]
    graph = helper.make_graph(
        nodes,
        "layered",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("shares", TensorProto.FLOAT, ["batch", 16])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return layered()


def test_a_right_model_is_the_same_as_every_account(model: onnx.ModelProto, tmp_path: Path) -> None:
    tw.compile(model, cache=False, progress="none").save(tmp_path / "m.tw")
    for against in ("reference", "onnxruntime", str(tmp_path / "m.tw")):
        found = tw.compare(model, against=against)
        assert found.ok, str(found)
        assert found.first is None
        assert len(found.kernels) > 2
        assert all(row.error is not None and row.error.relative < 1e-4 for row in found.kernels)
    assert json.loads(json.dumps(found.to_json()))["ok"]
    assert any("relu" in node for row in found.kernels for node in row.nodes)


def test_inputs_may_be_given_and_must_be_right(model: onnx.ModelProto) -> None:
    image = np.ones((2, 3, 8, 8), np.float32)
    assert tw.compare(model, {"image": image}).outputs[0].shape == (2, 16)
    with pytest.raises(InputError, match="no input 'picture'"):
        tw.compare(model, {"picture": image})
    with pytest.raises(SettingsError, match="nothing called 'tvm'"):
        tw.compare(model, against="tvm")


def test_a_tolerance_of_nothing_is_not_met(model: onnx.ModelProto) -> None:
    found = tw.compare(model, tolerance=0.0)
    assert not found.ok
    assert found.first is not None


PASSES = {
    "simplify_graph": "simplify",
    "fold_constants": "fold_constants",
    "recognise_composites": "recognise_composites",
    "push_movement": "push_movement",
    "fold_batch_norm": "fold_batch_norm",
    "merge_rows": "merge_rows",
    "fuse": "fuse",
}


@pytest.mark.parametrize("function", PASSES)
def test_a_fault_in_a_pass_is_found(function: str, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler, function, slightly_off(getattr(compiler, function)))
    found = tw.compare(model, bisect=True, bundle=tmp_path / "bundle", opt_level=3)
    assert not found.ok
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.name) == ("pass", PASSES[function])
    written = {path.name for path in (tmp_path / "bundle").iterdir()}
    assert written >= {f"before_{PASSES[function]}.txt", f"after_{PASSES[function]}.txt", "inputs.npz", "report.json", "README.txt"}
    assert np.load(tmp_path / "bundle" / "inputs.npz")["image"].shape == (1, 3, 8, 8)


@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
@pytest.mark.parametrize("by", [1e-4, -2e-5])
def test_a_fault_in_a_pass_is_found_that_moves_outputs_by_little(
    by: float, against: str, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel differs, since each does what the graph says."""
    monkeypatch.setattr(compiler, "merge_rows", slightly_off(compiler.merge_rows, by))
    found = tw.compare(model, against=against, bisect=True)
    assert [row.ok for row in found.outputs] == [False]
    assert all(row.ok for row in found.kernels)
    assert found.outputs[0].error is not None
    assert found.outputs[0].error.relative < 2 * abs(by)
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.name) == ("pass", "merge_rows")


@pytest.mark.parametrize("primitive", ["vectorize", "parallel", "reverse_compute_at"])
def test_a_fault_in_a_schedule_primitive_is_found(
    primitive: str, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PRIMITIVES, primitive, doubled(PRIMITIVES[primitive]))
    found = tw.compare(
        model, {"image": np.random.default_rng(1).standard_normal((64, 3, 8, 8)).astype(np.float32)}, bisect=True, bundle=tmp_path
    )
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.name) == ("schedule", primitive)
    assert {"kernel.txt", "right.py", "wrong.py", "operands.npz"} <= {path.name for path in tmp_path.iterdir()}
    assert found.first is not None
    assert found.first in found.kernels


def test_bisecting_measures_rounding_once_for_each_kernel(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many schedules of it are tried; and nothing jumps here, so that what is far off is known after the least number of runs."""
    judges: list[Judge] = []
    original = Judge._run
    monkeypatch.setattr(Judge, "_run", lambda self: (judges.append(self), original(self))[1])
    monkeypatch.setitem(PRIMITIVES, "vectorize", doubled(PRIMITIVES["vectorize"]))
    found = tw.compare(model, bisect=True)
    assert found.culprit is not None
    assert found.culprit.kind == "schedule"
    wrong = sum(not row.ok for row in (*found.kernels, *found.outputs))
    assert len({id(judge) for judge in judges}) == wrong
    assert len(judges) == SURE * wrong


def test_a_fault_of_the_code_generator_is_found(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    original = groups.generate
    monkeypatch.setattr(groups, "generate", lambda *a, **k: original(*a, **k).replace(" fdiv ", " fmul "))
    found = tw.compare(model, bisect=True)
    assert found.culprit is not None
    assert found.culprit.kind == "kernel"
    assert "without a schedule" in found.culprit.about


def test_the_operator_of_a_group_is_found_that_makes_it_wrong(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    original = groups.generate
    monkeypatch.setattr(groups, "generate", lambda *a, **k: original(*a, **k).replace(" fsub ", " fadd "))
    found = tw.compare(model, bisect=True)
    assert found.culprit is not None
    assert found.culprit.kind == "kernel"
    assert "MatMul node 'left', Sigmoid node 'gate'" in found.culprit.about
    assert "from Sigmoid node 'gate' on, which is wrong also in a kernel of its own" in found.culprit.about


def test_a_group_whose_operands_do_not_show_its_sizes_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (float[1, 4, w] x) => (float[1, 4, v] y) {
        pooled = MaxPool <kernel_shape = [3], strides = [2]> (x)
        y = Softmax <axis = 1> (pooled)
    }""")
    original = groups.generate
    monkeypatch.setattr(groups, "generate", lambda *a, **k: original(*a, **k).replace(" fsub ", " fadd "))
    found = tw.compare(model, {"x": np.random.default_rng(0).random((1, 4, 19), np.float32)}, bisect=True)
    assert found.culprit is not None
    assert found.culprit.kind == "kernel"
    assert "no operand has the size w itself" in found.culprit.about


def test_tensors_in_one_place_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "w"], ["b"], "second"),
        helper.make_node("MatMul", ["b", "w"], ["c"], "third"),
        helper.make_node("Add", ["c", "a"], ["s"], "long"),
        helper.make_node("ReduceSum", ["s"], ["t"], "total"),
        helper.make_node("Div", ["s", "t"], ["y"], "share"),
    ]
    weights = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32), "w")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 32]) for name in "xy"]
    graph = helper.make_graph(nodes, "long", infos[:1], infos[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    original = placing.place

    def all_at_the_start(intervals: Any) -> Any:
        offsets, size = original(intervals)
        return [const(0) for _ in offsets], size

    monkeypatch.setattr(placing, "place", all_at_the_start)
    generate = groups.generate
    for wrong_behind in (False, True):
        if wrong_behind:  # what is first in order of execution is at fault
            monkeypatch.setattr(groups, "generate", lambda *a, **k: generate(*a, **k).replace(" fdiv ", " fmul "))
        found = tw.compare(model, bisect=True)
        assert found.culprit is not None
        assert found.culprit.kind == "plan"


def loop_model() -> onnx.ModelProto:
    """n turns of tanh, and an exponential behind them."""
    body = helper.make_graph(
        [helper.make_node("Tanh", ["a"], ["b"], "inner"), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [
            helper.make_tensor_value_info(n, t, s)
            for n, t, s in (("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("a", TensorProto.FLOAT, [4]))
        ],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body), helper.make_node("Exp", ["y"], ["z"], "outer")]
    inputs = [helper.make_tensor_value_info("n", TensorProto.INT64, []), helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    graph = helper.make_graph(nodes, "loop", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_kernels_inside_of_control_flow_are_compared_at_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tw.compare(loop_model(), {"n": np.asarray(3)})
    assert found.ok, str(found)
    calls = {node: row.calls for row in found.kernels for node in row.nodes if row.error is not None}
    assert {name: n for node, n in calls.items() for name in ("inner", "outer") if name in node} == {"inner": 3, "outer": 1}
    idle = tw.compare(loop_model(), {"n": np.asarray(0)})
    assert any(row.error is None and row.calls == 0 for row in idle.kernels)
    original = groups.generate
    monkeypatch.setattr(groups, "generate", lambda *a, **k: original(*a, **k).replace(" fdiv ", " fmul "))
    wrong = tw.compare(loop_model(), {"n": np.asarray(3)}, bisect=True)
    assert wrong.first is not None
    assert any("inner" in node for node in wrong.first.nodes)
    assert wrong.culprit is not None
    assert wrong.culprit.kind == "kernel"


def test_errors_of_one_kernel_are_not_those_of_the_kernels_behind_it(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    original = groups.generate
    monkeypatch.setattr(groups, "generate", lambda *a, **k: original(*a, **k).replace(" fdiv ", " fmul "))
    found = tw.compare(model)
    assert 0 < sum(not row.ok for row in found.kernels) < len(found.kernels)
    assert all("Div" in str(row.nodes) or "Sigmoid" in str(row.nodes) for row in found.kernels if not row.ok)


def chaotic() -> onnx.ModelProto:
    """y = 2^20 (x + w - w'), where w and w' are sums of the same terms: what is left over is rounding alone."""
    weights = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((256, 4)).astype(np.float32), "w")
    scale = onnx.numpy_helper.from_array(np.asarray(2.0**20, np.float32), "scale")
    last = onnx.numpy_helper.from_array(np.asarray([1]), "last")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "sums"),
        helper.make_node("Unsqueeze", ["x", "axis"], ["column"], "column"),
        helper.make_node("Mul", ["column", "w"], ["terms"], "terms"),
        helper.make_node("ReduceSum", ["terms", "last"], ["again"], "again", keepdims=0),
        helper.make_node("Sub", ["m", "again"], ["d"], "rest"),
        helper.make_node("Mul", ["d", "scale"], ["y"], "magnified"),
    ]
    axis = onnx.numpy_helper.from_array(np.asarray([2]), "axis")
    infos = [helper.make_tensor_value_info(*v) for v in (("x", TensorProto.FLOAT, [8, 256]), ("y", TensorProto.FLOAT, [8, 4]))]
    graph = helper.make_graph(nodes, "chaotic", infos[:1], infos[1:], [weights, scale, last, axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_rounding_errors_do_to_the_model_is_no_difference() -> None:
    found = tw.compare(chaotic())
    assert found.ok, str(found)
    (output,) = found.outputs
    assert output.rounding
    assert output.error is not None
    assert output.error.relative > output.tolerance
    assert found.drift is not None
    assert "as rounding errors make it" in str(found)
    assert not tw.compare(chaotic(), tolerance=1e-3).ok  # who names a tolerance means it


def words() -> onnx.ModelProto:
    """Words in capitals, and a sequence of how often each of two stands in a row and of twice that."""
    nodes = [
        helper.make_node("StringNormalizer", ["words"], ["upper"], case_change_action="UPPER", locale="C"),
        helper.make_node(
            "TfIdfVectorizer", ["upper"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
            ngram_counts=[0], ngram_indexes=[0, 1], pool_strings=["YES", "NO"],
        ),
        helper.make_node("Add", ["counts", "counts"], ["twice"], "twice"),
        helper.make_node("SequenceConstruct", ["counts", "twice"], ["both"]),
    ]  # fmt: skip
    both = helper.make_value_info("both", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [None])))
    outputs = [helper.make_tensor_value_info("upper", TensorProto.STRING, [None]), both]
    graph = helper.make_graph(nodes, "words", [helper.make_tensor_value_info("words", TensorProto.STRING, ["n"])], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_programs_are_compared_part_by_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {"words": np.asarray(["yes", "no", "yes"], object)}
    tw.compile(words(), cache=False, progress="none").save(tmp_path / "words.tw")
    for against in ("reference", "onnxruntime", str(tmp_path / "words.tw")):
        found = tw.compare(words(), given, against=against)
        assert found.ok, str(found)
        assert [row.name for row in found.outputs] == ["upper", "both[0]", "both[1]"]
        assert [(row.part, row.calls) for row in found.kernels] == [(0, 1)]
        assert found.kernels[0].error is not None
    with pytest.raises(InputError, match="cannot be drawn"):
        tw.compare(words())
    original = groups.generate
    monkeypatch.setattr(groups, "generate", lambda *a, **k: original(*a, **k).replace(" fadd ", " fsub "))
    wrong = tw.compare(words(), given, bisect=True, bundle=tmp_path / "bundle")
    assert not wrong.ok
    assert [row.name for row in wrong.outputs if not row.ok] == ["both[1]"]
    assert wrong.culprit is not None
    assert wrong.culprit.kind == "kernel"
    assert (tmp_path / "bundle" / "inputs.npz").is_file()


def test_a_fault_of_a_pass_in_a_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "simplify_graph", slightly_off(compiler.simplify_graph))
    found = tw.compare(words(), {"words": np.asarray(["yes", "no", "yes"], object)}, bisect=True)
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.name) == ("pass", "simplify")


@pytest.mark.parametrize("bad", range(1, 9))
def test_halving_finds_the_first_bad(bad: int) -> None:
    asked: list[int] = []

    def good(number: int) -> bool:
        asked.append(number)
        return number < bad

    assert first_bad(8, good) == bad
    assert len(asked) <= 3


def test_a_network_of_the_zoo() -> None:
    found = tw.compare(zoo.build("bert", layers=1, hidden=32, heads=2, vocab=50, intermediate=64))
    assert found.ok, str(found)
