"""tilewright bench: latency, side by side with other runtimes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import (
    Debug,
    DimSizes,
    InputFiles,
    Json,
    ModelOrArtifact,
    Seed,
    SetOptions,
    Target,
    dim_sizes,
    pairs,
    settings_for,
)
from tilewright.cli.tables import table, time_text

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.cli.peers import Session
    from tilewright.runtime.specs import Array

OURS = "tilewright"
ROUND_SECONDS = 0.02  # each runtime runs at least so long in a round, so that the clock's grain does not matter
WARM_UP = 3  # calls before anything is measured


@command
def bench(
    model: ModelOrArtifact,
    against: Annotated[
        str, typer.Option("--against", metavar="NAMES", help="Other runtimes: onnxruntime, openvino or both, by comma.")
    ] = "",
    threads: Annotated[
        str, typer.Option("--threads", metavar="N,...", help="Numbers of threads to measure. Default: what the process may use.")
    ] = "",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds; in each, every runtime is measured once.")] = 10,
    given: InputFiles = None,
    dim: DimSizes = None,
    seed: Seed = 0,
    static: Annotated[bool, typer.Option("--static", help="Compile for exactly the sizes measured, instead of for all.")] = False,
    target: Target = "cpu",
    set_: SetOptions = None,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Measure latency, also against other runtimes.

    Runtimes take turns round by round, so that what disturbs the machine disturbs all alike. Shown are medians, and the median over the
    rounds of how many times faster ours was.
    """
    sizes, settings = dim_sizes(dim), settings_for(set_)
    counts = numbers(threads)
    peers = [name.strip() for name in against.split(",") if name.strip()]

    from tilewright.cli import models
    from tilewright.cli.peers import opener, ready
    from tilewright.runtime.opening import open_artifact
    from tilewright.support.progress import make_progress

    openers = {name: opener(name) for name in peers}
    if openers and models.is_artifact(model):
        raise typer.BadParameter("other runtimes need the model, not an artifact", param_hint="MODEL")
    if static and models.is_artifact(model):
        raise typer.BadParameter("an artifact is already compiled for its sizes", param_hint="--static")
    fixed = {name: str(value) for name, value in sizes.items()} if static else {}
    opened = models.open_model(model, target, fixed, settings, pairs(set_, "--set"))
    whole = opened.executable
    inputs = models.complete_inputs(opened, models.read_inputs(given, whole.inputs), {} if static else sizes, seed)
    chosen = models.sizes_of(whole, inputs, sizes)
    outputs = [spec.name for spec in whole.outputs]
    progress = make_progress(settings.progress)
    results = []
    for count in counts or [whole.threads]:
        executable = open_artifact(opened.artifact, count)
        sessions = [
            our_session(executable, inputs),
            *(ready(name, open_, model, inputs, outputs, count) for name, open_ in openers.items()),
        ]
        with progress.stage(f"{count} threads", rounds) as stage:
            results.append(measured(sessions, rounds, count, stage))
    data = {
        "model": model,
        "sizes": {**chosen, **(sizes if static else {})},
        "inputs": [models.described_value(name, value) for name, value in inputs.items()],
        "rounds": rounds,
        "results": results,
    }
    return Answer(data, lambda console: show(console, data))


def numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"'{text}' is not a list of numbers such as 1,2", param_hint="--threads")
    return [int(part) for part in parts]


def our_session(executable: Any, inputs: Mapping[str, Array]) -> Session:
    import tilewright
    from tilewright.cli.peers import Session

    return Session(OURS, tilewright.__version__, lambda: executable.run(inputs))


def measured(sessions: Sequence[Session], rounds: int, threads: int, stage: Any) -> dict[str, Any]:
    """Latencies of all sessions, taken in turns, and how far their results are from ours."""
    answers = [session.run() for session in sessions]
    times = times_in_turns(sessions, rounds, lambda: stage.advance(1))
    return {
        "threads": threads,
        "runtimes": [
            {
                "name": session.name,
                "version": session.version,
                "median_seconds": median(times[i]),
                "min_seconds": min(times[i]),
                "ours_is_faster": None if i == 0 else median(other / own for other, own in zip(times[i], times[0], strict=True)),
                "max_relative_error": None if i == 0 else largest_error(answers[0], answers[i]),
            }
            for i, session in enumerate(sessions)
        ],
    }


def times_in_turns(sessions: Sequence[Session], rounds: int, after_round: Callable[[], object] = lambda: None) -> list[list[float]]:
    """Seconds of a call of each session in each round, after a warm-up. In a round each has its turn, of `ROUND_SECONDS` or one call; the
    order is turned around from round to round."""
    calls = []
    for session in sessions:
        start = time.perf_counter()
        for _ in range(WARM_UP):
            session.run()
        calls.append(max(1, round(ROUND_SECONDS / max((time.perf_counter() - start) / WARM_UP, 1e-7))))
    times: list[list[float]] = [[] for _ in sessions]
    for number in range(rounds):
        order = list(range(len(sessions)))
        for i in order if number % 2 == 0 else reversed(order):
            start = time.perf_counter()
            for _ in range(calls[i]):
                sessions[i].run()
            times[i].append((time.perf_counter() - start) / calls[i])
        after_round()
    return times


def largest_error(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float:
    """The largest difference in any output, relative to that output's largest magnitude; infinite where shapes differ."""
    import numpy as np

    worst = 0.0
    for expected, mine in paired(ours, theirs):
        if mine is None or mine.shape != expected.shape or (expected.dtype.kind in "OU" and mine.tolist() != expected.tolist()):
            return float("inf")
        if expected.size == 0 or expected.dtype.kind not in "biufc":
            continue
        a, b = mine.astype(np.complex128), expected.astype(np.complex128)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0, np.abs(a - b))
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) or 1.0
        largest = float(difference.max())
        worst = max(worst, float("inf") if np.isnan(largest) else largest / scale)
    return worst


def paired(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[Array, Array | None]]:
    """Arrays of other outputs, those within sequences and maps each, and ours."""
    from tilewright.runtime.host.kinds import leaves

    mine = {name: array for key, value in ours.items() for name, array in leaves(key, value)}
    return [(array, mine.get(name)) for key, value in theirs.items() for name, array in leaves(key, value)]


def show(console: Console, data: dict[str, Any]) -> None:
    if data["sizes"]:
        console.print("sizes: " + ", ".join(f"{name}={value}" for name, value in data["sizes"].items()))
    rows = []
    for result in data["results"]:
        for runtime in result["runtimes"]:
            ratio, error = runtime["ours_is_faster"], runtime["max_relative_error"]
            rows.append(
                (
                    result["threads"],
                    f"{runtime['name']} {runtime['version']}",
                    time_text(runtime["median_seconds"]),
                    time_text(runtime["min_seconds"]),
                    "" if ratio is None else f"{ratio:.2f}x",
                    "" if error is None else f"{error:.1e}",
                )
            )
    console.print(table(("threads", "runtime", "median", "fastest", "ours is faster", "difference"), rows, right=(0, 2, 3, 4, 5)))
