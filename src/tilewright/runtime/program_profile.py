"""Profiles of programs: where the time of their compiled parts goes.

A program runs once to see what each part is called with; then the parts are profiled one by one, as executables are, at their first calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tilewright.runtime.profile import Profile, measure
from tilewright.runtime.program import Program
from tilewright.support.errors import InputError


@dataclass(frozen=True, slots=True)
class PartProfile:
    """One compiled part: how often the program called it, and its profile at the first of these calls."""

    number: int
    calls: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """A profile of `repeat` runs. total: median seconds of a whole run, host steps included. parts: those that were called."""

    model: str
    repeat: int
    total: float
    parts: tuple[PartProfile, ...]

    @property
    def in_parts(self) -> float:
        """Seconds in compiled parts, if each call took as long as the first."""
        return sum(part.calls * part.profile.plain for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "repeat": self.repeat,
            "total_seconds": self.total,
            "part_seconds": self.in_parts,
            "parts": [{"part": part.number, "calls": part.calls, **part.profile.to_json()} for part in self.parts],
        }

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.total * 1e3:.3f} ms, {self.in_parts * 1e3:.3f} ms of it in compiled parts"]
        return "\n".join([*lines, *(f"part {part.number}, called {part.calls} times: {part.profile}" for part in self.parts)])


def measure_program(program: Program, inputs: Mapping[str, Any], repeat: int = 20) -> ProgramProfile:
    """The profile of a program for inputs by name. Raises as `measure` does."""
    if repeat < 1:
        raise InputError(f"a profile of {repeat} runs says nothing", hint="repeat is 1 or more")
    given: dict[int, list[Mapping[str, Any]]] = {}

    def call(number: int, values: Mapping[str, Any]) -> Mapping[str, Any]:
        given.setdefault(number, []).append(dict(values))
        return program.parts[number].run(values)

    program.run(inputs, call)
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        program.run(inputs)
        seconds.append(time.perf_counter() - begin)
    parts = [PartProfile(number, len(calls), measure(program.parts[number], calls[0], repeat)) for number, calls in sorted(given.items())]
    return ProgramProfile(str(program.manifest.get("model", {}).get("source", "")) or "model", repeat, median(seconds), tuple(parts))
