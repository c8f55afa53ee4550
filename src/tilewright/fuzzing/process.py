"""A process that answers requests one after another, so that a crash or a hang of what it runs is a finding and not the end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO


class Lost(Exception):
    """The process is gone without an answer. kind: `hang` or `crash`; text: how it went."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class CaseProcess:
    """Runs `python -m MODULE`, which reads a JSON request a line and answers with a line of JSON; a new one takes its place when it dies or
    hangs. limit: seconds for an answer; start: for the first of a new process, which imports, if that is more."""

    def __init__(self, module: str, limit: float, start: float = 0.0) -> None:
        self.module, self.limit, self.start = module, limit, max(start, limit)
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> CaseProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> int:
        """End the process, if there is one; its exit code."""
        if self.process is None:
            return 0
        self.process.kill()
        return self._gone(self.process)

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The answer. Raises Lost where there is none."""
        limit = self.start if self.process is None else self.limit
        process = self.process or self._begin()
        try:
            if process.stdin is not None:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            line = self.answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            raise Lost("hang", f"no result after {limit:.0f} s") from None
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._gone(process)
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise Lost("crash", f"the process ended with {name}")
        return json.loads(line)

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


def _listen(stream: TextIO, answers: queue.Queue[str]) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put("")
