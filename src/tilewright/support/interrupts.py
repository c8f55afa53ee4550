"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside of callbacks from C (a weak reference dies, an object is
finalised, some look-ups in dictionaries) it is dropped, and work would go on. So the command line notes each interrupt, and long work
looks at the note between two of its units.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_noted = threading.Event()


def note_interrupts() -> None:
    """From now on SIGINT is noted, and raised as always; where it is ignored (jobs in the background) it stays so. Call it in the main
    thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def check_interrupt() -> None:
    """Raise KeyboardInterrupt when there was one, in the main thread; does nothing in others, and where nobody notes."""
    if _noted.is_set() and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    _noted.set()
    raise KeyboardInterrupt
