"""What a process that answers requests may take: processor time is what counts, and a clock for those that use none."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tilewright.fuzzing import process
from tilewright.fuzzing.process import CaseProcess, Lost, descendants, processor_time

MODULE = "tests.fuzzing.answering"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say how much processor time a process has used")


@pytest.mark.parametrize("how", ["spin", "spin in a thread", "spin in a child"])
def test_what_works_for_ever_is_found_by_its_processor_time(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PATIENCE", 1e6)
    with CaseProcess(MODULE, 0.5, 30.0) as asked:
        assert asked.ask({"how": "nothing"}) == "done"
        with pytest.raises(Lost, match=r"no result after \d+ s of processor time") as lost:
            asked.ask({"how": how})
        assert lost.value.kind == "hang"
        assert asked.ask({"how": "nothing"}) == "done"


@LINUX
def test_what_is_stopped_leaves_no_children() -> None:
    with CaseProcess(MODULE, 0.5, 30.0) as asked:
        assert asked.ask({"how": "nothing"}) == "done"
        assert asked.process is not None

        def ask() -> None:
            with pytest.raises(Lost):
                asked.ask({"how": "spin in a child"})

        asking = threading.Thread(target=ask)
        asking.start()
        while not (children := descendants(asked.process.pid)):
            time.sleep(0.01)
        asking.join()
        for _ in range(200):  # whoever inherits them collects them
            if not any(_is_running(pid) for pid in children):
                break
            time.sleep(0.05)
        assert not any(_is_running(pid) for pid in children)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("how", ["sleep", "deadlock"])
def test_what_does_nothing_is_found_by_the_clock(how: str) -> None:
    with CaseProcess(MODULE, 0.2, 30.0) as asked:
        assert asked.ask({"how": "nothing"}) == "done"
        begun = time.monotonic()
        with pytest.raises(Lost, match="0 s of processor time") as lost:
            asked.ask({"how": how})
        assert lost.value.kind == "hang"
        assert time.monotonic() - begun > 0.2 * process.PATIENCE


@LINUX
def test_what_gets_no_processor_is_waited_for() -> None:
    with CaseProcess(MODULE, 1.0, 30.0) as asked:
        assert asked.ask({"how": "nothing"}) == "done"
        assert asked.process is not None
        pid = asked.process.pid
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(2.5, os.kill, (pid, signal.SIGCONT)).start()
        begun = time.monotonic()
        assert asked.ask({"how": "work"}) == "done"
        assert time.monotonic() - begun > 2.0


@LINUX
def test_processor_time_is_that_of_the_process() -> None:
    before, seen = time.process_time(), processor_time(os.getpid())
    assert seen is not None
    while time.process_time() - before < 0.2:
        pass
    after = processor_time(os.getpid())
    assert after is not None
    assert after - seen > 0.15
    assert processor_time(2**30) is None
