"""tilewright compile: a model to an artifact."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, DimRanges, InputFiles, Json, Model, SetOptions, Target, output_path, pairs, settings_for
from tilewright.cli.tables import facts, size_text, time_text

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.api import Made


@command
def compile_model(
    model: Model,
    output: Annotated[str, typer.Option("--output", "-o", metavar="OUT.tw", help="The artifact to write.")],
    target: Target = "cpu",
    dim: DimRanges = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="FILE.json", help="Schedules of some kernels, from inspect --export.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="NAME", help="The setting precision: default, strict or bf16.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every pass, and run each kernel beside the reference: the setting verify.")
    ] = False,
    given: InputFiles = None,
    set_: SetOptions = None,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Compile a model to an artifact.

    The artifact is one file with native code and weights. It appears under its name only when it is complete.
    """
    path = output_path(output, model)
    short = [*([] if precision is None else [f"precision={precision}"]), *(["verify=1"] if verify else [])]
    settings, dims = settings_for([*(set_ or ()), *short]), pairs(dim, "--dim")

    from tilewright.api import make_artifact
    from tilewright.cli.models import read_inputs
    from tilewright.runtime.artifact import save

    start = time.perf_counter()
    made = make_artifact(model, target, dims, settings, schedule=schedule, verify_inputs=read_inputs(given, ()))
    save(made.artifact, path)
    data = {
        "model": model,
        "output": str(path),
        "seconds": time.perf_counter() - start,
        "from_cache": made.cached,
        "validated": [asdict(part) for part in made.validated],
        "bytes": path.stat().st_size,
        **summary(made.artifact),
    }
    return Answer(data, lambda console: show(console, data, made))


def summary(artifact: Any) -> dict[str, Any]:
    """Figures of an artifact."""
    manifest = artifact.manifest
    return {
        "target": manifest["target"]["name"],
        "kernels": len({kernel["symbol"] for kernel in manifest["kernels"]}),
        "launches": len(manifest["kernels"]),
        "code_bytes": sum(sum(map(len, part.objects.values())) + len(part.pool) for part in (artifact, *artifact.parts)),
        "weights_bytes": manifest["memory"]["weights"],
        "memory_formula": manifest["memory"]["arena"],
        "open_ended": manifest["open_ended"],
        "inputs": manifest["inputs"],
        "outputs": manifest["outputs"],
        "sizes": manifest["sizes"][: manifest["input_sizes"]],
    }


def show(console: Console, data: dict[str, Any], made: Made) -> None:
    formula = data["memory_formula"]
    memory = size_text(int(formula)) if formula.isdecimal() else f"{formula} bytes"
    console.print(
        facts(
            [
                ("artifact", f"{data['output']}  {size_text(data['bytes'])}"),
                ("inputs", ", ".join(map(tensor_text, data["inputs"])) or "none"),
                ("outputs", ", ".join(map(tensor_text, data["outputs"]))),
                ("sizes", ", ".join(map(range_text, data["sizes"])) or "all fixed"),
                ("target", data["target"]),
                ("kernels", f"{data['kernels']}, launched {data['launches']} times"),
                ("code", size_text(data["code_bytes"])),
                ("weights", size_text(data["weights_bytes"])),
                ("working memory", memory + (", more for sizes known only while running" if data["open_ended"] else "")),
                *[("validated", str(part)) for part in made.validated],
                ("time", time_text(data["seconds"]) + (", from the cache" if data["from_cache"] else "")),
            ]
        )
    )


def tensor_text(entry: dict[str, Any]) -> str:
    if "kind" in entry:
        from tilewright.runtime.host.kinds import value_spec

        return repr(value_spec(entry))
    return f"{entry['name']}: {entry['dtype']}[{', '.join(entry['shape'])}]"


def range_text(size: dict[str, Any]) -> str:
    multiple = f", a multiple of {size['multiple']}" if size["multiple"] > 1 else ""
    top = f" to {size['hi']}" if size["hi"] is not None else " up"
    return f"{size['name']} from {size['lo'] or 0}{top}{multiple}"
