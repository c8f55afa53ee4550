"""The planted faults: `faults/NN-name.patch`, each a sentence that says what is wrong, then a unified diff of one file.

They are applied by their text, not by line numbers: each hunk must stand in the file exactly once, wherever it has moved to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "faults"
SOURCE = "src/tilewright/"
# numbers of the faults that were planted together, before any of them was looked for
ROUNDS = (range(1, 26), range(26, 51), range(51, 76), range(76, 101))


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault. path: the file that it is in, from the root of the product; hunks: what stands there, and what the fault makes
    of it."""

    name: str
    description: str
    path: str
    hunks: tuple[tuple[str, str], ...]

    @property
    def number(self) -> str:
        return self.name.partition("-")[0]

    @property
    def round(self) -> int:
        """Counted from 1."""
        return next(i for i, numbers in enumerate(ROUNDS, 1) if int(self.number) in numbers)

    def planted(self, text: str) -> str:
        """The file's text with the fault. Raises ValueError where a hunk does not stand in it exactly once."""
        for before, after in self.hunks:
            if text.count(before) != 1:
                raise ValueError(f"{self.name}: this stands in {self.path} {text.count(before)} times:\n{before}")
            text = text.replace(before, after)
        return text


def read_fault(path: Path) -> Fault:
    """The fault of a patch file."""
    description, _, diff = path.read_text(encoding="utf-8").partition("\n--- a/")
    named, *hunks = diff.split("\n@@ ")
    source, _, target = named.partition("\n+++ b/")
    if source != target or not hunks:
        raise ValueError(f"{path.name} is no diff of one file")
    return Fault(path.stem, " ".join(description.split()), source, tuple(_sides(hunk) for hunk in hunks))


def _sides(hunk: str) -> tuple[str, str]:
    """What a hunk takes away and what it puts there, both with the lines around."""
    lines = hunk.splitlines(keepends=True)[1:]
    sides = ("".join(line[1:] for line in lines if line[0] != mark) for mark in "+-")
    before, after = sides
    return before, after


def planted_faults() -> tuple[Fault, ...]:
    """All of them, by number."""
    return tuple(sorted(map(read_fault, FOLDER.glob("*.patch")), key=lambda fault: int(fault.number)))
