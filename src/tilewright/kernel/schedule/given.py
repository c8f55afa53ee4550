"""Schedules that somebody gives for kernels of a model, as data: for each kernel a point of its space, or a trace to replay.

    {"format": 1,
     "kernels": {"3f2a90c1d4e5b678": {"name": "contract_add", "nodes": ["Gemm node '/fc1/Gemm'"],
                                      "point": {"contract.tile": [8, 3]}, "trace": [["split", ["i"], {"factors": 8}, ["i_0", "i_1"]]]}}}

Kernels are known by a hash of their definition. An entry with a point is scheduled by the rules, which take the values of the point where
they ask for them; one with a trace alone is scheduled by the trace. Where both stand, the trace must be the one that the point leads to: a
file that says two things is refused. Nothing in a file is passed over in silence: neither a kernel that the model does not have, nor a
name that no rule asks for, nor a value that is no option.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.kernel.nodes import Kernel, with_fields
from tilewright.kernel.schedule.schedule import Schedule, replay
from tilewright.kernel.schedule.space import Space
from tilewright.kernel.schedule.trace import Trace
from tilewright.kernel.script import format_kernel
from tilewright.support.errors import ParseError, ScheduleError
from tilewright.support.hashing import content_hash

FORMAT = 1
HASH_DIGITS = 16

Rules = Callable[[Space], Schedule]
"""The rules of a target on one kernel: the schedule at the point of the space that is given."""


@dataclass(frozen=True, slots=True)
class GivenSchedule:
    """What is given for one kernel. name: for people. point: values of decisions by name, or None; trace: what to apply, or None."""

    name: str
    point: Mapping[str, Any] | None
    trace: Trace | None


@dataclass(frozen=True, slots=True)
class GivenSchedules:
    """Schedules by the hash of the kernel that they are for. source: where they come from, for messages."""

    kernels: Mapping[str, GivenSchedule]
    source: str = "schedules"

    def unused(self, seen: frozenset[str]) -> ScheduleError | None:
        """An error for kernels that are not among those seen; None where there are none."""
        missing = {key: given.name for key, given in self.kernels.items() if key not in seen}
        if not missing:
            return None
        named = ", ".join(f"{name} ({key})" for key, name in list(missing.items())[:3]) + (", ..." if len(missing) > 3 else "")
        return ScheduleError(
            f"the model has no kernel {named}",
            where=self.source,
            why="kernels are known by their definition: another model, other dims or settings, another version of the compiler give others",
            hint="`tilewright inspect MODEL --export FILE` writes the schedules of all kernels that there are",
        )


def kernel_hash(kernel: Kernel, constants: frozenset[int]) -> str:
    """What a kernel is known by: its definition without its name, and which of its inputs are constants of the model."""
    return content_hash("kernel", format_kernel(with_fields(kernel, name="kernel")), sorted(constants))[:HASH_DIGITS]


def parse_given(data: Any, source: str = "schedules") -> GivenSchedules:
    """Schedules of plain data, as they stand in a file. Raises ScheduleError for data of another form."""
    if not isinstance(data, Mapping) or not isinstance(data.get("kernels"), Mapping) or set(data) - {"format", "kernels"}:
        raise _malformed("there must be an object with `format` and `kernels`", source)
    if data.get("format") != FORMAT:
        raise _malformed(f"its format is {data.get('format')!r}, this version reads {FORMAT}", source)
    return GivenSchedules({str(key): _entry(str(key), entry, source) for key, entry in data["kernels"].items()}, source)


def _entry(key: str, entry: Any, source: str) -> GivenSchedule:
    if not isinstance(entry, Mapping):
        raise _malformed(f"what stands for kernel {key} is no object", source)
    name = str(entry.get("name", key))
    unknown = set(entry) - {"name", "nodes", "point", "trace"}
    if unknown:
        raise _malformed(f"kernel {name} ({key}): {min(unknown)!r} is none of name, nodes, point, trace", source)
    point, rows = entry.get("point"), entry.get("trace")
    if point is None and rows is None:
        raise _malformed(f"kernel {name} ({key}) has neither a point nor a trace", source)
    if point is not None and not isinstance(point, Mapping):
        raise _malformed(f"kernel {name} ({key}): a point is an object of values by name", source)
    try:
        trace = None if rows is None else Trace.from_json(json.dumps(rows))
    except ParseError as error:
        raise _malformed(f"kernel {name} ({key}): {error.what}", source) from None
    return GivenSchedule(name, point, trace)


def _malformed(why: str, source: str) -> ScheduleError:
    return ScheduleError(
        "these are no schedules", where=source, why=why, hint="`tilewright inspect MODEL --export FILE` writes a file of them"
    )


def apply_given(given: GivenSchedule, kernel: Kernel, rules: Rules) -> tuple[Schedule, Space]:
    """The schedule that is given for a kernel, and the decisions that led to it (none for a trace alone). Raises ScheduleError, which names
    the kernel, where the point or the trace does not fit it."""
    space = Space(given.point or {})
    try:
        if given.point is None:
            return replay(given.trace or Trace(), kernel), space
        schedule = rules(space)
        if space.refused:
            raise space.refused[0]
        unknown = space.unused()
        if unknown:
            asked = ", ".join(decision.name for decision in space.decisions) or "none"
            raise ScheduleError(f"there is no decision '{unknown[0]}'", why=f"the decisions of this kernel are {asked}")
        if given.trace is not None and given.trace != schedule.trace:
            raise ScheduleError(
                "point and trace say different things",
                why="the rules, with the values of the point, do something else than the trace",
                hint="leave out the trace to follow the point, or the point to follow the trace",
            )
    except ScheduleError as error:
        raise ScheduleError(
            f"the schedule given for kernel {given.name} does not fit: {error.what}", where=error.where, why=error.why, hint=error.hint
        ) from error
    return schedule, space


def given_text(entries: Mapping[str, tuple[str, tuple[str, ...], Space, Schedule]]) -> str:
    """A file that `parse_given` reads, with one instruction a line: for each hash the name, the model's nodes, and point and trace of a
    schedule."""
    kernels = []
    for key, (name, nodes, space, schedule) in entries.items():
        head = json.dumps({"name": name, "nodes": nodes, "point": space.point()}, ensure_ascii=False)
        rows = ",\n".join(f"    {json.dumps(row)}" for row in json.loads(schedule.trace.to_json()))
        kernels.append(f'  {json.dumps(key)}: {head[:-1]}, "trace": [\n{rows}\n  ]}}')
    joined = ",\n".join(kernels)
    return f'{{"format": {FORMAT}, "kernels": {{\n{joined}\n}}}}\n'
