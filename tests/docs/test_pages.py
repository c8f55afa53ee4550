"""The documentation is complete and up to date."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tilewright.support.errors import TilewrightError, error_classes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "templates" not in page.parts]  # templates become pages
COMMANDS = ("bench", "check", "compare", "compile", "demo", "doctor", "fuzz", "inspect", "profile", "run", "zoo")


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _sections(page: Path) -> dict[str, str]:
    """Anchor of each second-level heading -> its text."""
    parts = re.split(r"^## (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {title.lower().replace(" ", "-"): body for title, body in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_has_its_section_with_its_exit_code(cls: type[TilewrightError]) -> None:
    section = _sections(DOCS / "errors.md").get(cls.anchor())
    assert section is not None, f"docs/errors.md has no section for {cls.docs()}"
    assert f"Exit code: {cls.exit_code}." in section


def test_the_errors_page_has_no_section_of_a_class_that_is_gone() -> None:
    assert set(_sections(DOCS / "errors.md")) == {cls.anchor() for cls in error_classes()}


def test_every_command_has_a_page_that_the_index_and_navigation_name() -> None:
    assert {page.stem for page in (DOCS / "commands").glob("*.md")} == set(COMMANDS)
    index, navigation = (DOCS / "index.md").read_text("utf-8"), (ROOT / "mkdocs.yml").read_text("utf-8")
    for command in COMMANDS:
        assert f"](commands/{command}.md)" in index
        assert f"commands/{command}.md" in navigation


def test_every_page_is_in_the_navigation_and_every_decision_in_its_list() -> None:
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES]
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page for page in pages if page not in navigation] == []
    listed = (DOCS / "decisions" / "README.md").read_text("utf-8")
    assert [page.name for page in (DOCS / "decisions").glob("*-*.md") if f"({page.name})" not in listed] == []


def test_the_artifact_page_explains_every_field_of_the_manifest() -> None:
    text = (DOCS / "artifact.md").read_text("utf-8")
    printed = set(re.findall(r"'(\w+)'", text[text.index("['checks'") :].splitlines()[0]))  # compared with a real manifest by test_snippets
    explained = {
        name
        for row in re.findall(r"^\| (`.+?) \|", _sections(DOCS / "artifact.md")["manifest"], flags=re.MULTILINE)
        for name in row.split(", ")
    }
    assert {name.strip("`") for name in explained} == printed


def _links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path)
        assert target.exists(), f"{link} in {page.name}"
        if anchor:
            assert anchor in _sections(target), f"{link} in {page.name}"


def test_the_readme_leads_with_the_two_commands() -> None:
    commands = re.findall(r"^\$ (.+)$", (ROOT / "README.md").read_text("utf-8"), flags=re.MULTILINE)
    assert commands[0] == "pip install . && tilewright demo"
    assert commands[1] == 'pip install -e ".[test]" && pytest -n 2 -q'


def test_the_version_is_the_same_everywhere() -> None:
    import tilewright

    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"] == tilewright.__version__
