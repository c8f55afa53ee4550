"""Executables under use: many threads at once, many calls one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.end_to_end.endurance import growth_kib, image_sizes, resident_kib, token_sizes
from tests.end_to_end.small_models import assert_identical, images, same, text_model, tokens, vision_model

Array = np.ndarray


@pytest.fixture(scope="module")
def vision() -> tw.Executable:
    return tw.compile(vision_model(), cache=False, threads=2)


@pytest.fixture(scope="module")
def text() -> tw.Executable:
    return tw.compile(text_model(), cache=False, threads=2)


def at_once(count: int, work: Callable[[int], None]) -> None:
    """Run `work(i)` in `count` threads that start together; raises what one of them raised."""
    gate, failures = threading.Barrier(count), []

    def run(i: int) -> None:
        try:
            gate.wait()
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_eight_threads_call_one_executable(vision: tw.Executable) -> None:
    cases = [images(i, 1 + i % 3, 3, 8 + i, 9) for i in range(8)]
    wanted = [vision.run(case) for case in cases]

    def work(i: int) -> None:
        for turn in range(30):
            j = (i + turn) % len(cases)
            assert_identical(vision.run(cases[j]), wanted[j])

    at_once(8, work)


def test_eight_threads_and_sizes_that_depend_on_data(text: tw.Executable) -> None:
    cases = [tokens(i, 1 + i % 4, 5 + 3 * i) for i in range(8)]
    wanted = [text.run(case) for case in cases]

    def work(i: int) -> None:
        for turn in range(30):
            j = (i + turn) % len(cases)
            assert_identical(text.run(cases[j]), wanted[j])

    at_once(8, work)


def test_four_executables_at_once(vision: tw.Executable, text: tw.Executable) -> None:
    """Two models, with two and with three threads: pools of their own and shared ones."""
    executables = [vision, text, tw.Executable(vision.artifact, 3), tw.Executable(text.artifact, 3)]
    cases = [images(1, 2, 3, 12, 12), tokens(1, 3, 20)] * 2
    wanted = [executable.run(case) for executable, case in zip(executables, cases, strict=True)]

    def work(i: int) -> None:
        for _ in range(40):
            same(executables[i].run(cases[i]), wanted[i])

    at_once(4, work)


def test_executables_come_and_go() -> None:
    """Making, running and dropping them from several threads leaves the others whole."""
    artifact = tw.compile(vision_model(), cache=False).artifact
    case = images(2, 1, 3, 10, 10)
    want = tw.Executable(artifact, 1).run(case)

    def work(i: int) -> None:
        for _ in range(8):
            same(tw.Executable(artifact, 1 + i % 3).run(case), want)

    at_once(4, work)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the resident memory from /proc")
def test_repeated_calls_leak_no_memory(vision: tw.Executable, text: tw.Executable) -> None:
    """A leak of one buffer of 10 kB in each of 2000 calls would show as 20 MB; `python -m tests.end_to_end.endurance` calls more often."""
    assert growth_kib([(vision, image_sizes()), (text, token_sizes())], 2000) < 8 * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the resident memory from /proc")
def test_failing_calls_leak_no_memory(vision: tw.Executable) -> None:
    wrong = {"x": np.zeros((1, 4, 8, 8), np.float32)}

    def fail() -> None:
        with pytest.raises(tw.TilewrightError):
            vision.run(wrong)

    for _ in range(50):
        fail()
    before = resident_kib()
    for _ in range(500):
        fail()
    assert resident_kib() - before < 4 * 1024
