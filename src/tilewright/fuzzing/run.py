"""Fuzzing: random cases, one after another, in a process that may crash; what fails is made small and kept.

    report = tw.fuzz(seconds=60)
    print(report)

The method is NNSmith's (ASPLOS 2023): graphs grow operator by operator, each operator's type rule says what shapes fit; intervals of values
are carried along, so that results are numbers and no jump hangs on a rounding error; the reference runs beside compiled code.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.api import target_machine
from tilewright.frontend.onnx.loader import load_model
from tilewright.fuzzing.cases import Case, Finding, Outcome, Recipe, operators_of, write_case
from tilewright.fuzzing.corpus import Corpus, Genome
from tilewright.fuzzing.graphs import STEPS
from tilewright.fuzzing.model_parts import expect_parts
from tilewright.fuzzing.mutated import pass_names
from tilewright.fuzzing.reproduction import write_reproduction
from tilewright.fuzzing.shrink import shrink
from tilewright.fuzzing.worker import Worker, requested
from tilewright.graph.ops import OPERATORS
from tilewright.support.errors import SettingsError
from tilewright.support.progress import NullProgress, Progress
from tilewright.support.settings import Settings

FOUND = 1  # exit code of the command
FOLDER = "fuzz-findings"
LEVELS = 4
MODES = ("graphs", "kernels")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was found. kind, text: of the finding, of the smallest case; operators: that it is made of; culprit: pass, kernel or
    schedule, where bisecting finds one; times: how often the same was met; folder: where everything to see it again lies."""

    seed: int
    kind: str
    text: str
    operators: tuple[str, ...] = ()
    culprit: str = ""
    times: int = 1
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class FuzzReport:
    """The result of `fuzz`. compared: share of the results' elements that could be compared; covered: how often each operator occurred;
    reached: in the mode `kernels`, how many lines, pairs of passes, options of decisions and primitives."""

    first_seed: int
    cases: int
    seconds: float
    compared: float
    covered: Mapping[str, int]
    faults: tuple[Fault, ...] = ()
    reached: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.faults

    def coverage(self) -> dict[str, dict[str, int]]:
        """For every operator of the graph level, how often each of its functions occurred; {} for one that did not occur."""
        table: dict[str, dict[str, int]] = {name: {} for name in OPERATORS}
        for key, count in sorted(self.covered.items()):
            name, _, fn = key.partition(".")
            if name in table:
                table[name][fn] = count
        return table

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        faults = [{**asdict(fault), "folder": None if fault.folder is None else str(fault.folder)} for fault in self.faults]
        figures = {name: getattr(self, name) for name in ("first_seed", "cases", "seconds", "compared", "reached", "ok")}
        return {**figures, "faults": faults, "coverage": self.coverage()}

    def __str__(self) -> str:
        last = self.first_seed + self.cases - 1
        lines = [f"{self.cases} cases (seeds {self.first_seed} to {last}): {len(self.faults) or 'no'} faults"]
        for fault in self.faults:
            lines.append(f"  {fault.kind}: {fault.text}\n    of {', '.join(fault.operators)}{fault.culprit and '; ' + fault.culprit}")
            lines.append(f"    {fault.folder}, met {fault.times} times")
        return "\n".join(lines)


def fuzz(
    like: Any = None,
    *,
    seconds: float = 60.0,
    cases: int | None = None,
    seed: int | None = None,
    target: str | None = None,
    levels: Sequence[int] = (),
    steps: Sequence[str] = (),
    out: str | Path = FOLDER,
    most: int = 10,
    minimise: float = 60.0,
    mode: str = "graphs",
    progress: Progress | None = None,
) -> FuzzReport:
    """Compile random graphs and compare with the reference, for so many seconds or cases.

    like: a model (path, bytes or `onnx.ModelProto`) whose parts, changed, are the cases. seed: of the first case, the clock's where none
    is given; the same seed gives the same case. target, levels: what each case is compiled for and each `opt_level` that it is compiled
    at; both are drawn where they are not given. steps: parts of names of `fuzzing.graphs.STEPS`, of which graphs are then mostly made. out:
    the folder for what is found; most: when to stop; minimise: seconds that may be spent on making each smaller. mode: `graphs` compiles
    them as they are, `kernels` also changes passes and schedules, guided by what that reaches for the first time. Raises SettingsError for
    a mode, level or steps that do not exist, TargetError for an unknown target, ModelError for a model that has no parts to take.
    """
    if any(level not in range(LEVELS) for level in levels):
        raise SettingsError(f"there is no opt_level {max(levels, key=abs)}", hint=f"levels are 0 to {LEVELS - 1}")
    if mode not in MODES:
        raise SettingsError(f"there is no mode '{mode}'", hint=f"modes are {', '.join(MODES)}")
    unknown = [part for part in steps if not any(part in name for name in STEPS)]
    if unknown:
        raise SettingsError(f"there are no steps called '{unknown[0]}'", hint=f"steps are {', '.join(STEPS)}")
    if target is not None:
        target_machine(target)
    first = int(time.time()) if seed is None else seed
    if like is not None:
        load_model(like)  # so that a file that is none is not taken for a fault of each case
    with as_file(like) as model:
        if model is not None:
            expect_parts(model)
        recipe = Recipe(tuple(steps), target or ("cpu" if mode == "kernels" else None), tuple(levels), model, mode == "kernels")
        source = Kernels(recipe, first) if mode == "kernels" else Graphs(recipe)
        return run_cases(source, first, seconds, cases, Path(out), most, minimise, progress or NullProgress())


