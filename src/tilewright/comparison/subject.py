"""A model compiled to be looked at: its graphs, plans and artifacts at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.api import Dims, described, dim_range, internal_faults, target_machine
from tilewright.compiler import Compiled, compile_module, compile_program
from tilewright.frontend.dims import DimRange
from tilewright.frontend.onnx.host import may_want_host, partition, wants_host
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import LoadedModel, load_model
from tilewright.graph.interpreter import Interpreter
from tilewright.graph.node import Module
from tilewright.machine.description import Machine
from tilewright.runtime.examples import draw_inputs, hints_in, typical_sizes
from tilewright.runtime.executable import Executable
from tilewright.runtime.host.drawing import draw_values
from tilewright.runtime.opening import Runnable, open_artifact
from tilewright.runtime.program import Program
from tilewright.runtime.specs import Array, as_array, solve_sizes
from tilewright.support.errors import InputError, ModelError, UnsupportedOperatorError
from tilewright.support.progress import NullProgress, Progress
from tilewright.support.settings import Settings, current_settings


@dataclass(frozen=True, slots=True)
class Part:
    """A compiled graph: as imported, and all that was made of it."""

    module: Module
    compiled: Compiled


@dataclass(frozen=True, slots=True)
class Subject:
    """A compiled model. parts: one where it is an Executable, those of the program else. ranges: what was said of its dims."""

    model: Any
    loaded: LoadedModel
    machine: Machine
    settings: Settings
    ranges: Mapping[str, DimRange | int]
    parts: tuple[Part, ...]
    runnable: Runnable

    def complete(self, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The given inputs, and random ones for the others, of sizes that fit. Raises InputError as running does, and for values that
        nobody can draw."""
        runnable = self.runnable
        unknown = [name for name in given if name not in {spec.name for spec in runnable.inputs}]
        if unknown:
            raise InputError(f"the model has no input '{unknown[0]}'", where=", ".join(map(repr, runnable.inputs)))
        hints = hints_in({entry.key: entry.value for entry in self.loaded.proto.metadata_props})
        if isinstance(runnable, Program):
            fixed = {name: value for name, value in self.ranges.items() if isinstance(value, int)}
            return {**draw_values(runnable, given, fixed, hints, seed), **given}
        known = [spec for spec in runnable.inputs if spec.name in given]
        arrays = {spec.name: as_array(given[spec.name], spec) for spec in known}
        implied = solve_sizes(list(arrays.values()), known, runnable.sizes)
        sizes = {**typical_sizes(runnable.inputs, runnable.sizes), **implied}
        return {**draw_inputs(runnable.inputs, sizes, hints, seed), **arrays}

    def run(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[list[Array]]]]:
        """The outputs by name, and what each part was given, at each of its calls, in the order of its graph's inputs."""
        if isinstance(self.runnable, Executable):
            names = self.parts[0].compiled.module.input_names
            return dict(self.runnable.run(inputs)), [[[inputs[name] for name in names]]]
        calls: list[list[list[Array]]] = [[] for _ in self.parts]
        executables = self.runnable.parts

        def call(number: int, given: Mapping[str, Any]) -> Mapping[str, Any]:
            calls[number].append([given[name] for name in self.parts[number].compiled.module.input_names])
            return executables[number].run(given)

        return dict(self.runnable.run(inputs, call)), calls

    def reference(self, inputs: Mapping[str, Any], make: Callable[[Module], Interpreter] = Interpreter) -> dict[str, Any]:
        """The outputs by name, operator by operator in NumPy. make: the interpreter of a graph."""

        def call(number: int, given: Mapping[str, Any]) -> Mapping[str, Any]:
            module = self.parts[number].module
            results = make(module).run(module.main, [given[name] for name in module.input_names], {})
            return dict(zip(module.output_names, results, strict=True))

        return dict(self.runnable.run(inputs, call)) if isinstance(self.runnable, Program) else dict(call(0, inputs))


def open_subject(
    model: Any, *, target: str = "cpu", dims: Dims | None = None, progress: Progress | None = None, settings: Settings | None = None
) -> Subject:
    """Compile a model. model, target, dims: as `compile` takes them; the target must run here. Raises as `compile` does."""
    chosen = settings or current_settings()
    loaded = load_model(model)
    ranges = {name: dim_range(name, value) for name, value in (dims or {}).items()}
    machine = target_machine(target)
    made = _parts(loaded, ranges, machine, chosen, progress or NullProgress())
    runnable = open_artifact(made[1], chosen.threads, chosen.max_memory)
    return Subject(model, loaded, machine, chosen, ranges, made[0], runnable)


def _parts(
    loaded: LoadedModel, ranges: Mapping[str, DimRange | int], machine: Machine, settings: Settings, progress: Progress
) -> tuple[tuple[Part, ...], Any]:
    """The parts and the artifact: of the whole model, or of a program where its values are more than tensors of numbers."""
    source = described(loaded)
    if not wants_host(loaded.proto):
        try:
            with internal_faults(loaded):
                module = import_model(loaded, ranges).module
                compiled = compile_module(module, machine, settings, None, progress, source)
            return (Part(module, compiled),), compiled.artifact
        except (ModelError, UnsupportedOperatorError):
            if not may_want_host(loaded.proto):
                raise
    made: list[Compiled] = []
    with internal_faults(loaded):
        program = partition(loaded, ranges)
        around = program.body, program.inputs, program.outputs
        artifact = compile_program(program.parts, *around, machine, settings, None, progress, source, made.append, program.ranges)
    return tuple(map(Part, program.parts, made)), artifact
