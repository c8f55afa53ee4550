"""The tables of docs/operators.md, from the importers and what the last full run of the ONNX backend suite found."""

import ast
import inspect
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.frontend.onnx.registry import IMPORTERS
from tilewright.runtime.host.table import OPERATORS

SUPPORTED = {**IMPORTERS, **{key: run for key, run in OPERATORS.items() if key[0] != "tilewright"}}  # by compiler or host
SUMMARY = Path(__file__).parents[1] / "tests" / "onnx_backend" / "summary.json"
CONTRIBUTED = SUMMARY.with_name("onnxruntime_operators.txt")
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
    """The supported operators of a domain: name, versions, where it runs, dtypes tested, cases, of those
    with symbolic dims."""
    rows = []
    for entry in summary()["operators"]:
        key = (domain, entry["name"])
        if entry["domain"] == domain and (key in SUPPORTED or entry["passed"]):
            versions = ", ".join(map(str, entry["versions"])) or "1"
            dtypes = ", ".join(entry["dtypes"])
            rows.append((f"`{entry['name']}`", versions, runs(key), dtypes, share(entry, "passed", "cases"), symbolic(entry)))
    listed = {entry["name"] for entry in summary()["operators"] if entry["domain"] == domain}
    rows += [(f"`{name}`", "1", runs((of, name)), "", "", "") for of, name in SUPPORTED if of == domain and name not in listed]
    return sorted(rows)


def constants() -> str:
    """The operators with inputs that must be constants of the model, and these inputs."""
    found = [(of, name, known((of, name))) for of, name in sorted(IMPORTERS)]
    return "; ".join(f"`{name}` ({what})" for _, name, what in found if what)


def runs(key: tuple[str, str]) -> str:
    """Where an operator runs."""
    if key in IMPORTERS:
        return "compiled; host for strings, sequences" if key in OPERATORS else "compiled"
    return "host" if key in OPERATORS else "compiled, by ONNX's definition"


def known(key: tuple[str, str]) -> str:
    """Which inputs must be constants of the model, by what the importer and the functions of its file that it calls ask for."""
    importer = IMPORTERS.get(key)
    module = inspect.getmodule(importer)
    if importer is None or module is None:
        return ""
    asked, calls = _functions(module)
    reached: set[str] = set()
    queue = [importer.__name__]
    while queue:
        name = queue.pop()
        if name not in reached and name in calls:
            reached.add(name)
            queue += calls[name]
    return ", ".join(sorted({what for name in reached for what in asked[name]}))


@cache
def _functions(module: ModuleType) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """By function of a module: what it asks for with `require_constant`, and the names that it uses."""
    asked: dict[str, set[str]] = {}
    calls: dict[str, set[str]] = {}
    for function in ast.parse(inspect.getsource(module)).body:
        if isinstance(function, ast.FunctionDef):
            nodes = list(ast.walk(function))
            wanted = [
                n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "require_constant"
            ]
            asked[function.name] = {str(n.args[1].value) for n in wanted if isinstance(n.args[1], ast.Constant)}
            calls[function.name] = {n.id for n in nodes if isinstance(n, ast.Name)}
    return asked, calls


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


def missing_contributed() -> str:
    """Operators that onnxruntime runs on a CPU and that are not imported, by the list beside the suite."""
    lines = CONTRIBUTED.read_text(encoding="utf-8").split("\n")
    names = [line for line in lines if line and not line.startswith("#")]
    return ", ".join(f"`{name}`" for name in names if ("com.microsoft", name) not in SUPPORTED)


def onnxruntime_version() -> str:
    """The version whose operators are listed."""
    head = CONTRIBUTED.read_text(encoding="utf-8").split(",", 1)[0]
    return head.rsplit(" ", 1)[1]


def version() -> str:
    return str(summary()["onnx"])