@contextmanager
def as_file(model: Any) -> Iterator[str | None]:
    """The path of a model that may be in memory."""
    if model is None or isinstance(model, (str, os.PathLike)):
        yield None if model is None else str(Path(model).resolve())
        return
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as folder:
        path = Path(folder) / "like.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        yield str(path)


class Source(Protocol):
    """Where cases come from."""

    def request(self, number: int) -> dict[str, Any]:
        """What to ask a worker for, as the case of a number."""

    def learn(self, outcome: Outcome) -> None:
        """Take note of what came of the case asked for last."""

    def reached(self) -> int:
        """How much has been reached for the first time; 0 where nobody looks."""


@dataclass(slots=True)
class Graphs:
    """Random graphs, compiled as they are."""

    recipe: Recipe

    def request(self, number: int) -> dict[str, Any]:
        """The case of this seed."""
        return {"seed": number, "recipe": asdict(self.recipe)}

    def learn(self, outcome: Outcome) -> None:
        """Cases are independent."""

    def reached(self) -> int:
        """Nobody looks."""
        return 0


class Kernels:
    """Passes and schedules, changed jointly, with what they reach as feedback."""

    def __init__(self, recipe: Recipe, first: int) -> None:
        names = pass_names(target_machine(recipe.target or "cpu"), Settings())
        self.recipe, self.corpus, self.genome = recipe, Corpus(names, np.random.default_rng(first)), Genome(first)

    def request(self, number: int) -> dict[str, Any]:
        """The next change of a seed of the corpus."""
        self.genome = self.corpus.next(number)
        genes = {"passes": list(self.genome.passes), "genes": list(self.genome.genes)}
        return {"seed": self.genome.graph, "recipe": asdict(self.recipe), **genes, "watch": True}

    def learn(self, outcome: Outcome) -> None:
        """Keep what reached something new."""
        self.corpus.learn(self.genome, outcome.reached)

    def reached(self) -> int:
        """Lines, pairs of passes, options of decisions, primitives."""
        return len(self.corpus.reached)


def run_cases(
    source: Source, first: int, seconds: float, cases: int | None, out: Path, most: int, minimise: float, progress: Progress
) -> FuzzReport:
    """Cases from seed `first` on, at least one."""
    start = time.monotonic()
    covered: Counter[str] = Counter()
    compared, count = 0.0, 0
    faults: list[Fault] = []
    with Worker() as worker, progress.stage("fuzz", cases) as stage:
        for seed in itertools.count(first):
            request = source.request(seed)
            outcome = worker.ask(request)
            source.learn(outcome)
            count += 1
            covered.update(outcome.operators)
            compared += outcome.compared
            if outcome.finding is not None:
                note(faults, keep(seed, outcome.finding, request, out, worker, minimise))
            stage.advance(1, f"{len(faults)} faults")
            if len(faults) >= most or (time.monotonic() - start > seconds if cases is None else count >= cases):
                break
    return FuzzReport(first, count, time.monotonic() - start, compared / count, dict(covered), tuple(faults), source.reached())


def note(faults: list[Fault], fault: Fault) -> None:
    """Add a fault, or count it where the same is known."""

    def identity(f: Fault) -> tuple[object, ...]:
        return (f.kind, f.operators, f.culprit) if f.kind != "error" else (f.kind, f.text[:60])

    for i, known in enumerate(faults):
        if identity(known) == identity(fault):
            faults[i] = replace(known, times=known.times + 1)
            return
    faults.append(fault)


def keep(seed: int, finding: Finding, request: Mapping[str, Any], out: Path, worker: Worker, minimise: float) -> Fault:
    """Make the case of a finding small, and write the folder that shows it."""
    if finding.kind == "generator":
        return Fault(seed, finding.kind, finding.text)
    case = replace(requested(request), seed=seed)
    if finding.level is not None:
        case = replace(case, how=replace(case.how, opt_level=finding.level))
    if minimise > 0:
        case, finding = shrink(case, finding, worker, minimise)
    return keep_case(case, finding, out / str(seed), worker)


def keep_case(case: Case, finding: Finding, folder: Path, worker: Worker) -> Fault:
    """Write the folder of a case that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "case.zip"
    write_case(case, path)
    culprit = ""
    if finding.kind == "wrong":
        said = worker.ask({"file": str(path), "blame": str(folder)}).finding
        culprit = said.text if said is not None and said.kind == "culprit" else ""
    write_reproduction(folder, case, finding, culprit)
    names = sorted(set(operators_of(case.function)) - {"parameter", "constant"})
    return Fault(case.seed, finding.kind, finding.text, tuple(names), culprit, 1, folder)
