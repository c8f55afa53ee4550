"""Compare a compiled model with another account of what it should compute, kernel by kernel.

found = tw.compare("model.onnx", against="onnxruntime")
if not found.ok:
    print(found)

Outputs are compared with those of the other account. Each kernel is compared with what the part of the optimised graph that it was made of
means, operator by operator in NumPy, for the operands that it was given; so a kernel at fault shows at its own row, and a fault that a
graph pass made shows in the outputs alone. `bisect` then says which pass, which kernel, which step of its schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.accuracy.bisect import Culprit, find_culprit
from tilewright.accuracy.bundle import write_bundle
from tilewright.accuracy.errors import is_large
from tilewright.accuracy.judge import Judge, within_tolerance
from tilewright.accuracy.kernels import Drift, Traced, first_drift, merged, trace_kernels
from tilewright.accuracy.rounding_noise import NoisyInterpreter
from tilewright.api import Dims
from tilewright.comparison.accounts import account, all_leaves, notes
from tilewright.comparison.report import Comparison, Row, kernel_row, output_row
from tilewright.comparison.subject import Part, Subject, open_subject
from tilewright.runtime.executable import Executable
from tilewright.runtime.specs import Array, numpy_dtype
from tilewright.support.errors import InputError
from tilewright.support.progress import NullProgress, Progress
from tilewright.support.settings import current_settings

TRACED_CALLS = 4  # calls of a program's part whose kernels are judged


def compare(
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    target: str = "cpu",
    against: str = "reference",
    dims: Dims | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    bisect: bool = False,
    bundle: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Compile a model and compare what it computes.

    model, target, dims, settings: as `compile` takes them; the target must run here. inputs: by name; those not given are random. against:
    `reference` (the model's operators in NumPy, one by one), `onnxruntime`, or the path of an artifact. tolerance: of the relative error;
    without one, what rounding errors do to the model is right, see `accuracy/judge.py`. bisect: find what is at fault, if something is;
    writes a bundle into the folder `bundle`, if one is given. Raises as `compile` and running do; SettingsError for an unknown `against`.
    """
    chosen = current_settings().changed(**settings)
    subject = open_subject(model, target=target, dims=dims, progress=progress, settings=chosen)
    return compare_subject(
        subject, inputs or {}, against=against, seed=seed, tolerance=tolerance, bisect=bisect, bundle=bundle, progress=progress
    )


def compare_subject(
    subject: Subject,
    inputs: Mapping[str, Any],
    *,
    against: str = "reference",
    seed: int = 0,
    tolerance: float | None = None,
    bisect: bool = False,
    bundle: str | Path | None = None,
    progress: Progress | None = None,
    kernels: bool = True,
) -> Comparison:
    """`compare` for a model that is compiled already, as one may be for many inputs. kernels: look at them too, not at outputs alone."""
    progress = progress or NullProgress()
    given = subject.complete(inputs, seed)
    with progress.stage(f"run {against}"):
        reference = subject.reference(given) if against == "reference" else None
        expected = account(against, subject, given) if reference is None else reference
    found, calls = subject.run(given)
    with progress.stage("outputs"):
        outputs = output_rows(subject, given, found, expected, reference, tolerance, against == "onnxruntime")
    with progress.stage("kernels"):
        seen = [turns[:TRACED_CALLS] if kernels else [] for turns in calls]
        traced = [traced_part(part, turns, subject, tolerance) for part, turns in zip(subject.parts, seen, strict=True)]
    single = isinstance(subject.runnable, Executable)
    rows = tuple(kernel_row(each, tolerance, None if single else i) for i, part in enumerate(traced) for each in part)
    doubtful = any(row.rounding or not row.ok for row in outputs)
    far = any(row.error is not None and is_large(row.error, numpy_dtype(row.dtype)) for row in outputs)
    result = Comparison(
        subject.loaded.source,
        subject.machine.name,
        against,
        outputs,
        rows,
        drift_of(subject, calls) if far else None,
        notes(subject, against, doubtful),
    )
    if result.ok or not bisect:
        return result
    with progress.stage("bisect"):
        culprit = culprit_of(subject, traced, calls, tolerance)
    folder = None if bundle is None else write_bundle(Path(bundle), culprit, given, subject.loaded.source)
    return replace(result, culprit=culprit, bundle=folder)


