"""What a full run of the suite found, as files in the repository: cases that do not pass, and a summary by kind and by operator."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test.case.test_case import TestCase

from tests.onnx_backend.cases import KINDS, first_dtype, open_case, with_symbolic_dims
from tests.onnx_backend.suite import OUTCOMES, Result
from tilewright.frontend.onnx.registry import IMPORTERS

FOLDER = Path(__file__).parent
LISTS = {"static": FOLDER / "unsupported.txt", "symbolic": FOLDER / "unsupported_symbolic.txt"}
SUMMARY = FOLDER / "summary.json"
HEADS = {
    "static": "Cases of the ONNX backend suite that compiled code does not pass",
    "symbolic": "Cases of the ONNX backend suite that compiled code does not pass when the dims of inputs are symbolic",
}
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")


@dataclass(frozen=True, slots=True)
class Failing:
    """Cases that do not pass, with outcome and reason, as found with one version of onnx."""

    onnx: str
    cases: dict[str, tuple[str, str]]


def read_failing(variant: str) -> Failing:
    """The stored list of a variant; empty when there is none yet."""
    path = LISTS[variant]
    if not path.exists():
        return Failing("", {})
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    cases = {}
    for line in lines:
        if not line.startswith("#"):
            case, outcome, reason = line.split("  ", 2)
            cases[case] = (outcome, reason)
    return Failing(head.rsplit(" ", 1)[1], cases)


def write_failing(variant: str, cases: Mapping[str, tuple[str, str]]) -> None:
    written = f"# Written by `python -m tests.onnx_backend.run --variant {variant} --write`: case, outcome, reason"
    head = [f"# {HEADS[variant]}, onnx {onnx.__version__}", written]
    lines = [f"{case}  {outcome}  {reason}" for case, (outcome, reason) in sorted(cases.items())]
    LISTS[variant].write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")


def keep(results: Iterable[Result], cases: Mapping[str, TestCase]) -> None:
    """Put results into the stored lists, and make the summary anew. Lists of another version of onnx are not mixed with these: that takes
    a full run."""
    results = list(results)
    for variant in dict.fromkeys(result.variant for result in results):
        found = {result.case: result for result in results if result.variant == variant}
        stored = read_failing(variant)
        if stored.onnx != onnx.__version__ and not found.keys() >= cases.keys():
            raise SystemExit(f"{LISTS[variant].name} is of onnx {stored.onnx or 'no version'}, not {onnx.__version__}: run all cases")
        kept = {case: value for case, value in stored.cases.items() if case in cases and case not in found}
        failing = {case: (result.outcome, result.reason) for case, result in found.items() if result.outcome not in ("pass", "same")}
        write_failing(variant, {**kept, **failing})
    SUMMARY.write_text(json.dumps(summarise(cases), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def summarise(cases: Mapping[str, TestCase]) -> dict[str, Any]:
    """Counts by kind, and what was tested of each operator; of the stored lists."""
    failing = {variant: read_failing(variant).cases for variant in LISTS if LISTS[variant].exists()}
    kinds = {}
    for kind in KINDS:
        outcomes = Counter(failing["static"].get(case, ("pass", ""))[0] for case in cases if case.startswith(f"{kind}/"))
        kinds[kind] = {"cases": outcomes.total(), **{outcome: outcomes[outcome] for outcome in OUTCOMES if outcomes[outcome]}}
    return {"onnx": onnx.__version__, "kinds": kinds, "operators": operators(cases, failing)}


def operators(cases: Mapping[str, TestCase], failing: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each operator of ONNX or of the importers: versions, whether it is imported, how many cases of that single operator there are
    and pass, of how many symbolic, and the dtypes of those that pass."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    passed_dtypes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for key, case in cases.items():
        model = open_case(case).model if case.kind == "node" else None
        if model is None or len(model.graph.node) != 1 or model.functions:
            continue
        node = model.graph.node[0]
        operator = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        counts[operator]["cases"] += 1
        if key not in failing["static"]:
            counts[operator]["passed"] += 1
            passed_dtypes[operator].add(first_dtype(model))
        if "symbolic" in failing and with_symbolic_dims(model) is not None:
            counts[operator]["symbolic"] += 1
            counts[operator]["symbolic_passed"] += key not in failing["symbolic"]
    schemas = schema_versions()
    return [
        {
            "domain": domain,
            "name": name,
            "versions": schemas.get((domain, name), []),
            "imported": (domain, name) in IMPORTERS,
            "dtypes": sorted(passed_dtypes[domain, name] - {""}),
            **{what: counts[domain, name][what] for what in ("cases", "passed", "symbolic", "symbolic_passed")},
        }
        for domain, name in sorted(counts.keys() | schemas.keys() | IMPORTERS.keys())
    ]


def schema_versions() -> dict[tuple[str, str], list[int]]:
    """Versions of ONNX's operators that operator sets from 7 on use."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        found[schema.domain, schema.name].add(schema.since_version)
    kept: dict[tuple[str, str], list[int]] = {}
    for (domain, name), versions in found.items():
        newest = onnx.defs.get_schema(name, domain=domain) if domain in DOMAINS else None
        if newest is None or newest.deprecated:
            continue
        first = max([v for v in versions if v <= 7], default=0) if domain == "" else 0
        kept[domain, name] = sorted(v for v in versions if v >= first)
    return kept
