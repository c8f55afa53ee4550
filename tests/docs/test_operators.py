"""The operators page names every importer, and says of the suite what its stored summary says."""

import json
import re
from pathlib import Path

import pytest

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
    missing = re.findall(r"`(?:([\w.]+)::)?(\w+)`", section("Not supported"))
    assert missing
    assert not set(missing) & IMPORTERS.keys()


def test_the_share_that_passes_is_the_summarys() -> None:
    counts = json.loads((ROOT / "tests" / "onnx_backend" / "summary.json").read_text("utf-8"))["kinds"]["node"]
    page = (ROOT / "docs" / "operators.md").read_text("utf-8")
    assert f"| single operators | {counts['cases']} | {counts['pass'] / counts['cases']:.1%} |" in page
