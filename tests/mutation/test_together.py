"""The harness that looks for planted faults finds what is planted, by the right test, and nothing that is not."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutation import together
from tests.mutation.faults import Fault, planted_faults
from tests.mutation.journal import VARIABLE, read_journal
from tests.mutation.product import ROOT, Product, waited
from tests.mutation.records import Record, summary
from tests.mutation.together import culprits, groups, in_order, look_by_suite


def fault(number: int, path: str = "src/tilewright/a.py", before: str = "", after: str = "") -> Fault:
    return Fault(f"{number:02}-x", "", path, ((before, after),) if before else ())


FAULTS = [fault(n) for n in range(9)]


def test_groups_hold_every_fault_once_and_no_file_twice():
    faults = planted_faults()
    for most in (1, 7, 25):
        found = groups(faults, most)
        assert sorted(f.name for group in found for f in group) == sorted(f.name for f in faults)
        assert all(len(group) <= most and len({f.path for f in group}) == len(group) for group in found)


def test_tests_of_a_faulty_file_come_first_and_late_ones_last():
    tests = [Path("fuzzing/test_process.py"), Path("zoo/test_models.py"), Path("transform/test_fold.py"), Path("plan/test_memory.py")]
    ordered = in_order(tests, [fault(1, "src/tilewright/plan/memory.py")])
    assert ordered[0] == Path("plan/test_memory.py")
    assert ordered[-1].parts[0] == "fuzzing"


@pytest.mark.parametrize("guilty", [[], [0], [4], [8], [0, 1], [3, 7], [2, 5, 6], list(range(9))])
def test_culprits_are_those_that_fail_alone(guilty: list[int]):
    def fails(some: Sequence[Fault]) -> bool:
        return any(FAULTS[n] in some for n in guilty)

    assert sorted(culprits(FAULTS, fails), key=FAULTS.index) == [FAULTS[n] for n in guilty]


def test_what_takes_two_faults_is_nobodys():
    assert culprits(FAULTS, lambda some: FAULTS[1] in some and FAULTS[7] in some) == []
    both = culprits(FAULTS, lambda some: FAULTS[2] in some or (FAULTS[1] in some and FAULTS[7] in some))
    assert both == [FAULTS[2]]


PRODUCT = {
    "src/tilewright/__init__.py": "",
    "src/tilewright/a.py": "def a():\n    return 1\n",
    "src/tilewright/b.py": "def b():\n    return 2\n",
    "src/tilewright/c.py": "def c():\n    return 3\n",
    "tests/__init__.py": "",
    "tests/test_a.py": """
import os
from tilewright.a import a
def test_before():
    pass
def test_a():
    if a() == 9:
        os._exit(3)
""",
    "tests/test_b.py": """
from tilewright.b import b
assert b() != 9
def test_b():
    pass
""",
    "tests/test_c.py": """
from tilewright.c import c
def test_fails_always():
    assert c() == 0
def test_c():
    assert c() == 3
""",
}


def test_a_crash_a_failing_import_and_a_failing_test_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Faults a to c are found by their tests, d by none, and a test that fails without any is no finding."""
    root = tmp_path / "product"
    for name, text in PRODUCT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "tests" / "mutation").mkdir()
    for name in ("__init__.py", "journal.py"):
        (root / "tests" / "mutation" / name).write_text((ROOT / "tests" / "mutation" / name).read_text(encoding="utf-8"))
    monkeypatch.setattr(Product, "compiles", lambda self: (True, ""))
    monkeypatch.setattr(together, "nearness", lambda test, path: (test.stem[-1] != Path(path).stem, 0, False, 0))
    faults = [fault(n, f"src/tilewright/{name}.py", f"return {n}", "return 9") for n, name in enumerate("abc", 1)]
    silent = fault(4, "src/tilewright/__init__.py")
    found = {record.fault: record for record in look_by_suite(Product(root), [*faults, silent], 600.0)}
    names = ["test_a.py::test_a", "test_b.py", "test_c.py::test_c", None]
    assert [found[each.name].found for each in (*faults, silent)] == names
    assert found[silent.name] == Record(silent.name, "suite", None, found[silent.name].seconds)
    assert read_journal(tmp_path / "journal")["tests/test_a.py::test_before"] == "done"


def test_planting_takes_the_other_faults_out(tmp_path: Path):
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "b.py").write_text("b = 1\n")
    product = Product(tmp_path)
    for faults in ([fault(1, "a.py", "a = 1", "a = 2"), fault(2, "b.py", "b = 1", "b = 2")], [fault(2, "b.py", "b = 1", "b = 2")], []):
        product.plant(faults)
        assert (tmp_path / "a.py").read_text() == ("a = 2\n" if len(faults) == 2 else "a = 1\n")
        assert (tmp_path / "b.py").read_text() == ("b = 2\n" if faults else "b = 1\n")


def test_tests_that_are_in_the_journal_are_not_run_again(tmp_path: Path):
    (tmp_path / "test_x.py").write_text("def test_one():\n    assert False\n\ndef test_two():\n    pass\n")
    journal = tmp_path / "journal"
    journal.write_text("start test_x.py::test_one\nfailed test_x.py::test_one\ndone test_x.py::test_one\n")
    assert read_journal(journal) == {"test_x.py::test_one": "failed"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.journal", "--rootdir", str(tmp_path)]
    environment = {VARIABLE: str(journal), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": ""}
    made = subprocess.run([*command, str(tmp_path)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout
    assert read_journal(journal) == {"test_x.py::test_one": "failed", "test_x.py::test_two": "done"}


@pytest.mark.parametrize(
    ("times", "limit", "idle", "ended"), [([9.0], 5.0, 60.0, True), ([0.1], 5.0, 1.0, True), ([1.0], 5.0, 60.0, False)]
)
def test_processor_time_is_what_ends_a_command(times: list[float], limit: float, idle: float, ended: bool):
    """Or that it takes none; a process that has it and time by the clock goes on to its end."""
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({30 if ended else 2})"])
    try:
        code, used = waited(process, limit, lambda pid: times[0], idle)
        assert (code is None) == ended
        assert used == times[0]
    finally:
        process.kill()
        process.wait()


def test_a_summary_says_where_not_all_tests_ran() -> None:
    first = [fault.name for fault in planted_faults() if fault.round == 1]
    records = [Record(name, "suite", f"test_{n}" if n else None, 1.0, complete=n != 0) for n, name in enumerate(first)]
    said = summary([*records, Record(first[0], "suite", "test_new", 1.0)])
    assert "Of the 25 of the first round the suite found 24 as it was (at least: for 1 others not all tests ran)" in said
    assert "mended it is 25" in said
