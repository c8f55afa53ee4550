"""A model that is not tensors of numbers all through: compiled parts, and between them steps over strings, sequences, optionals and maps.

A program is called as an executable is, and lies in one artifact: its parts are artifacts of their own inside of it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.runtime import artifact as files
from tilewright.runtime.artifact import Artifact, manifest_faults
from tilewright.runtime.executable import Executable
from tilewright.runtime.host.kinds import ValueSpec, expect_dims, taken, value_spec
from tilewright.runtime.host.steps import Apply, Body, Branch, Literal, Over, Part, Repeat, Step, from_data
from tilewright.runtime.host.table import OPERATORS
from tilewright.runtime.specs import SizeSpec, numpy_dtype
from tilewright.support.errors import ArtifactError, InputError, InternalError, TilewrightError
from tilewright.support.host_limits import usable_cores
from tilewright.support.settings import Settings

if TYPE_CHECKING:
    from tilewright.runtime.program_profile import ProgramProfile

Scope = MutableMapping[str, Any]
Call = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]  # runs a part, by number, on arrays by name


class Program:
    """A compiled model with values that are no tensors of numbers. Tensors of strings are arrays of `str` objects (dtype object), sequences
    lists, optionals None or a value, maps dicts."""

    def __init__(self, artifact: Artifact, threads: int | None = None, max_memory: int | str | None = None) -> None:
        """threads: default is what affinity mask and cgroup quota allow. max_memory: bytes that each compiled part
        may need, as the setting has it. Raises ArtifactError when the code does not fit this machine, SettingsError for threads or a limit
        that are none."""
        chosen = Settings().changed(threads=threads, max_memory=max_memory)
        manifest = artifact.manifest
        with manifest_faults():
            self.inputs: tuple[ValueSpec, ...] = tuple(value_spec(entry) for entry in manifest["inputs"])
            self.outputs: tuple[ValueSpec, ...] = tuple(value_spec(entry) for entry in manifest["outputs"])
            self.ranges = tuple(SizeSpec(s["name"], s["lo"], s["hi"], s.get("multiple", 1)) for s in manifest["sizes"])
            self._body: Body = from_data(manifest["program"])
        if not isinstance(self._body, Body):
            raise ArtifactError("the artifact's host program is malformed", hint="compile the model again")
        self.manifest, self.artifact = manifest, artifact
        self.threads = chosen.threads or usable_cores()
        self.parts = tuple(Executable(part, chosen.threads, chosen.max_memory) for part in artifact.parts)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Results for positional or named arguments: one value, or a tuple when the model has several outputs."""
        results = list(self.run(self._named(args, kwargs)).values())
        return results[0] if len(results) == 1 else tuple(results)

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.inputs):
            raise InputError(f"{len(args)} arguments are passed, the model takes {len(self.inputs)}", where=self._signature())
        named = dict(zip((spec.name for spec in self.inputs), args, strict=False))
        twice = named.keys() & kwargs.keys()
        if twice:
            raise InputError(f"input '{min(twice)}' is passed twice", where=self._signature())
        return {**named, **kwargs}

    def run(self, inputs: Mapping[str, Any], call: Call | None = None) -> dict[str, Any]:
        """Results by name. call: runs parts in place of their compiled code, to look at them or to compute them in another way."""
        given: Any = inputs
        if not isinstance(given, Mapping):
            what = f"run takes a mapping of values by name, not a {type(given).__name__}"
            raise InputError(what, where=self._signature(), hint="call the program itself for values by position")
        known = {spec.name for spec in self.inputs}
        extra = [name for name in inputs if name not in known]
        missing = [spec.name for spec in self.inputs if spec.name not in inputs]
        if extra or missing:
            what = f"the model has no input '{extra[0]}'" if extra else f"input '{missing[0]}' is missing"
            raise InputError(what, where=self._signature())
        values = [taken(inputs[spec.name], spec) for spec in self.inputs]
        expect_dims(values, self.inputs, self.ranges)
        results = self._run(self._body, values, {}, call or self._call)
        return dict(zip((spec.name for spec in self.outputs), results, strict=True))

    def _call(self, number: int, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.parts[number].run(inputs)

    def _run(self, body: Body, arguments: Sequence[Any], outer: Scope, call: Call) -> list[Any]:
        """The results of a body."""
        scope: Scope = ChainMap({}, outer)
        scope.update(zip(body.params, arguments, strict=True))
        for step in body.steps:
            self._step(step, scope, call)
        return [scope[name] for name in body.results]

    def _step(self, step: Step, scope: Scope, call: Call) -> None:
        match step:
            case Part(number, inputs, outputs):
                given = {spec.name: scope[name] for spec, name in zip(self.parts[number].inputs, inputs, strict=True)}
                _define(scope, outputs, list(call(number, given).values()))
            case Literal(value, outputs):
                _define(scope, outputs, [value])
            case Apply():
                _define(scope, step.outputs, _applied(step, [scope[name] if name else None for name in step.inputs]))
            case Branch(condition, then, otherwise, outputs):
                chosen = then if bool(np.asarray(scope[condition]).reshape(-1)[0]) else otherwise
                _define(scope, outputs, self._run(chosen, [], scope, call))
            case Repeat():
                _define(scope, step.outputs, self._repeated(step, scope, call))
            case Over():
                _define(scope, step.outputs, self._over(step, scope, call))

    def _repeated(self, step: Repeat, scope: Scope, call: Call) -> list[Any]:
        trips = None if not step.trips else int(np.asarray(scope[step.trips]).reshape(-1)[0])
        going: Any = np.asarray(True) if not step.condition else np.asarray(scope[step.condition])
        carried = [scope[name] for name in step.carried]
        stacked: list[list[Any]] = [[] for _ in step.empty]
        number = 0
        while (trips is None or number < trips) and bool(going.reshape(-1)[0]):
            found = self._run(step.body, [np.asarray(number, np.int64), going, *carried], scope, call)
            going, carried = np.asarray(found[0]), found[1 : 1 + len(carried)]
            for column, value in zip(stacked, found[1 + len(carried) :], strict=True):
                column.append(value)
            number += 1
        rows = [
            np.stack(column) if column else np.empty((0, *shape), numpy_dtype(dtype))
            for column, (dtype, shape) in zip(stacked, step.empty, strict=True)
        ]
        return [*carried, *rows]

    def _over(self, step: Over, scope: Scope, call: Call) -> list[Any]:
        given = [scope[name] for name in step.inputs]
        count = len(given[0])
        if any(isinstance(value, list) and len(value) != count for value in given):
            raise InputError(f"SequenceMap: sequences of {', '.join(str(len(v)) for v in given if isinstance(v, list))} elements")
        turns = [[value[i] if isinstance(value, list) else value for value in given] for i in range(count)]
        rows = [self._run(step.body, arguments, scope, call) for arguments in turns]
        return [[row[column] for row in rows] for column in range(len(step.outputs))]

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> ProgramProfile:
        """Run the program `repeat` times on arguments as `__call__` takes them: where the time of its compiled parts goes."""
        from tilewright.runtime.program_profile import measure_program

        return measure_program(self, self._named(args, kwargs), repeat)

    def memory(self, /, **sizes: int) -> dict[str, int]:
        """Bytes of `weights` and of the `arena` of the parts, of which one runs at a time, as far as they depend on no size."""
        if sizes:
            raise InputError(f"the model has no size '{min(sizes)}'", why="the sizes of a program's parts are found while it runs")
        fixed = [part.memory() for part in self.parts if not part.sizes]
        return {
            "arena": max((found["arena"] for found in fixed), default=0),
            "weights": sum(int(part.artifact.weights.nbytes) for part in self.parts),
        }

    def save(self, path: str | Path) -> None:
        """Write the artifact to a file; it appears complete or not at all."""
        files.save(self.artifact, path)

    def _signature(self) -> str:
        return "inputs are " + ", ".join(map(repr, self.inputs))

    def __reduce__(self) -> Any:
        raise TypeError("a Program cannot be copied or pickled: save() it, and tilewright.load() the file where it is needed")

    def __repr__(self) -> str:
        return f"<Program ({', '.join(map(repr, self.inputs))}) -> ({', '.join(map(repr, self.outputs))})>"


def _define(scope: Scope, names: Sequence[str], values: Sequence[Any]) -> None:
    scope.update((name, value) for name, value in zip(names, values, strict=False) if name)


def _applied(step: Apply, inputs: Sequence[Any]) -> Sequence[Any]:
    operator = OPERATORS.get((step.domain, step.operator))
    if operator is None:
        raise ArtifactError(f"the artifact uses the unknown host operator {step.operator}", hint="compile the model again")
    try:
        result = operator(inputs, step.attributes)
    except TilewrightError as error:
        error.where = error.where or step.where
        raise
    except (IndexError, KeyError, ValueError) as error:  # shapes and labels that do not go together
        raise InputError(f"{step.operator} cannot work on these values: {error}", where=step.where) from None
    except Exception as error:
        raise InternalError(f"{step.operator} failed", where=step.where, why=f"{type(error).__name__}: {error}") from error
    return result if isinstance(result, tuple) else (result,)
