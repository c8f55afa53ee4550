"""`compile(verify=True)`: kernels that are wrong are refused, each by name, wherever they stand; right ones are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.accuracy.faults import doubled, slightly_off
from tilewright import compiler, zoo
from tilewright.accuracy.validate import Validation, sets_of_sizes
from tilewright.api import make_artifact
from tilewright.kernel.schedule.schedule import PRIMITIVES
from tilewright.runtime.specs import SizeSpec, tensor_spec
from tilewright.support.errors import InputError, VerifyError
from tilewright.support.settings import Settings

SETTINGS = Settings().changed(cache=False, progress="none", verify=True)


def validated(model: Any, **dims: Any) -> Validation:
    (found,) = make_artifact(model, "cpu", dims, SETTINGS).validated
    return found


def loop_model() -> onnx.ModelProto:
    """Ten turns of tanh(state + step), with the elements in one vector."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "step"], ["sum"], "inner_add"),
            helper.make_node("Tanh", ["sum"], ["next"], "inner_tanh"),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [64]),
        ],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []), helper.make_tensor_value_info("next", TensorProto.FLOAT, [64])],
    )
    constants = [onnx.numpy_helper.from_array(np.asarray(10), "count"), onnx.numpy_helper.from_array(np.asarray(True), "yes")]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "yes", "step"], ["last"], "loop", body=body)],
        "looping",
        [helper.make_tensor_value_info("step", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("last", TensorProto.FLOAT, [64])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_all_kernels_of_right_models_pass_at_several_sizes() -> None:
    found = validated(zoo.build("mlp", batch="batch"))
    assert found.kernels == found.total > 1
    assert [sizes["batch"] for sizes in found.sizes] == [1, 7, 32]
    assert not found.reason
    bounded = validated(zoo.build("mlp", batch="batch"), batch="8..16:8")
    assert [sizes["batch"] for sizes in bounded.sizes] == [8, 16]


def test_a_wrong_kernel_is_refused_with_its_nodes_and_the_step_of_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRIMITIVES, "vectorize", doubled(PRIMITIVES["vectorize"]))
    with pytest.raises(VerifyError, match="does not compute what the model says") as caught:
        tw.compile(zoo.build("mlp", batch=4), cache=False, progress="none", verify=True)
    assert "schedule vectorize: instruction" in str(caught.value.why)
    assert "relative error" in str(caught.value.why)
    assert "node" in str(caught.value.where)
    tw.compile(zoo.build("mlp", batch=4), cache=False, progress="none")  # nobody asked


@pytest.mark.parametrize("by", [0.01, 1e-4])
def test_a_wrong_pass_is_refused_by_its_name(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is wrong then: each does what the graph says."""
    monkeypatch.setattr(compiler, "fold_batch_norm", slightly_off(compiler.fold_batch_norm, by))
    with pytest.raises(VerifyError, match="the optimised graph does not compute what the model says") as caught:
        validated(zoo.build("mlp", batch=4))
    assert "pass fold_batch_norm" in str(caught.value.why)


def test_kernels_in_loops_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = validated(loop_model())
    assert found.kernels == found.total >= 1
    monkeypatch.setitem(PRIMITIVES, "vectorize", doubled(PRIMITIVES["vectorize"]))
    with pytest.raises(VerifyError) as caught:
        validated(loop_model())
    assert "inner_tanh" in str(caught.value.where)


def test_where_the_model_takes_no_random_inputs_that_is_said() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"], "fold"), helper.make_node("Exp", ["r"], ["y"], "exponential")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 7]), helper.make_tensor_value_info("shape", TensorProto.INT64, [1])]
    graph = helper.make_graph(nodes, "folded", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a"])])
    found = validated(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert found.sizes == ()
    assert found.kernels < found.total
    assert "random inputs broke what the model asks of them" in str(found)


def test_given_inputs_take_the_place_of_random_ones() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"], "fold"), helper.make_node("Exp", ["r"], ["y"], "exponential")]
    x, shape = TensorProto.FLOAT, TensorProto.INT64
    inputs = [helper.make_tensor_value_info("x", x, ["n", 7]), helper.make_tensor_value_info("shape", shape, [1])]
    graph = helper.make_graph(nodes, "folded", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def found(**given: np.ndarray) -> Validation:
        (made,) = make_artifact(model, "cpu", None, SETTINGS, verify_inputs=given).validated
        return made

    assert "--input" in found().reason
    shaped = found(shape=np.array([-1]))
    assert (shaped.kernels, shaped.reason) == (shaped.total, "")
    assert [sizes["n"] for sizes in shaped.sizes] == [1, 7, 32]
    sized = found(shape=np.array([35]), x=np.ones((5, 7), np.float32))
    assert [sizes["n"] for sizes in sized.sizes] == [5]
    with pytest.raises(InputError, match="no input 'z'"):
        found(z=np.array([1]))
    with pytest.raises(InputError, match="dim 1 must be 7"):
        found(x=np.ones((5, 6), np.float32))
    with pytest.raises(InputError, match="nothing is verified"):
        tw.compile(model, verify_inputs={"shape": np.array([-1])}, progress="none")


def test_scalars_are_inputs_like_others() -> None:
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"], "scaled")]
    shapes: dict[str, list[int]] = {"x": [5], "factor": [], "y": [5]}
    x, factor, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, "scaling", [x, factor], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = validated(model)
    assert (found.kernels, found.reason) == (1, "")


def test_code_for_another_machine_is_not_run_and_that_is_said() -> None:
    (found,) = make_artifact(zoo.build("mlp", batch=1), "cpu:neoverse-v2", None, SETTINGS).validated
    assert found.kernels == 0
    assert "does not run on this machine" in str(found)


def test_sizes_respect_ranges_and_multiples() -> None:
    inputs = [tensor_spec({"name": "x", "dtype": "float32", "shape": ["batch", "3", "side"]})]
    known = [SizeSpec("batch", 1, 4), SizeSpec("side", 16, None, 8)]
    found = list(sets_of_sizes(inputs, known))
    assert found[0] == {"batch": 1, "side": 64}
    assert {"batch": 4, "side": 32} in found
    assert all(1 <= sizes["batch"] <= 4 and sizes["side"] >= 16 and sizes["side"] % 8 == 0 for sizes in found)
    assert len({tuple(sizes.values()) for sizes in found}) == len(found)
