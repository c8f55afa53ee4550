"""The commands that measure: what they count and print, not how long anything takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import ablation, dynamic, levels, memory, odd_sizes, variants
from benchmarks.families import convolution, densenet121, efficientnet_b0, product
from benchmarks.variants import Variant, artifact, collected, geometric_mean, markdown, same_code
from tilewright.zoo import build, example_inputs, save


def test_tables() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert np.isnan(geometric_mean([]))
    assert markdown(["a", "b"], [["x", 1234.0], ["y", 0.01234]]).splitlines()[2:] == ["| x | 1234 |", "| y | 0.0123 |"]


def test_figures_are_added_to_those_of_other_models(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    collected(file, {"a": {"ms": 1.0}})
    assert collected(file, {"b": {"ms": 2.0}}) == json.loads(file.read_text()) == {"a": {"ms": 1.0}, "b": {"ms": 2.0}}


def test_variants_are_kept_and_told_apart(tmp_path: Path) -> None:
    model = save(build("mlp", sizes=(20, 32, 5)), tmp_path / "net.onnx")
    default, same, other = (
        artifact(Variant(model, settings=settings), tmp_path) for settings in ({}, {"winograd": False}, {"packing": False})
    )
    assert len({default, same, other}) == 3
    assert same_code(tw.load(default), tw.load(same))
    assert not same_code(tw.load(default), tw.load(other))
    written = default.stat().st_mtime_ns
    assert artifact(Variant(model), tmp_path).stat().st_mtime_ns == written


def test_an_ablation_measures_each_part_that_changes_something(tmp_path: Path) -> None:
    model = save(build("mlp", sizes=(20, 32, 5)), tmp_path / "net.onnx")
    np.savez(tmp_path / "net.io.npz", **{f"in_{name}": array for name, array in example_inputs(build("mlp", sizes=(20, 32, 5))).items()})
    figures = ablation.ablate(model, tmp_path, threads=1, rounds=1)
    assert set(figures) == {"ms", *ablation.PARTS}
    assert figures["winograd"] == figures["layouts"] == 1.0
    assert "geometric mean" in ablation.report({"net": figures})


@pytest.mark.parametrize(
    ("model", "least"),
    [
        (convolution(2, 9, 5, 7, 3, 2), 2 * 2 * 7 * 5 * 5 * 5 * 9),
        (convolution(1, 8, 6, 6, 3, 1, groups=6), 2 * 6 * 8 * 8 * 9),
        (product((3, 4, 5), (3, 5, 6), constant=False), 2 * 3 * 4 * 5 * 6),
    ],
)
def test_operations_are_those_of_the_definitions(model: object, least: int) -> None:
    assert least <= odd_sizes.operations(model) <= 1.3 * least


def test_what_is_too_slow_at_odd_sizes_stands_out() -> None:
    text = odd_sizes.report({"a": {"gflops": 100.0, "batch": 0.79, "all": 0.9}, "b": {"gflops": 10.0, "batch": 1.2, "all": 0.9}})
    assert "| **0.79** |" in text
    assert "| 0.90 |" in text
    assert "**0.90**" not in text


def test_every_odd_model_differs_from_the_even_one() -> None:
    for name, sizes in odd_sizes.cases().items():
        if name in odd_sizes.PRODUCTS or name in ("C2", "D1", "mlp_b64"):
            shapes = {
                size: [tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in make().graph.input] for size, make in sizes.items()
            }
            assert len({str(shape) for shape in shapes.values()}) == len(shapes), name


def test_dynamic_cases_name_all_symbolic_dims() -> None:
    for name in ("mlp", "bert_tiny", "gpt2_decode", "lstm_lm"):
        case = dynamic.cases()[name]
        model = case.make()
        for sizes in case.sizes:
            assert example_inputs(model, sizes)
    assert "1: **1.20** (1.04 to 1.31), 2: 1.05 (0.90 to 1.06)" in dynamic.report({"a": {"1": (1.04, 1.2, 1.31), "2": (0.9, 1.05, 1.06)}})


def test_taking_turns_compares_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slow for some rounds is slow for both; who comes second in a turn finds the caches full of the other's weights."""
    cold, slow = np.array([1.0, 1.5] * 5), np.repeat([1.0, 2.0, 8.0, 1.0, 1.0], 2)
    longer = np.repeat([1.1, 1.0, 1.1, 1.2, 1.3], 2)
    monkeypatch.setattr(variants, "times_in_turns", lambda _, rounds: [list(slow * cold), list(slow * longer * cold[::-1])][:rounds])
    exe = tw.compile(build("mlp", sizes=(4, 4)), cache=False, progress="none", opt_level=0)
    first, second = variants.in_turns([exe, exe], [{}, {}], 5)
    assert first == {"median_seconds": 1.25}
    assert second["ours_is_faster"] == pytest.approx(1.1)


def test_calls_are_compared_with_those_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down from call to call slows both: of four calls, the first and the last are of one."""
    clock, calls = [0.0], [0]

    class Slower:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def run(self, _: object) -> None:
            calls[0] += 1
            clock[0] += self.seconds * calls[0]

    monkeypatch.setattr(variants.time, "perf_counter", lambda: clock[0])
    found = variants.call_by_call(Slower(1.0), Slower(1.5), {}, 0.0)  # type: ignore[arg-type]
    assert found == pytest.approx((1.5, 1.5, 1.5))
    assert calls[0] == 4 + 4 * 8


def test_families_run_at_odd_sizes() -> None:
    for model in (efficientnet_b0(1, 33, unit=2), densenet121(1, 33, growth=4)):
        (result,) = tw.compile(model, cache=False, progress="none", opt_level=2).run(example_inputs(model)).values()
        assert result.shape == (1, 1000)
        assert np.isfinite(result).all()


def test_growth_sees_what_a_run_touches() -> None:
    size = 24 << 20
    assert size * 0.9 < memory.growth(lambda: lambda: np.ones(size, np.uint8)) < size * 1.5


def test_levels_are_compiled_for_their_instruction_sets(tmp_path: Path) -> None:
    model = save(build("mlp", sizes=(20, 32, 5)), tmp_path / "net.onnx")
    own, *older = (tw.load(path).manifest["target"]["name"] for path in levels.compiled(model, tmp_path))
    assert older == list(levels.LEVELS)
    assert own not in older
    assert "geometric mean" in levels.report({"net": {"ms": 1.0, "x86-64-v3": 2.0, "x86-64-v2": 4.0}})
