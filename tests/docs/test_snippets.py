"""What the README and the documentation tell readers to type works and prints what they say; `docs/snippets.py` has the markers."""

from pathlib import Path

import pytest
from docs.snippets import ROOT, Snippet, commands_of, pages, program_at, refreshed, run_page, run_program, snippets_of

PROGRAM = "```python\nx = 2\nprint(x)\n```\n\n<!-- output -->\n```text\n{first}\n```\n\n<!-- continues -->\n```python\nprint(x + 1)\n```\n"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    for output in run_page(page.read_text("utf-8"), tmp_path):
        assert output.current, f"`python docs/generate.py` brings the page up to date; printed was\n{output.printed}"


def test_fences_markers_and_commands_are_found() -> None:
    python = "<!-- no-run: slow -->\n```python\nx = 1\n```\n"
    console = "```console\n$ tilewright a 'b c'  # why\nout\n$ pip x\n```\n"
    text = f"# title\n\n{python}\n{console}```text\nt\n```\n"
    found = snippets_of(text)
    assert found == [
        Snippet("no-run: slow", "python", "x = 1\n", text.index("x = 1")),
        Snippet("", "console", "$ tilewright a 'b c'  # why\nout\n$ pip x\n", text.index("$ tilewright")),
        Snippet("", "text", "t\n", text.index("t\n```\n", text.index("```text"))),
    ]
    assert commands_of(found[1].code) == [["a", "b c"]]


def test_blocks_that_continue_are_one_program(tmp_path: Path) -> None:
    blocks = program_at(snippets_of(PROGRAM), 0)
    assert blocks == ["x = 2\nprint(x)\n", "print(x + 1)\n"]
    assert run_program(blocks, tmp_path) == ["2\n", "3\n"]


def test_outputs_are_compared_and_refreshed(tmp_path: Path) -> None:
    assert [output.current for output in run_page(PROGRAM.format(first=2), tmp_path)] == [True]
    assert [output.current for output in run_page(PROGRAM.format(first=7), tmp_path)] == [False]
    assert refreshed(PROGRAM.format(first=7), tmp_path) == PROGRAM.format(first=2)
    other = PROGRAM.format(first=7).replace("output", "output: LLVM 1")
    assert refreshed(other, tmp_path) == other


def test_a_program_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        list(run_page("```python\n1 / 0\n```\n", tmp_path))
    with pytest.raises(AssertionError, match="no-such-command"):
        list(run_page("```console\n$ tilewright no-such-command\n```\n", tmp_path))


def test_there_are_pages_to_run() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in pages()}
    assert {"README.md", "docs/index.md", "docs/architecture.md", "docs/schedules.md", "docs/kernels.md", "docs/errors.md"} <= names
