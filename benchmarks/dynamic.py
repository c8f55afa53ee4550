"""What symbolic dims cost: an artifact for all sizes against one compiled for the very sizes that it runs at.

    python -m benchmarks.dynamic [NAME ...] [--threads N] [--rounds N] [--artifacts FOLDER] [--json FILE]

The models are built here, with symbolic dims. A figure is the time of the artifact for all sizes over that of the other, call by call: the
median and the quartiles; above 1.05 the general code pays for not knowing something. A round is a tenth of a second. On a machine that
others use as well, narrow quartiles say that a figure can be trusted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

import tilewright as tw
from benchmarks.families import densenet121, efficientnet_b0
from benchmarks.variants import Variant, arguments, artifact, call_by_call, each_model, geometric_mean, markdown
from tilewright.zoo import build, example_inputs, save

LIMIT = 1.05
Figure = tuple[float, float, float]  # lower quartile, median, upper quartile


@dataclass(frozen=True, slots=True)
class Case:
    """A model with symbolic dims, and sizes to run it at."""

    make: Callable[[], onnx.ModelProto]
    sizes: Sequence[Mapping[str, int]]


def cases() -> dict[str, Case]:
    """All models, by name."""
    batches = [{"batch": 1}, {"batch": 3}, {"batch": 8}]
    pictures = [{"batch": 1, "image": 224}, {"batch": 1, "image": 160}, {"batch": 3, "image": 225}]
    tokens = [{"batch": 1, "sequence": length} for length in (1, 17, 64, 128, 131)] + [{"batch": 4, "sequence": 128}]
    networks = {
        "resnet18": partial(build, "resnet18"),
        "resnet50": partial(build, "resnet50"),
        "mobilenet_v2": partial(build, "mobilenet_v2"),
        "efficientnet_b0": efficientnet_b0,
        "densenet121": densenet121,
    }
    small = {"layers": 2, "vocab": 1000}
    return {
        **{name: Case(partial(make, batch="batch"), batches) for name, make in networks.items()},
        **{f"{name}, any image": Case(partial(make, batch="batch", image="image"), pictures) for name, make in networks.items()},
        "bert_base": Case(partial(build, "bert", **small), tokens),
        "bert_tiny": Case(partial(build, "bert", hidden=312, heads=12, intermediate=1200, **small), tokens),
        "gpt2_prefill": Case(partial(build, "gpt2", **small), [{"sequence": 128}, {"sequence": 61}, {"sequence": 131}]),
        "gpt2_decode": Case(partial(build, "gpt2_decode", **small), [{"past": 128}, {"past": 131}, {"past": 500}]),
        "lstm_lm": Case(
            partial(build, "lstm_lm", batch="batch", sequence="sequence", hidden=512),
            [{"batch": 1, "sequence": 64}, {"batch": 1, "sequence": 1}, {"batch": 8, "sequence": 20}],
        ),
        "mlp": Case(
            partial(build, "mlp", batch="batch", sizes=(784, 1024, 1024, 1024, 10)),
            [{"batch": 1}, {"batch": 3}, {"batch": 64}, {"batch": 67}],
        ),
    }


def compiled(name: str, case: Case, folder: Path) -> tuple[Path, Path, list[Path]]:
    """The model, its artifact for all sizes, and those for each."""
    model = folder / f"{name.replace(', ', '-').replace(' ', '-')}.onnx"
    if not model.exists():
        save(case.make(), model)
    return model, artifact(Variant(model), folder), [artifact(Variant(model, sizes), folder) for sizes in case.sizes]


def compare(name: str, case: Case, folder: Path, threads: int, rounds: int) -> dict[str, Figure]:
    """Times longer with symbolic dims, by sizes."""
    model, general, special = compiled(name, case, folder)
    symbolic, loaded = tw.load(general, threads=threads), onnx.load(model)
    found: dict[str, Figure] = {}
    for sizes, path in zip(case.sizes, special, strict=True):
        feeds = example_inputs(loaded, sizes)
        found["x".join(map(str, sizes.values()))] = call_by_call(tw.load(path, threads=threads), symbolic, feeds, rounds / 10)
    return found


def report(found: Mapping[str, Mapping[str, Figure]]) -> str:
    """The table: medians, those above LIMIT in bold, and the quartiles of each."""

    def shown(figures: Mapping[str, Figure]) -> str:
        texts = {sizes: f"**{middle:.2f}**" if middle > LIMIT else f"{middle:.2f}" for sizes, (_, middle, _) in figures.items()}
        return ", ".join(f"{sizes}: {texts[sizes]} ({low:.2f} to {high:.2f})" for sizes, (low, _, high) in figures.items())

    rows = [[name, geometric_mean(middle for _, middle, _ in figures.values()), shown(figures)] for name, figures in found.items()]
    mean = geometric_mean(middle for figures in found.values() for _, middle, _ in figures.values())
    return markdown(["symbolic over fixed dims", "mean", "by sizes: median (quartiles)"], [*rows, ["geometric mean", mean, ""]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(cases()))
    arguments(parser)
    args = parser.parse_args()
    each_model(
        args,
        lambda name, folder: compiled(name, cases()[name], folder),
        lambda name, folder: compare(name, cases()[name], folder, args.threads, args.rounds),
        report,
    )


if __name__ == "__main__":
    main()
