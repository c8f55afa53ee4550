"""Comparing a compiled model with another account of it, result by result and kernel by kernel.

    comparison = tw.compare("model.onnx", against="onnxruntime")
    print(comparison)

The outputs are compared with what `against` computes. Each kernel is compared with what the graph that it was made of means, computed
operator by operator in NumPy from the same inputs; so a kernel at fault shows at its own row, and a fault that a graph pass made shows in
the outputs alone. `bisect` then says which pass, which kernel, which step of its schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.accuracy.bisect import Culprit, find_culprit
from tilewright.accuracy.bundle import write_bundle
from tilewright.accuracy.errors import Error, error_of, tolerance_of
from tilewright.accuracy.kernels import Traced, trace_kernels
from tilewright.api import Dims, Request, compile_loaded, dim_range, target_machine
from tilewright.frontend.onnx.host import wants_host
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import LoadedModel, load_model
from tilewright.graph.interpreter import interpret
from tilewright.runtime.examples import draw_inputs, hints_in, typical_sizes
from tilewright.runtime.executable import Executable
from tilewright.runtime.opening import load
from tilewright.runtime.specs import Array, as_array, solve_sizes
from tilewright.support.errors import InputError, SettingsError, UnsupportedOperatorError
from tilewright.support.progress import NullProgress, Progress
from tilewright.support.settings import current_settings

DIFFERENT = 1  # exit code of the command


@dataclass(frozen=True, slots=True)
class Row:
    """One output, or what one kernel computed. nodes: the model's nodes; error: None where there is nothing to compare with, as inside of
    loops and branches."""

    name: str
    nodes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    error: Error | None
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error is None or self.error.relative <= self.tolerance


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`. outputs: against `against`; kernels: in order of execution, against the meaning of the graph. culprit: what
    bisecting found. bundle: the folder where everything to see the fault again lies."""

    model: str
    target: str
    against: str
    outputs: tuple[Row, ...]
    kernels: tuple[Row, ...]
    culprit: Culprit | None = None
    bundle: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether all outputs and kernels are within tolerance."""
        return all(row.ok for row in (*self.outputs, *self.kernels))

    @property
    def first(self) -> Row | None:
        """The first kernel that differs, else the first output."""
        return next((row for row in (*self.kernels, *self.outputs) if not row.ok), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""

        def data(row: Row) -> dict[str, Any]:
            error = None if row.error is None else asdict(row.error)
            return {
                **{k: getattr(row, k) for k in ("name", "dtype", "tolerance", "ok")},
                "nodes": list(row.nodes),
                "shape": list(row.shape),
                "error": error,
            }

        return {
            "model": self.model,
            "target": self.target,
            "against": self.against,
            "ok": self.ok,
            "first": None if self.first is None else self.first.name,
            "outputs": [data(row) for row in self.outputs],
            "kernels": [data(row) for row in self.kernels],
            "culprit": None if self.culprit is None else self.culprit.to_json(),
            "bundle": None if self.bundle is None else str(self.bundle),
        }

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.target} against {self.against}: {'the same' if self.ok else 'DIFFERENT'}"]
        for row in (*self.outputs, *(row for row in self.kernels if not row.ok)):
            relative = "not compared" if row.error is None else f"relative error {row.error.relative:.2g}"
            lines.append(f"  {row.name}: {relative}{'' if row.ok else f', more than {row.tolerance:.0e}'}")
        if self.culprit is not None:
            lines.append(f"  at fault: {self.culprit}")
        return "\n".join(lines)


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
    default by dtype. bisect: find what is at fault, if something is; writes a bundle into the folder `bundle`, if one is given. Raises as
    `compile` and running do; SettingsError for an unknown `against`.
    """
    chosen = current_settings().changed(**settings)
    progress = progress or NullProgress()
    loaded = load_model(model)
    if wants_host(loaded.proto):
        raise UnsupportedOperatorError(
            "compare takes models of tensors of numbers", where=loaded.source, hint="compare its parts, or results by hand"
        )
    ranges = {name: dim_range(name, value) for name, value in (dims or {}).items()}
    machine = target_machine(target)
    module = import_model(loaded, ranges).module
    compiled = compile_loaded(loaded, Request(ranges, machine, chosen, progress=progress))
    executable = Executable(compiled.artifact, chosen.threads)
    arrays = complete(executable, inputs or {}, loaded, seed)
    with progress.stage(f"run {against}"):
        expected = account(against, model, loaded, executable, module, arrays)
    found = executable.run(arrays)
    outputs = tuple(row(name, (), found[name], expected.get(name), tolerance) for name in (spec.name for spec in executable.outputs))
    with progress.stage("kernels"):
        traced = trace_kernels(compiled, [arrays[name] for name in compiled.module.input_names], chosen.threads)
    kernels = tuple(kernel_row(each, tolerance) for each in traced)
    result = Comparison(loaded.source, machine.name, against, outputs, kernels)
    if result.ok or not bisect:
        return result
    ordered = [arrays[name] for name in module.input_names]
    with progress.stage("bisect"):
        culprit = find_culprit(
            module, machine, chosen, compiled, traced, ordered, tolerance, result.first is not None and result.first in kernels
        )
    folder = (
        None if bundle is None else write_bundle(Path(bundle), culprit, dict(zip(module.input_names, ordered, strict=True)), loaded.source)
    )
    return Comparison(loaded.source, machine.name, against, outputs, kernels, culprit, folder)


