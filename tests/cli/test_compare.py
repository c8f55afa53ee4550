"""tilewright compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tilewright.target.cpu import groups


def test_a_right_model(cli: Callable[..., Result], answer: Callable[..., Any], mlp: Path) -> None:
    shown = cli("compare", mlp)
    assert shown.exit_code == 0, shown.output
    assert "computes the same" in shown.output
    data = answer("compare", mlp, "--against", "onnxruntime", "--seed", 3)
    assert data["ok"]
    assert {"absolute", "relative", "ulps", "cosine"} == set(data["kernels"][0]["error"])


def test_a_wrong_compiler(cli: Callable[..., Result], mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = groups.generate
    monkeypatch.setattr(groups, "generate", lambda *a, **k: original(*a, **k).replace(" fadd ", " fsub "))
    found = cli("compare", mlp, "--bisect", "--bundle", "fault")
    assert found.exit_code == 1, found.output
    assert "DIFFERS" in found.output
    assert "at fault" in found.output
    assert Path("fault/README.txt").is_file()


def test_a_bundle_needs_bisect(cli: Callable[..., Result], mlp: Path) -> None:
    assert cli("compare", mlp, "--bundle", "fault").exit_code == 2
