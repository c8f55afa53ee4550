"""A process that answers requests one after another, so that a crash or a hang of what it runs is a finding and not the end.

A hang is told by processor time, of the process with its threads and children: on a machine that has other things to do, the same work
takes as much of it as ever, and longer by the clock. Only a process that does nothing is told by the clock, which it is given more of.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

PATIENCE = 10.0  # times the limit of processor time that may pass by the clock
LOOK = 0.5  # seconds between looks at how much of it was used


class Lost(Exception):
    """The process is gone without an answer. kind: `hang` or `crash`; text: how it went."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class CaseProcess:
    """Runs `python -m MODULE`, which reads a JSON request a line and answers with a line of JSON; a new one takes its place when it dies or
    hangs. limit: seconds of processor time for an answer; start: for the first of a new process, which imports, if that is more."""

    def __init__(self, module: str, limit: float, start: float = 0.0) -> None:
        self.module, self.limit, self.start = module, limit, max(start, limit)
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> CaseProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> int:
        """End the process with its children, if there is one; its exit code."""
        if self.process is None:
            return 0
        family = descendants(self.process.pid)
        self.process.kill()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._gone(self.process)

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The answer. Raises Lost where there is none."""
        limit = self.start if self.process is None else self.limit
        process = self.process or self._begin()
        try:
            if process.stdin is not None:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            line = self._answer(process, limit)
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._gone(process)
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise Lost("crash", f"the process ended with {name}")
        return json.loads(line)

    def _answer(self, process: subprocess.Popen[str], limit: float) -> str:
        """The next line of an answer, empty where the process has ended. Raises Lost, after stopping it, when it takes too long."""
        begun, before = time.monotonic(), processor_time(process.pid) or 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                return self.answers.get(timeout=min(LOOK, limit))
            passed = time.monotonic() - begun
            now = processor_time(process.pid)
            used = passed if now is None else now - before
            if used >= limit or passed >= PATIENCE * limit:
                self.stop()
                raise Lost("hang", f"no result after {used:.0f} s of processor time, {passed:.0f} s in all")

    def _gone(self, process: subprocess.Popen[str]) -> int:
        code = process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        self.process = None
        return code

    def _begin(self) -> subprocess.Popen[str]:
        self.answers = queue.Queue()
        # What native code allocates is not empty by luck either.
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.perturb=165"}
        command = [sys.executable, "-m", self.module]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=nowhere, text=True)
        threading.Thread(target=_listen, args=(self.process.stdout, self.answers), daemon=True).start()
        return self.process


def processor_time(pid: int) -> float | None:
    """Seconds of processor time that a process has used, with all its threads and its children, those that have ended included. None where
    the system does not say: only Linux does, in /proc."""
    own = _own_time(pid)
    return None if own is None else own + sum(_own_time(child) or 0.0 for child in descendants(pid))


def descendants(pid: int) -> list[int]:
    """The running children of a process, and theirs; none where the system does not say: only Linux does, in /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text("utf-8").split()):
                found += [child, *descendants(child)]
    return found


def _own_time(pid: int) -> float | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # utime, stime, cutime, cstime, in clock ticks: fields 14 to 17 (proc_pid_stat(5)); the second is a name, which may hold blanks
    return sum(int(text) for text in line.rpartition(")")[2].split()[11:15]) / os.sysconf("SC_CLK_TCK")


def _listen(stream: TextIO, answers: queue.Queue[str]) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put("")
