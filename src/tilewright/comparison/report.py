"""What a comparison found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.accuracy.bisect import Culprit
from tilewright.accuracy.errors import Error, tolerance_of
from tilewright.accuracy.judge import Verdict
from tilewright.accuracy.kernels import Drift, Traced
from tilewright.runtime.specs import Array, numpy_dtype

ROUNDING = "as rounding errors make it"
DIFFERENT = 1  # exit code of the command


@dataclass(frozen=True, slots=True)
class Row:
    """One output, or what one kernel computed. nodes: the model's nodes; error: None where there is nothing to compare with. wrong: in what
    way it is wrong, empty where it is right. rounding: right although beyond the tolerance, since rounding errors do as much. calls: how
    often the kernel ran. part: of which compiled part of a program the kernel is."""

    name: str
    nodes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    error: Error | None
    tolerance: float
    wrong: str = ""
    rounding: bool = False
    calls: int = 1
    part: int | None = None

    @property
    def ok(self) -> bool:
        return not self.wrong

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("name", "dtype", "tolerance", "ok", "wrong", "rounding", "calls", "part")}
        error = None if self.error is None else asdict(self.error)
        return {**plain, "nodes": list(self.nodes), "shape": list(self.shape), "error": error}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`. outputs: against `against`; kernels: in order of execution, each against the meaning of the graph for the
    operands that it was given. drift: where some output is far off, the first kernel from which results are, all errors before it
    included. notes: what a reader must know of the model. culprit: what bisecting found. bundle: the folder where everything to see the
    fault again lies."""

    model: str
    target: str
    against: str
    outputs: tuple[Row, ...]
    kernels: tuple[Row, ...]
    drift: Drift | None = None
    notes: tuple[str, ...] = ()
    culprit: Culprit | None = None
    bundle: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether all outputs and kernels are right."""
        return all(row.ok for row in (*self.outputs, *self.kernels))

    @property
    def first(self) -> Row | None:
        """The first kernel that differs, else the first output."""
        return next((row for row in (*self.kernels, *self.outputs) if not row.ok), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "target": self.target,
            "against": self.against,
            "ok": self.ok,
            "first": None if self.first is None else self.first.name,
            "outputs": [row.to_json() for row in self.outputs],
            "kernels": [row.to_json() for row in self.kernels],
            "drift": None if self.drift is None else {**asdict(self.drift), "nodes": list(self.drift.nodes)},
            "notes": list(self.notes),
            "culprit": None if self.culprit is None else self.culprit.to_json(),
            "bundle": None if self.bundle is None else str(self.bundle),
        }

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.target} against {self.against}: {'the same' if self.ok else 'DIFFERENT'}"]
        for row in (*self.outputs, *(row for row in self.kernels if not row.ok)):
            relative = "not compared" if row.error is None else f"relative error {row.error.relative:.2g}"
            said = row.wrong or (ROUNDING if row.rounding else "")
            lines.append(f"  {row.name}: {relative}{f', {said}' if said else ''}")
        lines += [f"  first far off: {drift_text(self.drift)}"] if self.drift is not None else []
        lines += [f"  {note}" for note in self.notes]
        if self.culprit is not None:
            lines.append(f"  at fault: {self.culprit}")
        return "\n".join(lines)


def drift_text(drift: Drift) -> str:
    nodes = ", ".join(drift.nodes[:2]) or drift.name
    return f"{nodes}, relative error {drift.error.relative:.2g}, {drift.share:.2g} of the elements"


def output_row(name: str, found: Array, verdict: Verdict | None, tolerance: float | None) -> Row:
    """The row of an output; no verdict: the other account does not have it."""
    limit = tolerance_of(found.dtype) if tolerance is None else tolerance
    if verdict is None:
        return Row(name, (), found.dtype.name, found.shape, None, limit)
    return Row(name, (), found.dtype.name, found.shape, verdict.error, limit, verdict.wrong, verdict.rounding)


def kernel_row(traced: Traced, tolerance: float | None, part: int | None) -> Row:
    """The row of a kernel: of the result that differs most."""
    verdict, calls = traced.verdict, traced.calls
    if verdict is None:
        return Row(traced.name, traced.nodes, "", (), None, 0.0, traced.overwritten, False, calls, part)
    limit = tolerance_of(numpy_dtype(traced.dtype)) if tolerance is None else tolerance
    wrong = verdict.wrong or traced.overwritten
    return Row(traced.name, traced.nodes, traced.dtype, traced.shape, verdict.error, limit, wrong, verdict.rounding, calls, part)
