"""`tw.fuzz`: faults put into the compiler are found within a few cases, made small, blamed and written."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright import compiler
from tilewright.cli.app import app
from tilewright.fuzzing import cases, run
from tilewright.fuzzing.cases import Outcome, case_of, read_case, write_case
from tilewright.fuzzing.worker import Worker, answer
from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function
from tilewright.graph.ops import OPERATORS, Binary
from tilewright.support.errors import InputError, ModelError, SettingsError, TargetError


class Here(Worker):
    """Runs cases in this process, where faults can be put into the compiler."""

    def ask(self, request: Mapping[str, Any]) -> Outcome:
        return answer(request)


@pytest.fixture
def fault_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that takes maxima for minima."""
    right = compiler.push_movement

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        return g.emit(Binary("min"), *inputs) if node.op is Binary("max") else None

    def wrong(function: Function) -> Function:
        return rewrite_function(right(function), visit)

    monkeypatch.setattr(compiler, "push_movement", wrong)
    monkeypatch.setattr(run, "Worker", Here)


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    report = tw.fuzz(cases=4, seed=11, levels=(0, 3), out=tmp_path / "found")
    assert report.ok, str(report)
    assert report.cases == 4
    assert 0.5 < report.compared <= 1.0
    assert "no faults" in str(report)
    assert not (tmp_path / "found").exists()
    assert set(report.coverage()) == set(OPERATORS)
    assert sum(map(bool, report.coverage().values())) > 8


def test_a_fault_in_a_pass_is_found_made_small_and_blamed(fault_in_a_pass: None, tmp_path: Path) -> None:
    report = tw.fuzz(cases=30, seed=0, levels=(1,), out=tmp_path, most=1, minimise=20.0)
    assert not report.ok
    assert report.cases < 30
    (fault,) = report.faults
    assert fault.kind == "wrong"
    assert "binary.max" in fault.operators
    assert len(fault.operators) < 10  # where it is in the body of a loop, the loop stays
    assert "push_movement" in fault.culprit
    assert fault.folder is not None
    assert {path.name for path in fault.folder.iterdir()} >= {
        "reproduce.py",
        "case.zip",
        "report.json",
        "README.txt",
        "before_push_movement.txt",
    }
    script = fault.folder / "reproduce.py"
    assert len(script.read_text("utf-8").splitlines()) < 60
    # in a process of its own the compiler is right, and the script says so
    assert subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout == "nothing is wrong\n"
    assert cases.run_case(cases.read_case(fault.folder / "case.zip")) is not None


def test_the_same_fault_is_counted_once(fault_in_a_pass: None, tmp_path: Path) -> None:
    report = tw.fuzz(cases=14, seed=0, levels=(1,), out=tmp_path, minimise=10.0, steps=("plain_binary",))
    assert sum(fault.times for fault in report.faults) > len(report.faults)


def test_an_error_of_the_compiler_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(function: Function) -> Function:
        raise KeyError("nobody caught this")

    monkeypatch.setattr(compiler, "fold_constants", broken)
    monkeypatch.setattr(run, "Worker", Here)
    report = tw.fuzz(cases=2, seed=5, levels=(2,), out=tmp_path, minimise=5.0)
    assert [fault.kind for fault in report.faults] == ["error"]
    assert "KeyError" in report.faults[0].text
    assert report.faults[0].times == 2


def test_wrong_usage_is_refused() -> None:
    with pytest.raises(SettingsError, match="no opt_level 7"):
        tw.fuzz(levels=(7,))
    with pytest.raises(SettingsError, match="no steps called 'convolve'"):
        tw.fuzz(steps=("convolve",))
    with pytest.raises(TargetError):
        tw.fuzz(target="abacus")


def test_the_command_exits_with_1_when_something_is_found(fault_in_a_pass: None, tmp_path: Path) -> None:
    arguments = ["fuzz", "--cases", "8", "--seed", "0", "--levels", "1", "--most", "1", "--minimise", "5", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 1
    (fault,) = json.loads(done.stdout)["faults"]
    again = CliRunner().invoke(app, ["fuzz", "--replay", str(Path(fault["folder"]) / "case.zip")])
    assert again.exit_code == 1
    assert "wrong: result" in again.stdout
    assert CliRunner().invoke(app, ["fuzz", "--replay", str(tmp_path / "none.zip")]).exit_code == 2
    assert CliRunner().invoke(app, ["fuzz", "--levels", "high"]).exit_code == 2


def test_a_file_that_is_no_case_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.zip"
    write_case(case_of(0), whole)
    assert read_case(whole).seed == 0
    (tmp_path / "folder").mkdir()
    (tmp_path / "none.zip").write_bytes(b"no zip")
    (tmp_path / "cut.zip").write_bytes(whole.read_bytes()[:-100])
    damaged = bytearray(whole.read_bytes())
    damaged[60:90] = bytes(30)
    (tmp_path / "damaged.zip").write_bytes(damaged)
    for name, text in (("other", "{}"), ("list", "[1]"), ("words", "a case")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("case.json", text)
    for path in tmp_path.iterdir():
        if path != whole:
            with pytest.raises(InputError, match=r"is no case of fuzzing|cannot be opened"):
                read_case(path)
            assert CliRunner().invoke(app, ["fuzz", "--replay", str(path)]).exit_code == InputError.exit_code


def test_a_model_without_parts_for_cases_is_refused_at_once(tmp_path: Path) -> None:
    texts = {"strings": "(string[n] s) => (string[n] o) { o = Identity (s) }", "nothing": "(float[n] x) => (float[n] x) { }"}
    for name, text in texts.items():
        path = tmp_path / f"{name}.onnx"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {text}'), path)
        with pytest.raises(ModelError, match="has no parts that cases can be made of"):
            tw.fuzz(path, seconds=60)


def test_a_file_that_is_no_model_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    for path in (tmp_path / "no.onnx", tmp_path / "missing.onnx"):
        with pytest.raises(ModelError):
            tw.fuzz(path, seconds=60)
