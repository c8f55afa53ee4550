"""tilewright check: everything that a model needs and the target lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, DimRanges, Json, Model, SetOptions, Target, pairs, settings_for
from tilewright.cli.tables import count_text, facts, size_text, table

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.examine import Estimate, Report
    from tilewright.frontend.onnx.survey import Refusal

REDUNDANT = "tilewright check"  # in the hint of an error that says to run what has just been run
FORMULA_SHOWN = 120  # characters; longer ones are in --json


@command
def check(
    model: Model, target: Target = "cpu", dim: DimRanges = None, set_: SetOptions = None, json: Json = False, debug: Debug = False
) -> Answer:
    """List everything that stops a model.

    Lists all unsupported nodes at once, with estimates of weights, memory and arithmetic. Generates no code. Exit code 4 when something
    is missing.
    """
    settings, dims = settings_for(set_), pairs(dim, "--dim")

    from tilewright import examine
    from tilewright.support.progress import make_progress

    report = examine.check(model, target, dims=dims, progress=make_progress(settings.progress), **pairs(set_, "--set"))
    return Answer(report.to_json(), lambda console: show(console, report), report.exit_code)


def show(console: Console, report: Report) -> None:
    operators = sorted(report.operators.items(), key=lambda item: (-item[1], item[0]))
    rows = ((name_text(*key), count, report.refused(*key) or "") for key, count in operators)
    console.print(table(("operator", "nodes", "refused"), rows, right=(1, 2)))
    if report.missing:
        console.print(table(("node", "operator", "opset", "inputs", "problem"), map(refusal_row, report.missing), right=(2,)))
        hints = (refusal.error.hint for refusal in report.missing)
        for hint in dict.fromkeys(hint for hint in hints if hint and REDUNDANT not in hint):
            console.print(f"try: {hint}")
    if report.by_name:
        console.print(f"{report.by_name} more nodes depend on results of unknown type and were checked by name only")
    if report.estimate is not None:
        if not report.ok:
            console.print("\nestimates, without what is missing:")
        console.print(facts(estimate_rows(report.estimate)))
    verdict = "can be compiled" if report.ok else f"cannot be compiled: {report.problems}"
    console.print(f"\n{report.model} {verdict} for {report.target}", style="bold green" if report.ok else "bold red")


def name_text(domain: str, operator: str) -> str:
    return f"{domain}::{operator}" if domain else operator


def refusal_row(refusal: Refusal) -> tuple[str, ...]:
    error = refusal.error
    details = [error.what, *([error.why] if error.why else []), *([", ".join(refusal.attributes)] if refusal.attributes else [])]
    operator = name_text(refusal.domain, refusal.operator) if refusal.operator else ""
    return refusal.node, operator, str(refusal.opset or ""), ", ".join(refusal.dtypes), "\n".join(details)


def estimate_rows(estimate: Estimate) -> list[tuple[str, object]]:
    sizes = ", ".join(f"{name}={value}" for name, value in estimate.sizes.items())
    at = f" at {sizes}" if sizes else ""
    rows: list[tuple[str, object]] = [
        ("kernels", estimate.kernels),
        ("weights", size_text(estimate.weights)),
        ("working memory", size_text(estimate.memory) + at + (", more for sizes known only while running" if estimate.open_ended else "")),
        ("arithmetic", f"{count_text(estimate.operations)}FLOP{at}"),
    ]
    if sizes:
        rows.insert(3, ("", formula_text(estimate.memory_formula, "bytes")))
        rows.append(("", formula_text(estimate.operations_formula, "operations")))
    return rows


def formula_text(formula: str, unit: str) -> str:
    return f"{formula} {unit}" if len(formula) <= FORMULA_SHOWN else f"{formula[:FORMULA_SHOWN]}... {unit}; --json gives all of it"
