"""The command line. Nothing is imported before a command needs it."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from tilewright.support.interrupts import note_interrupts

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
AGAIN_S = 0.01


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    note_interrupts()
    sys.unraisablehook = _interrupt_again
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where an encoding lacks the digits' shades, better a question mark than no answer
    try:
        from tilewright.cli.app import app

        app(prog_name="tilewright")
        code: object = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as end:
        code = end.code
    if code == INTERRUPTED:  # here, whoever caught the interrupt: a command, the parser of its options, or nobody
        sys.stderr.write("interrupted\n")
    sys.exit(code)  # type: ignore[arg-type]  # as Python says it: an int, a text or None


def _interrupt_again(lost: UnraisableHookArgs) -> None:
    """Ctrl-C in the middle of a callback from C (a weak reference dies, an object is finalised) would be reported and forgotten."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    import _thread
    from threading import Timer

    timer = Timer(AGAIN_S, _thread.interrupt_main)
    timer.daemon = True
    timer.start()
