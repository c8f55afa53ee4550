"""Faults of different files planted in one copy, so that the suite runs once for all of them.

The suite goes on from test to test, those nearest to one of the faults first. At the first that fails, the faults that make it fail alone
are looked for: the nearest, then halves of the others. They are found, and leave the copy before the suite goes on, so that a fault that
breaks much hides nothing. What a test passes, it passes with all faults that are still there. The fuzzer likewise: the case that it found
is run with fewer faults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.mutation.faults import SOURCE, Fault
from tests.mutation.journal import ONE_TEST, VARIABLE, note, read_journal
from tests.mutation.product import ROOT, Product
from tests.mutation.records import Record

LATE = ("docs", "benchmarks", "onnx_backend", "hostile", "fuzzing")  # folders of tests that are slow, or far from every fault
LEFT_OUT = ("mutation",)  # tests of this
FIRST_SEED = 1_000_000  # of fuzzing; no test uses the cases from there on
TURN = 150.0  # seconds by the clock that a turn of the fuzzer takes at most
OPTIONS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.journal")

Fails = Callable[[Sequence[Fault]], bool]


def groups(faults: Sequence[Fault], most: int) -> list[list[Fault]]:
    """The faults in as few groups of at most `most` as it takes, no two of one file in a group."""
    found: list[list[Fault]] = []
    for fault in faults:
        fitting = (group for group in found if len(group) < most and all(other.path != fault.path for other in group))
        group = next(fitting, None)
        if group is None:
            found.append([fault])
        else:
            group.append(fault)
    return found


def nearness(test: Path, path: str) -> tuple[bool, int, bool, int]:
    """Sorts tests, paths from `tests/` on, beside a fault in the file `path`: the file's own, by the folders that they share, late ones
    last, those in folders of their own after others."""
    folders = Path(path.removeprefix(SOURCE)).parts[:-1]
    shared = next((n for n, (a, b) in enumerate(zip(folders, test.parts[:-1])) if a != b), min(len(folders), len(test.parts) - 1))
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    own = bool(module) and f"from {module} import" in (ROOT / "tests" / test).read_text(encoding="utf-8")
    return not own, -shared, test.parts[0] in LATE, len(test.parts)


def nearness_of(test: str, fault: Fault) -> tuple[bool, int, bool, int]:
    """The same of a test by its whole name, from the root of the product on."""
    return nearness(Path(test.partition("::")[0]).relative_to("tests"), fault.path)


def in_order(tests: Sequence[Path], faults: Sequence[Fault], first: Sequence[Path] = ()) -> list[Path]:
    """Tests: those of `first`, then the nearest to one of the faults, late ones last."""
    near = sorted(tests, key=lambda test: (test.parts[0] in LATE, min(nearness(test, fault.path) for fault in faults), test))
    return [*(test for test in first if test in near), *(test for test in near if test not in first)]


def culprits(faults: Sequence[Fault], fails: Fails) -> list[Fault]:
    """Those of the faults, the likeliest first, with which alone `fails` holds, so that it does not hold with all others together, unless
    that takes several of them."""
    found = [fault for fault in faults[:1] if fails([fault])]
    rest = [*faults[1:]]
    while rest and fails(rest):
        one = _single(rest, fails)
        if one is None:
            break
        found.append(one)
        rest.remove(one)
    return found


def _single(faults: Sequence[Fault], fails: Fails) -> Fault | None:
    """One of the faults, with all of which `fails` holds, with which alone it does; None where halving finds none."""
    seen = True
    while len(faults) > 1:
        half = faults[: len(faults) // 2]
        seen = fails(half)
        faults = half if seen else faults[len(half) :]
    return faults[0] if seen or fails(faults) else None


def look_by_suite(product: Product, faults: Sequence[Fault], limit: float, first: Sequence[Path] = ()) -> Iterator[Record]:
    """What the suite says of faults that are planted together. limit: seconds of processor time; first: files of tests to begin with."""
    active = [*faults]
    product.plant(active)
    if not product.compiles()[0]:
        for fault in culprits(active, partial(_breaks, product)):
            active.remove(fault)
            yield Record(fault.name, "suite", "a simple model", product.used)
    journal = product.root.parent / "journal"
    tests = (path.relative_to(product.root / "tests") for path in (product.root / "tests").rglob("test_*.py"))
    order = in_order([test for test in tests if test.parts[0] not in LEFT_OUT], faults, first)
    skipped: list[str] = []
    while active and product.used < limit:
        product.plant(active)
        given = [str(Path("tests") / test) for test in order]
        code, output = product.run([*OPTIONS, "-x", *given], limit - product.used, {VARIABLE: str(journal)})
        test = _ended_by(journal, skipped)
        if code is None and product.used >= limit:
            break
        if test is None:
            if code not in (0, 5):
                raise RuntimeError(f"the suite ended with {code} and no test that failed: {output[-500:]}")
            break
        skipped.append(test)
        note(journal, "failed", test)
        file = Path(test.partition("::")[0]).relative_to("tests")
        if "::" in test:
            order = order[order.index(file) :]  # tests run in this order: those of files before it are done
        else:
            order.remove(file)
        if _fails(product, test, []):
            print(f"{test} fails without any fault", flush=True)
            continue
        ordered = sorted(active, key=partial(nearness_of, test))
        found = culprits(ordered, partial(_fails, product, test))
        for fault in found:
            active.remove(fault)
            yield Record(fault.name, "suite", test.removeprefix("tests/"), product.used)
        if not found:
            print(f"{test} fails with several faults only:\n{output[-1500:]}", flush=True)
    for fault in active:
        yield Record(fault.name, "suite", None, product.used, complete=product.used < limit)


def _breaks(product: Product, faults: Sequence[Fault]) -> bool:
    """Whether not even a simple model is compiled right with these faults."""
    product.plant(faults)
    return not product.compiles()[0]


def _ended_by(journal: Path, known: Sequence[str]) -> str | None:
    """The test at which a run ended: one that failed, or that never came to its end."""
    said = read_journal(journal)
    return next((name for name, what in said.items() if what in ("failed", "start") and name not in known), None)


def _fails(product: Product, test: str, faults: Sequence[Fault]) -> bool:
    """Whether a test, or the collection of a file of tests, fails with these faults."""
    product.plant(faults)
    code, _ = product.run([*OPTIONS, "-x", *([] if "::" in test else ["--collect-only"]), test], ONE_TEST)
    return code != 0


def look_by_fuzzing(product: Product, faults: Sequence[Fault], seconds: float) -> Iterator[Record]:
    """What the fuzzer finds of faults that are planted together, in so many seconds of processor time: in random graphs half of them, then
    in changed passes and schedules."""
    active, cases, spent = [*faults], 0, 0.0
    for number, mode in enumerate(("graphs", "kernels"), 1):
        turn, end = 0, seconds * number / 2
        while active and spent < end:
            product.plant(active)
            seed = FIRST_SEED + 100_000 * turn
            turn += 1
            before = product.used
            options = ["--seconds", str(min(TURN, end - spent)), "--most", "1", "--minimise", "0", "--mode", mode, "--seed", str(seed)]
            _, output = product.run(["-m", "tilewright.cli", "fuzz", *options, "--json"], 20 * TURN)
            spent += product.used - before  # looking for which fault it is costs nothing
            report = json.loads(output[output.index("{") :])
            cases += report["cases"]
            for fault in report["faults"]:
                case = product.root / (fault["folder"] or "") / "case.zip"
                said = f"{mode}, {fault['kind']}: {fault['text']}"[:200]
                found = culprits(active, partial(_fails_at, product, case)) if fault["folder"] else []
                for culprit in found:
                    active.remove(culprit)
                    yield Record(culprit.name, "fuzz", said, spent, cases)
                if not found:
                    print(f"fuzzing: {said}: not of one fault alone", flush=True)
    for fault in active:
        yield Record(fault.name, "fuzz", None, seconds, cases)


def _fails_at(product: Product, case: Path, faults: Sequence[Fault]) -> bool:
    product.plant(faults)
    code, _ = product.run(["-m", "tilewright.cli", "fuzz", "--replay", str(case)], ONE_TEST)
    return code != 0
