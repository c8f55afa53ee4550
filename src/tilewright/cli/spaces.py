"""What the schedules of kernels could be: decisions with their options, and files of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.tables import table

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.kernel.schedule.space import Decision
    from tilewright.target.cpu.groups import GroupCode

SHOWN = 8  # options of a decision that are shown to people, the cheapest


def of_code(code: GroupCode) -> dict[str, Any]:
    """The space of one kernel as plain data: its decisions, the point taken, and what came of it."""
    from tilewright.kernel.schedule.given import kernel_hash
    from tilewright.kernel.schedule.loop_tree import loop_tree

    return {
        "kernel": kernel_hash(code.defined, code.constants),
        "name": code.defined.name,
        "decisions": [of_decision(decision) for decision in code.space.decisions],
        "point": code.space.point(),
        "given_up": [{"rule": rule, "why": error.what + (f": {error.why}" if error.why else "")} for rule, error in code.space.given_up],
        "loops": loop_tree(code.schedule.kernel),
        "schedule": code.schedule.trace.to_python(),
    }


def of_decision(decision: Decision) -> dict[str, Any]:
    return {
        "name": decision.name,
        "why": decision.why,
        "options": [
            {"value": value, "cost": cost, "taken": i == decision.taken, "default": i == decision.default}
            for i, (value, cost) in enumerate(zip(decision.options, decision.costs, strict=True))
        ],
    }


def write(path: Path, codes: Sequence[tuple[GroupCode, tuple[str, ...]]]) -> None:
    """A file of schedules that `compile --schedule` takes: point and trace of each kernel, and the model's nodes that it computes."""
    from tilewright.kernel.schedule.given import given_text, kernel_hash
    from tilewright.support.atomic import write_text_atomic

    entries = {kernel_hash(code.defined, code.constants): (code.defined.name, nodes, code.space, code.schedule) for code, nodes in codes}
    write_text_atomic(path, given_text(entries), durable=False)


def show(console: Console, titles: Sequence[str], layers: Sequence[dict[str, Any]], path: Path | None) -> None:
    for title, layer in zip(titles, layers, strict=True):
        console.print(title, style="bold", soft_wrap=True)
        console.print(f"kernel {layer['name']}, known to schedule files as {layer['kernel']}\n", style="dim")
        for decision in layer["decisions"]:
            console.print(f"{decision['name']}: {decision['why']}", soft_wrap=True)
            console.print(table(("", "option", "cost"), option_rows(decision["options"]), right=(2,)))
        if not layer["decisions"]:
            console.print("the rules leave nothing to choose for this kernel\n")
        for given_up in layer["given_up"]:
            said = f"the rule '{given_up['rule']}' gave up, another took over: {given_up['why']}"
            console.print(said, soft_wrap=True, style="yellow")
        console.print("loops", style="bold")
        console.print(layer["loops"], soft_wrap=True)
        console.print("\nschedule", style="bold")
        console.print(layer["schedule"], soft_wrap=True)
    if path is not None:
        console.print(f"schedules of {len(layers)} kernels written to {path}")


def option_rows(options: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Rows for the cheapest options, with what was taken and the default among them."""
    ordered = sorted(options, key=lambda option: (not option["taken"], not option["default"], option["cost"]))[:SHOWN]
    rows = [
        (
            "taken" if option["taken"] else "default" if option["default"] else "",
            value_text(option["value"]),
            f"{option['cost']:.4g}",
        )
        for option in sorted(ordered, key=lambda option: float(option["cost"]))
    ]
    return rows + ([("", f"and {len(options) - len(rows)} more", "")] if len(options) > len(rows) else [])


def value_text(value: Any) -> str:
    return " x ".join(map(value_text, value)) if isinstance(value, (list, tuple)) else str(value)
