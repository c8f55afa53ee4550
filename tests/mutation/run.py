"""What finds the planted faults: the suite, and the fuzzer.

    python -m tests.mutation.run --suite --together --out found.json    # of all faults; --fuzz SECONDS for the fuzzer, or both

`--together` plants the faults in groups, of different files each, in one copy of the product, and runs the suite there, to find out of each
test that fails which fault it is (`together.py`); faults that `--suite` has not found are fuzzed together. Without it each fault is planted
in a copy of its own: `--suite` runs the tests there up to the first that fails, those nearest to the fault first; `--fuzz` runs `tilewright
fuzz`, half the time on graphs, half on kernels, up to the first finding. Fault 00 is none at all: nothing may be found. Times are of the
processor. Records are added to FILE, so that what was found before something was mended stays beside what is found now.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.mutation import together
from tests.mutation.faults import Fault, planted_faults
from tests.mutation.product import Product, copied
from tests.mutation.records import Record, read_records, said, write_records
from tests.mutation.together import FIRST_SEED, LEFT_OUT, nearness

CONTROL = Fault("00-none", "No fault.", "", ())


def look_by_suite(fault: Fault, product: Product, limit: float, first: Sequence[Path] = ()) -> Record:
    """The first test that fails: of the files `first`, of those next to the fault, then of all others."""
    found = (path.relative_to(product.root / "tests") for path in (product.root / "tests").rglob("test_*.py"))
    tests = sorted((test for test in found if test.parts[0] not in LEFT_OUT), key=lambda test: (nearness(test, fault.path), test))
    chosen = [test for test in first if test in tests]
    tests = [test for test in tests if test not in chosen]
    near = [test for test in tests if nearness(test, fault.path)[:2] < (True, 0)]
    before = product.used
    for part in (chosen, near, [test for test in tests if test not in near]):
        if not part:
            continue
        command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(str(Path("tests") / test) for test in part)]
        code, output = product.run(command, limit - (product.used - before))
        if code != 0:
            return Record(fault.name, "suite", failed_test(code, output), product.used - before, complete=code is not None)
    return Record(fault.name, "suite", None, product.used - before)


def failed_test(code: int | None, output: str) -> str | None:
    """The name of the test that failed, or in which the process ended."""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if failed is not None:
        return failed[1].removeprefix("tests/")
    if code is None:
        return None
    crashed = re.findall(r'File ".*?tests/([^"]+)", line \d+ in (test_\w+)', output)
    return f"{crashed[0][0]}::{crashed[0][1]} (crash)" if crashed else f"exit code {code}: {output[-300:]}"


def look_by_fuzzing(fault: Fault, product: Product, seconds: float) -> Record:
    """The fuzzer's first finding: in random graphs, then in changed passes and schedules."""
    cases, before = 0, product.used
    for mode in ("graphs", "kernels"):
        options = ["--seconds", str(seconds / 2), "--most", "1", "--minimise", "0", "--mode", mode, "--seed", str(FIRST_SEED), "--json"]
        _, output = product.run(["-m", "tilewright.cli", "fuzz", *options], seconds + 300)
        report: dict[str, Any] = json.loads(output[output.index("{") :])
        cases += report["cases"]
        if report["faults"]:
            (found,) = report["faults"]
            text = f"{mode}, {found['kind']}: {found['text']}"
            return Record(fault.name, "fuzz", text[:200], product.used - before, cases)
    return Record(fault.name, "fuzz", None, product.used - before, cases)


def look(fault: Fault, suite: bool, fuzz: float, limit: float, first: Sequence[Path] = ()) -> Iterator[Record]:
    """All that was asked for, of one fault. Raises RuntimeError where the compiler with it does not even compile a simple model."""
    with copied() as product:
        product.plant([fault])
        compiles, output = product.compiles()
        if not compiles:
            raise RuntimeError(f"{fault.name} breaks every model: {output[-500:]}")
        if suite:
            yield look_by_suite(fault, product, limit, first)
        if fuzz:
            yield look_by_fuzzing(fault, product, fuzz)


def look_together(faults: Sequence[Fault], suite: bool, fuzz: float, limit: float, first: Sequence[Path], most: int) -> Iterator[Record]:
    """All that was asked for, of faults in groups. What the suite has not found goes to the fuzzer, all of it at once."""
    left = [*faults]
    for group in together.groups(faults, most) if suite else []:
        with copied() as product:
            for record in together.look_by_suite(product, group, limit, first):
                left = [fault for fault in left if record.found is None or fault.name != record.fault]
                yield record
    if fuzz and left:
        with copied() as product:
            yield from together.look_by_fuzzing(product, left, fuzz)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description="What finds the planted faults.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NN", help="this fault (repeatable; NN-MM: these); otherwise all of them, and none"
    )
    parser.add_argument("--suite", action="store_true", help="run the tests")
    parser.add_argument("--together", type=int, nargs="?", const=25, default=0, metavar="N", help="plant up to N faults in one copy")
    parser.add_argument("--first", action="append", default=[], metavar="TEST.py", help="begin with this file of tests (repeatable)")
    parser.add_argument("--limit", type=float, default=7200.0, metavar="SECONDS", help="for the tests, of each fault or group")
    parser.add_argument("--fuzz", type=float, default=0.0, metavar="SECONDS", help="fuzz for so long")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where records are added")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore interrupts, which tests send
    chosen = [fault for fault in (CONTROL, *planted_faults()) if not options.only or any(_covers(only, fault) for only in options.only)]
    first = [Path(name).relative_to("tests") for name in options.first]
    if options.together:
        found = look_together(chosen, options.suite, options.fuzz, options.limit, first, options.together)
    else:
        found = (record for fault in chosen for record in look(fault, options.suite, options.fuzz, options.limit, first))
    for record in found:
        print(f"{record.fault}: {record.by}: {said(record)}", flush=True)
        if options.out is not None:
            write_records(options.out, [*read_records(options.out), record])


def _covers(only: str, fault: Fault) -> bool:
    """Whether a number, or a range of them, is about the fault."""
    first, _, last = only.partition("-")
    return int(first) <= int(fault.number) <= int(last or first)


if __name__ == "__main__":
    main()
