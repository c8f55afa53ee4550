"""What was found of the planted faults, and the tables that show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation.faults import SOURCE, Fault, planted_faults

FOUND = Path(__file__).with_name("found.json")  # the records behind docs/mutation.md


@dataclass(frozen=True, slots=True)
class Record:
    """One look for one fault. by: `suite` or `fuzz`; found: the test that failed, or the fuzzer's finding, None for nothing; cases: of
    the fuzzer; complete: whether everything that was to be run was."""

    fault: str
    by: str
    found: str | None
    seconds: float
    cases: int | None = None
    complete: bool = True


def read_records(path: Path) -> list[Record]:
    return [Record(**data) for data in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else []


def write_records(path: Path, records: Sequence[Record]) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(asdict(record)) for record in records) + "\n]\n", encoding="utf-8")


def table(records: Sequence[Record]) -> str:
    """For every fault, by rounds, the place, and what found it first; where that has changed since, what finds it now."""
    return "\n\n".join(f"### The {name} round\n\n{_rows(records, faults)}" for name, faults in _rounds())


def _rows(records: Sequence[Record], faults: Sequence[Fault]) -> str:
    rows = ["| fault | place | the suite | the fuzzer |", "|---|---|---|---|"]
    for fault in faults:
        cells = [_cell(_looks(records, fault, by)) for by in ("suite", "fuzz")]
        rows.append(f"| {fault.number} {fault.description} | `{fault.path.removeprefix(SOURCE)}` | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def _rounds() -> list[tuple[str, list[Fault]]]:
    faults = planted_faults()
    names = ("first", "second", "third", "fourth")
    return [(name, [fault for fault in faults if fault.round == i]) for i, name in enumerate(names, 1)]


def summary(records: Sequence[Record]) -> str:
    """How many faults of each round the suite and the fuzzer found as they were, and find now."""
    return "\n\n".join(_counted(records, name, faults) for name, faults in _rounds())


def _counted(records: Sequence[Record], name: str, faults: Sequence[Fault]) -> str:
    looked = [fault for fault in faults if _looks(records, fault, "suite")]
    if not looked:
        return f"The {len(faults)} of the {name} round have not been looked for."
    counts = {}
    for when, at in (("first", 0), ("now", -1)):
        found = {
            by: {fault.name for fault in looked if (looks := _looks(records, fault, by)) and looks[at].found is not None}
            for by in ("suite", "fuzz")
        }
        counts[when] = (len(found["suite"]), len(found["suite"] | found["fuzz"]))
    (first, both_first), (now, both_now) = counts["first"], counts["now"]
    firsts = [_looks(records, fault, "suite")[0] for fault in looked]
    unfinished = sum(look.found is None and not look.complete for look in firsts)
    least = f" (at least: for {unfinished} others not all tests ran)" if unfinished else ""
    return (
        f"Of the {len(looked)} of the {name} round the suite found {first} as it was{least}, suite and fuzzer {both_first}; with what they "
        f"showed mended it is {now}, together {both_now}."
    )


def _looks(records: Sequence[Record], fault: Fault, by: str) -> list[Record]:
    return [record for record in records if record.fault == fault.name and record.by == by]


def _cell(records: Sequence[Record]) -> str:
    first, last = records[:1], records[-1:]
    if not records or (first[0].found is None) == (last[0].found is None):
        return said(last[0]) if records else ""
    return f"{said(first[0])}; now {said(last[0])}"


def said(record: Record) -> str:
    """What was found, in how long."""
    cases = "" if record.cases is None else f", {record.cases} cases"
    if record.found is None:
        return f"nothing in {record.seconds:.0f} s{cases}{'' if record.complete else ', not finished'}"
    return f"`{record.found.replace('|', '/')}`, {record.seconds:.0f} s{cases}"
