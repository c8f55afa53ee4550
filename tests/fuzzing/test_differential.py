"""The differential fuzzer: a fixed set of random graphs compiles and agrees with the interpreter, and the fuzzer finds what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.accuracy.rounding_noise import disagreement, expectations
from tilewright.fuzzing import cases
from tilewright.fuzzing.cases import Case, How, Outcome, Recipe, case_of, read_case, run_case, write_case
from tilewright.fuzzing.generator import draw
from tilewright.fuzzing.graphs import STEPS, grow
from tilewright.fuzzing.shrink import shrink
from tilewright.fuzzing.worker import Worker
from tilewright.graph.node import walk_nodes
from tilewright.graph.text_parser import parse_module
from tilewright.ir.expr import const

GROUPS = (
    (), (), (), (), ("contraction",), ("convolutions", "pooling"), ("normalized", "reduction"), ("attention", "recurrent"),
    ("gather", "scatter", "ordering", "cumulative"), ("positions", "compressed", "distinct"), ("branching", "looping", "scanning"),
    ("grown_branch", "grown_loop"),
    ("slice", "pad", "join", "regroup"), ("convert", "integer", "quant", "choose"),
)  # fmt: skip


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_random_graphs_compile_right(group: int) -> None:
    for seed in range(100 * group, 100 * group + 5):
        finding = run_case(case_of(seed, Recipe(GROUPS[group])))
        assert finding is None, f"seed {seed}, like {GROUPS[group]}: {finding.text}"


def test_cases_are_the_same_every_time() -> None:
    one, two = case_of(7), case_of(7)
    assert (one.function, one.how) == (two.function, two.how)
    for a, b in zip(one.inputs, two.inputs, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_step_contributes() -> None:
    """Alone, each step gives graphs that compute something."""
    for name in STEPS:
        sizes = [len(list(walk_nodes(grow(seed, (name,)).function.results))) for seed in range(6)]
        assert max(sizes) > 3, name


def test_cases_survive_being_written(tmp_path: Path) -> None:
    for seed in range(20):
        case = case_of(seed)
        write_case(case, tmp_path / "case.zip")
        back = read_case(tmp_path / "case.zip")
        assert (back.function, back.how, back.seed) == (case.function, case.how, case.seed)
        for a, b in zip(case.inputs, back.inputs, strict=True):
            assert all((x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()) for x, y in zip(a, b, strict=True))


TEXT = """
def main(x: float32[6, 10], w: float32[10, 4]):
    v0 = contract(x, w, spec="mk,kn->mn", dtype=float32)
    v1 = unary(v0, fn="tanh")
    v2 = binary(v1, v1, fn="add")
    v3 = reduce(v2, fn="max", axes=(1,), keepdims=False)
    return v1, v3
"""


def example() -> Case:
    function = parse_module(TEXT).main
    rng = np.random.default_rng(3)
    inputs = tuple(draw(rng, [int(d.value) for d in p.shape], p.type.dtype) for p in function.params)
    return Case(function, (inputs,), How("cpu", 3, 1), 0)


def test_right_results_are_accepted_and_wrong_ones_are_not() -> None:
    case = example()
    expected = expectations(case.function, case.inputs[0], 0)
    for result in expected:
        assert result is not None
        assert disagreement(result.value, result) is None
        assert disagreement(result.value * np.float32(1 + 1e-7), result) is None
        assert "wrong" in str(disagreement(result.value * np.float32(1.001), result))
        assert "is float32" in str(disagreement(result.value[:-1], result))
        assert "wrong" in str(disagreement(np.full_like(result.value, np.nan), result))


def test_a_miscompilation_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a compiler that takes additions for subtractions, what is left of a case is that addition."""
    real = cases.compile_module

    def wrong(module, *rest, **named):  # type: ignore[no-untyped-def]
        from tilewright.graph.node import rewrite_function
        from tilewright.graph.ops import Binary

        def visit(g, node, inputs):  # type: ignore[no-untyped-def]
            return g.emit(Binary("sub"), *inputs) if node.op is Binary("add") else None

        return real(module.with_main(rewrite_function(module.main, visit)), *rest, **named)

    class Here(Worker):
        def ask(self, request):  # type: ignore[no-untyped-def]
            return Outcome(run_case(read_case(Path(request["file"]))))

    monkeypatch.setattr(cases, "compile_module", wrong)
    finding = run_case(example())
    assert finding is not None
    assert finding.kind == "wrong"
    assert finding.result == 1
    small, found = shrink(example(), finding, Here(), 30.0)
    assert found.kind == "wrong"
    operators = [node.op.name for node in walk_nodes(small.function.results) if node.op.name not in ("parameter", "constant")]
    assert operators == ["binary"]


def test_a_crash_is_a_finding_and_the_next_case_runs() -> None:
    with Worker(limit=30.0) as worker:
        assert worker.ask({"file": "missing.zip"}).finding.kind == "generator"  # type: ignore[union-attr]
        assert worker.process.process is not None
        worker.process.process.kill()
        found = worker.ask({"seed": 1}).finding
        assert found is not None
        assert found.kind == "crash"
        assert "SIGKILL" in found.text
        assert worker.ask({"seed": 1}).finding is None


def test_a_hang_is_a_finding() -> None:
    with Worker(limit=0.01) as worker:
        found = worker.ask({"seed": 1}).finding
        assert found is not None
        assert found.kind == "hang"


OPTIONS: dict[str, Callable[[Any], bool]] = {
    "attention": lambda op: op.softcap > 0 and op.past is not const(0),
    "gather_nd": lambda op: op.batch_dims > 0,
    "quantize": lambda op: op.block > 0,
    "lstm": lambda op: op.clip is not None and "peephole" in op.given,
    "resize": lambda op: op.antialias and op.scales[-1] is not None,
    "roi_align": lambda op: op.samples == 0,
    "tree_ensemble": lambda op: op.missing,
    "if": lambda op: len(list(walk_nodes(op.then_branch.results))) > 12,
    "loop": lambda op: op.trip is None,
}
STEPS_OF = {
    "lstm": "recurrent",
    "quantize": "quantization",
    "roi_align": "regions",
    "tree_ensemble": "trees",
    "if": "grown_branch",
    "loop": "grown_loop",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_operators_are_drawn(name: str) -> None:
    like = (STEPS_OF.get(name, name),)
    met = (node.op for seed in range(200) for node in walk_nodes(grow(seed, like, most=6).function.results) if node.op.name == name)
    assert any(OPTIONS[name](op) for op in met)
