"""What each part of the compiler gives: the models without it, one part at a time, against the default.

    python -m benchmarks.ablation MODELS [NAME ...] [--threads N] [--rounds N] [--artifacts FOLDER] [--json FILE]

MODELS holds NAME.onnx and NAME.io.npz. A figure is how many times longer an inference takes without the part, the median of rounds in which
default and variants take turns; 1.00 where the compiler makes the same code without it. With several threads there is a line for them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.variants import (
    MODELS,
    Variant,
    arguments,
    artifact,
    each_model,
    geometric_mean,
    in_turns,
    markdown,
    same_code,
    stored_feeds,
)

PARTS: Mapping[str, Mapping[str, Any]] = {
    "fusion": {"fusion": False},
    "layouts": {"layouts": False},
    "winograd": {"winograd": False},
    "packing": {"packing": False},
    "prefetch": {"prefetch": False},
    "pairs": {"pair_convolutions": False},
}
THREADS = "threads"


def compile_parts(model: Path, folder: Path) -> list[Path]:
    """Artifacts of the default and of the model without each part."""
    return [artifact(Variant(model, settings=settings), folder) for settings in ({}, *PARTS.values())]


def ablate(model: Path, folder: Path, threads: int, rounds: int) -> dict[str, float]:
    """Times longer without each part; `ms`: of the default."""
    default, *others = (tw.load(path, threads=threads) for path in compile_parts(model, folder))
    different = {name: exe for name, exe in zip(PARTS, others, strict=True) if not same_code(default, exe)}
    if threads > 1:
        different[THREADS] = tw.load(compile_parts(model, folder)[0], threads=1)
    feeds = stored_feeds(model)
    own, *rest = in_turns([default, *different.values()], [feeds] * (1 + len(different)), rounds)
    slower = {name: row["ours_is_faster"] for name, row in zip(different, rest, strict=True)}
    return {"ms": own["median_seconds"] * 1e3, **dict.fromkeys(PARTS, 1.0), **slower}


def report(found: Mapping[str, Mapping[str, float]]) -> str:
    """The table: a line for each model, and geometric means."""
    parts = list(dict.fromkeys(part for figures in found.values() for part in figures if part != "ms"))
    rows: list[Sequence[object]] = [[name, figures["ms"], *(figures.get(part, "") for part in parts)] for name, figures in found.items()]
    means = [geometric_mean(figures[part] for figures in found.values() if part in figures) for part in parts]
    return markdown(["times longer without", "default, ms", *parts], [*rows, ["geometric mean", "", *means]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*", default=MODELS)
    arguments(parser, threads=2)
    args = parser.parse_args()
    each_model(
        args,
        lambda name, folder: compile_parts(args.models / f"{name}.onnx", folder),
        lambda name, folder: ablate(args.models / f"{name}.onnx", folder, args.threads, args.rounds),
        report,
    )


if __name__ == "__main__":
    main()
