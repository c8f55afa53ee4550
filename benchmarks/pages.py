"""Tables that a benchmark writes into a page of the docs, between two marks."""

from __future__ import annotations

from pathlib import Path


def write_between_marks(page: Path, name: str, text: str) -> None:
    """Put `text`, whole lines, between the comments `name` and `end of name` of the page; a page that does not exist yet is made."""
    mark, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = page.read_text(encoding="utf-8") if page.exists() else f"{mark}\n{end}\n"
    page.write_text(f"{old.partition(mark)[0]}{mark}\n{text}{end}{old.partition(end)[2]}", encoding="utf-8")
