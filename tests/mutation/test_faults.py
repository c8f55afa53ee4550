"""The planted faults still fit the product. What finds them is a long run: `python -m tests.mutation.run`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mutation.faults import FOLDER, ROUNDS, SOURCE, Fault, planted_faults, read_fault

ROOT = Path(__file__).parents[2]
FAULTS = planted_faults()


def test_faults_are_numbered_from_one():
    assert [fault.number for fault in FAULTS] == [f"{number:02}" for number in range(1, len(FAULTS) + 1)]


def test_every_round_is_complete():
    assert [fault.round for fault in FAULTS] == [i for i, numbers in enumerate(ROUNDS, 1) for _ in numbers]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_applies(fault: Fault):
    """To a file that exists, which stays Python and changes."""
    assert len(fault.description) > 40
    assert fault.path.startswith(SOURCE)
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    planted = fault.planted(text)
    assert planted != text
    compile(planted, fault.path, "exec")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_patches_are_what_git_takes(tmp_path: Path):
    """Where the file is as it was when the fault was planted, git makes the same of it."""
    fault = FAULTS[0]
    file = tmp_path / fault.path
    file.parent.mkdir(parents=True)
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "apply", str(FOLDER / f"{fault.name}.patch")], cwd=tmp_path, check=True)
    assert file.read_text(encoding="utf-8") == fault.planted(text)


def test_a_patch_that_does_not_fit_says_where(tmp_path: Path):
    path = tmp_path / "01-x.patch"
    path.write_text("Something is wrong.\n\n--- a/src/a.py\n+++ b/src/a.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n")
    fault = read_fault(path)
    assert (fault.description, fault.path, fault.planted("x\na\nb\n")) == ("Something is wrong.", "src/a.py", "x\na\nc\n")
    for text in ("a\n", "a\nb\na\nb\n"):
        with pytest.raises(ValueError, match=r"01-x: this stands in src/a\.py"):
            fault.planted(text)
