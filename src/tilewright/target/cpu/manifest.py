"""What an artifact's manifest says of its target and of each kernel, as plain data: all that a profile needs without the compiler."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilewright.ir.expr import Expr
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import substitute
from tilewright.kernel.work import Work
from tilewright.machine.description import Machine, estimated_peaks, peaks_together
from tilewright.plan.steps import Launch


def target_entry(machine: Machine) -> dict[str, Any]:
    """The machine that the code was made for: names, ISA, capacities of caches in bytes, and the peaks that the rules counted on."""
    return {
        "name": machine.name,
        "triple": machine.triple,
        "cpu": machine.llvm_cpu,
        "isa": sorted(machine.isa),
        "cores": machine.cores,
        "caches": {"l1": machine.l1d.size, "l2": machine.l2.size, "l3": 0 if machine.l3 is None else machine.l3.size},
        "peaks": {"one": asdict(estimated_peaks(machine)), "all": asdict(peaks_together(machine)), "measured": machine.peaks is not None},
    }


def kernel_entry(step: Launch, work: Work) -> dict[str, Any]:
    """One launch: the kernel's symbol, the model's nodes that it computes, and its work as formulas of the plan's sizes."""
    sizes = {own: given for own, given in zip(step.kernel.sizes, step.sizes, strict=True) if own is not given}

    def text(e: Expr) -> str:
        return repr(simplify(substitute(e, sizes)) if sizes else e)

    parts = {"operations": work.operations, "other": work.other, "read": work.read, "written": work.written, "constant": work.constant}
    return {
        "symbol": step.kernel.name,
        "origins": [str(origin) for origin in step.origins],
        "factors": list(work.factors),
        "work": {
            **{name: text(e) for name, e in parts.items()},
            "multiply_adds": {kind: text(e) for kind, e in work.multiply_adds.items()},
        },
    }
