"""tilewright fuzz: random models, compiled code against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, Json
from tilewright.cli.tables import facts, table, time_text

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.fuzzing.run import FuzzReport


@command
def fuzz(
    like: Annotated[str | None, typer.Option("--like", metavar="MODEL", help="An ONNX file whose parts, changed, are the cases.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="How long to look.")] = 60.0,
    cases: Annotated[int | None, typer.Option("--cases", min=1, help="How many cases to run instead.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the first case; the clock chooses one otherwise.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="TARGET", help="Machine to compile for; drawn otherwise.")] = None,
    levels: Annotated[
        str, typer.Option("--levels", metavar="N,N", help="opt_levels at each of which every case is compiled; drawn otherwise.")
    ] = "",
    steps: Annotated[str, typer.Option("--steps", metavar="A,B", help="Parts of names of what graphs shall mostly be made of.")] = "",
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="Where what is found is written.")] = "fuzz-findings",
    most: Annotated[int, typer.Option("--most", min=1, help="Stop after so many faults.")] = 10,
    minimise: Annotated[float, typer.Option("--minimise", min=0.0, help="Seconds for making each one smaller.")] = 60.0,
    mode: Annotated[
        str, typer.Option("--mode", metavar="MODE", help="graphs, or kernels: change passes and schedules as well, guided by coverage.")
    ] = "graphs",
    coverage: Annotated[bool, typer.Option("--coverage", help="Show how often each operator occurred.")] = False,
    replay: Annotated[str | None, typer.Option("--replay", metavar="CASE.zip", help="Run one case that was written.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Look for models that are compiled wrong.

    Random graphs are compiled and compared with the reference, in a process of their own. What fails is made smaller and written with a
    script that shows it. Exit code 1 when something is found.
    """
    from tilewright.fuzzing.run import FOUND
    from tilewright.fuzzing.run import fuzz as run
    from tilewright.support.progress import make_progress
    from tilewright.support.settings import current_settings

    if replay is not None:
        return replayed(Path(replay))
    report = run(
        like,
        seconds=seconds,
        cases=cases,
        seed=seed,
        target=target,
        levels=[whole(part) for part in parts_of(levels)],
        steps=parts_of(steps),
        out=out,
        most=most,
        minimise=minimise,
        mode=mode,
        progress=make_progress(current_settings().progress),
    )
    return Answer(report.to_json(), lambda console: show(console, report, coverage), 0 if report.ok else FOUND)


def parts_of(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def whole(text: str) -> int:
    if not text.isdecimal():
        raise typer.BadParameter(f"'{text}' is no number", param_hint="--levels")
    return int(text)


def replayed(path: Path) -> Answer:
    """One case, in this process."""
    from tilewright.fuzzing.cases import module_of, read_case, run_case
    from tilewright.fuzzing.run import FOUND
    from tilewright.graph.text import format_module

    if not path.exists():
        raise typer.BadParameter(f"there is no file '{path}'", param_hint="--replay")
    case = read_case(path)
    finding = run_case(case)
    said = "nothing is wrong" if finding is None else f"{finding.kind}: {finding.text}"
    data: dict[str, Any] = {"ok": finding is None, "finding": None if finding is None else finding.kind, "text": said}

    def shown(console: Console) -> None:
        console.print(f"{case.how}\n\n{format_module(module_of(case.function))}")
        console.print(said, style="bold green" if finding is None else "bold red")

    return Answer(data, shown, 0 if finding is None else FOUND)


def show(console: Console, report: FuzzReport, coverage: bool) -> None:
    if coverage:
        rows = [(name, sum(found.values()), functions(found)) for name, found in report.coverage().items()]
        console.print(table(("operator", "nodes", "functions"), rows, right=(1,)))
    if report.faults:
        found = [(f.kind, f.times, f.text, ", ".join(f.operators), f.culprit, f.folder or "") for f in report.faults]
        console.print(table(("fault", "times", "what", "operators", "at fault", "folder"), found, right=(1,)))
    last = report.first_seed + report.cases - 1
    console.print(
        facts(
            [
                ("cases", f"{report.cases}, seeds {report.first_seed} to {last}"),
                ("time", time_text(report.seconds)),
                ("compared", f"{report.compared:.1%} of the results' elements"),
                *([("reached", f"{report.reached} lines, pairs of passes, options and primitives")] if report.reached else []),
                ("operators", f"{sum(map(bool, report.coverage().values()))} of {len(report.coverage())}"),
            ]
        )
    )
    verdict = "nothing is wrong" if report.ok else f"{len(report.faults)} faults"
    console.print(f"\n{verdict}", style="bold green" if report.ok else "bold red")


def functions(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items() if name)
