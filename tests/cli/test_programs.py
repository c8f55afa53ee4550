"""Commands on models whose values are more than tensors of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import Result

from tilewright.support.errors import InputError


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Words in capitals, and how often each of two stands in a row; the counts are doubled by compiled code."""
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
    path = tmp_path / "words.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_run_takes_strings_from_files(answer: Callable[..., Any], words: Path) -> None:
    (words.parent / "words.json").write_text(json.dumps(["yes", "no", "yes"]))
    np.save(words.parent / "words.npy", np.asarray(["yes", "no", "yes"]))
    for file in ("words.json", "words.npy"):
        upper, both = answer("run", words, "--input", f"words={words.parent / file}")["outputs"]
        assert upper["first"] == ["YES", "NO", "YES"]
        assert upper["dtype"] == "string"
        assert both["first"] == [[2.0, 1.0], [4.0, 2.0]]


def test_strings_cannot_be_drawn(cli: Callable[..., Result], words: Path) -> None:
    result = cli("run", words)
    assert result.exit_code == InputError.exit_code
    assert "input 'words' cannot be drawn at random" in result.output
    assert "--input words=" in result.output


def test_outputs_that_no_npz_holds(cli: Callable[..., Result], words: Path) -> None:
    (words.parent / "words.json").write_text('["yes"]')
    result = cli("run", words, "--input", f"words={words.parent / 'words.json'}", "--output", "out.npz")
    assert result.exit_code == InputError.exit_code
    assert "output 'both' is no array" in result.output


@pytest.mark.parametrize("command", ["run", "compare"])
def test_inputs_are_drawn_of_the_sizes_that_given_ones_have(cli: Callable[..., Result], tmp_path: Path, command: str) -> None:
    graph = "g (string[n] s, float[n, m] x) => (string[n] o, float[n, m] y) { o = Identity (s) y = Neg (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {graph}'), tmp_path / "both.onnx")
    (tmp_path / "s.json").write_text('["a", "b", "c", "d", "e"]')
    result = cli(command, tmp_path / "both.onnx", "--input", f"s={tmp_path / 's.json'}")
    assert result.exit_code == 0, result.output
    assert "[5, " in result.output
    if command == "run":
        refused = cli(command, tmp_path / "both.onnx", "--input", f"s={tmp_path / 's.json'}", "--dim", "n=3")
        assert refused.exit_code == InputError.exit_code
        assert "dim 'n' is to be 3, but the inputs given say 5" in refused.output


def test_compile_and_check_know_programs(cli: Callable[..., Result], answer: Callable[..., Any], words: Path) -> None:
    assert answer("check", words)["ok"]
    made = answer("compile", words, "-o", "words.tw")
    assert made["kernels"] == 1
    assert made["inputs"] == [{"name": "words", "kind": "tensor(string)", "shape": ["n"]}]
    (words.parent / "words.json").write_text('["no"]')
    assert cli("run", "words.tw", "--input", f"words={words.parent / 'words.json'}").exit_code == 0
    assert "words: string[n]" in cli("compile", words, "-o", "words.tw").output


@pytest.fixture
def given(words: Path) -> str:
    (words.parent / "words.json").write_text('["yes", "no"]')
    return f"words={words.parent / 'words.json'}"


def test_bench_measures_programs(answer: Callable[..., Any], words: Path, given: str) -> None:
    (result,) = answer("bench", words, "--input", given, "--rounds", 2, "--threads", 1, "--against", "onnxruntime")["results"]
    ours, theirs = result["runtimes"]
    assert ours["median_seconds"] > 0
    assert theirs["max_relative_error"] == 0


def test_profile_shows_the_kernels_of_each_part(cli: Callable[..., Result], answer: Callable[..., Any], words: Path, given: str) -> None:
    found = answer("profile", words, "--input", given, "--repeat", 2)
    (part,) = found["parts"]
    assert (part["part"], part["calls"], len(part["kernels"])) == (0, 1, 1)
    assert found["total_seconds"] >= part["plain_seconds"]
    assert "part 0" in cli("profile", words, "--input", given, "--repeat", 2).output
    assert cli("profile", words, "--input", given, "--html", "p.html").exit_code == 2


def test_compare_shows_the_kernels_of_each_part(cli: Callable[..., Result], words: Path, given: str) -> None:
    shown = cli("compare", words, "--input", given)
    assert shown.exit_code == 0, shown.output
    assert "both[1]" in shown.output
    assert "part 0" in shown.output


def test_inspect_shows_the_parts(cli: Callable[..., Result], answer: Callable[..., Any], words: Path) -> None:
    assert "add" in answer("inspect", words)["optimised"]
    assert "twice" in cli("inspect", words, "--list").output
    assert cli("inspect", words, "--stage", "llvm").exit_code == 0
