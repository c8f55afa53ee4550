"""The bundle that a fault of ours leaves: what somebody else needs to see it again."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import tilewright

PACKAGES = ("llvmlite", "numpy", "onnx", "ml_dtypes", "typer", "rich", "onnxruntime", "openvino")


def write_bundle(error: BaseException, options: Mapping[str, Any]) -> Path | None:
    """Write a folder with command line, options, traceback, versions, settings, and the graph of the model without its weights; its path.
    None when no folder can be written."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"tilewright-{datetime.now():%Y%m%d-%H%M%S}-"))
        (folder / "report.json").write_text(json.dumps(report(error, options), indent=2, default=str), encoding="utf-8")
        (folder / "traceback.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return None
    with suppress(Exception):  # whatever it was that failed may well fail here again
        (folder / "graph.txt").write_text(graph_text(str(options["model"])), encoding="utf-8")
    return folder


def report(error: BaseException, options: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a fault as plain data."""
    from tilewright.support.settings import current_settings, settings_table

    settings = {}
    with suppress(Exception):
        current = current_settings()
        settings = {row.name: getattr(current, row.name) for row in settings_table()}
    return {
        "error": f"{type(error).__name__}: {error}",
        "command": sys.argv,
        "options": dict(options),
        "folder": str(Path.cwd()),
        "versions": versions(),
        "settings": settings,
    }


def versions() -> dict[str, str]:
    """Versions of everything that takes part; packages that are not installed are left out."""
    found = {"tilewright": tilewright.__version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def graph_text(model: str) -> str:
    """The model as imported; large constants by their digest only."""
    from tilewright.frontend.onnx.importer import import_model
    from tilewright.frontend.onnx.loader import load_model
    from tilewright.graph.text import format_module

    return format_module(import_model(load_model(model)).module, origins=True)
