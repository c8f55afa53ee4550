"""Cases run in a process of their own, so that a crash or a hang is a finding and not the end.

The process reads one JSON request a line and answers with one line, an `Outcome`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tilewright.fuzzing.blame import blame
from tilewright.fuzzing.cases import Case, Finding, Outcome, Recipe, case_of, judge, read_case
from tilewright.fuzzing.lines import Lines
from tilewright.fuzzing.process import CaseProcess, Lost

LIMIT = 60.0  # seconds of processor time for one case
LINES = Lines()  # what this process has run
MEMORY = 8 << 30  # bytes of addresses that a worker may take: a case that asks for more is a finding, not the machine's end


class Worker:
    """A process that runs cases one after another."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.process = CaseProcess("tilewright.fuzzing.worker", limit)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.stop()

    def ask(self, request: Mapping[str, Any]) -> Outcome:
        """What comes of a case: `{"seed": 1, "recipe": {...}}`, with `"passes"` and `"genes"` to mutate it and `"watch"` to note what it
        reaches, or `{"file": "case.zip"}`; with `"blame": folder`, what is at fault, as a finding of the kind `culprit`."""
        try:
            answer = self.process.ask(request)
        except Lost as lost:
            return Outcome(Finding(lost.kind, lost.text))
        finding = answer.pop("finding")
        return Outcome(None if finding is None else Finding(**finding), **answer)


def answer(request: Mapping[str, Any]) -> Outcome:
    """What comes of a case, in this process."""
    recipe = recipe_of(request.get("recipe", {}))
    try:
        case = requested(request)
    except Exception as error:
        return Outcome(Finding("generator", f"{type(error).__name__}: {error}"))
    try:
        if "blame" in request:
            return Outcome(blame(case, Path(request["blame"])))
        return judge(case, recipe.levels, LINES if request.get("watch") else None)
    except MemoryError:
        return Outcome(Finding("memory", "memory ran out in the reference"))
    except Exception as error:
        return Outcome(Finding("interpreter", f"{type(error).__name__}: {error}"))


def requested(request: Mapping[str, Any]) -> Case:
    """The case that a request is about."""
    if "file" in request:
        return read_case(Path(request["file"]))
    case = case_of(request["seed"], recipe_of(request.get("recipe", {})))
    if "genes" not in request:
        return case
    how = replace(case.how, opt_level=3, passes=tuple(request["passes"]), genes=tuple(request["genes"]))
    return replace(case, how=how)


def recipe_of(data: Mapping[str, Any]) -> Recipe:
    """A recipe out of its JSON form, which has lists for tuples."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return Recipe(**fields)


def limit_memory() -> None:
    """Let this process have no more than MEMORY addresses, where the system can say so."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))


def main() -> None:
    faulthandler.enable()
    limit_memory()
    # Whatever prints goes to standard error, so that it cannot be taken for an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(asdict(answer(json.loads(line)))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
