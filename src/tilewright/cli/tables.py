"""Tables and numbers for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> Table:
    """A table; `right` are the numbers of the columns that hold figures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for i, title in enumerate(head):
        made.add_column(title, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    return made


def facts(rows: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one pair a line."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, str(value))
    return made


def size_text(count: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def count_text(count: float) -> str:
    """A large number and its SI prefix, to be followed by a unit: `4.09 G`, `32 `."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 1000 or prefix == "T":
            return f"{count:.0f} " if not prefix else f"{count:.3g} {prefix}"
        count /= 1000
    raise AssertionError


def time_text(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