def traced_part(part: Part, turns: Sequence[Sequence[Array]], subject: Subject, tolerance: float | None) -> list[Traced]:
    """The kernels of a part, at all of these calls together."""
    return merged([trace_kernels(part.compiled, arrays, subject.settings.threads, tolerance) for arrays in turns], part.compiled)


def output_rows(
    subject: Subject,
    given: Mapping[str, Any],
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    reference: Mapping[str, Any] | None,
    tolerance: float | None,
    absolute: bool = False,
) -> tuple[Row, ...]:
    """A row for each output, for each array of one that holds several. reference: where it is known already. absolute: the other account's
    functions are as accurate as libraries are."""
    names = [spec.name for spec in subject.runnable.outputs]
    mine, theirs = all_leaves(found, names), all_leaves(expected, names)
    common = [name for name in mine if name in theirs]
    ours, right = [mine[name] for name in common], [theirs[name] for name in common]
    verdicts = within_tolerance(ours, right, tolerance)
    if tolerance is None and not all(verdict.ok for verdict in verdicts):
        base = all_leaves(subject.reference(given) if reference is None else reference, names)
        verdicts = judge_of_subject(subject, given, base, common, absolute)(ours, right)
    by_name = dict(zip(common, verdicts, strict=True))
    rows = [output_row(name, array, by_name.get(name), tolerance) for name, array in mine.items()]
    told = set(expected)
    # an element of a sequence or map that only one side has
    odd = {name: "only we give it" for name in mine if name not in theirs and name.partition("[")[0] in told}
    odd |= {name: "we do not give it" for name in theirs if name not in mine}
    rows += [output_row(name, theirs[name], None, tolerance) for name in theirs if name not in mine]
    return tuple(replace(row, wrong=odd.get(row.name, row.wrong)) for row in rows)


def judge_of_subject(subject: Subject, given: Mapping[str, Any], base: Mapping[str, Array], names: Sequence[str], absolute: bool) -> Judge:
    """The judge of some outputs of a model. base: what the reference gives."""

    def again(noisy: NoisyInterpreter) -> Sequence[Array]:
        outputs = [spec.name for spec in subject.runnable.outputs]
        others = all_leaves(subject.reference(given, noisy.over), outputs)
        if not all(name in others for name in names):
            raise InputError("how many elements a sequence has depends on rounding errors")
        return [others[name] for name in names]

    missing = [name for name in names if name not in base]
    if missing:
        raise InputError(f"the reference does not give the output '{missing[0]}'")
    return Judge([base[name] for name in names], again, absolute=absolute, coarse=subject.settings.precision == "bf16")


def drift_of(subject: Subject, calls: Sequence[Sequence[Sequence[Array]]]) -> Drift | None:
    """Where results begin to be beyond their tolerance; in a program, within one of its parts."""
    for part, turns in zip(subject.parts, calls, strict=True):
        for arrays in turns[:1]:
            found = first_drift(part.compiled, arrays, subject.settings.threads)
            if found is not None:
                return found
    return None


def culprit_of(
    subject: Subject, traced: Sequence[Sequence[Traced]], calls: Sequence[Sequence[Sequence[Array]]], tolerance: float | None
) -> Culprit:
    """What is at fault: in a program, in the first part that has a fault."""
    executables = [subject.runnable] if isinstance(subject.runnable, Executable) else list(subject.runnable.parts)
    found: Culprit | None = None
    order = sorted(range(len(subject.parts)), key=lambda i: all(each.ok for each in traced[i]))
    for number in order:
        if not calls[number]:
            continue
        part, arrays = subject.parts[number], calls[number][0]
        results = list(executables[number].run(dict(zip(part.compiled.module.input_names, arrays, strict=True))).values())
        found = find_culprit(part.module, subject.machine, subject.settings, part.compiled, traced[number], arrays, results, tolerance)
        if found.kind != "importer":
            return found
    if found is not None and isinstance(subject.runnable, Executable):
        return found
    return Culprit("host", "host steps", "each compiled part agrees with its operators in NumPy: a step between them, or the other account")
