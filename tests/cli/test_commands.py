"""What each command answers, as text and as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import tilewright as tw
from tilewright import zoo
from tilewright.cli import bench
from tilewright.machine.detect import detect_host


def test_compile_writes_an_artifact_that_loads(answer: Callable[..., Any], mlp: Path, tmp_path: Path) -> None:
    data = answer("compile", mlp, "-o", "new/folder/mlp.tw")
    path = tmp_path / "new/folder/mlp.tw"
    assert data["bytes"] == path.stat().st_size
    assert data["weights_bytes"] >= 4 * (16 * 32 + 32 + 32 * 4 + 4)
    assert [size["name"] for size in data["sizes"]] == ["batch"]
    assert tw.load(path)(np.zeros((3, 16), np.float32)).shape == (3, 4)
    assert list(path.parent.iterdir()) == [path]


def test_compile_takes_dims_targets_and_settings(answer: Callable[..., Any], mlp: Path) -> None:
    assert answer("compile", mlp, "-o", "a.tw", "--dim", "batch=8")["sizes"] == []
    bounded = answer("compile", mlp, "-o", "b.tw", "--dim", "batch=8..64:8")["sizes"]
    assert bounded == [{"name": "batch", "lo": 8, "hi": 64, "multiple": 8}]
    assert answer("compile", mlp, "-o", "c.tw", "--target", "cpu:x86-64-v2", "--set", "opt_level=1")["target"] == "x86-64-v2"


def test_compile_takes_a_precision(answer: Callable[..., Any], cli: Callable[..., Any], mlp: Path) -> None:
    answer("compile", mlp, "-o", "a.tw", "--precision", "bf16")
    assert tw.load("a.tw").manifest["settings"]["precision"] == "bf16"
    assert "must be one of default, strict, bf16" in cli("compile", mlp, "-o", "b.tw", "--precision", "half").stderr
    twice = cli("compile", mlp, "-o", "b.tw", "--precision", "bf16", "--set", "precision=strict")
    assert twice.exit_code == 2
    assert "'precision' is given twice" in twice.stderr


def test_a_second_compilation_comes_from_the_cache(answer: Callable[..., Any], mlp: Path, tmp_path: Path) -> None:
    answer("compile", mlp, "-o", "a.tw")
    assert answer("compile", mlp, "-o", "b.tw")["from_cache"]
    assert (tmp_path / "a.tw").read_bytes() == (tmp_path / "b.tw").read_bytes()


def test_run_gives_the_same_for_model_and_artifact(answer: Callable[..., Any], mlp: Path, artifact: Path) -> None:
    model, loaded = (answer("run", path, "--dim", "batch=5", "--seed", "3") for path in (mlp, artifact))
    assert model["outputs"] == loaded["outputs"]
    assert model["outputs"][0]["shape"] == [5, 4]
    assert model["inputs"][0]["random"]
    assert answer("run", artifact, "--dim", "batch=5", "--seed", "4")["outputs"] != model["outputs"]


def test_run_takes_inputs_from_files_and_writes_outputs(
    answer: Callable[..., Any], cli: Callable[..., Any], artifact: Path, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 16), dtype=np.float32)
    expected = tw.load(artifact)(x)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "inputs.npz", input=x)
    twice = cli("run", artifact, "--input", "input=x.npy", "--input", "inputs.npz")
    assert twice.exit_code == 2
    assert "'input' is given twice" in twice.stderr
    for option in ("input=x.npy", "input=inputs.npz", "inputs.npz"):
        data = answer("run", artifact, "--input", option, "--output", "out.npz")
        assert not data["inputs"][0]["random"]
        with np.load(tmp_path / "out.npz") as written:
            np.testing.assert_array_equal(written["output"], expected)


def test_run_draws_what_the_model_says_is_meaningful(answer: Callable[..., Any], tmp_path: Path) -> None:
    options = {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 20}
    known = {option.name for option in zoo.CATALOG["bert"].options()}
    zoo.write("bert", tmp_path / "bert.onnx", **{name: value for name, value in options.items() if name in known})
    answer("compile", "bert.onnx", "-o", "bert.tw")
    data = answer("run", "bert.tw", "--dim", "batch=2", "--dim", "sequence=8")
    assert all(output["nan"] == 0 for output in data["outputs"])
    assert {tuple(entry["shape"]) for entry in data["inputs"]} == {(2, 8)}


def test_statistics_count_what_is_not_finite(answer: Callable[..., Any], tmp_path: Path) -> None:
    onnx.save(
        parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Log(x) }'), tmp_path / "log.onnx"
    )
    np.save(tmp_path / "x.npy", np.array([-1, 0, 1, np.e], np.float32))
    (output,) = answer("run", "log.onnx", "--input", "x=x.npy")["outputs"]
    assert (output["nan"], output["inf"], output["min"]) == (1, 1, 0)
    assert output["first"][0] is None, "NaN is no JSON"
    assert output["max"] == pytest.approx(1)


def test_check_accepts_a_model_with_estimates(answer: Callable[..., Any], mlp: Path) -> None:
    data = answer("check", mlp)
    assert data["ok"]
    assert data["missing"] == []
    assert {(entry["operator"], entry["nodes"]) for entry in data["operators"]} == {("Gemm", 2), ("Relu", 1)}
    estimate = data["estimate"]
    macs, biases_and_relu = 16 * 32 + 32 * 4, 32 + 32 + 4
    assert estimate["operations"] == 2 * macs + biases_and_relu
    assert estimate["operations_formula"] == f"batch * {2 * macs + biases_and_relu}"
    assert estimate["weights_bytes"] >= 4 * (macs + 36)
    assert "batch" in estimate["memory_formula"]
    assert answer("check", mlp, "--dim", "batch=10")["estimate"]["operations"] == 10 * estimate["operations"]


def test_check_estimates_what_compile_needs(answer: Callable[..., Any], mlp: Path) -> None:
    checked, compiled = answer("check", mlp), answer("compile", mlp, "-o", "a.tw")
    assert checked["estimate"]["weights_bytes"] == compiled["weights_bytes"]
    assert checked["estimate"]["memory_formula"] == compiled["memory_formula"]
    assert checked["estimate"]["kernels"] == compiled["launches"]


def test_check_lists_every_missing_node(cli: Callable[..., Any], unsupported: Path) -> None:
    result = cli("check", unsupported, "--json")
    assert result.exit_code == 4
    data = json.loads(result.stdout)
    missing = {entry["operator"]: entry for entry in data["missing"]}
    assert missing.keys() == {"Foo", "Bar", "Inner", "InFunction"}
    assert missing["Foo"]["node"] == "first"
    assert missing["Foo"]["domain"] == "other"
    assert missing["Foo"]["opset"] == 1
    assert missing["Foo"]["dtypes"] == ["float32"]
    assert missing["Foo"]["attributes"] == ["k=3", "mode=fast"]
    assert data["checked_by_name_only"] > 0
    text = cli("check", unsupported)
    assert text.exit_code == 4
    assert all(name in text.stdout for name in ("other::Foo", "other::Bar", "inner", "cannot be compiled: 4 problems"))


def test_check_goes_on_with_the_types_that_the_model_states(cli: Callable[..., Any], tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "other" : 1]>
    g (float[3,4] x) => (float[3,4] a, float[3,3] z) { [first] a = other.Foo(x)  [second] b = Neg(a)  [third] z = Det(b) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    data = json.loads(cli("check", "m.onnx", "--json").stdout)
    assert [entry["node"] for entry in data["missing"]] == ["first", "third"], "Det of no square matrix is found past an unknown operator"
    assert data["checked_by_name_only"] == 0


def test_sizes_known_only_while_running_are_said_to_come_on_top(
    answer: Callable[..., Any], cli: Callable[..., Any], mlp: Path, tmp_path: Path
) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (int64[1, m] y) { y = NonZero(x) }'
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    assert answer("check", "m.onnx")["estimate"]["open_ended"]
    assert answer("compile", "m.onnx", "-o", "m.tw")["open_ended"]
    assert "more for sizes known only while running" in cli("check", "m.onnx").stdout
    assert not answer("check", mlp)["estimate"]["open_ended"]


def test_python_check_is_the_same(unsupported: Path, mlp: Path) -> None:
    assert tw.check(mlp).ok
    report = tw.check(unsupported)
    assert not report.ok
    assert report.exit_code == 4
    assert "Foo node 'first': operator other::Foo is not supported" in str(report)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "fused(input"),
        (("--stage", "graph"), "input: float32[batch, 16]"),
        (("--stage", "plan"), "output[0]: float32[batch, 4]"),
        (("--list",), "Gemm node '/fc2/Gemm'"),
        (("--layer", "/fc2/Gemm", "--stage", "kernels"), "with block("),
        (("--layer", "/fc2/Gemm", "--stage", "schedule"), "def schedule(s):"),
        (("--layer", "/fc2/Gemm", "--stage", "lowered"), "@kernel"),
        (("--layer", "fc1", "--stage", "llvm"), "define"),
        (("--layer", "0", "--stage", "asm"), ".text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_inspect_shows_each_stage(cli: Callable[..., Any], mlp: Path, options: tuple[str, ...], expected: str) -> None:
    result = cli("inspect", mlp, *options)
    assert result.exit_code == 0, result.output
    assert expected in result.stdout
    assert expected in "".join(texts_in(json.loads(cli("inspect", mlp, *options, "--json").stdout))) or "--list" in options


def texts_in(data: Any) -> list[str]:
    """All strings of plain data."""
    if isinstance(data, dict):
        return [text for value in data.values() for text in texts_in(value)]
    return [text for item in data for text in texts_in(item)] if isinstance(data, list) else [str(data)]


def test_inspect_shows_one_layer_in_all_forms(answer: Callable[..., Any], mlp: Path) -> None:
    (layer,) = answer("inspect", mlp, "--layer", "fc1")["layers"]
    assert layer["origins"] == ["Gemm node '/fc1/Gemm'", "Relu node '/fc1/Relu'"]
    assert set(layer["forms"]) == {"kernels", "schedule", "lowered", "llvm", "asm"}


def test_inspect_suggests_layers(cli: Callable[..., Any], mlp: Path) -> None:
    result = cli("inspect", mlp, "--layer", "/fc3/Gemm")
    assert result.exit_code == 9
    assert "did you mean" in result.stderr


def test_bench_compares_with_onnxruntime(answer: Callable[..., Any], mlp: Path) -> None:
    data = answer("bench", mlp, "--against", "onnxruntime", "--threads", "1,2", "--rounds", "2", "--dim", "batch=3")
    assert [result["threads"] for result in data["results"]] == [1, 2]
    for result in data["results"]:
        ours, other = result["runtimes"]
        assert ours["name"] == "tilewright"
        assert ours["median_seconds"] > 0
        assert other["ours_is_faster"] > 0
        assert other["max_relative_error"] < 1e-5
    assert data["inputs"][0]["shape"] == [3, 16]


def test_inspect_shows_the_space_of_a_layer(answer: Callable[..., Any], cli: Callable[..., Any], mlp: Path) -> None:
    (layer,) = answer("inspect", mlp, "--layer", "/fc1/Gemm", "--space")["layers"]
    assert layer["origins"][0] == "Gemm node '/fc1/Gemm'"
    assert layer["schedule"].startswith("def schedule(s):")
    assert layer["loops"]
    for decision in layer["decisions"]:
        taken = [option for option in decision["options"] if option["taken"]]
        assert len(taken) == 1
        assert taken[0]["default"]
        assert taken[0]["cost"] == min(option["cost"] for option in decision["options"])
        assert layer["point"][decision["name"]] == taken[0]["value"]
        assert decision["why"]
    shown = cli("inspect", mlp, "--layer", "/fc1/Gemm", "--space").stdout
    assert layer["kernel"] in shown
    assert "parallel" in shown
    assert cli("inspect", mlp, "--space", "--list").exit_code == 2
    assert cli("inspect", mlp, "--export", "x.json", "--stage", "asm").exit_code == 2


def test_schedules_are_exported_changed_and_taken(answer: Callable[..., Any], cli: Callable[..., Any], mlp: Path, tmp_path: Path) -> None:
    assert answer("inspect", mlp, "--export", "s.json")["export"] == "s.json"
    written = json.loads((tmp_path / "s.json").read_text())
    assert next(entry["nodes"] for entry in written["kernels"].values())[0] == "Gemm node '/fc1/Gemm'"
    answer("compile", mlp, "-o", "plain.tw", "--set", "cache=0")
    answer("compile", mlp, "-o", "given.tw", "--set", "cache=0", "--schedule", "s.json")
    assert (tmp_path / "plain.tw").read_bytes() == (tmp_path / "given.tw").read_bytes(), "the defaults, said out loud, are the defaults"
    key = next(iter(written["kernels"]))
    (tmp_path / "none.json").write_text(json.dumps({"format": 1, "kernels": {key: {"name": "mine", "trace": []}}}))
    changed = answer("compile", mlp, "-o", "changed.tw", "--schedule", "none.json")
    assert not changed["from_cache"], "a schedule is part of the key"
    assert answer("compile", mlp, "-o", "changed.tw", "--schedule", "none.json")["from_cache"]
    assert (tmp_path / "changed.tw").read_bytes() != (tmp_path / "plain.tw").read_bytes()
    x = np.random.default_rng(0).standard_normal((3, 16), dtype=np.float32)
    np.testing.assert_allclose(tw.load(tmp_path / "changed.tw")(x), tw.load(tmp_path / "plain.tw")(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(tw.compile(mlp, schedule=tmp_path / "none.json")(x), tw.load(tmp_path / "changed.tw")(x))
    (layer,) = answer("inspect", mlp, "--layer", "/fc1/Gemm", "--space", "--schedule", "none.json")["layers"]
    assert layer["schedule"] == "def schedule(s):\n    return s\n"


def test_schedules_that_do_not_fit_are_refused(cli: Callable[..., Any], mlp: Path, tmp_path: Path) -> None:
    def refused(text: str, *options: str) -> str:
        (tmp_path / "s.json").write_text(text)
        result = cli("compile", mlp, "-o", "a.tw", "--schedule", "s.json", *options)
        assert result.exit_code == 6, result.output
        return str(result.stderr)

    assert "is no JSON" in refused("{")
    assert "these are no schedules" in refused("[]")
    assert "the model has no kernel other (0123)" in refused(json.dumps({"format": 1, "kernels": {"0123": {"name": "other", "trace": []}}}))
    assert cli("inspect", mlp, "--export", "whole.json").exit_code == 0
    key = next(iter(json.loads((tmp_path / "whole.json").read_text())["kernels"]))
    text = refused(json.dumps({"format": 1, "kernels": {key: {"name": "mine", "point": {"nonsense": 1}}}}))
    assert "the schedule given for kernel mine does not fit: there is no decision 'nonsense'" in text
    assert "/fc1/Gemm" in text
    assert "cannot be opened" in cli("compile", mlp, "-o", "a.tw", "--schedule", "nowhere.json").stderr
    assert "nothing is scheduled" in cli("compile", mlp, "-o", "a.tw", "--schedule", "whole.json", "--set", "opt_level=2").stderr


def test_profile_says_where_the_time_goes(
    answer: Callable[..., Any], cli: Callable[..., Any], mlp: Path, artifact: Path, tmp_path: Path
) -> None:
    for source in (mlp, artifact):
        data = answer("profile", source, "--dim", "batch=4", "--threads", "1", "--repeat", "2", "--trace", "t.json", "--html", "p.html")
        assert data["sizes"] == {"batch": 4}
        assert data["machine"]["threads"] == 1
        first, last = data["kernels"][0], data["kernels"][-1]
        assert first["nodes"] == ["Gemm node '/fc1/Gemm'", "Relu node '/fc1/Relu'"]
        assert first["multiply_adds"] == {"f32": 2 * 4 * 16 * 32}
        assert last["bytes"] >= 4 * (32 * 4 + 4 * 4)
        assert {event["cat"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if "cat" in event} == {
            "inference",
            "kernel",
        }
        assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")
    text = cli("profile", artifact, "--top", "1", "--repeat", "1").stdout
    assert "bound by" in text
    assert "--top 0 shows all" in text


def test_profile_needs_inputs_and_outputs_that_make_sense(cli: Callable[..., Any], artifact: Path) -> None:
    assert cli("profile", artifact, "--static").exit_code == 2
    assert cli("profile", artifact, "--trace", str(artifact)).exit_code == 2
    assert cli("profile", artifact, "--dim", "nonsense=2").exit_code == 9


def test_bench_of_an_artifact_alone(cli: Callable[..., Any], artifact: Path) -> None:
    result = cli("bench", artifact, "--rounds", "1")
    assert result.exit_code == 0, result.output
    assert "tilewright" in result.stdout
    assert cli("bench", artifact, "--against", "onnxruntime").exit_code == 2


def test_bench_says_which_runtime_is_not_there(cli: Callable[..., Any], mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "knows no runtime 'tvm'" in cli("bench", mlp, "--against", "tvm").stderr
    monkeypatch.setattr("tilewright.cli.peers.find_spec", lambda name: None)
    result = cli("bench", mlp, "--against", "openvino")
    assert result.exit_code == 10
    assert "openvino is not installed" in result.stderr
    assert "pip install tilewright[bench]" in result.stderr


def test_largest_error_sees_differences_of_every_kind() -> None:
    one = {"y": np.array([1.0, 2.0])}
    assert bench.largest_error(one, one) == 0
    assert bench.largest_error(one, {"y": np.array([1.0, 4.0])}) == pytest.approx(0.5)
    assert bench.largest_error(one, {"y": np.array([1.0, np.nan])}) == np.inf
    assert bench.largest_error({"y": np.array([np.nan, np.inf])}, {"y": np.array([np.nan, np.inf])}) == 0
    assert bench.largest_error(one, {"y": np.array([[1.0, 2.0]])}) == np.inf


def test_zoo_lists_and_writes(answer: Callable[..., Any], tmp_path: Path) -> None:
    names = [model["name"] for model in answer("zoo")["models"]]
    assert names == list(zoo.CATALOG)
    assert [option["name"] for option in answer("zoo", "mlp")["models"][0]["options"]] == [o.name for o in zoo.CATALOG["mlp"].options()]
    data = answer("zoo", "mlp", "a/b.onnx", "--option", "sizes=8,4", "-o", "batch=n", "--seed", "7")
    assert data["options"] == {"sizes": [8, 4], "batch": "n"}
    assert (tmp_path / "a/b.onnx").read_bytes() == zoo.build("mlp", 7, sizes=(8, 4), batch="n").SerializeToString()


def test_doctor_finds_the_installation_working(answer: Callable[..., Any], cli: Callable[..., Any]) -> None:
    data = answer("doctor")
    assert data["works"]["ok"]
    assert data["limits"]["threads"] >= 1
    assert data["versions"]["tilewright"] == tw.__version__
    assert {"name": "opt_level", "value": 3, "from": "default"} in data["settings"]
    assert "a small kernel was compiled and gave the right results" in cli("doctor").stdout


def test_doctor_measures_and_keeps_what_it_found(
    answer: Callable[..., Any], cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CONFIG_DIR", str(tmp_path / "config"))
    for name, value in (("ROUND_S", 1e-5), ("ROUNDS", 1), ("FORKS", 10), ("LARGEST", 1 << 22)):
        monkeypatch.setattr(f"tilewright.target.cpu.measure.{name}", value)
    detect_host.cache_clear()
    try:
        before = answer("doctor")["peaks"]
        assert not before["measured"]
        assert "tilewright doctor --measure measures them" in cli("doctor").stdout
        data = answer("doctor", "--measure")
        assert data["measured_now"] == data["peaks"]["file"] == str(tmp_path / "config" / "measured.json")
        assert data["peaks"]["measured"]
        assert answer("doctor")["peaks"] == data["peaks"] != before
    finally:
        monkeypatch.undo()
        detect_host.cache_clear()


def test_doctor_says_what_is_broken(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise OSError("no LLVM here")

    monkeypatch.setattr("tilewright.cli.doctor.run_kernel", broken)
    result = cli("doctor")
    assert result.exit_code == 1
    assert "no kernel can be compiled and run: OSError: no LLVM here" in result.stdout


def test_demo_reads_digits(answer: Callable[..., Any], cli: Callable[..., Any]) -> None:
    data = answer("demo")
    assert data["accuracy"] > 0.95
    assert data["images"] == 64
    shown = cli("demo").stdout
    assert "digits right" in shown
    assert "█" in shown
