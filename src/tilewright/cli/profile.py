"""tilewright profile: where the time of an inference goes, kernel by kernel."""

from __future__ import annotations

import json as json_text
from pathlib import Path
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
    output_path,
    pairs,
    settings_for,
)
from tilewright.cli.tables import count_text, facts, table, time_text

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.runtime.profile import Profile
    from tilewright.runtime.program_profile import ProgramProfile


@command
def profile(
    model: ModelOrArtifact,
    given: InputFiles = None,
    dim: DimSizes = None,
    seed: Seed = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads. Default: what the process may use.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Inferences measured.")] = 20,
    top: Annotated[int, typer.Option("--top", min=0, help="Kernels shown, the slowest; 0 shows all.")] = 20,
    static: Annotated[bool, typer.Option("--static", help="Compile for exactly the sizes measured, instead of for all.")] = False,
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE.json", help="Write a trace for Perfetto.")] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE.html", help="Write a page with roofline, timeline, tables.")] = None,
    target: Target = "cpu",
    set_: SetOptions = None,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Show where the time goes, kernel by kernel.

    For each kernel: the model's nodes it computes, its time, arithmetic and traffic, and how near it is to what binds it, the
    machine's arithmetic or a level of its memory.
    """
    sizes, settings = dim_sizes(dim), settings_for(set_)
    paths = {hint: output_path(path, model, hint) for hint, path in (("--trace", trace), ("--html", html)) if path is not None}

    from tilewright.cli.models import complete_inputs, is_artifact, open_model, read_inputs
    from tilewright.runtime.profile import measure
    from tilewright.runtime.program import Program
    from tilewright.runtime.program_profile import measure_program
    from tilewright.support.atomic import write_text_atomic

    if static and is_artifact(model):
        raise typer.BadParameter("an artifact is already compiled for its sizes", param_hint="--static")
    fixed = {name: str(value) for name, value in sizes.items()} if static else {}
    settings = settings if threads is None else settings.changed(threads=threads)
    opened = open_model(model, target, fixed, settings, pairs(set_, "--set"))
    whole = opened.executable
    if isinstance(whole, Program) and paths:
        raise typer.BadParameter("the model is compiled in several parts, a trace or page is of one", param_hint=min(paths))
    inputs = complete_inputs(opened, read_inputs(given, whole.inputs), {} if static else sizes, seed)
    if isinstance(whole, Program):
        parts = measure_program(whole, inputs, repeat)
        return Answer({**parts.to_json(), "model": model}, lambda console: show_program(console, parts, top))
    found = measure(whole, inputs, repeat)
    if trace is not None:
        write_text_atomic(paths["--trace"], json_text.dumps(found.chrome_trace()), durable=False)
    if html is not None:
        write_text_atomic(paths["--html"], found.html(), durable=False)
    data = {**found.to_json(), "model": model, "trace": trace, "html": html}
    return Answer(data, lambda console: show(console, found, top, paths))


def show_program(console: Console, profile: ProgramProfile, top: int) -> None:
    for part in profile.parts:
        console.print(f"part {part.number}, called {part.calls} times; at its first call:", style="bold")
        show(console, part.profile, top, {})
        console.print()
    console.print(facts([("program", time_text(profile.total)), ("in parts", time_text(profile.in_parts))]))


def show(console: Console, profile: Profile, top: int, paths: dict[str, Path]) -> None:
    slowest = profile.slowest()
    shown = slowest[:top] if top else slowest
    total = profile.in_kernels or 1.0
    rows: list[tuple[Any, ...]] = [
        (
            kernel.number,
            time_text(kernel.median),
            time_text(kernel.minimum),
            f"{kernel.median / total:.1%}",
            f"{kernel.gflops:.1f}",
            count_text(kernel.cost.operations),
            count_text(kernel.cost.moved) + "B",
            f"{kernel.intensity:.3g}",
            f"{kernel.share:.0%}",
            bound_by(kernel.binding),
            ", ".join(kernel.origins) or kernel.name,
        )
        for kernel in shown
    ]
    head = ("", "median", "min", "of time", "GFLOP/s", "op", "moved", "op/B", "of limit", "bound by", "nodes of the model")
    console.print(table(head, rows, right=tuple(range(9))))
    if len(shown) < len(slowest):
        rest = sum(kernel.median for kernel in slowest[len(shown) :])
        console.print(f"and {len(slowest) - len(shown)} more, {time_text(rest)}; --top 0 shows all\n", style="dim")
    machine = profile.roofs
    peaks = f"{machine.peaks['f32']:.0f} GFLOP/s f32, memory {machine.bandwidth['memory']:.0f} GB/s"
    source = "measured" if machine.measured else "estimated; tilewright doctor --measure measures them"
    lines = [
        (
            "inference",
            f"{time_text(profile.total)} with {machine.threads} threads; {time_text(profile.plain)} without clocks around kernels",
        ),
        ("in kernels", f"{time_text(profile.in_kernels)}, {profile.outside:.1%} of the time is outside of them"),
        ("limit", f"{time_text(profile.limit)}, the least that the machine needs for these kernels"),
        ("from Python", f"{time_text(profile.python)} more for each call"),
        ("peaks", f"{peaks} ({source})"),
        *((hint.removeprefix("--"), str(path)) for hint, path in paths.items()),
    ]
    console.print(facts(lines))


def bound_by(binding: str) -> str:
    from tilewright.runtime.roofline import NAMES

    return NAMES[binding]