def complete(executable: Executable, given: Mapping[str, Any], loaded: LoadedModel, seed: int) -> dict[str, Array]:
    """The given inputs, and random ones for the others, of sizes that fit. Raises InputError as running does."""
    unknown = [name for name in given if name not in {spec.name for spec in executable.inputs}]
    if unknown:
        raise InputError(f"the model has no input '{unknown[0]}'", where=", ".join(map(repr, executable.inputs)))
    known = [spec for spec in executable.inputs if spec.name in given]
    arrays = {spec.name: as_array(given[spec.name], spec) for spec in known}
    sizes = {**typical_sizes(executable.inputs, executable.sizes), **solve_sizes(list(arrays.values()), known, executable.sizes)}
    hints = hints_in({entry.key: entry.value for entry in loaded.proto.metadata_props})
    return {**draw_inputs(executable.inputs, sizes, hints, seed), **arrays}


def account(
    against: str, model: Any, loaded: LoadedModel, executable: Executable, module: Any, inputs: Mapping[str, Array]
) -> Mapping[str, Array]:
    """The outputs by name, by another account. Raises SettingsError for one that is not known."""
    if against == "reference":
        return dict(zip(module.output_names, interpret(module, [inputs[name] for name in module.input_names]), strict=True))
    if against == "onnxruntime":
        return by_onnxruntime(model, loaded, inputs)
    if not Path(against).is_file():
        hint = "`reference`, `onnxruntime`, or the path of an artifact"
        raise SettingsError(f"there is nothing called '{against}' to compare with", hint=hint)
    return load(against).run(inputs)


def by_onnxruntime(model: Any, loaded: LoadedModel, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """What ONNX Runtime computes, without its optimisations. Raises SettingsError where it is not installed or refuses the model."""
    try:
        import onnxruntime
    except ImportError:
        raise SettingsError("onnxruntime is not installed", hint="pip install tilewright[bench]") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        source = str(model) if isinstance(model, (str, Path)) else loaded.proto.SerializeToString()
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:
        raise SettingsError("onnxruntime cannot run this model", why=str(error), hint="compare with the reference") from error


def kernel_row(traced: Traced, tolerance: float | None) -> Row:
    """The row of a kernel: of the result that differs most."""
    if not traced.found:
        return Row(traced.name, traced.nodes, "", (), None, 0.0)
    rows = [row(traced.name, traced.nodes, f, e, tolerance) for f, e in zip(traced.found, traced.expected, strict=True)]
    return max(rows, key=lambda r: (not r.ok, 0.0 if r.error is None else r.error.relative))


def row(name: str, nodes: Sequence[str], found: Array, expected: Array | None, tolerance: float | None) -> Row:
    error = None if expected is None else error_of(np.asarray(found), np.asarray(expected))
    return Row(name, tuple(nodes), found.dtype.name, found.shape, error, tolerance_of(found.dtype) if tolerance is None else tolerance)
