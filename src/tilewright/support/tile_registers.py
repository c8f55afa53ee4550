"""Leave to use the tile registers of Intel AMX: Linux gives a process eight kilobytes more state for each of its threads when it asks.

https://docs.kernel.org/arch/x86/xstate.html: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`. It holds for all threads and for what
is forked; code that uses the registers without it ends in SIGILL.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

_SYS_ARCH_PRCTL = 158
_REQUEST = 0x1023  # ARCH_REQ_XCOMP_PERM
_TILE_DATA = 18  # XFEATURE_XTILEDATA


@cache
def tile_registers_allowed() -> bool:
    """Asks for the registers, once. False where the system does not give them: old kernels, other systems, sandboxes, signal stacks that
    are too small for the larger state."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    call.restype = ctypes.c_long
    return bool(call(ctypes.c_long(_SYS_ARCH_PRCTL), ctypes.c_long(_REQUEST), ctypes.c_long(_TILE_DATA)) == 0)


def usable(feature: str, present: bool) -> bool:
    """Whether this process may use a feature (LLVM's name) that the processor has or has not."""
    return present and (not feature.startswith("amx-") or tile_registers_allowed())
