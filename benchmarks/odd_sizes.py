"""Efficiency at odd sizes: batch 3, 225x225 images, sequences of 131, 50 channels and the like, against the sizes that benchmarks have.

    python -m benchmarks.odd_sizes [NAME ...] [--threads N] [--rounds N] [--artifacts FOLDER] [--json FILE]

The models are built here. Efficiency is operations over time, where operations are those of the operators' definitions
(`tilewright.kernel.work`); a figure is the efficiency at an odd size over that at the even size, the median of rounds in which they
take turns.
Below 0.80 a kernel has lost more than a ragged end explains.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx

import tilewright as tw
from benchmarks.families import convolution, densenet121, efficientnet_b0, product
from benchmarks.variants import Variant, arguments, artifact, each_model, geometric_mean, in_turns, markdown
from tilewright.compiler import optimise
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.node import walk_nodes
from tilewright.graph.ops import Fused
from tilewright.kernel.work import work_of
from tilewright.machine.targets import named_machine
from tilewright.support.settings import current_settings
from tilewright.transform.lower_groups import lower_group
from tilewright.zoo import build, example_inputs, save

LIMIT = 0.80
Build = Callable[[], onnx.ModelProto]
Sizes = Mapping[str, Build]  # `even`, and odd ones by name

CONVOLUTIONS = {
    "C1": (224, 3, 64, 7, 2),
    "C2": (56, 64, 64, 3, 1),
    "C3": (56, 64, 64, 1, 1),
    "C4": (56, 64, 128, 3, 2),
    "C5": (56, 64, 128, 1, 2),
    "C6": (28, 128, 128, 3, 1),
    "C7": (28, 128, 256, 3, 2),
    "C8": (28, 128, 256, 1, 2),
    "C9": (14, 256, 256, 3, 1),
    "C10": (14, 256, 512, 3, 2),
    "C11": (14, 256, 512, 1, 2),
    "C12": (7, 512, 512, 3, 1),
}
"""Size of the image, channels, channels of the result, kernel, stride: table 1 of the TVM paper (Chen et al., 2018)."""
DEPTHWISE = {
    "D1": (112, 32, 1),
    "D2": (112, 64, 2),
    "D3": (56, 128, 1),
    "D4": (56, 128, 2),
    "D5": (28, 256, 1),
    "D6": (28, 256, 2),
    "D7": (14, 512, 1),
    "D8": (14, 512, 2),
    "D9": (7, 1024, 1),
}
"""Size of the image, channels, stride, of the same table."""
PRODUCTS = {
    "mm512": ((512, 512), (512, 512), (509, 511), (511, 507), True),
    "mm1024": ((1024, 1024), (1024, 1024), (1021, 1019), (1019, 1023), True),
    "mm1024ab": ((1024, 1024), (1024, 1024), (1021, 1019), (1019, 1023), False),
    "mm128x768x768": ((128, 768), (768, 768), (131, 770), (770, 766), True),
    "mm128x768x3072": ((128, 768), (768, 3072), (131, 770), (770, 3070), True),
    "mm128x3072x768": ((128, 3072), (3072, 768), (131, 3070), (3070, 770), True),
    "mv768x3072": ((1, 768), (768, 3072), (1, 770), (770, 3070), True),
    "mv4096x4096": ((1, 4096), (4096, 4096), (1, 4095), (4095, 4097), True),
    "bmm12x128x64x128": ((12, 128, 64), (12, 64, 128), (12, 131, 50), (12, 50, 131), False),
    "bmm12x128x128x64": ((12, 128, 128), (12, 128, 64), (12, 131, 131), (12, 131, 50), False),
}
"""Operands at even sizes and at odd ones, and whether the right one is a constant."""


def images(make: Callable[..., onnx.ModelProto], **channels: object) -> Sizes:
    """A model of images, one oddity at a time and all together."""
    return {
        "even": make,
        "batch": partial(make, batch=3),
        "size": partial(make, image=225),
        "channels": partial(make, **channels),
        "all": partial(make, batch=3, image=225, **channels),
    }


def odd_channels(count: int) -> int:
    """50 of 64."""
    return count if count == 3 else count * 50 // 64


def convolutions() -> dict[str, Sizes]:
    found: dict[str, Sizes] = {}
    for name, (size, channels, to, *rest) in CONVOLUTIONS.items():
        narrow, wide = odd_channels(channels), odd_channels(to)
        odd = size + 1 if size % 2 == 0 else size + 2
        found[name] = {
            "even": partial(convolution, 1, size, channels, to, *rest),
            "batch": partial(convolution, 3, size, channels, to, *rest),
            "size": partial(convolution, 1, odd, channels, to, *rest),
            "channels": partial(convolution, 1, size, narrow, wide, *rest),
            "all": partial(convolution, 3, odd, narrow, wide, *rest),
        }
    for name, (size, channels, stride) in DEPTHWISE.items():
        narrow = odd_channels(channels)
        odd = size + 1 if size % 2 == 0 else size + 2
        found[name] = {
            "even": partial(convolution, 1, size, channels, channels, 3, stride, channels),
            "batch": partial(convolution, 3, size, channels, channels, 3, stride, channels),
            "size": partial(convolution, 1, odd, channels, channels, 3, stride, channels),
            "channels": partial(convolution, 1, size, narrow, narrow, 3, stride, narrow),
            "all": partial(convolution, 3, odd, narrow, narrow, 3, stride, narrow),
        }
    return found


def texts(name: str, widths: Mapping[str, object], **even: object) -> Sizes:
    """A model of sequences. `widths`: odd ones."""
    make = partial(build, name, **{"batch": 1, **even})
    odd = {"past": 131} if "past" in even else {"sequence": 131}
    return {
        "even": make,
        "batch": partial(make, batch=3),
        "size": partial(make, **odd),
        "channels": partial(make, **widths),
        "all": partial(make, batch=3, **odd, **widths),
    }


def cases() -> dict[str, Sizes]:
    """All models, by name."""
    narrow = {"hidden": 600, "heads": 12}
    return {
        "resnet18": images(partial(build, "resnet18"), width=50),
        "resnet50": images(partial(build, "resnet50"), width=50),
        "mobilenet_v2": images(partial(build, "mobilenet_v2"), width=0.78),
        "efficientnet_b0": images(efficientnet_b0, unit=7),
        "densenet121": images(densenet121, growth=25),
        "bert": texts("bert", {**narrow, "intermediate": 2401}, sequence=128, layers=2, vocab=1000),
        "gpt2_prefill": texts("gpt2", narrow, sequence=128, layers=2, vocab=5000),
        "gpt2_decode": texts("gpt2_decode", narrow, past=128, layers=2, vocab=5000),
        "lstm_lm": texts("lstm_lm", {"hidden": 500}, sequence=64, hidden=512, vocab=10000),
        "mlp_b64": {
            "even": partial(build, "mlp", batch=64, sizes=(784, 1024, 1024, 1024, 10)),
            "batch": partial(build, "mlp", batch=67, sizes=(784, 1024, 1024, 1024, 10)),
            "channels": partial(build, "mlp", batch=64, sizes=(783, 1023, 1025, 1021, 11)),
            "all": partial(build, "mlp", batch=67, sizes=(783, 1023, 1025, 1021, 11)),
        },
        **convolutions(),
        **{
            name: {"even": partial(product, left, right, constant), "all": partial(product, odd_left, odd_right, constant)}
            for name, (left, right, odd_left, odd_right, constant) in PRODUCTS.items()
        },
    }


def operations(model: onnx.ModelProto) -> int:
    """Operations of a model of known sizes, by the definitions of its operators: each on its own, nothing rewritten."""
    module = optimise(import_model(load_model(model), {}).module, named_machine("x86-64-v3"), current_settings().changed(opt_level=0))
    known: dict[object, int] = {}
    total = 0
    for node in walk_nodes(module.main.results):
        if isinstance(node.op, Fused):
            body = node.op.body
            if body not in known:
                known[body] = int(work_of(lower_group(body)).operations.value)
            total += known[body]
    return total


def compiled(name: str, sizes: Sizes, folder: Path) -> dict[str, Path]:
    """Artifacts by size, and the models beside them."""
    found = {}
    for size, make in sizes.items():
        model = folder / f"{name}-{size}.onnx"
        if not model.exists():
            save(make(), model)
        found[size] = artifact(Variant(model), folder)
    return found


def compare(name: str, sizes: Sizes, folder: Path, threads: int, rounds: int) -> dict[str, float]:
    """Efficiency at each odd size over that at the even one, and `gflops` of the even one."""
    paths = compiled(name, sizes, folder)
    models = {size: onnx.load(folder / f"{name}-{size}.onnx") for size in sizes}
    work = {size: operations(model) for size, model in models.items()}
    executables = [tw.load(path, threads=threads) for path in paths.values()]
    even, *rest = in_turns(executables, [example_inputs(model) for model in models.values()], rounds)
    odd = {size: row["ours_is_faster"] for size, row in zip(list(sizes)[1:], rest, strict=True)}
    return {
        "gflops": work["even"] / even["median_seconds"] / 1e9,
        **{size: work[size] / work["even"] / longer for size, longer in odd.items()},
    }


def report(found: Mapping[str, Mapping[str, float]]) -> str:
    """The table, what falls below LIMIT in bold."""
    columns = ("batch", "size", "channels", "all")

    def cell(value: float | None) -> object:
        return "" if value is None else f"**{value:.2f}**" if value < LIMIT else f"{value:.2f}"

    rows: list[Sequence[object]] = [[name, row["gflops"], *(cell(row.get(c)) for c in columns)] for name, row in found.items()]
    means = [cell(geometric_mean(row[c] for row in found.values() if c in row)) for c in columns]
    return markdown(["efficiency at odd sizes", "even, GFLOP/s", *columns], [*rows, ["geometric mean", "", *means]])


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
