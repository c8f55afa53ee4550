"""What goes wrong is said in the user's terms, with an exit code, and leaves nothing behind."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import zoo
from tilewright.cli import peers
from tilewright.support.errors import InternalError

Process = Callable[..., "subprocess.Popen[str]"]
LIMIT_S = 60.0


@pytest.mark.parametrize("command", ["check", "compile", "run", "bench", "inspect"])
@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be opened"), (b"", "not an ONNX model"), (b"no model\xff", "not an ONNX model")]
)
def test_a_file_that_is_no_model(cli: Callable[..., Any], tmp_path: Path, command: str, content: bytes | None, message: str) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    result = cli(command, path, *(["-o", "out.tw"] if command == "compile" else []))
    assert result.exit_code == 3, result.output
    assert message in result.stderr
    assert "docs/errors.md#model-error" in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out.tw").exists()


def test_truncated_files(cli: Callable[..., Any], mlp: Path, artifact: Path, tmp_path: Path) -> None:
    for source, code in ((mlp, 3), (artifact, 8)):
        cut = tmp_path / f"cut{source.suffix}"
        cut.write_bytes(source.read_bytes()[: -100 if source is mlp else 9000])
        result = cli("run", cut)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output


def test_errors_as_json(cli: Callable[..., Any], tmp_path: Path) -> None:
    result = cli("run", "nothing.onnx", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == data["exit_code"] == 3
    assert data["error"] == "ModelError"
    assert data["hint"]
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 17), np.float32), "dim 1 must be 16"),
        (np.zeros(16, np.float32), "the model needs 2 dims"),
        (np.zeros((2, 16), np.float64), "has dtype float64"),
    ],
)
def test_wrong_inputs(cli: Callable[..., Any], artifact: Path, tmp_path: Path, array: np.ndarray[Any, Any], message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    result = cli("run", artifact, "--input", "input=x.npy")
    assert result.exit_code == 9
    assert message in result.stderr


def test_wrong_names(cli: Callable[..., Any], mlp: Path, artifact: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 16), np.float32))
    (tmp_path / "text.npy").write_text("no array")
    assert "no input 'y'" in cli("run", artifact, "--input", "y=x.npy").stderr
    assert "no symbolic dim 'n'" in cli("run", artifact, "--dim", "n=3").stderr
    assert "is to be 3, but the inputs given say 2" in cli("run", artifact, "--input", "input=x.npy", "--dim", "batch=3").stderr
    assert "is no NumPy file" in cli("run", artifact, "--input", "input=text.npy").stderr
    assert "cannot be opened" in cli("run", artifact, "--input", "input=nothing.npy").stderr
    assert cli("run", mlp, "--set", "speed=9").exit_code == 10
    assert cli("compile", mlp, "-o", "a.tw", "--target", "gpu").exit_code == 11
    assert cli("compile", mlp, "-o", "a.tw", "--dim", "batch=big").exit_code == 10
    assert cli("compile", mlp, "-o", "a.tw", "--dim", "n=8").exit_code == 3
    assert cli("zoo", "resnet9000", "a.onnx").exit_code == 10
    assert not any(tmp_path.glob("a.*"))


@pytest.mark.parametrize(
    "arguments",
    [("compile", "{model}"), ("run",), ("run", "{model}", "--input", "x"), ("run", "{model}", "--dim", "batch"), ("nonsense",)],
)
def test_wrong_usage(cli: Callable[..., Any], mlp: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    np.save(tmp_path / "x", np.zeros(1))
    (tmp_path / "x.npy").rename(tmp_path / "x")
    result = cli(*(argument.format(model=mlp) for argument in arguments))
    assert result.exit_code == 2
    assert "Error" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "{artifact}", "--set", "opt_level=0"),
        ("run", "{artifact}", "--set", "verify=true"),
        ("bench", "{artifact}", "--static"),
        ("inspect", "{model}", "--list", "--layer", "fc1"),
        ("inspect", "{model}", "--stage", "graph", "--layer", "fc1"),
        ("inspect", "{model}", "--stage", "plan", "--list"),
        ("zoo", "mlp", "--option", "batch=3"),
    ],
)
def test_options_without_effect_are_refused(cli: Callable[..., Any], mlp: Path, artifact: Path, arguments: tuple[str, ...]) -> None:
    result = cli(*(argument.format(model=mlp, artifact=artifact) for argument in arguments))
    assert result.exit_code == 2, result.output


def test_run_does_not_replace_what_it_runs(cli: Callable[..., Any], mlp: Path, artifact: Path) -> None:
    for file in (mlp, artifact):
        before = file.read_bytes()
        assert "would replace the model" in cli("run", file, "-o", file).stderr
        assert file.read_bytes() == before


def test_a_missing_model_is_said_first(cli: Callable[..., Any], artifact: Path) -> None:
    assert cli("compile", "nothing.onnx", "-o", artifact).exit_code == 3


@pytest.mark.parametrize("command", ["check", "compile", "inspect"])
def test_an_artifact_is_no_model(cli: Callable[..., Any], artifact: Path, command: str) -> None:
    result = cli(command, artifact, *(["-o", "out.tw"] if command == "compile" else []))
    assert result.exit_code == 3
    assert "is an artifact" in result.stderr


@pytest.mark.parametrize("batch", [10**12, 10**18, 10**30])
def test_sizes_past_all_bounds(cli: Callable[..., Any], artifact: Path, batch: int) -> None:
    result = cli("run", artifact, "--dim", f"batch={batch}")
    assert result.exit_code == 5, result.output


def test_a_full_disk_is_no_fault_of_ours(cli: Callable[..., Any], mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tilewright.runtime.artifact.save", full)
    result = cli("compile", mlp, "-o", "out.tw")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr


def test_a_runtime_that_cannot_run_the_model(cli: Callable[..., Any], mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("no kernel for Gemm")

    monkeypatch.setitem(peers.PEERS, "onnxruntime", refuse)
    result = cli("bench", mlp, "--against", "onnxruntime")
    assert result.exit_code == 10
    assert "onnxruntime cannot run this model" in result.stderr
    assert "no kernel for Gemm" in result.stderr


def test_warnings_come_without_our_lines(process: Process, mlp: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    _, errors = process("compile", mlp, "-o", tmp_path / "out.tw").communicate(timeout=LIMIT_S)
    assert errors.startswith("warning: nothing is kept in the cache")
    assert ".py" not in errors


def test_compile_does_not_replace_the_model(cli: Callable[..., Any], mlp: Path) -> None:
    before = mlp.read_bytes()
    assert cli("compile", mlp, "-o", mlp).exit_code == 2
    assert cli("compile", mlp, "-o", mlp.parent).exit_code == 2
    assert mlp.read_bytes() == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_folder_that_cannot_be_written(cli: Callable[..., Any], mlp: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    result = cli("compile", mlp, "-o", folder / "a.tw")
    assert result.exit_code == 1
    assert "Permission denied" in result.stderr


def test_an_output_below_a_file_is_refused(cli: Callable[..., Any], mlp: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = cli("compile", mlp, "-o", tmp_path / "file" / "a.tw")
    assert result.exit_code == 1
    assert "error: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_fault_of_ours_leaves_a_bundle(cli: Callable[..., Any], mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("tilewright.api.make_artifact", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = cli("run", mlp)
    assert result.exit_code == InternalError.exit_code
    assert "Traceback" not in result.stderr
    (folder,) = tmp_path.glob("tilewright-*")
    assert f"bundle: {folder}" in result.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["error"] == "KeyError: 'lost'"
    assert report["options"]["model"] == str(mlp)
    assert report["versions"]["numpy"] == np.__version__
    assert "KeyError: 'lost'" in (folder / "traceback.txt").read_text()
    graph = (folder / "graph.txt").read_text()
    assert "contract" in graph
    assert "sha256:" in graph, "weights stay with the user"
    assert "Traceback" in cli("run", mlp, "--debug").stderr
    assert json.loads(cli("run", mlp, "--json").stdout)["bundle"]


def test_memory_that_runs_out_is_no_fault_of_ours(cli: Callable[..., Any], mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*args: object, **kwargs: object) -> None:
        raise MemoryError("unable to allocate 1 TiB")

    monkeypatch.setattr("tilewright.api.make_artifact", greedy)
    result = cli("run", mlp)
    assert result.exit_code == 5
    assert "memory ran out" in result.stderr


def test_an_interrupt_inside_a_command(cli: Callable[..., Any], mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.api.make_artifact", interrupted)
    result = cli("run", mlp, "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_while_compiling_leaves_nothing(process: Process, tmp_path: Path) -> None:
    sizes = tuple(range(40, 120))  # each layer has a kernel of its own, so that this takes a while
    model = zoo.write("mlp", tmp_path / "deep.onnx", sizes=sizes, batch="batch")
    running = process("compile", model, "-o", tmp_path / "out" / "deep.tw")
    until(lambda: len(list((tmp_path / "cache").rglob("*.bin"))) > 2)  # object code is there, not only notes about files
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=LIMIT_S)
    assert (output, errors) == ("", "interrupted\n")
    # Python ends itself by the signal, which shells show as 130 too, when the interrupt came inside of `exec` (dataclasses use it)
    assert running.returncode in (130, -signal.SIGINT)
    assert not any(path for path in tmp_path.rglob("*") if "tilewright-tmp" in path.name or path.suffix == ".tw")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_reader_that_leaves_is_no_error(process: Process, mlp: Path) -> None:
    with process("inspect", mlp, "--layer", "fc1") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(LIMIT_S) == 141


def test_the_process_answers_as_the_function_does(process: Process, mlp: Path) -> None:
    output, errors = process("run", mlp, "--json").communicate(timeout=LIMIT_S)
    assert json.loads(output)["outputs"][0]["shape"] == [1, 4]
    assert errors == ""
    output, _ = process("--version").communicate(timeout=LIMIT_S)
    assert output.startswith("tilewright ")
