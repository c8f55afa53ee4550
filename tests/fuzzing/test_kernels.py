"""The mode `kernels`: other passes and schedules give the same results; faults in primitives and passes are found and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import compiler
from tilewright.fuzzing import run
from tilewright.fuzzing.cases import Case, How, Outcome, machine_of, read_case, run_case, write_case
from tilewright.fuzzing.corpus import Corpus, Genome
from tilewright.fuzzing.lines import Lines
from tilewright.fuzzing.mutated import TAIL, pass_names
from tilewright.fuzzing.worker import Worker, answer
from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function
from tilewright.graph.ops import Binary
from tilewright.graph.text_parser import parse_module
from tilewright.ir import simplify
from tilewright.kernel.schedule.schedule import PRIMITIVES
from tilewright.support.settings import Settings

TEXT = """
def main(x: float32[6, 10], w: float32[10, 4]):
    v0 = contract(x, w, spec="mk,kn->mn", dtype=float32)
    v1 = unary(v0, fn="tanh")
    v2 = reduce(v1, fn="max", axes=(1,), keepdims=False)
    return v2
"""


class Here(Worker):
    """Runs cases in this process, where faults can be put into the compiler."""

    def ask(self, request: Mapping[str, Any]) -> Outcome:
        return answer(request)


def example(**how: Any) -> Case:
    function = parse_module(TEXT).main
    rng = np.random.default_rng(5)
    inputs = tuple(rng.integers(-8, 9, [int(d.value) for d in p.shape]).astype(np.float32) / 4 for p in function.params)
    return Case(function, (inputs,), How("cpu", 3, 1, **how), 0)


def test_other_schedules_and_passes_give_the_same(tmp_path: Path) -> None:
    names = pass_names(machine_of("cpu"), Settings())
    assert not set(names) & set(TAIL)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        case = example(passes=tuple(str(n) for n in rng.permutation(names)[:6]), genes=tuple(int(g) for g in rng.integers(0, 1 << 20, 3)))
        assert run_case(case) is None
    write_case(case, tmp_path / "case.zip")
    assert read_case(tmp_path / "case.zip").how == case.how


def test_nothing_is_found_where_nothing_is_wrong_and_coverage_grows(tmp_path: Path) -> None:
    report = tw.fuzz(mode="kernels", cases=6, seed=3, out=tmp_path)
    assert report.ok, str(report)
    assert report.reached > 500


def test_a_fault_in_a_primitive_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A split that forgets the last iteration: what nobody writes is seen by the kernel interpreter."""
    right = PRIMITIVES["split"]

    def wrong(nest: Any, loop: str, factors: Any) -> Any:
        change = right(nest, loop, factors)
        extent = nest.loop(loop).extent
        if not extent.is_const or extent.value < 4:
            return change
        from tilewright.kernel.nodes import For, map_stmt, with_fields

        def shorter(stmt: Any) -> Any:
            if isinstance(stmt, For) and stmt.var.name in change.results[0]:
                return For(stmt.var, stmt.extent - 1, stmt.body, stmt.kind) if stmt.var.name == change.results[0][0] else stmt
            return map_stmt(stmt, shorter)

        return replace(change, kernel=with_fields(change.kernel, body=shorter(change.kernel.body)))

    monkeypatch.setitem(PRIMITIVES, "split", wrong)
    monkeypatch.setattr(run, "Worker", Here)
    report = tw.fuzz(mode="kernels", cases=40, seed=1, out=tmp_path, most=1, minimise=15.0)
    assert not report.ok
    (fault,) = report.faults
    assert fault.folder is not None
    small = read_case(fault.folder / "case.zip")
    assert len(small.how.genes) <= 2
    assert "split" in fault.text or "schedule" in fault.text or fault.kind == "error"


def test_a_fault_in_a_pass_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pass that takes products for sums, in whatever place of a sequence it runs."""
    right = compiler.merge_rows
    seen: list[bool] = []

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        return g.emit(Binary("add"), *inputs) if node.op is Binary("mul") else None

    def wrong(function: Function, *others: Any) -> Function:
        seen.append(True)
        return rewrite_function(right(function, *others), visit)

    monkeypatch.setattr(compiler, "merge_rows", wrong)
    monkeypatch.setattr(run, "Worker", Here)
    report = tw.fuzz(mode="kernels", cases=40, seed=4, out=tmp_path, most=1, minimise=15.0)
    assert seen
    assert not report.ok
    assert "merge_rows" in report.faults[0].text + report.faults[0].culprit
    assert len(report.faults[0].operators) <= 3


def test_lines_are_new_once() -> None:
    lines = Lines(("ir",))
    with lines.watching() as first:
        simplify.simplifier()
    with lines.watching() as second:
        simplify.simplifier()
    assert all(place.startswith("ir/") for place in first)
    assert not second


def test_seeds_that_reach_something_are_kept_and_changed() -> None:
    corpus = Corpus(("a", "b", "c"), np.random.default_rng(0))
    genome = corpus.next(7)
    assert genome.graph == 7
    assert corpus.learn(genome, ["x", "y"])
    assert not corpus.learn(Genome(8), ["x"])
    assert [seed for seed, _ in corpus.seeds] == [genome]
    following = []
    for _ in range(60):
        following.append(corpus.next(9))
        corpus.learn(following[-1], ["x"])  # nothing new: after some of these passes are changed too
    assert sum(each.graph == 7 for each in following) > 30
    assert any(each.graph == 7 and each.passes != genome.passes for each in following)
    assert all(set(each.passes) <= {"a", "b", "c"} for each in following)
    changed = {corpus.other_passes(("a", "b")) for _ in range(30)}
    assert len(changed) > 5
