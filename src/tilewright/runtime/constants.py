"""Numbers that generated code and the runtime agree on."""

from __future__ import annotations

ALIGNMENT = 64  # bytes; of every buffer that the plan places, and of each constant in an artifact
OUT_OF_MEMORY = -1  # answer of an entry function that could not allocate
SHOWN = 4  # values of a failed check that an entry function reports
FORMAT = 1  # version of the artifact format
