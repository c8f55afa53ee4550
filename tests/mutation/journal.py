"""A plugin of pytest that notes what has been run, so that a run goes on after the test that ended it, even by taking the process with it.

    JOURNAL_OF_TESTS=FILE pytest -p tests.mutation.journal ...

Each line of the file is `start`, `failed` or `done` and the name of a test, or `failed` and the name of a file that cannot be collected.
Tests that are in it as failed or done are not run again. One that takes too much processor time ends the process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

VARIABLE = "JOURNAL_OF_TESTS"
ONE_TEST = 900.0  # seconds of processor time for a test


def read_journal(path: Path) -> dict[str, str]:
    """What became of each test last: `start`, `failed` or `done`; once failed, a test is not done."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        what, _, name = line.partition(" ")
        if found.get(name) != "failed":
            found[name] = what
    return found


def note(path: Path, what: str, name: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{what} {name}\n")


def _path() -> Path | None:
    given = os.environ.get(VARIABLE)
    return Path(given) if given else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = _path()
    if path is None:
        return
    known = read_journal(path)
    over = [item for item in items if known.get(item.nodeid) in ("failed", "done")]
    config.hook.pytest_deselected(items=over)
    items[:] = [item for item in items if known.get(item.nodeid) not in ("failed", "done")]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    path = _path()
    if path is not None and report.failed:
        note(path, "failed", report.nodeid)


def pytest_runtest_logstart(nodeid: str) -> None:
    path = _path()
    if path is not None:
        note(path, "start", nodeid)
        signal.setitimer(signal.ITIMER_PROF, ONE_TEST)  # native code is ended by it too, where Python would wait for it


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = _path()
    if path is None:
        return
    if report.failed:
        note(path, "failed", report.nodeid)
    elif report.when == "teardown":
        note(path, "done", report.nodeid)
