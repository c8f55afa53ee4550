"""Which lines of the compiler run for the first time: the feedback of coverage-guided fuzzing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tilewright

ROOT = Path(tilewright.__file__).parent
FOLDERS = ("transform", "kernel/schedule", "kernel/lower", "target/cpu")


class Lines:
    """Lines of files below some folders that have run. A function whose lines have all been seen costs nothing any more."""

    def __init__(self, folders: Sequence[str] = FOLDERS) -> None:
        self.prefixes = tuple(str(ROOT / folder) for folder in folders)
        self.seen: set[tuple[str, int]] = set()
        self.left: dict[CodeType, set[int]] = {}

    @contextmanager
    def watching(self) -> Iterator[set[str]]:
        """Inside, lines are noted; the set holds those that ran for the first time, as `file:line`."""
        fresh: set[str] = set()

        def entered(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            left = self.left.get(code)
            if left is None:
                inside = code.co_filename.startswith(self.prefixes)
                left = self.left[code] = {line for _, _, line in code.co_lines() if line is not None} if inside else set()
            return ran if left else None

        def ran(frame: FrameType, event: str, argument: Any) -> Any:
            left = self.left[frame.f_code]
            if event == "line" and frame.f_lineno in left:
                left.discard(frame.f_lineno)
                key = (frame.f_code.co_filename, frame.f_lineno)
                if key not in self.seen:
                    self.seen.add(key)
                    fresh.add(f"{Path(key[0]).relative_to(ROOT)}:{key[1]}")
            return ran if left else None

        before = sys.gettrace()
        sys.settrace(entered)
        try:
            yield fresh
        finally:
            sys.settrace(before)
