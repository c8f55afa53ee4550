"""Running what the README and the documentation tell readers to type.

In every page, in order and in one temporary folder per page: each fenced `python` block runs as a program of its own, and each line
`$ tilewright ...` of a fenced `console` block runs as a command. A marker on the line before a fence changes that:

    <!-- no-run: reason -->    the fence is not run
    <!-- continues -->         the Python block belongs to the program of the one before it on the page
    <!-- exit: 4 -->           the commands of the fence end with this exit code
    <!-- output -->            the fence (of any language) is exactly what the fence before it printed
    <!-- output: LLVM 22 -->   so with this version of LLVM; with another one it is not looked at

`python docs/generate.py` writes the outputs into the pages; `tests/docs/test_snippets.py` says which are out of date.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300
FENCE = re.compile(r"^(?:<!-- (?P<marker>[^\n]*?) -->\n+)?```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
RUNNABLE = ("python", "console")
BETWEEN = "\x1e"  # printed between the blocks of one program


@dataclass(frozen=True)
class Snippet:
    """A fence: its marker, its language and what is in it; `start` is where its code begins in the page's text."""

    marker: str
    language: str
    code: str
    start: int = -1


@dataclass(frozen=True)
class Output:
    """A fence that shows an output, and what was really printed."""

    snippet: Snippet
    printed: str

    @property
    def current(self) -> bool:
        return self.snippet.code.rstrip() == self.printed.rstrip()


def snippets_of(text: str) -> list[Snippet]:
    return [Snippet(match["marker"] or "", match["language"], match["code"], match.start("code")) for match in FENCE.finditer(text)]


def commands_of(code: str) -> list[list[str]]:
    """Arguments of each `$ tilewright` line, with comments dropped."""
    return [shlex.split(line, comments=True)[2:] for line in code.splitlines() if line.startswith("$ tilewright ")]


def pages() -> list[Path]:
    """The pages with something to run."""
    docs = (path for path in (ROOT / "docs").rglob("*.md") if "templates" not in path.parts)
    return sorted(path for path in (ROOT / "README.md", *docs) if any(s.language in RUNNABLE for s in snippets_of(path.read_text("utf-8"))))


def run_page(text: str, folder: Path) -> Iterator[Output]:
    """Run everything on a page in `folder`; gives each output fence with what was printed. AssertionError for what does not work."""
    snippets = snippets_of(text)
    printed = ""
    blocks: list[str] = []  # what is still to come of the outputs of a program's blocks
    for position, snippet in enumerate(snippets):
        kind, _, argument = snippet.marker.partition(": ")
        if kind == "no-run":
            assert argument, "a reason must follow no-run"
        elif kind == "output":
            if not argument or argument == llvm_version():
                yield Output(snippet, printed)
        elif snippet.language == "python":
            if kind != "continues":
                assert not blocks
                blocks = run_program(program_at(snippets, position), folder)
            printed = blocks.pop(0)
        elif snippet.language == "console":
            wanted = int(argument) if kind == "exit" else 0
            for command in commands_of(snippet.code):
                done = run(["-m", "tilewright.cli", *command], folder)
                assert done.returncode == wanted, f"tilewright {shlex.join(command)}\n{done.stdout}\n{done.stderr}"
                printed = done.stdout


def program_at(snippets: Sequence[Snippet], position: int) -> list[str]:
    """The blocks of the program that begins at a position."""
    rest = [s for s in snippets[position + 1 :] if s.language == "python" and s.marker.partition(":")[0] not in ("no-run", "output")]
    follow = next((i for i, s in enumerate(rest) if s.marker != "continues"), len(rest))
    return [snippets[position].code, *(s.code for s in rest[:follow])]


def run_program(blocks: Sequence[str], folder: Path) -> list[str]:
    """What each block printed. The program is a file, since kernels are read from the source of their functions."""
    source = folder / "snippet.py"
    source.write_text(f"\nprint({BETWEEN!r}, flush=True)\n".join(blocks), encoding="utf-8")
    done = run([str(source)], folder)
    assert done.returncode == 0, f"{source.read_text('utf-8')}\n{done.stdout}\n{done.stderr}"
    return done.stdout.split(f"{BETWEEN}\n")


def run(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        # measurements of the machine at hand must not show in the pages
        env=os.environ | {"COLUMNS": "120", "PYTHONIOENCODING": "utf-8", "TILEWRIGHT_CONFIG_DIR": str(folder / "config")},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )


def llvm_version() -> str:
    """`LLVM 22`"""
    import llvmlite.binding as llvm

    return f"LLVM {llvm.llvm_version_info[0]}"


def refreshed(text: str, folder: Path) -> str:
    """The page with its outputs as they are now."""
    stale = [output for output in run_page(text, folder) if not output.current]
    for output in reversed(stale):
        start = output.snippet.start
        text = text[:start] + output.printed.rstrip() + "\n" + text[start + len(output.snippet.code) :]
    return text
