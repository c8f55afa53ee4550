"""Variants of compiled models, measured in turns: what the commands of this folder have in common.

Compiling and measuring are two steps, so that only the second needs a machine on which nothing else runs: with `--artifacts FOLDER` a
command keeps what it compiled and finds it there the next time; with `--compile-only` it stops before measuring.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

import tilewright as tw
from tilewright.cli.bench import times_in_turns
from tilewright.cli.peers import Session
from tilewright.support.hashing import content_hash

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")
MODELS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "efficientnet_b0",
    "densenet121",
    "bert_base",
    "bert_tiny_dyn",
    "gpt2_prefill",
    "gpt2_decode",
    "lstm_lm",
    "mlp_b1",
    "mlp_b64",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compile a model: `dims` and `settings` as `tilewright.compile` takes them."""

    model: Path
    dims: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    target: str = "cpu"

    def file(self, folder: Path) -> Path:
        """Where its artifact is kept."""
        how = content_hash(sorted(self.dims.items()), sorted(self.settings.items()), self.target)
        return folder / f"{self.model.stem}-{how[:12]}.tw"


def artifact(variant: Variant, folder: Path) -> Path:
    """The variant's artifact, compiled unless the folder has it."""
    path = variant.file(folder)
    if not path.exists():
        exe = tw.compile(
            variant.model, target=variant.target, dims=variant.dims, cache=False, progress="none", threads=1, **variant.settings
        )
        exe.save(path)
    return path


def same_code(one: tw.Executable, other: tw.Executable) -> bool:
    """Whether two executables run the same kernels on the same weights, in the same order."""
    first, second = one.manifest, other.manifest
    return [kernel["symbol"] for kernel in first["kernels"]] == [kernel["symbol"] for kernel in second["kernels"]] and first["sections"][
        "weights"
    ] == second["sections"]["weights"]


def in_turns(executables: Sequence[tw.Executable], feeds: Sequence[Mapping[str, Array]], rounds: int) -> list[dict[str, Any]]:
    """Measures each executable on its feeds, round by round; for each `median_seconds` and, but for the first, `ours_is_faster`: the median
    over the rounds of its time over the first one's. In a round all have a turn of 20 ms in order and another in the reverse order, so that
    each begins as often with what it left in the caches itself."""
    sessions = [Session(str(i), "", lambda exe=exe, feed=feed: exe.run(feed)) for i, (exe, feed) in enumerate(zip(executables, feeds))]
    times = np.reshape(times_in_turns(sessions, 2 * rounds), (len(sessions), rounds, 2)).mean(axis=2)
    rows: list[dict[str, Any]] = [{"median_seconds": float(np.median(own))} for own in times]
    for row, own in zip(rows[1:], times[1:], strict=True):
        row["ours_is_faster"] = float(np.median(own / times[0]))
    return rows


def call_by_call(one: tw.Executable, other: tw.Executable, feeds: Mapping[str, Array], seconds: float) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile of the time of `other` over that of `one`, each taken from four calls: one,
    other, other, one. For so many seconds, eight times at least. What disturbs a machine lasts longer than four calls, and disturbs both;
    weights come from where the other's have pushed them."""
    for exe in (one, other, one, other):
        exe.run(feeds)
    ratios: list[float] = []
    end = time.perf_counter() + seconds
    while len(ratios) < 8 or time.perf_counter() < end:
        begin = time.perf_counter()
        one.run(feeds)
        first = time.perf_counter()
        other.run(feeds)
        other.run(feeds)
        second = time.perf_counter()
        one.run(feeds)
        ratios.append((second - first) / (time.perf_counter() - second + first - begin))
    lower, middle, upper = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float(lower), float(middle), float(upper)


def stored_feeds(model: Path) -> dict[str, Array]:
    """The inputs that lie beside a model of the measurement bed."""
    stored = np.load(model.with_suffix(".io.npz"))
    return {key.removeprefix("in_"): stored[key] for key in stored.files if key.startswith("in_")}


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean of logarithms; NaN of nothing."""
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found)) if found else math.nan


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; floats have three significant digits."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value and math.isfinite(value) else str(value)


def arguments(parser: argparse.ArgumentParser, threads: int = 1, rounds: int = 7) -> None:
    """The options that all commands take."""
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--rounds", type=int, default=rounds, help="each round measures every variant once")
    parser.add_argument("--artifacts", type=Path, help="folder that keeps compiled variants; what lies there is used as it is")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--json", type=Path, help="write all figures to this file, added to those of other models that it holds")


@contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """The folder, or one that is gone afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with TemporaryDirectory(prefix="tilewright-") as temporary:
        yield Path(temporary)


def collected(path: Path | None, found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures found, by model, and those that the file holds of other models; writes all of them to it."""
    if path is None:
        return dict(found)
    both = {**(json.loads(path.read_text()) if path.exists() else {}), **found}
    path.write_text(json.dumps(both, indent=1) + "\n")
    return both


def each_model(
    args: argparse.Namespace,
    compile_only: Callable[[str, Path], object],
    measure: Callable[[str, Path], dict[str, T]],
    report: Callable[[Mapping[str, Mapping[str, T]]], str],
) -> None:
    """What the commands do with the options of `arguments` and the models `args.names`: compile the variants of each into a folder, or
    measure them and print the report."""
    found: dict[str, dict[str, T]] = {}
    with kept(args.artifacts) as folder:
        for name in args.names:
            if args.compile_only:
                compile_only(name, folder)
            else:
                found[name] = measure(name, folder)
    if not args.compile_only:
        print(report(collected(args.json, found)))
