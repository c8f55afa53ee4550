"""Which pass, kernel or schedule makes a case wrong: `compare --bisect` on a graph that has no model."""

from __future__ import annotations

from pathlib import Path

from tilewright.accuracy.bisect import Culprit, find_culprit
from tilewright.accuracy.bundle import write_bundle
from tilewright.accuracy.kernels import trace_kernels
from tilewright.compiler import compile_module
from tilewright.fuzzing.cases import Case, Finding, machine_of, module_of
from tilewright.runtime.executable import Executable
from tilewright.support.settings import Settings


def blame(case: Case, folder: Path) -> Finding | None:
    """Find what is at fault, and write what shows it into the folder; a finding of the kind `culprit`, or None where all agree by
    the rules of `compare`, whose tolerances are wider than those of the fuzzer."""
    culprit = culprit_of(case)
    if culprit is None:
        return None
    names = module_of(case.function).input_names
    write_bundle(folder, culprit, dict(zip(names, case.inputs[0], strict=True)), "case.zip", "tilewright fuzz --replay case.zip")
    return Finding("culprit", str(culprit))


def culprit_of(case: Case) -> Culprit | None:
    """What is at fault, on the first inputs that show it."""
    machine, module = machine_of(case.how.target), module_of(case.function, case.how.outlined)
    settings = Settings().changed(cache=False, opt_level=case.how.opt_level, precision=case.how.precision, threads=case.how.threads)
    compiled = compile_module(module, machine, settings)
    for inputs in case.inputs:
        traced = trace_kernels(compiled, inputs, case.how.threads)
        given = dict(zip(module.input_names, inputs, strict=True))
        found = list(Executable(compiled.artifact, settings.threads).run(given).values())
        culprit = find_culprit(module, machine, settings, compiled, traced, inputs, found, None)
        if culprit.kind != "importer":  # which means that all agree
            return culprit
    return None
