"""Open many hostile inputs: `python -m tests.hostile --count 10000 [--first SEED] [--seconds N]`.

Damaged models and artifacts, weights that lie elsewhere, and small files that ask for much. Each must run or end in a TilewrightError: no
crash, no hang over 10 s, no memory above the limit, no file written outside of the model's folder, none read from outside. The exit code
is 1 when one did not.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.hostile.worker import Outcome

LIMIT = 10.0  # seconds for one case
START = 120.0  # seconds in which the process gets ready


class Opener:
    """A process that opens cases; a new one takes its place when it dies or hangs."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()

    def ask(self, seed: int) -> Outcome:
        """What came of the case of a seed."""
        limit = LIMIT
        if self.process is None:
            command = [sys.executable, "-m", "tests.hostile.worker"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.answers = queue.Queue()
            threading.Thread(target=self._listen, args=(self.process, self.answers), daemon=True).start()
            limit = START
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"seed": seed}) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            return Outcome("?", "hang", f"no end after {limit:.0f} s")
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.stop()
            return Outcome("?", "crash", signal.Signals(-code).name if code < 0 else f"exit code {code}")
        return Outcome(**json.loads(line))

    def stop(self) -> int:
        """End the process; its exit code, if it has ended by itself."""
        if self.process is None:
            return 0
        try:
            code = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process = None
        return code

    @staticmethod
    def _listen(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                answers.put(line)
        answers.put("")


@contextmanager
def opener() -> Iterator[Opener]:
    made = Opener()
    try:
        yield made
    finally:
        made.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description="Open damaged and hostile models and artifacts.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that time")
    chosen = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    faulty, started, seed = 0, time.monotonic(), chosen.first
    with opener() as worker:
        while seed < chosen.first + chosen.count and time.monotonic() - started < chosen.seconds:
            found = worker.ask(seed)
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
