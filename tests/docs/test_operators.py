"""The operators page names every importer, and says of the suite what its stored summary says."""

import json
import re
from pathlib import Path

import onnx
import pytest
from docs.operators_table import OPERATORS, known, missing_contributed, runs

from tilewright.frontend.onnx.registry import IMPORTERS

ROOT = Path(__file__).parents[2]
DOMAINS = {"": "ai.onnx", **{name: name for name in ("ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")}}


def section(title: str) -> str:
    page = (ROOT / "docs" / "operators.md").read_text("utf-8")
    return page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_importer_has_its_row(domain: str) -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", section(DOMAINS[domain]), flags=re.MULTILINE))
    assert {name for of, name in IMPORTERS if of == domain} <= rows


def test_every_domain_has_its_section() -> None:
    assert {domain for domain, _ in IMPORTERS} <= DOMAINS.keys()


def test_what_is_missing_is_not_imported() -> None:
    missing = re.findall(r"`(?:([\w.]+)::)?(\w+)`", section("Not supported").split("\n\n")[0])
    assert missing
    assert not set(missing) & IMPORTERS.keys()


def test_the_share_that_passes_is_the_summarys() -> None:
    counts = json.loads((ROOT / "tests" / "onnx_backend" / "summary.json").read_text("utf-8"))["kinds"]["node"]
    page = (ROOT / "docs" / "operators.md").read_text("utf-8")
    assert f"| single operators | {counts['cases']} | {counts['pass'] / counts['cases']:.1%} |" in page


def test_every_operator_of_onnx_is_taken_or_listed() -> None:
    """By ONNX's own table: an importer, a host operator, a definition of ONNX, or a place in the list."""
    listed = {(of, name) for of, name in re.findall(r"`(?:([\w.]+)::)?(\w+)`", section("Not supported").split("\n\n")[0])}
    unknown = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        newest = onnx.defs.get_schema(schema.name, domain=schema.domain)
        defined = newest.has_function or newest.has_context_dependent_function
        if schema.domain in DOMAINS and not (newest.deprecated or key in IMPORTERS or key in OPERATORS or defined or key in listed):
            unknown.add(key)
    assert not unknown
    assert listed == {("ai.onnx.preview.training", "Gradient")}


def test_the_contributed_operators_that_are_missing_are_listed() -> None:
    missing = set(re.findall(r"`(\w+)`", missing_contributed()))
    assert "BeamSearch" in missing
    assert not {("com.microsoft", name) for name in missing} & IMPORTERS.keys()
    assert missing <= set(re.findall(r"`(\w+)`", section("Not supported")))


def test_where_operators_run_and_what_they_must_know() -> None:
    assert runs(("", "Conv")) == "compiled"
    assert runs(("ai.onnx.ml", "ZipMap")) == "host"
    assert runs(("", "SoftmaxCrossEntropyLoss")) == "compiled, by ONNX's definition"
    assert known(("com.microsoft", "MatMulNBits")) == "group index, weight, zero point"
    assert known(("", "Reshape")) == ""
