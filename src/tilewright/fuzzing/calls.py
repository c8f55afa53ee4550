"""Calling a compiled case in the ways in which users do, each call compared with what is expected: inputs of several sizes one after the
other, arrays that are read-only or not contiguous, an artifact out of a file, a limit of memory, several threads at once."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.accuracy.rounding_noise import Expected, disagreement
from tilewright.fuzzing.guarded import guarded_array, guarded_copy, guarded_runtime, kept_outputs
from tilewright.graph.interpreter import bind_inputs
from tilewright.graph.node import Function
from tilewright.runtime.artifact import Artifact, load, save
from tilewright.runtime.executable import Executable
from tilewright.support.errors import MemoryLimitError

Array = np.ndarray[Any, np.dtype[Any]]
PASSED = ("plain", "read-only", "strided")


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a call. kind: `wrong`, or `error` for an exception; result: the number of the result."""

    kind: str
    text: str
    result: int | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one case. inputs, wanted: for each turn the arguments and what each result should be; threads: that run an inference;
    at_end: whether memory ends, or else begins, where nobody may touch; see `cases.How` for the others."""

    function: Function
    inputs: Sequence[Sequence[Array]]
    wanted: Sequence[Sequence[Expected | None]]
    threads: int
    at_end: bool
    passed: str = "plain"
    saved: bool = False
    limited: bool = False
    callers: int = 1

    def faults(self, artifact: Artifact) -> Iterator[Wrong]:
        """What is wrong with the artifact, if anything, call by call. Raises as loading does."""
        artifact = reloaded(artifact) if self.saved else artifact
        executable = Executable(artifact, self.threads)
        yield from self._in_turn(executable)
        if len(self.wanted) > 1:
            yield from self._in_kept_memory(executable)
        if self.limited and not artifact.manifest["open_ended"]:
            yield from self._within_memory(artifact, executable)
        if self.callers > 1:
            yield from self._at_once(executable)

    def _in_turn(self, executable: Executable) -> Iterator[Wrong]:
        """One call after the other; the first again at the end, which must give the same bits: memory left by others must not matter."""
        first: list[Array] = []
        for number, turn in enumerate((*range(len(self.wanted)), 0)):
            results = yield from self._call(executable, turn, self.at_end ^ bool(number % 2))
            for i, (result, before) in enumerate(zip(results, first if number == len(self.wanted) else (), strict=False)):
                if result.tobytes() != before.tobytes():
                    yield Wrong("wrong", f"result {i} has other bits when the same inputs come again", i)
            first = first or results

    def _in_kept_memory(self, executable: Executable) -> Iterator[Wrong]:
        """Calls whose results are dropped before the next one, each size after each other: results lie in the memory of those before,
        which were larger, smaller, or larger by a few bytes."""
        turns = range(len(self.wanted))
        with kept_outputs(executable):
            for turn in (turn for a, b in itertools.combinations(turns, 2) for turn in (a, b, a)):
                try:
                    results = list(executable.run(self._by_name(executable, self.inputs[turn])).values())
                except Exception as error:
                    yield Wrong("error", f"{type(error).__name__} while running in memory of earlier results: {error}")
                    return
                yield from self._compared(results, turn, ", in memory of earlier results")
                del results

    def _call(self, executable: Executable, turn: int, at_end: bool) -> Generator[Wrong, None, list[Array]]:
        """The results of one call."""
        given = [passed_as(self.passed, array, at_end) for array in self.inputs[turn]]
        try:
            with guarded_runtime(executable, at_end):
                results = list(executable.run(self._by_name(executable, given)).values())
        except Exception as error:
            yield Wrong("error", f"{type(error).__name__} while running: {error}")
            return []
        for i, (mine, array) in enumerate(zip(given, self.inputs[turn], strict=True)):
            if mine.tobytes() != array.tobytes():
                yield Wrong("wrong", f"input {i} was overwritten")
        yield from self._compared(results, turn)
        return results

    def _compared(self, results: Sequence[Array], turn: int, when: str = "") -> Iterator[Wrong]:
        for i, (result, expected) in enumerate(zip(results, self.wanted[turn], strict=True)):
            wrong = None if expected is None else disagreement(result, expected)
            if wrong is not None:
                yield Wrong("wrong", f"result {i} {wrong} (inputs {turn}{when})", i)

    def _within_memory(self, artifact: Artifact, executable: Executable) -> Iterator[Wrong]:
        """The memory that is announced is enough, and one byte less is refused."""
        needs = [sum(executable.memory(**self._sizes(executable, turn)).values()) for turn in range(len(self.inputs))]
        turn = int(np.argmax(needs))
        if needs[turn] < 2:  # a limit of 0 is none
            return
        for limit, enough in ((needs[turn], True), (needs[turn] - 1, False)):
            try:
                results = Executable(artifact, self.threads, limit).run(self._by_name(executable, self.inputs[turn]))
            except MemoryLimitError as error:
                if enough:
                    yield Wrong("wrong", f"{limit:,} bytes are announced, and a limit of as much is refused: {error.what}")
                continue
            yield from self._compared(list(results.values()), turn, f", limit {limit}")
            if not enough:
                yield Wrong("wrong", f"{limit + 1:,} bytes are announced, and a limit of one less is not refused")

    def _by_name(self, executable: Executable, arrays: Sequence[Array]) -> dict[str, Array]:
        return dict(zip((spec.name for spec in executable.inputs), arrays, strict=True))

    def _sizes(self, executable: Executable, turn: int) -> dict[str, int]:
        """The sizes at these inputs, by name."""
        sizes: dict[Any, int] = {}
        bind_inputs([param.type for param in self.function.params], self.inputs[turn], sizes)
        known = {size.name for size in executable.sizes}
        return {size.attr.name: value for size, value in sizes.items() if size.attr.name in known}

    def _at_once(self, executable: Executable) -> Iterator[Wrong]:
        """Calls of all turns by several threads, each of which begins with another one."""

        def calls(caller: int) -> list[Wrong]:
            found: list[Wrong] = []
            for number in range(len(self.inputs) + 1):
                turn = (caller + number) % len(self.inputs)
                given = [passed_as("plain", array, self.at_end) for array in self.inputs[turn]]
                try:
                    results = list(executable.run(self._by_name(executable, given)).values())
                except Exception as error:
                    return [*found, Wrong("error", f"{type(error).__name__} while running in several threads: {error}")]
                found += self._compared(results, turn, ", several threads at once")
            return found

        with guarded_runtime(executable, self.at_end), ThreadPoolExecutor(self.callers) as pool:
            for found in list(pool.map(calls, range(self.callers))):
                yield from found


def reloaded(artifact: Artifact) -> Artifact:
    """The artifact, written to a file and read back."""
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as folder:
        path = Path(folder) / "case.tw"
        save(artifact, path)
        return load(path, verify=True)


def passed_as(kind: str, array: Array, at_end: bool) -> Array:
    """A copy of the array between guards, as it is, read-only, or every second element along the last axis of another one."""
    if kind == "strided" and array.ndim:
        view = guarded_array((*array.shape[:-1], 2 * array.shape[-1]), array.dtype, at_end)[..., ::2]
        view[...] = array
        return view
    copy = guarded_copy(array, at_end)
    copy.flags.writeable = kind != "read-only"
    return copy
