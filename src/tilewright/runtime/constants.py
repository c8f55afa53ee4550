"""Numbers that generated code and the runtime agree on."""

from __future__ import annotations

ALIGNMENT = 64  # bytes; of every buffer that the plan places, and of each constant in an artifact
