"""Tiny models, and commands run in this process or in one of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner, Result

from tilewright import zoo
from tilewright.cli.app import app

UNSUPPORTED = """
<ir_version: 8, opset_import: ["" : 18, "other" : 1, "local" : 1]>
g (float[n,4] x, bool c) => (float[n,4] y, float[n,4] e)
{
  [first] a = other.Foo <k = 3, mode = "fast"> (x)
  [second] b = Relu(a)
  [third] d = other.Bar(b)
  [branch] e = If (c) <then_branch = t () => (float[n,4] te) { [inner] te = other.Inner <alpha = 0.5> (x) },
                       else_branch = f () => (float[n,4] fe) { [fine] fe = Relu(x) }>
  [call] q = local.function(x)
  [fourth] y = Sigmoid(q)
}
<domain: "local", opset_import: ["" : 18, "other" : 1]>
function (p) => (r) { [in_function] s = other.InFunction(p)  r = Relu(s) }
"""


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer network with a symbolic batch."""
    return zoo.write("mlp", tmp_path_factory.mktemp("models") / "mlp.onnx", sizes=(16, 32, 4), batch="batch")


@pytest.fixture(scope="session")
def artifact(mlp: Path) -> Path:
    path = mlp.with_suffix(".tw")
    assert CliRunner().invoke(app, ["compile", str(mlp), "-o", str(path)]).exit_code == 0
    return path


@pytest.fixture
def unsupported(tmp_path: Path) -> Path:
    """A model with four operators that nobody knows: one first, one that depends on it, one in a branch, one in a function."""
    path = tmp_path / "unsupported.onnx"
    onnx.save(parser.parse_model(UNSUPPORTED), path)
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """`cli("run", path)`: the result of a command run in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def answer(cli: Callable[..., Result]) -> Callable[..., Any]:
    """`answer("run", path)`: the JSON that a command prints; it must succeed and print nothing else."""

    def run(*arguments: object) -> Any:
        result = cli(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """`process("run", path)`: a command as a process of its own, its output in pipes."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tilewright.cli", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | {"TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
