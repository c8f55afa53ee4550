"""What finds the planted faults: the suite, and the fuzzer.

    python -m tests.mutation.run --suite --out found.json        # or --fuzz SECONDS, or both; --only 07 for one fault

Each fault is planted in a copy of the product. `--suite` runs the tests there up to the first that fails, those nearest to the fault
first; `--fuzz` runs `tilewright fuzz`, half the time on graphs, half on kernels, up to the first finding. Fault 00 is none at all: nothing
may be found. Records are added to FILE, so that what was found before something was mended stays beside what is found now.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutation.faults import SOURCE, Fault, planted_faults

ROOT = Path(__file__).parents[2]
FOUND = Path(__file__).with_name("found.json")  # the records behind docs/mutation.md
CONTROL = Fault("00-none", "No fault.", "", ())
LATE = ("docs", "benchmarks", "onnx_backend", "hostile", "fuzzing")  # folders of tests that are slow, or far from every fault
FIRST_SEED = 1_000_000  # of fuzzing; no test uses the cases from there on
SIMPLE = """
import numpy as np, onnx, tilewright as tw
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> m (float[2, 3] x) => (float[2, 3] y) { y = Exp(x) }')
np.testing.assert_allclose(tw.compile(model, progress="none")(np.ones((2, 3), np.float32)), np.e, rtol=1e-5)
"""


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


@contextmanager
def product_with(fault: Fault) -> Iterator[Path]:
    """A copy of the product that has the fault."""
    with tempfile.TemporaryDirectory(prefix="tilewright-fault-") as folder:
        root = Path(folder) / "product"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "__pycache__", "fuzz-findings", "site", "dist", "build"))
        if fault.hunks:
            file = root / fault.path
            file.write_text(fault.planted(file.read_text(encoding="utf-8")), encoding="utf-8")
        yield root


def run(command: Sequence[str], root: Path, limit: float) -> tuple[int | None, str]:
    """Exit code (None: still running after `limit` seconds) and output of a command in the copy, which sees no cache but its own."""
    own = {name: str(root.parent / name.lower()) for name in ("TILEWRIGHT_CACHE_DIR", "TILEWRIGHT_CONFIG_DIR")}
    env = os.environ | own | {"PYTHONPATH": str(root / "src"), "CI": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=root, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(max(limit, 1.0))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return code, output.read()


def nearness(test: Path, path: str) -> tuple[bool, int, bool, int]:
    """Sorts tests, paths from `tests/` on, beside a fault in the file `path`: the file's own, by the folders that they share, late ones
    last, those in folders of their own after others."""
    folders = Path(path.removeprefix(SOURCE)).parts[:-1]
    shared = next((n for n, (a, b) in enumerate(zip(folders, test.parts[:-1])) if a != b), min(len(folders), len(test.parts) - 1))
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    own = bool(module) and f"from {module} import" in (ROOT / "tests" / test).read_text(encoding="utf-8")
    return not own, -shared, test.parts[0] in LATE, len(test.parts)


def look_by_suite(fault: Fault, root: Path, limit: float, first: str = "") -> Record:
    """The first test that fails: of the file `first`, of those next to the fault, then of all others."""
    found = (path.relative_to(root / "tests") for path in (root / "tests").rglob("test_*.py"))
    tests = sorted((test for test in found if test.parts[0] != "mutation"), key=lambda test: (nearness(test, fault.path), test))
    chosen = [test for test in tests if first and test == Path(first).relative_to("tests")]
    tests = [test for test in tests if test not in chosen]
    near = [test for test in tests if nearness(test, fault.path)[:2] < (True, 0)]
    start = time.monotonic()
    for part in (chosen, near, [test for test in tests if test not in near]):
        left = limit - (time.monotonic() - start)
        if not part:
            continue
        command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(str(Path("tests") / test) for test in part)]
        code, output = run(command, root, left)
        if code != 0:
            return Record(fault.name, "suite", failed_test(code, output), time.monotonic() - start, complete=code is not None)
    return Record(fault.name, "suite", None, time.monotonic() - start)


def failed_test(code: int | None, output: str) -> str | None:
    """The name of the test that failed, or in which the process ended."""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if failed is not None:
        return failed[1].removeprefix("tests/")
    if code is None:
        return None
    crashed = re.findall(r'File ".*?tests/([^"]+)", line \d+ in (test_\w+)', output)
    return f"{crashed[0][0]}::{crashed[0][1]} (crash)" if crashed else f"exit code {code}: {output[-300:]}"


def look_by_fuzzing(fault: Fault, root: Path, seconds: float) -> Record:
    """The fuzzer's first finding: in random graphs, then in changed passes and schedules."""
    cases, start = 0, time.monotonic()
    for mode in ("graphs", "kernels"):
        options = ["--seconds", str(seconds / 2), "--most", "1", "--minimise", "0", "--mode", mode, "--seed", str(FIRST_SEED), "--json"]
        _, output = run(["-m", "tilewright.cli", "fuzz", *options], root, seconds + 300)
        report: dict[str, Any] = json.loads(output[output.index("{") :])
        cases += report["cases"]
        if report["faults"]:
            (found,) = report["faults"]
            said = f"{mode}, {found['kind']}: {found['text']}"
            return Record(fault.name, "fuzz", said[:200], time.monotonic() - start, cases)
    return Record(fault.name, "fuzz", None, time.monotonic() - start, cases)


