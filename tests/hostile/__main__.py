"""Open many hostile inputs: `python -m tests.hostile --count 10000 [--first SEED] [--seconds N]`.

Damaged models and artifacts, weights that lie elsewhere, and small files that ask for much. Each must run or end in a TilewrightError: no
crash, no hang over 10 s of processor time, no memory above the limit, no file written outside of the model's folder, none read from
outside. The exit code is 1 when one did not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.hostile.worker import Outcome
from tilewright.fuzzing.process import CaseProcess, Lost

LIMIT = 10.0  # seconds of processor time for one case
START = 120.0  # seconds of it in which the process gets ready


def opener() -> CaseProcess:
    """A process that opens cases."""
    return CaseProcess("tests.hostile.worker", LIMIT, START)


def came_of(seed: int, process: CaseProcess) -> Outcome:
    """What came of the case of a seed."""
    try:
        return Outcome(**process.ask({"seed": seed}))
    except Lost as lost:
        return Outcome("?", lost.kind, lost.text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description="Open damaged and hostile models and artifacts.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that time")
    chosen = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    faulty, started, seed = 0, time.monotonic(), chosen.first
    with opener() as process:
        while seed < chosen.first + chosen.count and time.monotonic() - started < chosen.seconds:
            found = came_of(seed, process)
            counts[found.kind, found.result] += 1
            if found.faulty:
                faulty += 1
                print(f"seed {seed}: {found.kind}: {found.result}: {found.detail}", flush=True)
            seed += 1
    for (kind, result), count in sorted(counts.items()):
        print(f"{kind:10} {result:10} {count}")
    print(f"{seed - chosen.first} cases (seeds {chosen.first} to {seed - 1}), {faulty} faults")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
