"""What a user may say of a symbolic dim. Apart from the front ends, so that naming a range loads none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DimRange:
    """Declared range of a symbolic dim: inclusive `lo`..`hi` and a `multiple` that divides it."""

    lo: int = 0
    hi: int | None = None
    multiple: int = 1
