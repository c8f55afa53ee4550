"""Many calls one after the other, of changing sizes: `python -m tests.end_to_end.endurance --calls 10000`.

Executables with symbolic dims and with sizes that depend on data, a program with strings, and one executable called by eight threads:
prints how much the process has grown, and exits with 1 where that is more than 8 MiB.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from tests.end_to_end.small_models import images, text_model, tokens, vision_model
from tilewright.runtime.opening import Runnable

ALLOWED_KIB = 8 * 1024
STRINGS = """<ir_version: 8, opset_import: ["" : 20]> m (string[n] x, float[n, k] v) => (string[n] y, float[n, k] z) {
    y = StringConcat(x, x) z = Exp(v) }"""

Inputs = Sequence[dict[str, Any]]


def image_sizes() -> Inputs:
    return [images(i, 1 + i % 4, 3, 6 + i % 11, 7 + i % 5) for i in range(24)]


def token_sizes() -> Inputs:
    return [tokens(i, 1 + i % 5, 3 + i % 40) for i in range(40)]


def string_sizes() -> Inputs:
    return [{"x": np.array(["a" * i] * n, object), "v": np.ones((n, 1 + i), np.float32)} for i, n in enumerate(range(1, 30))]


def resident_kib() -> int:
    """Memory of this process that is in the machine's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS in /proc/self/status")


def growth_kib(called: Sequence[tuple[Runnable, Inputs]], calls: int, threads: int = 1) -> int:
    """By how much the process grows over some calls, after all inputs have been passed three times: arenas and NumPy's own pools have their
    size by then."""
    pairs = [(executable, case) for executable, inputs in called for case in inputs]

    def call(first: int, last: int) -> None:
        for turn in range(first, last):
            executable, case = pairs[turn % len(pairs)]
            executable.run(case)

    def at_once(count: int) -> None:
        started = [threading.Thread(target=call, args=(i * count // threads, (i + 1) * count // threads)) for i in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    at_once(3 * threads * len(pairs))
    gc.collect()
    before = resident_kib()
    at_once(calls)
    gc.collect()
    return resident_kib() - before


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.endurance", description="Does memory hold over many calls?")
    parser.add_argument("--calls", type=int, default=10_000)
    calls = parser.parse_args().calls
    vision, text, strings = (
        tw.compile(model, cache=False, progress="none", threads=2)
        for model in (vision_model(), text_model(), onnx.parser.parse_model(STRINGS))
    )
    everything = [(vision, image_sizes()), (text, token_sizes()), (strings, string_sizes())]
    worst = 0
    for what, called, threads in (
        ("symbolic dims", everything[:1], 1),
        ("sizes that depend on data", everything[1:2], 1),
        ("a program with strings", everything[2:], 1),
        ("eight threads, one executable", everything[:1], 8),
        ("eight threads, three executables", everything, 8),
    ):
        grown = growth_kib(called, calls, threads)
        worst = max(worst, grown)
        print(f"{what:34} {calls} calls: {grown:+} KiB", flush=True)
    return 1 if worst > ALLOWED_KIB else 0


if __name__ == "__main__":
    sys.exit(main())
