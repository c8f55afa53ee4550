"""The command line. Nothing is imported before a command needs it."""

from __future__ import annotations

import io
import sys

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where an encoding lacks the digits' shades, better a question mark than no answer
    try:
        from tilewright.cli.app import app

        app(prog_name="tilewright")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
