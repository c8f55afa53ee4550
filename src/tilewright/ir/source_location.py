"""Parse errors that show the line they are about."""

from __future__ import annotations

import re

from tilewright.support.errors import ParseError

_POSITION = re.compile(r"line (\d+), column (\d+)")


def show_source(error: ParseError, source: str, file: str = "", first_line: int = 1) -> ParseError:
    """The error of `ir.parser.parse_error` with the line of `source` that it names and a caret below its column.

    `file` and `first_line` say where `source` was cut from: the line shown counts from there.
    """
    match = _POSITION.fullmatch(error.where or "")
    if match is None:
        return error
    line, column = int(match[1]), int(match[2])
    lines = source.splitlines()
    text = lines[line - 1] if line <= len(lines) else ""
    stripped = text.lstrip()
    caret = " " * max(0, column - 1 - (len(text) - len(stripped))) + "^"
    position = f"{file + ', ' if file else ''}line {first_line - 1 + line}, column {column}"
    return ParseError(error.what, where=f"{position}\n{stripped}\n{caret}", why=error.why, hint=error.hint)
