"""tilewright zoo: lists the models of the zoo, or writes one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, Json, pairs
from tilewright.cli.tables import facts, size_text, table, time_text

if TYPE_CHECKING:
    from rich.console import Console


@command
def zoo(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The model to write; without one, all are listed.")] = None,
    output: Annotated[str | None, typer.Argument(metavar="[OUT.onnx]", help="The file to write.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option, such as layers=2.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random weights.")] = 0,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Write a well-known architecture as ONNX.

    Without arguments all are listed, with NAME alone the options of one.
    """
    if output is None and option:
        raise typer.BadParameter("options need a file to write: tilewright zoo NAME OUT.onnx --option ...", param_hint="--option")
    if name is None:
        return listing()
    if output is None:
        return listing(name)
    if Path(output).is_dir():
        raise typer.BadParameter(f"'{output}' is a folder", param_hint="OUT.onnx")
    pairs(option, "--option")

    from tilewright import zoo as models
    from tilewright.support.progress import make_progress
    from tilewright.support.settings import current_settings

    start = time.perf_counter()
    chosen = models.parse_options(name, option or [])
    with make_progress(current_settings().progress).stage(f"write {name}"):
        path = models.write(name, output, seed, **chosen)
    seconds = time.perf_counter() - start
    data: dict[str, Any] = {
        "model": name,
        "output": str(path),
        "bytes": written_bytes(path),
        "seed": seed,
        "options": chosen,
        "seconds": seconds,
    }

    def show(console: Console) -> None:
        console.print(facts([("model", name), ("written", f"{path}  {size_text(data['bytes'])}"), ("time", time_text(data["seconds"]))]))

    return Answer(data, show)


def written_bytes(path: Path) -> int:
    """Of the model and of the weights beside it."""
    beside = path.with_name(path.name + ".data")
    return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)


def listing(only: str | None = None) -> Answer:
    """What the zoo holds; options are shown when one model is asked for."""
    from tilewright.zoo.catalog import CATALOG, entry_of

    chosen = CATALOG if only is None else {only: entry_of(only)}
    data: dict[str, Any] = {
        "models": [
            {
                "name": name,
                "summary": entry.summary,
                "options": [{"name": o.name, "default": o.default, "meaning": o.meaning} for o in entry.options()],
            }
            for name, entry in chosen.items()
        ]
    }

    def show(console: Console) -> None:
        console.print(table(("model", "what it is"), ((m["name"], m["summary"]) for m in data["models"])))
        if only is not None:
            rows = ((o["name"], default_text(o["default"]), o["meaning"]) for o in data["models"][0]["options"])
            console.print(table(("option", "default", "meaning"), rows))
        hint = "tilewright zoo NAME OUT.onnx [--option NAME=VALUE] writes one"
        console.print(hint if only else f"{hint}; tilewright zoo NAME lists its options", style="dim")

    return Answer(data, show)


def default_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
