"""From a model to an artifact and back: one artifact for all dims, saving, caching, the same bytes from every build, other targets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.end_to_end.small_models import assert_identical, images, reference, same, text_model, tokens, vision_model
from tilewright.api import make_artifact
from tilewright.machine.detect import detect_host
from tilewright.machine.targets import parse_target, resolve_target
from tilewright.runtime.host_features import missing_features
from tilewright.support.settings import Settings


@pytest.fixture(scope="module")
def vision() -> tw.Executable:
    return tw.compile(vision_model(), cache=False)


def test_one_artifact_serves_all_dims(vision: tw.Executable) -> None:
    model = vision_model()
    for i, shape in enumerate([(1, 3, 8, 8), (2, 3, 5, 9), (7, 3, 16, 3), (1, 3, 1, 1), (3, 3, 17, 33), (1, 3, 8, 8)]):
        inputs = images(i, *shape)
        same(vision.run(inputs), reference(model, inputs))


def test_sizes_that_depend_on_data() -> None:
    model = text_model()
    executable = tw.compile(model, cache=False)
    counts = set()
    for i, shape in enumerate([(1, 7), (3, 16), (2, 1), (5, 33)]):
        inputs = tokens(i, *shape)
        got = executable.run(inputs)
        same(got, reference(model, inputs))
        counts.add(got["found"].shape[1])
    assert len(counts) > 1


def test_ranges_and_fixed_dims() -> None:
    model = vision_model()
    executable = tw.compile(model, dims={"N": (1, 4), "H": 8, "W": "4..32:4"}, cache=False)
    inputs = images(0, 3, 3, 8, 12)
    same(executable.run(inputs), reference(model, inputs))
    with pytest.raises(tw.TilewrightError):
        executable.run(images(0, 5, 3, 8, 12))
    with pytest.raises(tw.TilewrightError):
        executable.run(images(0, 1, 3, 8, 13))


def test_saving_and_loading_keeps_results_and_bytes(vision: tw.Executable, tmp_path: Path) -> None:
    vision.save(tmp_path / "one.tw")
    loaded = tw.load(tmp_path / "one.tw")
    loaded.save(tmp_path / "two.tw")
    again = tw.load(tmp_path / "two.tw")
    assert (tmp_path / "one.tw").read_bytes() == (tmp_path / "two.tw").read_bytes()
    for shape in [(1, 3, 8, 8), (4, 3, 11, 6)]:
        inputs = images(3, *shape)
        want = vision.run(inputs)
        assert_identical(loaded.run(inputs), want)
        assert_identical(again.run(inputs), want)


BUILD = """
import sys, onnx, tilewright as tw
tw.compile(onnx.load(sys.argv[1]), cache=False).save(sys.argv[2])
"""


def test_two_builds_give_identical_bytes(tmp_path: Path) -> None:
    """In two processes whose hashes of strings differ, so that no order of a set can hide."""
    for name, model in (("vision", vision_model()), ("text", text_model())):
        onnx.save(model, tmp_path / f"{name}.onnx")
        for seed in ("1", "2"):
            arguments = [sys.executable, "-c", BUILD, str(tmp_path / f"{name}.onnx"), str(tmp_path / f"{name}{seed}.tw")]
            subprocess.run(arguments, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        assert (tmp_path / f"{name}1.tw").read_bytes() == (tmp_path / f"{name}2.tw").read_bytes(), name


def test_a_cache_hit_gives_the_same_artifact(tmp_path: Path) -> None:
    path = tmp_path / "vision.onnx"
    onnx.save(vision_model(), path)
    settings = Settings().changed(cache=True, cache_dir=tmp_path / "cache")
    first, second = (make_artifact(str(path), "cpu", None, settings) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    inputs = images(5, 2, 3, 9, 9)
    want = tw.Executable(first.artifact).run(inputs)
    assert_identical(tw.Executable(second.artifact).run(inputs), want)
    same(want, reference(path, inputs))
    # What changes code, and what changes the model, must not meet the entry.
    assert not make_artifact(str(path), "cpu", None, settings.changed(opt_level=1)).cached
    assert not make_artifact(str(path), "cpu", {"N": 2}, settings).cached
    changed = vision_model()
    changed.graph.initializer[0].raw_data = np.frombuffer(changed.graph.initializer[0].raw_data, np.float32)[::-1].tobytes()
    onnx.save(changed, path)
    third = make_artifact(str(path), "cpu", None, settings)
    assert not third.cached
    same(tw.Executable(third.artifact).run(inputs), reference(path, inputs))


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_code_for_lower_levels_runs(target: str) -> None:
    machine = resolve_target(parse_target(target), detect_host)
    if machine.arch != detect_host().arch or missing_features(sorted(machine.isa)):
        pytest.skip(f"this machine does not run code for {target}")
    for model, inputs in ((vision_model(), images(1, 2, 3, 13, 10)), (text_model(), tokens(1, 2, 19))):
        same(tw.compile(model, target=target, cache=False).run(inputs), reference(model, inputs))


@pytest.mark.parametrize("settings", [{"opt_level": 0}, {"opt_level": 1}, {"precision": "strict"}], ids=repr)
def test_settings_keep_results(settings: dict[str, object]) -> None:
    for model, inputs in ((vision_model(), images(1, 2, 3, 13, 10)), (text_model(), tokens(1, 2, 19))):
        same(tw.compile(model, cache=False, **settings).run(inputs), reference(model, inputs))
