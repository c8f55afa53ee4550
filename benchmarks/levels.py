"""The same models compiled for this machine and for the instruction sets of older ones, x86-64-v3 (AVX2) and x86-64-v2 (SSE4), run here.

    python -m benchmarks.levels MODELS [NAME ...] [--threads N] [--rounds N] [--artifacts FOLDER] [--json FILE]

MODELS holds NAME.onnx and NAME.io.npz. A figure is how many times longer an inference takes than with this machine's own code, the median
of rounds in which they take turns. With vectors half as long, arithmetic takes twice as long at least; without multiply-adds (v2) and
with vectors a quarter as long, eight times.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import tilewright as tw
from benchmarks.variants import MODELS, Variant, arguments, artifact, each_model, geometric_mean, in_turns, markdown, stored_feeds
from tilewright.api import target_machine

LEVELS = ("x86-64-v3", "x86-64-v2")


def compiled(model: Path, folder: Path) -> list[Path]:
    """Artifacts for this machine and for each level, with as many cores."""
    cores = target_machine("cpu").cores
    return [artifact(Variant(model, target=target), folder) for target in ("cpu", *(f"cpu:{level},cores={cores}" for level in LEVELS))]


def compare(model: Path, folder: Path, threads: int, rounds: int) -> dict[str, float]:
    """Times longer at each level; `ms`: of this machine's own code."""
    feeds = stored_feeds(model)
    executables = [tw.load(path, threads=threads) for path in compiled(model, folder)]
    own, *rest = in_turns(executables, [feeds] * len(executables), rounds)
    return {"ms": own["median_seconds"] * 1e3, **{level: row["ours_is_faster"] for level, row in zip(LEVELS, rest, strict=True)}}


def report(found: Mapping[str, Mapping[str, float]]) -> str:
    """The table: a line for each model, and geometric means."""
    rows: list[Sequence[object]] = [[name, figures["ms"], *(figures[level] for level in LEVELS)] for name, figures in found.items()]
    means = [geometric_mean(figures[level] for figures in found.values()) for level in LEVELS]
    return markdown(["times longer with", "own code, ms", *LEVELS], [*rows, ["geometric mean", "", *means]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*", default=MODELS)
    arguments(parser)
    args = parser.parse_args()
    each_model(
        args,
        lambda name, folder: compiled(args.models / f"{name}.onnx", folder),
        lambda name, folder: compare(args.models / f"{name}.onnx", folder, args.threads, args.rounds),
        report,
    )


if __name__ == "__main__":
    main()
