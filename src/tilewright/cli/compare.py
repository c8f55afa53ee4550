"""tilewright compare: whether a compiled model computes what it should, kernel by kernel, and what is at fault if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, DimRanges, InputFiles, Json, Model, Seed, SetOptions, Target, pairs, settings_for
from tilewright.cli.tables import facts, table

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.comparison import Comparison, Row


@command
def compare(
    model: Model,
    against: Annotated[
        str, typer.Option("--against", metavar="WHAT", help="reference (NumPy), onnxruntime, or the path of an artifact.")
    ] = "reference",
    given: InputFiles = None,
    dim: DimRanges = None,
    seed: Seed = 0,
    tolerance: Annotated[float | None, typer.Option("--tolerance", min=0.0, help="Relative error allowed. Default: by dtype.")] = None,
    bisect: Annotated[bool, typer.Option("--bisect", help="If something differs, find the pass, kernel or schedule at fault.")] = False,
    bundle: Annotated[str | None, typer.Option("--bundle", metavar="FOLDER", help="With --bisect: write all that shows the fault.")] = None,
    top: Annotated[int, typer.Option("--top", min=0, help="Kernels shown, those with the largest errors; 0 shows all in order.")] = 20,
    target: Target = "cpu",
    set_: SetOptions = None,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Compare a compiled model with the reference or another runtime.

    Outputs are compared with the other account, each kernel with what the graph means for the operands that it was given. What rounding
    errors do to the model is no difference. Exit code 1 when something differs.
    """
    if bundle is not None and not bisect:
        raise typer.BadParameter("a bundle shows what --bisect finds", param_hint="--bundle")
    settings = settings_for(set_)

    from tilewright.cli.models import read_inputs
    from tilewright.comparison import DIFFERENT
    from tilewright.comparison import compare as run
    from tilewright.support.progress import make_progress

    found = run(
        model,
        read_inputs(given, ()),
        target=target,
        against=against,
        dims=pairs(dim, "--dim"),
        seed=seed,
        tolerance=tolerance,
        bisect=bisect,
        bundle=bundle,
        progress=make_progress(settings.progress),
        **pairs(set_, "--set"),
    )
    return Answer(found.to_json(), lambda console: show(console, found, top), 0 if found.ok else DIFFERENT)


HEAD = ("", "dtype", "shape", "absolute", "relative", "ulps", "cosine", "", "nodes of the model")


def show(console: Console, found: Comparison, top: int) -> None:
    console.print(table(("output", *HEAD[1:-1]), [cells(row)[:-1] for row in found.outputs], right=(3, 4, 5, 6)))
    shown = list(found.kernels)
    if top and len(shown) > top:
        worst = sorted(shown, key=lambda row: (row.ok, -(row.error.relative if row.error is not None else -1.0)))[:top]
        shown = [row for row in found.kernels if row in worst]
    console.print(table(("kernel", *HEAD[1:]), [cells(row) for row in shown], right=(3, 4, 5, 6)))
    if len(shown) < len(found.kernels):
        console.print(f"and {len(found.kernels) - len(shown)} more with smaller errors; --top 0 shows all\n", style="dim")
    lines: list[tuple[str, object]] = [("against", found.against)]
    if found.drift is not None:
        from tilewright.comparison.report import drift_text

        lines.append(("first far off", drift_text(found.drift)))
    lines += [("note", note) for note in found.notes]
    if found.first is not None:
        lines.append(("first to differ", ", ".join(found.first.nodes[:3]) or found.first.name))
    if found.culprit is not None:
        lines.append(("at fault", str(found.culprit)))
    if found.bundle is not None:
        lines.append(("bundle", str(found.bundle)))
    console.print(facts(lines))
    verdict = "computes the same" if found.ok else "DIFFERS"
    console.print(f"\n{found.model} {verdict}", style="bold green" if found.ok else "bold red")


def cells(row: Row) -> tuple[Any, ...]:
    error = row.error
    figures = (
        ("", "", "", "")
        if error is None
        else (f"{error.absolute:.2g}", f"{error.relative:.2g}", f"{error.ulps:.3g}", f"{error.cosine:.6f}")
    )
    said = row.wrong or ("not compared" if error is None else "rounding" if row.rounding else "")
    name = row.name if row.part is None else f"part {row.part}: {row.name}"
    return (name, row.dtype, list(row.shape), *figures, said, ", ".join(row.nodes))
