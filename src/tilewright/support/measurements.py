"""What was measured on this computer and kept: plain data in one JSON file of the user's, by CPU model and number of cores.

`tilewright doctor --measure` writes it, the description of the machine at hand and profiles read it. Nothing writes it unasked.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.support.atomic import atomic_write
from tilewright.support.settings import current_settings

FILE = "measured.json"


def measurements_path() -> Path:
    """The file: in the folder of the setting `config_dir`, else in that of this system's user, such as
    `~/.config/tilewright/measured.json`."""
    folder = current_settings().config_dir
    if folder is None:
        from platformdirs import user_config_path

        folder = user_config_path("tilewright", appauthor=False)
    return folder / FILE


def cpu_model(root: Path = Path("/")) -> str:
    """The name by which the vendor sells the CPU, for people and as a key; never used to decide anything."""
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware")))
    return next(filter(None, names), "") or platform.processor() or platform.machine()


def measured(model: str, cores: int, path: Path | None = None) -> Mapping[str, Any] | None:
    """What was kept for a CPU model and so many usable cores, or None; a file that cannot be read counts as absent."""
    found = _read(path or measurements_path()).get(_key(model, cores))
    return found if isinstance(found, dict) else None


def keep_measured(model: str, cores: int, figures: Mapping[str, Any], path: Path | None = None) -> Path:
    """Keep figures in place of older ones; the path of the file. Raises OSError where it cannot be written."""
    path = path or measurements_path()
    entries = {**_read(path), _key(model, cores): dict(figures)}
    with atomic_write(path, durable=False) as file:
        file.write(json.dumps(entries, indent=2, sort_keys=True).encode())
    return path


def _key(model: str, cores: int) -> str:
    return f"{model}, {cores} cores"


def _read(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
