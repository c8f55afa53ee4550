"""Write the parts of the documentation that are made by the code.

    python docs/generate.py           write them
    python docs/generate.py --check   say which tables are out of date; exit code 1 if any is

A page with tables is its template in docs/templates, with each {NAME} replaced by a table made here. In all other pages the outputs
shown below a program or a command are what it prints (`snippets.py`); the tests of the documentation check those.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import operators_table
from snippets import pages, refreshed, snippets_of

from tilewright.machine.cpus import CPUS
from tilewright.machine.targets import OPTIONS, named_machine
from tilewright.support.settings import settings_table
from tilewright.target.cpu.math.accuracy import MAX_ULP, NOTES

DOCS = Path(__file__).parent


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


def settings_rows() -> str:
    rows = (
        (
            f"`{row.name}`",
            row.kind.name,
            f"`{'auto' if row.default is None else row.default}`",
            f"`{row.environment}`",
            "yes" if row.changes_code else "no",
            row.doc,
        )
        for row in settings_table()
    )
    return markdown_table(("name", "value", "default", "environment variable", "changes code", "what it changes"), rows)


def cpu_rows() -> str:
    machines = map(named_machine, CPUS)
    rows = (
        (
            f"`{m.name}`",
            m.arch,
            str(m.vector_bits),
            str(m.vector_registers),
            f"{m.l1d.size // 1024} KiB, {m.l2.size // 1024} KiB, {m.l3.size // 2**20 if m.l3 else 0} MiB",
            m.triple,
        )
        for m in machines
    )
    return markdown_table(("name", "architecture", "vector bits", "vector registers", "L1d, L2, L3", "triple"), rows)


def option_rows() -> str:
    return markdown_table(("option", "value"), ((f"`{name}`", option.wanted) for name, option in OPTIONS.items()))


def accuracy_rows() -> str:
    rows = ((f"`{name}`", f"{single:g}", f"{double:g}", NOTES.get(name, "")) for name, (single, double) in MAX_ULP.items())
    return markdown_table(("function", "float32", "float64", "notes"), rows)


def operators(domain: str) -> str:
    return markdown_table(("operator", "versions", "runs", "dtypes", "cases", "symbolic"), operators_table.operator_rows(domain))


def suite_rows() -> str:
    return markdown_table(("kind", "cases", "pass", "others"), operators_table.suite_rows())


def planted_faults(name: str) -> str:
    """The `table` or the `summary` of tests/mutation."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.mutation import records

    made: str = getattr(records, name)(records.read_records(records.FOUND))
    return made


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "mutation.md": {"SUMMARY": lambda: planted_faults("summary"), "FAULTS": lambda: planted_faults("table")},
    "numerics.md": {"ACCURACY": accuracy_rows},
    "operators.md": {
        "VERSION": operators_table.version,
        "SUITE": suite_rows,
        "ONNX": lambda: operators(""),
        "ML": lambda: operators("ai.onnx.ml"),
        "TRAINING": lambda: operators("ai.onnx.preview.training"),
        "MICROSOFT": lambda: operators("com.microsoft"),
        "MISSING": operators_table.missing,
        "MISSING_CONTRIBUTED": operators_table.missing_contributed,
        "CONSTANTS": operators_table.constants,
        "ORT": operators_table.onnxruntime_version,
    },
    "settings.md": {"TABLE": settings_rows},
    "targets.md": {"NAMES": cpu_rows, "OPTIONS": option_rows},
}


def render(page: str) -> str:
    """The text of one generated page."""
    text = (DOCS / "templates" / page).read_text(encoding="utf-8")
    for name, make in PAGES[page].items():
        text = text.replace("{" + name + "}", make())
    return text


def main(arguments: list[str]) -> int:
    stale = [page for page in PAGES if not (DOCS / page).exists() or (DOCS / page).read_text(encoding="utf-8") != render(page)]
    if arguments == ["--check"]:
        print("\n".join(f"docs/{page} is out of date; python docs/generate.py writes it" for page in stale) or "all pages are up to date")
        return int(bool(stale))
    for page in stale:
        (DOCS / page).write_text(render(page), encoding="utf-8")
        print(f"wrote docs/{page}")
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if path.name not in PAGES and any(snippet.marker.startswith("output") for snippet in snippets_of(text)):
            with tempfile.TemporaryDirectory() as folder:
                new = refreshed(text, Path(folder))
            if new != text:
                path.write_text(new, encoding="utf-8")
                print(f"wrote the outputs of {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
