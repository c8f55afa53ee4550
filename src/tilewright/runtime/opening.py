"""Artifacts to what runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from tilewright.runtime import artifact as files
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.executable import Executable
from tilewright.runtime.program import Program

Runnable: TypeAlias = Executable | Program


def open_artifact(artifact: Artifact, threads: int | None = None, max_memory: int | str | None = None) -> Runnable:
    """What runs an artifact: a Program where values are more than tensors of numbers. Raises ArtifactError when its code does not fit this
    machine, SettingsError for threads or a limit that are none."""
    kind = Program if "program" in artifact.manifest else Executable
    return kind(artifact, threads, max_memory)


def load(path: str | Path, threads: int | None = None, verify: bool = False, max_memory: int | str | None = None) -> Runnable:
    """Load an artifact. verify: check the hash of the weights too. max_memory: bytes that one inference may need, or `"2GB"`, by
    default what the machine has; past it a call raises a MemoryLimitError. Raises ArtifactError when the file is damaged or its code does
    not fit this machine, SettingsError for threads or a limit that are none."""
    return open_artifact(files.load(path, verify), threads, max_memory)
