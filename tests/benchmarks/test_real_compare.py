"""The table of real models, made from models that are not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import real_compare
from tilewright import zoo

TOOL = """
import numpy as np

def build_inputs(entry, out, seed, dims):
    return {"input": np.random.default_rng(seed).standard_normal((dims["batch"], 16)).astype(np.float32)}
"""


def test_every_setting_of_every_model_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = zoo.write("mlp", tmp_path / "mlp.onnx", sizes=(16, 32, 4), batch="batch").name
    entry = {"id": "mlp", "file": name, "format": "onnx", "dims": {"batch": [1, 3]}}
    (tmp_path / "manifest.json").write_text(json.dumps({"models": {"mlp": entry, "other": {"format": "tflite"}}}))
    (tmp_path / "tool.py").write_text(TOOL)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- real_compare -->\nold\n<!-- end of real_compare -->\nafter\n")
    options = ["--models-tool", str(tmp_path / "tool.py"), "--verify", "--markdown", str(page)]
    monkeypatch.setattr(sys, "argv", ["real_compare.py", str(tmp_path), *options])
    assert real_compare.main() == 0
    shown = capsys.readouterr().out
    assert "batch=1" in shown
    assert "batch=3" in shown
    assert "1 of 1 models are right, at 2 settings" in shown
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| mlp | 2 | " in text
    assert "kernels at 3 sets of sizes" in text
    assert "old" not in text


def test_what_differs_and_what_fails_is_said() -> None:
    error = {"absolute": 1.0, "relative": 0.5, "ulps": 9.0, "cosine": 0.9}
    kernel = {"name": "k", "nodes": ["Add node 'a'"], "ok": False, "wrong": "has 1 wrong of 2", "error": error, "rounding": False}
    output = {**kernel, "nodes": [], "ok": True, "wrong": "", "rounding": True}
    found = {"ok": False, "kernels": [kernel], "outputs": [output], "drift": None, "notes": []}
    row = {"dims": {}, **{name: {**real_compare.summary(found), "seconds": 1.0} for name in real_compare.AGAINST}}
    report = {"id": "m", "settings": [row], "reason": "exit code 1: oh"}
    first, last = real_compare.lines(report)
    assert "Add node 'a': has 1 wrong of 2" in first
    assert "DIFFERS" in first
    assert "FAILED: exit code 1: oh" in last
    assert "differs" in real_compare.markdown([report])
