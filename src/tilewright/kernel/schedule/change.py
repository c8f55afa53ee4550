"""What a primitive gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.kernel.nodes import Kernel

if TYPE_CHECKING:
    from tilewright.kernel.schedule.layout import PackedLayout


@dataclass(frozen=True, slots=True)
class Change:
    """The new kernel, the names of new loops and blocks, and how an input must be repacked, if it must."""

    kernel: Kernel
    results: tuple[str, ...] = ()
    layout: PackedLayout | None = None
