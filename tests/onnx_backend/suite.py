"""The ONNX backend suite on compiled code: each case compiled, run, and compared within the suite's tolerance.

Outcomes: `pass`; `unsupported`, when compiling raises a TilewrightError that says what is missing; `random`, when the expected numbers come
from another generator; `disputed`, when the suite and ONNX Runtime expect different things; `inexact`, when errors are within the
tolerance of the greatest value but not of each value (the suite's expected results are rounded too); `wrong`, when a result differs or
running raises; `error`, when the compiler itself is at fault; `crash`, when the process dies or hangs. Of the symbolic variant also
`same`: the model has no dims to make symbolic, or more than one operator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OUTCOMES = ("pass", "unsupported", "random", "disputed", "inexact", "wrong", "error", "crash", "same")
VARIANTS = ("static", "symbolic")
FAULTS = ("wrong", "error", "crash")
BATCH = 40  # cases that one process runs: enough to pay for its start, few enough to find what a case leaves behind
LIMIT = 120.0  # seconds for one case, on a busy machine too


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a case. `variant`: `static` as the suite has it, `symbolic` with symbolic dims in the model's inputs."""

    case: str
    variant: str
    outcome: str
    reason: str
    seconds: float


def run_suite(
    cases: Iterable[str],
    variants: Sequence[str] = ("static",),
    workers: int = 1,
    settings: dict[str, Any] | None = None,
    watch: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run cases by key ("node/abs") in worker processes; results in the order of the cases. `watch` sees each as it comes."""
    jobs = [(case, variant) for case in cases for variant in variants]
    results: dict[tuple[str, str], Result] = {}
    lock = threading.Lock()

    def take(result: Result) -> None:
        with lock:
            results[result.case, result.variant] = result
            watch(result)

    shares = [jobs[i::workers] for i in range(workers)]
    threads = [threading.Thread(target=run_worker, args=(share, settings or {}, take)) for share in shares if share]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results.get(job) or Result(*job, "crash", "the worker gave no answer", 0.0) for job in jobs]


def run_worker(jobs: list[tuple[str, str]], settings: dict[str, Any], take: Callable[[Result], None]) -> None:
    """One worker process for `jobs`; `take` gets each result."""
    request = {"jobs": jobs, "settings": settings, "batch": BATCH, "limit": LIMIT}
    command = [sys.executable, "-W", "ignore", "-m", "tests.onnx_backend.worker"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(request))
        worker.stdin.close()
        for line in worker.stdout:
            take(Result(**json.loads(line)))
