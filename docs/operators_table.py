"""The tables of docs/operators.md, from the importers and what the last full run of the ONNX backend suite found."""

import json
from pathlib import Path
from typing import Any

from tilewright.frontend.onnx.registry import IMPORTERS
from tilewright.runtime.host.table import OPERATORS

SUPPORTED = {**IMPORTERS, **{key: run for key, run in OPERATORS.items() if key[0] != "tilewright"}}  # by compiler or host
SUMMARY = Path(__file__).parents[1] / "tests" / "onnx_backend" / "summary.json"
NAMES = {"": "ai.onnx"}
KIND_NAMES = {
    "node": "single operators",
    "simple": "simple models",
    "pytorch-converted": "PyTorch modules",
    "pytorch-operator": "PyTorch operators",
    "real": "image classifiers",
}
OUTCOMES = ("pass", "unsupported", "random", "disputed", "inexact", "wrong", "error", "crash")


def summary() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SUMMARY.read_text(encoding="utf-8"))
    return found


def suite_rows() -> list[tuple[str, ...]]:
    """Kind, cases, share that pass, the others by outcome."""
    rows = []
    for kind, counts in summary()["kinds"].items():
        others = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES[1:] if outcome in counts)
        rows.append((KIND_NAMES[kind], str(counts["cases"]), f"{counts.get('pass', 0) / counts['cases']:.1%}", others))
    return rows


def operator_rows(domain: str) -> list[tuple[str, ...]]:
    """The supported operators of a domain: name, versions, dtypes tested, cases, of those with symbolic dims."""
    rows = []
    for entry in summary()["operators"]:
        if entry["domain"] == domain and ((domain, entry["name"]) in SUPPORTED or entry["passed"]):
            versions = ", ".join(map(str, entry["versions"])) or "all"
            rows.append((f"`{entry['name']}`", versions, ", ".join(entry["dtypes"]), share(entry, "passed", "cases"), symbolic(entry)))
    listed = {entry["name"] for entry in summary()["operators"] if entry["domain"] == domain}
    rows += [(f"`{name}`", "all", "", "", "") for of, name in SUPPORTED if of == domain and name not in listed]
    return sorted(rows)


def share(entry: dict[str, Any], passed: str, tried: str) -> str:
    if not entry[tried]:
        return ""
    return str(entry[tried]) if entry[passed] == entry[tried] else f"{entry[passed]} of {entry[tried]}"


def symbolic(entry: dict[str, Any]) -> str:
    return share(entry, "symbolic_passed", "symbolic")


def missing() -> str:
    """Operators of ONNX that are neither imported nor pass by ONNX's own definition."""
    found = [
        f"`{entry['name']}`" if not entry["domain"] else f"`{entry['domain']}::{entry['name']}`"
        for entry in summary()["operators"]
        if (entry["domain"], entry["name"]) not in SUPPORTED and not entry["passed"]
    ]
    return ", ".join(found) or "none"


def version() -> str:
    return str(summary()["onnx"])
