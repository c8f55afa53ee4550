"""Cases run in a process of their own, so that a crash or a hang is a finding and not the end.

The process reads one JSON request a line (`{"seed": 1, "like": []}` or `{"file": "case.zip"}`) and answers with one line: null, or
a finding.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from tilewright.fuzzing.cases import Finding, case_of, read_case, run_case

LIMIT = 60.0  # seconds for one case


class Worker:
    """A process that runs cases one after another; a new one takes its place when it dies or hangs."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> int:
        """End the process, if there is one; its exit code."""
        if self.process is None:
            return 0
        self.process.kill()
        return self._gone()

    def _gone(self) -> int:
        assert self.process is not None
        assert self.process.stdin is not None
        code = self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process = None
        return code

    def ask(self, request: dict[str, Any]) -> Finding | None:
        """The finding of a case, if there is one."""
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=self.limit)
        except queue.Empty:
            self.stop()
            return Finding("hang", f"no result after {self.limit:.0f} s")
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._gone()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Finding("crash", f"the process ended with {name}")
        answer = json.loads(line)
        return None if answer is None else Finding(**answer)

    def _start(self) -> None:
        self.answers = queue.Queue()
        command = [sys.executable, "-m", "tilewright.fuzzing.worker"]
        # What native code allocates is not empty by luck either.
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.perturb=165"}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=_listen, args=(self.process.stdout, self.answers), daemon=True).start()


def _listen(stream: TextIO, answers: queue.Queue[str]) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put("")


def answer(request: dict[str, Any]) -> Finding | None:
    try:
        case = read_case(Path(request["file"])) if "file" in request else case_of(request["seed"], tuple(request.get("like", ())))
    except Exception as error:
        return Finding("generator", f"{type(error).__name__}: {error}")
    try:
        return run_case(case)
    except Exception as error:
        return Finding("interpreter", f"{type(error).__name__}: {error}")


def main() -> None:
    faulthandler.enable()
    # Whatever prints goes to standard error, so that it cannot be taken for an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        found = answer(json.loads(line))
        out.write(json.dumps(None if found is None else asdict(found)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
