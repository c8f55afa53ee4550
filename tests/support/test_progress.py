import io
import os
import subprocess
import sys

import pytest

from tilewright.support.progress import NullProgress, PlainProgress, Progress, RichProgress, describe, make_progress, remaining


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_progress_speaks_only_after_its_interval() -> None:
    stream, clock = io.StringIO(), Clock()
    with PlainProgress(stream, interval=5.0, clock=clock).stage("kernels", total=10) as stage:
        clock.now = 1.0
        stage.advance()
        assert stream.getvalue() == ""
        clock.now = 6.0
        stage.advance(2, note="conv_1")
        clock.now = 7.0
        stage.advance()
    assert stream.getvalue() == "kernels: 3/10, about 14 s left - conv_1\n"


def test_estimates() -> None:
    assert remaining(0, 4, 3.0) is None
    assert remaining(2, 6, 3.0) == pytest.approx(6.0)
    assert remaining(9, 6, 3.0) == 0.0
    assert describe(3, None, 12.3) == "3 after 12 s"
    assert describe(0, 5, 1.0) == "0/5"


@pytest.mark.parametrize("make", [NullProgress, PlainProgress, RichProgress])
def test_every_implementation_takes_nested_stages_and_exceptions(make: type, capsys: pytest.CaptureFixture[str]) -> None:
    progress: Progress = make()
    with progress.stage("outer", total=2) as outer:
        with pytest.raises(RuntimeError, match="inside"), progress.stage("inner") as inner:
            inner.advance(note="x")
            raise RuntimeError("inside")
        outer.advance(2)
    with progress.stage("again") as stage:
        stage.advance()
    assert capsys.readouterr().out == ""


def test_setting_chooses_the_implementation() -> None:
    assert isinstance(make_progress("none"), NullProgress)
    assert isinstance(make_progress("plain"), PlainProgress)
    assert isinstance(make_progress("rich"), RichProgress)


def test_support_imports_nothing_heavy() -> None:
    program = (
        "import sys, tilewright.support.errors, tilewright.support.settings, tilewright.support.hashing, tilewright.support.atomic,"
        "tilewright.support.cache, tilewright.support.progress\n"
        "print([name for name in ('numpy', 'rich', 'typer', 'onnx', 'llvmlite', 'platformdirs', 'ml_dtypes') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


LOST_INTERRUPT = """
import os, signal, sys
from tilewright.support.interrupts import note_interrupts
from tilewright.support.progress import {kind}

if sys.argv[1:] == ["ignored"]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
note_interrupts()
with {kind}().stage("work", 2) as stage:
    stage.advance()
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:  # as a callback from C would
        pass
    try:
        stage.advance()
        print("went on")
    except KeyboardInterrupt:
        print("stopped")
"""


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize("kind", ["NullProgress", "PlainProgress", "RichProgress"])
def test_an_interrupt_that_python_lost_stops_the_next_unit(kind: str) -> None:
    program = [sys.executable, "-c", LOST_INTERRUPT.format(kind=kind)]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "stopped\n"
    assert subprocess.run([*program, "ignored"], capture_output=True, text=True, check=True).stdout == "went on\n"
