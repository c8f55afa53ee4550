"""What the README and the documentation tell readers to type works.

In every page, in order and in one temporary folder per page: each fenced `python` block runs as a program of its own, and each line
`$ tilewright ...` of a fenced `console` block runs as a command. A marker on the line before a fence changes that:

    <!-- no-run: reason -->   the fence is not run
    <!-- continues -->        the Python block continues the one before it on the page
    <!-- exit: 4 -->          the commands of the fence end with this exit code
    <!-- output -->           the fence (of any language) is exactly what the fence before it printed
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
FENCE = re.compile(r"^(?:<!-- (?P<marker>[^\n]*?) -->\n+)?```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
RUNNABLE = ("python", "console")


@dataclass(frozen=True)
class Snippet:
    marker: str
    language: str
    code: str


def snippets_of(text: str) -> list[Snippet]:
    return [Snippet(match["marker"] or "", match["language"], match["code"]) for match in FENCE.finditer(text)]


def commands_of(code: str) -> list[list[str]]:
    """Arguments of each `$ tilewright` line, with comments dropped."""
    return [shlex.split(line, comments=True)[2:] for line in code.splitlines() if line.startswith("$ tilewright ")]


def pages() -> list[Path]:
    docs = (path for path in (ROOT / "docs").rglob("*.md") if "templates" not in path.parts)
    return sorted(path for path in (ROOT / "README.md", *docs) if any(s.language in RUNNABLE for s in snippets_of(path.read_text("utf-8"))))


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    before, printed = "", ""
    for snippet in snippets_of(page.read_text("utf-8")):
        if snippet.marker.startswith("no-run:"):
            assert len(snippet.marker) > len("no-run: "), "a reason must follow"
        elif snippet.marker == "output":
            assert printed.strip() == snippet.code.strip()
        elif snippet.language == "python":
            before = before + snippet.code if snippet.marker == "continues" else snippet.code
            done = run(["-c", before], tmp_path)
            assert done.returncode == 0, f"{snippet.code}\n{done.stdout}\n{done.stderr}"
            printed = done.stdout
        elif snippet.language == "console":
            wanted = int(snippet.marker.removeprefix("exit: ")) if snippet.marker.startswith("exit: ") else 0
            for command in commands_of(snippet.code):
                done = run(["-m", "tilewright.cli", *command], tmp_path)
                assert done.returncode == wanted, f"tilewright {shlex.join(command)}\n{done.stdout}\n{done.stderr}"
                printed = done.stdout


def test_fences_markers_and_commands_are_found() -> None:
    python = "<!-- no-run: slow -->\n```python\nx = 1\n```\n"
    console = "```console\n$ tilewright a 'b c'  # why\nout\n$ pip x\n```\n"
    text = f"# title\n\n{python}\n{console}```text\nt\n```\n"
    assert snippets_of(text) == [
        Snippet("no-run: slow", "python", "x = 1\n"),
        Snippet("", "console", "$ tilewright a 'b c'  # why\nout\n$ pip x\n"),
        Snippet("", "text", "t\n"),
    ]
    assert commands_of(snippets_of(text)[1].code) == [["a", "b c"]]


def test_there_are_pages_to_run() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in pages()}
    assert {"README.md", "docs/index.md", "docs/errors.md", "docs/commands/check.md"} <= names
