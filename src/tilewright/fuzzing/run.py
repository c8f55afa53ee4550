"""Differential fuzzing: random graphs, the interpreter against compiled code.

    python -m tilewright.fuzzing.differential --seconds 300 [--seed N] [--like contraction,slice]
    python -m tilewright.fuzzing.differential --replay fuzz-findings/123.zip

A finding is shrunk, printed as the text of its graph, and kept as a file that `--replay` runs again. `--like` takes parts of the names in
`graphs.STEPS`. The exit code is 1 when something was found.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tilewright.fuzzing.cases import Case, Finding, case_of, module_of, read_case, run_case, write_case
from tilewright.fuzzing.shrink import shrink
from tilewright.fuzzing.worker import Worker
from tilewright.graph.text import format_module


def fuzz(
    seconds: float, first: int, like: Sequence[str] = (), folder: Path = Path("fuzz-findings"), most: int = 10, budget: float = 60.0
) -> int:
    """Run cases from seed `first` on for some seconds, at least one; the number of findings. Stops after `most`."""
    deadline = time.monotonic() + seconds
    found = 0
    with Worker() as worker:
        for seed in itertools.count(first):
            finding = worker.ask({"seed": seed, "like": list(like)})
            if finding is not None:
                found += 1
                report(seed, finding, like, folder, worker, budget)
            if time.monotonic() > deadline or found >= most:
                print(f"{seed - first + 1} cases (seeds {first} to {seed}), {found} findings", flush=True)
                return found
    return found


def report(seed: int, finding: Finding, like: Sequence[str], folder: Path, worker: Worker, budget: float) -> None:
    """Print a finding, shrunk, and keep it."""
    print(f"\n=== seed {seed}: {finding.kind}: {finding.text}", flush=True)
    if finding.kind == "generator":
        return
    case = case_of(seed, tuple(like))
    if budget > 0:
        case, finding = shrink(case, finding, worker, budget)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}.zip"
    write_case(case, path)
    print(describe(case, finding))
    print(f"python -m tilewright.fuzzing.differential --replay {path}", flush=True)


def describe(case: Case, finding: Finding) -> str:
    inputs = "\n".join(f"# inputs {i}: {', '.join(str(list(a.shape)) for a in arrays)}" for i, arrays in enumerate(case.inputs))
    return f"# {finding.kind}: {finding.text}\n# {case.how}\n{inputs}\n{format_module(module_of(case.function))}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; the clock chooses one otherwise")
    parser.add_argument("--like", default="", help="parts of step names, separated by commas")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder for failing cases")
    parser.add_argument("--most", type=int, default=10, help="stop after so many findings")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for shrinking each finding")
    parser.add_argument("--replay", type=Path, help="run one kept case in this process")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        case = read_case(options.replay)
        finding = run_case(case)
        print(describe(case, finding) if finding else "nothing is wrong")
        return int(finding is not None)
    seed = int(time.time()) if options.seed is None else options.seed
    like = [part for part in options.like.split(",") if part]
    return int(fuzz(options.seconds, seed, like, options.findings, options.most, options.shrink) > 0)


if __name__ == "__main__":
    sys.exit(main())
