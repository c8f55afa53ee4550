"""Runs cases for `suite.py`: reads one JSON request from standard input, writes one JSON line for each case to standard output.

Cases run in forked children, a batch each, so that a native crash or a hang costs one case: the parent, which has no threads and never
runs compiled code, reports it and forks anew for the rest of the batch.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner

import tilewright
from tests.onnx_backend.cases import load_cases, open_case, with_symbolic_dims
from tilewright.support.errors import InternalError, ScheduleError, TilewrightError, VerifyError

FAULTS = (InternalError, ScheduleError, VerifyError)  # these say that Tilewright is wrong, not that it lacks something
RANDOM = ("node/bernoulli", "node/training_dropout")  # cases whose results are random numbers
DISPUTED = {
    f"node/resize_downsample_scales_{mode}_align_corners": "the suite aligns corners by the unrounded length, ONNX Runtime by the rounded"
    for mode in ("cubic", "linear")
}
LINE = 240  # characters of a reason


def run_case(key: str, case: TestCase, variant: str, settings: dict[str, Any]) -> tuple[str, str]:
    """Outcome and reason."""
    opened = open_case(case)
    model: onnx.ModelProto | None = opened.model
    if variant == "symbolic":
        model = with_symbolic_dims(opened.model)
        if model is None:
            return "same", "not one operator with dims to make symbolic"
    try:
        exe = tilewright.compile(model, cache=False, threads=2, progress="none", **settings)
    except FAULTS as error:
        return "error", explain(error)
    except TilewrightError as error:
        return "unsupported", explain(error)
    except Exception as error:
        return "error", explain(error)
    for inputs, expected in opened.data_sets:
        try:
            outputs = list(exe.run(dict(zip((spec.name for spec in exe.inputs), inputs, strict=True))).values())
        except Exception as error:
            return "wrong", f"running: {explain(error)}"
        try:
            assert_similar(expected, outputs, case.rtol, case.atol)
        except (AssertionError, TypeError, AttributeError) as error:
            if key.startswith(RANDOM):
                return "random", "the suite expects the numbers of NumPy's generator"
            if key in DISPUTED:
                return "disputed", DISPUTED[key]
            if is_close(expected, outputs, case.rtol):
                return "inexact", f"errors are below {case.rtol:g} of the greatest value, but not of each value"
            return "wrong", " ".join(str(error).split())[:LINE]
    return "pass", ""


def assert_similar(expected: Sequence[Any], outputs: Sequence[Any], rtol: float, atol: float) -> None:
    """As the suite compares, which cannot take a sequence of scalars."""
    for want, got in zip(expected, outputs, strict=True):
        if isinstance(want, list):
            assert isinstance(got, list), f"a {type(got).__name__} where a list is expected"
            assert_similar(want, got, rtol, atol)
        else:
            Runner.assert_similar_outputs([want], [got], rtol, atol)


def is_close(expected: Sequence[Any], outputs: Sequence[np.ndarray], rtol: float) -> bool:
    """Whether errors are small against each tensor's greatest value."""
    for want, got in zip(expected, outputs, strict=True):
        if not isinstance(want, np.ndarray) or want.shape != got.shape or want.dtype != got.dtype or want.dtype.kind not in "fV":
            return False
        wide, found = want.astype(np.float64), got.astype(np.float64)
        if not np.all(np.abs(wide - found) <= rtol * np.abs(wide).max(initial=0)):
            return False
    return True


def explain(error: Exception) -> str:
    if isinstance(error, TilewrightError):
        text = error.what + (f": {error.why}" if error.why else "")
    else:
        at, frame = error.__traceback__, "?"
        while at is not None:
            frame = f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}"
            at = at.tb_next
        text = f"{error} [{frame}]"
    return f"{type(error).__name__}: {' '.join(text.split())}"[:LINE]


def child(jobs: list[tuple[str, str]], cases: dict[str, TestCase], settings: dict[str, Any], write: int) -> None:
    for key, variant in jobs:
        os.write(write, b"\n")  # begun
        start = time.perf_counter()
        if os.environ.get("ONNX_SUITE_DIES_IN") == key:  # a native crash, for the test of what becomes of it
            os.kill(os.getpid(), signal.SIGSEGV)
        outcome, reason = run_case(key, cases[key], variant, settings)
        record = {"case": key, "variant": variant, "outcome": outcome, "reason": reason, "seconds": round(time.perf_counter() - start, 3)}
        os.write(write, json.dumps(record).encode() + b"\n")


def run_batch(jobs: list[tuple[str, str]], cases: dict[str, TestCase], settings: dict[str, Any], limit: float) -> None:
    """Run jobs in forked children until each has an outcome."""
    while jobs:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # native code may print
            try:
                child(jobs, cases, settings, write)
            finally:
                os._exit(0)
        os.close(write)
        done, hung = watch(read, limit)
        os.close(read)
        if hung:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        jobs = jobs[done:]
        if jobs and (hung or status != 0 or done == 0):
            signalled = f"the process died of signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "the process ended"
            reason = f"ran longer than {limit:g} s" if hung else signalled
            key, variant = jobs[0]
            answer({"case": key, "variant": variant, "outcome": "crash", "reason": reason, "seconds": 0.0})
            jobs = jobs[1:]


def watch(read: int, limit: float) -> tuple[int, bool]:
    """Hand a child's lines on until it ends or a case takes too long: how many cases ended, and whether one hung."""
    pending, done = b"", 0
    while True:
        ready, _, _ = select.select([read], [], [], limit)
        if not ready:
            return done, True
        chunk = os.read(read, 65536)
        if not chunk:
            return done, False
        *lines, pending = (pending + chunk).split(b"\n")
        for line in filter(None, lines):
            answer(json.loads(line))
            done += 1


def answer(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def main() -> None:
    request = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    cases = load_cases(sorted({key.split("/")[0] for key, _ in request["jobs"]}))
    jobs = [(key, variant) for key, variant in request["jobs"]]
    for start in range(0, len(jobs), request["batch"]):
        run_batch(jobs[start : start + request["batch"]], cases, request["settings"], request["limit"])


if __name__ == "__main__":
    main()
