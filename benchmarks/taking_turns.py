"""Engines measured in turns, each in a process of its own that is stopped while another one runs.

In one process, threads of one engine that spin for their next task take cores from the other: ONNX Runtime's do so for some milliseconds
after each call, which is longer than a small model takes in all. A stopped process has no thread that runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WARM_UP = 3  # calls before those that count, in each turn
LEAST_CALLS = 3


@dataclass(frozen=True, slots=True)
class Engine:
    """A process in which `serve` answers."""

    process: subprocess.Popen[str]

    def answer(self, timeout: float) -> str:
        """The next line that it prints. Raises RuntimeError when there is none in time, or it has ended."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError(f"no answer after {timeout:.0f} s" if not ready else f"ended with exit code {self.process.wait()}")
        return line

    def turn(self, seconds: float, timeout: float) -> float:
        """The median time of a call, in seconds, of calls for so many seconds."""
        assert self.process.stdin is not None
        self.signal(signal.SIGCONT)
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        found = json.loads(self.answer(timeout))
        self.signal(signal.SIGSTOP)
        return float(found)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to what it started, which has a group of its own."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.communicate()


def in_turns(commands: Sequence[Sequence[str]], rounds: int, seconds: float, timeout: float = 600.0) -> list[list[float]]:
    """Of each command, which runs `serve`, the median time of a call in each round. The order is turned around from round to round. Raises
    RuntimeError when one of them fails."""
    engines: list[Engine] = []
    try:
        for command in commands:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            process = subprocess.Popen(command, **pipes, text=True, bufsize=1, start_new_session=True)
            engines.append(Engine(process))
            engines[-1].answer(timeout)
            engines[-1].signal(signal.SIGSTOP)
        times: list[list[float]] = [[] for _ in engines]
        for number in range(rounds):
            order = range(len(engines)) if number % 2 == 0 else reversed(range(len(engines)))
            for i in order:
                times[i].append(engines[i].turn(seconds, timeout))
        return times
    finally:
        for engine in engines:
            engine.end()


def serve(run: Callable[[], object]) -> None:
    """In the process of an engine: answer each line of the input, a number of seconds, with the median time of calls of `run`."""
    run()
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(WARM_UP):
            run()
        times: list[float] = []
        while sum(times) < float(line) or len(times) < LEAST_CALLS:
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        print(statistics.median(times), flush=True)
