"""How long work tells what it is doing.

    with progress.stage("compile kernels", total=len(kernels)) as stage:
        for kernel in kernels:
            build(kernel)
            stage.advance(note=kernel.name)

The compiler is given a `Progress` and never prints. All implementations here write to the error stream, so that a command's output stays
clean, and remove what they drew when a stage ends, by an exception or not. Between two units
of a stage an interrupt is seen that Python lost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from tilewright.support.interrupts import check_interrupt


class Stage(Protocol):
    """One stage of work in progress."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """`count` more units are done; `note` names the one at hand."""


class Progress(Protocol):
    """Where stages are shown."""

    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Stage]:
        """Show a stage while the `with` block runs. `total`: how many units it has, if that is known."""


class NullProgress:
    """Shows nothing."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        yield _NullStage()


class _NullStage:
    def advance(self, count: int = 1, note: str = "") -> None:
        check_interrupt()


class PlainProgress:
    """One line of text now and then, for logs: a stage says nothing before it has run for `interval` seconds."""

    def __init__(self, stream: TextIO | None = None, interval: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._interval = interval
        self._clock = clock

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        yield _PlainStage(name, total, self._stream, self._interval, self._clock)


class _PlainStage:
    def __init__(self, name: str, total: int | None, stream: TextIO, interval: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._total = total
        self._stream = stream
        self._interval = interval
        self._clock = clock
        self._done = 0
        self._start = self._shown = clock()

    def advance(self, count: int = 1, note: str = "") -> None:
        check_interrupt()
        self._done += count
        now = self._clock()
        if now - self._shown < self._interval:
            return
        self._shown = now
        self._stream.write(f"{self._name}: {describe(self._done, self._total, now - self._start)}{note and ' - ' + note}\n")
        self._stream.flush()


def describe(done: int, total: int | None, elapsed: float) -> str:
    """Text such as `3/12, about 40 s left`. `elapsed` in seconds."""
    if total is None:
        return f"{done} after {elapsed:.0f} s"
    left = remaining(done, total, elapsed)
    return f"{done}/{total}" if left is None else f"{done}/{total}, about {left:.0f} s left"


def remaining(done: int, total: int, elapsed: float) -> float | None:
    """Seconds left if the rest goes as fast as what is done; None before the first unit is done."""
    if done <= 0:
        return None
    return elapsed / done * max(total - done, 0)


class RichProgress:
    """Bars on a terminal. Stages may be nested; each has its own line."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=Console(stderr=True),
            transient=True,
        )
        self._open_stages = 0

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        if self._open_stages == 0:
            self._bars.start()
        self._open_stages += 1
        task = self._bars.add_task(name, total=total, note="")
        try:
            yield _BarStage(lambda count, note: self._bars.update(task, advance=count, note=note))
        finally:
            self._bars.remove_task(task)
            self._open_stages -= 1
            if self._open_stages == 0:
                self._bars.stop()


class _BarStage:
    def __init__(self, update: Callable[[int, str], None]) -> None:
        self._update = update

    def advance(self, count: int = 1, note: str = "") -> None:
        check_interrupt()
        self._update(count, note)


def make_progress(kind: str) -> Progress:
    """The implementation for a value of the setting `progress`: `auto`, `rich`, `plain` or `none`."""
    if kind == "auto":
        kind = "rich" if sys.stderr.isatty() else "plain"
    if kind == "rich":
        return RichProgress()
    return PlainProgress() if kind == "plain" else NullProgress()
