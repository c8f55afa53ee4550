"""Correctness of the measurement bed's models: each MODELS/NAME.onnx against the outputs in NAME.io.npz.

    python benchmarks/bench_models.py MODELS [NAME ...]

Relative error is max |got - reference| / max |reference|, as peers.py computes it; the limit is 1e-3 for float models. Integer models round
at each layer, where one step up or down may go either way: their limit is 0.1, and the correlation with the reference must exceed 0.99.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import tilewright as tw

FLOAT_LIMIT, INTEGER_LIMIT, CORRELATION = 1e-3, 0.1, 0.99


def check(model: Path) -> tuple[float, float, float]:
    """Compile seconds, worst relative error, least correlation over the outputs."""
    stored = np.load(model.with_suffix(".io.npz"))
    feeds = {key[3:]: stored[key] for key in stored.files if key.startswith("in_")}
    begin = time.perf_counter()
    exe = tw.compile(str(model), cache=False, progress="none")
    seconds = time.perf_counter() - begin
    worst, least = 0.0, 1.0
    for i, got in enumerate(exe.run(feeds).values()):
        want = stored[f"out_{i}"].astype(np.float64)
        worst = max(worst, float(np.abs(got - want).max() / (np.abs(want).max() + 1e-12)))
        least = min(least, float(np.corrcoef(got.reshape(-1).astype(np.float64), want.reshape(-1))[0, 1]))
    return seconds, worst, least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    names = args.names or sorted(path.name.removesuffix(".io.npz") for path in args.models.glob("*.io.npz"))
    failures = 0
    for name in names:
        try:
            seconds, worst, least = check(args.models / f"{name}.onnx")
            good = worst <= (INTEGER_LIMIT if "int8" in name else FLOAT_LIMIT) and (least > CORRELATION or "int8" not in name)
            verdict = "ok" if good else "WRONG"
            print(f"{name:22s} {verdict:6s} error {worst:.2e}  correlation {least:.6f}  compile {seconds:.1f} s", flush=True)
        except Exception as error:
            good = False
            print(f"{name:22s} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
        failures += not good
    print(f"{len(names) - failures} passed, {failures} failed")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
