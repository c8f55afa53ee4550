"""tilewright run: a model or an artifact, once."""

from __future__ import annotations

import time
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
from tilewright.cli.tables import facts, table, time_text

if TYPE_CHECKING:
    from rich.console import Console


SHOWN = 6  # elements of each output


@command
def run(
    model: ModelOrArtifact,
    given: InputFiles = None,
    dim: DimSizes = None,
    seed: Seed = 0,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="OUT.npz", help="Write the outputs to a file.")] = None,
    target: Target = "cpu",
    set_: SetOptions = None,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Run a model or an artifact once.

    Inputs that are not given are random, the same for the same seed.
    """
    sizes, settings = dim_sizes(dim), settings_for(set_)
    path = None if output is None else output_path(output, model)

    from tilewright.cli.models import complete_inputs, open_model, read_inputs

    opened = open_model(model, target, {}, settings, pairs(set_, "--set"))
    arrays = read_inputs(given, opened.executable.inputs)
    inputs = complete_inputs(opened, arrays, sizes, seed)
    start = time.perf_counter()
    results = opened.executable.run(inputs)
    seconds = time.perf_counter() - start
    if path is not None:
        from tilewright.runtime.arrays import write_arrays

        write_arrays(path, results)
    data = {
        "model": model,
        "seed": seed,
        "inputs": [{"name": n, **form(a), "random": n not in arrays} for n, a in inputs.items()],
        "outputs": [described(name, value) for name, value in results.items()],
        "seconds": {"open": opened.seconds, "run": seconds},
        "from_cache": opened.cached,
        "threads": opened.executable.threads,
        "output": output,
    }
    return Answer(data, lambda console: show(console, data))


def form(value: Any) -> dict[str, Any]:
    """Dtype and shape of an array; of another value its type and length."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return {"dtype": "string" if value.dtype.kind in "OUT" else value.dtype.name, "shape": list(value.shape)}
    return {"dtype": type(value).__name__, "shape": [len(value)] if isinstance(value, (list, tuple, dict)) else []}


def plain(value: Any) -> Any:
    """Any value as JSON has it."""
    import numpy as np

    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return (
        [plain(item) for item in value] if isinstance(value, (list, tuple)) else value.tolist() if isinstance(value, np.ndarray) else value
    )


def described(name: str, array: Any) -> dict[str, Any]:
    """Shape, dtype and statistics of one output; NaNs and infinities are counted, and left out of the rest."""
    import numpy as np

    entry: dict[str, Any] = {"name": name, **form(array)}
    if not isinstance(array, np.ndarray):
        listed = array if isinstance(array, list) else [array]
        return {**entry, "first": [plain(item) for item in listed[:SHOWN]]}
    if array.dtype.kind in "OSUT":
        return {**entry, "first": [str(item) for item in array.reshape(-1)[:SHOWN]]}
    numbers = array.reshape(-1)
    numbers = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
    values = numbers.astype(np.float64)
    finite = values[np.isfinite(values)]
    statistics = {"min": finite.min(), "max": finite.max(), "mean": finite.mean(), "std": finite.std()} if finite.size else {}
    first = [item.item() if array.dtype.kind in "biu" else float(f"{float(item):.6g}") for item in numbers[:SHOWN]]
    return {**entry, **statistics, "nan": int(np.isnan(values).sum()), "inf": int(np.isinf(values).sum()), "first": first}


def show(console: Console, data: dict[str, Any]) -> None:
    inputs = ((i["name"], i["dtype"], i["shape"], "random" if i["random"] else "given") for i in data["inputs"])
    console.print(table(("input", "dtype", "shape", ""), inputs))
    figures = ("min", "max", "mean", "std")
    rows = (
        (
            o["name"],
            o["dtype"],
            o["shape"],
            *(f"{o[name]:.5g}" if name in o else "" for name in figures),
            f"{o['nan']} NaN, {o['inf']} inf" if o.get("nan") or o.get("inf") else "",
            ", ".join(f"{item:.5g}" if isinstance(item, float) else str(item) for item in o["first"]),
        )
        for o in data["outputs"]
    )
    console.print(table(("output", "dtype", "shape", *figures, "", "first elements"), rows, right=(3, 4, 5, 6)))
    seconds = data["seconds"]
    lines = [
        ("loaded" if data["from_cache"] else "compiled", time_text(seconds["open"])),
        ("run", f"{time_text(seconds['run'])}, the first call, {data['threads']} threads"),
        *([("written", data["output"])] if data["output"] else []),
    ]
    console.print(facts(lines))