def look(fault: Fault, suite: bool, fuzz: float, limit: float, first: str = "") -> Iterator[Record]:
    """All that was asked for, of one fault. Raises RuntimeError where the compiler with it does not even compile a simple model."""
    with product_with(fault) as root:
        code, output = run(["-c", SIMPLE], root, 120)
        if code != 0:
            raise RuntimeError(f"{fault.name} breaks every model: {output[-500:]}")
        if suite:
            yield look_by_suite(fault, root, limit, first)
        if fuzz:
            yield look_by_fuzzing(fault, root, fuzz)


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
    names = ("first", "second", "third")
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
    return (
        f"Of the {len(looked)} of the {name} round the suite found {first} as it was, suite and fuzzer {both_first}; with what they showed "
        f"mended it is {now}, together {both_now}."
    )


def _looks(records: Sequence[Record], fault: Fault, by: str) -> list[Record]:
    return [record for record in records if record.fault == fault.name and record.by == by]


def _cell(records: Sequence[Record]) -> str:
    first, last = records[:1], records[-1:]
    if not records or (first[0].found is None) == (last[0].found is None):
        return _said(last[0]) if records else ""
    return f"{_said(first[0])}; now {_said(last[0])}"


def _said(record: Record) -> str:
    cases = "" if record.cases is None else f", {record.cases} cases"
    if record.found is None:
        return f"nothing in {record.seconds:.0f} s{cases}{'' if record.complete else ', not finished'}"
    return f"`{record.found.replace('|', '/')}`, {record.seconds:.0f} s{cases}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description="What finds the planted faults.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NN", help="this fault (repeatable); otherwise all of them, and none"
    )
    parser.add_argument("--suite", action="store_true", help="run the tests")
    parser.add_argument("--first", default="", metavar="TEST.py", help="begin with this file of tests")
    parser.add_argument("--limit", type=float, default=3600.0, metavar="SECONDS", help="for the tests, of each fault")
    parser.add_argument("--fuzz", type=float, default=0.0, metavar="SECONDS", help="fuzz for so long")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where records are added")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore interrupts, which tests send
    for fault in (CONTROL, *planted_faults()):
        if options.only and fault.number not in options.only:
            continue
        for record in look(fault, options.suite, options.fuzz, options.limit, options.first):
            print(f"{record.fault}: {record.by}: {_said(record)}", flush=True)
            if options.out is not None:
                write_records(options.out, [*read_records(options.out), record])


if __name__ == "__main__":
    main()
