"""Some hostile inputs of each kind; `python -m tests.hostile` opens as many as one likes."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.hostile.__main__ import came_of, opener
from tests.hostile.cases import KINDS, doubling, endless, fan, nested, recursion, small, sparse
from tests.hostile.worker import WATCH
from tilewright.support.errors import ArtifactError, InternalError, MemoryLimitError, ModelError, TilewrightError, TypeRuleError


def test_each_ends_in_a_result_or_an_error() -> None:
    kinds: Counter[str] = Counter()
    with opener() as process:
        for seed in range(80):
            found = came_of(seed, process)
            assert not found.faulty, f"seed {seed}: {found}"
            kinds[found.kind] += 1
    assert set(kinds) >= KINDS.keys()


def test_the_watch_sees_files_that_are_written_outside(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    WATCH.folder, WATCH.seen = str(inside), []
    WATCH("open", (str(inside / "a"), "w", os.O_WRONLY))
    assert WATCH.seen == []
    WATCH("open", (str(tmp_path / "b"), "w", os.O_WRONLY))
    WATCH("os.remove", (str(tmp_path / "b"), -1))
    WATCH.folder = ""
    assert len(WATCH.seen) == 2


def refusal(model: onnx.ModelProto) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        tw.compile(model, cache=False, progress="none")
    assert not isinstance(caught.value, InternalError)
    return caught.value


class Fixed:
    """A source of choices that always takes the last option, which is the worst one."""

    def choice(self, options: list[object]) -> object:
        return options[-1]

    def randint(self, low: int, high: int) -> int:
        return high

    def random(self) -> float:
        return 0.9


def test_functions_that_call_themselves_are_refused() -> None:
    error = refusal(recursion(Fixed()))  # type: ignore[arg-type]
    assert isinstance(error, ModelError)
    assert "calls itself" in str(error)


def test_functions_that_multiply_are_refused_before_they_are_expanded() -> None:
    error = refusal(fan(Fixed()))  # type: ignore[arg-type]
    assert "1,099,511,627,776 nodes" in str(error)


def test_sizes_past_any_memory_do_not_wrap_around() -> None:
    error = refusal(doubling(Fixed()))  # type: ignore[arg-type]
    assert isinstance(error, TypeRuleError)
    assert "there can be no result of type float32[" in str(error)
    assert "Concat node" in str(error.where)


def test_a_result_without_elements_may_not_be_of_absurd_size_either() -> None:
    sizes = onnx.numpy_helper.from_array(np.array([0, 1 << 40, 1 << 31, 1 << 33]), "sizes")
    error = refusal(small([helper.make_node("ConstantOfShape", ["sizes"], ["y"])], "y", [sizes]))
    assert isinstance(error, TypeRuleError)
    assert "there can be no result of type float32[0, " in str(error)


def test_sparse_constants_of_absurd_size_are_refused() -> None:
    assert "cannot have the shape" in str(refusal(sparse(Fixed())))  # type: ignore[arg-type]


def test_deep_branches_run() -> None:
    assert tw.compile(nested(Fixed()), cache=False, progress="none")  # type: ignore[arg-type]


def test_loops_without_end_are_refused_for_their_memory() -> None:
    """2^40 turns that each add to a result: the memory limit ends it, not the system."""
    model = endless(Fixed())  # type: ignore[arg-type]
    assert "larger than any memory" in str(refusal(model)) or isinstance(refusal(model), TilewrightError)


def test_long_chains_become_several_kernels() -> None:
    names = ["x", *(f"v{i}" for i in range(60))]
    nodes = [helper.make_node("Exp", [a], [b]) for a, b in itertools.pairwise(names)]
    executable = tw.compile(small(nodes, names[-1]), cache=False, progress="none")
    assert isinstance(executable, tw.Executable)
    assert len(executable.manifest["kernels"]) > 1


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="pipe")
    model = small([helper.make_node("Add", ["x", "w"], ["y"])], "y", [tensor])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="no regular file"):
        tw.compile(tmp_path / "model.onnx", cache=False, progress="none")
    with pytest.raises(ModelError, match="no regular file"):
        tw.compile(tmp_path / "pipe", cache=False, progress="none")


@pytest.mark.parametrize(
    "twisted", [{"sizes": 3}, {"memory": {"arena": "(" * 500}}, {"input_sizes": {}}, {"checks": [None]}, {"target": []}]
)
def test_manifests_of_wrong_form_are_refused(twisted: dict[str, object]) -> None:
    model = small([helper.make_node("Exp", ["x"], ["y"])], "y")
    artifact = tw.compile(model, cache=False, progress="none").artifact
    changed = type(artifact)({**artifact.manifest, **twisted}, artifact.objects, artifact.pool, artifact.weights, artifact.parts)
    with pytest.raises(ArtifactError):
        tw.Executable(changed)


def test_the_limit_is_asked_for_when_an_artifact_of_fixed_sizes_is_opened(tmp_path: Path) -> None:
    model = small([helper.make_node("Exp", ["x"], ["y"])], "y")
    tw.compile(model, cache=False, progress="none").save(tmp_path / "model.tw")
    with pytest.raises(MemoryLimitError, match="the limit is 10"):
        tw.load(tmp_path / "model.tw", max_memory=10)


def test_a_loop_over_what_nothing_defines_is_refused() -> None:
    text = """(optional(seq(float)) s, int64 turns, bool go) => (seq(float[n]) y) {
        y = Loop <body = turn (int64 i, bool on, seq(float[n]) v) => (bool o, seq(float[n]) w) { o = Identity(on) w = Identity(v) }>
            (turns, go, nothing) }"""
    error = refusal(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> m {text}'))
    assert "'nothing' is used before it is defined" in str(error)


def test_boxes_without_axes_are_refused() -> None:
    text = """(float[4] boxes, float[1, 1, 4] scores, int64 most) => (int64[n, 3] y) { y = NonMaxSuppression(boxes, scores, most) }"""
    assert "three axes" in str(refusal(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> m {text}')))
